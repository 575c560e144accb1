"""The start of jobs on a simulated survey of doctorates: its source, and the domains of its categories and salary."""

from __future__ import annotations

FIELDS = "biology, computing, mathematics, physical_sciences, psychology, social_sciences, engineering, health"


def simulated(population: int, sample: int, seed: int, dataset: str = "doctorates") -> str:
    """Lines of a job up to the columns that these simulations have; further columns may follow."""
    return f"""
dataset: {dataset}
period: "2017"
input: {{simulate: {{kind: doctorates, population: {population}, sample: {sample}, seed: {seed}}}}}
columns:
  field: {{levels: [{FIELDS}]}}
  sex: {{levels: [male, female]}}
  salary: {{bounds: [0, 1000000]}}
"""

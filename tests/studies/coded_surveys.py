"""Simulated surveys in memory for mechanisms of continuous, binned and coded outcomes, with their whole population.

40,000 people in three fields, made anew for every number. Pay, in thousands, is lognormal within a field; hours are
lognormal too and grow with pay. A sample of 1,200 is taken systematically, in random order, by a size that grows with pay.
Without weights all people have one chance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import yaml

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Crosstab, Floats
from dpdist.job import SPECS, Job

POPULATION, SAMPLE = 40_000, 1_200
LEVELS = {"field": ("arts", "law", "physics")}
RATE = np.array([0.45, 0.35, 0.2])
"""Of the population, by field."""
MIDDLE = np.array([45.0, 55.0, 70.0])
"""Median pay of a field."""
SD, SLOPE, HOURS_SD = 0.4, 0.3, 0.2
"""Of log pay; of log hours on it; of log hours given it."""
PAY, HOURS, WEIGHT = (10.0, 300.0), (10.0, 90.0), (10.0, 80.0)
"""Public bounds."""
UNIT = {"pay": 10.0, "hours": 10.0}
"""Of coded outcomes, which are whole numbers of this unit."""
STATISTICS = """
- {ratio: [pay, hours]}
- {median: pay}
- {quantile: pay, at: 0.9}
- {proportion: pay, above: ABOVE}
- {share: field}
- {difference: {mean: pay}, from: {field: arts}}
- {difference: {median: pay}, from: {field: arts}}
"""


class Survey(NamedTuple):
    """A sample, and of every person of the population the frame row and the outcomes."""

    crosstab: Crosstab
    records: Records
    row: Codes
    outcomes: list[Floats]


def job_of(said: dict[str, Any], epsilon: str, sets: int = 1, coded: tuple[str, ...] = (), weighted: bool = True) -> Job:
    """A job of a mechanism with its constants; `coded` outcomes are whole numbers. Statistics are all that it gives."""
    spec = SPECS[said["name"]]
    outcomes = ["pay", "hours"] if spec.several_outcomes else ["pay"]
    bounds = {"pay": PAY, "hours": HOURS}
    columns: dict[str, Any] = {name: {"levels": list(levels)} for name, levels in LEVELS.items()}
    for name in outcomes:
        low, high = bounds[name]
        unit = UNIT[name] if name in coded else 1.0
        columns[name] = {
            "bounds": [low / unit, high / unit],
            "outside": "clip",
            **({"whole": True} if name in coded else {}),
        }
    above = 100.0 / (UNIT["pay"] if "pay" in coded else 1.0)
    wanted = yaml.safe_load(STATISTICS.replace("ABOVE", str(above)))
    names = {name for each in wanted for name in each if name not in ("at", "above", "from")}
    given = [each for each in wanted if all(map(spec.has_statistic, names & set(each)))]
    given = [each for each in given if len(outcomes) > 1 or "ratio" not in each]
    if weighted:
        columns["weight"] = {"bounds": list(WEIGHT), "outside": "clip"}
    return Job.model_validate(
        {
            "dataset": "coded",
            "period": "simulated",
            "columns": columns,
            "survey": {"weight": "weight"} if weighted else {},
            "strata": ["field"],
            "outcome": outcomes if len(outcomes) > 1 else "pay",
            "mechanism": said,
            "budget": {"epsilon": epsilon},
            "synthetic_sets": sets,
            "tables": [{"name": "t", "by": ["field"], "statistics": given}],
        }
    )


def survey_of(job: Job, seed: int) -> Survey:
    """A population and a sample of it."""
    rng = np.random.default_rng([seed, 20])
    row = np.sort(rng.choice(len(RATE), POPULATION, p=RATE)).astype(np.int32)
    noise = rng.standard_normal((2, POPULATION))
    pay = np.clip(MIDDLE[row] * np.exp(SD * noise[0]), *PAY)
    hours = np.clip(40.0 * np.exp(SLOPE * SD * noise[0] + HOURS_SD * noise[1]), *HOURS)
    values = {"pay": pay, "hours": hours}
    outcomes = [np.rint(values[name] / UNIT[name]) if job.columns[name].whole else values[name] for name in job.outcomes]
    size = np.sqrt(pay) * np.exp(0.2 * rng.standard_normal(POPULATION)) if job.survey.weight else np.ones(POPULATION)
    mixed = rng.permutation(POPULATION)
    chance = SAMPLE * size[mixed] / size.sum()
    steps = rng.random() + np.concatenate([[0.0], np.cumsum(chance)])
    drawn = np.floor(steps[1:]) > np.floor(steps[:-1])
    units, w = mixed[drawn], 1.0 / chance[drawn]
    order = np.argsort(row[units], kind="stable")
    units, w = units[order], w[order] if job.survey.weight else np.ones(len(units))
    codes = np.arange(len(RATE), dtype=np.int32)
    crosstab = Crosstab(
        {"field": codes}, LEVELS, np.bincount(row[units], minlength=len(RATE)), job.strata, job.survey.design_strata
    )
    sampled = [each[units] for each in outcomes]
    made = sampled[0] if len(sampled) == 1 else np.column_stack(sampled)
    return Survey(crosstab, Records.of_outcomes(made, w, row[units]), row, outcomes)

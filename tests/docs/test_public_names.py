"""Every public name says what it takes, gives and raises, and its example runs."""

from __future__ import annotations

import doctest
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dpdist

JOB = """
dataset: doctorates
period: "{period}"
input: {{simulate: {{kind: doctorates, population: 4000, sample: 400, seed: {period}}}}}
columns:
  sex: {{levels: [male, female]}}
  salary: {{bounds: [0, 1000000]}}
survey: {{weight: weight, population: 4000}}
outcome: salary
model: {{family: lognormal, predictors: [sex]}}
mechanism: {{name: weighted, weights: fixed_point, fallback: refuse}}
budget: {{epsilon: "8", adjacency: zero_out}}
synthetic_sets: 2
sampler: {{name: exact, draws: 100}}
tables:
  - {{name: salaries, by: [sex], statistics: [count, {{mean: salary}}]}}
record: {{log_lik: always}}
"""
HISTOGRAM = """
dataset: doctorates
period: "2017"
columns:
  sex: {levels: [male, female]}
  salary: {bounds: [0, 1000000], outside: clip}
strata: [sex]
outcome: salary
mechanism: {name: perturbed_histogram, bins: 5}
budget: {epsilon: "1", adjacency: zero_out}
tables:
  - {name: salaries, by: [sex], statistics: [{mean: salary}]}
"""
STUDY = """
kind: modips
study: example
title: An example
seed: 1
replicates: 2
files: 2
epsilons: ["1"]
cases: [{name: n100, n: 100, bounds: [-4, 4]}]
mechanisms: [{label: m1, sets: 1}]
runtime: {executor: serial}
"""
PARTS = ("Parameters", "Returns", "Raises")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that examples run in: job and study files, and releases of two periods."""
    folder, before = tmp_path_factory.mktemp("examples"), Path.cwd()
    texts = {"small.yaml": JOB.format(period="2017"), "histogram.yaml": HISTOGRAM, "study.yaml": STUDY}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for period in ("2017", "2019"):
        dpdist.run(dpdist.parse_job(JOB.format(period=period)), folder / f"doctorates-{period}")
    dpdist.open_release(folder / "doctorates-2017").synthetic(1).to_parquet(folder / "earlier.parquet")
    os.chdir(folder)
    yield folder
    os.chdir(before)


def documented() -> dict[str, Any]:
    """Public names, and the methods of what they give that a reader calls."""
    found = {name: getattr(dpdist, name) for name in dpdist.__all__}
    release = dpdist.Release
    tables = inspect.getmodule(release).ReleasedTables
    return found | {
        "Release.synthetic": release.synthetic,
        "Release.combine": release.combine,
        "ReleasedTables.wide": tables.wide,
    }


def lacking(name: str, thing: Any) -> list[str]:
    """Parts that a docstring does not have, of those that apply."""
    text = inspect.getdoc(thing) or ""
    wanted = set(PARTS) if inspect.isfunction(thing) else {"Parameters"}
    missing = [part for part in PARTS if part in wanted and f"{part}\n{'-' * len(part)}\n" not in text]
    examples = doctest.DocTestParser().get_examples(text)
    skipped = any(doctest.SKIP in each.options for each in examples)
    return missing + ([] if examples and not skipped else ["an example that runs"])


@pytest.mark.parametrize("name", documented())
def test_a_public_name_says_what_it_takes_gives_and_raises(name: str) -> None:
    assert lacking(name, documented()[name]) == []


def failed(name: str, thing: Any) -> str:
    """What running an example printed that it does not say; empty where it is as it says."""
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(
        inspect.getdoc(thing) or "", {"dpdist": dpdist, "Path": Path}, name, None, None
    )
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    return "".join(said)


@pytest.mark.parametrize("name", documented())
def test_an_example_gives_what_it_says(name: str, prepared: Path) -> None:
    assert failed(name, documented()[name]) == ""

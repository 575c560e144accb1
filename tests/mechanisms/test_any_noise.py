"""A release ends for every value that noise can give: without an exception, a NaN or an infinite figure."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import opendp.measurements
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from named_draws import named
from small_jobs import cases, parsed, rooted

import dpdist
from dpdist.core.records import Floats, Ints
from dpdist.job import SPECS

JUDGED = True
"""A verdict is made of every mechanism's releases, whatever the noise."""
FAR, FARTHER = 30.0, 1e6
"""Scales by which noise moves an answer: once in e³⁰ answers, and never."""


def _signs(exact: Ints, number: int) -> Ints:
    return np.where((np.arange(len(exact)) + number) % 2, 1, -1)


ANSWERS: dict[str, Callable[[Ints, float, int], Floats]] = {
    "all zero": lambda exact, scale, number: 0.0 * exact,
    "negated": lambda exact, scale, number: -1.0 * exact,
    "low": lambda exact, scale, number: exact - FAR * scale,
    "high": lambda exact, scale, number: exact + FAR * scale,
    "low and high": lambda exact, scale, number: exact + FAR * scale * _signs(exact, number),
    "far too low": lambda exact, scale, number: exact - FARTHER * scale,
    "far too high": lambda exact, scale, number: exact + FARTHER * scale,
    "far off either way": lambda exact, scale, number: exact + FARTHER * scale * _signs(exact, number),
    "one far off": lambda exact, scale, number: exact + FARTHER * scale * (np.arange(len(exact)) == number % len(exact)),
    "wild": lambda exact, scale, number: exact + scale * np.random.default_rng(number).normal(0.0, FAR, len(exact)),
}
"""Noisy answers from exact ones, the scale of their noise and the number of the query."""
ALIKE = 300
"""Answers of one kind. Later ones are wild: a truncated law whose candidates were all refused draws until one is kept."""
NOISY = [name for name, job in cases().items() if SPECS[job["mechanism"]["name"]].adds_noise]
PAIRS = list(itertools.product(NOISY, ANSWERS))
SMALL = [name for name in NOISY if not name.startswith("shipped")]
ONCE = list({re.sub("zero_out|substitution|add_remove", "", name): name for name in SMALL}.values())
QUICK = [(name, list(ANSWERS)[(7 * place) % len(ANSWERS)]) for place, name in enumerate(ONCE)]
"""Each small job once, under one adjacency, and answers of other kinds from job to job."""
FURTHER = [
    pair if place % 7 == 0 else pytest.param(*pair, marks=pytest.mark.slow)
    for place, pair in enumerate(PAIRS)
    if pair not in QUICK
]
"""The other pairs, of which `long` tests are a seventh: every job with one or two kinds of answers."""


def test_every_mechanism_that_adds_noise_is_here() -> None:
    noisy = {name for name, spec in SPECS.items() if spec.adds_noise}
    assert {cases()[name]["mechanism"]["name"] for name in NOISY} == noisy


def released(name: str, answers: str, inputs: Path, workspace: Path) -> list[str]:
    """Figures of a public folder that are none, under these answers."""
    numbers = itertools.count()

    def measurement(*_: object, scale: float) -> Callable[[list[int]], list[int]]:
        def answer(exact: list[int]) -> list[int]:
            number = next(numbers)
            kind = answers if number < ALIKE else "wild"
            return [int(value) for value in np.rint(ANSWERS[kind](np.array(exact, dtype=np.int64), scale, number))]

        return answer

    with named(name), pytest.MonkeyPatch.context() as patch:
        patch.setattr(opendp.measurements, "make_laplace", measurement)
        patch.setattr(opendp.measurements, "make_gaussian", measurement)
        dpdist.run(parsed(rooted(cases()[name], inputs)), workspace)
    return list(no_figures(workspace / "public"))


def no_figures(folder: Path) -> Iterator[str]:
    """NaN and infinite numbers in a folder, each with its place. Degrees of freedom are infinite for the normal law."""
    for path in sorted(folder.rglob("*.json")):
        constants = list[str]()
        json.loads(path.read_text(encoding="utf-8"), parse_constant=constants.append)
        yield from (f"{path.name}: {constant}" for constant in dict.fromkeys(constants))
    for path in sorted(folder.rglob("*.parquet")):
        for field, column in zip((table := pq.read_table(path)).schema, table.columns, strict=True):
            values = column.drop_null().to_numpy() if pa.types.is_floating(field.type) else np.zeros(0)
            if np.isnan(values).any() or (field.name != "df" and np.isinf(values).any()):
                yield f"{path.name}: {field.name}"


@pytest.mark.parametrize(("name", "answers"), QUICK)
def test_a_release_ends_whatever_the_noise(name: str, answers: str, inputs: Path, tmp_path: Path) -> None:
    assert released(name, answers, inputs, tmp_path / "work") == []


@pytest.mark.long
@pytest.mark.parametrize(("name", "answers"), FURTHER)
def test_a_release_ends_whatever_the_noise_and_the_job(name: str, answers: str, inputs: Path, tmp_path: Path) -> None:
    assert released(name, answers, inputs, tmp_path / "work") == []


@pytest.mark.parametrize(("value", "lines"), [(1.0, []), (np.nan, ["t.json: NaN", "t.parquet: x"]), (-np.inf, None)])
def test_what_is_no_figure_is_found(value: float, lines: list[str] | None, tmp_path: Path) -> None:
    """Control."""
    (tmp_path / "t.json").write_text(json.dumps({"x": value}), encoding="utf-8")
    pq.write_table(pa.table({"x": [value], "df": [np.inf]}), tmp_path / "t.parquet")
    assert list(no_figures(tmp_path)) == (["t.json: -Infinity", "t.parquet: x"] if lines is None else lines)

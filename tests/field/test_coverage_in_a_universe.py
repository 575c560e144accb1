"""Published 90 % intervals of counts and totals in a universe, over repeated samples of a population.

The number of records of a universe varies over samples, and published errors of counts and totals hold this. Mechanisms
run in memory, as predictions of `dpdist plan` do. `pytest -m slow -s tests/field/test_coverage_in_a_universe.py` prints
the coverage of all mechanisms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from dpdist.core.keys import Key
from dpdist.core.records import TOTAL
from dpdist.job import Job
from dpdist.planning.plan import Layout
from dpdist.publish.released import ReleasedObject
from dpdist.quality.predicted.replicates import PublicReplicate, placed_records, release_of, tables_of
from dpdist.survey.census import place, take_census
from dpdist.survey.reference_file import in_rows, open_reference
from dpdist.survey.source import open_source

STRATA = {"A": (9000, 130, 0.5), "B": (4000, 100, 0.6), "C": (1200, 60, 0.7), "D": (600, 40, 0.8)}
"""Of every stratum: the population, the sample, and the share of the universe."""
COLUMNS: dict[str, dict[str, Any]] = {
    "stratum": {"levels": list(STRATA)},
    "employed": {"levels": ["yes", "no"]},
    "sex": {"levels": ["f", "m"]},
    "income": {"bounds": [500, 60000], "outside": "clip"},
    "share": {"bounds": [0, 1], "outside": "clip"},
    "retired": {"bounds": [0, 1], "whole": True, "outside": "clip"},
    "children": {"bounds": [0, 4], "whole": True, "outside": "clip"},
    "weight": {"bounds": [2, 150], "outside": "clip"},
}
DESIGNS: dict[str, dict[str, Any]] = {
    "no strata": {},
    "strata": {"design_strata": ["stratum"]},
    "strata, PSUs, fpc": {"design_strata": ["stratum"], "psu": "id", "fpc": ["N"]},
}
LOGNORMAL = {"model": {"family": "lognormal", "predictors": ["sex"]}, "sampler": {"draws": 300}, "synthetic_sets": 3}
STRICT = {"budget": {"epsilon": "1000", "adjacency": "substitution"}}
NOISY = {"budget": {"epsilon": "1000", "adjacency": "add_remove"}, "predictors": {"protect": {"epsilon": "200"}}}
OF_ALL = {"by": [], "outcome": "share", "synthetic_sets": 3}
"""Keys of a mechanism that knows no column."""
MECHANISMS: dict[str, dict[str, Any]] = {
    "weighted": LOGNORMAL,
    "unweighted": LOGNORMAL,
    "weighted_e": LOGNORMAL,
    "sanitized_statistics": STRICT | {"model": {"family": "lognormal"}, "reference": True},
    "modips": STRICT | {"mechanism": {"law": "lognormal"}, "synthetic_sets": 3},
    "modips, secret sizes": NOISY | {"mechanism": {"law": "lognormal"}, "synthetic_sets": 3},
    "tables": STRICT | {"budget": {"epsilon": "20", "adjacency": "substitution"}, "reference": True},
    "flat_laplace": STRICT | OF_ALL | {"mechanism": {"bins": {"share": 8}}},
    "universal_histogram": STRICT
    | OF_ALL
    | {"outcome": ["retired", "share"], "mechanism": {"bins": {"share": 8}, "layers": 2}},
    "steps": STRICT | OF_ALL | {"outcome": ["retired", "share"], "mechanism": {"bins": {"share": 8}, "layers": 2}},
    "marginals": STRICT | OF_ALL | {"outcome": "retired", "synthetic_sets": 1},
    "marginals, network": STRICT
    | OF_ALL
    | {"mechanism": {"select": "privbayes"}, "outcome": ["retired", "children"], "synthetic_sets": 1},
    "perturbed_histogram": STRICT | OF_ALL | {"survey": {}},
}
"""Keys of each job; `reference` is true if it names a public file."""


@cache
def population() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    parts = [
        pd.DataFrame(
            {
                "stratum": stratum,
                "employed": np.where(rng.random(size) < inside, "yes", "no"),
                "sex": rng.choice(["f", "m"], size),
                "income": np.clip(rng.lognormal(8.5, 0.5, size), 500, 60000).round(0),
                "retired": (rng.random(size) < 0.3).astype(int),
                "children": rng.poisson(1, size).clip(0, 4),
                "N": size,
            }
        )
        for stratum, (size, _, inside) in STRATA.items()
    ]
    return pd.concat(parts, ignore_index=True).assign(share=lambda rows: rows["income"] / 60000)


def sampled(design: str, rng: np.random.Generator, times: int = 1) -> pd.DataFrame:
    """Simple random samples of the population or of its strata. Weights vary about inverse sampling fractions."""
    everyone, n = population(), sum(size for _, size, _ in STRATA.values())
    if design == "no strata":
        rows = everyone.sample(times * n, random_state=rng).assign(weight=len(everyone) / n)
    else:
        strata = everyone.groupby("stratum")
        rows = pd.concat([of.sample(times * STRATA[str(name)][1], random_state=rng) for name, of in strata])
        rows["weight"] = rows["stratum"].map({name: size / drawn for name, (size, drawn, _) in STRATA.items()})
    varied = rows["weight"] * np.exp(0.1 * rng.standard_normal(len(rows)) - 0.005)
    return rows.assign(weight=varied.clip(2, 150), id=[f"u{k}" for k in range(len(rows))]).reset_index(drop=True)


def job_of(mechanism: str, design: str, folder: Path) -> Job:
    said = dict(MECHANISMS[mechanism])
    by, outcome = said.pop("by", ["sex"]), said.pop("outcome", "income")
    first, name = (outcome if isinstance(outcome, str) else outcome[0]), mechanism.partition(",")[0]
    if said.pop("reference", False):
        rows = sampled(design, np.random.default_rng(99), times=4)
        rows.to_parquet(folder / "reference.parquet")
        said["reference"] = {"path": str(folder / "reference.parquet"), "period": "2023", "provenance": "simulated"}
    survey = said.pop("survey", {"weight": "weight"} | (DESIGNS[design] if mechanism != "modips, secret sizes" else {}))
    columns = ["stratum", "employed", *by, *([outcome] if isinstance(outcome, str) else outcome)]
    if survey and said.get("model", {}).get("predictors") is None:
        columns.append("weight")
    if name in ("weighted", "unweighted", "weighted_e", "modips") and "design_strata" in survey:
        said["strata"] = ["stratum"]
    return Job.model_validate(
        {
            "dataset": "universe",
            "period": "2024",
            "columns": {column: COLUMNS[column] for column in columns},
            "universe": [{"column": "employed", "keep": ["yes"]}],
            "outcome": outcome,
            "public_frame": {"accepted": "simulated"},
            "tables": [{"name": "t", "by": by, "statistics": ["count", {"total": first}]}],
            **said,
            "survey": survey,
            "budget": said.get("budget", {"epsilon": "300", "adjacency": "zero_out"}),
            "mechanism": {"name": name, **said.get("mechanism", {})},
        }
    )


def releases(mechanism: str, design: str, samples: int) -> Iterator[ReleasedObject]:
    """A release of every sample."""
    rng, key = np.random.default_rng(7), Key.from_hex("5" * 64)
    with TemporaryDirectory() as name:
        folder = Path(name)
        job = job_of(mechanism, design, folder)
        for number in range(samples):
            source = open_source(job, sampled(design, rng))
            census = take_census(job, source)
            crosstab = Layout.of(job, census.crosstab).crosstab
            with TemporaryDirectory() as scratch:
                placed = place(job, source, census, Path(scratch))
                records = placed.take(np.arange(len(placed)))
            if len(crosstab) != len(census.crosstab):
                sizes = [len(levels) for levels in crosstab.levels.values()]
                keys = (np.ravel_multi_index(tuple(of.codes.values()), sizes) for of in (crosstab, census.crosstab))
                place_of = np.searchsorted(next(keys), next(keys)).astype(np.int32)
                records = replace(records, row=place_of[records.row])
            reference = None
            if job.has_reference:
                opened = open_reference(job, source, crosstab)
                reference = in_rows(opened, placed_records(job, opened))
            yield release_of(job, crosstab, PublicReplicate(records, reference), key.child(f"{number}"))


def published(made: Iterable[ReleasedObject], domain: bool = True) -> pd.DataFrame:
    """Whether intervals of all records of the universe hold the population's figures: a column a statistic.

    Without `domain`, numbers of drawn records are taken from the universe alone.
    """
    everyone = population()[population()["employed"] == "yes"]
    rows = []
    for released in made:
        if not domain:
            released = replace(released, crosstab=replace(released.crosstab, sampled=None))
        weightless = 1.0 if released.job.survey.weight else 330 / len(population())
        truth = {"count": len(everyone) * weightless, "total": everyone[released.job.outcomes[0]].sum() * weightless}
        table = tables_of(released)["t"]
        table = table[table["estimator"] == table["estimator"].iloc[0]]
        of_all = table[(table[list(released.job.tables[0].by)] == TOTAL).all(axis=1)].set_index("statistic")
        held = {name: of_all.loc[name, "lower"] <= figure <= of_all.loc[name, "upper"] for name, figure in truth.items()}
        rows.append(held | {f"{name} known": np.isfinite(of_all.loc[name, "standard_error"]) for name in truth})
    return pd.DataFrame(rows).astype(bool)


FALSE_ALARM = 0.002
"""Probability that a 90 % interval's coverage is outside the limits of a test."""


def limits(samples: int) -> tuple[float, float]:
    """Limits of the coverage of 90 % intervals over these samples, which chance leaves with `FALSE_ALARM`."""
    low, high = binom.interval(1.0 - FALSE_ALARM, samples, 0.9)
    return float(low / samples), float(high / samples)


FEW = 60


@pytest.mark.parametrize("design", ["no strata", "strata, PSUs, fpc"])
def test_intervals_of_a_universe_hold_the_population(design: str) -> None:
    """Control: they miss where the universe is taken for the sample."""
    low, _ = limits(FEW)
    made = list(releases("modips", design, FEW))
    found = published(made)
    assert found["count known"].all()
    assert low <= found["count"].mean()
    if design == "no strata":
        assert published(made, domain=False)["count"].mean() < 0.5 < low


MANY = 200
ALIKE = ("no strata",)
WIDE = {"modips, secret sizes", "flat_laplace", "universal_histogram", "steps", "marginals", "marginals, network"}
"""Errors are upper bounds: sums of weights without their squares, or a Poisson sample."""
TOTALS = {"weighted", "unweighted", "weighted_e", "sanitized_statistics", "tables"}
"""Errors of totals hold how outcomes vary within cells; elsewhere they hold the composition of the sample and noise."""


CASES = [
    (name, design) for name, said in MECHANISMS.items() for design in DESIGNS if design in ALIKE or "survey" not in said
]
"""Mechanisms without weights estimate the population's figures from samples alike in all strata only."""


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "design"), CASES)
def test_intervals_of_every_mechanism_hold_the_population(mechanism: str, design: str) -> None:
    found = published(releases(mechanism, design, FEW if mechanism == "tables" else MANY))
    known = found[found["count known"] & found["total known"]]
    coverage = {name: float(known[name].mean()) for name in ("count", "total")}
    print(f"\n{mechanism}, {design}: {coverage['count']:.3f} {coverage['total']:.3f} of {len(known)}")
    low, high = limits(len(known))
    assert low <= coverage["count"]
    assert coverage["count"] <= high or mechanism in WIDE
    assert low <= coverage["total"] or mechanism not in TOTALS

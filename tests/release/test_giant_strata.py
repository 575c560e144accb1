"""Strata too large for one task are served span by span, under every mechanism: the release differs by rounding alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from small_jobs import CURRENT, EARLIER, cases, parsed, rooted
from small_runs import run

import dpdist
from dpdist.job import SPECS
from dpdist.testing.mechanisms import survey

CASES = [
    "weighted-zero_out-lognormal",
    "weighted-rule-cluster",
    "weighted-two-outcomes",
    "weighted-zero_out-scores",
    "unweighted-zero_out-beta",
    "weighted_e-zero_out-poisson",
    "censor_w-zero_out-beta",
    "censor_w-reference",
    "censor_uw-zero_out-beta",
    "centred-zero_out-beta",
    "perturbed_histogram-zero_out-histogram",
    "laplace-zero_out-noisy_tables",
    "laplace_composed-public",
    "tables-zero_out-residuals",
    "sanitized_statistics-zero_out-lognormal",
    "modips-zero_out-sufficient",
    "flat_laplace-zero_out-partition",
    "universal_histogram-zero_out-partition",
    "steps-zero_out-partition",
    "weighted_marginals-adaptive",
]
SELDOM = {
    *("weighted-zero_out-lognormal", "weighted-zero_out-scores", "unweighted-zero_out-beta", "weighted_e-zero_out-poisson"),
    *("perturbed_histogram-zero_out-histogram", "laplace_composed-public", "modips-zero_out-sufficient"),
    *("flat_laplace-zero_out-partition", "universal_histogram-zero_out-partition", "weighted_marginals-adaptive"),
}
"""Their passes are those of another case: they are `long`."""


def numbers(content: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Numbers within JSON values, each with its place."""
    if isinstance(content, dict | list):
        for name, inner in content.items() if isinstance(content, dict) else enumerate(content):
            yield from numbers(inner, f"{place}.{name}")
    elif isinstance(content, int | float):
        yield place, float(content)


def results(workspace: Path) -> dict[str, float]:
    """Released parameters of the first set, and diagnostics such as numbers of censored records."""
    released = json.loads((workspace / "public" / "released" / "set-1.json").read_text())["strata"]
    strata = pd.read_parquet(workspace / "confidential" / "strata.parquet").set_index("stratum")
    return dict(numbers([released, strata["diagnostics"].to_dict()]))


def test_every_mechanism_is_here() -> None:
    assert {cases()[name]["mechanism"]["name"] for name in CASES} == set(SPECS)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in SELDOM)) for name in CASES])
def test_a_giant_stratum_is_served_span_by_span(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 128 records, one a span."""
    for seed, file in ((1, CURRENT), (2, EARLIER)):
        survey(seed, 400).to_parquet(tmp_path / file)
    run(name, cases()[name], tmp_path, tmp_path / "whole")
    monkeypatch.setattr("dpdist.planning.blocks.TENSOR_BYTES", 1)
    monkeypatch.setattr("dpdist.planning.blocks.SPAN_VALUES", 1)
    assert dpdist.plan(parsed(rooted(cases()[name], tmp_path))).layout.giants
    run(name, cases()[name], tmp_path, tmp_path / "giant")
    assert results(tmp_path / "giant") == pytest.approx(results(tmp_path / "whole"), rel=1e-5, nan_ok=True)

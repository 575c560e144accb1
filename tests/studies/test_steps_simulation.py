"""The study of counts over a partition: what a first layer buys, with intervals over replicates, and what it does not."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import t

from dpdist.core.records import Floats
from dpdist.job.loading import find_job
from dpdist.quality.microdata import RecordCodes, propensity, total_variation
from dpdist.studies.kinds import load_study, parse_study
from dpdist.studies.settings import Study

ARMS = ("steps", "steps_number_first", "flat_laplace")
REPLICATES = 6


def small() -> Study:
    """One case at ε = 2, one set, so that nothing is averaged away."""
    text = (find_job("doctorates").parent / "studies" / "steps_simulation.yaml").read_text(encoding="utf-8")
    given: dict[str, Any] = yaml.safe_load(text)
    kept = {key: given[key] for key in ("kind", "study", "title", "seed")}
    arms = [arm for arm in given["mechanisms"] if arm["label"] in ARMS]
    more = {"replicates": REPLICATES, "sets": 1, "epsilons": ["1/2"], "cases": given["cases"][:1]}
    return parse_study(yaml.safe_dump(kept | more | {"mechanisms": arms}))


@cache
def measured() -> dict[tuple[str, str], Floats]:
    """Values by arm and measure, (replicate,)."""
    study, found = small(), dict[tuple[str, str], list[float]]()
    for number in range(1, REPLICATES + 1):
        for result in study.replicate(0, number).results:
            found.setdefault((result.mechanism, result.measure), []).append(result.value)
    return {key: np.array(values) for key, values in found.items()}


def above_flat(arm: str, measure: str) -> tuple[float, float]:
    """A 95 % interval of the arm's measure less that of the flat Laplace; both have the same files."""
    apart = measured()[arm, measure] - measured()["flat_laplace", measure]
    half = t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / np.sqrt(len(apart))
    return apart.mean() - half, apart.mean() + half


def test_steps_has_its_first_layer_better_than_flat_counts() -> None:
    """As the paper has it of important columns. Controls: not with another first layer, and not in single cells."""
    assert above_flat("steps", "first_layer")[1] < 0
    assert above_flat("steps_number_first", "first_layer")[0] > 0
    assert above_flat("steps", "all_cells")[0] > 0


def test_total_variation_of_counts_is_half_the_distance_of_shares() -> None:
    one, other = (
        RecordCodes.of_counts(np.array(counts)) for counts in ([[30.0, 10.0], [10.0, 0.0]], [[10.0, 10.0], [10.0, 20.0]])
    )
    assert total_variation(one, other, 2) == pytest.approx([0.4])
    assert total_variation(one, other, 1) == pytest.approx([0.4, 0.4])
    assert total_variation(one.about((0,)), other.about((0,)), 1) == pytest.approx([abs(40 / 50 - 20 / 50)])
    assert total_variation(one, one._replace(weight=7.0 * one.weight), 2) == [0.0]


def specks(one: Floats, other: Floats) -> float:
    return propensity(RecordCodes.of_counts(one), RecordCodes.of_counts(other)).specks


def test_propensity_scores_tell_files_apart_by_as_much_as_they_differ() -> None:
    one, other = np.array([80.0, 20.0]), np.array([50.0, 50.0])
    assert specks(one, other) == pytest.approx(0.3)
    assert specks(one, 3.0 * one) == pytest.approx(0.0, abs=1e-6)
    assert specks(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == pytest.approx(1.0)


def test_columns_alone_do_not_see_an_association() -> None:
    """The same single columns, with another association. Control: the table of both sees it."""
    one, other = np.array([[40.0, 10.0], [10.0, 40.0]]), np.array([[10.0, 40.0], [40.0, 10.0]])
    assert specks(one, other) == pytest.approx(0.0, abs=1e-6)
    assert total_variation(RecordCodes.of_counts(one), RecordCodes.of_counts(other), 2) == pytest.approx([0.6])


def test_the_shipped_study_is_read() -> None:
    assert {"first_layer", "specks"} <= set(load_study("steps_simulation").all_measures)

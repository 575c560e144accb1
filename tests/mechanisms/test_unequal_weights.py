"""Weights that have become more or less unequal since the reference, and the number of records with large weights."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from table_populations import Files, Public, Release, Sample, model_of, release

import dpdist.mechanisms.tables.measurements as measurements
from dpdist.confidential.records import Records
from dpdist.core.records import UNIT, Floats
from dpdist.mechanisms.tables.common_factors import common_factors
from dpdist.mechanisms.tables.inequality import _normal, _with_laplace, expected_large
from dpdist.mechanisms.tables.measurements import ResidualMeasurements
from dpdist.mechanisms.tables.query import LargeWeightCount
from dpdist.mechanisms.tables.weight_ratios import STEPS, WeightRatios

PUBLIC = Public((4, 4), ((0, 1),), (1e-3, 1e3), ((0.0, 1.0),))


def sample(seed: int, deviation: float, records: int = 3_000) -> Sample:
    """Lognormal weights of this standard deviation of logarithms about means by level, and a yes or no."""
    rng = np.random.default_rng(seed)
    codes, mean = rng.integers(0, 4, (records, 2)), np.array([0.6, 0.9, 1.1, 1.4])
    weight = mean[codes[:, 0]] * np.exp(rng.normal(-0.5 * deviation**2, deviation, records))
    return Sample(codes, weight, (rng.random((records, 1)) < 0.3).astype(float))


def released(seed: int, before: float, now: float, epsilon: float) -> Release:
    """A release of a file of these deviations of reference and file."""
    return release(PUBLIC, Files(sample(2 * seed, before), sample(2 * seed + 1, now)), epsilon, seed)


def errors_of_all(before: float, now: float, epsilon: float, seeds: range) -> Floats:
    """Errors of the count of all records in published standard errors, and in direct ones, (release, 2)."""
    errors = []
    for seed in seeds:
        found = released(seed, before, now, epsilon).comparison(())
        error = found.published.values[0, 0] - found.direct[0, 0]
        errors.append([error / found.published.errors[0, 0], error / found.units[0, 0]])
    return np.array(errors)


CHANGES = [(0.5, 0.5), (0.5, 0.65), (0.5, 0.9), (0.9, 0.5)]
"""Standard deviations of logarithms of weights in reference and file."""


@pytest.mark.parametrize(
    ("epsilon", "files"), [(4.0, 2), *(pytest.param(epsilon, 8, marks=pytest.mark.long) for epsilon in (1.0, 4.0, 16.0))]
)
def test_the_count_of_all_records_is_held_where_weights_are_more_or_less_unequal(
    epsilon: float, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of each change: published intervals of 90 % hold at least 29 of 32 direct counts, or 7 of 8, and the mean error
    where weights are more unequal is below .8 direct standard errors. False alarm below 1 in 1,000: errors are about a
    third of published ones. Control: without the number of large weights, intervals hold fewer, and errors are larger.
    """
    every = {change: errors_of_all(*change, epsilon, range(files)) for change in CHANGES}
    held = np.abs(np.concatenate(list(every.values()))[:, 0]) < 1.645
    assert held.sum() >= {8: 29, 2: 7}[files]
    more = every[0.5, 0.9]
    assert abs(more[:, 1].mean()) < 0.8
    monkeypatch.setattr(measurements, "PART_OF_LARGE", Fraction(0))
    without = errors_of_all(0.5, 0.9, epsilon, range(files, 2 * files))
    assert (np.abs(without[:, 0]) < 1.645).sum() <= files // 4, "control"
    assert without[:, 1].mean() < -1.2, "control"


def test_weights_keep_their_sum_and_have_the_stated_exponent() -> None:
    """Of all reference records; and the expected share of large weights is that among them, to the last record."""
    files = Files(sample(0, 0.5), sample(1, 0.5))
    informed = model_of(PUBLIC, files, 1.0).plan.file.informed
    predicted, before = informed.weights_of_records
    for inequality in (-0.5, 0.2, 1.0):
        now = informed.with_inequality(inequality).weights_of_records[1]
        assert now.sum() == pytest.approx(before.sum(), rel=1e-9)
        exponent = np.polyfit(np.log(before / predicted), np.log(now / predicted), 1)
        assert exponent[0] == pytest.approx(np.exp(inequality), rel=1e-9)
        ratios = WeightRatios.of(informed)
        share = ratios.share(np.array([inequality]), np.array([1.1]))
        assert share == pytest.approx(
            (1.1 * now > ratios.large * predicted).mean(), abs=1e-9 + 2e-3 * (inequality not in STEPS)
        )
    assert informed.with_inequality(0.3).residuals.values.std(axis=0) == pytest.approx(
        informed.residuals.values.std(axis=0), rel=0.02
    )


def test_what_is_clipped_of_more_unequal_weights_is_that_of_their_law() -> None:
    """The change of what known limits clip of all weights, between the reference's law and one of more unequal weights, is
    `clipped_by_inequality` times the change, to a sixth in the mean of four files. Control: of less unequal weights it has
    the other sign.
    """

    def clipped(asked: ResidualMeasurements, inequality: float) -> float:
        limits = asked.first_limits(1.0, asked.file.informed.with_inequality(inequality), asked.first)
        return float((limits.size * limits.beyond[:, 0]).sum())

    changes, expected = list[float](), list[float]()
    for seed in range(4):
        asked = model_of(PUBLIC, Files(sample(2 * seed, 0.5), sample(2 * seed + 1, 0.5)), 4.0).plan.asked
        changes.append((clipped(asked, 0.5) - clipped(asked, 0.0)) / 0.5)
        expected.append(float(np.asarray(asked.first.clipped_by_inequality)[0, 0]))
        assert clipped(asked, -0.3) < clipped(asked, 0.0) < clipped(asked, 0.3)
    assert np.mean(changes) == pytest.approx(np.mean(expected), rel=1 / 6)


def test_an_expected_number_of_large_weights_changes_nothing() -> None:
    """Common factors of a file that is as predicted have no inequality; its error falls as the budget grows. Control: twice
    as many large weights show it.
    """
    errors = []
    for epsilon in (0.25, 1.0, 16.0):
        asked = model_of(PUBLIC, Files(sample(0, 0.5), sample(1, 0.5)), epsilon).plan.asked
        none, expected = -asked.first.observed(np.zeros((1, 2)))[0] / asked.first.scale[0], expected_large(asked)
        found = common_factors(replace(asked, large=expected), none)
        assert abs(found.inequality) < 0.02
        errors.append(found.inequality_error)
        records = float(asked.file.count.sum())
        more = replace(asked, large=2.0 * expected + UNIT * records)
        assert common_factors(more, none).inequality > (0.01, 0.1, 0.3)[len(errors) - 1], "control"
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.1


def test_the_file_s_mix_of_cells_is_no_inequality() -> None:
    """Weights vary more in the last two levels. Where three quarters of the file are there instead of a half, the expected
    share of large weights is that of reference records in the file's mix. Control: not that among all of them.
    """
    before = sample(0, 0.5)
    varied = before.codes[:, 0] >= 2
    unequal = before._replace(weight=np.where(varied, before.weight**2, before.weight))
    now = sample(1, 0.5)
    kept = (now.codes[:, 0] >= 2) | (np.arange(len(now.weight)) % 3 == 0)
    current = Sample(now.codes[kept], now.weight[kept], now.outcomes[kept])
    file = model_of(PUBLIC, Files(unequal, current), 1.0).plan.file
    predicted, weight = file.informed.weights_of_records
    large, varied = weight > file.weight_ratios.large * predicted, file.codes[file.informed.places, 0] >= 2
    shares = [large[varied].mean(), large[~varied].mean()]
    part = (current.codes[:, 0] >= 2).mean()
    assert file.weight_ratios.expected == pytest.approx(part * shares[0] + (1.0 - part) * shares[1], rel=0.02)
    assert file.weight_ratios.expected > 1.1 * large.mean(), "control"


def test_a_reference_without_large_weights_is_not_asked_for_any() -> None:
    """Parts of all measurements then sum to 1, and limits have no room for inequality. Control: of other weights."""
    for deviation, part in ((0.05, Fraction(0)), (0.5, Fraction(1, 40))):
        asked = model_of(PUBLIC, Files(sample(0, deviation), sample(1, deviation)), 1.0).plan.asked
        assert asked.part_of_large == part
        assert sum(asked.parts) + part == 1
        assert bool(np.any(asked.first.clipped_by_inequality)) == (part > 0)


def test_no_limit_is_below_its_centre() -> None:
    """So no record that is as predicted is clipped, even where a long tail draws centres away from most records."""
    rng = np.random.default_rng(0)
    before, now = sample(0, 0.5), sample(1, 0.5)
    long = now._replace(weight=0.5 * rng.pareto(2.2, len(now.weight)) + 0.1)
    for epsilon in (0.3, 4.0, 64.0):
        limits = release(PUBLIC._replace(weights=(1e-3, 1e4)), Files(before, long), epsilon, 0).measured.limits
        assert max(float(np.abs(table.centre).max()) for table in limits) > 0.0
        assert all((table.weight >= np.abs(table.centre)).all() for table in limits)


def test_densities_of_laplace_noise_are_those_of_its_sum_with_a_normal_error() -> None:
    """By numerical integration, up to a constant. Control: normal noise of that variance has another tail."""
    distance, noise = np.array([-300.0, -40.0, 0.0, 10.0, 120.0, 400.0]), 2.0 * 40.0**2
    normal = np.linspace(-120.0, 120.0, 20_001)
    for deviation in (3.0, 15.0):
        weight = np.exp(-0.5 * (normal / deviation) ** 2)
        right = np.log(np.exp(-np.abs(distance[:, None] - normal) / 40.0) @ (weight / weight.sum()))
        found, other = (law(distance, np.full(6, deviation**2), noise) for law in (_with_laplace, _normal))
        assert found - found[2] == pytest.approx(right - right[2], abs=1e-6)
        assert not np.allclose(other - other[2], right - right[2], atol=1.0), "control"


def test_a_record_moves_the_number_of_large_weights_by_one_unit_or_two() -> None:
    """Switched off by one, with another weight by two, whatever the weight is. Attained on both sides of the threshold."""
    threshold = np.array([2.0, 3.0])

    def number(weight: list[float], row: list[int]) -> float:
        records = replace(
            Records.of_outcomes(np.zeros(len(row))), row=np.array(row, dtype=np.int32), weight=np.array(weight)
        )
        return float(LargeWeightCount(np.array([0, 1], dtype=np.int32), 0, threshold).sums(records)[0, 0]) / UNIT

    base = number([2.5], [0])
    for weight in (0.0, 1.0, 2.0, 2.1, 1e300, np.inf):
        assert abs(number([2.5, weight], [0, 0]) - base) == 1.0
        assert abs(number([2.5, weight], [0, 0]) - number([2.5, 1.0], [0, 0])) in (0.0, 2.0)
    assert number([2.5, 2.5], [0, 1]) == 0.0

"""Levels of few reference records, or none: what they show of a rare outcome, or of heavy weights, errs as it says."""

from __future__ import annotations

import numpy as np
import pytest
from table_populations import Files, Public, Sample, release

from dpdist.core.records import Floats
from dpdist.mechanisms.tables import main_effects
from dpdist.mechanisms.tables.learned_prediction import predict
from dpdist.mechanisms.tables.main_effects import ReferenceSample
from dpdist.mechanisms.tables.measured_sums import SHORTEST, _length

CELLS = np.array([[i, j, k] for i in range(3) for j in range(3) for k in range(4)])


def far(records: int) -> Floats:
    """The .95 quantiles of errors of mean weights, of four sizes from 1 to 3,000, and of a yes of 3 %, in their standard
    deviations, at a level with so many of 1,000 records, (coordinate,).
    """
    off = list[Floats]()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        level = np.concatenate([np.zeros(records, dtype=np.int64), 1 + rng.integers(2, size=1_000 - records)])
        codes = np.column_stack([level, rng.integers(3, size=1_000), rng.integers(4, size=1_000)]).astype(np.int32)
        weight, yes = np.array([1.0, 10.0, 100.0, 3_000.0])[rng.integers(4, size=1_000)], rng.random((1_000, 1)) < 0.03
        reference = ReferenceSample(codes, weight, yes.astype(np.float64))
        told = predict(reference, CELLS, (3, 3, 4), [(0, 1, 2), (0,)], np.array([1.0, 0.0]), np.array([9e3, 1.0]))
        error = np.sqrt(np.column_stack([load.variance for load in told.loadings]) + told.alone**2) * told.spread
        missed = np.column_stack([told.means[:, 0] - 777.75, told.means[:, 0] * (told.means[:, 1] - 0.03)])
        off.append(np.abs(missed / error)[CELLS[:, 0] == 0])
    return np.asarray(np.quantile(np.concatenate(off), 0.95, axis=0))


@pytest.mark.long
def test_levels_of_few_records_err_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weights at a level of one record, and of a yes at one of 10. Control: where next to nothing holds effects of
    levels, a yes errs by more than 5.
    """
    assert far(1)[0] <= 2.0
    assert far(10)[1] <= 3.0
    monkeypatch.setattr(main_effects, "RIDGE", 0.02)
    assert far(10)[1] > 5.0, "control"


def test_steps_are_shortened_where_they_turn_back() -> None:
    """Each step is some times the last one, of which all was taken. One that turns back by as much ends half way."""
    last = np.ones(3)
    lengths = {times: _length(1.0, last, times * last) for times in (0.5, 0.999, 1.0, 2.0, -0.5, -1.0, -50.0, 0.0)}
    expected = {0.5: 1.0, 0.999: 1.0, 1.0: 0.5, 2.0: 0.5, -0.5: 2.0 / 3.0, -1.0: 0.5, -50.0: SHORTEST, 0.0: 1.0}
    assert lengths == pytest.approx(expected)
    assert _length(1.0, 0.0 * last, 0.0 * last) == 0.5


def test_a_reference_of_other_levels_alone_is_used() -> None:
    """The file has levels that the reference lacks, and none of its: all of its records stand for the same number."""
    rng = np.random.default_rng(0)

    def sample(records: int, shares: list[float]) -> Sample:
        codes = np.column_stack([rng.choice(3, records, p=shares), rng.integers(4, size=records)])
        return Sample(codes, np.exp(rng.normal(4.0, 0.5, records)), rng.gamma(2.0, 500.0, (records, 1)))

    public = Public((3, 4), ((0, 1), (0,)), (1.0, 2_000.0), ((0.0, 2e4),))
    files = Files(sample(2_000, [0.0, 0.0, 1.0]), sample(1_500, [0.5, 0.5, 0.0]))
    found = release(public, files, 4.0, 0).comparison((0,))
    assert (np.abs(found.published.values - found.direct) <= 5.0 * found.published.errors).all()

"""Windows that outcomes are clipped to: they reach no farther than outcomes do, and let in less noise."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.core.records import UNIT, Floats
from dpdist.reference import clipping
from dpdist.reference.clipping import BISECTIONS, LARGEST_LOG_SCALE, Cell, bisect
from dpdist.reference.inversion import invert_clipping
from dpdist.reference.limits import Limits, Noise, _of_means, _windows, choose

NOISE = Noise(2.0, 2.0)


def wages(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Weights, and outcomes of which four in ten are zeros and the others have a heavy tail."""
    return np.exp(rng.normal(4.0, 0.5, n)), np.exp(rng.normal(10.0, 1.0, n)) * (rng.random(n) > 0.4)


def released(before: list[Cell], now: list[tuple[Floats, Floats]], limits: Limits, noise: Floats) -> Floats:
    """Means (cell,), of cells that stand alone."""
    cell = np.repeat(np.arange(len(now)), [len(w) for w, _ in now])
    v, c = limits.clipped(cell, *(np.concatenate(column) for column in zip(*now, strict=True)))
    sums = np.column_stack([np.bincount(cell, 1.0 - v), np.bincount(cell, v * c)]) + noise
    return invert_clipping(before, limits, UNIT * sums, np.bincount(cell).astype(float), NOISE, shrinkage=False).estimate[
        :, 1
    ]


def test_no_window_reaches_where_no_outcome_is() -> None:
    """From the zeros to a quantile of the tail, not as far below the mean; shares from one bound to the other. Under a
    reference whose long tail is the lower one the window is the mirror image."""
    rng = np.random.default_rng(5)
    weight, outcome = wages(rng, 3000)
    cell = Cell.of(weight, outcome, (0.0, 5e6))
    chosen = choose([cell], 60, NOISE)
    assert chosen.centre[0] == pytest.approx(chosen.reach[0])
    assert cell.mean < 2.0 * chosen.reach[0] < outcome.max()
    mirror = choose([Cell.of(weight, 5e6 - outcome, (-5e6, 5e6))], 60, NOISE)
    assert mirror.centre[0] + mirror.reach[0] == pytest.approx(5e6)
    share = choose([Cell.of(weight, (outcome > 0).astype(float), (0.0, 1.0))], 60, NOISE)
    assert (share.centre[0], share.reach[0]) == (0.5, 0.5)


@pytest.mark.long
def test_a_window_from_the_zeros_lets_in_less_noise_than_one_about_the_mean() -> None:
    """Of the same upper limit: same records clipped, and the error of means falls by a fifth or more; 400 cells of 200."""
    rng = np.random.default_rng(7)
    before = [Cell.of(*wages(rng, 4000), (0.0, 5e6))] * 400
    now, noise = [wages(rng, 200) for _ in range(400)], rng.laplace(0.0, 1.0, (400, 2))
    own = choose(before[:1], 200, NOISE)
    top, mean = own.centre[0] + own.reach[0], before[0].mean
    about = Limits(np.full(400, mean), np.full(400, own.cap), np.full(400, top - mean))
    window = Limits(np.full(400, own.centre[0]), np.full(400, own.cap), np.full(400, own.reach[0]))
    error = []
    for limits in (window, about):
        with_noise, without = (released(before, now, limits, part * noise) for part in (1.0, 0.0))
        error.append(np.sqrt(np.mean((with_noise - without) ** 2)))
    assert error[0] < 0.8 * error[1]


def test_a_share_has_the_noise_that_is_stated_though_all_its_outcomes_are_at_ends_of_the_window() -> None:
    """Shares of .9 in cells of 200: deviations of noise within a tenth of those stated, over 400 cells. Control: about the
    mean, where one end lies within and the other does not, they are a fifth larger or more."""
    rng, n = np.random.default_rng(9), 200
    weight = np.exp(rng.normal(4.0, 0.3, n))
    cell = Cell.of(weight, (np.arange(n) % 10 > 0).astype(float), (0.0, 1.0))
    own = choose([cell], n, NOISE)
    found = []
    for centre, reach in ((own.centre[0], own.reach[0]), (cell.mean, cell.mean)):
        limits = Limits(*(np.full(400, value) for value in (centre, own.cap, reach)))
        v, q = cell.statistics(0.0, 0.0, (centre, own.cap, reach))
        sums = n * np.tile([1.0 - v, q], (400, 1)) + np.random.default_rng(1).laplace(0.0, 1.0, (400, 2))
        told = invert_clipping([cell] * 400, limits, UNIT * sums, np.full(400, float(n)), NOISE, shrinkage=False)
        found.append([told.estimate[:, 1].std(), np.sqrt(np.median(told.noise[:, 1, 1]))])
    assert found[0][0] == pytest.approx(found[0][1], rel=0.1)
    assert found[1][0] > 1.2 * found[0][0]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_share_moves_either_way_by_what_its_slope_says(share: float) -> None:
    """Exact where weights are equal: only those at one bound can move, and these move by as much more."""
    cell = Cell.of(np.full(1000, 40.0), (np.arange(1000) < 1000 * share).astype(float), (0.0, 1.0))
    limits = (0.5, 60.0, 0.5)
    at, slope = cell.statistics(0.0, 0.0, limits)[1], cell.slopes(limits).inverse[1, 1]
    for by in (-0.05, 0.05):
        g = cell.solve_outcome(0.0, at + by, limits)
        assert g == pytest.approx(by * slope, rel=1e-9)
        assert cell.mean_at(g) == pytest.approx(share + g * cell.unit, rel=1e-9)


@pytest.mark.parametrize("least", [None, 0.0, 1e-20, 1e-9])
def test_a_share_of_none_can_rise_and_falls_no_lower(least: float | None) -> None:
    """Or of one record that weighs nothing to speak of."""
    weight, outcome = np.full(100, 40.0), np.zeros(100)
    if least is not None:
        weight[0], outcome[0] = least, 1.0
    cell = Cell.of(weight, outcome, (0.0, 1.0))
    limits = (0.5, 60.0, 0.5)
    at = cell.statistics(0.0, 0.0, limits)[1]
    for share in (0.1, -0.1):
        g = cell.solve_outcome(0.0, at + share * 2 * weight.mean() / 60, limits)
        assert g * cell.unit == pytest.approx(share)
        assert cell.mean_at(g) == pytest.approx(max(share, 0.0), abs=1e-9)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_shares_of_like_cells_are_shrunk_to_each_other(share: float) -> None:
    """60 cells of one share, 20 times: noise moves shares as far as is stated, within a tenth, and shrinkage takes half of
    that error or more, where noise is three times what sampling may do."""
    rng, n = np.random.default_rng(3), 400
    cell = Cell.of(np.exp(rng.normal(4.0, 0.3, n)), (np.arange(n) < n * share).astype(float), (0.0, 1.0))
    own = choose([cell], n, NOISE)
    limits = Limits(*(np.full(60, value) for value in (own.centre[0], own.cap, own.reach[0])))
    v, q = cell.statistics(0.0, 0.0, (own.centre[0], own.cap, own.reach[0]))
    error: dict[bool, list[float]] = {True: [], False: []}
    stated = []
    for _ in range(20):
        sums = n * np.tile([1.0 - v, q], (60, 1)) + rng.laplace(0.0, (4.0, 40.0), (60, 2))
        for shrinkage in (True, False):
            told = invert_clipping([cell] * 60, limits, UNIT * sums, np.full(60, float(n)), Noise(32.0, 3200.0), shrinkage)
            error[shrinkage].append(float(np.sqrt(np.mean((told.estimate[:, 1] - share) ** 2))))
        stated.append([told.scale[:, 1].std(), np.sqrt(np.median(told.noise[:, 1, 1])) / cell.unit])
    spread, deviation = np.mean(stated, axis=0)
    assert spread == pytest.approx(deviation, rel=0.1)
    assert np.mean(error[True]) < 0.5 * np.mean(error[False])


def floored(floor: float, drift: float) -> tuple[float, float]:
    """Coverage of 90 % intervals of means, and what they lie over the direct estimate: a least wage of 8, which `floor` of
    the records earn and `drift` moves with the others; 20 cells of 300, ten files, shrunk to each other."""
    rng, n = np.random.default_rng(21), 300

    def file(n: int, level: float) -> tuple[Floats, Floats]:
        return np.exp(rng.normal(4.0, 0.4, n)), level * 8.0 * np.exp(rng.exponential(0.5, n) * (rng.random(n) > floor))

    before = [Cell.of(*file(1000, 1.0), (0.0, 1e4)) for _ in range(20)]
    chosen = [choose([cell], n, NOISE) for cell in before]
    limits = Limits(*(np.array(column) for column in zip(*((c.centre[0], c.cap, c.reach[0]) for c in chosen), strict=True)))
    truth = drift * 8.0 * (floor + (1.0 - floor) * 2.0)
    error, inside = [], []
    for _ in range(10):
        now = [file(n, drift) for _ in before]
        cell = np.repeat(np.arange(20), n)
        v, c = limits.clipped(cell, *(np.concatenate(column) for column in zip(*now, strict=True)))
        sums = np.column_stack([np.bincount(cell, 1.0 - v), np.bincount(cell, v * c)]) + rng.laplace(0.0, 1.0, (20, 2))
        found = invert_clipping(before, limits, UNIT * sums, np.full(20, float(n)), NOISE, shrinkage=True)
        deviation = np.sqrt(found.sampling[:, 1, 1] + found.noise[:, 1, 1] + found.common[:, 1] ** 2)
        direct = np.array([np.average(y, weights=w) for w, y in now])
        error.append(found.estimate[:, 1] / direct - 1.0)
        inside.append(np.abs(found.estimate[:, 1] - truth) < 1.645 * deviation)
    return float(np.mean(inside)), float(np.mean(error))


@pytest.mark.parametrize("drift", [1.0, 0.95])
@pytest.mark.parametrize("floor", [0.4, 0.8])
def test_outcomes_at_a_floor_above_zero_leave_room_for_a_fall(
    floor: float, drift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: where those at the end of a window are taken to move, windows end at the floor and intervals cover less."""
    coverage, bias = floored(floor, drift)
    assert coverage >= 0.87
    assert abs(bias) < 0.004
    monkeypatch.setattr(clipping, "EDGE", -1e-9)
    assert floored(floor, drift)[0] < 0.87, "control"


def test_shares_of_rare_and_of_common_answers_fall_by_their_odds() -> None:
    """30 cells fall from .5 to .4 and 10 from .01 to .008, under noise of 7 records a cell of 400: the error of rare shares
    is below .004, and few are told as 0. Control: where a shift is in deviations of the share most are."""
    n, rare = 400, np.arange(40) >= 30
    truth = np.where(rare, 0.008, 0.4)
    limits = Limits(*(np.full(40, value) for value in (0.5, 18.0, 0.5)))

    def told(deviations: bool) -> Floats:
        rng, found = np.random.default_rng(4), []
        before = [
            Cell.of(np.full(1000, 9.0), (np.arange(1000) < (10 if few else 500)).astype(float), (0.0, 1.0)) for few in rare
        ]
        for cell in before if deviations else []:
            vars(cell)["unit"] = float(cell.outcome.std())
        for _ in range(20):
            sums = n * np.column_stack([np.full(40, 0.5), truth - 0.5]) + rng.laplace(0.0, 5.0, (40, 2))
            found.append(
                invert_clipping(before, limits, UNIT * sums, np.full(40, float(n)), Noise(50.0, 50.0), True).estimate[:, 1]
            )
        return np.array(found)[:, rare]

    shares = told(deviations=False)
    assert np.sqrt(((shares - 0.008) ** 2).mean()) < 0.004
    assert (shares <= 0.0).mean() < 0.05
    assert (told(deviations=True) <= 0.0).mean() > 0.5, "control"


def test_no_limit_is_rounding() -> None:
    """Nearly all outcomes are one value, and the others weigh nothing to speak of."""
    outcome, weight = np.full(100, 3e4), np.full(100, 40.0)
    outcome[:2], weight[:2] = (1e4, 9e4), 1e-9
    assert choose([Cell.of(weight, outcome, (0.0, 1.5e5))], 60, NOISE).reach[0] > 10.0


def test_a_share_is_carried_on_though_those_of_one_answer_weigh_nothing() -> None:
    cell = Cell.of(np.repeat([2.0, 0.0], 50), np.repeat([0.0, 1.0], 50), (0.0, 1.0))
    for share in (0.0, 0.1):
        weight, outcome = cell.transported(3.0, share, 100)
        assert weight.mean() == pytest.approx(3.0)
        assert np.average(outcome, weights=weight) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    "outcome", [[150_000.0] * 1000 + [149_999.99999999997, 149_999.99999999994], [0.0, 5e-324, 1e-323]]
)
def test_no_window_is_without_width(outcome: list[float]) -> None:
    """Outcomes that differ by rounding: half a spacing about their mean is no window, and c would be 0/0 there."""
    values = np.array(outcome)
    assert len(np.unique(values)) == 3
    windows = _windows(Cell.of(np.ones(len(values)), values, (0.0, 150_000.0)))
    assert len(windows)
    assert (windows[:, 1] > 0).all()


def counts_off(cap: float | None) -> Floats:
    """Errors of counts, in direct standard errors given n, of samples whose weights have four values, three of them alike
    and holding nearly all of the mass; at limits as chosen, or at a cap."""
    rng = np.random.default_rng(11)
    n, errors = 1900, []
    for _ in range(30):
        before, now = (rng.choice([1500.0, 1490.0, 1480.0, 10.0], n, p=[0.4, 0.3, 0.25, 0.05]) for _ in range(2))
        cell = Cell.of(before, np.exp(rng.normal(10.0, 1.0, n)), (0.0, 1e6))
        own = choose([cell], n, NOISE).cap if cap is None else cap
        v = float(np.minimum(now, own).mean()) / own + rng.laplace(0.0, 1.0) / n
        counted = n * cell.mean_weight * np.exp(cell.solve_weight(v, own))
        errors.append((counted - now.sum()) / (now.std() * n**0.5))
    return np.array(errors)


def test_a_cap_at_the_largest_of_few_weights_is_not_taken() -> None:
    """A sample with a little more mass there has a mean v that only a large scale gives, or none. Control: at that cap some
    counts are off by more than a hundred direct errors."""
    assert np.abs(counts_off(None)).max() < 4.0
    assert np.abs(counts_off(1500.0)).max() > 100.0


def test_the_inverse_of_mean_weights_is_exact_and_ends_where_the_search_does() -> None:
    rng = np.random.default_rng(3)
    cell = Cell.of(np.exp(rng.normal(0.0, 1.0, 300)), np.ones(300), (0.0, 2.0))
    for scale in (-2.5, -0.3, 0.0, 0.4, 1.5):
        for cap in (0.5, 2.0, 30.0):
            v = float(np.minimum(cell.weight * np.exp(scale), cap).mean()) / cap
            assert cell.solve_weight(v, cap) == pytest.approx(scale, abs=1e-9)
    assert cell.solve_weight(1.1, 2.0) == clipping.LARGEST_LOG_SCALE
    assert cell.solve_weight(-0.1, 2.0) == -clipping.LARGEST_LOG_SCALE


def test_predicted_errors_of_means_are_those_of_plain_sums_over_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every cap and interval, in blocks of 500 records. Control: under other noise they differ."""
    monkeypatch.setattr("dpdist.reference.limits.RECORDS", 500)
    weight, outcome = wages(np.random.default_rng(6), 1300)
    cell, n, caps = Cell.of(weight, outcome, (0.0, 5e6)), 900, np.quantile(weight, [0.5, 0.9])
    wider, windows = cell.drifted()[1], _windows(cell)
    errors = np.empty((len(caps), len(windows)))
    for i, cap in enumerate(caps):
        v = np.minimum(weight, cap) / cap
        direct = weight / weight.mean() * (outcome - cell.mean)
        for j, (centre, reach) in enumerate(windows):
            c, moved = (np.clip((values - centre) / reach, -1.0, 1.0) for values in (outcome, wider))
            gain = cell.mean_rate * reach / (cell.within(centre, reach) * v * cell.rate).mean()
            across = (c * v * (weight < cap)).mean() / (v * (weight < cap)).mean()
            clipped = gain * (c * v - (c * v).mean() - across * (v - v.mean()))
            sampling = (direct - clipped).var() * (1.0 / n + 1.0 / len(weight))
            noise = (gain / n) ** 2 * (NOISE.product + NOISE.weight * across**2)
            bias = gain * ((moved - c) * v).mean() - (np.average(wider, weights=weight) - cell.mean)
            errors[i, j] = (sampling + noise + bias**2) / (direct.var() / n)
    assert _of_means(cell, wider, caps, windows, n, NOISE) == pytest.approx(errors, rel=1e-9)
    assert _of_means(cell, wider, caps, windows, n, Noise(2.0, 3.0)) != pytest.approx(errors, rel=1e-9)


@pytest.mark.parametrize("root", [-2.9999999, -0.7, 0.0, 1e-9, 2.2, 7.0, -7.0])
def test_a_root_is_that_of_halvings_alone_in_fewer_steps(root: float) -> None:
    """Roots beyond both ends too, and a curve that is flat but near its root."""
    for steep in (False, True):
        steps = list[float]()

        def curve(x: float, steep: bool = steep, steps: list[float] = steps) -> float:
            steps.append(x)
            return float(np.clip(50.0 * (x - root), -1.0, 1.0) if steep else np.tanh(x - root))

        low, high = -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE
        for _ in range(BISECTIONS):
            middle = (low + high) / 2.0
            low, high = (middle, high) if curve(middle) < 0 else (low, middle)
        assert bisect(curve) == (low + high) / 2.0
        assert len(steps) - BISECTIONS < 35


def test_the_last_digit_of_equal_weights_does_not_decide_their_cap() -> None:
    """A tenth of the weights, as those clipped in an earlier release, are equal up to rounding; 20 roundings."""
    rng = np.random.default_rng(11)
    weight, outcome = wages(rng, 2000)
    weight = np.minimum(weight, np.quantile(weight, 0.9))
    rounded = [weight * (1.0 + 1e-14 * rng.uniform(-1.0, 1.0, len(weight))) for _ in range(20)]
    cells = [Cell.of(one, outcome, (0.0, 5e6)) for one in rounded]
    most = 1.05 * float(weight.max())
    chosen = [choose([cell], 61, NOISE, most) for cell in cells]
    assert np.ptp([limits.cap for limits in chosen]) < 1e-9 * most
    assert np.ptp([limits.reach for limits in chosen]) < 1e-9 * chosen[0].reach[0]
    limits = (chosen[0].centre[0], float(weight.max()), chosen[0].reach[0])
    inverse = np.array([cell.slopes(limits).inverse for cell in cells])
    assert np.ptp(inverse, axis=0) == pytest.approx(0.0, abs=1e-9 * np.abs(inverse).max())

"""Strict Laplace tables of a file with many sparse cells: totals over repeated noise, their errors, and what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from trucks import FARTHEST, HEAVIEST, JOB, LIGHTEST, trucks

import dpdist
from dpdist.core.records import POOLED, TOTAL, UNIT, Floats
from dpdist.core.table_cells import cross
from dpdist.mechanisms.laplace_cells.post import nearest_within
from dpdist.models.protocol import Draws
from dpdist.privacy.cell_sums import CellBounds, noise_scale
from dpdist.publish.public_bounds import expectations
from dpdist.publish.released import ReleasedObject, read_released
from dpdist.publish.standard_errors import spreads
from dpdist.publish.synthesis import synthetic_sums
from dpdist.publish.tables import Grounds, table

REPEATS = 12
FALSE_ALARM = 1e-6
"""Probability with which a test of this file fails on unbiased totals, over all of its figures."""
BOUNDS = CellBounds(HEAVIEST, 0.0, FARTHEST)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return trucks()


@pytest.fixture(scope="module")
def space(rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trucks")
    rows.to_parquet(folder / "trucks.parquet")
    dpdist.run(dpdist.parse_job(JOB), folder / "ws", input=folder / "trucks.parquet")
    return folder / "ws"


@pytest.fixture(scope="module")
def release(space: Path) -> ReleasedObject:
    return read_released(space / "public" / "released")


@pytest.fixture(scope="module")
def exact(release: ReleasedObject, rows: pd.DataFrame) -> Floats:
    """Sums of pairs of every base cell, in units, without noise."""
    frame, known = release.frame, {}
    pairs = BOUNDS.pairs(rows["weight"].to_numpy(), rows["miles"].to_numpy())
    for (state, kind), own in rows.groupby(["state", "type"]).indices.items():
        known[state, kind] = pairs[own].sum(axis=0)
    labels = (
        (str(frame.levels["state"][s]), str(frame.levels["type"][t]))
        for s, t in zip(frame.codes["state"], frame.codes["type"], strict=True)
    )
    return np.array([known[label] for label in labels])


def under(release: ReleasedObject, sums: Floats) -> ReleasedObject:
    """The release with other noisy sums."""
    return replace(release, sets=({POOLED: dict(release.model(0).describe(Draws({"sums": sums[None]})))},))


def noisy(exact: Floats, rng: np.random.Generator, epsilon: int = 1) -> Floats:
    return exact + rng.laplace(0.0, float(noise_scale(epsilon)), exact.shape)


def published(release: ReleasedObject) -> pd.DataFrame:
    """The table of one release, by statistic and cell."""
    found = spreads(release, lambda _: None)
    assert found is not None
    grounds = Grounds(expectations(release), synthetic_sums(release), found[0])
    made = table(release, release.job.tables[0], {"miles": grounds}).to_pandas()
    return made[made["estimator"] == "parameters"].set_index(["statistic", "state", "type"])


@pytest.fixture(scope="module")
def repeated(release: ReleasedObject, exact: Floats) -> list[pd.DataFrame]:
    rng = np.random.default_rng(31)
    return [published(under(release, noisy(exact, rng))) for _ in range(REPEATS)]


@pytest.fixture(scope="module")
def direct(release: ReleasedObject, exact: Floats) -> dict[str, pd.Series]:
    """Count and total of every published cell."""
    said = release.job.tables[0]
    cells, sums = cross(release.frame, said.by, said.margins), BOUNDS.sums(exact)
    index = pd.MultiIndex.from_tuples(cells.labels)
    return {name: pd.Series(cells.membership @ sums[:, k], index) for k, name in enumerate(("count", "total"))}


def margins(index: pd.MultiIndex) -> list[tuple[str, str]]:
    return [label for label in index if TOTAL in label]


def apart(estimates: list[pd.Series], truth: pd.Series, deviation: pd.Series) -> pd.Series:
    """The mean error over repeated noise, in its own standard deviations; about normal for a mean of so many."""
    gap = sum(each - truth for each in estimates) / len(estimates)
    return (gap / (deviation / np.sqrt(len(estimates)))).abs()


def test_counts_of_margins_are_right_in_the_mean_over_repeated_noise(
    release: ReleasedObject, exact: Floats, repeated: list[pd.DataFrame], direct: dict[str, pd.Series]
) -> None:
    """All 72 margins: the mean error over 12 noises within what the noise's own law allows, false alarm 1e-6.

    Set cell by cell into their bounds, the same sums make a total that is a third too large: that is the control.
    """
    truth = direct["count"]
    where = margins(truth.index)
    cells = cross(release.frame, ("state", "type"), True)
    deviation = np.sqrt(2.0 * np.asarray(cells.membership.sum(axis=1))) * float(noise_scale(1)) * HEAVIEST / UNIT
    law = pd.Series(deviation, truth.index)[where]
    # A margin printed at a bound of its own would be pushed: here none is within 4 deviations of one.
    clear = truth[where] > 4.0 * law
    where = [label for label in where if clear[label]]
    critical = stats.norm.isf(FALSE_ALARM / 2 / len(where))
    found = apart([each["estimate"]["count"][where] for each in repeated], truth[where], law[where])
    assert len(where) >= 10
    assert found.max() < critical
    rng, n = np.random.default_rng(31), release.frame.count.astype(float)
    pushed = []
    for _ in range(REPEATS):
        weight = np.clip(BOUNDS.sums(noisy(exact, rng))[:, 0] / n, LIGHTEST, HEAVIEST)
        pushed.append(pd.Series(cells.membership @ (n * weight), truth.index)[where])
    assert apart(pushed, truth[where], law[where])[TOTAL, TOTAL] > 2.0 * critical, "control"


def test_margins_hold_the_direct_figures_and_lie_within_their_stated_errors(
    repeated: list[pd.DataFrame], direct: dict[str, pd.Series]
) -> None:
    """Noise of margins shares no base cell within a column: 12 x 20 types are independent draws. 90 % intervals hold at
    least Binomial(240, .9) allows at 1e-6 of counts and of totals. Control: intervals half as wide do not.

    The mean error of every margin, totals of miles too, is within its own stated error."""
    for name, truth in direct.items():
        where = [label for label in truth.index if label[0] == TOTAL and label[1] != TOTAL]
        every = [each.loc[name].loc[where] for each in repeated]
        held = [((own["lower"] <= truth[where]) & (truth[where] <= own["upper"])).mean() for own in every]
        least = stats.binom.ppf(FALSE_ALARM, REPEATS * len(where), 0.9) / (REPEATS * len(where))
        assert np.mean(held) >= least, name
        half = [((own["estimate"] - truth[where]).abs() <= own["standard_error"] * 1.645 / 2).mean() for own in every]
        assert np.mean(half) < least, "control"
        both = margins(truth.index)
        gap = sum(each["estimate"][name][both] - truth[both] for each in repeated) / REPEATS
        assert (gap.abs() / repeated[0]["standard_error"][name][both]).max() < 1.0, name


def test_a_cell_whose_count_noise_hides_has_no_mean_but_the_limits_of_its_outcome(repeated: list[pd.DataFrame]) -> None:
    """Also, no printed count leaves its bounds, and no error exceeds what these leave open. Control: cells with a mean."""
    for each in repeated[:5]:
        means, counts = each.loc["mean"], each.loc["count"]
        hidden = means["estimate"].isna()
        assert 0 < hidden.sum() < len(means), "control"
        assert (means.loc[hidden, ["lower", "upper"]] == [0.0, FARTHEST]).all(axis=None)
        shown = counts.loc[~hidden]
        assert (shown["estimate"] > 0.0).all()
        assert (counts["estimate"] >= 0.0).all()
        assert (counts["lower"] <= counts["estimate"]).all()
        assert (counts["estimate"] <= counts["upper"]).all()


def test_synthetic_records_are_within_bounds_and_have_the_noisy_totals(release: ReleasedObject, exact: Floats) -> None:
    """Control: set cell by cell into their bounds, records would have a total that is at least a tenth larger."""
    rng = np.random.default_rng(32)
    model, n = release.model(0), release.frame.count.astype(float)
    for _ in range(5):
        other = under(release, noisy(exact, rng))
        theta = other.theta(model, 0, 0)
        weight, product = (values[0] for values in model.bounded(theta))
        assert weight.min() >= LIGHTEST * (1 - 1e-12)
        assert weight.max() <= HEAVIEST * (1 + 1e-12)
        total = BOUNDS.sums(theta["sums"][0]).sum(axis=0)
        assert (n * weight).sum() == pytest.approx(total[0], rel=1e-9)
        assert synthetic_sums(other)[0].a.sum() == pytest.approx(total[0], rel=1e-9)
        # Outcomes above 0 bound the total of miles, too.
        assert (n * product).sum() == pytest.approx(max(total[1], 0.0), rel=1e-6, abs=1e-6 * FARTHEST * total[0])
        clipped = np.clip(BOUNDS.sums(theta["sums"][0])[:, 0] / n, LIGHTEST, HEAVIEST)
        assert (n * clipped).sum() > 1.1 * total[0], "control"


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3), st.floats(0.0, 1e4)), min_size=1, max_size=12))
def test_the_nearest_numbers_within_bounds_keep_the_sum(entries: list[tuple[float, float, float]]) -> None:
    """They meet the conditions of optimality: all are moved by one shift, or as far as their ends allow."""
    values, low, width = np.array(entries).T
    high = low + width
    found = nearest_within(values, low, high)
    slack = 1e-9 * (np.abs(values).max() + np.abs(high).max() + np.abs(low).max() + 1.0)
    assert (found >= low - slack).all()
    assert (found <= high + slack).all()
    total = np.clip(values.sum(), low.sum(), high.sum())
    assert found.sum() == pytest.approx(total, abs=slack * len(values))
    inside = (found > low + slack) & (found < high - slack)
    if inside.any():
        shift = (values - found)[inside]
        assert np.abs(found - np.clip(values - shift[0], low, high)).max() <= slack


def test_numbers_that_are_within_their_bounds_stay_as_they_are() -> None:
    values = np.array([0.3, 0.1, 7.0])
    assert nearest_within(values, np.zeros(3), np.array([1.0, 1.0, 7.0])) is values


RAKED = """
dataset: raked
period: "2021"
columns:
  area: {levels: [north, south]}
  kind: {levels: [light, heavy]}
  pay: {bounds: [0, 100], outside: clip}
  weight: {bounds: [1, 20], outside: clip}
survey: {weight: weight}
outcome: pay
mechanism: {name: MECHANISM}
budget: {epsilon: "4", adjacency: zero_out}
rake:
  - {by: [area], totals: {north: NORTH, south: SOUTH}}
tables:
  - {name: counts, by: [area, kind], statistics: [count, {mean: pay}]}
"""


@pytest.mark.parametrize("mechanism", ["laplace_strict", "weight_regularisation"])
def test_raked_cells_add_up_to_public_totals_beyond_the_bounds_of_weights(mechanism: str, tmp_path: Path) -> None:
    """A quarter of the weights lie beyond their bound, which totals restore. Control: some raked count is beyond bounds."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {"area": rng.choice(["north", "south"], 2000), "kind": rng.choice(["light", "heavy"], 2000, p=[0.75, 0.25])}
    )
    frame = frame.assign(pay=rng.uniform(20.0, 60.0, 2000), weight=np.where(frame["kind"] == "heavy", 40.0, 8.0))
    totals = frame.groupby("area")["weight"].sum()
    job = RAKED.replace("MECHANISM", mechanism)
    for area in ("north", "south"):
        job = job.replace(area.upper(), str(totals[area]))
    counts = dpdist.run(dpdist.parse_job(job), tmp_path / "ws", frame).tables["counts"].query("statistic == 'count'")
    base = counts.query("area != 'Total' and kind != 'Total'")
    by_estimator = {name: rows.set_index(["area", "kind"])["estimate"] for name, rows in base.groupby("estimator")}
    pd.testing.assert_series_equal(by_estimator["parameters"], by_estimator["records"], rtol=1e-9)
    for area in ("north", "south"):
        assert by_estimator["parameters"][area].sum() == pytest.approx(totals[area], rel=1e-9)
    records = frame.groupby(["area", "kind"]).size()
    assert (by_estimator["parameters"] > 20.0 * records[by_estimator["parameters"].index]).any()

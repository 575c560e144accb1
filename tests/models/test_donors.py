"""Donors: whole tuples of a reference, drawn evenly; how their values may move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpdist.core.records import Floats
from dpdist.estimation.donors import FEWEST, MOST, Donors, donors_from_table, donors_table
from dpdist.mechanisms.tables.calibration import Domain, _least, agree

CODES = np.array([[0, 0], [0, 1], [1, 0]], dtype=np.int32)
TOP = 150_000.0


def reference(seed: int, n: int = 600) -> tuple[Floats, Floats]:
    """Weights that go with salaries; salaries in thousands, some 0, some at a top-code."""
    rng = np.random.default_rng(seed)
    salary = np.minimum(np.round(np.exp(rng.normal(11, 0.7, n)), -3), TOP) * (rng.random(n) > 0.1)
    return np.where(salary > 60_000, 300.0, 20.0) * rng.choice([1.0, 1.5], n), salary[:, None]


def donors(sizes: tuple[int, ...]) -> Donors:
    weight, outcomes = reference(1, sum(sizes))
    return Donors.of(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes), weight, outcomes)


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_every_donor_is_drawn_as_often_as_any_other(seed: int, times: int) -> None:
    held = donors((600, 60))
    drawn = held.by_cell(CODES[:2]).draw(0, 600 * times, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.bincount(drawn), np.full(600, times))


def test_a_part_of_the_donors_has_their_distribution_and_independent_draws_have_it_less() -> None:
    """Shares below any salary are off by a record; control: draws with replacement are off by ten times as much."""
    held, rng = donors((5000,)), np.random.default_rng(2)
    salary = held.outcomes[:, 0]

    def off(positions: np.ndarray) -> float:
        return max(abs(np.mean(salary[positions] <= y) - np.mean(salary <= y)) for y in np.unique(salary))

    assert off(held.by_cell(CODES[:1]).draw(0, 700, rng)) < 1.5 / 700
    assert off(rng.integers(0, 5000, 700)) > 10.0 / 700


def test_of_many_records_as_many_stay_and_atoms_keep_their_share() -> None:
    weight, outcomes = reference(3, 4 * MOST)
    held = Donors.of(np.zeros(4 * MOST, dtype=np.int32), weight, outcomes)
    assert len(held) == MOST
    for atom in (0.0, TOP):
        assert np.mean(held.outcomes == atom) == pytest.approx(np.mean(outcomes == atom), abs=2.0 / MOST)
        shares = [np.average(y[:, 0] == atom, weights=w) for y, w in ((held.outcomes, held.weight), (outcomes, weight))]
        assert shares[0] == pytest.approx(shares[1], rel=0.02)


@pytest.mark.parametrize(("size", "cells"), [(FEWEST, {1}), (FEWEST - 1, {0, 1}), (0, {0, 1})])
def test_a_cell_with_too_few_donors_takes_those_of_the_cells_most_like_it(size: int, cells: set[int]) -> None:
    held = donors((300, size, 300))
    drawn = held.by_cell(CODES).draw(1, 3000, np.random.default_rng(1))
    assert set(held.cell[drawn].tolist()) == (cells if size else cells - {1})


@given(st.integers(0, 10_000), st.integers(0, 3), st.integers(1, 12))
def test_donors_of_all_cells_are_those_of_a_search_for_each(seed: int, columns: int, cells: int) -> None:
    """The oracle looks through all donors for every cell. Cells of one group, and no others, use the same donors."""
    rng = np.random.default_rng(seed)
    codes = np.unique(rng.integers(0, 3, (cells, columns)), axis=0).astype(np.int32)
    weight, outcomes = reference(seed, 150)
    held = Donors.of(rng.integers(0, len(codes), 150).astype(np.int32), weight, outcomes)
    made, wanted = held.by_cell(codes), []
    codes = made.ordered
    for cell in range(len(codes)):
        positions = np.flatnonzero(held.cell == cell)
        for shared in range(columns - 1, -1, -1):
            if len(positions) >= FEWEST:
                break
            positions = np.flatnonzero((codes[held.cell, :shared] == codes[cell, :shared]).all(axis=1))
            positions = positions[np.lexsort((held.weight[positions], *held.outcomes[positions].T[::-1]))]
        wanted.append(positions.tolist())
        assert made.of_cell(cell).tolist() == positions.tolist()
    for one, other in np.ndindex(len(codes), len(codes)):
        assert (made.group[one] == made.group[other]) == (sorted(wanted[one]) == sorted(wanted[other]))


def test_a_group_has_the_levels_that_tell_most_of_outcomes() -> None:
    """Cells of 10 records: of three columns the second has levels of outcomes, the third tells of a rare 0, and the first
    nothing. Control: outcomes by the first column.
    """
    rng = np.random.default_rng(4)
    codes = np.stack(np.meshgrid(range(5), range(4), range(3), indexing="ij"), axis=-1).reshape(-1, 3).astype(np.int32)
    for column, order in ((1, [1, 2, 0]), (0, [0, 2, 1])):
        cell = np.repeat(np.arange(len(codes), dtype=np.int32), 10)
        values = np.exp(2.0 * codes[cell, column] + rng.standard_normal(len(cell))) * (
            rng.random(len(cell)) > 0.1 * codes[cell, 2]
        )
        made = Donors.of(cell, np.ones(len(cell)), values[:, None]).by_cell(codes)
        assert (made.ordered == codes[:, order]).all()
        assert (codes[made.records.cell[made.of_cell(7)], column] == codes[7, column]).all()


def test_records_without_a_weight_are_no_donors() -> None:
    held = Donors.of(np.zeros(3, dtype=np.int32), np.array([0.0, 2.0, 0.0]), np.array([[1.0], [2.0], [3.0]]))
    assert held.outcomes.tolist() == [[2.0]]


def test_donors_are_read_as_they_were_written() -> None:
    kept = {"north": donors((300, 20)), "south": donors((7,))}
    again = donors_from_table(donors_table(kept, ["salary"]), ["salary"])
    assert list(again) == list(kept)
    for label, held in kept.items():
        for name in ("cell", "weight", "outcomes"):
            np.testing.assert_array_equal(getattr(again[label], name), getattr(held, name))


def test_a_search_for_a_scale_ends_where_further_steps_would_change_nothing() -> None:
    """The oracle takes all 200 steps. Control: a search that ends at 1e-9 gives other values."""
    weight, outcomes = reference(8, 40)
    ended = dict.fromkeys((0.0, 1e-9), 0)
    for mean in (1.0, 20_000.0, 45_000.5, 149_999.0):

        def moved_by(share: float) -> Floats:
            return np.minimum(outcomes[:, 0] * np.tan(share * np.pi / 2.0), TOP)

        for width in ended:
            below, above = 0.0, 1.0
            for _ in range(200):
                middle = (below + above) / 2.0
                if above - below < width:
                    break
                below, above = (middle, above) if np.average(moved_by(middle), weights=weight) < mean else (below, middle)
            ended[width] += bool((moved_by(above) == _least(moved_by, weight, mean)).all())
    assert ended[0.0] == 4
    assert ended[1e-9] < 2


@pytest.mark.parametrize("factor", [0.9, 1.2])
def test_values_are_scaled_atoms_stay_and_thousands_stay_thousands(factor: float) -> None:
    """The mean is met before rounding, and to 1 in 100 after it. Control: a plain scale moves the top-code, and off the
    grid."""
    weight, outcomes = reference(4)
    salary = outcomes[:, 0]
    domain = Domain.of(salary, (0.0, TOP), False)
    assert (domain.step, domain.atoms) == (1000.0, (0.0, TOP))
    mean = factor * np.average(salary, weights=weight)
    scaled = domain.scaled(salary, weight, mean)
    assert scaled is not None
    assert np.average(scaled, weights=weight) == pytest.approx(mean, rel=1e-6)
    rounded = domain.rounded(scaled, salary)
    assert (rounded % 1000 == 0).all()
    assert np.average(rounded, weights=weight) == pytest.approx(mean, rel=0.01)
    for atom in (0.0, TOP):
        assert (rounded[salary == atom] == atom).all()
    assert (rounded[salary > 0] > 0).all()
    plain = Domain(0.0, TOP).scaled(salary, weight, mean)
    assert plain is not None
    assert (plain % 1000 != 0).mean() > 0.5
    if factor < 1.0:
        assert (plain < TOP).all()


def test_a_top_code_below_the_bound_is_an_atom_and_the_largest_of_many_values_is_none() -> None:
    _, outcomes = reference(5)
    assert Domain.of(np.minimum(outcomes[:, 0], 120_000.0), (0.0, 1e6), False).atoms == (0.0, 120_000.0, 1e6)
    smooth = np.random.default_rng(1).gamma(2.0, 3.0, 500)
    assert Domain.of(smooth, (0.0, 1e6), False) == Domain(0.0, 1e6, False, 0.0, (0.0, 1e6))


def test_the_weighted_shares_of_atoms_stay_where_the_mean_moves() -> None:
    """Control: without atoms the tilt takes from the zeros and gives to the top-code."""
    weight, outcomes = reference(6)
    mean = np.array([1.1 * np.average(outcomes[:, 0], weights=weight)])
    for domain, limits in ((Domain.of(outcomes[:, 0], (0.0, TOP), False), (0.0, 1e-9)), (Domain(0.0, TOP), (0.005, 1.0))):
        found, moved = agree(weight, outcomes, 50.0, mean, (domain,), True)
        assert np.average(moved[:, 0], weights=found) == pytest.approx(mean[0], rel=1e-9)
        for atom in (0.0, TOP):
            before, after = (np.average(y[:, 0] == atom, weights=w) for y, w in ((outcomes, weight), (moved, found)))
            assert limits[0] <= abs(after - before) <= limits[1]

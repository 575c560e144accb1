"""Attacks on synthetic records find records that were handed out, and nothing where membership does not matter."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.audit.attacking import Points, distances, membership, nearest, scaled, singling_out

FILES = 30


def people(rng: np.random.Generator, n: int) -> Points:
    codes = np.column_stack([rng.integers(0, 3, n), rng.integers(0, 2, n)])
    pay = np.exp(rng.normal(3.0 + 0.2 * codes[:, 0], 0.6))
    return Points(codes, np.column_stack([pay, rng.gamma(3.0, 10.0, n)]))


def ranked(*files: Points) -> list[Points]:
    """Synthetic records, members and others with numbers as ranks among the last two."""
    known = np.concatenate([each.values for each in files[1:]])
    return [Points(each.codes, scaled(each.values, known)) for each in files]


@pytest.mark.parametrize("n", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_synthetic_records_of_another_sample_tell_nothing(n: int) -> None:
    """Oracles: a chance is uniform, so that of 30 files more than 5 are under .05 with a chance of 3 in 1,000. Pairs are
    right by a coin, so that the bound is above 0 in at most 5 % of files: in more than 6 of 30 with 6 in 10,000."""
    chances, bounds, excess = list[float](), list[float](), list[float]()
    for number in range(FILES):
        rng = np.random.default_rng([n, number])
        files = ranked(*(people(rng, n) for _ in range(3)))
        chances.append(nearest(*files, rng).chance)
        bounds.append(membership(*files, rng).at_least)
        excess.append(singling_out(*files, rng).excess)
    assert sum(each <= 0.05 for each in chances) <= 5
    assert sum(each > 0.0 for each in bounds) <= 6
    assert abs(np.mean(excess)) < 0.05


@pytest.mark.parametrize("copied", [1.0, 0.3])
def test_control_records_that_are_handed_out_are_found(copied: float) -> None:
    """All of the synthetic records are copies of members, or three in ten."""
    rng = np.random.default_rng(3)
    members, others, made = (people(rng, 300) for _ in range(3))
    own = rng.random(300) < copied
    made = Points(np.where(own[:, None], members.codes, made.codes), np.where(own[:, None], members.values, made.values))
    files = ranked(made, members, others)
    near, single, member = nearest(*files, rng), singling_out(*files, rng), membership(*files, rng)
    assert near.share_nearer_to_members > 0.5 + 0.4 * copied
    assert near.chance <= 0.01
    assert single.excess > 0.5 * copied
    assert member.at_least > 2.0 * copied


def test_distances_count_categories_that_differ_and_add_the_numbers() -> None:
    one, other = (
        Points(np.array([[0, 1]]), np.array([[0.25]])),
        Points(np.array([[0, 2], [1, 1]]), np.array([[0.5], [0.25]])),
    )
    assert distances(one, other).tolist() == [[1.25, 1.0]]


def test_members_and_others_of_the_same_cell_are_paired() -> None:
    """Without a cell in common there is no pair, and nothing is shown."""
    rng = np.random.default_rng(1)
    here, there = people(rng, 50), people(rng, 50)
    apart = Points(there.codes + 9, there.values)
    assert membership(*ranked(here, here, apart), rng) == (0, 0, 0.0, 0.0)
    assert membership(*ranked(here, here, there), rng).pairs > 0

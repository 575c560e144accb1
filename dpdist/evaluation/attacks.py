"""Attacks on synthetic records, with records outside the file for comparison: nearest records, singling out, membership.

Members were in the file. Others come from the same population and were not in the file. An attacker who sees only the
synthetic records treats members and others alike, unless the synthetic records identify members. So each attack is scored
on members and on others.

- Nearest records: the share of synthetic records that are nearer to a member than to any of an equal number of others. It
  is one half where membership does not matter. Its chance distribution is that of random labels.
- Singling out (Giomi, Boenisch, Wehmeyer & Tasnádi 2023): the attack takes predicates that exactly one synthetic record
  meets. It compares the share of predicates that exactly one member meets with the share for an equal number of others.
- Membership: pairs of a member and another in the same cell. The attacker guesses the member of each pair by a ratio of
  densities, of synthetic records to further others (van Breugel, Sun, Qian & van der Schaar 2023). Only the surest
  guesses count. If a coin chose the member of each pair, the number of right answers is at most binomial with probability
  e^ε/(1 + e^ε). Here ε is the loss of an exchange (Steinke, Nasr & Jagielski 2023). Its Clopper–Pearson limit is a lower
  bound on ε.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import betaincinv

from dpdist.core.records import Floats, Ints

MOST = 1_000
"""Largest number of records of each kind. Of a larger file a random part is used."""
LABELS = 199
"""Number of random labellings with which a share is compared."""
GUESSES = 1_000
COLUMNS = 3
"""Largest number of columns of a predicate."""
SURE = 0.2
"""Share of pairs for which the attacker gives an answer."""
ALARM = 0.05
LEAST_DISTANCE = 1e-9


class Points(NamedTuple):
    """Records: codes of categories (record, category), and numbers (record, variable)."""

    codes: Ints
    values: Floats

    def take(self, which: Ints) -> Points:
        return Points(self.codes[which], self.values[which])


class Nearest(NamedTuple):
    """The share of synthetic records nearest to a member, the chance of as large a one, and median distances."""

    share: float
    chance: float
    to_members: float
    to_others: float


class SinglingOut(NamedTuple):
    """Number of predicates tried, shares that single out a member and another, and the member's excess risk."""

    guesses: int
    of_members: float
    of_others: float
    excess: float


class Membership(NamedTuple):
    """Number of pairs answered, number of right answers, and the least ε of an exchange that is consistent with them."""

    answered: int
    right: int
    at_least: float


def scaled(values: Floats, known: Floats) -> Floats:
    """Returns numbers as ranks in [0, 1] among members and others together, (record, variable)."""
    columns = [np.searchsorted(np.sort(own), each, side="right") for own, each in zip(known.T, values.T, strict=True)]
    return np.column_stack([*columns, np.empty((len(values), 0))]) / len(known)


def distances(one: Points, other: Points) -> Floats:
    """Returns the number of differing categories plus the distances of the numbers, (one, other)."""
    found = cdist(one.values, other.values, "cityblock") if one.values.shape[1] else np.zeros((len(one[0]), len(other[0])))
    for mine, theirs in zip(one.codes.T, other.codes.T, strict=True):
        found += mine[:, None] != theirs[None]
    return np.asarray(found)


def nearest(synthetic: Points, members: Points, others: Points, rng: np.random.Generator) -> Nearest:
    """Compares distances to as many members as others; a tie counts one half."""
    number = min(len(members.codes), len(others.codes), MOST)
    mine, theirs = (each.take(rng.permutation(len(each.codes))[:number]) for each in (members, others))
    made = synthetic.take(rng.permutation(len(synthetic.codes))[:MOST])
    found = np.concatenate([distances(made, mine), distances(made, theirs)], axis=1)
    closest = found.min(axis=1, keepdims=True)
    at = found <= closest
    inside = np.arange(2 * number) < number

    def share(label: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
        one, other = at[:, label].any(axis=1), at[:, ~label].any(axis=1)
        return float((one / (one.astype(float) + other)).mean())

    own, random = share(inside), [share(rng.permutation(inside)) for _ in range(LABELS)]
    chance = (1 + sum(each >= own for each in random)) / (LABELS + 1)
    medians = [float(np.median(found[:, label].min(axis=1))) for label in (inside, ~inside)]
    return Nearest(own, chance, *medians)


def singling_out(synthetic: Points, members: Points, others: Points, rng: np.random.Generator) -> SinglingOut:
    """Runs the singling-out attack.

    Each predicate uses some columns of one synthetic record. A category must be equal; a number must be at least, or at
    most, the record's number, away from the median.
    """
    number = min(len(members.codes), len(others.codes))
    mine, theirs = (each.take(rng.permutation(len(each.codes))[:number]) for each in (members, others))
    categories, middle = synthetic.codes.shape[1], np.median(synthetic.values, axis=0)
    columns = categories + synthetic.values.shape[1]
    found = list[tuple[bool, bool]]()
    for _ in range(GUESSES):
        record = int(rng.integers(len(synthetic.codes)))
        chosen = rng.permutation(columns)[:COLUMNS]

        def met(points: Points, record: int = record, chosen: Ints = chosen) -> int:
            inside = np.ones(len(points.codes), dtype=bool)
            for column in chosen:
                if column < categories:
                    inside &= points.codes[:, column] == synthetic.codes[record, column]
                else:
                    own, at = points.values[:, column - categories], synthetic.values[record, column - categories]
                    inside &= own >= at if at > middle[column - categories] else own <= at
            return int(inside.sum())

        if met(synthetic) == 1:
            found.append((met(mine) == 1, met(theirs) == 1))
    of_members, of_others = np.array(found).mean(axis=0).tolist() if found else (0.0, 0.0)
    return SinglingOut(len(found), of_members, of_others, (of_members - of_others) / max(1.0 - of_others, 1e-9))


def membership(synthetic: Points, members: Points, others: Points, rng: np.random.Generator) -> Membership:
    """Runs the membership attack.

    Half of the others represent the population; the rest are paired with members of the same categories.
    """
    order = rng.permutation(len(others.codes))
    known, rest = others.take(order[: len(order) // 2][:MOST]), others.take(order[len(order) // 2 :])
    made = synthetic.take(rng.permutation(len(synthetic.codes))[: 4 * MOST])
    one, other = _paired(members, rest, rng)
    if not len(one):
        return Membership(0, 0, 0.0)
    scores = [
        np.log(np.maximum(distances(each, known).min(axis=1), LEAST_DISTANCE))
        - np.log(np.maximum(distances(each, made).min(axis=1), LEAST_DISTANCE))
        for each in (members.take(one), rest.take(other))
    ]
    apart = scores[0] - scores[1] + 1e-12 * rng.standard_normal(len(one))
    answered = max(1, round(SURE * len(one)))
    right = int((apart[np.argsort(-np.abs(apart), kind="stable")[:answered]] > 0).sum())
    return Membership(answered, right, shown_by(right, answered))


def shown_by(right: int, answered: int) -> float:
    """Returns the least ε of an exchange that this number of right answers proves.

    If all answers are right, it is the most that can be shown.
    """
    least = float(betaincinv(right, answered - right + 1, ALARM)) if right else 0.0
    return max(0.0, float(np.log(max(least, 1e-300) / (1.0 - least))))


def _paired(members: Points, others: Points, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Returns positions of members and of others that make pairs in the same cell, (pair,) each."""
    both = np.concatenate([members.codes, others.codes])
    cell = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    of_members, of_others = np.split(cell, [len(members.codes)])
    found = list[tuple[Ints, Ints]]()
    for number in np.intersect1d(of_members, of_others):
        one, other = (rng.permutation(np.flatnonzero(each == number)) for each in (of_members, of_others))
        pairs = min(len(one), len(other))
        found.append((one[:pairs], other[:pairs]))
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    kept = rng.permutation(sum(len(one) for one, _ in found))[:MOST]
    one, other = (np.concatenate([pair[k] for pair in found])[kept] for k in range(2))
    return one, other

"""Attacks on a release's synthetic records, with a hold-out file of people outside the confidential file.

Results are confidential.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import scipy

from dpdist.audit.auditing import ALARM, finished_run, keep_audit
from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.errors import WorkspaceError
from dpdist.core.files import scratch
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.records import Crosstab, Floats, Ints
from dpdist.job import Job
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.guarantees import Strict, record_epsilon
from dpdist.storage.tables import each_block
from dpdist.survey.census import place, take_census
from dpdist.survey.source import Input, open_source

# *Members* were in the confidential file. *Others* (`nonmembers`) come from the same population but were not in it. A
# synthetic file that reveals nothing about members is equally close to members and to others. So each attack is scored on
# both.
#
# - Nearest records: the share of synthetic records that are nearer to a member than to any of an equal number of others. It
#   is about one half if nothing is revealed. Random labels give the distribution under chance.
# - Singling out (Giomi, Boenisch, Wehmeyer & Tasnádi 2023): the attack takes predicates that exactly one synthetic record
#   meets. It compares how often exactly one member meets one with how often exactly one of as many others does.
# - Membership: pairs of a member and another person in the same cell. The attacker guesses which one was in the file, by
#   the density of synthetic records over the density of further others (van Breugel, Sun, Qian & van der Schaar 2023). Only
#   the surest guesses count. If a coin chose the member of each pair, the number of right guesses is at most binomial with
#   probability e^ε/(1 + e^ε), where ε is the loss of an exchange of one record (Steinke, Nasr & Jagielski 2023). Its
#   Clopper–Pearson limit is a lower bound on ε.
MOST = 1_000
"""Largest number of records of each kind whose distances are computed, chosen at random. The membership attack uses up to
four times as many synthetic records.
"""
LABELS = 199
"""Number of random labellings of records that give the share of nearest records by chance."""
GUESSES = 1_000
COLUMNS = 3
"""Largest number of columns in a predicate."""
SURE = 0.2
"""Share of pairs for which the attacker guesses: the surest ones."""
LEAST_DISTANCE = 1e-9


class Points(NamedTuple):
    """Records: codes of categories, (record, category), and numbers, (record, variable)."""

    codes: Ints
    values: Floats

    def take(self, which: Ints) -> Points:
        return Points(self.codes[which], self.values[which])


class Nearest(NamedTuple):
    """The share of synthetic records nearest to a member, the probability of that share by chance, median distances."""

    share_nearer_to_members: float
    chance: float
    distance_to_members: float
    distance_to_others: float


class SinglingOut(NamedTuple):
    """Number of predicates, the shares that single out a member and one of the others, and the excess risk of members."""

    predicates: int
    single_out_members: float
    single_out_others: float
    excess: float


class Membership(NamedTuple):
    """Number of guesses, number of right ones, and the bounds on ε of an exchange that right guesses, and these, prove."""

    pairs: int
    right: int
    most_that_can_be_shown: float
    at_least: float


def scaled(values: Floats, reference: Floats) -> Floats:
    """Returns numbers as ranks from 0 to 1 among `reference`, which has members and others, (record, variable)."""
    columns = [
        np.searchsorted(np.sort(reference_column), column, side="right")
        for reference_column, column in zip(reference.T, values.T, strict=True)
    ]
    return np.column_stack([*columns, np.empty((len(values), 0))]) / len(reference)


def distances(points: Points, other: Points) -> Floats:
    """Returns the number of differing categories plus the distances between numbers, (point, other point)."""
    total = (
        scipy.spatial.distance.cdist(points.values, other.values, "cityblock")
        if points.values.shape[1]
        else np.zeros((len(points[0]), len(other[0])))
    )
    for mine, theirs in zip(points.codes.T, other.codes.T, strict=True):
        total += mine[:, None] != theirs[None]
    return np.asarray(total)


def nearest(synthetic: Points, members: Points, nonmembers: Points, rng: np.random.Generator) -> Nearest:
    """Compares the distances to members with the distances to an equal number of others; a tie counts one half."""
    number = min(len(members.codes), len(nonmembers.codes), MOST)
    mine, theirs = (points.take(rng.permutation(len(points.codes))[:number]) for points in (members, nonmembers))
    sample = synthetic.take(rng.permutation(len(synthetic.codes))[:MOST])
    distance = np.concatenate([distances(sample, mine), distances(sample, theirs)], axis=1)
    closest = distance.min(axis=1, keepdims=True)
    closest_ones = distance <= closest
    inside = np.arange(2 * number) < number

    def share(label: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
        of_label, other = closest_ones[:, label].any(axis=1), closest_ones[:, ~label].any(axis=1)
        return float((of_label / (of_label.astype(float) + other)).mean())

    observed, random = share(inside), [share(rng.permutation(inside)) for _ in range(LABELS)]
    chance = (1 + sum(by_chance >= observed for by_chance in random)) / (LABELS + 1)
    medians = [float(np.median(distance[:, label].min(axis=1))) for label in (inside, ~inside)]
    return Nearest(observed, chance, *medians)


def singling_out(synthetic: Points, members: Points, nonmembers: Points, rng: np.random.Generator) -> SinglingOut:
    """Tries predicates that single out one record.

    A predicate uses some columns of one synthetic record. A category must be equal. A number must lie on the record's
    side of the median, and at least as far out.
    """
    number = min(len(members.codes), len(nonmembers.codes))
    mine, theirs = (points.take(rng.permutation(len(points.codes))[:number]) for points in (members, nonmembers))
    categories, middle = synthetic.codes.shape[1], np.median(synthetic.values, axis=0)
    columns = categories + synthetic.values.shape[1]
    outcomes = list[tuple[bool, bool]]()
    for _ in range(GUESSES):
        record = int(rng.integers(len(synthetic.codes)))
        subset = rng.permutation(columns)[:COLUMNS]

        def matches(points: Points, record: int = record, subset: Ints = subset) -> int:
            inside = np.ones(len(points.codes), dtype=bool)
            for column in subset:
                if column < categories:
                    inside &= points.codes[:, column] == synthetic.codes[record, column]
                else:
                    column_values, threshold = (
                        points.values[:, column - categories],
                        synthetic.values[record, column - categories],
                    )
                    inside &= (
                        column_values >= threshold
                        if threshold > middle[column - categories]
                        else column_values <= threshold
                    )
            return int(inside.sum())

        if matches(synthetic) == 1:
            outcomes.append((matches(mine) == 1, matches(theirs) == 1))
    of_members, of_others = np.array(outcomes).mean(axis=0).tolist() if outcomes else (0.0, 0.0)
    return SinglingOut(len(outcomes), of_members, of_others, (of_members - of_others) / max(1.0 - of_others, 1e-9))


def membership(synthetic: Points, members: Points, nonmembers: Points, rng: np.random.Generator) -> Membership:
    """Guesses which record of each pair was in the file.

    Half of the others stand for the population. The rest are paired with members of the same categories.
    """
    order = rng.permutation(len(nonmembers.codes))
    population, rest = nonmembers.take(order[: len(order) // 2][:MOST]), nonmembers.take(order[len(order) // 2 :])
    sample = synthetic.take(rng.permutation(len(synthetic.codes))[: 4 * MOST])
    of_members, of_rest = _paired(members, rest, rng)
    if not len(of_members):
        return Membership(0, 0, 0.0, 0.0)
    scores = [
        np.log(np.maximum(distances(points, population).min(axis=1), LEAST_DISTANCE))
        - np.log(np.maximum(distances(points, sample).min(axis=1), LEAST_DISTANCE))
        for points in (members.take(of_members), rest.take(of_rest))
    ]
    margin = scores[0] - scores[1] + 1e-12 * rng.standard_normal(len(of_members))
    answered = max(1, round(SURE * len(of_members)))
    right = int((margin[np.argsort(-np.abs(margin), kind="stable")[:answered]] > 0).sum())
    return Membership(answered, right, shown_by(answered, answered), shown_by(right, answered))


def shown_by(right: int, answered: int, alarm: float = ALARM) -> float:
    """Returns the lower bound on ε that this number of right guesses of coins proves, with this error rate.

    If all guesses are right, this is the largest provable bound.
    """
    least = float(scipy.special.betaincinv(right, answered - right + 1, alarm)) if right > 0 else 0.0
    return max(0.0, float(np.log(max(least, 1e-300) / (1.0 - least))))


def _paired(members: Points, nonmembers: Points, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Returns positions of members and of others that are paired within cells, (pair,) each."""
    both = np.concatenate([members.codes, nonmembers.codes])
    cell = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    of_members, of_others = np.split(cell, [len(members.codes)])
    pairs_by_cell = list[tuple[Ints, Ints]]()
    for number in np.intersect1d(of_members, of_others):
        member, other = (rng.permutation(np.flatnonzero(cells == number)) for cells in (of_members, of_others))
        pairs = min(len(member), len(other))
        pairs_by_cell.append((member[:pairs], other[:pairs]))
    if not pairs_by_cell:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    picked = rng.permutation(sum(len(member) for member, _ in pairs_by_cell))[:MOST]
    member, other = (np.concatenate([pair[k] for pair in pairs_by_cell])[picked] for k in range(2))
    return member, other


ATTACKS = {
    "attack": "`nearest record`, `singling out` or `membership`",
    "measure": "name of the measure",
    "value": "the figure",
    "claimed": "for a lower bound on ε: the claim; otherwise null",
    "exceeds": "whether the bound is above the claim",
}
"""Columns of audit-attacks.parquet."""
BY_NAME: Mapping[str, Callable[..., Nearest | SinglingOut | Membership]] = {
    "nearest record": nearest,
    "singling out": singling_out,
    "membership": membership,
}


def attack(workspace: str | Path, holdout: Input, listener: Listener = silent) -> Confidential[pd.DataFrame]:
    """Runs attacks that use synthetic records to tell who was in the confidential file.

    `holdout` is a file or table, with the job's columns, of people of the population who were not in the confidential file.
    A bound on ε holds only if chance alone decided who was in the file. The attacks spend no budget.

    Returns a row for each measure of an attack: attack, measure, value, claimed, exceeds. It is also stored in
    confidential/evaluation/. Raises `WorkspaceError` if there is no finished release or it has no synthetic records, and
    `DataError` if the hold-out file does not fit the job.
    """
    with finished_run(workspace, listener) as (space, job, _, fits):
        paths = sorted((space.newest / "synthetic").glob("set-*.parquet"))
        if not paths:
            remedy = "audit it with --draws, which needs none"
            raise WorkspaceError(space.place, "the release has no synthetic records", remedy)
        sets = pd.concat([pq.read_table(path).to_pandas() for path in paths], ignore_index=True)
        names = [name for name in job.categories if name in sets]
        source = open_source(job.by_record, holdout)
        census = take_census(job.by_record, source)
        with scratch() as folder:
            nonmembers = _points(job, census.crosstab, [place(job.by_record, source, census, folder)], names)
        members = _points(job, next(iter(fits.values())).crosstab, list(each_block(space.records)), names)
        records = _synthetic(job, sets, names)
        reference = np.concatenate([members.values, nonmembers.values])
        files = [Points(points.codes, scaled(points.values, reference)) for points in (records, members, nonmembers)]
        # The bound is on an exchange of one record. A claim that also has a δ is not compared with it.
        total = mechanism_of(job).promise(job).total
        claimed = float(record_epsilon(job, total.substitution_epsilon)) if isinstance(total, Strict) else np.nan
        rows = list[tuple[str, str, float, float, bool]]()
        with stage(listener, "audit", 3) as tick:
            for name, figures_of in BY_NAME.items():
                for measure, value in figures_of(*files, Key.from_os().generator("attack"))._asdict().items():
                    bound = claimed if measure == "at_least" else np.nan
                    rows.append((name, measure, float(value), bound, value > bound))
                tick(1)
        results = Confidential(pd.DataFrame(rows, columns=list(ATTACKS)))
        keep_audit(space, "attacks", results)
        return results


def refuse_shown(workspace: str | Path, audited: Confidential[pd.DataFrame]) -> None:
    """Raises `WorkspaceError`, without figures, if an attack proved a larger loss than is claimed."""
    if audited.disclose_to_custodian()["exceeds"].any():
        where = "see confidential/evaluation/audit-attacks.parquet; do not publish any further release of this mechanism"
        raise WorkspaceError(str(workspace), "synthetic records reveal more than the claimed ε allows", where)


def _points(job: Job, crosstab: Crosstab, blocks: list[Records], names: list[str]) -> Points:
    codes = [crosstab.codes_of(names, block.row) for block in blocks]
    return Points(np.concatenate(codes).astype(np.int64), np.concatenate([_numbers(job, b) for b in blocks]))


def _numbers(job: Job, records: Records) -> Floats:
    weight = [records.weight] if job.survey.weight is not None else []
    return np.column_stack([records.outcomes, *weight])


def _synthetic(job: Job, sets: pd.DataFrame, names: list[str]) -> Points:
    levels = {name: [str(level) for level in job.columns[name].levels or ()] for name in names}
    codes = [pd.Categorical(sets[name].astype(str), categories=levels[name]).codes for name in names]
    numbers = [*job.outcomes, *([job.survey.weight] if job.survey.weight is not None else [])]
    values = np.column_stack([sets[name].to_numpy(dtype=np.float64) for name in numbers])
    return Points(np.column_stack([np.empty((len(sets), 0)), *codes]).astype(np.int64), values)

"""Audit of a finished release: losses of records left out, and lower bounds on ε from releases of two neighbours.

Results are confidential.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import exp, expm1, floor, log, log1p
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy

from dpdist.audit.likelihood_ratios import NeighbourQueries, NotAdded, compare
from dpdist.confidential.records import Records
from dpdist.core.confidential import Confidential
from dpdist.core.errors import WorkspaceError
from dpdist.core.files import private
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.public_files import MANIFEST
from dpdist.core.records import Codes, Floats, Ints
from dpdist.core.this_process import single_threaded
from dpdist.engine.protocol import Learned, StratumRecorder, run_rounds
from dpdist.job import WEIGHT_RULES, Job, epsilon_of, family_facts, those
from dpdist.mechanisms.registry import AUDITS, mechanism_of
from dpdist.models.protocol import Draws, Improper, StratumModel, supports
from dpdist.privacy.guarantees import Asymptotic, Concentrated, NoGuarantee, Strict, record_epsilon, record_rho
from dpdist.privacy.weights import NotReached
from dpdist.runtime.tasks import JobFit, open_fit
from dpdist.sampling.samplers import PosteriorSampler
from dpdist.storage.tables import each_block, read_rows, read_table, write_table
from dpdist.storage.workspace import GATHERED, MADE_AGAIN, NOISY_FRAME, Workspace

# Neighbours differ in one record, so the claim is the loss of one record. Results are confidential.
LOWER_BOUNDS = {
    "stratum": "one of the smallest strata",
    "record": "number of the record left out or changed",
    "runs": "number of draws from each of the two neighbouring files",
    "claimed": "the claimed ε of one record",
    "delta": "the claimed δ",
    "most_that_can_be_shown": "the largest ε that this number of draws can prove",
    "at_least": "the ε proven from everything released",
    "from_sets": "the ε proven from synthetic records alone",
    "from_sums": "the ε proven from noisy sums and choices, or null",
    "exceeds": "whether a proven ε is above the claim",
    "left_out": "true if the mechanism cannot release the stratum, with or without the record",
}
"""Columns of audit-lower-bounds.parquet."""

ALARM = 0.05
"""Probability that a bound is above the true loss."""
CUTS = 200
DIFFERING = 4.0
"""A feature is used only if its means under the two files differ by this many standard errors."""
MOST_STRATA = 3
MORE = 10
"""Number of draws of noise on sums for each draw of a whole release, which takes far more time."""
TRIED = 3
"""Number of records that are tried from each of three rankings by exposure."""
MOST_CLAIMED = 600.0
"""Largest ε for which e^ε is a finite float. No feasible number of draws tests a larger claim."""


# A draw is all that a run takes from the records of a stratum: the released parameters or noisy statistics of every set.
# The attacker knows everything but which of the two files was used. From one half of the draws it learns a rule: a score, a
# threshold and a direction. On the other half, p is the lower Clopper–Pearson limit of how often the rule holds under one
# file, and q the upper limit under the other. Differential privacy allows p ≤ e^ε q + δ for every rule. Therefore ε ≥
# log((p − δ)/q), except with probability ALARM. A bound below the claim proves nothing; a bound above it proves the claim
# wrong. Where noise is added to sums, the noisy sums alone are attacked too, since their likelihood ratio is known
# (`likelihood_ratios`).
def lower_bound(near: Floats, far: Floats, delta: float = 0.0, alarm: float = ALARM) -> float:
    """Returns the lower bound on ε that these draws of two files prove, (run, feature) each; 0 for equal draws."""
    width = max(near.shape[1], far.shape[1])
    if not width:
        return 0.0
    near, far = (pad(side.tolist(), width) for side in (near, far))
    half = len(near) // 2
    near_scores, far_scores = _scores(near, far, half)
    return bound_of_scores(near_scores, far_scores, half, delta, alarm)


def bound_of_scores(near: Floats, far: Floats, half: int, delta: float = 0.0, alarm: float = ALARM) -> float:
    """Returns the bound from the score of every draw, (run,).

    The first `half` of the draws choose threshold and direction. The others, which had no part in the score, are counted.
    """
    scores = [near, far]
    first, second = ([side[:half] for side in scores], [side[half:] for side in scores])
    cut, sign, order = _rule(first, delta)
    a, b = (second[k] for k in order)
    high, low = int((sign * a >= cut).sum()), int((sign * b >= cut).sum())
    p = float(scipy.special.betaincinv(high, len(a) - high + 1, alarm / 2)) if high else 0.0
    q = float(scipy.special.betaincinv(low + 1, len(b) - low, 1 - alarm / 2)) if low < len(b) else 1.0
    return max(0.0, float(np.log(max(p - delta, 1e-300) / q)))


def most_shown(runs: int, delta: float = 0.0) -> float:
    """Returns the largest bound that `runs` draws of each file can prove, if its decision rule is always right."""
    wrong = log(ALARM / 2) / (runs - runs // 2)
    return max(0.0, log(max(exp(wrong) - delta, 1e-300) / -expm1(wrong)))


def draws_to_exceed(claimed: float, delta: float = 0.0) -> int:
    """Returns the fewest draws of each file that can prove more than the claim: p > e^ε q + δ at q = 1 − p."""
    half = log(ALARM / 2) / log1p((delta - 1.0) / (1.0 + exp(min(claimed, MOST_CLAIMED))))
    return 2 * floor(half) + 1


def claim_of_record(job: Job, guarantee: Strict | Concentrated | Asymptotic) -> float:
    """Returns the ε that one record may lose under a guarantee for a privacy unit."""
    if isinstance(guarantee, Concentrated) and job.most_records > 1:
        return float(epsilon_of(record_rho(job, guarantee.rho), guarantee.delta))
    return float(record_epsilon(job, guarantee.epsilon))


def _scores(near: Floats, far: Floats, half: int) -> list[Floats]:
    """Scores every draw: Σ(|x − far| − |x − near|)/scale, with medians and mean deviations of the first half's features."""
    a, b = near[:half], far[:half]
    spread = (np.abs(a - np.median(a, 0)).mean(0) + np.abs(b - np.median(b, 0)).mean(0)) / 2.0
    shift = np.abs(a.mean(0) - b.mean(0))
    differing = shift > DIFFERING * np.maximum(spread, 1e-12) * np.sqrt(2.0 / half)
    if not differing.any():
        differing = shift == shift.max()
    scale = np.where(spread > 0, spread, 1.0)[differing]
    centres = np.median(a, 0)[differing], np.median(b, 0)[differing]
    return [
        ((np.abs(x[:, differing] - centres[1]) - np.abs(x[:, differing] - centres[0])) / scale).sum(1) for x in (near, far)
    ]


def _rule(scores: list[Floats], delta: float) -> tuple[float, float, tuple[int, int]]:
    """Returns the rule that separates these draws best: threshold, sign, and which file exceeds it more often."""
    best = (0.0, 1.0, (0, 1))
    most = -np.inf
    for sign, order in ((1.0, (0, 1)), (-1.0, (1, 0))):
        a, b = (sign * scores[k] for k in order)
        for cut in np.unique(np.quantile(np.concatenate([a, b]), _levels(len(a)))):
            p, q = ((np.sum(x >= cut) + 0.5) / (len(x) + 1) for x in (a, b))
            sure = p - 2 * np.sqrt(p * (1 - p) / len(a)) - delta
            bound = np.log(max(sure, 1e-9) / (q + 2 * np.sqrt(q * (1 - q) / len(b))))
            if bound > most:
                most, best = bound, (float(cut), sign, order)
    return best


def _levels(runs: int) -> Floats:
    """Quantile levels of the thresholds to try. Many are in the tails, where ratios are largest."""
    tail = np.geomspace(min(0.005, 10.0 / runs), 0.005, CUTS // 4)
    return np.unique(np.concatenate([tail, np.linspace(0.005, 0.995, CUTS), 1.0 - tail]))


def releases(
    job: Job, model: StratumModel, learned: Learned, sampler: PosteriorSampler, records: Records, runs: int, key: Key
) -> Iterator[Sequence[Draws]]:
    """Yields the released parameters of every set, run after run."""
    mechanism = mechanism_of(job)
    for run in range(runs):
        rounds = mechanism.protect(job, model, StratumRecorder(), learned)
        yield run_rounds(rounds, model, sampler, key.child(f"run {run}"), "audit", [records]).parameters


def of_parameters(model: StratumModel, draws: Sequence[Sequence[Draws]]) -> Floats:
    return pad([list(numbers([model.describe(theta) for theta in thetas])) for thetas in draws])


def pad(rows: Sequence[Sequence[float]], least: int = 0) -> Floats:
    """Pads rows with 0 to one length. Runs that choose different tables release different numbers of figures."""
    padded = np.zeros((len(rows), max(least, *map(len, rows))))
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def of_sets(model: StratumModel, draws: Sequence[Sequence[Draws]], crosstab_row: Codes, key: Key) -> Floats:
    """Returns features of these runs' synthetic records, (run, feature): Σw and Σwy by crosstab row, and the range of y.

    `crosstab_row` has the crosstab row of every record. The result has no features where the model makes no records.
    """
    if not supports(model, "simulate"):
        return np.empty((len(draws), 0))
    row, rows = crosstab_row - crosstab_row.min(), list[Floats]()
    for run, thetas in enumerate(draws):
        features = list[Floats]()
        for number, theta in enumerate(thetas):
            outcome, weight = model.simulate(theta, crosstab_row, key.child(f"run {run}").generator("sets", set=number))
            first = outcome if outcome.ndim == 1 else outcome[:, 0]
            sums = [np.bincount(row, weights=values) for values in (weight, weight * first)]
            features.append(np.concatenate([*sums, [first.min(), first.max()]]))
        rows.append(np.concatenate(features))
    return np.array(rows)


def numbers(described: Any) -> Iterator[float]:
    """Yields all numbers in described parameters, in order."""
    if isinstance(described, bool | str) or described is None:
        return
    if isinstance(described, int | float):
        yield float(described)
    else:
        inner = described.values() if isinstance(described, dict) else described
        for item in inner:
            yield from numbers(item)


def neighbour(job: Job, records: Records, which: int) -> Records:
    """Returns a neighbour of the file: without the record `which`, or under substitution with other values of it.

    The record's first outcome is set to its more distant bound, and its weight to the lower bound. Where bounds are not
    declared, the smallest and the largest value of the file take their place.
    """
    if job.budget.adjacency != "substitution":
        return records.take(np.arange(len(records)) != which)
    weight, outcomes = records.weight.copy(), records.outcomes.copy()
    outcome = outcomes[:, 0]
    low, high = job.outcome_column.bounds or (float(outcome.min()), float(outcome.max()))
    outcome[which] = low if outcome[which] > (low + high) / 2 else high
    weight[which] = weight.min() if job.weight_bounds is None else job.weight_bounds[0]
    return replace(records, outcomes=outcomes, weight=weight)


def bound_from_outside(workspace: str | Path, runs: int, listener: Listener = silent) -> Confidential[pd.DataFrame]:
    """Computes lower bounds on ε of a finished release's mechanism, from `runs` draws with a record and `runs` without it.

    The record is an exposed one in each of the smallest strata. None of these draws is published. Columns are those of
    `LOWER_BOUNDS`. Writes confidential/evaluation/audit-lower-bounds.parquet. Raises `WorkspaceError` if nothing is
    promised, if Stan samples, if stored weights lie beyond their bounds, or if this number of runs could not prove a loss
    above the claim.
    """
    with finished_run(workspace, listener) as (space, job, strata, fits):
        guarantee = mechanism_of(job).promise(job).total
        if isinstance(guarantee, NoGuarantee) or job.sampler.name == "stan":
            why = "nothing is promised" if isinstance(guarantee, NoGuarantee) else "every draw would need a fit by Stan"
            raise WorkspaceError(space.place, why, "audit a release with a guarantee, by another sampler")
        delta = float(getattr(guarantee, "delta", None) or 0)
        claimed, most = claim_of_record(job, guarantee), most_shown(runs, delta)
        if most <= claimed:
            why = f"{runs} draws cannot show more than the claimed ε of {claimed:g}, whatever the mechanism does"
            raise WorkspaceError(
                space.place, why, f"at least {draws_to_exceed(claimed, delta)} draws are needed; more draws can prove more"
            )
        _refuse_weights_beyond_bounds(space, job)
        smallest = strata["rows"].to_numpy().argsort(kind="stable")[:MOST_STRATA]
        rows = list[tuple[Any, ...]]()
        with stage(listener, "audit", len(smallest)) as tick:
            for number in smallest.tolist():
                label, fit = strata["stratum"][number], fits[strata["fit"][number]]
                records = stratum_records(fit, number)
                which, sums = _most_exposed(fit, number, records)
                from_sums = float("nan") if sums is None else _of_sums(sums, MORE * runs, delta)
                try:
                    at_least, from_sets = (lower_bound(*sides, delta) for sides in _both(fit, number, records, which, runs))
                except (Improper, NotReached):
                    at_least = from_sets = float("nan")
                bounds = (at_least, from_sets, from_sums)
                findings = (*bounds, any(bound > claimed for bound in bounds), bool(np.isnan(at_least)))
                rows.append((label, int(records.record[which]), runs, claimed, delta, most, *findings))
                tick(1)
        bounds_table = Confidential(pd.DataFrame(rows, columns=list(LOWER_BOUNDS)))
        keep_audit(space, "lower-bounds", bounds_table)
        return bounds_table


def _refuse_weights_beyond_bounds(space: Workspace, job: Job) -> None:
    """Raises `WorkspaceError` if a stored weight lies beyond its public bounds although the job clips weights.

    Version 0.1.0 and earlier stored such weights. This version's mechanisms clip every weight, unlike that release's,
    so sums may lie beyond their public ranges. The error names no weight.
    """
    name = job.survey.weight
    bounds = job.columns[name].bounds if name is not None and name in job.clipped_columns else None
    if bounds is None:
        return
    low, high = bounds
    if any(((block.weight < low) | (block.weight > high)).any() for block in each_block(space.records)):
        where = space.records.relative_to(space.root)
        fault = f"{where} has weights beyond the bounds of {name}, as earlier versions stored them, without clipping"
        remedy = (
            f"`dpdist verify {space.place}` shows whether the claim of its release holds; audit a release that was "
            "made with this version"
        )
        raise WorkspaceError(space.place, fault, remedy, exit_code=2)


def exposed(records: Records, number: int) -> list[int]:
    """Returns positions of at most `number` records with the largest products of weight and distance from the median, the
    largest weights, or the largest distances.
    """
    away = np.abs(records.outcomes[:, 0] - np.median(records.outcomes[:, 0]))
    ranked = [
        np.argsort(-values, kind="stable")[: -(-number // 3)] for values in (records.weight * away, records.weight, away)
    ]
    return list(dict.fromkeys(np.concatenate(ranked).tolist()))[:number]


def _most_exposed(fit: JobFit, stratum: int, records: Records) -> tuple[int, NeighbourQueries | None]:
    """Returns the position of the record that moves noisy sums most, and the comparison of the file with its neighbour.

    Without noisy sums, it is the record with the largest product of weight and distance from the median.
    """
    candidates = exposed(records, 3 * TRIED)
    if not fit.job.mechanism.adds_noise:
        return candidates[0], None
    learned = fit.learned(stratum) if fit.job.has_reference else None
    neighbours = (neighbour(fit.job, records, which) for which in candidates)
    try:
        pairs = compare(fit.job, fit.fitted(stratum), learned, fit.sampler, records, neighbours)
    except (NotAdded, Improper, NotReached):
        return candidates[0], None
    return max(zip(candidates, pairs, strict=True), key=lambda candidate: candidate[1].distance)


def _of_sums(pair: NeighbourQueries, runs: int, delta: float) -> float:
    half = runs // 2
    return bound_of_scores(*pair.scores(runs, half), half, delta)


def stratum_records(fit: JobFit, stratum: int) -> Records:
    """Returns the records of a stratum, as the run stored them."""
    blocks = fit.layout.blocks
    numbers = blocks.of_stratum(stratum)
    return read_rows(fit.space.records, blocks.edges[numbers.start], blocks.edges[numbers.stop])


def _both(fit: JobFit, stratum: int, records: Records, which: int, runs: int) -> list[tuple[Floats, Floats]]:
    learned, key = fit.learned(stratum) if fit.job.has_reference else None, Key.from_os()
    model, rows = fit.fitted(stratum), fit.crosstab.rows_of(stratum)
    crosstab_row = np.repeat(np.arange(rows.start, rows.stop, dtype=np.int32), fit.crosstab.count[rows])
    sides = list[tuple[Floats, Floats]]()
    for side, file in (("near", records), ("far", neighbour(fit.job, records, which))):
        released = list(releases(fit.job, model, learned, fit.sampler, file, runs, key.child(side)))
        sides.append((of_parameters(model, released), of_sets(model, released, crosstab_row, key.child(f"{side} sets"))))
    (near, near_sets), (far, far_sets) = sides
    return [(near, far), (near_sets, far_sets)]


def keep_audit(space: Workspace, rule: str, audit: Confidential[pd.DataFrame]) -> None:
    """Stores audit-<rule>.parquet in the confidential folder of evaluations."""
    table = pa.Table.from_pandas(audit.disclose_to_custodian(), preserve_index=False)
    with space.result(space.evaluation / f"audit-{rule}.parquet") as path:
        write_table(path, table)


LOSSES = {
    "record": "number of the record left out, in the file's order",
    "loss": "largest absolute log ratio of posterior densities with and without the record, over draws",
    "loss_at_given_weights": "the loss if other records kept their privacy weights",
    "epsilon_local": "the bound 2Δ observed on this file",
    "epsilon_local_range": "the bound from the range of a record's log likelihood",
    "exceeds": "whether the loss is above `epsilon_local`",
    "delta": "the least δ at which the bound holds if this record is left out",
    "stratum": "the record's stratum",
}
"""Columns of audit-RULE.parquet."""

UNFINISHED = "no finished release with its confidential folder"
READ = ("records", "reference", NOISY_FRAME, GATHERED)
"""Prefixes of the names of units whose files an audit reads."""
LARGEST = 2**27
"""Largest number of records × draws of a stratum in an audit. Its log likelihoods, 1 GiB, are held in memory."""
SUMS = "noisy-sums"
"""Name of the audit of noisy sums, in place of a weight rule."""
SUMMARY = ("rule", "of_release", "strata", "left_out", "records", "exceeded", "largest_share")
_NOTHING = pd.DataFrame({"stratum": [], "loss": np.empty(0), "epsilon_local": np.empty(0), "exceeds": np.empty(0, bool)})


def audit(
    workspace: str | Path, records: int = 8, all_rules: bool = False, listener: Listener = silent
) -> Confidential[pd.DataFrame]:
    """Leaves out `records` records of every stratum, one at a time, and computes the weights of the others anew.

    Half of these records have the largest unweighted bounds; the others are random. Writes
    confidential/evaluation/audit-<rule>.parquet for the release's weight rule, or for every rule. Returns one row per rule:
    rule; of_release (the release's own); strata; left_out (strata too large for memory, or missing the target); records;
    exceeded (losses above 2Δ); largest_share (largest loss over 2Δ).

    Where a mechanism adds noise to sums, losses are those of the sums of the file and of its neighbours, and the bound is
    what one record may lose of the tables' budget. The row's rule is then `noisy-sums`.

    Raises `WorkspaceError` for other releases than these two kinds: the first has closed forms for the lognormal model
    alone.
    """
    with finished_run(workspace, listener) as (space, job, strata, fits):
        of_sums = job.mechanism.adds_noise
        if not of_sums and not (family_facts(job).logs and job.mechanism.bounded_by_weights()):
            here = f"a release of {job.mechanism}" + (f" with the family {job.family}" if job.model is not None else "")
            by_weights = " and ".join(those(lambda spec: spec.bounded_by_weights()))
            audited = f"{by_weights} with the family lognormal, and mechanisms that add noise to sums"
            raise WorkspaceError(space.place, here, f"audits know {audited}")
        own = SUMS if of_sums else job.mechanism.weights.rule
        rules = [own]
        if all_rules and not of_sums:
            rules = [rule for rule in dict.fromkeys([*WEIGHT_RULES, own]) if rule != "none"]
        rows = list[tuple[object, ...]]()
        with stage(listener, "audit", len(rules) * len(strata)) as tick:
            for rule in rules:
                tables = list[pd.DataFrame]()
                for number, name in enumerate(strata["fit"]):
                    with suppress(Improper, NotReached, NotAdded, _TooLarge):
                        of_stratum = _sums_of_stratum if of_sums else partial(_of_stratum, rule=rule)
                        tables.append(of_stratum(fits[name], number, records))
                    tick(1)
                losses = pd.concat(tables, ignore_index=True) if tables else _NOTHING
                keep_audit(space, rule, Confidential(losses))
                share, exceeded = float((losses["loss"] / losses["epsilon_local"]).max()), int(losses["exceeds"].sum())
                rows.append((rule, rule == own, len(tables), len(strata) - len(tables), len(losses), exceeded, share))
        return Confidential(pd.DataFrame(rows, columns=list(SUMMARY)))


def refuse_losses(workspace: str | Path, audited: Confidential[pd.DataFrame]) -> None:
    """Raises `WorkspaceError` if a loss is above the claim or nothing was audited; the error states no figures.

    `audited` is the result of `audit` or of `bound_from_outside`. Losses under other weight rules than the release's are
    ignored.
    """
    rows, where = audited.disclose_to_custodian(), "see confidential/evaluation/audit-*.parquet"
    draws = "exceeds" in rows
    if not (~rows["left_out"] if draws else rows["records"] > 0).any():
        raise WorkspaceError(str(workspace), "nothing was audited: every stratum was left out", where)
    if (rows["exceeds"] if draws else rows["of_release"] & (rows["exceeded"] > 0)).any():
        raise WorkspaceError(
            str(workspace),
            "records lose more than the claimed ε",
            f"{where}; do not publish any further release of this mechanism",
        )


@contextmanager
def finished_run(
    workspace: str | Path, listener: Listener
) -> Iterator[tuple[Workspace, Job, pd.DataFrame, dict[str, JobFit]]]:
    """Opens a finished run: its workspace, its job, its strata, and its fits by name.

    Raises `WorkspaceError` unless there are a release and its confidential folder, whose files are not damaged.
    """
    with Workspace.opened(workspace) as space, private(), single_threaded():
        needed = (space.newest / MANIFEST, space.confidential / "strata.parquet", space.key)
        if not all(space.store.download(path) for path in needed):
            raise WorkspaceError(
                space.place, UNFINISHED, "name the workspace of a run, and run its job to the end", exit_code=2
            )
        names = sorted(space.store.names(space.completions))
        units = [name.removesuffix(".json") for name in names if name.startswith(READ)]
        with stage(listener, "check files", len(units)) as tick:
            for unit in units:
                space.refuse_damaged([unit], MADE_AGAIN)
                tick(1)
        strata = read_table(space.confidential / "strata.parquet").to_pandas()
        fits = {name: open_fit(space, space.read_key(), name) for name in strata["fit"].unique()}
        yield space, next(iter(fits.values())).job, strata, fits


def _sums_of_stratum(fit: JobFit, stratum: int, number: int) -> pd.DataFrame:
    """Losses by the noisy sums of a stratum's file and of neighbours by its most exposed records."""
    file, claimed = stratum_records(fit, stratum), _lost_by_record(fit.job)
    which, learned = exposed(file, number), fit.learned(stratum) if fit.job.has_reference else None
    neighbours = (neighbour(fit.job, file, record) for record in which)
    pairs = compare(fit.job, fit.fitted(stratum), learned, fit.sampler, file, neighbours)
    numbers = {"record": file.record[which], "loss": [pair.loss for pair in pairs], "epsilon_local": claimed}
    losses = pd.DataFrame({**numbers, "stratum": fit.crosstab.stratum_labels[stratum]})
    # Sums are rounded to whole units, of which a record has a million.
    return losses.assign(exceeds=losses["loss"] > claimed * (1.0 + 1e-6))


def _lost_by_record(job: Job) -> float:
    """What one record may lose by the sums: ρ under Gaussian noise, otherwise ε."""
    if job.mechanism.gaussian:
        return float(record_rho(job, job.rho.release))
    return float(record_epsilon(job, job.epsilon_per_set * job.synthetic_sets))


class _TooLarge(Exception):
    """Raised where a stratum has more records × draws than an audit holds in memory."""


def _of_stratum(fit: JobFit, stratum: int, number: int, rule: str) -> pd.DataFrame:
    """Losses of a stratum's records under a weight rule: half of them have the largest bounds, the others are random."""
    if int(fit.layout.crosstab.stratum_count[stratum]) * fit.layout.draws > LARGEST:
        raise _TooLarge
    label, bounds = fit.crosstab.stratum_labels[stratum], fit.space.confidential / "bounds.parquet"
    fit.space.store.download(bounds)
    largest = pd.read_parquet(bounds, columns=["unweighted_record_bound"], filters=[("stratum", "==", label)])
    which = _choose_records(largest.to_numpy()[:, 0], number, fit.key.generator("audit", label))
    records = stratum_records(fit, stratum)
    learned, audit_of = fit.learned(stratum) if fit.job.frozen else None, AUDITS[fit.job.mechanism.name]
    losses: Confidential[pd.DataFrame] = audit_of(
        fit.job, fit.model(stratum), records, learned, rule, which.tolist(), fit.layout.draws, fit.key, label
    )
    return losses.disclose_to_custodian().assign(stratum=label)


def _choose_records(largest: Floats, records: int, rng: np.random.Generator) -> Ints:
    """Positions of the records to leave out: half have the largest bounds, the others are random."""
    order = np.argsort(-largest, kind="stable")
    riskiest, rest = order[: (records + 1) // 2], order[(records + 1) // 2 :]
    return np.concatenate([riskiest, rng.permutation(rest)[: records // 2]])

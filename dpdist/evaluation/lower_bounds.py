"""Computes lower bounds on ε by an attack: releases of a file and of its neighbour are drawn many times and compared.

Each draw is everything that a run takes from the records: the released parameters or noisy statistics of a stratum, in
every set. All other output follows from these. The attacker knows everything except which of the two files was used. On
half of the draws the attacker learns a rule: a score, a threshold and a direction. On the other half the rule's two
frequencies have Clopper–Pearson limits p and q. Differential privacy allows p ≤ e^ε q + δ for every rule, so ε ≥ log((p −
δ)/q) except with probability ALARM. A bound below the claim proves nothing. A bound above the claim proves the claim
wrong. Where noise is added to sums, the same attack is run on the noisy sums alone, whose likelihood ratio is known
(`likelihood_ratios`). Neighbours differ in one record, so the claim is the loss of one record: its part of the budget of
a unit with several records. The noise drawn here is never published. The results are confidential.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, expm1, floor, log, log1p
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import betaincinv

from dpdist.core.confidential import Confidential
from dpdist.core.errors import WorkspaceError
from dpdist.core.keys import Key
from dpdist.core.progress import Listener, stage
from dpdist.core.records import Codes, Floats, Records
from dpdist.engine.in_memory import Unwatched, run_rounds
from dpdist.engine.protocol import Learned
from dpdist.evaluation.audit import keep_audit
from dpdist.evaluation.likelihood_ratios import Compared, compared
from dpdist.evaluation.metering import NotAdded
from dpdist.job import Job, epsilon_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws, Improper, StratumModel, Synthesizer
from dpdist.privacy.guarantees import Asymptotic, Concentrated, NoGuarantee, Strict
from dpdist.privacy.units import record_epsilon, record_rho
from dpdist.privacy.weight_search import NotReached
from dpdist.runtime.fit_address import Fit, open_fit
from dpdist.sampling.protocol import Sampler
from dpdist.storage.tables import read_rows, read_table
from dpdist.storage.workspace import Workspace

ALARM = 0.05
"""Probability that one bound exceeds the true loss."""
CUTS = 200
DIFFERING = 4.0
"""Standard errors by which a feature's means must differ between the files to be used."""
MOST_STRATA = 3
COLUMNS = (
    *("stratum", "record", "runs", "claimed", "delta", "most_that_can_be_shown"),
    *("at_least", "from_sets", "from_sums", "exceeds", "left_out"),
)
MORE = 10
"""Ratio of the number of draws of noise on sums to that of whole releases. Noise on sums takes far less time."""
TRIED = 3
"""Number of records that are tried by each of three orders of exposure."""
MOST_CLAIMED = 600.0
"""Largest ε for which e^ε is a number in floating point. No feasible number of draws tests a larger claim."""


def lower_bound(near: Floats, far: Floats, delta: float = 0.0) -> float:
    """Returns the least ε with which two files can have these draws, (run, feature) each; 0 for equal draws."""
    width = max(near.shape[1], far.shape[1])
    if not width:
        return 0.0
    near, far = (_filled(side.tolist(), width) for side in (near, far))
    half = len(near) // 2
    one, other = _scores(near, far, half)
    return bound_of_scores(one, other, half, delta)


def bound_of_scores(near: Floats, far: Floats, half: int, delta: float = 0.0, alarm: float = ALARM) -> float:
    """Returns the bound from a score of every draw, (run,), where draws from `half` on had no part in the score.

    The first `half` of the draws chooses threshold and direction. The other draws are counted.
    """
    scores = [near, far]
    first, second = ([side[:half] for side in scores], [side[half:] for side in scores])
    cut, sign, order = _rule(first, delta)
    one, other = (second[k] for k in order)
    high, low = int((sign * one >= cut).sum()), int((sign * other >= cut).sum())
    p = float(betaincinv(high, len(one) - high + 1, alarm / 2)) if high else 0.0
    q = float(betaincinv(low + 1, len(other) - low, 1 - alarm / 2)) if low < len(other) else 1.0
    return max(0.0, float(np.log(max(p - delta, 1e-300) / q)))


def most_shown(runs: int, delta: float = 0.0) -> float:
    """Returns the largest bound that `runs` draws of each file can give, which is the bound of a rule without errors."""
    wrong = log(ALARM / 2) / (runs - runs // 2)
    return max(0.0, log(max(exp(wrong) - delta, 1e-300) / -expm1(wrong)))


def draws_to_exceed(claimed: float, delta: float = 0.0) -> int:
    """Returns the fewest draws of each file that can show more than the claim: p > e^ε q + δ at q = 1 − p."""
    half = log(ALARM / 2) / log1p((delta - 1.0) / (1.0 + exp(min(claimed, MOST_CLAIMED))))
    return 2 * floor(half) + 1


def claim_of_record(job: Job, guarantee: Strict | Concentrated | Asymptotic) -> float:
    """Returns the ε that one record may lose, where the guarantee is that of a unit."""
    if isinstance(guarantee, Concentrated) and job.most_records > 1:
        return float(epsilon_of(record_rho(job, guarantee.rho), guarantee.delta))
    return float(record_epsilon(job, guarantee.epsilon))


def _scores(near: Floats, far: Floats, half: int) -> list[Floats]:
    """Scores every draw by medians and mean deviations of the first half: Σ(|x − far| − |x − near|)/scale."""
    a, b = near[:half], far[:half]
    spread = (np.abs(a - np.median(a, 0)).mean(0) + np.abs(b - np.median(b, 0)).mean(0)) / 2.0
    apart = np.abs(a.mean(0) - b.mean(0))
    used = apart > DIFFERING * np.maximum(spread, 1e-12) * np.sqrt(2.0 / half)
    if not used.any():
        used = apart == apart.max()
    scale = np.where(spread > 0, spread, 1.0)[used]
    centres = np.median(a, 0)[used], np.median(b, 0)[used]
    return [((np.abs(x[:, used] - centres[1]) - np.abs(x[:, used] - centres[0])) / scale).sum(1) for x in (near, far)]


def _rule(scores: list[Floats], delta: float) -> tuple[float, float, tuple[int, int]]:
    """Returns the best rule on these draws: threshold, sign, and which file's frequency is the larger one."""
    best = (0.0, 1.0, (0, 1))
    most = -np.inf
    for sign, order in ((1.0, (0, 1)), (-1.0, (1, 0))):
        one, other = (sign * scores[k] for k in order)
        for cut in np.unique(np.quantile(np.concatenate([one, other]), _levels(len(one)))):
            p, q = ((np.sum(x >= cut) + 0.5) / (len(x) + 1) for x in (one, other))
            sure = p - 2 * np.sqrt(p * (1 - p) / len(one)) - delta
            found = np.log(max(sure, 1e-9) / (q + 2 * np.sqrt(q * (1 - q) / len(other))))
            if found > most:
                most, best = found, (float(cut), sign, order)
    return best


def _levels(runs: int) -> Floats:
    """Returns levels of the thresholds to try: even ones, and more toward both tails, where the largest ratios are."""
    tail = np.geomspace(min(0.005, 10.0 / runs), 0.005, CUTS // 4)
    return np.unique(np.concatenate([tail, np.linspace(0.005, 0.995, CUTS), 1.0 - tail]))


def draws(
    job: Job, model: StratumModel, learned: Learned, sampler: Sampler, records: Records, runs: int, key: Key
) -> Floats:
    """Returns the released objects of `runs` runs of a stratum as numbers (run, feature), under fresh noise."""
    return _of_parameters(model, list(releases(job, model, learned, sampler, records, runs, key)))


def releases(
    job: Job, model: StratumModel, learned: Learned, sampler: Sampler, records: Records, runs: int, key: Key
) -> Iterator[Sequence[Draws]]:
    """Yields the parameters of every set, run after run."""
    mechanism = mechanism_of(job)
    for run in range(runs):
        rounds = mechanism.protect(job, model, Unwatched(), learned)
        yield run_rounds(rounds, model, sampler, key.child(f"run {run}"), "audit", [records]).parameters


def _of_parameters(model: StratumModel, drawn: Sequence[Sequence[Draws]]) -> Floats:
    return _filled([list(_numbers([model.describe(theta) for theta in thetas])) for thetas in drawn])


def _filled(rows: Sequence[Sequence[float]], least: int = 0) -> Floats:
    """Pads rows to one length with 0, because the chosen tables, and so the number of figures, differ between runs."""
    made = np.zeros((len(rows), max(least, *map(len, rows))))
    for row, values in zip(made, rows, strict=True):
        row[: len(values)] = values
    return made


def of_sets(model: StratumModel, drawn: Sequence[Sequence[Draws]], frame_row: Codes, key: Key) -> Floats:
    """Returns features of these runs' synthetic records, (run, feature): Σw and Σwy by frame row, and the range of y.

    Records are in the frame rows given. The result is empty, (run, 0), where the model makes no records.
    """
    if not isinstance(model, Synthesizer):
        return np.empty((len(drawn), 0))
    row, rows = frame_row - frame_row.min(), list[Floats]()
    for run, thetas in enumerate(drawn):
        each = list[Floats]()
        for number, theta in enumerate(thetas):
            outcome, weight = model.simulate(theta, frame_row, key.child(f"run {run}").generator("sets", set=number))
            first = outcome if outcome.ndim == 1 else outcome[:, 0]
            sums = [np.bincount(row, weights=values) for values in (weight, weight * first)]
            each.append(np.concatenate([*sums, [first.min(), first.max()]]))
        rows.append(np.concatenate(each))
    return np.array(rows)


def _numbers(described: Any) -> Iterator[float]:
    """Yields every number in a described θ, in order. Values of varying length are left out."""
    if isinstance(described, bool | str) or described is None:
        return
    if isinstance(described, int | float):
        yield float(described)
    else:
        inner = described.values() if isinstance(described, dict) else described
        for each in inner:
            yield from _numbers(each)


def neighbour(job: Job, records: Records, which: int) -> Records:
    """Returns the file without a record. Under substitution the record has the farthest weight and outcome instead.

    If there are several outcomes, the first is exchanged.
    """
    if job.budget.adjacency != "substitution":
        return records.take(np.arange(len(records)) != which)
    weight, outcomes = records.weight.copy(), records.outcomes.copy()
    outcome = outcomes[:, 0]
    low, high = job.outcome_column.bounds or (float(outcome.min()), float(outcome.max()))
    outcome[which] = low if outcome[which] > (low + high) / 2 else high
    least = job.columns[job.survey.weight].bounds if job.survey.weight in job.columns else None
    weight[which] = least[0] if least is not None else weight.min()
    return replace(records, outcomes=outcomes, weight=weight)


def black_box(space: Workspace, runs: int, listener: Listener) -> Confidential[pd.DataFrame]:
    """Computes a lower bound for the most exposed record of each of the smallest strata of a finished release.

    Columns: stratum, record, runs (a file), claimed (ε that one record may lose; at δ where that is above 0), delta,
    most_that_can_be_shown (by so many runs), at_least (by all that was released), from_sets (by synthetic records alone),
    from_sums (by noisy sums and choices; NaN without them), exceeds, left_out (the mechanism does not release the stratum
    with or without the record: no bound). Writes confidential/evaluation/audit-lower-bounds.parquet. Raises
    `WorkspaceError` where nothing is promised, of Stan, and where so many runs could not show more than is claimed.
    """
    strata = read_table(space.confidential / "strata.parquet").to_pandas()
    fits = {name: open_fit(space, Key.read(space.key), name) for name in strata["fit"].unique()}
    job = next(iter(fits.values())).job
    guarantee = mechanism_of(job).promise(job).total
    if isinstance(guarantee, NoGuarantee) or job.sampler.name == "stan":
        why = "nothing is promised" if isinstance(guarantee, NoGuarantee) else "every draw would be a fit of Stan's"
        raise WorkspaceError(space.place, why, "audit a release with a guarantee, by another sampler")
    delta = float(getattr(guarantee, "delta", None) or 0)
    claimed, most = claim_of_record(job, guarantee), most_shown(runs, delta)
    if most <= claimed:
        why = f"{runs} draws cannot show more than the claimed ε of {claimed:g}, whatever the mechanism does"
        raise WorkspaceError(space.place, why, f"it takes {draws_to_exceed(claimed, delta)} draws at least; more show more")
    smallest = strata["rows"].to_numpy().argsort(kind="stable")[:MOST_STRATA]
    rows = list[tuple[Any, ...]]()
    with stage(listener, "audit", len(smallest)) as tick:
        for number in smallest.tolist():
            label, fit = strata["stratum"][number], fits[strata["fit"][number]]
            records = _records(fit, number)
            which, sums = _most_exposed(fit, number, records)
            from_sums = float("nan") if sums is None else _of_sums(sums, MORE * runs, delta)
            try:
                at_least, from_sets = (lower_bound(*each, delta) for each in _both(fit, number, records, which, runs))
            except (Improper, NotReached):
                at_least = from_sets = float("nan")
            bounds = (at_least, from_sets, from_sums)
            shown = (*bounds, any(bound > claimed for bound in bounds), bool(np.isnan(at_least)))
            rows.append((label, int(records.record[which]), runs, claimed, delta, most, *shown))
            tick(1)
    found = Confidential(pd.DataFrame(rows, columns=list(COLUMNS)))
    space.store.keep([keep_audit(space.evaluation, "lower-bounds", found)])
    return found


def _most_exposed(fit: Fit, stratum: int, records: Records) -> tuple[int, Compared | None]:
    """Returns the position of the record that moves noisy sums most, and the queries of its two files.

    Without noisy sums, it is the record with the largest product of weight and distance from the median.
    """
    away, tried = np.abs(records.outcomes[:, 0] - np.median(records.outcomes[:, 0])), list[int]()
    for exposed in (records.weight * away, records.weight, away):
        tried += np.argsort(-exposed, kind="stable")[:TRIED].tolist()
    if not fit.job.mechanism.adds_noise:
        return tried[0], None
    learned, tried = fit.learned(stratum) if fit.job.has_reference else None, list(dict.fromkeys(tried))
    others = (neighbour(fit.job, records, which) for which in tried)
    try:
        pairs = compared(fit.job, fit.fitted(stratum), learned, fit.sampler, records, others)
    except (NotAdded, Improper, NotReached):
        return tried[0], None
    return max(zip(tried, pairs, strict=True), key=lambda each: each[1].distance)


def _of_sums(pair: Compared, runs: int, delta: float) -> float:
    half = runs // 2
    return bound_of_scores(*pair.scores(runs, half), half, delta)


def _records(fit: Fit, stratum: int) -> Records:
    blocks = fit.layout.blocks
    numbers = blocks.of_stratum(stratum)
    return read_rows(fit.space.records, blocks.edges[numbers.start], blocks.edges[numbers.stop])


def _both(fit: Fit, stratum: int, records: Records, which: int, runs: int) -> list[tuple[Floats, Floats]]:
    """Draws from the file and from its neighbour with separate random numbers: parameters, and features of the sets."""
    learned, key = fit.learned(stratum) if fit.job.has_reference else None, Key.from_os()
    model, own = fit.fitted(stratum), fit.frame.rows_of(stratum)
    frame_row = np.repeat(np.arange(own.start, own.stop, dtype=np.int32), fit.frame.count[own])
    sides = list[tuple[Floats, Floats]]()
    for side, file in (("near", records), ("far", neighbour(fit.job, records, which))):
        found = list(releases(fit.job, model, learned, fit.sampler, file, runs, key.child(side)))
        sides.append((_of_parameters(model, found), of_sets(model, found, frame_row, key.child(f"{side} sets"))))
    (near, near_sets), (far, far_sets) = sides
    return [(near, far), (near_sets, far_sets)]

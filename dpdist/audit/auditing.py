"""For `cli.trials`: audits a finished release by leaving out records of each stratum and protecting the others again.

Results are confidential.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from dpdist.audit.likelihood_ratios import NotAdded, compared
from dpdist.audit.lower_bounds import black_box, exposed, keep_audit, neighbour, stratum_records
from dpdist.core.confidential import Confidential
from dpdist.core.errors import WorkspaceError
from dpdist.core.files import private
from dpdist.core.progress import Listener, silent, stage
from dpdist.core.public_files import MANIFEST
from dpdist.core.records import Floats, Ints
from dpdist.core.this_process import single_threaded
from dpdist.job import WEIGHT_RULES, Job, MechanismSpec, family_facts, those
from dpdist.mechanisms.registry import AUDITS
from dpdist.models.protocol import Improper
from dpdist.privacy.guarantees import record_epsilon, record_rho
from dpdist.privacy.weights import NotReached
from dpdist.runtime.fit_address import Fit, open_fit
from dpdist.storage.tables import read_rows, read_table
from dpdist.storage.workspace import GATHERED, MADE_AGAIN, NOISY_FRAME, Workspace

LOSSES = {
    "record": "number of the record that was left out, in the file's order",
    "loss": "largest absolute log ratio of posterior densities with and without the record, over draws",
    "loss_at_given_weights": "the loss if other records kept their privacy weights",
    "epsilon_local": "the bound 2Δ that was observed on this file",
    "epsilon_local_range": "the bound from the range of a record's log likelihood",
    "exceeds": "whether the loss is above `epsilon_local`",
    "delta": "the least δ at which the bound holds when this record is left out",
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
    with Workspace.opened(workspace) as space, private():
        return _audited(space, records, all_rules, listener)


def _audits(spec: type[MechanismSpec]) -> bool:
    """True for mechanisms that compute privacy weights on the file itself."""
    return spec.tunes_weights or spec.cuts_weights


def bound_from_outside(workspace: str | Path, runs: int, listener: Listener = silent) -> Confidential[pd.DataFrame]:
    """Computes lower bounds on ε of a finished release's mechanism, from `runs` draws with a record and `runs` without it.

    Columns and errors are those of `lower_bounds.black_box`. None of these draws is published.
    """
    with Workspace.opened(workspace) as space, private(), single_threaded():
        refuse_unfinished(space, listener)
        return black_box(space, runs, listener)


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
            str(workspace), "records lose more than is claimed", f"{where}; publish nothing more of this mechanism"
        )


def refuse_unfinished(space: Workspace, listener: Listener) -> None:
    """Raises `WorkspaceError` unless there are a release and its confidential folder, whose files are not damaged."""
    needed = (space.newest / MANIFEST, space.confidential / "strata.parquet", space.key)
    if not all(space.store.take(path) for path in needed):
        raise WorkspaceError(space.place, UNFINISHED, "run its job to the end first")
    units = [name.removesuffix(".json") for name in sorted(space.store.names(space.completions)) if name.startswith(READ)]
    with stage(listener, "check files", len(units)) as tick:
        for unit in units:
            space.refuse_damaged([unit], MADE_AGAIN)
            tick(1)


def _audited(space: Workspace, records: int, all_rules: bool, listener: Listener) -> Confidential[pd.DataFrame]:
    workspace, bounds = space.place, space.confidential / "bounds.parquet"
    refuse_unfinished(space, listener)
    strata = read_table(space.confidential / "strata.parquet").to_pandas()
    fits = {name: open_fit(space, space.read_key(), name) for name in strata["fit"].unique()}
    job = next(iter(fits.values())).job
    if job.mechanism.adds_noise:
        return _sums_audited(space, fits, strata, records, listener)
    if not family_facts(job).logs or not _audits(type(job.mechanism)):
        here = f"a release of {job.mechanism}" + (f" with the family {job.family}" if job.model is not None else "")
        audited = f"{' and '.join(those(_audits))} with the family lognormal, and mechanisms that add noise to sums"
        raise WorkspaceError(str(workspace), here, f"audits know {audited}")
    space.store.take(bounds)
    rules = [job.mechanism.weights.rule]
    if all_rules:
        rules = [rule for rule in dict.fromkeys([*WEIGHT_RULES, *rules]) if rule != "none"]
    rows = list[tuple[object, ...]]()
    with single_threaded(), stage(listener, "audit", len(rules) * len(strata)) as tick:
        for rule in rules:
            tables, left_out = list[pd.DataFrame](), 0
            for number, (label, name) in enumerate(zip(strata["stratum"], strata["fit"], strict=True)):
                largest = pd.read_parquet(bounds, columns=["unweighted_record_bound"], filters=[("stratum", "==", label)])
                which = _chosen(largest.to_numpy()[:, 0], records, fits[name].key.generator("audit", label))
                try:
                    tables.append(_of_stratum(fits[name], number, rule, which).assign(stratum=label))
                except (Improper, NotReached, _TooLarge):
                    left_out += 1
                tick(1)
            losses = pd.concat(tables, ignore_index=True) if tables else _NOTHING
            keep_audit(space, rule, Confidential(losses))
            share = float((losses["loss"] / losses["epsilon_local"]).max())
            rows.append(
                (
                    rule,
                    rule == job.mechanism.weights.rule,
                    len(tables),
                    left_out,
                    len(losses),
                    int(losses["exceeds"].sum()),
                    share,
                )
            )
    return Confidential(pd.DataFrame(rows, columns=list(SUMMARY)))


def _sums_audited(
    space: Workspace, fits: dict[str, Fit], strata: pd.DataFrame, records: int, listener: Listener
) -> Confidential[pd.DataFrame]:
    """Compares the noisy sums of every stratum with those of neighbours by its most exposed records."""
    tables, job = list[pd.DataFrame](), next(iter(fits.values())).job
    claimed = _lost_by_record(job)
    with single_threaded(), stage(listener, "audit", len(strata)) as tick:
        for number, (label, name) in enumerate(zip(strata["stratum"], strata["fit"], strict=True)):
            fit, file = fits[name], stratum_records(fits[name], number)
            which = exposed(file, records)
            learned = fit.learned(number) if job.has_reference else None
            others = (neighbour(job, file, record) for record in which)
            try:
                losses = [pair.loss for pair in compared(job, fit.fitted(number), learned, fit.sampler, file, others)]
            except (NotAdded, Improper, NotReached):
                continue
            finally:
                tick(1)
            numbers = {"record": file.record[which], "loss": losses, "epsilon_local": claimed, "stratum": label}
            tables.append(pd.DataFrame(numbers))
    losses_table = pd.concat(tables, ignore_index=True) if tables else _NOTHING
    # Sums are rounded to whole units, of which a record has a million.
    losses_table = losses_table.assign(exceeds=losses_table["loss"] > claimed * (1.0 + 1e-6))
    keep_audit(space, SUMS, Confidential(losses_table))
    share, exceeded = float(losses_table["loss"].max() / claimed), int(losses_table["exceeds"].sum())
    row = (SUMS, True, len(tables), len(strata) - len(tables), len(losses_table), exceeded, share)
    return Confidential(pd.DataFrame([row], columns=list(SUMMARY)))


def _lost_by_record(job: Job) -> float:
    """What one record may lose by the sums: ρ under Gaussian noise, otherwise ε."""
    if job.mechanism.gaussian:
        return float(record_rho(job, job.rho.release))
    return float(record_epsilon(job, job.epsilon_per_set * job.synthetic_sets))


class _TooLarge(Exception):
    """Raised where a stratum has more records × draws than an audit holds in memory."""


def _of_stratum(fit: Fit, stratum: int, rule: str, which: Ints) -> pd.DataFrame:
    blocks, model = fit.layout.blocks, fit.model(stratum)
    numbers = blocks.of_stratum(stratum)
    first, last = blocks.edges[numbers.start], blocks.edges[numbers.stop]
    if (last - first) * fit.layout.draws > LARGEST:
        raise _TooLarge
    records, label = read_rows(fit.space.records, first, last), fit.crosstab.stratum_labels[stratum]
    learned, audit_of = fit.learned(stratum) if fit.job.frozen else None, AUDITS[fit.job.mechanism.name]
    losses: Confidential[pd.DataFrame] = audit_of(
        fit.job, model, records, learned, rule, which.tolist(), fit.layout.draws, fit.key, label
    )
    return losses.disclose_to_custodian()


def _chosen(largest: Floats, records: int, rng: np.random.Generator) -> Ints:
    """Positions of the records to leave out: half have the largest bounds, the others are random."""
    order = np.argsort(-largest, kind="stable")
    riskiest, others = order[: (records + 1) // 2], order[(records + 1) // 2 :]
    return np.concatenate([riskiest, rng.permutation(others)[: records // 2]])

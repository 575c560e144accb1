"""The cost of a job, its ledger, and what the limits leave."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import rfc8785

from dpdist.core.errors import BudgetRefused, LedgerError
from dpdist.job import Job, Limits, budget_text
from dpdist.ledger.accounts import (
    SYMBOL,
    Charge,
    Receipt,
    charges,
    cost,
    refuse_correction,
    refuse_excess,
    remaining_budget,
    total,
)
from dpdist.privacy.guarantees import Guarantee

if TYPE_CHECKING:
    from dpdist.ledger.book import Ledger

VARIABLE = "DPDIST_LEDGER"
BESIDE = "ledger.sqlite"
"""File name of the ledger of jobs that name none. It lies beside their workspaces."""
NOT_COUNTED = f"no ledger: nothing counts what releases of this dataset cost together (job key ledger, or {VARIABLE})"


def place_of(job: Job) -> str | None:
    """The ledger that the job or the environment names; "" for the one beside the workspace, None for no ledger."""
    if job.ledger is not None and job.ledger.url:
        return job.ledger.url
    url = _in_file(os.environ.get(VARIABLE, ""))
    return url or (None if job.ledger is None else "")


REMEDY = f"name a file with a ledger's URL after the @ in {VARIABLE}"


def _in_file(named: str) -> str:
    """The text itself, or the content of the file that it names after an @.

    Such a file may be a mounted secret, because the URL may contain a password.
    """
    if not named.startswith("@"):
        return named
    try:
        url = Path(named[1:]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        fault = f"it cannot be read ({type(error).__name__})"
        raise LedgerError(named, fault, REMEDY, 2) from None
    if not url:
        raise LedgerError(named, "it is empty", REMEDY, 2)
    return url


def charge_of(job: Job, guarantee: Guarantee, run: str) -> Charge:
    """The cost of a run of the job. Raises `BudgetRefused` if its mechanism promises nothing."""
    cls, budget, delta = cost(guarantee, job.dataset)
    decisive = hashlib.sha256(rfc8785.dumps({name: str(value) for name, value in job.identity.items()})).hexdigest()
    exchanged = f", {job.budget.exchange}" if job.budget.adjacency == "substitution" else ""
    unit = f", {job.privacy_unit.column} of at most {job.privacy_unit.most}" if job.privacy_unit is not None else ""
    version, corrects = (1, "") if job.correction is None else (job.correction.version, job.correction.of)
    adjacency = f"{job.budget.adjacency}{exchanged}{unit}"
    return Charge(job.dataset, job.period, run, cls, adjacency, budget, delta, decisive, version, corrects)


@dataclass(frozen=True)
class Account:
    """A job's ledger, and the limits that the job states."""

    ledger: Ledger
    stated: Limits
    job: Job
    guarantee: Guarantee
    is_default: bool
    """True for the ledger beside the workspaces, which the first run creates. A named ledger must exist."""

    @classmethod
    def of(cls, job: Job, guarantee: Guarantee, workspace: str | Path) -> Account | None:
        """The account of a run in this workspace; None if there is no ledger."""
        if (place := place_of(job)) is None:
            return None
        from dpdist.ledger.book import Ledger  # the database is imported only with a ledger

        return cls(Ledger(place or default_ledger(workspace)), job.ledger or Limits(), job, guarantee, not place)

    def refuse(self) -> str:
        """Raises `BudgetRefused` if a new run would be refused.

        Otherwise returns a sentence on other runs of the period, or "".
        """
        charge = self._charge("")
        entries = [] if self.is_default and not self.ledger.there else self.ledger.entries()
        refuse_correction(entries, charge)
        refuse_excess(entries, self.stated, charge)
        return others_text(charges(entries, charge.dataset), charge)

    def reserve(self, run: str) -> Receipt:
        """Charges the run, once. Raises `BudgetRefused`."""
        charge = self._charge(run)
        if self.is_default:
            self.ledger.begin()
        return self.ledger.reserve(charge, self.stated)

    def settle(self, run: str, noise: str) -> None:
        """Records that the charged run has made its release."""
        self.ledger.settle(self._charge(run), noise)

    def _charge(self, run: str) -> Charge:
        return charge_of(self.job, self.guarantee, run)


def default_ledger(workspace: str | Path) -> str:
    """The path of the ledger beside a workspace folder. Raises `LedgerError` for a workspace in an object store."""
    if "://" in str(workspace):
        remedy = f"state ledger: {{url: postgresql://…}} or {VARIABLE}"
        raise LedgerError(BESIDE, "no ledger stands beside an object store's workspaces", remedy, 2)
    return str(Path(workspace).absolute().parent / BESIDE)


def others_text(before: list[Charge], charge: Charge) -> str:
    """A note that the period has charged runs already, and what this one adds; "" if it has none."""
    same_period = [charged for charged in before if charged.period == charge.period]
    if not same_period:
        return ""
    same = "the same job" if any(charged.job == charge.job for charged in same_period) else "another job"
    runs = "a run" if len(same_period) == 1 else f"{len(same_period)} runs"
    amount, same_account = (
        budget_text(charge.budget),
        [charged for charged in same_period if charged.account == charge.account],
    )
    total_then = budget_text(total(same_account) + charge.budget)
    return (
        f"the ledger has {runs} of {charge.dataset} {charge.period} already ({same}, another workspace): this one is "
        f"charged too, {SYMBOL[charge.cls]} = {amount}, which makes {total_then} for the period"
    )


def terms(job: Job, guarantee: Guarantee) -> Mapping[str, str]:
    """Lines of a plan on the budget: the charge, what is left, and whether the run would be refused."""
    place = place_of(job)
    if place is None:
        return {}
    if not place:
        return {"ledger": f"{BESIDE} beside the workspace"}
    from dpdist.ledger.book import Ledger  # the database is imported only with a ledger

    ledger = Ledger(place)
    entries, job_limits = ledger.entries(), job.ledger or Limits()
    try:
        charge = charge_of(job, guarantee, "")
        earlier = [charged for charged in charges(entries, job.dataset) if charged.account == charge.account]
        rest, symbol = remaining_budget(entries, job_limits, charge), SYMBOL[charge.cls]
        remains = "no total is stated" if rest is None else f"{budget_text(rest)} left"
        charges_text = (
            f"{charge.cls} {symbol} = {budget_text(total(earlier))} charged to {job.dataset} under {charge.adjacency}"
        )
        facts = {"ledger": ledger.name, "budget": f"{charges_text}; {remains}; this run takes {budget_text(charge.budget)}"}
        refuse_correction(entries, charge)
        refuse_excess(entries, job_limits, charge)
    except BudgetRefused as refusal:
        return {"ledger": ledger.name, "budget": f"a run into a new workspace would be refused: {refusal.fault}"}
    return facts

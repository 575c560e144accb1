"""Shows a ledger to people: a page for each dataset, class and adjacency, with a line for each period; and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpdist.job import Limits, budget_text, epsilon_of
from dpdist.ledger.accounts import SYMBOL, Charge, by_period, charges, largest_window, policies, total
from dpdist.ledger.entries import Entry

EXPORTED = (
    "number",
    "time",
    "kind",
    "dataset",
    "period",
    "run",
    "class",
    "adjacency",
    "budget",
    "delta",
    "version",
    "corrects",
    "made_by",
    "release",
)


SHOWN_OF_AN_ID = 12
"""Number of characters of a release's id that a page shows. The export has the whole id."""


@dataclass(frozen=True)
class Page:
    """The charges of one account, and the ledger's limits for it. A job may state further limits."""

    dataset: str
    charged: tuple[Charge, ...]
    settled: frozenset[str]
    limits: Limits

    @property
    def title(self) -> str:
        first = self.charged[0]
        return f"{self.dataset}: {first.cls}, {first.adjacency}"

    @property
    def lines(self) -> list[dict[str, str]]:
        """A row for each period: number of runs, number of releases, cost, and what is left."""
        first, rows, spent = self.charged[0], [], Fraction(0)
        for period, own in by_period(self.charged).items():
            runs = [charge for charge in self.charged if charge.period == period]
            spent += own
            done = sum(charge.run in self.settled for charge in runs)
            row = {"period": period, "runs": str(len(runs)), "released": str(done), SYMBOL[first.cls]: budget_text(own)}
            if self.corrected:
                row["versions"] = ", ".join(map(str, sorted({charge.version for charge in runs})))
            rows.append({**row, "summed": budget_text(spent)})
        return rows

    @property
    def corrected(self) -> bool:
        """True if a release of any period was corrected."""
        return any(charge.version > 1 for charge in self.charged)

    @property
    def facts(self) -> dict[str, str]:
        """Sums of the charges beside their limits."""
        spent, sums = total(self.charged), by_period(self.charged)
        said = {"charged": budget_text(spent) + _of(spent, self.limits.total)}
        deltas = [charge.delta for charge in self.charged]
        known = sum((each for each in deltas if each is not None), Fraction(0))
        if self.charged[0].cls == "strict":
            said["δ"] = (
                "not known of some releases" if None in deltas else budget_text(known) + _of(known, self.limits.delta)
            )
        elif self.charged[0].cls == "zCDP":
            at = max(each for each in deltas if each is not None)
            limit = "" if self.limits.delta is None else f" (stated at {budget_text(self.limits.delta)} or less)"
            said["amounts to"] = f"ε = {budget_text(epsilon_of(spent, at))} at δ = {budget_text(at)}{limit}"
        if (most := self.limits.per_period) is not None:
            said["a period"] = f"at most {budget_text(most)}"
        if (window := self.limits.window) is not None:
            held = max(largest_window(sums, period, window.periods) for period in sums)
            said[f"{window.periods} periods"] = budget_text(held) + _of(held, window.budget)
        for each in self.corrections:
            of = f"{each['of'][:SHOWN_OF_AN_ID]}…" if each["of"] else "not stated"
            said[f"{each['period']} version {each['version']}"] = (
                f"corrects {of}, {SYMBOL[each['class']]} = {each['budget']}"
            )
        return said

    @property
    def corrections(self) -> list[dict[str, Any]]:
        """All corrections in the order of their charges: version, and id of the release that was corrected."""
        return [
            {
                "period": charge.period,
                "version": charge.version,
                "of": charge.corrects,
                "class": charge.cls,
                "budget": budget_text(charge.budget),
            }
            for charge in self.charged
            if charge.version > 1
        ]

    @property
    def said(self) -> dict[str, Any]:
        """The page as JSON values."""
        first = self.charged[0]
        own = {"dataset": self.dataset, "class": first.cls, "adjacency": first.adjacency}
        limits = self.limits.model_dump(mode="json")
        said = {**own, "charged": budget_text(total(self.charged)), "limits": limits, "periods": self.lines}
        return said | ({"corrections": self.corrections} if self.corrected else {})


def _of(spent: Fraction, limit: Fraction | None) -> str:
    return "" if limit is None else f" of {budget_text(limit)}, {budget_text(limit - spent)} left"


def pages(entries: Sequence[Entry]) -> list[Page]:
    """A page for every account with charges, in the order of first charges."""
    settled = frozenset(str(entry.said["run"]) for entry in entries if entry.kind == "settle")
    datasets = dict.fromkeys(str(entry.said["dataset"]) for entry in entries if entry.kind == "reserve")
    found = []
    for dataset in datasets:
        every, kept = charges(entries, dataset), policies(entries, dataset)
        for account in dict.fromkeys(charge.account for charge in every):
            own = tuple(charge for charge in every if charge.account == account)
            found.append(Page(dataset, own, settled, kept.get(account[0], Limits())))
    return found


def exported(entries: Sequence[Entry]) -> str:
    """The entries as CSV."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*EXPORTED, "sha256"])
    lines.writerows([*(entry.said.get(name) for name in EXPORTED), entry.sha256] for entry in entries)
    return text.getvalue()

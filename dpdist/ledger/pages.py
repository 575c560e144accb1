"""A ledger as text, with a page for each dataset, class of guarantee and adjacency; also as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpdist.job import Limits, budget_text, epsilon_of
from dpdist.ledger.accounts import SYMBOL, Charge, Entry, by_period, charges, largest_window, policies, total

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
        first, rows, cumulative = self.charged[0], [], Fraction(0)
        for period, amount in by_period(self.charged).items():
            runs = [charge for charge in self.charged if charge.period == period]
            cumulative += amount
            settled_runs = sum(charge.run in self.settled for charge in runs)
            row = {
                "period": period,
                "runs": str(len(runs)),
                "released": str(settled_runs),
                SYMBOL[first.cls]: budget_text(amount),
            }
            if self.corrected:
                row["versions"] = ", ".join(map(str, sorted({charge.version for charge in runs})))
            rows.append({**row, "summed": budget_text(cumulative)})
        return rows

    @property
    def corrected(self) -> bool:
        """True if a release of any period was corrected."""
        return any(charge.version > 1 for charge in self.charged)

    @property
    def facts(self) -> dict[str, str]:
        """Sums of the charges beside their limits."""
        cost, sums = total(self.charged), by_period(self.charged)
        facts = {"charged": budget_text(cost) + _of(cost, self.limits.total)}
        deltas = [charge.delta for charge in self.charged]
        summed = sum((delta for delta in deltas if delta is not None), Fraction(0))
        if self.charged[0].cls == "strict":
            facts["δ"] = (
                "not known for some releases" if None in deltas else budget_text(summed) + _of(summed, self.limits.delta)
            )
        elif self.charged[0].cls == "zCDP":
            largest = max(delta for delta in deltas if delta is not None)
            limit = "" if self.limits.delta is None else f" (stated at {budget_text(self.limits.delta)} or less)"
            facts["amounts to"] = f"ε = {budget_text(epsilon_of(cost, largest))} at δ = {budget_text(largest)}{limit}"
        if (most := self.limits.per_period) is not None:
            facts["a period"] = f"at most {budget_text(most)}"
        if (window := self.limits.window) is not None:
            window_cost = max(largest_window(sums, period, window.periods) for period in sums)
            facts[f"{window.periods} periods"] = budget_text(window_cost) + _of(window_cost, window.budget)
        for correction in self.corrections:
            of = f"{correction['of'][:SHOWN_OF_AN_ID]}…" if correction["of"] else "not stated"
            facts[f"{correction['period']} version {correction['version']}"] = (
                f"corrects {of}, {SYMBOL[correction['class']]} = {correction['budget']}"
            )
        return facts

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
    def as_json(self) -> dict[str, Any]:
        """The page as JSON values."""
        first = self.charged[0]
        account = {"dataset": self.dataset, "class": first.cls, "adjacency": first.adjacency}
        limits = self.limits.model_dump(mode="json")
        fields = {**account, "charged": budget_text(total(self.charged)), "limits": limits, "periods": self.lines}
        return fields | ({"corrections": self.corrections} if self.corrected else {})


def _of(cost: Fraction, limit: Fraction | None) -> str:
    return "" if limit is None else f" of {budget_text(limit)}, {budget_text(limit - cost)} left"


def pages(entries: Sequence[Entry]) -> list[Page]:
    """A page for every account with charges, in the order of first charges."""
    settled = frozenset(str(entry.content["run"]) for entry in entries if entry.kind == "settle")
    datasets = dict.fromkeys(str(entry.content["dataset"]) for entry in entries if entry.kind == "reserve")
    found_pages = []
    for dataset in datasets:
        all_charges, limits = charges(entries, dataset), policies(entries, dataset)
        for account in dict.fromkeys(charge.account for charge in all_charges):
            charged = tuple(charge for charge in all_charges if charge.account == account)
            found_pages.append(Page(dataset, charged, settled, limits.get(account[0], Limits())))
    return found_pages


def to_csv(entries: Sequence[Entry]) -> str:
    """The entries as CSV."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*EXPORTED, "sha256"])
    lines.writerows([*(entry.content.get(name) for name in EXPORTED), entry.sha256] for entry in entries)
    return text.getvalue()

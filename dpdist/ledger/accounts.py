"""Entries of a ledger, chained by checksums, and exact sums of a dataset's costs by account, compared with limits.

Costs of different classes, or under different adjacencies, are never added: each such pair is an account.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, get_args

import rfc8785

from dpdist.core.errors import BudgetRefused
from dpdist.job import Limits, budget_text
from dpdist.job.budget import BudgetClass
from dpdist.privacy.guarantees import Asymptotic, Concentrated, Guarantee, NoGuarantee, Strict

# (RFC 8785.) All values are texts, whole numbers or null. Budgets are exact texts, so that no reader rounds them.
BEFORE_THE_FIRST = "0" * 64
"""The SHA-256 that the first entry holds in place of a previous entry's."""
COLUMNS = ("kind", "dataset", "period", "run")
"""Parts of an entry that are also stored in columns of their own, for searches."""


@dataclass(frozen=True)
class Entry:
    """One entry: its content, `text` its canonical JSON, and `sha256` that text's checksum."""

    content: Mapping[str, Any]
    text: str
    sha256: str

    @property
    def number(self) -> int:
        return int(self.content["number"])

    @property
    def kind(self) -> str:
        return str(self.content["kind"])

    @property
    def columns(self) -> dict[str, str | None]:
        return {name: self.content.get(name) for name in COLUMNS}


@dataclass(frozen=True)
class LedgerRow:
    """An entry as the database has it, before it is checked."""

    number: int
    text: str
    sha256: str
    columns: Mapping[str, str | None]


def following(last: Entry | None, line: Mapping[str, Any]) -> Entry:
    """The entry that follows `last`, with the given content."""
    number, previous = (0, BEFORE_THE_FIRST) if last is None else (last.number + 1, last.sha256)
    entry = {**line, "number": number, "previous": previous}
    text = rfc8785.dumps(entry)
    return Entry(entry, text.decode(), hashlib.sha256(text).hexdigest())


def damage(rows: Iterable[LedgerRow]) -> Iterator[str]:
    """Sentences on all wrong rows of a chain: changed, missing, moved, or not canonical."""
    previous, number = BEFORE_THE_FIRST, 0
    for row in rows:
        if row.number != number:
            yield f"entry {number}: missing"
        if wrong := _wrong(row, previous if row.number == number else None):
            yield f"entry {row.number}: {wrong}"
        previous, number = row.sha256, row.number + 1
    if number == 0:
        yield "entry 0: missing"


def _wrong(row: LedgerRow, previous: str | None) -> str | None:
    """What is wrong with a row, if anything. `previous` is None if the row before it is missing."""
    try:
        content = json.loads(row.text)
        canonical = isinstance(content, dict) and rfc8785.dumps(content).decode() == row.text
    except (ValueError, rfc8785.CanonicalizationError):
        canonical = False
    if not canonical:
        return "its text is not canonical JSON"
    if hashlib.sha256(row.text.encode()).hexdigest() != row.sha256:
        return "its checksum does not match its text"
    if previous is not None and content.get("previous") != previous:
        return "it does not follow from the entry before it"
    if content.get("number") != row.number or any(content.get(name) != row.columns[name] for name in COLUMNS):
        return "its columns do not match its text"
    return None


def stated_format(first: LedgerRow) -> Any:
    """The format that a ledger's first entry states; None if its text is damaged: `damage` has the sentence."""
    try:
        return json.loads(first.text).get("format")
    except (ValueError, AttributeError):
        return None


def trusted(row: LedgerRow) -> Entry:
    """The entry in a row of an undamaged chain."""
    return Entry(json.loads(row.text), row.text, row.sha256)


@dataclass(frozen=True)
class Receipt:
    """A run's proof of its charge: the ledger, and the number and checksum of the entry."""

    ledger: str
    """Identity of the ledger since its creation."""
    number: int
    sha256: str

    @property
    def line(self) -> dict[str, Any]:
        return {"ledger": self.ledger, "number": self.number, "sha256": self.sha256}


Class = BudgetClass
CLASSES: tuple[Class, ...] = get_args(Class)
SYMBOL: dict[str, str] = {"strict": "ε", "zCDP": "ρ", "asymptotic": "ε"}
_DATED = re.compile(r"\d{4}(?!\d)")
"""Pattern of periods that sort by time as texts, if all have one form."""


@dataclass(frozen=True)
class Charge:
    """The cost of a run. `budget` is ε, or ρ under zCDP. `delta` is None where δ is unknown."""

    dataset: str
    period: str
    run: str
    cls: Class
    adjacency: str
    budget: Fraction
    delta: Fraction | None
    job: str = ""
    """SHA-256 of all that determines the job's result."""
    version: int = 1
    """Number of this release among those of its period: 1, or more for a correction."""
    corrects: str = ""
    """Id of the release that this correction replaces; empty for a first release."""

    @property
    def account(self) -> tuple[str, str]:
        return self.cls, self.adjacency

    @property
    def content(self) -> dict[str, Any]:
        """The charge in the form of a ledger entry's content."""
        return {
            **{name: getattr(self, name) for name in ("dataset", "period", "run", "adjacency", "job")},
            "class": self.cls,
            "budget": budget_text(self.budget),
            "delta": None if self.delta is None else budget_text(self.delta),
            **({"version": self.version} if self.version > 1 else {}),
            **({"corrects": self.corrects} if self.corrects else {}),
        }

    @classmethod
    def of(cls, entry: Entry) -> Charge:
        content = entry.content
        texts = {name: str(content[name]) for name in ("dataset", "period", "run", "adjacency", "job")}
        delta = None if content["delta"] is None else Fraction(content["delta"])
        version, corrects = int(content.get("version", 1)), str(content.get("corrects", ""))
        budget = Fraction(content["budget"])
        return cls(**texts, cls=content["class"], budget=budget, delta=delta, version=version, corrects=corrects)


def cost(guarantee: Guarantee, dataset: str) -> tuple[Class, Fraction, Fraction | None]:
    """Class, ε or ρ, and δ of a guarantee. Raises `BudgetRefused` without a guarantee, because no sum covers it."""
    match guarantee:
        case Concentrated():
            return "zCDP", guarantee.rho, guarantee.delta
        case Strict():
            return "strict", guarantee.epsilon, guarantee.delta
        case Asymptotic():
            return "asymptotic", guarantee.epsilon, None
        case NoGuarantee():
            fault = "the job's mechanism gives no guarantee, so no budget covers it"
            remedy = "use a mechanism with a guarantee, or run the job without a ledger and do not publish the release"
            raise BudgetRefused(dataset, fault, "a release with a guarantee", remedy)


def charges(entries: Iterable[Entry], dataset: str) -> list[Charge]:
    """All charges of a dataset. A reserved charge counts even if its run has not ended."""
    return [Charge.of(entry) for entry in entries if entry.kind == "reserve" and entry.content["dataset"] == dataset]


def releases(entries: Iterable[Entry], dataset: str, period: str) -> list[str]:
    """Ids of the releases of a period's charged runs, in the order in which they were recorded."""
    contents = [entry.content for entry in entries if entry.kind == "release" and entry.content["dataset"] == dataset]
    return list(dict.fromkeys(str(content["release"]) for content in contents if content["period"] == period))


def policies(entries: Iterable[Entry], dataset: str) -> dict[str, Limits]:
    """The limits that a ledger has for a dataset, by class. The latest stated limits hold."""
    contents = [entry.content for entry in entries if entry.kind == "policy" and entry.content["dataset"] == dataset]
    return {content["class"]: Limits.model_validate(content["limits"]) for content in contents}


def total(before: Iterable[Charge]) -> Fraction:
    """The sum of costs by sequential composition, because one person may be in every file."""
    return sum((charge.budget for charge in before), Fraction(0))


def by_period(before: Iterable[Charge]) -> dict[str, Fraction]:
    """The cost of every period; periods are sorted as texts."""
    sums: dict[str, Fraction] = {}
    for charge in before:
        sums[charge.period] = sums.get(charge.period, Fraction(0)) + charge.budget
    return dict(sorted(sums.items()))


def largest_window(sums: Mapping[str, Fraction], period: str, periods: int) -> Fraction:
    """The largest cost of any run of `periods` consecutive periods with a release, among them `period`.

    Periods of one form that begin with a year are in the order of time. A period of another form has an unknown time,
    so its cost is always added. So the sum may be too large, but never too small.
    """
    alike = sorted(name for name in sums if _form(name) == _form(period)) if _DATED.match(period) else [period]
    rest = sum((amount for name, amount in sums.items() if name not in alike), Fraction(0))
    here = alike.index(period)
    begins = range(max(0, here - periods + 1), here + 1)
    return rest + max(sum((sums[name] for name in alike[k : k + periods]), Fraction(0)) for k in begins)


def _form(period: str) -> str:
    return re.sub(r"\d", "9", period)


def excesses(limits: Limits, before: Sequence[Charge], charge: Charge) -> Iterator[tuple[str, str]]:
    """Yields what a charge exceeds: the sum with this charge, and what the limit allows."""
    sums, symbol = by_period([*before, charge]), f"{charge.cls} {SYMBOL[charge.cls]}"
    limited = {"in all": (limits.total, sum(sums.values(), Fraction(0)))}
    limited[f"in period {charge.period}"] = (limits.per_period, sums[charge.period])
    if limits.window is not None:
        number = limits.window.periods
        largest = largest_window(sums, charge.period, number)
        limited[f"in {number} consecutive periods"] = (limits.window.budget, largest)
    for where, (limit, reached) in limited.items():
        if limit is not None and reached > limit:
            fault = (
                f"this run's {symbol} = {budget_text(charge.budget)} would bring the sum to {budget_text(reached)} {where}"
            )
            yield (
                fault,
                f"{symbol} = {budget_text(limit)} {where}, of which {budget_text(reached - charge.budget)} is charged",
            )
    yield from _excess_of_delta(limits, before, charge)


def _excess_of_delta(limits: Limits, before: Sequence[Charge], charge: Charge) -> Iterator[tuple[str, str]]:
    """Yields an excess of δ. Over strict releases δ adds up. Under zCDP, ρ adds up instead, and each ε has its δ."""
    if limits.delta is None:
        return
    if charge.cls == "zCDP":
        if charge.delta is not None and charge.delta > limits.delta:
            fault = f"this run's zCDP ε is stated at δ = {budget_text(charge.delta)}"
            yield fault, f"zCDP ε stated at δ = {budget_text(limits.delta)} or less"
        return
    all_charges, allowed = [*before, charge], f"{charge.cls} δ = {budget_text(limits.delta)} in all"
    deltas = [charged.delta for charged in all_charges if charged.delta is not None]
    if len(deltas) < len(all_charges):
        whose = "this run's" if charge.delta is None else "an earlier release's"
        yield f"{whose} {charge.cls} δ is unknown", allowed
    elif (reached := sum(deltas, Fraction(0))) > limits.delta:
        yield (
            f"this run's {charge.cls} δ = {budget_text(deltas[-1])} would bring the sum to {budget_text(reached)}",
            allowed,
        )


def refuse_charge(entries: Sequence[Entry], job_limits: Limits, charge: Charge) -> None:
    """Raises `BudgetRefused` if a charge is for a correction that is not the next, or exceeds a limit of the ledger, or one
    that the job states (`job_limits`).
    """
    refuse_correction(entries, charge)
    history, policy = charges(entries, charge.dataset), policies(entries, charge.dataset)
    if policy and charge.cls not in policy:
        fault = (
            f"the ledger has limits for {', '.join(sorted(policy))} releases of this dataset, but none for "
            f"{charge.cls} releases"
        )
        remedy = f"state some: dpdist ledger init --dataset {charge.dataset} --class {charge.cls} --total …"
        raise BudgetRefused(charge.dataset, fault, "a class that has limits", remedy)
    if (limits_of_job := job_limits.of(charge.cls)) is None:
        fault = f"the job's ledger.limits name only classes other than {charge.cls}, the class of this run"
        remedy = f"state ledger.limits.{charge.cls}, or leave ledger.limits out"
        raise BudgetRefused(charge.dataset, fault, "a class that has limits", remedy)
    limits = [limit for limit in (policy.get(charge.cls), *limits_of_job) if limit is not None and limit.has_limits]
    other_adjacencies = sorted({charged.adjacency for charged in history if charged.cls == charge.cls} - {charge.adjacency})
    if limits and other_adjacencies:
        fault = (
            f"its {charge.cls} releases were charged under adjacency {other_adjacencies[0]}, "
            f"this one is under {charge.adjacency}"
        )
        allowed, remedy = (
            "the same adjacency: costs under different ones cannot be added",
            "state budget.adjacency as before",
        )
        raise BudgetRefused(charge.dataset, fault, allowed, remedy)
    account = [charged for charged in history if charged.account == charge.account]
    for limit in limits:
        for fault, allowed in excesses(limit, account, charge):
            remedy = "lower the job's budget, or ask those responsible for the limit to raise it where it is stated"
            raise BudgetRefused(charge.dataset, fault, allowed, remedy)


def refuse_correction(entries: Sequence[Entry], charge: Charge) -> None:
    """Raises `BudgetRefused` unless a correction has the next version number, and corrects a charged release of its period.

    So versions follow the order of charges, and two corrections of one release have different numbers.
    """
    if charge.version == 1:
        return
    versions = {charged.version for charged in charges(entries, charge.dataset) if charged.period == charge.period}
    if charge.version in versions:
        fault = f"version {charge.version} of {charge.period} is charged already"
        remedy = f"state correction.version: {max(versions) + 1}; correction.of says which release it corrects"
        raise BudgetRefused(charge.dataset, fault, f"the version after the last: {max(versions) + 1}", remedy)
    if charge.version - 1 not in versions:
        fault = f"version {charge.version} of {charge.period}, although version {charge.version - 1} was never charged"
        numbers = ", ".join(map(str, sorted(versions))) or "no version"
        remedy = "correct correction.version, or name the ledger that the release was charged in"
        raise BudgetRefused(charge.dataset, fault, f"the version after a charged one: {numbers}", remedy)
    published = releases(entries, charge.dataset, charge.period)
    if charge.corrects not in published:
        fault = f"correction.of: no charged release of {charge.period} has the id {charge.corrects}"
        allowed = (
            "one of: " + ", ".join(published)
            if published
            else "a release that the ledger names; it names none of this period"
        )
        remedy = (
            "copy `release` from the manifest of the corrected release; `dpdist publish` on its workspace enters its id"
        )
        raise BudgetRefused(charge.dataset, fault, allowed, remedy)


def remaining_budget(entries: Sequence[Entry], job_limits: Limits, charge: Charge) -> Fraction | None:
    """The smallest amount that limits on totals leave before this charge; None if there is no such limit."""
    cost = total(charged for charged in charges(entries, charge.dataset) if charged.account == charge.account)
    policy = policies(entries, charge.dataset).get(charge.cls)
    totals = [
        limits.total
        for limits in (policy, *(job_limits.of(charge.cls) or ()))
        if limits is not None and limits.total is not None
    ]
    return min(totals) - cost if totals else None

"""An earlier release as its public folder states it: its records or points, its guarantee, and the releases before it.

A chain is a series of releases, each of which has the one before as its reference. All facts read here are public.
Given all earlier releases, each release costs its own ε. So a person in all files of a chain loses at most the sum. The
release's statements about ε are compared with each other here, and later code trusts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dpdist.core.errors import DataError, Problem
from dpdist.core.files import STATEMENT as STATEMENT_FORMAT, sha256
from dpdist.core.public_files import (
    MANIFEST,
    SIGNATURE,
    DamagedFile,
    first_problem,
    printable,
    read_object,
    refuse_format,
    regular,
    verified_files,
)
from dpdist.core.records import Crosstab
from dpdist.estimation.crosstab_table import read_crosstab, read_job
from dpdist.estimation.donors import (
    DONORS,
    HISTORY,
    LARGEST_WEIGHT,
    REFERENCE_FILE,
    AbsentRecords,
    Donors,
    History,
    donors_from_table,
    law_of,
    read_history,
    read_points,
)
from dpdist.job import Adjacency, Budget, DesignEffect, Job, Name, budget_text, epsilon_of, rho_of
from dpdist.job.reference import HistogramReference

JOB, PROMISE, STATEMENT = "released/job.json", "released/promise.json", "statement.json"
COSTS = ("epsilon", "substitution_epsilon", "rho", "substitution_rho", "delta")
"""Names of losses, of a release and of a chain."""
LONGEST = 1000
"""Largest number of releases of a chain."""
NUMBER = re.compile(r"\d{1,40}(\.\d{1,40})?([eE][+-]?\d{1,2})?|\d{1,60}/\d{1,60}")
AGREEING = (
    *("guarantee", "adjacency", "epsilon", "epsilon_per_set", "substitution_epsilon", "rho", "substitution_rho"),
    *("delta", "reference"),
)
"""Names of the facts of a release's guarantee that its statement must repeat."""


def _exact_text(value: Any) -> Any:
    """Checks the text of an exact number first, because a large exponent could make arithmetic take hours."""
    if not isinstance(value, str) or not NUMBER.fullmatch(value):
        raise ValueError('an exact number in quotes is expected, for example "10.8" or "1/3"')
    return value


def _sum(value: Any) -> Fraction:
    try:
        return Fraction(_exact_text(value))
    except ZeroDivisionError:
        raise ValueError("a ratio to 0") from None


def _not_too_long(value: Any) -> Any:
    """Counts releases before any is read."""
    if isinstance(value, list) and len(value) > LONGEST:
        raise ValueError(f"Tuple should have at most {LONGEST} items")
    return value


def _shown(value: Any) -> Any:
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("control characters")
    return value


Exact = Annotated[Budget, BeforeValidator(_exact_text)]
Total = Annotated[Fraction, BeforeValidator(_sum)]
Label = Annotated[str, Field(max_length=200, strict=True), BeforeValidator(_shown)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", strict=True)]
Size = Annotated[int, Field(ge=0, le=int(LARGEST_WEIGHT), strict=True)]


class _StatementPart(BaseModel):
    """A part of a release's stored statements about itself; unknown keys are dropped."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Costs(_StatementPart):
    """The exact, strict guarantee of a release: ε, and ε under an exchange of a record at the same x.

    An exchange costs between ε and 2ε, because it is two steps: the old record is switched off, and the new one on. Under
    adjacency `substitution` it costs ε. Under zCDP losses are ρ, of which an exchange costs up to 4, and ε follows at δ.
    """

    adjacency: Adjacency
    epsilon: Exact
    substitution_epsilon: Exact
    rho: Exact | None = None
    substitution_rho: Exact | None = None
    delta: Annotated[Fraction, BeforeValidator(_exact_text), Field(ge=0, lt=1)]

    @model_validator(mode="after")
    def _exchange(self) -> Self:
        if (self.rho is None) != (self.delta == 0) or (self.rho is None) != (self.substitution_rho is None):
            raise ValueError("rho and substitution_rho belong to a delta above 0")
        pairs = [("epsilon", self.epsilon, self.substitution_epsilon, 2)]
        if self.rho is not None and self.substitution_rho is not None:
            for rho, epsilon in ((self.rho, self.epsilon), (self.substitution_rho, self.substitution_epsilon)):
                # A job states one of the two, from which the other follows, rounded.
                if epsilon != epsilon_of(rho, self.delta) and rho != rho_of(epsilon, self.delta):
                    raise ValueError("epsilon must follow from rho and delta")
            pairs = [("rho", self.rho, self.substitution_rho, 4)]
        for name, loss, exchanged, most in pairs:
            most = 1 if self.adjacency == "substitution" else most
            if not loss <= exchanged <= most * loss:
                allowed = name if most == 1 else f"from 1 to {most} {name}"
                raise ValueError(f"substitution_{name} must be {allowed} under {self.adjacency}")
        return self

    @property
    def concentrated(self) -> tuple[Fraction, Fraction]:
        """ρ, and ρ of an exchange: ε-differential privacy is (ε²/2)-zCDP (Bun & Steinke 2016)."""
        if self.rho is not None and self.substitution_rho is not None:
            return self.rho, self.substitution_rho
        return self.epsilon**2 / 2, self.substitution_epsilon**2 / 2


class Link(Costs):
    """One release of a chain, with its guarantee and the checksum of its manifest."""

    dataset: Name
    period: Label
    histogram: HistogramReference | None = None
    manifest: Digest

    @property
    def as_stored(self) -> dict[str, Any]:
        order = ("dataset", "period", "adjacency", *COSTS, "histogram", "manifest")
        stored = self.model_dump(mode="json", exclude_none=True) | {"delta": budget_text(self.delta)}
        return {name: stored[name] for name in order if name in stored}


class Root(_StatementPart):
    """The reference of a chain's first release."""

    histogram: HistogramReference | None = None
    sha256: Digest | None = None
    records: Size | None = None
    period: Label | None = None
    provenance: Annotated[str, Field(max_length=500, strict=True)] | None = None
    content: Digest | None = None


class Before(Root):
    """A release's statements about its reference and, if that is an earlier release, about the chain."""

    chain_epsilon: Total | None = None
    chain_substitution_epsilon: Total | None = None
    chain_rho: Total | None = None
    chain_substitution_rho: Total | None = None
    chain_delta: Total | None = None
    chain: Annotated[tuple[Link, ...], Field(min_length=1), BeforeValidator(_not_too_long)] | None = None
    root: Root | None = None
    design_effects: tuple[DesignEffect, ...] = ()

    @property
    def beginning(self) -> dict[str, Any]:
        return (self.root or self).model_dump(mode="json", exclude_unset=True, include=set(Root.model_fields))

    @model_validator(mode="after")
    def _continued(self) -> Self:
        if self.chain is None:
            if self.root is not None or any(getattr(self, f"chain_{name}") is not None for name in COSTS):
                raise ValueError("a sum or a root without a chain")
            return self
        if self.root is None:
            raise ValueError("a chain without a root")
        if self.chain[-1].manifest != self.sha256 or self.chain[-1].period != self.period:
            raise ValueError("the chain's last release is not the one that sha256 and period name")
        return self


class Spent(Costs):
    """A release's guarantee, with its reference."""

    guarantee: Literal["strict", "strict zCDP"]
    reference: Before

    def link(self, job: Job, manifest: str) -> Link:
        entries = {name: getattr(self, name) for name in Costs.model_fields}
        costs: dict[str, Any] = {
            name: budget_text(entry) if isinstance(entry, Fraction) else entry for name, entry in entries.items()
        }
        costs |= {"dataset": job.dataset, "period": job.period, "histogram": self.reference.histogram, "manifest": manifest}
        return Link.model_validate(costs)


@dataclass(frozen=True)
class EarlierRelease:
    """An earlier release, as read from its public folder."""

    folder: Path
    sha256: str
    """SHA-256 of its manifest, which contains the checksums of all other files."""
    job: Job
    links: tuple[Link, ...]
    """Every release of the chain from the earliest to this one."""
    root: Mapping[str, Any]
    """The reference of the chain's first release, as stated."""
    points: pa.Table | None
    """One row per point: levels of the cell, variable, `standing` (effective sample size), weight and outcome."""
    records: int
    """Number of records of the earlier release's confidential file, as published; noisy where sizes are secret."""
    sample: AbsentRecords | None = None
    """Records of the chain's first reference by levels of the job's columns, of a release that states totals."""
    history: History = field(default_factory=dict)
    """Totals of the chain's periods that such a release states, by stratum."""
    design_effects: tuple[DesignEffect, ...] = ()
    """Design effects that were estimated from the file with which the chain began."""

    @property
    def chain(self) -> list[dict[str, Any]]:
        return [link.as_stored for link in self.links]


def composed(chain: Sequence[Costs]) -> dict[str, Fraction]:
    """The privacy losses of a person in all files of the chain, by name: sums of ε, or of ρ if a release is under zCDP.

    ε then follows from ρ at the last such release's δ, which is stated with it.
    """
    deltas = [link.delta for link in chain if link.delta]
    if not deltas:
        names = ("epsilon", "substitution_epsilon")
        return {name: sum((getattr(link, name) for link in chain), Fraction(0)) for name in names}
    rho, exchanged = (sum(losses, Fraction(0)) for losses in zip(*(link.concentrated for link in chain), strict=True))
    of_epsilon = {"epsilon": epsilon_of(rho, deltas[-1]), "substitution_epsilon": epsilon_of(exchanged, deltas[-1])}
    return of_epsilon | {"rho": rho, "substitution_rho": exchanged, "delta": deltas[-1]}


def read_earlier(folder: Path, signer: str | None = None) -> EarlierRelease:
    """Reads an earlier release. `signer` is the text of the public key that must have signed it.

    Raises `DataError`, naming the folder, if the release is incomplete, inconsistent, or not signed as it must be.
    """
    try:
        files = verified_files(folder)
        if signer is not None:
            _refuse_unsigned(folder, signer)
        return _read(folder, files)
    except DamagedFile as error:
        remedy = "name the public folder of an earlier run of mechanism tables, or restore it from a copy"
        fault = f"no release that can be read: {error}" if error.remedy else f"an incomplete release: {error}"
        problem = Problem("reference.release", fault, error.allowed, error.remedy or remedy)
        raise DataError(printable(folder, 400), [problem]) from None


def _refuse_unsigned(folder: Path, signer: str) -> None:
    from dpdist.core.minisign import PublicKey, unsigned  # a library that few jobs need

    key = PublicKey.parse(signer)
    if (wrong := unsigned(folder, key)) is not None:
        remedy = "use the release as its agency published it, with its signature, or name the key that signed it"
        raise DamagedFile(SIGNATURE, wrong, f"a signature of the release by {key.name}, which reference.key names", remedy)


def _read(folder: Path, files: frozenset[str]) -> EarlierRelease:
    if unnamed := [name for name in (STATEMENT, JOB, PROMISE, "released/frame.parquet") if name not in files]:
        raise DamagedFile(MANIFEST, f"it does not list {unnamed[0]}", "the checksum of every file that is read")
    # Packages of tables of dpdist 0.2 have their reference's records, and state no totals.
    totals, records_alone = f"released/{HISTORY}" in files, f"released/{DONORS}" in files
    if not totals and not records_alone and f"released/{REFERENCE_FILE}" not in files:
        allowed = "a release of mechanism tables, or of reference_tables or table_package in dpdist 0.2"
        raise DamagedFile(f"released/{REFERENCE_FILE}", "this release contains no reference", allowed)
    promise, statement = read_object(folder, PROMISE), read_object(folder, STATEMENT)
    refuse_format(STATEMENT, statement.get("format"), STATEMENT_FORMAT)
    _check_agreement(promise, read_object(folder, JOB), statement)
    job = read_job(folder, JOB)
    digest = sha256(folder / MANIFEST)
    try:
        claim = Spent.model_validate(promise)
        links = (*(claim.reference.chain or ()), claim.link(job, digest))
    except ValidationError as error:
        raise DamagedFile(PROMISE, first_problem(error), "a strict guarantee of exact budgets, with its chain") from None
    _check_exchange(claim, job)
    _check_chain(claim, links)
    crosstab = read_crosstab(folder, "released/frame.parquet", job)
    began, records = (folder, digest, job, links, claim.reference.beginning), int(crosstab.count.sum())
    if not totals and not records_alone:
        return EarlierRelease(*began, read_points(folder, f"released/{REFERENCE_FILE}", job), records)
    history: History = {}
    if totals:
        history = read_history(folder, f"released/{HISTORY}", len(job.cell_columns), len(job.outcomes))
    return EarlierRelease(
        *began, None, records, _sample(folder, job, crosstab, history), history, claim.reference.design_effects
    )


def _sample(folder: Path, job: Job, crosstab: Crosstab, history: History) -> AbsentRecords:
    """The released records of the chain's first reference, which are checked against the job's public domains."""
    name, columns = f"released/{DONORS}", tuple(dict.fromkeys([*job.strata, *job.cell_columns]))
    try:
        parts, donors = list[AbsentRecords](), dict[str, Donors]()
        if history and all(law_of(periods) is not None for periods in history.values()):
            donors = dict.fromkeys(crosstab.stratum_labels, Donors.none(len(job.outcomes)))
        else:
            donors = donors_from_table(pq.read_table(regular(folder, name)), job.outcomes)
        for stratum, label in enumerate(crosstab.stratum_labels):
            cells = np.unique(crosstab.codes_of(job.cell_columns, crosstab.rows_of(stratum)), axis=0)
            part = donors[label].by_levels(job.cell_columns, history[label][-1].codes if history else cells)
            row = crosstab.rows_of(stratum).start
            levels = {name: np.full(len(part.weight), crosstab.codes[name][row]) for name in crosstab.strata}
            levels |= dict(zip(part.columns, part.codes.T, strict=True))
            none = np.zeros((len(part.weight), 0), dtype=np.int32)
            codes = np.column_stack([none, *(levels[name] for name in columns)]).astype(np.int32)
            parts.append(AbsentRecords(columns, codes, part.weight, part.outcomes))
        values = (np.concatenate([getattr(of_set, name) for of_set in parts]) for name in ("codes", "weight", "outcomes"))
        sample = AbsentRecords(columns, *values)
        if sample.weight.dtype != np.float64 or sample.outcomes.dtype != np.float64:
            raise TypeError("values that are not numbers")
    except (pa.ArrowException, ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise DamagedFile(
            name, "no records of the released cells", "records like those in a release of mechanism tables"
        ) from None
    bounds = [domain.bounds or (0.0, 1.0) for domain in job.outcome_columns.values()]
    low, high = np.array(bounds).T
    sizes = [len(job.columns[column].levels or ()) for column in columns]
    right = (
        (sample.weight > 0.0)
        & (sample.weight <= LARGEST_WEIGHT)
        & (sample.codes >= 0).all(axis=1)
        & (sample.codes < np.array(sizes, dtype=np.int64)).all(axis=1)
        & ((sample.outcomes >= low) & (sample.outcomes <= high)).all(axis=1)
    )
    sizes_of_cells = np.array([len(job.columns[column].levels or ()) for column in job.cell_columns], dtype=np.int64)
    all_totals = [of_set for periods in history.values() for of_set in periods]
    if not right.all() or not all((of_set.codes < sizes_of_cells).all() for of_set in all_totals):
        raise DamagedFile(name, "values outside their domains", "records within the job's public domains")
    return sample


def _check_agreement(promise: Mapping[str, Any], job: Mapping[str, Any], statement: Mapping[str, Any]) -> None:
    """Checks that guarantee, job and statement agree as texts, before anything is computed."""
    released = {name: promise.get(name) for name in AGREEING} | {name: job.get(name) for name in ("dataset", "period")}
    for name, value in released.items():
        if statement.get(name) != value:
            raise DamagedFile(
                STATEMENT, f"{name} differs from that in released/", "one statement in all files of a release"
            )
    budget = job.get("budget")
    for name in ("epsilon", "adjacency"):
        if not isinstance(budget, dict) or budget.get(name) != promise.get(name):
            raise DamagedFile(JOB, f"{name} differs from that in promise.json", "one budget in all files of a release")


def _check_exchange(claim: Spent, job: Job) -> None:
    """Checks that the stated ε of an exchange follows from ε and the job.

    The ε of gates is paid once, all other ε twice. ρ and its ε are checked against each other (`Costs`).
    """
    if claim.rho is not None:
        return
    due = claim.epsilon if claim.adjacency == "substitution" else 2 * claim.epsilon - job.epsilon.gates
    if claim.substitution_epsilon != due:
        allowed = f"{printable(budget_text(due), 200)}, which follows from its job"
        raise DamagedFile(
            PROMISE, f"substitution_epsilon {printable(budget_text(claim.substitution_epsilon), 200)}", allowed
        )


def _check_chain(claim: Spent, links: Sequence[Link]) -> None:
    """Recomputes the sums of the chain and compares them with the stated ones."""
    if len({link.period for link in links}) < len(links):
        raise DamagedFile(PROMISE, "its chain has one period twice", "one release of every period")
    if len({link.adjacency for link in links}) > 1:
        raise DamagedFile(PROMISE, "its chain has several adjacencies", "one adjacency along a chain")
    if claim.reference.chain is None:
        return
    sums = composed(links)
    for name in COSTS:
        claimed, total = getattr(claim.reference, f"chain_{name}"), sums.get(name)
        if claimed != total:
            fault = f"chain_{name} {claimed}, where its releases add up to {total}"
            raise DamagedFile(PROMISE, printable(fault, 200), "the sum over the chain's releases")

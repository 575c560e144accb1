"""An earlier release as a reference: records or points, guarantee, releases before; and whether its cells and periods fit.

A chain is a series of releases, each of which has the one before as its reference. All facts read here are public.
Given all earlier releases, each release costs its own ε. So a person in all files of a chain loses at most the sum. The
release's statements about ε are compared with each other here, and later code trusts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dpdist.confidential.records import Records
from dpdist.core.errors import DataError, Problem
from dpdist.core.files import STATEMENT as STATEMENT_FORMAT
from dpdist.core.files import sha256
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
from dpdist.core.records import Codes, Crosstab, Floats, Ints
from dpdist.estimation.crosstab_table import read_crosstab, read_job
from dpdist.estimation.donors import (
    CELL,
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
from dpdist.job import Adjacency, Budget, Column, DesignEffect, Job, Name, budget_text, epsilon_of
from dpdist.job.reference import HistogramReference
from dpdist.survey.same_file import table_content
from dpdist.survey.source import Source

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
            due = [epsilon_of(rho_loss, self.delta) for rho_loss in (self.rho, self.substitution_rho)]
            if [self.epsilon, self.substitution_epsilon] != due:
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
            rows = np.column_stack(
                [np.zeros(len(crosstab), dtype=np.int32), *(crosstab.codes[name] for name in job.cell_columns)]
            )
            cells = np.unique(rows[crosstab.rows_of(stratum), 1:], axis=0)
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
    gates = job.accept.epsilon if job.accept is not None else 0
    due = claim.epsilon if claim.adjacency == "substitution" else 2 * claim.epsilon - gates
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


SHOWN = 3
MOST_SHOWN = 100
"""Largest number of characters of a value in a message."""


@dataclass(frozen=True)
class ReferenceRelease:
    """An earlier release that fits the job. A point is one released record, which represents several."""

    carried: EarlierRelease
    row: Codes
    table: pa.Table
    """One row per point: row of the current crosstab, number of the outcome, effective sample size, weight, outcome."""
    present: Records | None = None
    """Records with which the chain began, in rows of the current crosstab, of a release that states totals."""
    absent: AbsentRecords | None = None
    """Those of these records that have no such row."""

    @property
    def sha256(self) -> str:
        return self.carried.sha256

    @property
    def records(self) -> int:
        """Number of records of the released file."""
        return self.carried.records

    def records_in_rows(self) -> Records:
        """The records with which the chain began, or the points of the first outcome, in the order of the crosstab."""
        if self.present is not None:
            return self.present
        points = self.table.to_pandas()
        points = points[points["variable"] == 0].sort_values("frame", kind="stable")
        crosstab, none = points["frame"].to_numpy(dtype=np.int32), np.full(len(points), -1, dtype=np.int32)
        return Records(np.arange(len(points)), crosstab, points["outcome"].to_numpy(), points["weight"].to_numpy(), none)


def open_release(job: Job, source: Source, crosstab: Crosstab) -> ReferenceRelease:
    """Reads the job's earlier release, and checks it against the job and the current file.

    Raises `DataError`, naming the release's folder.
    """
    assert job.reference is not None
    assert job.reference.release_folder is not None
    carried = read_earlier(Path(job.reference.release_folder), job.reference.signer)
    if problems := list(_problems(job, source, carried)):
        raise DataError(str(carried.folder), problems)
    if job.mechanism.uses("reference.release"):
        carried = replace(carried, history=_by_columns(carried, job.cell_columns))
        sample = carried.sample if carried.sample is not None else _sample_of_points(job, carried)
        return _of_records(job, crosstab, carried, sample)
    cells = [[str(level) for level in levels] for levels in zip(*_levels(job, crosstab), strict=True)] or [[]] * len(
        crosstab
    )
    first = {tuple(label): row for row, label in reversed(list(enumerate(cells)))}
    assert carried.points is not None
    points = carried.points.to_pandas(ignore_metadata=True)
    labels = list(zip(*(points[CELL + name].astype(str) for name in job.cell_columns), strict=True)) or [()] * len(points)
    if missing := sorted(first.keys() - set(labels)):
        places = tuple(", ".join(f"{n} = {v}" for n, v in zip(job.cell_columns, c, strict=True)) for c in missing[:SHOWN])
        allowed = "every cell that the current file has"
        remedy = "merge levels in both jobs, or use a file as reference once more"
        raise DataError(
            str(carried.folder), [Problem("reference.release", "no such cell", allowed, remedy, len(missing), places)]
        )
    row = np.array([first.get(label, -1) for label in labels], dtype=np.int32)
    number = points["variable"].map({name: k for k, name in enumerate(job.outcomes)}).to_numpy(dtype=np.int32)
    columns = {"frame": row, "variable": number, **{n: points[n].to_numpy() for n in ("standing", "weight", "outcome")}}
    return ReferenceRelease(carried, row[row >= 0], pa.table({name: v[row >= 0] for name, v in columns.items()}))


def _by_columns(earlier: EarlierRelease, columns: Sequence[str]) -> History:
    """The release's totals with levels in the order of these columns, which are its own."""
    place = [earlier.job.cell_columns.index(name) for name in columns]
    return {
        label: tuple(replace(period, codes=period.codes[:, place]) for period in periods)
        for label, periods in earlier.history.items()
    }


def _of_records(job: Job, crosstab: Crosstab, earlier: EarlierRelease, sample: AbsentRecords) -> ReferenceRelease:
    """A release that states totals, with the records from which it began by rows of the current crosstab."""
    none = np.zeros((len(crosstab), 0), dtype=np.int32)
    codes = np.column_stack([none, *(crosstab.codes[name] for name in sample.columns)]).astype(np.int32)
    combinations, place = np.unique(np.concatenate([codes, sample.codes]), axis=0, return_inverse=True)
    of_frame, of_records = np.split(place.reshape(-1), [len(codes)])
    first = np.full(len(combinations), -1, dtype=np.int32)
    first[of_frame[::-1]] = np.arange(len(codes), dtype=np.int32)[::-1]
    row = first[of_records]
    order = np.argsort(row, kind="stable")
    present, missing = order[(row[order] >= 0)], order[(row[order] < 0)]
    psu = np.full(len(present), -1, dtype=np.int32)
    records = Records(np.arange(len(present)), row[present], sample.outcomes[present], sample.weight[present], psu)
    absent = AbsentRecords(sample.columns, sample.codes[missing], sample.weight[missing], sample.outcomes[missing])
    return ReferenceRelease(earlier, row[present], pa.table({}), records, absent)


def _sample_of_points(job: Job, earlier: EarlierRelease) -> AbsentRecords:
    """Points of a release of dpdist 0.2 as records, as many in a cell as have its released standard errors.

    Points have the released figures, and so their errors: a cell of n records would have its figures' sampling errors.
    Points of several outcomes are paired by the order of their weights.
    """
    assert earlier.points is not None
    points, errors = earlier.points.to_pandas(ignore_metadata=True), _released_errors(earlier)
    names, by = job.cell_columns, [CELL + name for name in job.cell_columns]
    codes, weights, outcomes = list[Ints](), list[Floats](), list[Floats]()
    for label, cell in points.groupby(by, sort=True) if by else [((), points)]:
        levels = tuple(str(level) for level in (label if isinstance(label, tuple) else (label,)))
        variables = [cell[cell["variable"] == name].sort_values(["weight", "outcome"]) for name in job.outcomes]
        number = min(float(cell["standing"].iloc[0]), *map(len, variables))
        for variable, name in zip(variables, job.outcomes, strict=True):
            number = min(number, _records_with(variable, errors.get((*levels, "count")), errors.get((*levels, name))))
        size = max(round(number), 2)
        places = [((np.arange(size) + 0.5) * len(block) / size).astype(np.int64) for block in variables]
        weights.append(variables[0]["weight"].to_numpy()[places[0]])
        of_cell = [block["outcome"].to_numpy()[place] for block, place in zip(variables, places, strict=True)]
        outcomes.append(np.column_stack(of_cell))
        place = [
            list(map(str, job.columns[name].levels or ())).index(level) for name, level in zip(names, levels, strict=True)
        ]
        codes.append(np.tile(np.array(place, dtype=np.int64), (size, 1)))
    return AbsentRecords(names, np.concatenate(codes).astype(np.int32), np.concatenate(weights), np.concatenate(outcomes))


def _records_with(points: pd.DataFrame, of_count: float | None, of_mean: float | None) -> float:
    """Number of records whose count and mean would have these standard errors: relative ones, and of the mean itself."""
    weight, outcome = points["weight"].to_numpy(), points["outcome"].to_numpy()
    # A count's published error is that of its number of records, too.
    spread = float(np.hypot(1.0, weight.std() / weight.mean()))
    residual = weight * (outcome - np.average(outcome, weights=weight)) / weight.mean()
    pairs = ((spread, of_count), (float(residual.std()), of_mean))
    return min([np.inf, *((deviation / error) ** 2 for deviation, error in pairs if error and deviation > 0.0)])


def _released_errors(earlier: EarlierRelease) -> dict[tuple[str, ...], float]:
    """Standard errors by cell: of counts relative to them, and of outcomes' means; of a table of all columns, if any."""
    columns = earlier.job.cell_columns
    errors = dict[tuple[str, ...], float]()
    for table in earlier.job.tables:
        path = earlier.folder / "tables" / f"{table.name}.parquet"
        if set(table.by) != set(columns) or table.universe or not path.exists():
            continue
        rows = pd.read_parquet(path)
        rows = rows[(rows["estimator"] == "parameters") & (rows["standard_error"] > 0) & (rows["estimate"] != 0)]
        for row in rows.to_dict("records"):
            label = tuple(str(row[name]) for name in columns)
            if row["statistic"] == "count":
                errors[(*label, "count")] = abs(row["standard_error"] / row["estimate"])
            elif row["statistic"] == "mean":
                errors[(*label, str(row.get("variable") or earlier.job.outcomes[0]))] = float(row["standard_error"])
    return errors


def _levels(job: Job, crosstab: Crosstab) -> Iterator[list[object]]:
    for name in job.cell_columns:
        yield [crosstab.levels[name][code] for code in crosstab.codes[name]]


def _stated(theirs: object, ours: object) -> str:
    """What the earlier release stated, as a text in brackets: of a column, the keys that differ."""
    if not isinstance(theirs, Column) or not isinstance(ours, Column):
        return ""
    other, own = theirs.model_dump(mode="json"), ours.model_dump(mode="json")
    keys = [f"{name}: {printable(value, MOST_SHOWN)}" for name, value in other.items() if value != own[name]]
    return f" ({', '.join(keys)} in the earlier release)"


def _problems(job: Job, source: Source, earlier: EarlierRelease) -> Iterator[Problem]:
    where, other = "reference.release", earlier.job
    columns = dict.fromkeys([*job.strata, *job.cell_columns, *job.outcomes])
    if other.mechanism.uses("reference.release") and not job.mechanism.uses("reference.release"):
        fault = f"it is a release of '{other.mechanism.name}', which '{job.mechanism.name}' cannot use"
        yield Problem(where, fault, "a release of the same mechanism", "name another release, or a public file")
    if job.strata and earlier.points is not None:
        fault = "its points are for the whole file, and the job has strata"
        yield Problem(where, fault, "a release of mechanism tables, or a job without strata", "name a public file")
    same = {
        "outcome": (job.outcomes, other.outcomes),
        "columns of the tables": (set(job.cell_columns), set(other.cell_columns)),
        "strata": (job.strata, other.strata),
        "survey.weight": (job.survey.weight, other.survey.weight),
        "universe": (job.universe, other.universe),
        "budget.adjacency": (job.budget.adjacency, other.budget.adjacency),
        "privacy_unit": (job.privacy_unit, other.privacy_unit),
        "budget.exchange": (job.budget.exchange, other.budget.exchange),
        **{f"columns.{name}": (job.columns[name], other.columns.get(name)) for name in columns},
    }
    weight = job.survey.measured_weight
    if weight is not None and any(law_of(periods) is not None for periods in earlier.history.values()):
        # Its bins follow from these bounds.
        same[f"columns.{weight}"] = (job.columns.get(weight), other.columns.get(weight))
    for name, (ours, theirs) in same.items():
        if ours != theirs:
            fault, stated = f"it was released under a different {name}", _stated(theirs, ours)
            remedy = f"state the same in both jobs{stated}, or begin a new chain with a public file"
            yield Problem(where, fault, "the same in both jobs", remedy)
    if job.survey.effects_of_reference and not earlier.design_effects:
        fault = "it states no design effects from a reference, and survey.design_effect: reference needs them"
        remedy = "state survey.design_effect as a number or a list, or leave it out"
        yield Problem(where, fault, "a release under design_effect: reference", remedy)
    periods = [link.period for link in earlier.links]
    if job.period in periods:
        fault = f"its chain has a release of period {job.period}, the job's own"
        yield Problem(where, fault, "releases of earlier periods", "use the last release before this period")
    if _is_root(job, source, earlier):
        fault = "its chain begins with the current file, which an earlier job declared public"
        yield Problem(
            where,
            fault,
            "another file: limits that are fixed on the current file do not protect anybody",
            "name another release",
        )


def _is_root(job: Job, source: Source, earlier: EarlierRelease) -> bool:
    """True if the chain's first release had the current file as its public reference, in any order or format.

    The reference must be another file. Releases of old versions only have a checksum of the file's bytes.
    """
    root = earlier.root
    if root.get("sha256") == source.fingerprint():
        return True
    return "content" in root and root["content"] == table_content(job, source)

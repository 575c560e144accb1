"""A folder's claim, derived again from its proof record and compared with job, statement and noisy figures.

The record must match the folder's job. The loss that follows from it must not exceed the statement's. No noisy figure
may have less noise than the record states. Facts that only the publisher could show are listed in words.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpdist.core.files import PROOF as FORMAT
from dpdist.core.public_files import DamagedFile, printable, read_object, refuse_format, regular
from dpdist.core.records import Floats, Ints
from dpdist.estimation.donors import CELL
from dpdist.job import Former, Job, budget_text
from dpdist.job.reference import ReleaseReference
from dpdist.mechanisms.parts import Measurements, measured_of
from dpdist.mechanisms.registry import number_of_queries, proof_of
from dpdist.privacy.claims import numbers_of
from dpdist.privacy.proof import ROUNDING, UnitLoss, rederive

PROOF, MEASUREMENTS = "released/proof.json", "measurements.parquet"
FIGURES = ("guarantee", "adjacency", "neighbours", "records_of_unit", "total")
"""Keys of a record, apart from its queries, whose values follow from the job."""
WORDED = ("name",)
"""Keys of a query that hold words, which may differ between versions."""
FIRST_WITH_RECORDS = (0, 2)
"""The first version whose releases have a record."""
FIRST_WITHOUT = (0, 3)
"""The first version that runs no former mechanism."""
UNKNOWN = "mechanism '{}', which dpdist {} does not run"
CLAMPED = "clamped_"
"""Start of a law's name, for figures set to the nearest end of their range after noise was added."""
NO_RECORD = "the claim, from its queries: the release has no proof record, because versions up to 0.1.1 wrote none"
NO_FIGURES = "noise of published figures: the release has none whose noise is public"
WORDS = f"texts in {PROOF}: this version words its queries, composition or formulas differently"
HIDDEN = "queries whose answers are not among the noisy figures: {}"
MORE = (
    "for {:,} noisy figures, the noise has a scale that no query states: it was not checked that it is at least that of "
    "their query"
)
DRAWN = "that this noise was drawn, and no other: `dpdist audit --black-box` tests the mechanism on your own files"
MOVED = "that sums of neighbouring files differ by no more than is stated: docs/methods.md has the proofs"
RECORDS = (
    "that the file was as the job says: a unit has at most the stated number of records, and what the job calls public "
    "is public"
)
OF_FORMER = (
    "that the queries and noisy figures are those of '{}': check this with dpdist 0.2, which still has that mechanism"
)
CLAIM = "for {}: the claim of class '{}'"


class FolderFindings(NamedTuple):
    """Contradictions in a folder, what could not be checked, in words, and the loss that was derived again, in words."""

    faults: list[DamagedFile]
    unchecked: Sequence[str] = ()
    derived: str = ""


def rederivation(public: Path, job: Job, statement: Mapping[str, Any]) -> FolderFindings:
    """Derives the claim of a release again. Raises `DamagedFile` for a record that cannot be read."""
    due = json.loads(json.dumps(proof_of(as_run(public, job))))
    if not (public / PROOF).exists():
        return _without_record(public, job, str(statement.get("protected_by") or "0"), due)
    record = read_object(public, PROOF)
    refuse_format(PROOF, record.get("format", 0), FORMAT)
    if isinstance(job.mechanism, Former):
        return _of_former(public, record, due, job, statement)
    if faults := list(_differences(record, due)):
        return FolderFindings(faults)
    if not due["queries"]:
        return FolderFindings([], derived="there is no guarantee, so nothing was derived")
    again = rederive(record)
    faults, hidden = _noise(public, job, due["queries"], number_of_queries(job))
    faults = [*_less(statement, again), *faults]
    holds = [] if due["holds"] == "for every file" else [CLAIM.format(due["holds"], due["guarantee"])]
    words = [WORDS] if _worded(record) != _worded(due) else []
    derived = _words(again, statement, len(record["queries"]))
    return FolderFindings(faults, [*holds, *words, *hidden, DRAWN, MOVED, RECORDS], derived)


def _of_former(
    public: Path, record: Mapping[str, Any], due: Mapping[str, Any], job: Job, statement: Mapping[str, Any]
) -> FolderFindings:
    """The answer for a mechanism of an earlier version: the loss of the record's queries, and noise of their scales.

    dpdist 0.2 derives the queries.
    """
    made_by = str(statement.get("protected_by") or "0")
    if numbers_of(made_by) >= FIRST_WITHOUT:
        fault = UNKNOWN.format(job.mechanism.name, printable(made_by))
        return FolderFindings([DamagedFile("released/job.json", fault, "a mechanism of that version")])
    if faults := list(_unlike_figures(record, due)):
        return FolderFindings(faults)
    again = rederive(record)
    derived, queries = _words(again, statement, len(record["queries"])), record["queries"]
    faults = [*_less(statement, again), *_noise(public, job, queries, len(queries), former=True)[0]]
    return FolderFindings(faults, [OF_FORMER.format(job.mechanism), DRAWN, MOVED, RECORDS], derived)


def _without_record(public: Path, job: Job, made_by: str, due: Mapping[str, Any]) -> FolderFindings:
    """The answer for a release of a version and a mechanism without proof records: noise is compared with its job."""
    first = job.mechanism.first_of(job.mechanism.name) if isinstance(job.mechanism, Former) else ()
    if max(numbers_of(made_by), first) >= FIRST_WITH_RECORDS:
        why = f"dpdist {printable(made_by)} writes it"
        if numbers_of(made_by) < FIRST_WITH_RECORDS:
            why = f"every version that has '{job.mechanism.name}' writes it, and dpdist {printable(made_by)} has not"
        return FolderFindings([DamagedFile(PROOF, f"missing, though {why}", "the record")])
    if isinstance(job.mechanism, Former):
        return FolderFindings([], [NO_RECORD])
    faults, hidden = _noise(public, job, due["queries"], number_of_queries(job)) if due["queries"] else ([], [])
    return FolderFindings(faults, [NO_RECORD, *hidden])


def as_run(public: Path, job: Job) -> Job:
    """The job with its reference's form, because a published job names no paths."""
    reference, promise = job.reference, read_object(public, "released/promise.json")
    if reference is None or "chain" not in (promise.get("reference") or {}):
        return job
    return job.model_copy(update={"reference": ReleaseReference(release="left out", histogram=reference.histograms)})


def _worded(record: Mapping[str, Any]) -> list[Any]:
    """The words of a record, which may differ between versions."""
    names = [query.get("name") for query in record["queries"]]
    return [record.get("holds"), record.get("composition"), record.get("formulas"), names]


def _differences(record: Mapping[str, Any], due: Mapping[str, Any]) -> Iterator[DamagedFile]:
    """The differences, other than words, between a record and the one that follows from the folder's job."""
    yield from _unlike_figures(record, due)
    queries = record.get("queries")
    if not isinstance(queries, list) or len(queries) != len(due["queries"]):
        number = len(queries) if isinstance(queries, list) else "no"
        yield DamagedFile(PROOF, f"{number} queries", f"{len(due['queries'])}, which follow from its job")
        return
    for place, (query, expected) in enumerate(zip(queries, due["queries"], strict=True), start=1):
        keys = expected.keys() | (query.keys() if isinstance(query, dict) else set())
        for key in sorted(keys - set(WORDED)):
            value = query.get(key) if isinstance(query, dict) else None
            if value != expected.get(key):
                yield _unlike(f"{key} of query {place}", value, expected.get(key))


def _unlike_figures(record: Mapping[str, Any], due: Mapping[str, Any]) -> Iterator[DamagedFile]:
    yield from (_unlike(key, record.get(key), due[key]) for key in FIGURES if record.get(key) != due[key])


def _unlike(what: str, value: object, due: object) -> DamagedFile:
    return DamagedFile(PROOF, f"{what} {printable(json.dumps(value))}", f"{json.dumps(due)}, which follows from its job")


def _less(statement: Mapping[str, Any], again: UnitLoss) -> Iterator[DamagedFile]:
    """Figures of a statement that are below the loss of the queries."""
    losses = dict(zip(("epsilon", "substitution_epsilon"), again.epsilons(_delta(statement)), strict=True))
    if again.gaussian:
        losses |= {"rho": again.claimed, "substitution_rho": again.exchanged}
    for name, loss in losses.items():
        if Fraction(statement[name]) * Fraction(ROUNDING) < loss:
            yield DamagedFile("statement.json", f'{name} "{statement[name]}"', f"at least {float(loss):.9g}, by {PROOF}")


def _delta(statement: Mapping[str, Any]) -> Fraction:
    try:
        return Fraction(statement["delta"])
    except (TypeError, ValueError):
        return Fraction(0)


FORMER_BINS = "counts of histograms"
"""The query of the former mechanism `table_package` that its statistics "count in bins of …" answer."""


class _Figures(NamedTuple):
    """Noisy figures of measurements.parquet whose noise has a public scale, (figure,) each.

    `stratum` numbers sets and the job's strata, whose records are disjoint: each has the whole budget. `cell` numbers what
    a figure is of: set, table, statistic, levels and bin. `part` numbers the tables of a set, with the columns that their
    cells have: cells of one part are disjoint.
    """

    law: NDArray[Any]
    set: NDArray[Any]
    stratum: Ints
    statistic: NDArray[Any]
    step: Floats
    cell: Ints
    part: Ints


def _noise(
    public: Path, job: Job, queries: list[dict[str, Any]], number: int, *, former: bool = False
) -> tuple[list[DamagedFile], list[str]]:
    """Faults in laws and scales of noisy figures, and queries without any figure, in words.

    A statistic answers the query that its mechanism names, or any of the mechanism's queries, which are the first `number`.
    A `former` mechanism names none, and its counts of bins answer FORMER_BINS alone.
    """
    noisy = [query for query in queries[:number] if query["law"] != "posterior_draw"]
    further = [query["name"] for query in queries[number:]]
    figures, faults = _measured(public, bool(noisy), job.strata)
    if figures is None:
        return faults, [NO_FIGURES] if noisy else []
    if (again := len(figures.cell) - len(np.unique(figures.cell))) > 0:
        faults.append(
            DamagedFile(MEASUREMENTS, f"{again:,} noisy figures of a cell that is listed earlier", "each figure once")
        )
    places, more, measurements = set[int](), 0, None if former else measured_of(job)
    kinds, kind = np.unique(np.column_stack([figures.law, figures.statistic]).astype(str), axis=0, return_inverse=True)
    for place_of_kind, (law, statistic) in enumerate(kinds.tolist()):
        here = np.flatnonzero(kind.ravel() == place_of_kind)
        answered = _answered(noisy, law, statistic, measurements)
        steps, scales = figures.step[here], [_scales(noisy[place]) for place in answered]
        least = min((values[-1] for values in scales), default=np.inf)
        if (low := steps[steps * ROUNDING < least]).size:
            faults.append(_too_little(law, statistic, float(low.min()), least))
        covered = np.zeros(len(here), bool)
        for place, values in zip(answered, scales, strict=True):
            query = noisy[place]
            same = np.isclose(steps[:, None], values, rtol=1e-9, atol=0.0).any(1) | bool(query.get("in_parts"))
            covered |= same
            places |= {place} if same.any() else set()
            if (sets := len(np.unique(figures.set[here]))) > query["times"] * len(answered):
                faults.append(
                    DamagedFile(MEASUREMENTS, f"noisy figures of {sets} sets", f"{query['times']} at most, by {PROOF}")
                )
        more += int((~covered).sum())
    for place, query in enumerate(noisy):
        if query.get("in_parts"):
            of_query = np.isin(
                kind.ravel(),
                [
                    n
                    for n, (law, statistic) in enumerate(kinds.tolist())
                    if place in _answered(noisy, law, statistic, measurements)
                ],
            )
            if (lost := _largest_loss(query, figures, of_query)) > ROUNDING:
                fault = f"noise of parts that lose {lost:.6g} of query '{query['name']}'"
                faults.append(DamagedFile(MEASUREMENTS, fault, f"1 at most, by {PROOF}"))
    unseen = [query["name"] for place, query in enumerate(noisy) if place not in places] + further
    words = [MORE.format(more)] if more else []
    return faults, [*words, *([HIDDEN.format("; ".join(unseen))] if unseen else [])]


def _answered(queries: list[dict[str, Any]], law: str, statistic: str, measurements: Measurements | None) -> list[int]:
    """Positions of the queries that a statistic may answer: those of the name that its mechanism gives, and of the law."""
    of_law = [place for place, query in enumerate(queries) if query["law"] == law]
    if measurements is None:
        of_bins = [place for place in of_law if queries[place]["name"] == FORMER_BINS]
        rest = [place for place in of_law if place not in of_bins]
        return (of_bins if statistic.startswith("count in bins") else rest) or of_law
    rows = measurements.query(statistic)
    if rows is None:  # queries of a mechanism may have the names of their statistics
        names = {query["name"]: query["name"] for query in queries}
        rows = measurements._replace(queries=names).query(statistic)
    return of_law if rows is None else [place for place in of_law if queries[place]["name"] == rows]


def _scales(query: Mapping[str, Any]) -> Floats:
    """Possible scales of the answers to a query, the largest first."""
    most = query["times"] if query.get("together") else 1
    return float(Fraction(query["scale"])) / np.arange(1, most + 1)


def _largest_loss(query: Mapping[str, Any], figures: _Figures, which: NDArray[np.bool_]) -> float:
    """The largest loss of a stratum's answers by part, as a share of the query's."""
    shares = (float(Fraction(query["scale"])) / figures.step[which]) ** (1 if query["law"] == "discrete_laplace" else 2)
    of_stratum = defaultdict[Any, dict[int, float]](dict)
    for number, part, share in zip(
        figures.stratum[which].tolist(), figures.part[which].tolist(), shares.tolist(), strict=True
    ):
        of_stratum[number][part] = max(share, of_stratum[number].get(part, 0.0))
    return max((sum(by_part.values()) for by_part in of_stratum.values()), default=0.0)


def _too_little(law: str, statistic: str, steps: float, least: float) -> DamagedFile:
    fault = f"{law} noise of scale {steps:.9g} in steps of its lattice, of '{printable(statistic)}'"
    allowed = f"{least:.9g} at least, by {PROOF}"
    return DamagedFile(MEASUREMENTS, fault, allowed if np.isfinite(least) else f"laws of the queries of {PROOF}")


def _measured(public: Path, noisy: bool, strata: Sequence[str]) -> tuple[_Figures | None, list[DamagedFile]]:
    """The noisy figures with a public scale, None if there are none; a fault if figures of `noisy` queries state none."""
    if not (public / MEASUREMENTS).exists():
        return None, []
    try:
        table = pq.read_table(regular(public, MEASUREMENTS)).to_pandas()
        has_scale = table["scale"].notna()
        silent = int((table["value"].notna() & ~has_scale).sum()) if noisy else 0
        faults = (
            [DamagedFile(MEASUREMENTS, f"{silent:,} noisy figures without a scale", "a scale of each")] if silent else []
        )
        table = table[has_scale].reset_index(drop=True)
        if table.empty:
            return None, faults
        levels = [name for name in table.columns if name.startswith(CELL)]
        keys = ["set", "table", "statistic", *levels, *(["centre", "half_width"] if "centre" in table else [])]
        by_stratum = ["set", *(CELL + name for name in strata if CELL + name in table)]
        columns = table[levels].notna().to_numpy() @ (1 << np.arange(len(levels)))
        figures = _Figures(
            np.array([str(law).removeprefix(CLAMPED) for law in table["law"]]),
            table["set"].to_numpy(),
            table.groupby(by_stratum, dropna=False, sort=False).ngroup().to_numpy(),
            table["statistic"].to_numpy(str),
            table["scale"].to_numpy(float) / table["lattice"].to_numpy(float),
            table.groupby(keys, dropna=False, sort=False).ngroup().to_numpy(),
            table[["table"]].assign(columns=columns).groupby(["table", "columns"], dropna=False).ngroup().to_numpy(),
        )
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFile(
            MEASUREMENTS, f"no noisy figures ({type(error).__name__})", "the file as it was released"
        ) from None
    return figures, faults


def _words(again: UnitLoss, statement: Mapping[str, Any], number: int) -> str:
    several = f"{number} quer{'y' if number == 1 else 'ies'}"
    name, loss = ("rho", f"{float(again.claimed):.9g}") if again.gaussian else ("epsilon", budget_text(again.claimed))
    return f"derived again from {several}: {name} = {loss}, and the statement has {statement[name]}"

"""For `opening.verifying`: derives a folder's claim again from its proof record; compares job, statement, noisy figures.

The record must match the folder's job. The loss that follows from it must not exceed the statement's. No noisy figure
may have less noise than the record states. Facts that only the publisher could show are listed in words.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpdist.core.formats import PROOF as FORMAT
from dpdist.core.public_files import Damaged, printable, read_object, refuse_format, regular
from dpdist.core.records import Floats
from dpdist.job import Job, budget_text
from dpdist.job.reference import ReleaseReference
from dpdist.mechanisms.registry import proof_of
from dpdist.privacy.claims import numbers_of
from dpdist.privacy.proof import ROUNDING, Rederived, rederived

PROOF, MEASUREMENTS = "released/proof.json", "measurements.parquet"
FIGURES = ("guarantee", "adjacency", "neighbours", "records_of_unit", "total")
"""Keys of a record, apart from its queries, whose values follow from the job."""
WORDED = ("name",)
"""Keys of a query that hold words, which may differ between versions."""
FIRST_WITH_RECORDS = (0, 2)
"""The first version whose releases have a record."""
CLAMPED = "clamped_"
"""Start of a law's name, for figures set to the nearest end of their range after noise was added."""
NO_RECORD = "the claim by its queries: the release has no proof record, as those of 0.1.1 and earlier"
NO_FIGURES = "noise of published figures: the release has none whose noise is public"
HIDDEN = "queries whose answers are not among the noisy figures: {}"
MORE = "{:,} noisy figures have a scale of noise that no query states: that it is no less than their query's is not checked"
DRAWN = "that this noise was drawn, and no other: `dpdist audit --black-box` tries it on files of your own"
MOVED = "that neighbouring files move sums by no more than is stated: docs/methods.md has the proofs"
RECORDS = "that the file was as the job says: at most the stated records of a unit, and public what is named public"
CLAIM = "for {}: the claim of class '{}'"


class Rederivation(NamedTuple):
    """Contradictions, the derived loss in words, and what could not be checked, in words."""

    faults: list[Damaged]
    derived: str
    unchecked: list[str]


def rederivation(public: Path, job: Job, statement: Mapping[str, Any]) -> Rederivation:
    """Derives the claim of a release again. Raises `Damaged` for a record that cannot be read."""
    if not (public / PROOF).exists():
        made_by = str(statement.get("protected_by") or "0")
        if numbers_of(made_by) < FIRST_WITH_RECORDS:
            return Rederivation([], "", [NO_RECORD])
        return Rederivation(
            [Damaged(PROOF, f"missing, though dpdist {printable(made_by)} writes it", "the record")], "", []
        )
    record, due = read_object(public, PROOF), json.loads(json.dumps(proof_of(_as_run(public, job))))
    refuse_format(PROOF, record.get("format", 0), FORMAT)
    if faults := list(_differences(record, due)):
        return Rederivation(faults, "", [])
    if not due["queries"]:
        return Rederivation([], "nothing is promised, and nothing was derived", [])
    again = rederived(record)
    faults, hidden = _noise(public, record["queries"])
    faults = [*_less(statement, again), *faults]
    holds = [] if due["holds"] == "for every file" else [CLAIM.format(due["holds"], due["guarantee"])]
    return Rederivation(faults, _words(again, statement, len(record["queries"])), [*holds, *hidden, DRAWN, MOVED, RECORDS])


def _as_run(public: Path, job: Job) -> Job:
    """The job with its reference's form, because a published job names no paths."""
    reference, promise = job.reference, read_object(public, "released/promise.json")
    if reference is None or reference.paid is None or "chain" not in (promise.get("reference") or {}):
        return job
    return job.model_copy(update={"reference": ReleaseReference(release="left out", histogram=reference.paid)})


def _differences(record: Mapping[str, Any], due: Mapping[str, Any]) -> Iterator[Damaged]:
    """The differences, other than words, between a record and the one that follows from the folder's job."""
    for key in FIGURES:
        if record.get(key) != due[key]:
            yield _unlike(key, record.get(key), due[key])
    queries = record.get("queries")
    if not isinstance(queries, list) or len(queries) != len(due["queries"]):
        number = len(queries) if isinstance(queries, list) else "no"
        yield Damaged(PROOF, f"{number} queries", f"{len(due['queries'])}, which follow from its job")
        return
    for place, (query, wanted) in enumerate(zip(queries, due["queries"], strict=True), start=1):
        keys = wanted.keys() | (query.keys() if isinstance(query, dict) else set())
        for key in sorted(keys - set(WORDED)):
            value = query.get(key) if isinstance(query, dict) else None
            if value != wanted.get(key):
                yield _unlike(f"{key} of query {place}", value, wanted.get(key))


def _unlike(what: str, value: object, due: object) -> Damaged:
    return Damaged(PROOF, f"{what} {printable(json.dumps(value))}", f"{json.dumps(due)}, which follows from its job")


def _less(statement: Mapping[str, Any], again: Rederived) -> Iterator[Damaged]:
    """Figures of a statement that are below the loss of the queries."""
    losses = dict(zip(("epsilon", "substitution_epsilon"), again.epsilons(_delta(statement)), strict=True))
    if again.gaussian:
        losses |= {"rho": again.claimed, "substitution_rho": again.exchanged}
    for name, loss in losses.items():
        if Fraction(statement[name]) * Fraction(ROUNDING) < loss:
            yield Damaged("statement.json", f'{name} "{statement[name]}"', f"at least {float(loss):.9g}, by {PROOF}")


def _delta(statement: Mapping[str, Any]) -> Fraction:
    try:
        return Fraction(statement["delta"])
    except (TypeError, ValueError):
        return Fraction(0)


def _noise(public: Path, queries: list[dict[str, Any]]) -> tuple[list[Damaged], list[str]]:
    """Faults in laws and scales of noisy figures, and queries without any figure, in words."""
    noisy = [query for query in queries if query["law"] != "posterior_draw"]
    table = _measured(public)
    if table is None:
        return [], [NO_FIGURES] if noisy else []
    faults, shown, more = list[Damaged](), set[int](), 0
    laws = np.array([str(law).removeprefix(CLAMPED) for law in table["law"].to_pylist()])
    sets, tables = (np.array(table[name].to_pylist()) for name in ("set", "table"))
    steps = table["scale"].to_numpy() / table["lattice"].to_numpy()
    for law in sorted(set(laws.tolist())):
        of_law = {place: query for place, query in enumerate(noisy) if query["law"] == law}
        scales = {place: _scales(query) for place, query in of_law.items()}
        least, here = min((values[-1] for values in scales.values()), default=np.inf), steps[laws == law]
        if (low := here[here * ROUNDING < least]).size:
            faults.append(_too_little(law, float(low.min()), least))
        equal = {place: np.isclose(here[:, None], values, rtol=1e-9, atol=0.0).any(1) for place, values in scales.items()}
        for place, query in of_law.items():
            if query.get("in_parts"):
                rest = ~np.any([same for other, same in equal.items() if other != place], axis=0) & np.ones(len(here), bool)
                loss = _largest_loss(query, here[rest], tables[laws == law][rest], sets[laws == law][rest])
                if loss > ROUNDING:
                    fault = f"noise of parts that lose {loss:.6g} of query '{query['name']}'"
                    faults.append(Damaged(MEASUREMENTS, fault, f"1 at most, by {PROOF}"))
                equal[place] = rest
        shown |= {place for place, same in equal.items() if same.any()}
        more += int((~np.any(list(equal.values()), axis=0)).sum()) if equal else 0
        measured, most = len(set(sets[laws == law].tolist())), max((query["times"] for query in of_law.values()), default=0)
        if measured > most:
            faults.append(Damaged(MEASUREMENTS, f"noisy figures of {measured} sets", f"{most} at most, by {PROOF}"))
    if more:
        return faults, [MORE.format(more)]
    hidden = [query["name"] for place, query in enumerate(noisy) if place not in shown]
    return faults, [HIDDEN.format("; ".join(hidden))] if hidden else []


def _scales(query: Mapping[str, Any]) -> Floats:
    """Possible scales of the answers to a query, the largest first."""
    most = query["times"] if query.get("together") else 1
    return float(Fraction(query["scale"])) / np.arange(1, most + 1)


def _largest_loss(query: Mapping[str, Any], steps: Floats, tables: NDArray[Any], sets: NDArray[Any]) -> float:
    """The largest loss of a set's answers by table, of scales `steps`, as a share of the query's; tables are its parts."""
    shares = (float(Fraction(query["scale"])) / steps) ** (1 if query["law"] == "discrete_laplace" else 2)
    of_set = defaultdict[Any, dict[Any, float]](dict)
    for number, table, share in zip(sets.tolist(), tables.tolist(), shares.tolist(), strict=True):
        of_set[number][table] = max(share, of_set[number].get(table, 0.0))
    return max((sum(by_table.values()) for by_table in of_set.values()), default=0.0)


def _too_little(law: str, steps: float, least: float) -> Damaged:
    fault, allowed = f"{law} noise of scale {steps:.9g} in steps of its lattice", f"{least:.9g} at least, by {PROOF}"
    return Damaged(MEASUREMENTS, fault, allowed if np.isfinite(least) else f"laws of the queries of {PROOF}")


def _measured(public: Path) -> dict[str, Any] | None:
    """Law, set, table, scale and lattice of noisy figures with a public scale; None if there are none."""
    if not (public / MEASUREMENTS).exists():
        return None
    try:
        table = pq.read_table(regular(public, MEASUREMENTS), columns=["law", "set", "table", "scale", "lattice"])
        table = table.filter(pa.compute.is_valid(table["scale"]))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise Damaged(MEASUREMENTS, f"no noisy figures ({type(error).__name__})", "the file as it was released") from None
    return {name: table[name] for name in table.column_names} if len(table) else None


def _words(again: Rederived, statement: Mapping[str, Any], number: int) -> str:
    several = f"{number} quer{'y' if number == 1 else 'ies'}"
    name, loss = ("rho", f"{float(again.claimed):.9g}") if again.gaussian else ("epsilon", budget_text(again.claimed))
    return f"derived again from {several}: {name} = {loss}, and the statement has {statement[name]}"

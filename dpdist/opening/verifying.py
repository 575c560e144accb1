"""For `cli.verify` and `approval`: verifies a public folder's files, its claims against the job, and its signature."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dpdist.core.errors import DpdistError, WorkspaceError
from dpdist.core.files import STATEMENT as FORMAT
from dpdist.core.files import write_text
from dpdist.core.minisign import PublicKey, SecretKey, unsigned
from dpdist.core.progress import Listener, silent
from dpdist.core.public_files import (
    MANIFEST,
    MISSING,
    SIGNATURE,
    UNFIT,
    Damaged,
    all_damage,
    read_object,
    refuse_format,
    unfit,
)
from dpdist.estimation.crosstab_table import read_job
from dpdist.job import Job, budget_text
from dpdist.mechanisms.registry import mechanism_of
from dpdist.opening.rederiving import Rederivation, rederivation
from dpdist.opening.remaking import Remade, remade
from dpdist.privacy.adjacency import neighbours, unit
from dpdist.privacy.claims import Advisory, advisories, promised
from dpdist.publish.released import REMEDY
from dpdist.publish.statement import unit_figures

FIGURES = (
    "guarantee",
    "adjacency",
    "epsilon",
    "epsilon_per_set",
    "substitution_epsilon",
    "delta",
    "rho",
    "substitution_rho",
)
"""Keys of a guarantee whose values follow from the job alone."""
IN_WORDS = {"privacy_unit_in_words": unit, "adjacency_in_words": neighbours}
"""Sentences of a statement, with the functions that make them; their numbers follow from the job."""
UNIT = ("privacy_unit", "privacy_unit_most", "record_share_of_budget", "correction")
"""Other keys of a statement whose values follow from the job alone."""
NUMBER = re.compile(r"\d+(?:[./,]\d+)*")
STATEMENT = "statement.json"
SAYING = (STATEMENT, "released/promise.json")


def public_of(folder: Path) -> Path:
    """The public folder of a workspace; or the folder itself, if it is one."""
    inside = folder / "public"
    return inside if (inside / MANIFEST).exists() and not (folder / MANIFEST).exists() else folder


class Verification(NamedTuple):
    """The problems of a public folder, the loss that was derived again, and what was not checked, in words."""

    problems: list[str]
    derived: str
    unchecked: list[str]


def problems(public: Path, key: PublicKey | None = None) -> list[str]:
    """Lists problems, one line each: see `verified`."""
    return verified(public, key).problems


def verified(public: Path, key: PublicKey | None = None, listener: Listener = silent) -> Verification:
    """Verifies a folder: files changed, missing or added, wrong claims, files that do not follow from released/, and
    whether the key signed it.

    What follows from released/ is published again: this takes as long as `dpdist publish`.
    """
    lines = [str(error) for error in all_damage(public) or _claims(public)]
    again, rest = Rederivation([], "", []), Remade([], [])
    if not lines:
        again, rest = derived_again(public), remade(public, listener)
        lines = [str(error) for error in rest.faults]
    if (why := unfit(public)) is not None:
        lines.append(f"{UNFIT}: {why}")
    elif not lines and (wrong := _unapproved(public)):
        lines.append(f"{SIGNATURE}: {wrong}")
    if key is not None and (wrong := unsigned(public, key)):
        lines.append(f"{SIGNATURE}: {wrong}")
    return Verification(lines, again.derived, [*again.unchecked, *rest.unchecked])


def advised(public: Path) -> list[Advisory]:
    """The advisories that concern a release; empty if its job or its promise cannot be read."""
    try:
        job, promise = read_job(public, "released/job.json"), read_object(public, "released/promise.json")
    except Damaged:
        return []
    return advisories(job, str(promise.get("protected_by") or ""))


def derived_again(public: Path) -> Rederivation:
    """The results derived from a proof record, for a folder without `problems`, and what could not be checked."""
    return rederivation(public, read_job(public, "released/job.json"), read_object(public, STATEMENT))


def refuse_unverified(public: Path, made_again: bool = False) -> None:
    """Raises `WorkspaceError` for a folder that was changed since its release. A replay's folder is accepted.

    With `made_again`, files that follow from released/ may be missing, because they will be made again.
    """
    damage = all_damage(public) or _claims(public)
    faults = [error for error in damage if not (made_again and error.fault == MISSING and _derived(error.file))]
    if faults:
        more = f", and {len(faults) - 1} more files are not the manifest's" if len(faults) > 1 else ""
        raise WorkspaceError(str(public), f"{faults[0]}{more}, allowed: {faults[0].allowed}", faults[0].remedy or REMEDY)


def _derived(name: str) -> bool:
    return name != MANIFEST and not name.startswith("released/")


def sign(public: Path, key: SecretKey) -> None:
    """Signs a folder's manifest. Raises `WorkspaceError` for a folder with any of `problems`; every replay has one."""
    if wrong := problems(public):
        raise WorkspaceError(str(public), f"it is not signed: {wrong[0]}", "sign a folder that `dpdist verify` finds whole")
    manifest, listed = read_object(public, MANIFEST), read_job(public, "released/job.json").approvers
    if listed and key.public not in map(PublicKey.parse, listed):
        fault = f"it is not signed: its job lists the keys that may approve it, and {key.public.name} is none of them"
        raise WorkspaceError(str(public), fault, "sign with a listed key")
    comment = " ".join(f"{name}:{manifest[name]}" for name in ("dataset", "period", "release"))
    write_text(public / SIGNATURE, key.sign((public / MANIFEST).read_bytes(), comment))


def _unapproved(public: Path) -> str | None:
    """The reason why none of the keys that the job lists for approval signed the release; None if one did."""
    listed = [PublicKey.parse(text) for text in read_job(public, "released/job.json").approvers]
    wrong = [unsigned(public, key) for key in listed]
    if not listed or None in wrong:
        return None
    names = ", ".join(key.name for key in listed)
    return wrong[0] if len(listed) == 1 else f"signed by none of the keys that its job lists, {names}"


def _claims(public: Path) -> list[Damaged]:
    """Lists claims of the statement and of the promise that do not follow from the released job."""
    try:
        job = read_job(public, "released/job.json")
        due = promised(mechanism_of(job).promise(job), {})
        statements = {name: read_object(public, name) for name in SAYING}
        refuse_format(STATEMENT, statements[STATEMENT].get("format"), FORMAT)
    except Damaged as error:
        return [error]
    except (DpdistError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        fault = f"a job of which nothing can be promised ({type(error).__name__})"
        return [Damaged("released/job.json", fault, "the job as it was released")]
    try:
        proof = rederivation(public, job, statements[STATEMENT]).faults
    except Damaged as error:
        proof = [error]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        proof = [
            Damaged(STATEMENT, f"figures that cannot be compared ({type(error).__name__})", "those of its proof record")
        ]
    units = {**unit_figures(job), **({"correction": job.correction.model_dump()} if job.correction is not None else {})}
    figures = [error for name, file in statements.items() for error in _figures(name, FIGURES, file, due)]
    return [
        *figures,
        *(error for error in proof if not figures or error.file != STATEMENT),
        *_figures(STATEMENT, UNIT, statements[STATEMENT], units),
        *_words(job, statements[STATEMENT]),
        *(
            _unlike(name, *claim)
            for name, statement in statements.items()
            for claim in _gates(job, statement.get("acceptance"))
        ),
    ]


def _figures(name: str, figures: Iterable[str], file: Mapping[str, Any], due: Mapping[str, Any]) -> Iterator[Damaged]:
    for figure in figures:
        if file.get(figure) != due.get(figure):
            yield _unlike(name, figure, file.get(figure), due.get(figure))


def _unlike(name: str, figure: str, value: object, due: object) -> Damaged:
    return Damaged(name, f"{figure} {_shown(value)}", f"{_shown(due)}, which follows from its job")


def _words(job: Job, statement: Mapping[str, Any]) -> Iterator[Damaged]:
    """Yields sentences whose numbers differ from those that follow from the job. Their wording is not checked."""
    for name, worded in IN_WORDS.items():
        if name not in statement and statement.get("guarantee") == "none":
            continue
        numbers, due = (NUMBER.findall(str(text)) for text in (statement.get(name), worded(job)))
        if numbers != due:
            yield _unlike(STATEMENT, f"{name} with the numbers", numbers, due)


def _gates(job: Job, acceptance: Any) -> Iterator[tuple[str, object, object]]:
    """Yields claims on gates that do not follow from the job, or from the noisy values that the statement gives."""
    if job.accept is None or not isinstance(acceptance, dict):
        if job.accept is not None or acceptance is not None:
            yield "acceptance", acceptance, "gates" if job.accept is not None else None
        return
    if acceptance.get("epsilon") != (epsilon := budget_text(job.accept.epsilon)):
        yield "acceptance.epsilon", acceptance.get("epsilon"), epsilon
    tables, listed = [table.name for table in job.tables], list(job.accept.tables)
    measured = acceptance.get("tables")
    allowed = isinstance(measured, list) and all(name in (listed or tables) for name in measured)
    if not allowed or not measured or any(name not in measured for name in listed):
        yield "acceptance.tables", measured, listed or tables
    gates = _objects(acceptance.get("gates"))
    due = [(gate.text, 1.0 if gate.measure == "coverage" else gate.limit) for gate in job.accept.gates]
    claimed = [(gate.get("gate"), gate.get("limit")) for gate in gates]
    if claimed != due:
        yield "acceptance.gates", claimed, due
    elif not all(_met(gate) for gate in gates):
        yield "acceptance.gates", [gate.get("measured") for gate in gates], "values within the limits"


def _objects(content: Any) -> list[dict[str, Any]]:
    return [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []


def _met(gate: Mapping[str, Any]) -> bool:
    values: list[Any] = [gate.get(name) for name in ("measured", "limit", "noise_sd")]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return False
    measured, limit, sd = (float(value) for value in values)
    return gate.get("accepted") is True and measured <= limit and sd > 0


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=True)

"""Verification of a public folder: its files, its claims against the job, its signature; published again and compared."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.errors import DpdistError, JobError, WorkspaceError
from dpdist.core.files import OTHER_LIMITS, STATEMENT as FORMAT, scratch, version_of, write_text
from dpdist.core.minisign import PublicKey, SecretKey, unsigned
from dpdist.core.progress import Listener, silent
from dpdist.core.public_files import (
    MANIFEST,
    MISSING,
    SIGNATURE,
    UNFIT,
    DamagedFile,
    all_damage,
    printable,
    read_object,
    refuse_format,
    unfit,
)
from dpdist.core.this_process import single_threaded
from dpdist.estimation.crosstab_table import read_job
from dpdist.estimation.donors import DONORS, HISTORY, REFERENCE_FILE
from dpdist.job import Former, Job, budget_text, refuse_formats
from dpdist.mechanisms.registry import mechanism_of
from dpdist.opening.rederiving import FolderFindings, as_run, rederivation
from dpdist.privacy.adjacency import neighbours, unit
from dpdist.privacy.claims import Advisory, advisories, promised
from dpdist.publish.folder import publish, versions
from dpdist.publish.released import DISTRIBUTIONS, REMEDY, ReleasedObject, public_frame, read_released
from dpdist.publish.statement import unit_figures

# Texts, names, whole numbers and guarantees must be equal. Decimal numbers must be equal within `RELATIVE`, because last
# digits depend on the processor. `REST` names the facts in released/ that nothing in the folder can confirm.
RELATIVE, ABSOLUTE = 1e-6, 1e-13
"""Largest difference of a decimal number, relative to itself, and relative to the largest one of its column."""
PROMISE = "released/promise.json"
OF_THE_RUN = {"sampler", "reference", "readers", "metered", "date", "protected_by", "acceptance"}
"""Keys of a promise that a run adds to what follows from its job."""
OTHER = "differs from what follows from released/"
REST = {
    "released/job.json": "that this job was run, and no other",
    PROMISE: (
        "the run's day, version, sampler, readers and ledger; the reference's checksum and cautions; the values of gates"
    ),
    "released/frame.parquet": "that its numbers are those of the sample, plus the noise that was drawn",
    "released/seed": "that it was drawn at random",
    f"released/{DISTRIBUTIONS}": "that it has the distributions of the reference",
    f"released/{DONORS}": "that it has the records of the reference",
    f"released/{HISTORY}": "that it has the totals that follow from noisy sums, of this release and of those before it",
    f"released/{REFERENCE_FILE}": "that it has the points of the run's histograms or of the earlier release",
}
FORMER = "files that follow from released/: dpdist 0.2, which has '{}', can make them again"
SET = "that noisy figures, or draws, are those of the run; that its limits follow from the reference"
NUMBER = re.compile(r"(?<![\w.,])-?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")


def remade(public: Path, listener: Listener = silent) -> FolderFindings:
    """Publishes a release again and compares. Differences are faults if the same versions published the folder."""
    lacking, rest = list[str](), list(_rest(public))
    if isinstance(mechanism := read_job(public, "released/job.json").mechanism, Former):
        return FolderFindings([], [FORMER.format(mechanism), *rest])
    try:
        released = read_released(public / "released")
        differences = [*_promise(public, released), *_sizes(released)]
        try:
            refuse_formats(released.job.dataset, released.job.presentation)
        except JobError as error:
            lacking = [f"files that follow from released/: {problem.fault}" for problem in error.problems]
        else:
            with scratch() as folder, single_threaded():
                publish(released, again := folder / "public", listener)
                differences += _files(public, again)
    except (DpdistError, ArithmeticError, LookupError, TypeError, ValueError, AssertionError, pa.ArrowException) as error:
        if not (isinstance(error, WorkspaceError) and error.fault == OTHER_LIMITS):
            return FolderFindings([_unusable(error)], rest)
        differences = [DamagedFile("released/set-1.json", OTHER_LIMITS, "those of the measurement")]
    stated = read_object(public, MANIFEST).get("versions")
    protected_by = str(released.promise.get("protected_by") or "0.1.0 or earlier")
    if stated == versions() and protected_by == version_of("dpdist"):
        return FolderFindings(differences, [*lacking, *rest])
    by = json.dumps(stated, sort_keys=True) if isinstance(stated, dict) else "no versions"
    how = (
        f"as this version makes it from released/: dpdist {protected_by} protected the release, and it was published "
        f"with {printable(by, 300)}"
    )
    return FolderFindings([], [*(f"that {error.file} is {how} ({error.fault})" for error in differences), *lacking, *rest])


def _unusable(error: Exception) -> DamagedFile:
    return DamagedFile(
        "released/job.json", f"nothing can be published from it ({type(error).__name__})", "released/ as it was"
    )


def _rest(public: Path) -> Iterator[str]:
    """What nothing in the folder confirms, by file."""
    texts = REST | {f"released/{path.name}": SET for path in sorted((public / "released").glob("set-*.json"))}
    texts[MANIFEST] = "versions that published the folder"
    yield from (f"{name}: {text}" for name, text in texts.items() if (public / name).exists())


def _promise(public: Path, released: ReleasedObject) -> Iterator[DamagedFile]:
    """Entries of a promise that do not follow from the job, or are none of a run's."""
    job, promise = as_run(public, released.job), released.promise
    due = promised(mechanism_of(job).promise(job), {})
    for key in sorted(promise.keys() - due.keys() - OF_THE_RUN):
        yield DamagedFile(PROMISE, f"an entry {printable(key)}", "entries of a promise")
    further = len(promise.get("readers") or {})  # an assumption for each reader that a plug-in brings
    same = {
        "composition": promise.get("composition") == due["composition"],
        "assumptions": _assumed(job, promise.get("assumptions"), due["assumptions"], further),
        "cautions": set(due["cautions"]) <= set(map(str, promise.get("cautions") or ())),
    }
    for key in (key for key, equal in same.items() if not equal):
        yield DamagedFile(
            PROMISE, f"{key} {printable(json.dumps(promise.get(key)))}", f"{json.dumps(due[key])}, by its job"
        )


def _assumed(job: Job, assumptions: object, due: list[str], further: int) -> bool:
    """True for the assumptions of a job, of which some may be of the tables that it had first: later ones cost nothing."""
    first = mechanism_of(job).promise(job.model_copy(update={"tables": job.tables[:1]})).assumptions
    if not isinstance(assumptions, list) or not set(due) & set(first) <= set(map(str, assumptions)):
        return False
    return sum(text not in {*due, *first} for text in assumptions) == further


def _sizes(released: ReleasedObject) -> Iterator[DamagedFile]:
    """Numbers of records that do not follow from the noisy sums, where these measure them."""
    if not np.array_equal(public_frame(released.job, released.crosstab, released.sets).count, released.crosstab.count):
        yield DamagedFile(
            "released/frame.parquet", "numbers of records that do not follow from its noisy sums", "those of the sums"
        )


def _files(public: Path, again: Path) -> Iterator[DamagedFile]:
    """Files that the two folders have not in common, or that differ."""
    here, there = _names(public), _names(again)
    yield from (DamagedFile(name, "it is missing, and follows from released/", "the file") for name in sorted(there - here))
    yield from (DamagedFile(name, "it does not follow from released/", "files that do") for name in sorted(here - there))
    for name in sorted((here & there) - {MANIFEST}):
        if (where := _difference(public / name, again / name)) is not None:
            yield DamagedFile(name, f"{OTHER}{f': {printable(where)}' if where else ''}", "as `dpdist publish` makes it")
    manifest, other_manifest = (read_object(folder, MANIFEST) for folder in (public, again))
    for key in sorted((manifest.keys() | other_manifest.keys()) - {"files", "versions", "release"}):
        if manifest.get(key) != other_manifest.get(key):
            yield DamagedFile(MANIFEST, f"{printable(key)} {OTHER}", "as `dpdist publish` makes it")


def _names(folder: Path) -> set[str]:
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return files - {SIGNATURE, UNFIT}


def _difference(left: Path, right: Path) -> str | None:
    """Where two files differ beyond last digits, in words; None if they do not."""
    if left.read_bytes() == right.read_bytes():
        return None
    compare = {".json": _json, ".parquet": _parquet, ".xlsx": _members, ".dta": _stata}.get(left.suffix, _text)
    try:
        return compare(left, right)
    except (DpdistError, pa.ArrowException, zipfile.BadZipFile, OSError, ValueError, LookupError, TypeError) as error:
        return f"it cannot be read ({type(error).__name__})"


def _json(left: Path, right: Path) -> str | None:
    return next(_unequal("", *(json.loads(path.read_text(encoding="utf-8")) for path in (left, right))), None)


def _unequal(where: str, left: Any, right: Any) -> Iterator[str]:
    """Paths of JSON values that differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys()):
            if key not in left or key not in right:
                yield f"{where}{key}"
            else:
                yield from _unequal(f"{where}{key}.", left[key], right[key])
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for place, pair in enumerate(zip(left, right, strict=True)):
            yield from _unequal(f"{where}{place}.", *pair)
    elif isinstance(left, float) and isinstance(right, float):
        if not _close(np.array([left]), np.array([right])):
            yield where.rstrip(".")
    elif type(left) is not type(right) or left != right:
        yield where.rstrip(".")


def _parquet(left: Path, right: Path) -> str | None:
    tables = pq.read_table(left), pq.read_table(right)
    schemas = [
        table.schema.remove_metadata() if b"pandas" in (table.schema.metadata or {}) else table.schema for table in tables
    ]
    if not schemas[0].equals(schemas[1], check_metadata=True):
        return "its columns"
    return _columns(*({name: table[name] for name in table.column_names} for table in tables))


def _stata(left: Path, right: Path) -> str | None:
    frames, labels = list[pd.DataFrame](), list[Any]()
    for path in (left, right):
        opened: Any = pd.read_stata(path, convert_categoricals=False, iterator=True)
        with opened as reader:
            frames.append(reader.read())
            labels.append((reader.variable_labels(), reader.value_labels()))
    if labels[0] != labels[1]:
        return "its labels"
    return _columns(*({str(name): pa.chunked_array([pa.array(columns[name])]) for name in columns} for columns in frames))


def _columns(left: Mapping[str, pa.ChunkedArray], right: Mapping[str, pa.ChunkedArray]) -> str | None:
    """The first column that differs; None if there is none."""
    if list(left) != list(right):
        return "its columns"
    for name in left:
        first, second = left[name], right[name]
        if len(first) != len(second):
            return f"{len(first):,} rows, not {len(second):,}"
        if pa.types.is_floating(first.type) and pa.types.is_floating(second.type):
            same = first.is_null().equals(second.is_null()) and _close(first.to_numpy(), second.to_numpy())
        elif pa.types.is_nested(first.type):
            pairs = zip(first.to_pylist(), second.to_pylist(), strict=True)
            same = all(next(_unequal("", *pair), None) is None for pair in pairs)
        else:
            same = first.equals(second)
        if not same:
            return f"column {name}"
    return None


def _close(left: np.ndarray, right: np.ndarray) -> bool:
    most = np.abs(right[np.isfinite(right)]).max(initial=0.0)
    return bool(np.isclose(left, right, rtol=RELATIVE, atol=ABSOLUTE * most, equal_nan=True).all())


def _text(left: Path, right: Path) -> str | None:
    return _texts(left.read_text(encoding="utf-8"), right.read_text(encoding="utf-8"))


def _members(left: Path, right: Path) -> str | None:
    """The first file of a workbook that differs."""
    with zipfile.ZipFile(left) as first, zipfile.ZipFile(right) as second:
        if first.namelist() != second.namelist():
            return "its parts"
        for name in first.namelist():
            if _texts(first.read(name).decode(), second.read(name).decode()) is not None:
                return name
    return None


def _texts(left: str, right: str) -> str | None:
    """The first line in which texts differ, apart from last digits of their decimal numbers."""
    lines, right_lines = left.splitlines(), right.splitlines()
    if len(lines) != len(right_lines):
        return f"{len(lines):,} lines, not {len(right_lines):,}"
    for number, (line, due) in enumerate(zip(lines, right_lines, strict=True), start=1):
        if line != due and (NUMBER.sub("#", line) != NUMBER.sub("#", due) or not _numbers_close(line, due)):
            return f"line {number:,}"
    return None


def _numbers_close(line: str, due: str) -> bool:
    pairs = zip(NUMBER.findall(line), NUMBER.findall(due), strict=True)
    return all(left == right or _decimal_close(left, right) for left, right in pairs)


def _decimal_close(left: str, right: str) -> bool:
    """True for two decimal numbers that are equal but for last digits; whole numbers must be equal."""
    left, right = left.replace(",", ""), right.replace(",", "")
    integers = left.lstrip("-").isdigit() and right.lstrip("-").isdigit()
    return not integers and abs(float(left) - float(right)) <= RELATIVE * max(abs(float(left)), abs(float(right)))


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
FIGURE = re.compile(r"\d+(?:[./,]\d+)*")
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
    """Lists problems, one line each: see `verify_folder`."""
    return verify_folder(public, key).problems


def verify_folder(public: Path, key: PublicKey | None = None, listener: Listener = silent) -> Verification:
    """Verifies a folder: files changed, missing or added, wrong claims, files that do not follow from released/, and
    whether the key signed it.

    What follows from released/ is published again: this takes as long as `dpdist publish`.
    """
    lines = [str(error) for error in all_damage(public) or _claims(public)]
    again = rest = FolderFindings([])
    if not lines:
        job, statement = read_job(public, "released/job.json"), read_object(public, STATEMENT)
        again, rest = rederivation(public, job, statement), remade(public, listener)
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
    except DamagedFile:
        return []
    return advisories(job, str(promise.get("protected_by") or ""))


def refuse_unverified(public: Path, made_again: bool = False) -> None:
    """Raises `WorkspaceError` for a folder that was changed since its release. A replay's folder is accepted.

    With `made_again`, files that follow from released/ may be missing, because they will be made again.
    """
    damage = all_damage(public) or _claims(public)
    faults = [error for error in damage if not (made_again and error.fault == MISSING and _derived(error.file))]
    if faults:
        more = f", and {len(faults) - 1} more files differ from the manifest" if len(faults) > 1 else ""
        raise WorkspaceError(str(public), f"{faults[0]}{more}, allowed: {faults[0].allowed}", faults[0].remedy or REMEDY)


def _derived(name: str) -> bool:
    return name != MANIFEST and not name.startswith("released/")


def sign(public: Path, key: SecretKey) -> None:
    """Signs a folder's manifest. Raises `WorkspaceError` for a folder with any of `problems`; every replay has one."""
    if wrong := problems(public):
        raise WorkspaceError(
            str(public), f"it is not signed: {wrong[0]}", "sign a folder in which `dpdist verify` finds no fault"
        )
    manifest, listed = read_object(public, MANIFEST), read_job(public, "released/job.json").approvers
    if listed and key.public not in map(PublicKey.parse, listed):
        fault = f"it is not signed: its job lists the keys that may approve it, and {key.public.name} is not one of them"
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


def _claims(public: Path) -> list[DamagedFile]:
    """Lists claims of the statement and of the promise that do not follow from the released job."""
    try:
        job = read_job(public, "released/job.json")
        due = promised(mechanism_of(job).promise(job), {})
        statements = {name: read_object(public, name) for name in SAYING}
        refuse_format(STATEMENT, statements[STATEMENT].get("format"), FORMAT)
    except DamagedFile as error:
        return [error]
    except (DpdistError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        fault = f"a job that can give no guarantee ({type(error).__name__})"
        return [DamagedFile("released/job.json", fault, "the job as it was released")]
    try:
        proof = rederivation(public, job, statements[STATEMENT]).faults
    except DamagedFile as error:
        proof = [error]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        proof = [
            DamagedFile(STATEMENT, f"figures that cannot be compared ({type(error).__name__})", "those of its proof record")
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


def _figures(name: str, figures: Iterable[str], file: Mapping[str, Any], due: Mapping[str, Any]) -> Iterator[DamagedFile]:
    for figure in figures:
        if file.get(figure) != due.get(figure):
            yield _unlike(name, figure, file.get(figure), due.get(figure))


def _unlike(name: str, figure: str, value: object, due: object) -> DamagedFile:
    return DamagedFile(name, f"{figure} {_shown(value)}", f"{_shown(due)}, which follows from its job")


def _words(job: Job, statement: Mapping[str, Any]) -> Iterator[DamagedFile]:
    """Yields sentences whose numbers differ from those that follow from the job. Their wording is not checked."""
    for name, worded in IN_WORDS.items():
        if name not in statement and statement.get("guarantee") == "none":
            continue
        numbers, due = (FIGURE.findall(str(text)) for text in (statement.get(name), worded(job)))
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
    noisy, limit, sd = (float(value) for value in values)
    return gate.get("accepted") is True and noisy <= limit and sd > 0


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=True)

"""Keeps the results of a rehearsal in its folder as soon as they are there, so that a killed rehearsal resumes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from dpdist.core.errors import DataError, DpdistError, FitError, JobError, WorkspaceError
from dpdist.core.files import replaced, write_json
from dpdist.core.progress import Event, Listener
from dpdist.studies.rehearsal_candidates import Candidate
from dpdist.studies.rehearsal_trials import Trial

STORED, BEGUN, LOCK = ".dpdist-rehearsal", "begun.json", ".dpdist-rehearsal.lock"
CSV, CONFIRMATION, RECOMMENDED, PAGE = "rehearsal.csv", "confirmation.csv", "recommended.yaml", "index.html"
PART = re.compile(r"(\d+-\d+-[0-9a-f]{16})\.(parquet|json)")
UNFINISHED = re.compile(rf"\.({PART.pattern}|{re.escape(BEGUN)})\.[0-9a-f]{{12}}\.part")
"""Name of a file that a killed process was writing."""
REFUSALS = (JobError, DataError, FitError)
"""Errors that follow from job and public file. Others may be gone when the rehearsal is resumed."""
ANEW = (
    "The folder holds results of a rehearsal of another job, file or version, or its list of these is damaged. "
    "This rehearsal begins anew."
)
META = b"dpdist.trial"


@dataclass(frozen=True)
class Results:
    """The results of a rehearsal so far: one file for each release of a candidate, also for a refused one."""

    folder: Path

    def of(self, candidate: Candidate, current: int, draw: int, make: Callable[[], Trial]) -> Trial:
        """The result of a release: the stored one, or a new one, which is stored. Raises `DpdistError` if it is refused."""
        name = f"{current}-{draw}-{hashlib.sha256(candidate.label.encode()).hexdigest()[:16]}"
        path, refusal = self.folder / f"{name}.parquet", self.folder / f"{name}.json"
        if (reason := _reason(refusal)) is not None:
            raise DpdistError(reason)
        if (made := _read(path, candidate)) is not None:
            return made
        try:
            made = make()
        except REFUSALS as error:
            write_json(refusal, {"mechanism": candidate.label, "refused": in_one_line(error)})
            raise
        _write(path, made)
        return made

    def __len__(self) -> int:
        names = (PART.fullmatch(path.name) for path in self.folder.iterdir())
        return len({name[1] for name in names if name})


def in_one_line(error: DpdistError) -> str:
    """An error in one line. It may be shown, because the file is public."""
    problems = getattr(error, "problems", ())
    return f"{problems[0].where}: {problems[0].fault}" if problems else str(error).splitlines()[0]


@contextmanager
def resumable(out: Path, identity: Mapping[str, Any], listener: Listener) -> Iterator[Results]:
    """Claims the folder for one rehearsal. Results of an unfinished one with this identity are used, and others removed.

    A note says which. After the block they are removed, because the rehearsal is finished. Files that no rehearsal names
    are kept. Raises `WorkspaceError` if another process uses the folder, or if no rehearsal began its folder of results.
    """
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        remedy = "wait for it, or choose another folder"
        raise WorkspaceError(str(out), "another rehearsal runs in it", remedy) from None
    try:
        yield _begun(out, identity, listener)
        _remove(out / STORED)
        with suppress(OSError):  # It holds files of others.
            (out / STORED).rmdir()
    finally:
        lock.release()


def _begun(out: Path, identity: Mapping[str, Any], listener: Listener) -> Results:
    results, path = Results(out / STORED), out / STORED / BEGUN
    _refuse_others(out)
    if path.exists():
        if _stored(path) == dict(identity):
            if number := len(results):
                what = "result" if number == 1 else "results"
                text = f"The folder holds {number} {what} of this rehearsal: it resumes with them."
                listener(Event("note", "rehearse", note=text))
            return results
        listener(Event("note", "rehearse", note=ANEW))
        _remove(results.folder)
    for name in (RECOMMENDED, PAGE, CONFIRMATION, CSV):
        (out / name).unlink(missing_ok=True)
    results.folder.mkdir(exist_ok=True)
    write_json(path, dict(identity))
    return results


def _refuse_others(out: Path) -> None:
    """Refuses a folder of results, or a file of its name, that is not a rehearsal's. One killed at once left it empty."""
    folder = out / STORED
    if not folder.exists() or (folder / BEGUN).exists():
        return
    if not folder.is_dir() or any(not UNFINISHED.fullmatch(path.name) for path in folder.iterdir()):
        remedy = f"move it elsewhere if you need it, else remove it, or choose another folder than {out}"
        raise WorkspaceError(str(folder), f"no rehearsal began it, because it has no {BEGUN}", remedy, 2)


def _remove(folder: Path) -> None:
    """Removes the rehearsal's files; its list last, so that a rehearsal killed meanwhile still has one."""
    for path in list(folder.iterdir()):
        if PART.fullmatch(path.name) or UNFINISHED.fullmatch(path.name):
            path.unlink()
    (folder / BEGUN).unlink(missing_ok=True)


def _stored(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _reason(path: Path) -> str | None:
    """The stored reason of a refusal; None where there is none, or a damaged one."""
    try:
        return str(_stored(path)["refused"])
    except (KeyError, TypeError):
        return None


def _write(path: Path, made: Trial) -> None:
    """Writes a trial atomically: its cells, and the other figures beside them."""
    facts = json.dumps({"label": made.candidate.label, "suppressed": made.suppressed, "seconds": made.seconds})
    table = pa.Table.from_pandas(made.cells, preserve_index=False)
    with replaced(path) as temporary:
        pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), META: facts}), temporary)


def _read(path: Path, candidate: Candidate) -> Trial | None:
    """A stored trial; None where there is none, or a damaged one."""
    try:
        table = pq.read_table(path)
        facts = json.loads(table.schema.metadata[META])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None
    cells: pd.DataFrame = table.to_pandas()
    return Trial(candidate, cells, int(facts["suppressed"]), float(facts["seconds"]))

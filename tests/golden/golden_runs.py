"""Runs of the recorded jobs, the same every time, and what is kept of them: digests of files and sums of their numbers.

A figure in a file depends on the processor in its last digits. So a record of a file has three parts: the SHA-256 of its
bytes, which holds on one machine type with the same libraries; the SHA-256 of its text with every number taken out; and a
weighted sum of its numbers, in which each has weight by its place and counts by its relative size. The comparison goes by
the last two: sums agree within `tolerance`. Rounded numbers would not do: one in a million pairs that differ in the last
digit is rounded apart, and the files hold many numbers. Versions of libraries and the day are left out. So are the page
and the workbook, which say what other files do and have tests of their own.

Random numbers on a reference follow from the checksum of its file, and the file's last digits from the processor that made
it. So the checksums of the files that the record was made with are kept, and take the place of these files' own.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from small_jobs import Said
from small_runs import run

from dpdist.core.files import sha256
from dpdist.survey.one_file import OneFile

GOLDENS = Path(__file__).parent / "released"
INPUTS = Path(__file__).parent / "inputs.json"
TOLERANCE = 1e-9
LEAST, MOST = 1.5e-7, 9e-7
SMALLEST = 1e-6
"""Numbers count by the logarithm of their size; those far below this one count as 0."""
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w]|\.\d)")
_DATE = re.compile(r'"date": ?"[0-9-]+"')
_PRINTED = (".html", ".xlsx")
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


class Kept(NamedTuple):
    """What is kept of a file."""

    bytes: str
    text: str
    numbers: int
    total: float


def tolerance(numbers: int) -> float:
    """Difference of sums that last digits may make. A relative change of 1e-6 in one number of any file is above it."""
    return min(max(TOLERANCE * numbers, LEAST), MOST)


@cache
def fingerprints() -> dict[str, str]:
    """SHA-256 of the jobs' files, by name, as they were when the record was made."""
    found: dict[str, str] = json.loads(INPUTS.read_text(encoding="utf-8"))
    return found


def write_fingerprints(inputs: Path) -> None:
    """Takes the checksums of these files from now on."""
    found = {path.name: sha256(path) for path in sorted(inputs.glob("*.parquet"))}
    INPUTS.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    fingerprints.cache_clear()


def _fingerprint(source: OneFile) -> str:
    return fingerprints().get(source.path.name) or sha256(source.path)


def released(name: str, job: Said, inputs: Path, workspace: Path) -> dict[str, Kept]:
    """Run a job and keep what it left: the public folder, and the tables and bounds of the confidential one."""
    with patch.object(OneFile, "fingerprint", _fingerprint):
        run(name, job, inputs, workspace)
    own = [path for path in (workspace / "public").rglob("*") if path.is_file() and path.suffix not in _PRINTED]
    own += [*(workspace / "confidential").glob("*.parquet"), *(workspace / "confidential" / "evaluation").glob("*.parquet")]
    return {path.relative_to(workspace).as_posix(): kept(path) for path in sorted(own)}


def kept(path: Path) -> Kept:
    content = path.read_bytes()
    text, numbers = _columns(pq.read_table(path)) if path.suffix == ".parquet" else _parted(_plain(path, content))
    return Kept(_short(content), _short(text.encode()), len(numbers), _total(np.array(numbers, dtype=float)))


def _plain(path: Path, content: bytes) -> str:
    text = _DATE.sub('"date": "day"', content.decode("utf-8"))
    if '"chain"' in text:  # an earlier release's checksum vouches for its page too
        text = _DIGEST.sub("digest", text)
    if path.name != "manifest.json":
        return text
    manifest: dict[str, Any] = json.loads(text)
    return _DIGEST.sub("digest", json.dumps(manifest | {"versions": sorted(manifest["versions"])}))


def _parted(text: str) -> tuple[str, list[float]]:
    return _NUMBER.sub("#", text), [float(number) for number in _NUMBER.findall(text)]


def _columns(table: pa.Table) -> tuple[str, list[float]]:
    """Names and values that are no numbers; numbers by column."""
    texts, numbers = list[Any](), list[float]()
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.to_pylist()
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            missing = [place for place, value in enumerate(values) if value is None or not np.isfinite(value)]
            texts.append([name, len(values), missing, [str(values[place]) for place in missing]])
            numbers += [0.0 if value is None or not np.isfinite(value) else float(value) for value in values]
        elif pa.types.is_nested(column.type):
            parted = [_parted(str(value)) for value in values]
            texts.append([name, [text for text, _ in parted]])
            numbers += [number for _, own in parted for number in own]
        else:
            texts.append([name, [str(value) for value in values]])
    return json.dumps(texts), numbers


def _total(numbers: np.ndarray) -> float:
    weights = np.random.default_rng(0).uniform(1.0, 2.0, len(numbers))
    return float(weights @ np.arcsinh(numbers / SMALLEST))


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def differences(golden: dict[str, Kept], found: dict[str, Kept], exact: bool = False) -> list[str]:
    """Files that differ, each with how; `exact`: in any byte, on the machine type and under the libraries of the record."""
    lines = [f"{path}: no longer written" for path in golden.keys() - found.keys()]
    lines += [f"{path}: written now" for path in found.keys() - golden.keys()]
    for path in golden.keys() & found.keys():
        old, new = golden[path], found[path]
        if exact and old.bytes != new.bytes:
            lines.append(f"{path}: other bytes")
        if old.text != new.text:
            lines.append(f"{path}: other text")
        elif old.numbers != new.numbers:
            lines.append(f"{path}: {new.numbers} numbers, not {old.numbers}")
        elif abs(old.total - new.total) > tolerance(old.numbers):
            lines.append(f"{path}: other numbers")
    return sorted(lines)


def read_golden(name: str) -> dict[str, Kept]:
    return {path: Kept(*one) for path, one in json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8")).items()}


def write_golden(name: str, found: dict[str, Kept]) -> None:
    lines = ",\n".join(f"{json.dumps(path)}: {json.dumps(list(one))}" for path, one in found.items())
    GOLDENS.mkdir(exist_ok=True)
    (GOLDENS / f"{name}.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")

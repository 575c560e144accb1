"""Runs of the recorded jobs, the same every time, and what is kept of them: digests of files and sums of their numbers.

A processor's arithmetic changes a figure in its last digits. So a record of a file has three parts:

- the SHA-256 of its bytes, with all digits, compared where a run uses the processor and the libraries of the record;
- the SHA-256 of its text without its decimal numbers, compared everywhere: names, levels, integers, guarantees, words;
- a weighted sum of its decimal numbers, compared everywhere within `tolerance`. Each number has weight by its place and
  counts by its relative size.

Rounded numbers would not do: one in a million pairs that differ in the last digit is rounded apart, and the files hold
many numbers. Integers of a file of commas are among the decimal numbers, because such a file writes 3.0 as 3. Versions of
libraries and the day are left out. So are the page and the workbook, which say what other files do and have tests of
their own. The proof record follows from the job alone: `mechanisms/test_proof.py` holds that of every job.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding
import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from small_jobs import Said
from small_runs import run
from threadpoolctl import threadpool_info

GOLDENS = Path(__file__).parent / "released"
TOLERANCE = 1e-9
LEAST, MOST = 1.5e-7, 9e-7
SMALLEST = 1e-6
"""Numbers count by the logarithm of their size; those far below this one count as 0."""
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w]|\.\d)")
_DECIMAL = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)(?![\w]|\.\d)")
_DATE = re.compile(r'"date": ?"[0-9-]+"')
_VERSION = re.compile(r'"protected_by": ?"[^"]*",?\s*')
_PRINTED = (".html", ".xlsx")
_PROOF = "proof.json"
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


class Kept(NamedTuple):
    """What is kept of a file; `bytes` are those of its text without day, versions and checksums, if it is a text."""

    bytes: str
    text: str
    numbers: int
    total: float


def tolerance(numbers: int) -> float:
    """Difference of sums that last digits may make. A relative change of 1e-6 in one number of any file is above it."""
    return min(max(TOLERANCE * numbers, LEAST), MOST)


def released(name: str, job: Said, inputs: Path, workspace: Path) -> Golden:
    """Run a job and keep what it left: the public folder, and the tables and bounds of the confidential one."""
    run(name, job, inputs, workspace)
    own = [path for path in (workspace / "public").rglob("*") if path.is_file() and path.suffix not in _PRINTED]
    own = [path for path in own if path.name != _PROOF]
    own += [*(workspace / "confidential").glob("*.parquet"), *(workspace / "confidential" / "evaluation").glob("*.parquet")]
    return Golden(processor(), {path.relative_to(workspace).as_posix(): kept(path) for path in sorted(own)})


def kept(path: Path) -> Kept:
    if path.suffix == ".parquet":
        content = path.read_bytes()
        text, numbers = _columns(pq.read_table(path))
    else:
        whole = _plain(path)
        content = whole.encode()
        text, numbers = _parted(whole, _NUMBER if path.suffix == ".csv" else _DECIMAL)
    return Kept(_short(content), _short(text.encode()), len(numbers), _total(np.array(numbers, dtype=float)))


def _plain(path: Path) -> str:
    text = _VERSION.sub("", _DATE.sub('"date": "day"', path.read_text(encoding="utf-8")))
    if '"chain"' in text:  # an earlier release's checksum vouches for its page too
        text = _DIGEST.sub("digest", text)
    if '"content"' in text and _reference_is_simulated(path):  # its last digits are the processor's
        text = _DIGEST.sub("digest", text)
    if path.name != "manifest.json":
        return text
    manifest: dict[str, Any] = json.loads(text)
    manifest["files"].pop(f"released/{_PROOF}", None)
    return _DIGEST.sub("digest", json.dumps(manifest | {"versions": sorted(manifest["versions"])}))


def _reference_is_simulated(path: Path) -> bool:
    public = next(folder for folder in path.parents if folder.name == "public")
    job = json.loads((public / "released" / "job.json").read_text(encoding="utf-8"))
    return bool((job.get("reference") or {}).get("simulate"))


def _parted(text: str, taken: re.Pattern[str]) -> tuple[str, list[float]]:
    """The text without the numbers that are taken out, and these."""
    return taken.sub("#", text), [float(number) for number in taken.findall(text)]


def _columns(table: pa.Table) -> tuple[str, list[float]]:
    """Names and values that are no decimal numbers; decimal numbers by column."""
    texts, numbers = list[Any](), list[float]()
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.to_pylist()
        if pa.types.is_floating(column.type):
            missing = [place for place, value in enumerate(values) if value is None or not np.isfinite(value)]
            texts.append([name, len(values), missing, [str(values[place]) for place in missing]])
            numbers += [0.0 if value is None or not np.isfinite(value) else float(value) for value in values]
        elif pa.types.is_nested(column.type):
            parted = [_parted(str(value), _DECIMAL) for value in values]
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


class Golden(NamedTuple):
    """A record: the processor and libraries that made it, in words, and what is kept by file."""

    processor: str
    files: dict[str, Kept]


@cache
def processor() -> str:
    """What decides on last digits in this process: instruction sets in use, and versions of libraries."""
    blas = sorted({f"{pool['architecture']}×{pool['num_threads']}" for pool in threadpool_info() if "architecture" in pool})
    sets = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    compiled = numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    libraries = [f"{name} {version(name)}" for name in ("numpy", "scipy", "numba", "pandas", "pyarrow")]
    return "; ".join([" ".join(blas), " ".join(sets), compiled, *libraries])


def differences(golden: Golden, found: Golden) -> list[str]:
    """Files that differ, each with how; in any byte, where both are of one processor."""
    old_files, new_files = golden.files, found.files
    lines = [f"{path}: no longer written" for path in old_files.keys() - new_files.keys()]
    lines += [f"{path}: written now" for path in new_files.keys() - old_files.keys()]
    for path in old_files.keys() & new_files.keys():
        old, new = old_files[path], new_files[path]
        if old.text != new.text:
            lines.append(f"{path}: other text")
        elif old.numbers != new.numbers:
            lines.append(f"{path}: {new.numbers} numbers, not {old.numbers}")
        elif abs(old.total - new.total) > tolerance(old.numbers):
            lines.append(f"{path}: other numbers")
        elif golden.processor == found.processor and old.bytes != new.bytes:
            lines.append(f"{path}: other bytes")
    return sorted(lines)


def read_golden(name: str) -> Golden:
    record = json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))
    return Golden(record["processor"], {path: Kept(*one) for path, one in record["files"].items()})


def write_golden(name: str, golden: Golden) -> None:
    lines = ",\n".join(f"{json.dumps(path)}: {json.dumps(list(one))}" for path, one in golden.files.items())
    GOLDENS.mkdir(exist_ok=True)
    head = f'{{\n"processor": {json.dumps(golden.processor, ensure_ascii=False)},\n"files": {{\n'
    (GOLDENS / f"{name}.json").write_text(head + lines + "\n}\n}\n", encoding="utf-8")

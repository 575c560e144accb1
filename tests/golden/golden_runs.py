"""Runs of the recorded jobs, the same every time, and what is kept of them: digests of files and sums of their numbers.

A figure in a file depends on the processor in its last digits. So a record of a file has three parts: the SHA-256 of its
bytes, which holds on one machine type with the same libraries; the SHA-256 of its text with every number taken out; and a
weighted sum of its numbers, in which each has weight by its place and counts by its relative size. The comparison goes by
the last two: numbers agree within 1e-9 of their size in the mean. Rounded numbers would not do: one in a million pairs
that differ in the last digit is rounded apart, and the files hold many numbers. Versions of libraries are left out.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import opendp.measurements
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from golden_jobs import CURRENT, EARLIER, RELEASED, Said, parsed, rooted, said, shipped, survey
from shipped_surveys import simulated_survey

import dpdist

GOLDENS = Path(__file__).parent / "released"
TOLERANCE = 1e-9
SMALLEST = 1e-6
"""Numbers count by the logarithm of their size; those far below this one count as 0."""
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w]|\.\d)")
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


class Kept(NamedTuple):
    """What is kept of a file."""

    bytes: str
    text: str
    numbers: int
    total: float


@contextmanager
def named(name: str) -> Iterator[None]:
    """Root keys and OpenDP's noise follow from the name: differences of geometric numbers, and rounded normal ones."""
    numbers, keys = itertools.count(), itertools.count()

    def generator() -> np.random.Generator:
        digest = hashlib.blake2b(f"{name} {next(numbers)}".encode(), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(digest, "little"))

    def make_laplace(*_: object, scale: float) -> Callable[[list[int]], list[int]]:
        def measurement(values: list[int]) -> list[int]:
            one, other = generator().geometric(-np.expm1(-1.0 / scale), (2, len(values)))
            return (np.array(values, dtype=np.int64) + one - other).tolist()

        return measurement

    def make_gaussian(*_: object, scale: float) -> Callable[[list[int]], list[int]]:
        def measurement(values: list[int]) -> list[int]:
            noise = np.rint(scale * generator().standard_normal(len(values)))
            return (np.array(values, dtype=np.int64) + noise.astype(np.int64)).tolist()

        return measurement

    def token_bytes(size: int = 32) -> bytes:
        return hashlib.blake2b(f"{name} key {next(keys)}".encode(), digest_size=size).digest()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opendp.measurements, "make_laplace", make_laplace)
        patch.setattr(opendp.measurements, "make_gaussian", make_gaussian)
        patch.setattr(secrets, "token_bytes", token_bytes)
        yield


def write_inputs(folder: Path) -> None:
    """The files that the jobs name."""
    survey(1).to_parquet(folder / CURRENT)
    survey(2).to_parquet(folder / EARLIER)
    for job in shipped().values():
        for seed, path in enumerate([job["input"].get("path"), (job.get("reference") or {}).get("path")], 3):
            if path is not None:
                simulated_survey(job, seed).to_parquet(folder / path)
    first = said("reference_tables", "substitution", "reference_cells") | {"period": "2018", "input": {"path": EARLIER}}
    work = folder / "earlier_work"
    with named(RELEASED):
        dpdist.run(parsed(rooted(first | {"reference": {"histogram": {"epsilon": "3"}}}, folder)), work)
    (work / "public").rename(folder / RELEASED)


def released(name: str, job: Said, inputs: Path, workspace: Path) -> dict[str, Kept]:
    """Run a job and keep what it left: the public folder, and the tables and bounds of the confidential one."""
    with named(name):
        dpdist.run(parsed(rooted(job, inputs)), workspace)
    own = [path for path in (workspace / "public").rglob("*") if path.is_file()]
    own += [*(workspace / "confidential").glob("*.parquet"), *(workspace / "confidential" / "evaluation").glob("*.parquet")]
    return {path.relative_to(workspace).as_posix(): kept(path) for path in sorted(own)}


def kept(path: Path) -> Kept:
    content = path.read_bytes()
    text, numbers = _columns(pq.read_table(path)) if path.suffix == ".parquet" else _parted(_plain(path, content))
    return Kept(_short(content), _short(text.encode()), len(numbers), _total(np.array(numbers, dtype=float)))


def _plain(path: Path, content: bytes) -> str:
    text = content.decode("utf-8")
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
        elif abs(old.total - new.total) > TOLERANCE * max(old.numbers, 1):
            lines.append(f"{path}: other numbers")
    return sorted(lines)


def read_golden(name: str) -> dict[str, Kept]:
    return {path: Kept(*one) for path, one in json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8")).items()}


def write_golden(name: str, found: dict[str, Kept]) -> None:
    lines = ",\n".join(f"{json.dumps(path)}: {json.dumps(list(one))}" for path, one in found.items())
    GOLDENS.mkdir(exist_ok=True)
    (GOLDENS / f"{name}.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")

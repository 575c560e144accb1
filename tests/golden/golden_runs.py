"""Runs of the recorded jobs, the same every time, and what is recorded of them: digests of texts and sums of numbers.

A processor's arithmetic changes a figure in its last digits, and so does another version of a library. So the record of a
file has two parts that hold everywhere, and one that holds in one place:

- the SHA-256 of its text without its decimal numbers: names, levels, integers, guarantees and words are compared exactly;
- sums over `BLOCK` decimal numbers of a column at a time, compared within a tolerance that follows from conditioning;
- the SHA-256 of its bytes, compared under the plain instruction set alone (`plain.py`), with the libraries of the record.

Conditioning: with ε = 2⁻⁵² the last digit, a figure of a fit or of a derivative by finite differences is known to √ε of its
size. A difference that cancels is known to ε of the figures it is a difference of, which are of the size of its column.
So a number x of a column with largest L counts as asinh(x / √ε L). That has an error of √ε in both cases. For a column of
nothing but cancelled differences, √ε L is at least `LEAST`. `tables` rounds sums within estimated limits to a grid, where a
last digit may lead to the neighbouring point: there 2⁻²⁰ stands for √ε. Over 707,274 numbers of other mechanisms
kernels for AVX-512 and for SSE3 differed by at most 5.4e-9, relatively: a third of √ε, with one number that cancels.

Integers of a file of commas are among the decimal numbers, because such a file writes 3.0 as 3. Versions and the day are
left out. So are the page and the workbook, which say what other files do and have tests of their own. The proof record
follows from the job alone: `mechanisms/test_proof.py` holds that of every job.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plain
import pyarrow as pa
import pyarrow.parquet as pq
from named_draws import Drawn
from small_jobs import Said
from small_runs import run

from dpdist.core.records import UNIT

GOLDENS = Path(__file__).parent / "released"
LIBRARIES = Path(__file__).parent / "libraries.txt"
"""Libraries that computed the recorded bytes, as pip reads them."""
KNOWN_TO = float(np.sqrt(np.finfo(float).eps))
"""Relative error that any figure may have on another processor."""
ON_GRID = 1.0 / UNIT
"""The same of `tables`, whose sums lie on a grid of this step."""
CANCELLING = 1_000.0
"""Largest ratio of figures to their small errors, where counts are public and all errors are those of means."""
BLOCK = 32
"""Numbers of a sum; a relative change of 1e-6 in one of them is above the tolerance of the sum."""
LEAST = 1e-3
"""Size of numbers that count relatively in a column of nothing but smaller ones."""
_WEIGHTS = np.random.default_rng(0).uniform(1.0, 2.0, BLOCK)
"""Weights by place within a block: numbers that change places change the sum."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_DECIMAL = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)(?![\w]|\.\d)")
_DATE = re.compile(r'"date": ?"[0-9-]+"')
_VERSION = re.compile(r'"protected_by": ?"[^"]*",?\s*')
_PRINTED = (".html", ".xlsx")
_PROOF = "proof.json"
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")
Columns = Mapping[str, list[float]]


class Content(NamedTuple):
    """A file: its bytes, of a text without day, versions and checksums; its text without numbers; its numbers by column."""

    content: bytes
    text: str
    columns: Columns


class Sums(NamedTuple):
    """Of a column: how many numbers, the size down to which they count relatively, and a sum for each block."""

    numbers: int
    knee: float
    sums: list[float]


class Record(NamedTuple):
    """What is recorded of a file."""

    bytes: str
    text: str
    columns: dict[str, Sums]


def released(name: str, job: Said, inputs: Path, workspace: Path, drawn: list[Drawn] | None = None) -> dict[str, Content]:
    """Run a job and read what it left: the public folder, and the tables and bounds of the confidential one.

    `drawn` is told of its noise.
    """
    run(name, job, inputs, workspace, drawn)
    own = [path for path in (workspace / "public").rglob("*") if path.is_file() and path.suffix not in _PRINTED]
    own = [path for path in own if path.name != _PROOF]
    own += [*(workspace / "confidential").glob("*.parquet"), *(workspace / "confidential" / "evaluation").glob("*.parquet")]
    return {path.relative_to(workspace).as_posix(): content_of(path) for path in sorted(own)}


def content_of(path: Path) -> Content:
    columns: dict[str, list[float]] = defaultdict(list)
    if path.suffix == ".parquet":
        return Content(path.read_bytes(), _text_of_table(pq.read_table(path), columns), columns)
    text = _plain(path)
    if path.suffix == ".json":
        return Content(text.encode(), json.dumps(_without_numbers(json.loads(text), path.stem, columns)), columns)
    if path.suffix == ".csv":
        rows = [
            [_without_numbers(_value(cell), f"column {place}", columns) for place, cell in enumerate(row, 1)]
            for row in csv.reader(text.splitlines())
        ]
        return Content(text.encode(), json.dumps(rows), columns)
    return Content(text.encode(), _without_numbers(text, path.stem, columns), columns)


@cache
def _value(cell: str) -> float | str:
    return float(cell) if _NUMBER.fullmatch(cell) else cell


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


def _text_of_table(table: pa.Table, columns: dict[str, list[float]]) -> str:
    values = {name: table.column(name).to_pylist() for name in table.column_names}
    return json.dumps([[name, [_without_numbers(value, name, columns) for value in own]] for name, own in values.items()])


def _without_numbers(value: Any, name: str, columns: dict[str, list[float]], *, in_list: bool = False) -> Any:
    """The value with `#` for each decimal number, which goes to the column of its key and its place in a list of lists."""
    if isinstance(value, float) and math.isfinite(value):
        columns[name].append(value)
        return "#"
    if isinstance(value, dict):
        return {key: _without_numbers(each, str(key), columns) for key, each in value.items()}
    if isinstance(value, list | tuple):
        names = [f"{name}[{place}]" if in_list else name for place in range(len(value))]
        return [_without_numbers(each, own, columns, in_list=True) for each, own in zip(value, names, strict=True)]
    if isinstance(value, str):
        text, numbers = _apart(value)
        columns[name] += numbers
        return text
    return value if value is None or isinstance(value, int) else str(value)


@cache
def _apart(text: str) -> tuple[str, list[float]]:
    """A text with `#` for its decimal numbers, and these; most are levels, which stand in many rows."""
    return _DECIMAL.sub("#", text), [float(number) for number in _DECIMAL.findall(text)]


def precision(name: str) -> float:
    """Relative error that any figure of a job's record may have on another processor."""
    if name == "tables-public-weights":
        return CANCELLING * ON_GRID
    return ON_GRID if name.startswith(("tables-", "shipped-doctorates_tables")) else KNOWN_TO


def record_of(found: Content, known_to: float = KNOWN_TO) -> Record:
    columns = {name: _sums_of(numbers, known_to) for name, numbers in found.columns.items() if numbers}
    return Record(_short(found.content), _short(found.text.encode()), columns)


def _sums_of(numbers: list[float], known_to: float) -> Sums:
    knee = float(f"{max(LEAST, known_to * np.abs(numbers).max()):.3g}")
    return Sums(len(numbers), knee, _sums(numbers, knee).round(7).tolist())


def _sums(numbers: list[float], knee: float) -> np.ndarray:
    sizes = np.zeros(-(-len(numbers) // BLOCK) * BLOCK)
    sizes[: len(numbers)] = np.arcsinh(np.array(numbers) / knee)
    return sizes.reshape(-1, BLOCK) @ _WEIGHTS


def _short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def differences(
    golden: Mapping[str, Record], found: Mapping[str, Content], known_to: float = KNOWN_TO, *, in_bytes: bool | None = None
) -> list[str]:
    """Files that differ, each with how; in any byte under the plain instruction set, unless the caller says otherwise."""
    lines = [f"{path}: no longer written" for path in golden.keys() - found.keys()]
    lines += [f"{path}: written now" for path in found.keys() - golden.keys()]
    for path in golden.keys() & found.keys():
        old, new = golden[path], found[path]
        if old.text != _short(new.text.encode()):
            lines.append(f"{path}: other text")
        elif moved := [
            line for name in old.columns for line in _moved(name, old.columns[name], new.columns[name], known_to)
        ]:
            lines += [f"{path}: {line}" for line in moved]
        elif (plain.in_force() if in_bytes is None else in_bytes) and old.bytes != _short(new.content):
            lines.append(f"{path}: other bytes")
    return sorted(lines)


def _moved(name: str, old: Sums, numbers: list[float], known_to: float) -> list[str]:
    """Blocks of a column whose sum is further from the recorded one than errors of all its numbers together make it."""
    apart = np.abs(_sums(numbers, old.knee) - np.array(old.sums)) > known_to * _WEIGHTS.sum()
    places = [(block * BLOCK + 1, min((block + 1) * BLOCK, old.numbers)) for block in np.flatnonzero(apart)]
    return [f"other numbers in {name}, {first} to {last} of {old.numbers}" for first, last in places]


def other_libraries() -> list[str]:
    """Libraries of another version than those that computed the recorded bytes, each as pip would install it."""
    return [line for line in LIBRARIES.read_text(encoding="utf-8").split() if line not in _libraries()]


def write_libraries() -> None:
    LIBRARIES.write_text("\n".join(_libraries()) + "\n", encoding="utf-8")


def _libraries() -> list[str]:
    return [f"{name}=={version(name)}" for name in ("numba", "numpy", "pandas", "pyarrow", "scipy")]


def read_golden(name: str) -> dict[str, Record]:
    said = json.loads((GOLDENS / f"{name}.json").read_text(encoding="utf-8"))
    every = [Sums(*each) for each in said["sums"]]
    return {
        path: Record(bytes_, text, {column: every[place] for column, place in columns.items()})
        for path, (bytes_, text, columns) in said["files"].items()
    }


def write_golden(name: str, found: Mapping[str, Content]) -> None:
    """Columns that are equal stand once: a table as Parquet, as CSV, beside its direct estimates."""
    places = dict[str, int]()
    files = dict[str, str]()
    for path, content in found.items():
        record = record_of(content, precision(name))
        columns = {column: places.setdefault(json.dumps(sums), len(places)) for column, sums in record.columns.items()}
        files[path] = json.dumps([record.bytes, record.text, columns])
    GOLDENS.mkdir(exist_ok=True)
    listed = ",\n".join(f"{json.dumps(path)}: {record}" for path, record in files.items())
    sums = ",\n".join(places)
    (GOLDENS / f"{name}.json").write_text(f'{{\n"files": {{\n{listed}\n}},\n"sums": [\n{sums}\n]\n}}\n', encoding="utf-8")

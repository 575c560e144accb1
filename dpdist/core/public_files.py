"""Files of public folders that may come from others: changed or malformed ones are refused.

Later code trusts what this module reads, so every check is made here.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import rfc8785
from pydantic import ValidationError

from dpdist.core.files import RELEASE, misfit, sha256

MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.minisig"
"""Name of the signature file in a signed public folder.

It signs the manifest, which holds the checksums of all other files.
"""
MISSING = "no such file"
"""Message for a file that the manifest names and the folder lacks."""
UNFIT = "NOT_FOR_PUBLICATION.txt"
"""Name of a file that marks the folder of a replay or of a held release. Its first line gives the reason."""
HELD = (
    "This release is on hold until somebody approves it. Use `dpdist approve` to publish it, or `dpdist approve --refuse` "
    "to withhold it.\nIts budget is spent in either case.\n"
)
"""Content of that file where a release waits for approval."""
LARGEST_JSON = 2**26
"""Largest size in bytes of a manifest, statement, job or promise."""
DIGEST = re.compile(r"[0-9a-f]{64}")


class DamagedFile(Exception):
    """A file of a public folder cannot be used: which file, what was found, and what is allowed.

    `remedy` is empty if a fresh copy of the file mends it.
    """

    def __init__(self, file: str, fault: str, allowed: str, remedy: str = ""):
        self.file, self.fault, self.allowed, self.remedy = printable(file), fault, allowed, remedy
        super().__init__(self.file, fault, allowed, remedy)

    def __str__(self) -> str:
        return f"{self.file}: {self.fault}"


def printable(text: object, most: int = 80) -> str:
    raw = str(text)
    line = raw if raw.isprintable() else json.dumps(raw)
    return line if len(line) <= most else line[:most] + "…"


def first_problem(error: ValidationError) -> str:
    fault = error.errors(include_input=False, include_url=False)[0]
    return f"{printable('.'.join(map(str, fault['loc'])) or 'the whole')}: {printable(fault['msg'], 200)}"


def regular(folder: Path, name: str) -> Path:
    """The path of a file in the folder.

    Raises `DamagedFile` unless it is a regular file that no symbolic link leads to.
    """
    path = folder
    for part in PurePosixPath(name).parts:
        path = path / part
        if path.is_symlink():
            raise DamagedFile(name, "a symbolic link", "files in the folder itself")
    if not path.exists():
        raise DamagedFile(name, MISSING, "every file that manifest.json lists")
    if not stat.S_ISREG(path.stat().st_mode):
        raise DamagedFile(name, "no regular file", "regular files")
    return path


def unfit(folder: Path) -> str | None:
    """The reason why a folder is not for publication; None if it is."""
    path = folder / UNFIT
    if not path.exists():
        return None
    lines = regular(folder, UNFIT).read_bytes()[:1000].decode("utf-8", "replace").splitlines()
    return printable(lines[0] if lines else "not for publication", 200)


def read_json(folder: Path, name: str) -> bytes:
    """The content of a JSON file. Raises `DamagedFile` before it reads a file of more than `LARGEST_JSON` bytes."""
    path = regular(folder, name)
    if path.stat().st_size > LARGEST_JSON:
        raise DamagedFile(name, f"more than {LARGEST_JSON} bytes", f"at most {LARGEST_JSON} bytes")
    return path.read_bytes()


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """Raises `DamagedFile` if the file holds no JSON object."""
    text, allowed = read_json(folder, name), "one JSON object with finite numbers and no key twice"
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_once, parse_constant=_finite)
    except RecursionError:
        raise DamagedFile(name, "values nested too deeply", allowed) from None
    except ValueError as error:
        raise DamagedFile(name, f"not valid JSON ({printable(error)})", allowed) from None
    if not isinstance(value, dict):
        raise DamagedFile(name, f"a JSON {type(value).__name__}", allowed)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(members := dict(pairs)) < len(pairs):
        raise ValueError("a key appears twice")
    return members


def _finite(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def check_files(folder: Path, part: str) -> None:
    """Checks the files of a public folder's subfolder `part` against its manifest.

    The subfolder must hold exactly the files that the manifest names there, unchanged. Raises `DamagedFile`, which names
    the first problem and the number of further ones.
    """
    manifest = read_object(folder, MANIFEST)
    refuse_format(MANIFEST, manifest.get("format"), RELEASE)
    files = {name: digest for name, digest in _listed(manifest).items() if name.startswith(f"{part}/")}
    if damage := _differences(folder, files, part):
        raise _first_of(damage)


def refuse_format(name: str, version: object, newest: int) -> None:
    """Raises `DamagedFile` for a file of a format that this version does not read."""
    if (wrong := misfit(version, newest)) is not None:
        raise DamagedFile(name, wrong.fault, wrong.allowed, wrong.remedy)


def verified_files(folder: Path) -> frozenset[str]:
    """Names of the files of a release. Raises `DamagedFile`, as `check_files` does, if there is damage of any kind."""
    if damage := all_damage(folder):
        raise _first_of(damage)
    return frozenset(read_object(folder, MANIFEST)["files"])


def _first_of(damage: list[DamagedFile]) -> DamagedFile:
    others_alike = f", and {len(damage) - 1} more files differ from the manifest" if len(damage) > 1 else ""
    return DamagedFile(damage[0].file, damage[0].fault + others_alike, damage[0].allowed, damage[0].remedy)


def _differences(folder: Path, files: Mapping[str, str], part: str = "") -> list[DamagedFile]:
    damage = [error for name in sorted(files) if (error := _difference(folder, name, files[name])) is not None]
    own_files = (MANIFEST, SIGNATURE, UNFIT)
    unnamed = [name for name in _present(folder, part) if name not in files and name not in own_files]
    return damage + [
        DamagedFile(name, "manifest.json does not list it", "only files that manifest.json lists") for name in unnamed
    ]


def all_damage(folder: Path) -> list[DamagedFile]:
    """Every difference between a public folder and its release: first those of the manifest, then one for each file."""
    try:
        manifest = read_object(folder, MANIFEST)
        files = _listed(manifest)
    except DamagedFile as error:
        return [error]
    return [*_of_the_manifest(folder, manifest), *_differences(folder, files)]


def _of_the_manifest(folder: Path, manifest: dict[str, Any]) -> Iterator[DamagedFile]:
    if "format" not in manifest:
        allowed = f"format {RELEASE}: publish again with the workspace's own `dpdist run`"
        yield DamagedFile(
            MANIFEST, "no format: made by an earlier dpdist, whose manifests have no release id to check", allowed
        )
    elif (wrong := misfit(manifest["format"] or 0, RELEASE)) is not None:
        yield DamagedFile(MANIFEST, wrong.fault, wrong.allowed, wrong.remedy)
    elif manifest.get("release") != release_id(manifest) or canonical(manifest) != (folder / MANIFEST).read_bytes():
        yield DamagedFile(
            MANIFEST, "it is not the file that was released", "a release id that follows from all other entries"
        )


def canonical(value: Mapping[str, Any]) -> bytes:
    """Canonical JSON (RFC 8785). Whole numbers that JSON readers would round are written as texts."""
    return rfc8785.dumps(_exact(value))


def _exact(text: Any) -> Any:
    if isinstance(text, Mapping):
        return {str(name): _exact(value) for name, value in text.items()}
    if isinstance(text, list | tuple):
        return [_exact(value) for value in text]
    return str(text) if isinstance(text, int) and abs(text) >= 2**53 else text


def release_id(manifest: Mapping[str, Any]) -> str:
    """The id of a release: the SHA-256 of all of its manifest but the id."""
    return hashlib.sha256(canonical({name: value for name, value in manifest.items() if name != "release"})).hexdigest()


def _difference(folder: Path, name: str, digest: str) -> DamagedFile | None:
    try:
        same = sha256(regular(folder, name)) == digest
    except DamagedFile as error:
        return error
    return None if same else DamagedFile(name, "it is not the file that manifest.json lists", "the file as it was released")


def _listed(manifest: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 by name of every file that a manifest lists."""
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise DamagedFile(MANIFEST, "no list of files", "files: SHA-256 by name")
    for name, digest in files.items():
        _check_entry(name, digest)
    return files


def _check_entry(name: str, digest: object) -> None:
    path = PurePosixPath(name)
    inside = path.as_posix() == name and not path.is_absolute() and ".." not in path.parts and "\\" not in name
    if not inside or name in ("", ".") or not name.isprintable():
        raise DamagedFile(
            MANIFEST, f"the file name '{printable(name)}'", "names of files inside the folder, such as tables/a.csv"
        )
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise DamagedFile(MANIFEST, f"no SHA-256 of {printable(name)}", "64 hexadecimal digits")


def _present(folder: Path, part: str) -> Iterator[str]:
    for path in sorted((folder / part).rglob("*")):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(folder).as_posix()


def read_columns(folder: Path, name: str, types: Mapping[str, pa.DataType], most: int) -> pa.Table:
    """The columns of a Parquet file that has at most `most` rows.

    It must have exactly these columns, of these types and without missing values. Raises `DamagedFile`. Types are checked
    before any value is read, and extension types are refused.
    """
    path = regular(folder, name)
    try:
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            _check_columns(name, schema, types)
            if rows > most:
                raise DamagedFile(name, f"{rows} rows", f"at most {most} rows")
            table = file.read()
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedFile(
            name, f"not a complete Parquet file ({type(error).__name__})", "a Parquet file as it was released"
        ) from None
    for column in types:
        if nulls := table.column(column).null_count:
            raise DamagedFile(name, f"{nulls} missing values in {printable(column)}", "a value in every row")
    return table


def _check_columns(name: str, schema: pa.Schema, types: Mapping[str, pa.DataType]) -> None:
    allowed = f"the columns {', '.join(f'{column} ({kind})' for column, kind in types.items())}"
    if sorted(schema.names) != sorted(types):
        raise DamagedFile(name, f"the columns {printable(', '.join(schema.names))}", allowed)
    for column, kind in types.items():
        if b"ARROW:extension:name" in (schema.field(column).metadata or {}):
            raise DamagedFile(name, f"{printable(column)} of an extension type", allowed)
        if (actual := schema.field(column).type) != kind:
            raise DamagedFile(name, f"{printable(column)} of type {printable(actual)}", allowed)

"""Spoils the public folder of a release, file by file, under a manifest that agrees with what was spoiled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.files import sha256
from dpdist.core.public_files import canonical, release_id

Spoil = Callable[[Path], None]
JOB, PROMISE, STATEMENT = "released/job.json", "released/promise.json", "statement.json"
POINTS, FRAME, MANIFEST = "released/donors.parquet", "released/frame.parquet", "manifest.json"


def named(public: Path, manifest: dict[str, Any]) -> None:
    """The manifest as given, under the release id that follows from it."""
    (public / MANIFEST).write_bytes(canonical({**manifest, "release": release_id(manifest)}))


def sealed(public: Path) -> None:
    """The manifest tells of the files as they are now."""
    manifest = json.loads((public / MANIFEST).read_text())
    manifest["files"] = {name: sha256(public / name) for name in manifest["files"] if (public / name).is_file()}
    named(public, manifest)


def edited(edit: Callable[[dict[str, Any]], object], *names: str) -> Spoil:
    """JSON files after the same edit, under a manifest that agrees."""

    def spoil(public: Path) -> None:
        for name in names:
            said = json.loads((public / name).read_text())
            edit(said)
            (public / name).write_text(json.dumps(said))
        sealed(public)

    return spoil


def said(value: Any, *keys: str | int) -> Callable[[dict[str, Any]], object]:
    """The value at a place."""

    def edit(target: Any) -> None:
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return edit


def spent(value: Any, *keys: str | int) -> Spoil:
    """Of the guarantee and its statement alike."""
    return edited(said(value, *keys), PROMISE, STATEMENT)


def listed(edit: Callable[[dict[str, Any]], object]) -> Spoil:
    """The manifest's own table of files."""

    def spoil(public: Path) -> None:
        manifest = json.loads((public / MANIFEST).read_text())
        edit(manifest["files"])
        named(public, manifest)

    return spoil


def manifested(edit: Callable[[dict[str, Any]], object]) -> Spoil:
    """The manifest after an edit, under the release id that follows from it."""

    def spoil(public: Path) -> None:
        manifest = json.loads((public / MANIFEST).read_text())
        edit(manifest)
        named(public, manifest)

    return spoil


def written(edit: Callable[[dict[str, Any]], object]) -> Spoil:
    """The manifest after an edit, under the id that the edit leaves."""

    def spoil(public: Path) -> None:
        manifest = json.loads((public / MANIFEST).read_text())
        edit(manifest)
        (public / MANIFEST).write_bytes(canonical(manifest))

    return spoil


def text(name: str, content: str | bytes) -> Spoil:
    def spoil(public: Path) -> None:
        (public / name).write_bytes(content.encode() if isinstance(content, str) else content)
        if name != MANIFEST:
            sealed(public)

    return spoil


def table(name: str, edit: Callable[[pa.Table], pa.Table]) -> Spoil:
    def spoil(public: Path) -> None:
        pq.write_table(edit(pq.read_table(public / name)), public / name)
        sealed(public)

    return spoil


def cells(column: str, value: Any, rows: slice = slice(0, 3)) -> Spoil:
    """A value in some points; a function is asked for as many values as there are points."""

    def edit(points: pa.Table) -> pa.Table:
        values = points.column(column).to_pandas().to_numpy().copy()
        values[rows] = value(len(values)) if callable(value) else value
        return points.set_column(points.column_names.index(column), column, pa.array(values, points.column(column).type))

    return table(POINTS, edit)


def retyped(name: str, column: str, kind: pa.DataType) -> Spoil:
    def edit(held: pa.Table) -> pa.Table:
        return held.set_column(held.column_names.index(column), column, held.column(column).cast(kind))

    return table(name, edit)


class Foreign(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.float64(), "somebody.else")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"code that a reader would run"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Foreign:
        raise AssertionError("nothing of an extension type is run")


def extended(public: Path) -> None:
    points = pq.read_table(public / POINTS)
    weight = pa.ExtensionArray.from_storage(Foreign(), points.column("weight").combine_chunks())
    pq.write_table(points.set_column(points.column_names.index("weight"), "weight", weight), public / POINTS)
    sealed(public)


def counts(values: list[int]) -> Spoil:
    def edit(frame: pa.Table) -> pa.Table:
        return frame.set_column(
            frame.column_names.index("count"), "count", pa.array(values + [5] * (len(frame) - len(values)))
        )

    return table(FRAME, edit)


def labelled(edit: Callable[[dict[str, Any]], object]) -> Spoil:
    """What frame.parquet says of its levels."""

    def change(frame: pa.Table) -> pa.Table:
        held = json.loads(frame.schema.metadata[b"dpdist.frame"])
        edit(held)
        return frame.replace_schema_metadata({"dpdist.frame": json.dumps(held)})

    return table(FRAME, change)


def linked(public: Path) -> None:
    """A symbolic link in place of a file, of the same content."""
    (public / POINTS).rename(public.parent / "elsewhere")
    (public / POINTS).symlink_to(public.parent / "elsewhere")


def linked_folder(public: Path) -> None:
    (public / "released").rename(public.parent / "elsewhere")
    (public / "released").symlink_to(public.parent / "elsewhere", target_is_directory=True)


def piped(public: Path) -> None:
    """A file that nobody writes to: a reader would wait for ever."""
    (public / MANIFEST).unlink()
    os.mkfifo(public / MANIFEST)


def longer(public: Path) -> None:
    """A link more, which the release's own sum does not count."""

    def edit(held: dict[str, Any]) -> None:
        chain = held["reference"]["chain"]
        chain.insert(0, {**chain[0], "period": "1999"})

    edited(edit, PROMISE, STATEMENT)(public)


def own_period(public: Path) -> None:
    """The release before it is of its own period."""
    spent("2022", "reference", "chain", 0, "period")(public)
    spent("2022", "reference", "period")(public)


def cheaper(public: Path) -> None:
    """An own ε that is understated in all three places."""
    edited(said("0.1", "epsilon"), PROMISE, STATEMENT)(public)
    edited(said("0.2", "substitution_epsilon"), PROMISE, STATEMENT)(public)
    edited(said("0.1", "budget", "epsilon"), JOB)(public)
    edited(said("0.1", "epsilon_per_set"), PROMISE, STATEMENT)(public)


def unchained(public: Path) -> None:
    """The releases before it left out, their sum kept."""
    edited(lambda held: held["reference"].pop("chain"), PROMISE, STATEMENT)(public)


def first(name: str, *keys: str | int) -> tuple[str | int, ...]:
    return ("reference", "chain", 0, name, *keys)


def unvouched(public: Path) -> None:
    (public / "released" / "extra.json").write_text("{}")


def foldered(public: Path) -> None:
    """A folder in place of a file."""
    (public / PROMISE).unlink()
    (public / PROMISE).mkdir()


def halved(public: Path) -> None:
    text(POINTS, (public / POINTS).read_bytes()[:5000])(public)

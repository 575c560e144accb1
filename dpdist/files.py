"""Whole-file writes: a reader sees the old file or the new one, never half of one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4


@contextmanager
def replaced(path: Path, durable: bool = True) -> Iterator[Path]:
    """A temporary sibling to write to; renamed to `path` if the block succeeds, removed if not.

    Its name is unique among all machines that share the folder: processes of two containers have the same number.
    `durable`: after fsync, so that the name never stands for less than the file even if the machine stops; without it
    something else must vouch for what the file holds.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.part")
    try:
        yield temporary
        if durable:
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    with replaced(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)


def write_json(path: Path, value: Any, mode: int = 0o666) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", mode)


def sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()

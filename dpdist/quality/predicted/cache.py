"""For `predicted.prediction`: keeps predictions in the user's cache folder, by checksum of their public inputs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import pyarrow as pa

from dpdist.core.extras import installed
from dpdist.core.files import replaced

MOST_KEPT = 200
"""Largest number of stored predictions; the oldest are removed."""


def folder() -> Path | None:
    """The folder `predictions` in $DPDIST_CACHE or in the user's cache folder; None if neither can be written."""
    if configured := os.environ.get("DPDIST_CACHE"):
        return Path(configured).absolute() / "predictions"
    if not installed("platformdirs"):
        return None
    from platformdirs import user_cache_path

    return Path(user_cache_path("dpdist")) / "predictions"


def known_before(identity: str) -> pd.DataFrame | None:
    """The stored rows of this identity; None if there are none, or if the file is damaged."""
    path = _path(identity)
    if path is None or not path.exists():
        return None
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError, pa.ArrowException):
        return None


def kept(identity: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The stored rows of this identity, or new rows, which are then stored. A damaged file is made again."""
    if (before := known_before(identity)) is not None:
        return before
    made = make()
    if (path := _path(identity)) is not None:
        with suppress(OSError):  # a cache that cannot be written costs time alone
            _write(path, made)
    return made


def _path(identity: str) -> Path | None:
    where = folder()
    return None if where is None else where / f"{identity[:32]}-{version('dpdist')}.parquet"


def _write(path: Path, made: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path, durable=False) as temporary:
        made.to_parquet(temporary)
    by_age = sorted(path.parent.glob("*.parquet"), key=lambda one: one.stat().st_mtime)
    for old in by_age[:-MOST_KEPT]:
        old.unlink(missing_ok=True)

"""Checksums of structured values, equal in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from typing import Generic, TypeVar

import numpy as np
import scipy

T = TypeVar("T")
WRITTEN = "written"
"""Metadata key for a field's former name, which stored checksums contain."""


def digest(value: object) -> str:
    """SHA-256 of every bit of arrays, numbers, texts, and dataclasses, mappings and sequences of these.

    Raises `TypeError` for any other type: if a value were left out, two values that differ in it would look equal.
    """
    hashed = hashlib.sha256()
    for part in _parts(value):
        hashed.update(len(part).to_bytes(8, "little") + part)
    return hashed.hexdigest()


def _parts(value: object) -> Iterator[bytes]:
    """The value as pieces of bytes, after the name of its type. `digest` adds each piece's length."""
    yield type(value).__name__.encode()
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield field.metadata.get(WRITTEN, field.name).encode()
            yield from _parts(getattr(value, field.name))
    elif isinstance(value, scipy.sparse.csr_array):
        for name in ("shape", "data", "indices", "indptr"):
            yield from _parts(getattr(value, name))
    elif isinstance(value, np.ndarray | np.generic):
        contiguous = np.ascontiguousarray(value)
        if contiguous.dtype.hasobject:
            raise TypeError("an array of objects has no checksum of its content")
        yield f"{contiguous.dtype.str} {np.shape(value)}".encode()
        yield contiguous.tobytes()
    elif isinstance(value, Mapping):
        yield from _several([item for key in sorted(value) for item in (key, value[key])])
    elif isinstance(value, tuple | list | range):
        yield from _several(value)
    elif value is None or isinstance(value, str | int | float | Fraction):
        yield (value.hex() if isinstance(value, float) else str(value)).encode()
    else:
        raise TypeError(f"{type(value).__name__} has no checksum")


def _several(values: list[object] | tuple[object, ...] | range) -> Iterator[bytes]:
    yield str(len(values)).encode()
    for value in values:
        yield from _parts(value)


@dataclass(frozen=True, eq=False)
class Keyed(Generic[T]):
    """A value with a key by which caches know equal ones, as of a file that is read anew."""

    value: T
    key: str

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyed) and other.key == self.key

"""Keys of random numbers and checksums of values, equal in every process: a key and an address give the same draws."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray
from randomgen import AESCounter

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


class Recent(Generic[T]):
    """The last values that were computed: as many as `fewest`, and those before them while all sizes together are at most
    `most`.

    For one thread: a process computes a release in one.
    """

    def __init__(self, fewest: int = 1, most: int = 0, size: Callable[[T], int] = lambda _: 1) -> None:
        self._fewest, self.most, self._size = fewest, most, size
        self._values = dict[str, T]()

    def __call__(self, key: str, compute: Callable[[], T]) -> T:
        """The value of this key, which is computed if it is not kept."""
        value = self._values.pop(key) if key in self._values else compute()
        self._values[key] = value
        while len(self._values) > self._fewest and sum(map(self._size, self._values.values())) > self.most:
            del self._values[next(iter(self._values))]
        return value

    def get(self, key: str) -> T | None:
        """The value of this key, if it is kept."""
        return self._values.get(key)

    def replace(self, key: str, value: T) -> None:
        """Keeps this value in place of the one of this key."""
        self._values.pop(key, None)
        self(key, lambda: value)

    def clear(self) -> None:
        self._values.clear()


_HALF_STEP = 2.0**-54
_PAGE = 2**16


@dataclass(frozen=True, repr=False)
class Key:
    """A key for random numbers: the secret key of a run, or the public seed with which a release is published.

    Together with an address (stage, stratum, block, set) it gives a random generator.
    """

    root: bytes

    @classmethod
    def from_os(cls) -> Key:
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_hex(cls, text: str) -> Key:
        return cls(bytes.fromhex(text.strip()))

    @classmethod
    def read(cls, path: Path) -> Key:
        """Reads a key from a file.

        Raises `ValueError` if the key is incomplete, because a short key can be guessed.
        """
        text = path.read_text(encoding="ascii")
        if not re.fullmatch(r"[0-9a-f]{64}\n", text):
            raise ValueError("not a key")
        return cls.from_hex(text)

    def hex(self) -> str:
        return self.root.hex()

    def __repr__(self) -> str:
        return "Key(…)"

    def child(self, stage: str) -> Key:
        """A key for a stage. It reveals nothing on its parent, because keyed BLAKE2b is a pseudo-random function."""
        return Key(self._digest(32, "child", stage))

    def generator(self, stage: str, stratum: str = "", block: int = 0, set: int = 0) -> np.random.Generator:
        digest = self._digest(16, "stream", stage, stratum, str(block), str(set))
        return np.random.Generator(AESCounter(key=int.from_bytes(digest, "little")))

    def _digest(self, size: int, *address: str) -> bytes:
        hashed = hashlib.blake2b(key=self.root, digest_size=size)
        for part in address:
            encoded = part.encode()
            hashed.update(len(encoded).to_bytes(8, "little") + encoded)
        return hashed.digest()


def open_uniforms(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Uniform random numbers strictly between 0 and 1, for inverse distribution functions."""
    uniforms: NDArray[np.float64] = rng.random(shape)
    return np.minimum(uniforms + _HALF_STEP, 1.0 - 2.0 * _HALF_STEP)


def uniforms_of(key: Key, stage: str, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """A uniform number strictly between 0 and 1 for each record number; it depends on that record number alone."""
    uniforms = np.empty(len(numbers))
    page = numbers // _PAGE
    for number in np.unique(page).tolist():
        inside = page == number
        uniforms[inside] = open_uniforms(key.generator(stage, block=number), (_PAGE,))[numbers[inside] % _PAGE]
    return uniforms

"""Keys of random numbers: a key and an address give the same draws on every machine and in any order."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

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

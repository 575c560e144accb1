"""Keyed random generators: the same key and address give the same stream, whoever computes it and however often."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter

_HALF_STEP = 2.0**-54


@dataclass(frozen=True, repr=False)
class Key:
    """Root entropy of a run or of a release's public part; streams are addressed by (stage, stratum, block, set)."""

    root: bytes

    @classmethod
    def from_os(cls) -> Key:
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_hex(cls, text: str) -> Key:
        return cls(bytes.fromhex(text.strip()))

    def hex(self) -> str:
        return self.root.hex()

    def __repr__(self) -> str:
        return "Key(…)"

    def child(self, stage: str) -> Key:
        """A key that tells nothing about this one (BLAKE2b is a keyed pseudo-random function)."""
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
    """Uniforms strictly inside (0, 1), for inverse distribution functions."""
    uniforms: NDArray[np.float64] = rng.random(shape)
    return np.minimum(uniforms + _HALF_STEP, 1.0 - 2.0 * _HALF_STEP)

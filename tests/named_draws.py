"""Keys and noise that follow from a name: a release is the same every time, on any day and machine of a type."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from typing import NamedTuple

import numpy as np
import opendp.measurements
import pytest

from dpdist.job import NoiseName


class Drawn(NamedTuple):
    """Noise that OpenDP was asked for."""

    law: NoiseName
    scale: float
    size: int


class OneDay(datetime):
    """Runs begin on one day: a release's manifest, and so a chain of releases, has it."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> OneDay:
        return cls(2026, 11, 22, 12, tzinfo=tz)


@contextmanager
def named(name: str, drawn: list[Drawn] | None = None) -> Iterator[None]:
    """Root keys and OpenDP's noise follow from the name: differences of geometric numbers, and rounded normal ones.

    `drawn` is told of every request that reaches OpenDP.
    """
    numbers, keys = itertools.count(), itertools.count()

    def note(law: NoiseName, scale: float, values: list[int]) -> None:
        if drawn is not None:
            drawn.append(Drawn(law, scale, len(values)))

    def generator() -> np.random.Generator:
        digest = hashlib.blake2b(f"{name} {next(numbers)}".encode(), digest_size=16).digest()
        return np.random.default_rng(int.from_bytes(digest, "little"))

    def make_laplace(*_: object, scale: float) -> Callable[[list[int]], list[int]]:
        def measurement(values: list[int]) -> list[int]:
            note("laplace", scale, values)
            one, other = generator().geometric(-np.expm1(-1.0 / scale), (2, len(values)))
            return (np.array(values, dtype=np.int64) + one - other).tolist()

        return measurement

    def make_gaussian(*_: object, scale: float) -> Callable[[list[int]], list[int]]:
        def measurement(values: list[int]) -> list[int]:
            note("gaussian", scale, values)
            noise = np.rint(scale * generator().standard_normal(len(values)))
            return (np.array(values, dtype=np.int64) + noise.astype(np.int64)).tolist()

        return measurement

    def token_bytes(size: int = 32) -> bytes:
        return hashlib.blake2b(f"{name} key {next(keys)}".encode(), digest_size=size).digest()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opendp.measurements, "make_laplace", make_laplace)
        patch.setattr(opendp.measurements, "make_gaussian", make_gaussian)
        patch.setattr(secrets, "token_bytes", token_bytes)
        patch.setattr("dpdist.storage.ownership.datetime", OneDay)
        yield

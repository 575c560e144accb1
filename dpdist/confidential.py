"""The type that the public side cannot take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, repr=False, eq=False)
class Confidential(Generic[T]):
    """A by-product of `protect` that must not leave the confidential folder (bounds, weights, diagnostics).

    It does not print, format, iterate or compare; `disclose_to_custodian` is the one way to its content.
    """

    _value: T

    def disclose_to_custodian(self) -> T:
        return self._value

    def __repr__(self) -> str:
        return "Confidential(…)"

    def __iter__(self) -> NoReturn:
        raise TypeError("a Confidential value cannot be read outside the confidential folder")

    __array__ = __float__ = __int__ = __len__ = __iter__

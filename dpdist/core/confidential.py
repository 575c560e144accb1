"""A type around confidential values. Public functions do not accept it, so none is published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NoReturn, TypeVar

T = TypeVar("T")


class Confidential(Generic[T]):
    """A by-product of `protect` that must not leave the confidential folder: bounds, weights, diagnostics.

    It does not print, format, iterate, compare or match. Only `disclose_to_custodian` gives its content. It is not a
    dataclass, because `dataclasses.asdict` and class patterns could read one.
    """

    __slots__ = ("_value",)
    _value: T

    def __init__(self, value: T) -> None:
        object.__setattr__(self, "_value", value)

    def disclose_to_custodian(self) -> T:
        return self._value

    def __repr__(self) -> str:
        return "Confidential(…)"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Confidential value cannot be changed")

    def __reduce__(self) -> tuple[type, tuple[T]]:
        return type(self), (self._value,)

    def __iter__(self) -> NoReturn:
        raise TypeError("a Confidential value cannot be read outside the confidential folder")

    __array__ = __float__ = __int__ = __len__ = __iter__


def refuse_confidential(value: Any) -> None:
    """Raises TypeError if a value, or anything in its mappings and sequences, is Confidential."""
    if isinstance(value, Confidential):
        raise TypeError("a Confidential value cannot be released")
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            refuse_confidential(part)

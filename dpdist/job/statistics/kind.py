"""Base class of statistics: how a job writes one, what it needs, its label, and its form as a ratio of sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, ClassVar, NamedTuple, Protocol

CONSTANTS = frozenset({"over", "at", "above", "across", "of", "column", "level"})
"""What a statistic may state beside its outcome."""
RESERVED = CONSTANTS | {"name", "variable", "from"}
"""Keys of statistics in a job, which no statistic may have as its name."""


class Constants(Protocol):
    """A statistic of a job, as `job.tables` holds it."""

    @property
    def name(self) -> str: ...
    @property
    def variable(self) -> str | None: ...
    @property
    def over(self) -> str | None: ...
    @property
    def at(self) -> float | None: ...
    @property
    def above(self) -> float | None: ...
    @property
    def across(self) -> tuple[str, ...]: ...
    @property
    def of(self) -> Any: ...
    @property
    def column(self) -> str | None: ...
    @property
    def level(self) -> Any: ...


Bounds = Callable[[str], tuple[float, float]]
"""The public bounds of an outcome by its name, infinite where a job states none."""


class Sums(Protocol):
    """Sums over the units of a cell, which `estimation.linear` computes and linearises."""

    @property
    def weight(self) -> Any: ...

    def product(self, outcome: str) -> Any:
        """Of weight times outcome."""

    def below(self, outcome: str) -> Any:
        """Of weights of units with at most the cell's value."""

    def across(self, columns: Sequence[str], outcome: str | None = None) -> Any:
        """Of weights, or of weight times outcome, in the larger cell over these columns' levels."""


class Fault(NamedTuple):
    """Why a job cannot have a statistic: what was found, the remedy, and what is allowed."""

    finding: str
    remedy: str
    allowed: tuple[str, ...] = ()


class Kind(ABC):
    name: ClassVar[str]
    written: ClassVar[str]
    """How a job writes it."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Constants that it must have."""
    takes: ClassVar[frozenset[str]] = frozenset()
    """Constants that it may have."""
    plain: ClassVar[bool] = False
    """True if every mechanism and comparator gives it: a count, a mean or a total."""
    of_outcome: ClassVar[bool] = True
    """True if it is of outcomes; a count and a share are of weights alone."""
    limits: ClassVar[tuple[float, float]] = (-inf, inf)
    """What it can be, whatever the outcomes."""

    def operands(self, operand: Any) -> dict[str, Any]:
        """The constants that a job's value gives."""
        return {"variable": operand}

    def text(self, settings: Constants) -> Any:
        """The statistic as a job writes it."""
        constants = {
            name: number for name, number in (("at", settings.at), ("above", settings.above)) if number is not None
        }
        return self.name if settings.variable is None and not constants else {self.name: settings.variable} | constants

    def possible(self, constants: Constants, bounds: Bounds) -> tuple[float, float]:
        """What it can be, given the public bounds of outcomes."""
        return self.limits

    def label(self, constants: Constants) -> str:
        """Its name in a published table, with its constants and without its outcome."""
        return self.name

    def about(self, constants: Constants) -> str | None:
        """The outcome as a published table names it."""
        return constants.variable

    def of_shape(self, constants: Constants) -> bool:
        """True if it follows from an outcome's distribution alone."""
        return False

    def quantile(self, constants: Constants) -> float | None:
        """The level of a quantile; None for other statistics."""
        return None

    def complement(self, constants: Constants) -> bool:
        """True if the figure is 1 less the ratio of the sums."""
        return False

    @abstractmethod
    def sums(self, constants: Constants, cells: Sums) -> tuple[Any, Any | None]:
        """The sum above, and the sum below or None."""

    def faults(self, constants: Constants, job: Any, table: Any) -> Iterator[Fault]:
        """What a job and a table lack for it, beside its outcomes."""
        yield from ()

"""Protocols of what some models hand over to publication, beside parameters, expectations and records.

Publication asks a model for these, and knows no mechanism. A model implements those that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from dpdist.core.records import Floats, Ints, Records
from dpdist.job import Job, StatisticName
from dpdist.models.protocol import Draws, Expectation, StratumModel

DesignEffectOf = Callable[[frozenset[str], str, str | None], float]
"""The design effect of a statistic in cells that are crossed by these columns, of an outcome or of none."""


class ModelTable(NamedTuple):
    """A table that a model makes itself: `label` names the column of the rows' texts, `numbers` those of its figures.

    A row has its text under `label`, the levels of its cell by column under "cell", and its figures.
    """

    label: str
    numbers: Sequence[str]
    rows: list[dict[str, Any]]


@runtime_checkable
class TablesBeside(Protocol):
    """A model that makes tables of its own, which stand beside those of the job."""

    def tables_beside(self, job: Job, theta: Draws, effect: DesignEffectOf) -> Mapping[str, ModelTable]:
        """Tables of the stratum by the name of their file. Figures have errors under the design effects."""
        ...


@runtime_checkable
class CodedRecords(Protocol):
    """A model that distinguishes levels of every column of its records."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of levels of every column."""
        ...

    def codes(self, records: Records) -> Ints:
        """The position of the level of every record and column, (record, column)."""
        ...

    def coded(self, columns: Sequence[Floats]) -> Ints:
        """Positions of the levels nearest to the values of columns, which are (record,) each."""
        ...


@runtime_checkable
class NoisedFigures(StratumModel, Expectation, Protocol):
    """A model whose tables' figures got noise themselves. There are no synthetic records."""

    @property
    def public_noise(self) -> bool:
        """True if the scale of the noise is public, so that the noise can be simulated again."""
        ...

    @property
    def consistency(self) -> bool:
        """True if the published figures of all tables agree."""
        ...

    def fitted(self, theta: Draws) -> Draws:
        """The parameters, with figures of frame rows that are nearest to the noisy ones."""
        ...

    def figures(self, theta: Draws, name: str) -> dict[StatisticName, Floats]:
        """Published figures of a table, (draw, cell) each."""
        ...

    def noised_again(self, theta: Draws, records: int, draws: int, rng: Any) -> Draws:
        """The parameters under further noise of the same law."""
        ...

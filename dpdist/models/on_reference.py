"""Protocols of models that learn from a reference, asked by `mechanisms.learning`, `planning` and `publish`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Codes, Floats
from dpdist.estimation.donors import Donors
from dpdist.job import Statistic
from dpdist.models.copula.reference_summary import Facts
from dpdist.models.protocol import Draws, Likelihood, StratumModel


class ReferenceRecords(Protocol):
    """What public code may read of the records of a reference, a file that the job declares public; (record,) each."""

    @property
    def frame(self) -> Codes: ...

    @property
    def outcome(self) -> Floats: ...

    @property
    def weight(self) -> Floats: ...


@runtime_checkable
class OnDistributions(Likelihood, Protocol):
    """A model of scores, which a reference's distributions make of values."""

    def within(self, facts: Facts) -> Self:
        """The model with the distributions that a reference fixed."""
        ...

    def summarise(self, records: Records, key: Key) -> Facts:
        """The distributions of a reference's records."""
        ...

    def bias_corrected(self, records: Records) -> Facts:
        """The distributions with a correction of the law's misfit."""
        ...

    def weights_corrected(self, records: Records, alpha: Floats) -> Facts:
        """The distributions with a further correction for privacy weights, (record,)."""
        ...

    def borrowed_shapes(self) -> Iterator[tuple[str, int, Mapping[str, float]]]:
        """The name of every cell, its number of reference records, and their weight by distribution."""
        ...


@runtime_checkable
class LearnsFromPoints(StratumModel, Protocol):
    """A model that learns from points that an earlier release passed on."""

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def outcomes(self) -> tuple[str, ...]: ...

    def pattern(self, frame_row: Codes) -> Codes:
        """The cell of every record, given its row of the frame."""
        ...

    def learned_from_points(self, points: Sequence[Records], effective_sizes: Floats) -> Any:
        """What is learned from points by outcome; `effective_sizes` are those of cells, (cell,)."""
        ...


@runtime_checkable
class CollapsesSmall(Protocol):
    """A model whose cells share a sum where the reference has few records of them."""

    @property
    def fewest_records(self) -> float:
        """Smallest number of reference records of a cell that is not collapsed."""
        ...

    @property
    def most_outweighed(self) -> float:
        """Largest number of current records that leave a cell mostly its group's figure; 0 where none is shrunk."""
        ...


@runtime_checkable
class FitsOutright(Protocol):
    def law_of(self, records: Records) -> Draws:
        """The law of the records, without noise. Raises `Improper`."""
        ...


@runtime_checkable
class AsSampled(Likelihood, Protocol):
    """A model that may describe the population, and has a form that describes the sample."""

    def as_sampled(self) -> Self: ...


@runtime_checkable
class KnowsDistributions(Protocol):
    """What was learned has distributions for a score model."""

    @property
    def facts(self) -> Facts | None: ...


@runtime_checkable
class KnowsDonors(Protocol):
    """What was learned has donors for synthetic records."""

    @property
    def donors(self) -> Donors | None: ...


@runtime_checkable
class OnDonors(StratumModel, Protocol):
    """A model whose errors and records follow from the reference's records, which are released as donors."""

    def with_donors(self, donors: Donors) -> Self:
        """The model with the reference's records."""
        ...


@runtime_checkable
class KnowsPower(Protocol):
    """What was learned has the power of the likelihood."""

    @property
    def power(self) -> float: ...


class ErrorsOfCells(NamedTuple):
    """Predicted root mean squared errors of a statistic in a table's published cells, in its order, in direct standard
    errors, (cell,).

    NaN where an error is not known. `alone` are the errors of the reference alone, as ε = 0 leaves.
    """

    table: str
    statistic: Statistic
    error: Floats
    alone: Floats


@runtime_checkable
class PredictsErrors(StratumModel, Protocol):
    """A model that predicts the errors of a release from what it learned, before the current file is read.

    Without it, the mechanism is run on public records to predict them (`quality.predicted`).
    """

    def predicted_errors(self, learned: Any) -> Sequence[ErrorsOfCells]:
        """The errors by table and statistic, margins included; statistics that it does not predict are left out."""
        ...


def facts_of(learned: object) -> Facts | None:
    """The distributions of a score model, if the reference fixed any."""
    return learned.facts if isinstance(learned, KnowsDistributions) else None


def fixed_model(model: StratumModel, learned: object) -> StratumModel:
    facts = facts_of(learned)
    return model.within(facts) if isinstance(model, OnDistributions) and facts is not None else model

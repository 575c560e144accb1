"""Protocols of models that learn from a reference, asked by `mechanisms.learning`, `planning` and `publish`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Codes, Floats
from dpdist.estimation.donors import AbsentRecords, Donors
from dpdist.estimation.history import PeriodTotals
from dpdist.job import Statistic
from dpdist.models.copula.reference_summary import Facts
from dpdist.models.protocol import Draws, Likelihood, StratumModel


class ReferenceRecords(Protocol):
    """What public code may read of the records of a reference, a file that the job declares public; (record,) each."""

    @property
    def row(self) -> Codes: ...

    @property
    def outcome(self) -> Floats: ...

    @property
    def outcomes(self) -> Floats:
        """(record, outcome)"""
        ...

    @property
    def weight(self) -> Floats: ...


@runtime_checkable
class OnDistributions(Likelihood, Protocol):
    """A model of normal scores, which follow from values by a reference's distributions."""

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
class FitsOutright(Protocol):
    def law_of(self, records: Records) -> Draws:
        """The law of the records, without noise. Raises `Improper`."""
        ...


@runtime_checkable
class AsSampled(Likelihood, Protocol):
    """A model that describes the population and can also describe the sample."""

    def as_sampled(self) -> Self: ...


@runtime_checkable
class KnowsDistributions(Protocol):
    """Learned facts that include distributions for a score model."""

    @property
    def facts(self) -> Facts | None: ...


@runtime_checkable
class KnowsDonors(Protocol):
    """Learned facts that include donors for synthetic records."""

    @property
    def donors(self) -> Donors | None: ...


@runtime_checkable
class LearnsFromRecords(StratumModel, Protocol):
    """A model that learns from a reference's records, which are released as donors, and from totals of earlier periods."""

    def with_donors(self, donors: Donors) -> Self:
        """The model with the reference's records."""
        ...

    def with_absent(self, absent: AbsentRecords) -> Self:
        """The model that also learns from records in crosses of columns that the current file lacks."""
        ...

    def with_history(self, history: Sequence[PeriodTotals]) -> Self:
        """The model that also learns from totals of earlier periods."""
        ...

    def history(self, theta: Draws) -> tuple[PeriodTotals, ...]:
        """Totals from which the next release learns: those that this one learned from, and its own."""
        ...


@runtime_checkable
class KnowsPower(Protocol):
    """Learned facts that include the power of the likelihood."""

    @property
    def power(self) -> float: ...


class ErrorsOfCells(NamedTuple):
    """Predicted root mean squared errors of a statistic in a table's published cells, in its order, in direct standard
    errors, (cell,).

    NaN if an error is not known. `alone` are the errors of the reference alone, as at ε = 0. `freedom` are degrees of
    freedom of the direct variances.
    """

    table: str
    statistic: Statistic
    error: Floats
    alone: Floats
    freedom: Floats


@runtime_checkable
class PredictsErrors(StratumModel, Protocol):
    """A model that predicts its release's errors from learned facts, before the current file is read.

    Errors of other models are predicted by runs on public records (`quality.predicted`).
    """

    def predicted_errors(self, learned: Any) -> Sequence[ErrorsOfCells]:
        """Predicted errors by table and statistic, margins included, without statistics that the model cannot predict."""
        ...


@runtime_checkable
class PredictsAlternatives(PredictsErrors, Protocol):
    """A model that also predicts errors of other budgets from what it has learned, and of other settings."""

    def relearned(self, learned: Any) -> Any:
        """What the same model with another budget learned, under this model's budget. Raises `Improper`."""
        ...

    def by_setting(self) -> Mapping[str, Self]:
        """This model under other settings of the mechanism, by key and value."""
        ...


def facts_of(learned: object) -> Facts | None:
    """The distributions of a score model, if the reference fixed any."""
    return learned.facts if isinstance(learned, KnowsDistributions) else None


def fixed_model(model: StratumModel, learned: object) -> StratumModel:
    facts = facts_of(learned)
    return model.within(facts) if isinstance(model, OnDistributions) and facts is not None else model

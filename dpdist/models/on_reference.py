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

    def borrowed(self, theta: Draws, records: Records) -> Floats:
        """Covariance of (E(w|x), E(wy|x)) of every crosstab row due to the reference's sampling error, (row, 2, 2)."""
        ...

    def borrowed_shapes(self) -> Iterator[tuple[str, int, Mapping[str, float]]]:
        """The name of every cell, its number of reference records, and their weight by distribution."""
        ...


@runtime_checkable
class FitsOutright(Protocol):
    def law_of(self, records: Records) -> Draws:
        """The law of the records, without noise. Raises `Improper`."""
        ...


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


def facts_of(learned: object) -> Facts | None:
    """The distributions of a score model, if the reference fixed any."""
    return getattr(learned, "facts", None)


def donors_of(learned: object) -> Donors | None:
    """Donors for synthetic records, if the reference has any."""
    return getattr(learned, "donors", None)


def power_of(learned: object) -> float | None:
    """The power of a centred likelihood, if the reference fixed it."""
    return getattr(learned, "power", None)


def fixed_model(model: StratumModel, learned: object) -> StratumModel:
    facts = facts_of(learned)
    return model.within(facts) if isinstance(model, OnDistributions) and facts is not None else model

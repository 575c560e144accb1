"""Declares what a mechanism's specification may ask of a job."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Protocol

from dpdist.job.budget import ReleaseBudget
from dpdist.job.data import Column
from dpdist.job.design import Survey
from dpdist.job.model import Model
from dpdist.job.reference import Reference
from dpdist.job.running import Record, Sampler
from dpdist.job.tables import Rake


class JobView(Protocol):
    """Keys of a job, and facts that follow from them. Guarantees and refusals depend on nothing else."""

    @property
    def columns(self) -> Mapping[str, Column]: ...

    @property
    def survey(self) -> Survey: ...

    @property
    def strata(self) -> tuple[str, ...]: ...

    @property
    def outcomes(self) -> tuple[str, ...]: ...

    @property
    def likelihood(self) -> Model:
        """The model. Where the mechanism fits none, it is one without settings."""
        ...

    @property
    def family(self) -> str: ...

    @property
    def budget(self) -> ReleaseBudget: ...

    @property
    def synthetic_sets(self) -> int: ...

    @property
    def epsilon_per_set(self) -> Fraction: ...

    @property
    def reference(self) -> Reference | None: ...

    @property
    def sampler(self) -> Sampler: ...

    @property
    def record(self) -> Record: ...

    @property
    def rake(self) -> tuple[Rake, ...]: ...

    @property
    def most_records(self) -> int:
        """The number of records in which neighbouring files can differ."""
        ...

    @property
    def strict(self) -> bool:
        """True if the bound holds for every file."""
        ...

    @property
    def outcome_dependent_rules(self) -> tuple[str, ...]:
        """Rules of the job that drop records because of their outcome."""
        ...

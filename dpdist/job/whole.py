"""A job as a whole: its sections, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from dpdist.job.acceptance import Acceptance
from dpdist.job.base import BASE_SCHEMA, Base
from dpdist.job.budget import ReleaseBudget
from dpdist.job.correction import Correction
from dpdist.job.data import Column, Input, Keep
from dpdist.job.design import Survey
from dpdist.job.earlier import CALIBRATION_SCHEMA, Calibration, Fit
from dpdist.job.ledger import LedgerSettings
from dpdist.job.mechanisms import Mechanism
from dpdist.job.model import Model, Outcome
from dpdist.job.names import (
    SAMPLERS,
    Comparator,
    Family,
    Statistics,
)
from dpdist.job.predictors import Predictors
from dpdist.job.presentation import Presentation
from dpdist.job.public_frame import FRAME_MINIMUM, PublicFrame
from dpdist.job.reference import HISTOGRAM_SHARE, HistogramReference, Reference
from dpdist.job.running import Diagnostics, Record, Runtime, Sampler
from dpdist.job.tables import Microdata, Rake, Table
from dpdist.job.units import PrivacyUnit
from dpdist.job.values import ColumnName, Frozen, Name, Period, Sentence, at_most
from dpdist.job.zcdp import rho_of

_UNSAID = Model(family="lognormal")


def _unsaid(value: object) -> bool:
    """A key that a job does not say is not in its release either."""
    return value is None


class Job(Frozen):
    """A release: data, design, model, mechanism, budget, tables."""

    extends: Annotated[Base, WithJsonSchema(BASE_SCHEMA)] | None = Field(
        default=None, exclude=True, description="another job file: its keys hold where this one says nothing"
    )
    dataset: Name = Field(description="the survey's short name")
    period: Period = Field(description='what the release is of, as in "2017"; write it in quotes')
    assumed_public: tuple[Sentence, ...] = Field(
        default=(), description="what the job states to be public though it may depend on records; the statement prints it"
    )
    input: Input = Field(default=Input(), description="the confidential file; the option --input goes before it")
    columns: dict[ColumnName, Column] = Field(
        description="the columns that are used, each with its public domain; nothing is inferred from the file"
    )
    universe: tuple[Keep, ...] = Field(default=(), description="public filters: records that pass all are released")
    survey: Survey = Field(default=Survey(), description="weights and sampling design")
    strata: tuple[str, ...] = Field(
        default=(), description="columns whose combinations are fitted apart; none: one fit of the whole file"
    )
    outcome: Outcome = Field(description="a column, or several, as in [salary, hours], that are released together")
    model: Model | None = Field(default=None, description="the likelihood, of mechanisms that fit one")
    mechanism: Mechanism = Field(description="how records are protected, with its constants")
    budget: ReleaseBudget = Field(description="what the whole release may cost, and against which neighbouring files")
    synthetic_sets: Annotated[
        int, Field(ge=1), at_most(1_000, "each is a file of the whole sample's records, and has its part of ε alone")
    ] = Field(default=1, description="files of synthetic records; most mechanisms divide the budget among them")
    reference: Reference | None = Field(
        default=None,
        description="public records, an earlier release or paid histograms, on which things are fixed; unset: "
        "reference_tables pays a third of its budget for histograms",
    )
    fit: Fit = Field(default=Fit(), description="how well the family must fit the reference")
    calibration: Annotated[Calibration, WithJsonSchema(CALIBRATION_SCHEMA)] | None = Field(
        default=None, description="constants that `dpdist calibrate` tuned on an earlier period"
    )
    sampler: Sampler = Field(default=Sampler(), description="how posteriors are sampled")
    diagnostics: Diagnostics = Field(default=Diagnostics(), description="thresholds of Markov chains")
    tables: tuple[Table, ...] = Field(min_length=1, description="what is published; all tables have one budget")
    microdata: Microdata = Field(default=Microdata(), description="what synthetic records beside strict tables hold")
    rake: tuple[Rake, ...] = Field(default=(), description="public totals that synthetic weights and tables must meet")
    compare: tuple[Comparator, ...] = Field(
        default=(), description="other mechanisms to run beside this one, for the confidential evaluation alone"
    )
    record: Record = Field(default=Record(), description="which confidential by-products are kept")
    privacy_unit: PrivacyUnit | None = Field(
        default=None, exclude_if=_unsaid, description="whose loss the budget bounds; unset: one record's"
    )
    frame_minimum: Annotated[int, Field(ge=FRAME_MINIMUM, exclude_if=lambda least: least == FRAME_MINIMUM)] = Field(
        default=FRAME_MINIMUM, description="published sample counts below it refuse a run, unless public_frame accepts them"
    )
    public_frame: PublicFrame | None = Field(
        default=None,
        exclude_if=_unsaid,
        description="that sample counts so small are published all the same",
    )
    predictors: Predictors | None = Field(
        default=None,
        exclude_if=_unsaid,
        description="protect: sample counts of the frame are published under noise; unset: as they are",
    )
    ledger: LedgerSettings | None = Field(default=None, description="the account that the release's budget is charged to")
    accept: Acceptance | None = Field(
        default=None, exclude_if=_unsaid, description="gates that the release must meet under noise, or it is not published"
    )
    correction: Correction | None = Field(
        default=None, exclude_if=_unsaid, description="of a period that was released before: its version, and why"
    )
    approval: Literal["required"] | None = Field(
        default=None,
        exclude_if=_unsaid,
        description="required: what a run makes is held aside, and `dpdist approve` alone publishes it",
    )
    presentation: Presentation = Field(
        default=Presentation(), description="titles, labels, units and rules of print; it never changes a figure"
    )
    runtime: Runtime = Field(default=Runtime(), description="where and how the work is done; it never changes the result")

    @model_validator(mode="after")
    def _sampler_resolved(self) -> Self:
        """A job holds the sampler that is taken: what is published, and what decides the result, name it."""
        if self.sampler.name == "auto":
            known = SAMPLERS.get(self.family, ("exact",)) if not self.mechanism.adds_noise else ("exact",)
            left = [name for name in known if name != "exact" or not self.mechanism.clamps]
            object.__setattr__(self, "sampler", self.sampler.model_copy(update={"name": (left or known)[0]}))
        return self

    @model_validator(mode="after")
    def _reference_resolved(self) -> Self:
        """Histograms of the current file take the place of a reference that is not named, where public sizes allow it."""
        if self.reference is None and self.mechanism.own_histograms and not self.sizes_in_sums:
            own = HistogramReference(epsilon=self.budget.epsilon * HISTOGRAM_SHARE)
            object.__setattr__(self, "reference", Reference(histogram=own))
        return self

    @property
    def categories(self) -> tuple[str, ...]:
        """Columns of the public frame, each once: strata, predictors, design strata, columns of tables and rakes."""
        by = [name for table in self.tables for name in table.by] + [name for rake in self.rake for name in rake.by]
        return tuple(dict.fromkeys([*self.strata, *self.likelihood_predictors, *self.survey.design_strata, *by]))

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """Columns of the tables: what they cross to is a finest cell."""
        return tuple(dict.fromkeys(name for table in self.tables for name in table.by))

    @property
    def fits_likelihood(self) -> bool:
        """True if parameters of a model of the records are released, by likelihood or histogram, and not tables."""
        return not self.mechanism.tabulates

    @property
    def modelled_columns(self) -> tuple[str, ...]:
        """Categories that what is released distinguishes, in the frame's order: no other enters synthetic records."""
        cells = () if self.fits_likelihood else self.cell_columns
        return tuple(name for name in self.categories if name in {*self.strata, *self.likelihood_predictors, *cells})

    @property
    def reference_columns(self) -> tuple[str, ...]:
        """Columns whose combinations a reference must have records of."""
        cells = self.cell_columns if self.mechanism.by_cell else ()
        return tuple(dict.fromkeys([*self.strata, *self.likelihood_predictors, *cells]))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Every outcome's column, in order."""
        return (self.outcome,) if isinstance(self.outcome, str) else self.outcome

    @property
    def likelihood(self) -> Model:
        """The model; where the mechanism fits none, one that says nothing."""
        return self.model or _UNSAID

    @property
    def family(self) -> Family | Statistics:
        """The likelihood's family, or the statistics that the mechanism has in its place."""
        return self.mechanism.statistics or self.likelihood.family

    @property
    def model_name(self) -> str:
        """For messages: the likelihood's family, or the mechanism that fits none."""
        return self.likelihood.family if self.mechanism.statistics is None else self.mechanism.name

    @property
    def likelihood_predictors(self) -> tuple[str, ...]:
        """Columns that the likelihood is given."""
        return self.likelihood.predictors

    @property
    def outcome_column(self) -> Column:
        """The column of the first outcome: the only one of every family but lognormal."""
        return self.columns[self.outcomes[0]]

    @property
    def outcome_columns(self) -> dict[str, Column]:
        """The column of every outcome, by name."""
        return {name: self.columns[name] for name in self.outcomes}

    @property
    def clipped_outcomes(self) -> tuple[str, ...]:
        """Outcomes that are clipped to their public bounds as they are read."""
        return tuple(name for name, column in self.outcome_columns.items() if column.outside == "clip")

    @property
    def components(self) -> tuple[str, ...]:
        """Columns that are modelled: the outcomes, and the weight where there is one."""
        return tuple(name for name in (*self.outcomes, self.survey.weight) if name is not None)

    @property
    def epsilon_per_set(self) -> Fraction:
        return self._epsilon_of_release / self.synthetic_sets

    @property
    def epsilon_of_tables(self) -> Fraction:
        """What is left of the release's budget after its gates and its reference's histograms."""
        own = self.reference.histogram if self.reference is not None else None
        return self._epsilon_of_release - (own.epsilon if own is not None else 0)

    @property
    def _epsilon_of_release(self) -> Fraction:
        """What the gates and the noisy frame leave of the budget."""
        return self.budget.epsilon - (self.accept.epsilon if self.accept is not None else 0) - self.epsilon_of_frame

    @property
    def epsilon_of_frame(self) -> Fraction:
        """What noisy sample counts take of the budget; 0 where counts are public."""
        return self.predictors.protect.epsilon if self.predictors is not None else Fraction(0)

    @property
    def rho_of_frame(self) -> Fraction:
        """The same in ρ, under Gaussian noise: what its ε alone would buy at the release's δ."""
        if self.predictors is None:
            return Fraction(0)
        assert self.budget.delta is not None
        return rho_of(self.epsilon_of_frame, self.budget.delta)

    @property
    def rho_of_tables(self) -> Fraction:
        """What the noisy frame leaves of the release's ρ."""
        return self.budget.concentrated - self.rho_of_frame

    @property
    def protected_columns(self) -> tuple[str, ...]:
        """Columns of the frame whose sample counts are noisy."""
        if self.predictors is None:
            return ()
        chosen = self.predictors.protect.columns
        return tuple(name for name in self.categories if chosen is None or name in chosen)

    @property
    def counted_columns(self) -> tuple[str, ...]:
        """The other columns of the frame, by which sample counts are exact and public."""
        return tuple(name for name in self.categories if name not in self.protected_columns)

    @property
    def gated(self) -> bool:
        """True if gates may be measured beside the release: it is strict, by noise of pure ε on one set of statistics."""
        return self.mechanism.gates and self.strict and self.budget.delta is None

    @property
    def has_reference(self) -> bool:
        """True if something is fixed on a reference before the current file is read: a file, or an earlier release."""
        return self.reference is not None and (self.reference.histogram is None or self.carries)

    @property
    def refreshes(self) -> bool:
        """True if an earlier release's shapes are brought up to date by histograms of the current file."""
        return self.carries and self.reference is not None and self.reference.histogram is not None

    @property
    def on_histograms(self) -> bool:
        """True if histograms of the current file alone stand in for a reference."""
        return self.reference is not None and self.reference.histogram is not None and not self.carries

    @property
    def sizes_secret(self) -> bool:
        """True if the number of records in a cell is not public: the reference's stand in, and noisy ones are told."""
        return self.budget.adjacency == "add_remove" or self.budget.exchange == "anywhere"

    @property
    def sizes_in_sums(self) -> bool:
        """True if sizes are secret and the mechanism's own noisy sums tell of them: there is no noisy frame."""
        return self.sizes_secret and self.predictors is None

    @property
    def most_records(self) -> int:
        """Records in which neighbouring files can differ: one, or all of a unit."""
        return 1 if self.privacy_unit is None else self.privacy_unit.most

    @property
    def by_record(self) -> Job:
        """The job as it reads a public file: units are of the confidential one."""
        return self.model_copy(update={"privacy_unit": None})

    @property
    def carries(self) -> bool:
        """True if the reference is an earlier release."""
        return self.reference is not None and self.reference.release is not None

    @property
    def strict(self) -> bool:
        """True if the bound holds for every file."""
        return self.mechanism.guarantee(self) == "strict"

    @property
    def local(self) -> bool:
        """True if noise has the scale of the file's own sensitivities: nothing is promised then."""
        return self.mechanism.whole_tables and self.mechanism.guarantee(self) == "none"

    @property
    def frozen(self) -> bool:
        """True if a record's privacy weight is fixed by the reference: a function of the record, whatever the file."""
        needed = self.mechanism.needs_reference
        return self.reference is not None and not needed and self.mechanism.weights.rule != "none"

    @property
    def outcome_dependent_rules(self) -> tuple[str, ...]:
        """Rules that drop records by their outcome: the number left is then no longer a public fact."""
        return tuple(
            f"{name}: {what} dropped"
            for name, column in self.outcome_columns.items()
            for what in ("missing", "zeros")
            if getattr(column, what) == "drop"
        )

    @cached_property
    def public(self) -> dict[str, Any]:
        """The job as published: without input, runtime, ledger, recording, comparators and paths."""
        return self.model_dump(
            mode="json",
            exclude={
                **dict.fromkeys(("input", "runtime", "ledger", "record", "compare"), True),
                "reference": {"path", "release", "encoding", "separator"},
            },
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result, by dotted key (runtime, ledger, presentation and paths do not decide it)."""
        return dict(
            _flat(
                self.model_dump(
                    mode="json",
                    exclude={
                        "runtime": True,
                        "ledger": True,
                        "presentation": True,
                        "input": {"path", *self.input.unsaid},
                        "reference": {"path", "release", *(self.reference.unsaid if self.reference else ())},
                    },
                ),
                (),
            )
        )


def _flat(given: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    inner = given.items() if isinstance(given, dict) else enumerate(given) if isinstance(given, list) else None
    if inner is None or not given:
        yield ".".join(path), given
    else:
        for name, value in inner:
            yield from _flat(value, (*path, str(name)))

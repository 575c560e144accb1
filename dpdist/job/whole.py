"""The class `Job`: all sections, the parts of its budget, and facts that follow from several keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, WithJsonSchema, model_validator

from dpdist.core.cautions import Caution
from dpdist.core.plugins import Members
from dpdist.core.records import Crosstab
from dpdist.job.budget import (
    FRAME_MINIMUM,
    LedgerSettings,
    Predictors,
    PrivacyUnit,
    PublicFrame,
    ReleaseBudget,
    Split,
    rho_of,
)
from dpdist.job.data import BASE_SCHEMA, Base, Column, Input, Keep, Recode, Survey
from dpdist.job.families import MODELS, Diagnostics, Model, Outcome, Record, Runtime, Sampler, samplers_of
from dpdist.job.presentation import Acceptance, Approval, Correction, Gate, Presentation
from dpdist.job.reference import Fit, HistogramReference, HistogramsAlone, Reference
from dpdist.job.specs import CALIBRATION_SCHEMA, SPECS, STORED, Calibration, Former, Mechanism
from dpdist.job.statistics import KINDS
from dpdist.job.tables import Hierarchies, ListedOut, Microdata, Nesting, Rake, Table, nestings
from dpdist.job.values import (
    ColumnName,
    Comparator,
    Frozen,
    Name,
    Period,
    Sentence,
    at_most,
)
from dpdist.job.weights import WEIGHT_RULES


def _unset(value: object) -> bool:
    return value is None


WITHHOLD_ABOVE = 1.0
"""Relative standard error above which figures are withheld, unless the job states another."""


def _switched(value: object) -> object:
    """A limit, or None if it is switched off; `true` is refused."""
    if value is True:
        raise ValueError("a number above 0, or null, which withholds nothing")
    return None if value is False else value


DESCRIPTION = "A release: data, design, model, mechanism, budget, tables."
_NO_SETTINGS = Model(family="lognormal")


class Job(Frozen):
    """A release: data, design, model, mechanism, budget, tables.

    Parameters
    ----------
    The keys of a job file: docs/reference/job-file.md describes every one.

    Raises
    ------
    ValidationError : a key is wrong. `load_job` and `parse_job` say the same with line and remedy, as a `JobError`.

    Example
    -------
    >>> job = dpdist.load_job("doctorates")
    >>> job.outcomes, job.strict
    (('salary',), False)
    """

    model_config = ConfigDict(json_schema_extra={"description": DESCRIPTION})

    extends: Annotated[Base, WithJsonSchema(BASE_SCHEMA)] | None = Field(
        default=None, exclude=True, description="another job file, whose keys apply unless this one states them"
    )
    format: Literal[1] = Field(default=1, exclude=True, description="format of this file")
    dataset: Name = Field(description="short name of the survey")
    period: Period = Field(description='period of the release, such as "2017"')
    assumed_public: tuple[Sentence, ...] = Field(
        default=(), description="sentences for the statement: facts that are public though they may depend on records"
    )
    input: Input = Field(default=Input(), description="the confidential file; --input overrides it")
    columns: dict[ColumnName, Column] = Field(description="columns that are used, with their public domains")
    recode: Annotated[Recode, Field(exclude_if=lambda recode: not recode)] = Field(
        default={},
        description="levels to merge when a file is read, as in {race: {Alaska Native: Other}}; null makes a level missing",
    )
    universe: tuple[Keep, ...] = Field(default=(), description="public filters on records")
    survey: Survey = Field(default=Survey(), description="weights and sampling design")
    strata: tuple[str, ...] = Field(
        default=(), description="columns whose combinations are fitted separately; none: one fit for the whole file"
    )
    outcome: Outcome = Field(description="sensitive column, or several, as in [salary, hours]")
    model: Model | None = Field(default=None, description="likelihood, for mechanisms that fit one")
    mechanism: Mechanism = Field(description="how records are protected")
    budget: ReleaseBudget = Field(description="largest cost of the release, with its adjacency")
    synthetic_sets: Annotated[
        int,
        Field(ge=1),
        at_most(1_000, "each is a file for the whole sample, and has its own part of ε"),
    ] = Field(default=1, description="number of files of synthetic records; most mechanisms divide the budget among them")
    reference: Reference | None = Field(
        default=None,
        description="public records, an earlier release, or histograms; unset: histograms for a sixth of tables' budget",
    )
    fit: Fit = Field(default=Fit(), description="how well the family must fit the reference")
    calibration: Annotated[Calibration, WithJsonSchema(CALIBRATION_SCHEMA)] | None = Field(
        default=None, description="constants tuned by `dpdist calibrate` on an earlier period"
    )
    sampler: Sampler = Field(default=Sampler(), description="how posteriors are sampled")
    diagnostics: Diagnostics = Field(default=Diagnostics(), description="thresholds of Markov chains")
    tables: Annotated[tuple[Table, ...], ListedOut()] = Field(
        description="published tables, which share one budget; an entry may stand for several"
    )
    hierarchies: Annotated[Hierarchies, Field(exclude_if=lambda hierarchies: not hierarchies)] = Field(
        default={},
        description="nested columns, the coarsest first, as in {geography: [region, state]}",
    )
    microdata: Microdata = Field(
        default=Microdata(), description="columns of synthetic records in addition to those of `tables`"
    )
    rake: tuple[Rake, ...] = Field(default=(), description="public totals that synthetic weights and tables must meet")
    compare: tuple[Comparator, ...] = Field(default=(), description="other mechanisms, run for the confidential evaluation")
    record: Record = Field(default=Record(), description="which confidential by-products are kept")
    privacy_unit: PrivacyUnit | None = Field(
        default=None, exclude_if=_unset, description="unit whose loss the budget bounds; unset: one record"
    )
    frame_minimum: Annotated[int | None, Field(ge=FRAME_MINIMUM)] = Field(
        default=None,
        exclude_if=_unset,
        description="smallest published sample count, in records or privacy units, unless public_frame accepts less",
    )
    public_frame: PublicFrame | None = Field(
        default=None,
        exclude_if=_unset,
        description="accepts smaller sample counts, with a reason",
    )
    predictors: Predictors | None = Field(
        default=None,
        exclude_if=_unset,
        description="whether sample counts of public columns get noise; unset: they are exact",
    )
    ledger: LedgerSettings | None = Field(default=None, description="ledger to which the budget is charged")
    accept: Acceptance | None = Field(
        default=None,
        exclude_if=_unset,
        description="gates, measured with noise, that the release must meet to be published",
    )
    correction: Correction | None = Field(
        default=None,
        exclude_if=_unset,
        description="version and reason, if this release corrects an earlier one of the period",
    )
    approval: Literal["required"] | Approval | None = Field(
        default=None,
        exclude_if=_unset,
        description="required, or {required: true, keys: […]}: hold the release until `dpdist approve` publishes it",
    )
    withhold_above: Annotated[
        Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
        BeforeValidator(_switched),
        Field(exclude_if=lambda most: most == WITHHOLD_ABOVE),
    ] = Field(
        default=WITHHOLD_ABOVE,
        description="a figure is withheld if its standard error exceeds this fraction of its size and of the table's "
        "median size; null: none is withheld",
    )
    publish: Literal["always", "unless_refused"] = Field(
        default="unless_refused",
        description="whether a verdict of `do not publish` holds the release until `dpdist approve`; ε does not cover "
        "this choice. Default with `accept`, or without standard errors: always",
    )
    presentation: Presentation = Field(default=Presentation(), description="titles, labels, units and printing rules")
    runtime: Runtime = Field(default=Runtime(), description="where and how the work is done, without effect on the result")
    _alias: Caution | None = PrivateAttr(None)

    @property
    def of_alias(self) -> tuple[Caution, ...]:
        """The caution on a former name that the job file gives its mechanism, if it does."""
        return () if self._alias is None else (self._alias,)

    def under_alias(self, caution: Caution) -> Self:
        """The same job, with the caution on the former name of its mechanism."""
        job = self.model_copy()
        job._alias = caution
        return job

    @model_validator(mode="after")
    def _sampler_resolved(self) -> Self:
        """Replaces the sampler `auto` by the one to use, because the published job and the run's identity name it."""
        if self.sampler.name == "auto":
            samplers = (samplers_of(self.family) or ("exact",)) if not self.mechanism.adds_noise else ("exact",)
            possible = [name for name in samplers if name != "exact" or not self.mechanism.clamps]
            object.__setattr__(self, "sampler", self.sampler.model_copy(update={"name": (possible or samplers)[0]}))
        return self

    @model_validator(mode="after")
    def _reference_resolved(self) -> Self:
        """Makes histograms of the current file the reference, if the job names none and the mechanism allows it.

        They need sample sizes that are public or already measured under noise. Where gates and noisy counts leave nothing
        of the budget, `job.checks` says so.
        """
        funded = self.epsilon.release > 0
        share = self.mechanism.histogram_share
        if self.reference is None and share is not None and not self.sizes_in_sums and funded:
            histogram = HistogramReference(epsilon=self.epsilon.release * share)
            object.__setattr__(self, "reference", HistogramsAlone(histogram=histogram))
            self.model_fields_set.discard("reference")  # a null states nothing
        return self

    @model_validator(mode="after")
    def _publication_resolved(self) -> Self:
        """Publishes always where no verdict can decide, unless the job says otherwise: `job.checks` then refuses it."""
        if "publish" not in self.model_fields_set and (self.accept is not None or self.local):
            object.__setattr__(self, "publish", "always")
        return self

    @property
    def epsilon(self) -> Split:
        """The parts of ε."""
        gates = self.accept.epsilon if self.accept is not None else Fraction(0)
        return Split(self.budget.epsilon, gates, *self._paid)

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Gates that the release must meet to be published."""
        return self.accept.gates if self.accept is not None else ()

    @property
    def gated_tables(self) -> list[Table]:
        """The tables on whose cells gates are measured."""
        listed = self.accept.tables if self.accept is not None else ()
        return [table for table in self.tables if table.name in listed or not listed]

    @property
    def plain(self) -> bool:
        """True if all statistics of the tables are counts, means and totals."""
        return all(statistic.plain for table in self.tables for statistic in table.statistics)

    @property
    def rho(self) -> Split:
        """The parts of ρ under Gaussian noise. Counts and histograms have the ρ of their ε alone, at the release's δ."""
        delta, total = self.budget.delta, self.budget.concentrated
        assert delta is not None
        return Split(total, Fraction(0), *(rho_of(part, delta) if part else part for part in self._paid))

    @property
    def published_sets(self) -> int:
        """Number of sets of synthetic records in a release: none if whole tables are all that it holds."""
        return 0 if self.mechanism.sets == "none" else self.synthetic_sets

    @property
    def epsilon_per_set(self) -> Fraction:
        return self.epsilon.release / self.synthetic_sets

    @property
    def _paid(self) -> tuple[Fraction, Fraction]:
        """ε of noisy sample counts, and of histograms of the current file."""
        counts = self.predictors.protect.epsilon if self.predictors is not None else None
        histograms = self.reference.histograms if self.reference is not None else None
        return counts or Fraction(0), histograms.epsilon if histograms is not None else Fraction(0)

    @property
    def noisy_crosstab(self) -> bool:
        """True if sample counts get noise of their own, before anything is fitted, from a part of the budget."""
        return self._paid[0] > 0

    @classmethod
    def stored(cls, text: str | bytes) -> Self:
        """Reads the job of a release or a workspace. Without `publish`, a job of version 0.2.0 or earlier means `always`.

        Raises `ValidationError`.
        """
        job = cls.model_validate_json(text, context=STORED)
        return job if "publish" in job.model_fields_set else job.model_copy(update={"publish": "always"})

    @property
    def categories(self) -> tuple[str, ...]:
        """Columns of the public crosstab, each once: strata, predictors, design strata, columns of tables and rakes."""
        by = [name for table in self.tables for name in table.columns] + [name for rake in self.rake for name in rake.by]
        design = [*self.survey.design_strata, *self.survey.one_weight_in]
        return tuple(dict.fromkeys([*self.strata, *self.likelihood_predictors, *design, *by]))

    @property
    def least_count(self) -> int:
        """The smallest number of records, or privacy units, that is not treated as small."""
        return FRAME_MINIMUM if self.frame_minimum is None else self.frame_minimum

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """The columns of all tables, and those of public weights. Their combinations are the base cells."""
        public = self.survey.design_weights
        by = [name for table in self.tables for name in table.columns]
        return tuple(dict.fromkeys([*by, *(public.by if public is not None else ())]))

    @property
    def fits_likelihood(self) -> bool:
        """True if the release has parameters of a model of the records, rather than figures of tables' cells."""
        return not self.mechanism.tabulates

    @property
    def modelled_columns(self) -> tuple[str, ...]:
        """Categories that the released parameters distinguish, in the crosstab's order.

        Synthetic records have no other categories.
        """
        cells = () if self.fits_likelihood else self.cell_columns
        return tuple(name for name in self.categories if name in {*self.strata, *self.likelihood_predictors, *cells})

    @property
    def reference_columns(self) -> tuple[str, ...]:
        """Columns whose every combination must have records in the reference."""
        cells = self.cell_columns if self.mechanism.by_cell else ()
        return tuple(dict.fromkeys([*self.strata, *self.likelihood_predictors, *cells]))

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The names of all outcomes, in order."""
        return (self.outcome,) if isinstance(self.outcome, str) else self.outcome

    @property
    def likelihood(self) -> Model:
        """The model. A mechanism without a likelihood has one without settings."""
        return self.model or _NO_SETTINGS

    @property
    def family(self) -> str:
        """The likelihood's family, or the name of the mechanism's statistics."""
        return self.mechanism.statistics or self.likelihood.family

    @property
    def model_name(self) -> str:
        """The name for messages: the likelihood's family, or the mechanism where it fits none."""
        return self.likelihood.family if self.mechanism.statistics is None else self.mechanism.name

    @property
    def likelihood_predictors(self) -> tuple[str, ...]:
        """The predictors of the likelihood."""
        return self.likelihood.predictors

    @property
    def outcome_column(self) -> Column:
        """The declared domain of the first outcome."""
        return self.columns[self.outcomes[0]]

    @property
    def outcome_columns(self) -> dict[str, Column]:
        """The declared domain of every outcome, by name."""
        return {name: self.columns[name] for name in self.outcomes}

    @property
    def clipped_columns(self) -> tuple[str, ...]:
        """Outcomes, and the weight, that are clipped to their public bounds when they are read."""
        declared = ((name, self.columns.get(name)) for name in self.components)
        return tuple(name for name, column in declared if column is not None and column.outside == "clip")

    @property
    def weight_bounds(self) -> tuple[float, float] | None:
        """Public bounds of the weight; None without a weight, or without bounds of it."""
        declared = self.columns.get(self.survey.weight or "")
        return None if declared is None else declared.bounds

    @property
    def components(self) -> tuple[str, ...]:
        """The numeric columns of a record: its outcomes, and its weight where the job names one."""
        return tuple(name for name in (*self.outcomes, self.survey.weight) if name is not None)

    @property
    def protected_components(self) -> tuple[str, ...]:
        """The components whose values are protected: all of them, without weights that are public."""
        return tuple(name for name in (*self.outcomes, self.survey.measured_weight) if name is not None)

    @property
    def protected_columns(self) -> tuple[str, ...]:
        """Columns of the crosstab whose sample counts are noisy."""
        if self.predictors is None or not self.noisy_crosstab:
            return ()
        columns = self.predictors.protect.columns
        return tuple(name for name in self.categories if columns is None or name in columns)

    @property
    def counted_columns(self) -> tuple[str, ...]:
        """The other columns of the crosstab, which are not protected by `predictors`."""
        return tuple(name for name in self.categories if name not in self.protected_columns)

    @property
    def approvers(self) -> tuple[str, ...]:
        """Public keys of those who may approve the release. Without keys, anyone may approve."""
        return self.approval.keys if isinstance(self.approval, Approval) else ()

    @property
    def held_on_a_verdict(self) -> bool:
        """True if the confidential verdict decides whether the release is held. With `approval` every release is held."""
        return self.publish == "unless_refused" and self.approval is None

    @property
    def public_counts(self) -> tuple[str, ...] | None:
        """Columns whose combinations have published exact sample counts; None if there are none."""
        if self.noisy_crosstab:
            return self.counted_columns or None
        return None if self.sizes_secret else self.categories

    def nested_by_file(self, columns: Iterable[str]) -> bool:
        """True if the file's records publicly show the nesting of these columns, because their sample counts are
        public.
        """
        return self.public_counts is not None and set(columns) <= set(self.public_counts)

    def nestings(self, frames: Iterable[Crosstab]) -> tuple[Nesting, ...]:
        """The maps of the job's hierarchies, completed by records of public frames. Raises `JobError`."""
        levels = {name: column.levels or () for name, column in self.columns.items()}
        return nestings(self.dataset, self.hierarchies, levels, frames)

    @property
    def gated(self) -> bool:
        """True if gates, which are limits on measured accuracy, are possible.

        The mechanism must allow it, and the release must be strict with ε alone, without δ."""
        return self.mechanism.uses("accept") and self.strict and self.budget.delta is None

    @property
    def has_reference(self) -> bool:
        """True if the job has a reference that is known before the current file is read: all but histograms."""
        return self.reference is not None and self.reference.known_before

    @property
    def on_records(self) -> bool:
        """True if the job has a reference of records that it declares public."""
        return self.reference is not None and self.reference.holds_records

    @property
    def on_histograms(self) -> bool:
        """True if histograms of the current file replace a reference."""
        return self.reference is not None and not self.reference.known_before

    @property
    def sizes_secret(self) -> bool:
        """True if the number of records in a cell is secret.

        Computations then use the reference's or noisy numbers of records, and only noisy ones are published.
        """
        return self.budget.adjacency == "add_remove" or self.budget.exchange == "anywhere"

    @property
    def is_domain(self) -> bool:
        """True if figures are about a domain of the sample, because a universe or a rule may leave drawn records out."""
        unit = None if self.privacy_unit is None else self.privacy_unit.column
        replicate_weights = self.survey.replicate_weights
        read = {*self.categories, *self.outcomes, self.survey.psu, unit, *self.survey.fpc}
        columns = [
            c
            for name, c in self.columns.items()
            if name in read or (replicate_weights is not None and replicate_weights.has(name))
        ]
        return bool(self.universe) or any("drop" in (column.missing, column.zeros) for column in columns)

    @property
    def drawn_is_public(self) -> bool:
        """True if the number of drawn records in every design stratum is public, with those outside the universe."""
        if self.budget.adjacency == "add_remove" or self.sizes_in_sums:
            return False
        return not set(self.survey.design_strata) & set(self.protected_columns)

    @property
    def sizes_in_sums(self) -> bool:
        """True if sizes are secret, and estimated from the mechanism's noisy sums instead of noisy sample counts."""
        return self.sizes_secret and not self.noisy_crosstab

    @property
    def most_records(self) -> int:
        """The number of records in which neighbouring files can differ: one, or the counted records of a privacy unit."""
        return 1 if self.privacy_unit is None else self.privacy_unit.most

    @property
    def by_record(self) -> Job:
        """The job for reading public files: without the privacy unit and declared weights of the confidential file."""
        settings = {"design_weights": None, "weights_constant_in": self.survey.one_weight_in}
        return self.model_copy(update={"privacy_unit": None, "survey": self.survey.model_copy(update=settings)})

    @property
    def carries(self) -> bool:
        """True if the reference is an earlier release."""
        return self.reference is not None and self.reference.release_folder is not None

    @property
    def strict(self) -> bool:
        """True if the bound holds for every file."""
        return self.mechanism.guarantee(self) == "strict"

    @property
    def local(self) -> bool:
        """True if the noise scale follows from sensitivities of the file itself. Then nothing is promised."""
        return self.mechanism.sets == "none" and self.mechanism.guarantee(self) == "none"

    @property
    def frozen(self) -> bool:
        """True if the reference fixes privacy weights as a function of the record, the same for all files."""
        needed = self.mechanism.needs_reference
        return self.reference is not None and not needed and self.mechanism.weights.rule != "none"

    @property
    def outcome_dependent_rules(self) -> tuple[str, ...]:
        """Rules that drop records by their outcome, so that the number of remaining records is not public."""
        return tuple(
            f"{name}: {what} dropped"
            for name, column in self.outcome_columns.items()
            for what in ("missing", "zeros")
            if getattr(column, what) == "drop"
        )

    @cached_property
    def public(self) -> dict[str, Any]:
        """The job as it is published: without input, runtime, ledger, record, comparators and paths."""
        return self.model_dump(
            mode="json",
            exclude={
                **dict.fromkeys(("input", "runtime", "ledger", "record", "compare"), True),
                "reference": {"path", "release", "key", "encoding", "separator"},
            },
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that determines the result, by dotted key: the job without runtime, ledger, presentation and paths."""
        settings = dict(
            _flat(
                self.model_dump(
                    mode="json",
                    exclude={
                        "runtime": True,
                        "ledger": True,
                        "presentation": True,
                        "input": {"path", *self.input.left_out},
                        "reference": {"path", "release", "key", *(self.reference.left_out if self.reference else ())},
                    },
                ),
                (),
            )
        )
        if self.publish == "always":  # as it was stored when this was the default
            del settings["publish"]
        places = {"mechanism": "mechanism", "weight rule": "mechanism.weights", "family": "model"}
        origins = {places[part]: origin for part, (_, origin) in self.third_party.items()}
        origins |= {f"tables.{name}": origin for name, origin in self.third_party_statistics.items()}
        return settings | {
            f"{place}.third_party.{key}": text for place, origin in origins.items() for key, text in origin.items()
        }

    @property
    def third_party(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Third-party parts, by kind: name, and distribution with version, as the registries state them."""
        mechanism = self.mechanism
        members: dict[str, tuple[str, Members[Any]]] = {
            "mechanism": (mechanism.name, SPECS),
            "weight rule": (mechanism.weights.rule, WEIGHT_RULES),
        }
        if mechanism.statistics is None:
            members["family"] = (self.family, MODELS)
        if isinstance(mechanism, Former):
            members.pop("mechanism")
        origins = {part: (name, registry.origin(name)) for part, (name, registry) in members.items()}
        return {part: (name, origin) for part, (name, origin) in origins.items() if origin}

    @property
    def third_party_statistics(self) -> dict[str, dict[str, str]]:
        """Distribution with version of every third-party statistic, by its name."""
        published = [statistic.of or statistic for table in self.tables for statistic in table.statistics]
        origins = {statistic.name: KINDS.origin(statistic.name) for statistic in published}
        return {name: origin for name, origin in origins.items() if origin}

    def origin(self, part: str) -> dict[str, Any]:
        """The distribution and version that bring a part, under `third_party`; empty for dpdist's parts."""
        return {"third_party": self.third_party[part][1]} if part in self.third_party else {}


def _flat(content: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else None
    if inner is None or not content:
        yield ".".join(path), content
    else:
        for name, value in inner:
            yield from _flat(value, (*path, str(name)))

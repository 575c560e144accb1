"""Defines the whole job: all its keys, and facts that follow from several of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Self

from pydantic import ConfigDict, model_validator

from dpdist.job.approval import Approval
from dpdist.job.data import Column
from dpdist.job.families import SAMPLERS
from dpdist.job.model import Model
from dpdist.job.reference import HISTOGRAM_SHARE, HistogramReference, HistogramsAlone
from dpdist.job.shares import BudgetShares

DESCRIPTION = "A release: data, design, model, mechanism, budget, tables."
_UNSET = Model(family="lognormal")


class Job(BudgetShares):
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

    @model_validator(mode="after")
    def _sampler_resolved(self) -> Self:
        """Replaces the sampler `auto` by the one to use, because the published job and the run's identity name it."""
        if self.sampler.name == "auto":
            known = SAMPLERS.get(self.family, ("exact",)) if not self.mechanism.adds_noise else ("exact",)
            left = [name for name in known if name != "exact" or not self.mechanism.clamps]
            object.__setattr__(self, "sampler", self.sampler.model_copy(update={"name": (left or known)[0]}))
        return self

    @model_validator(mode="after")
    def _reference_resolved(self) -> Self:
        """Sets histograms of the current file as reference, where the job names none and the mechanism allows it.

        They need sample sizes that are public, or that were measured with noise before.
        """
        if self.reference is None and self.mechanism.own_histograms and not self.sizes_in_sums:
            own = HistogramReference(epsilon=self.budget.epsilon * HISTOGRAM_SHARE)
            object.__setattr__(self, "reference", HistogramsAlone(histogram=own))
        return self

    @property
    def categories(self) -> tuple[str, ...]:
        """Columns of the public frame, each once: strata, predictors, design strata, columns of tables and rakes."""
        by = [name for table in self.tables for name in table.by] + [name for rake in self.rake for name in rake.by]
        return tuple(dict.fromkeys([*self.strata, *self.likelihood_predictors, *self.survey.design_strata, *by]))

    @property
    def cell_columns(self) -> tuple[str, ...]:
        """The columns of all tables. Their combinations are the base cells."""
        return tuple(dict.fromkeys(name for table in self.tables for name in table.by))

    @property
    def fits_likelihood(self) -> bool:
        """True if the release has parameters of a model of the records, not figures of the tables' cells."""
        return not self.mechanism.tabulates

    @property
    def modelled_columns(self) -> tuple[str, ...]:
        """Categories that the released parameters distinguish, in the frame's order.

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
        """The model. Where the mechanism fits none, it is one without settings."""
        return self.model or _UNSET

    @property
    def family(self) -> str:
        """The likelihood's family; where there is no likelihood, the name of the mechanism's statistics."""
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
    def components(self) -> tuple[str, ...]:
        """The numeric columns of a record: its outcomes, and its weight where the job names one."""
        return tuple(name for name in (*self.outcomes, self.survey.weight) if name is not None)

    @property
    def protected_columns(self) -> tuple[str, ...]:
        """Columns of the frame whose sample counts are noisy."""
        if self.predictors is None:
            return ()
        chosen = self.predictors.protect.columns
        return tuple(name for name in self.categories if chosen is None or name in chosen)

    @property
    def counted_columns(self) -> tuple[str, ...]:
        """The other columns of the frame, which are not protected by `predictors`."""
        return tuple(name for name in self.categories if name not in self.protected_columns)

    @property
    def approvers(self) -> tuple[str, ...]:
        """Public keys of those who may approve the release. If there are none, any key may."""
        return self.approval.keys if isinstance(self.approval, Approval) else ()

    @property
    def held_on_a_verdict(self) -> bool:
        """True if the confidential verdict decides whether the release is held. With `approval` every release is held."""
        return self.publish == "unless_refused" and self.approval is None

    @property
    def public_counts(self) -> tuple[str, ...] | None:
        """Columns by whose combinations exact sample counts are published; None where none are."""
        if self.predictors is not None:
            return self.counted_columns or None
        return None if self.sizes_secret else self.categories

    @property
    def gated(self) -> bool:
        """True if gates, which are limits on measured accuracy, are possible.

        The mechanism must allow it, and the release must be strict with ε alone, without δ."""
        return self.mechanism.gates and self.strict and self.budget.delta is None

    @property
    def has_reference(self) -> bool:
        """True if the job has a reference that is known before the current file is read: all but histograms."""
        return self.reference is not None and self.reference.known_before

    @property
    def refreshes(self) -> bool:
        """True if histograms of the current file bring the shapes of an earlier release up to date."""
        return self.carries and self.reference is not None and self.reference.paid is not None

    @property
    def on_histograms(self) -> bool:
        """True if histograms of the current file replace a reference."""
        return self.reference is not None and not self.reference.known_before

    @property
    def sizes_secret(self) -> bool:
        """True if the number of records in a cell is secret.

        Then computations use the reference's numbers of records, or noisy ones, and only noisy ones are published.
        """
        return self.budget.adjacency == "add_remove" or self.budget.exchange == "anywhere"

    @property
    def sizes_in_sums(self) -> bool:
        """True if sizes are secret, and estimated from the mechanism's noisy sums instead of noisy sample counts."""
        return self.sizes_secret and self.predictors is None

    @property
    def most_records(self) -> int:
        """The number of records in which neighbouring files can differ: one, or the most that count of one privacy unit."""
        return 1 if self.privacy_unit is None else self.privacy_unit.most

    @property
    def by_record(self) -> Job:
        """The job without its privacy unit, for reading public files: units belong to the confidential file."""
        return self.model_copy(update={"privacy_unit": None})

    @property
    def carries(self) -> bool:
        """True if the reference is an earlier release."""
        return self.reference is not None and self.reference.earlier is not None

    @property
    def strict(self) -> bool:
        """True if the bound holds for every file."""
        return self.mechanism.guarantee(self) == "strict"

    @property
    def local(self) -> bool:
        """True if the noise scale follows from sensitivities of the file itself. Then nothing is promised."""
        return self.mechanism.whole_tables and self.mechanism.guarantee(self) == "none"

    @property
    def frozen(self) -> bool:
        """True if the reference fixes the function from a record to its privacy weight; it is the same for all files."""
        needed = self.mechanism.needs_reference
        return self.reference is not None and not needed and self.mechanism.weights.rule != "none"

    @property
    def outcome_dependent_rules(self) -> tuple[str, ...]:
        """Rules that drop records because of their outcome, so that the number of records left is no public fact."""
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
                        "input": {"path", *self.input.unsaid},
                        "reference": {"path", "release", "key", *(self.reference.unsaid if self.reference else ())},
                    },
                ),
                (),
            )
        )
        code = self.mechanism.third_party
        return settings | dict(_flat(code, ("mechanism",))) if code else settings


def _flat(given: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    inner = given.items() if isinstance(given, dict) else enumerate(given) if isinstance(given, list) else None
    if inner is None or not given:
        yield ".".join(path), given
    else:
        for name, value in inner:
            yield from _flat(value, (*path, str(name)))

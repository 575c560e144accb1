"""Lists the top-level keys of a job file, each with its section and a description."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from dpdist.job.acceptance import Acceptance
from dpdist.job.approval import Approval
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
    Comparator,
)
from dpdist.job.predictors import Predictors
from dpdist.job.presentation import Presentation
from dpdist.job.public_frame import FRAME_MINIMUM, PublicFrame
from dpdist.job.reference import Reference
from dpdist.job.running import Diagnostics, Record, Runtime, Sampler
from dpdist.job.tables import Microdata, Rake, Table
from dpdist.job.units import PrivacyUnit
from dpdist.job.values import ColumnName, Frozen, Name, Period, Sentence, at_most


def _unsaid(value: object) -> bool:
    """True for an unset key, which is then left out of a release's job too."""
    return value is None


class JobKeys(Frozen):
    """The top-level keys of a job file."""

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
        default=FRAME_MINIMUM,
        description="published counts of fewer records, or privacy units, refuse a run unless public_frame accepts them",
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
    approval: Literal["required"] | Approval | None = Field(
        default=None,
        exclude_if=_unsaid,
        description="required, or {required: true, keys: […]}: what a run makes is held aside, and `dpdist approve` alone "
        "publishes it",
    )
    publish: Annotated[Literal["always", "unless_refused"], Field(exclude_if=lambda when: when == "always")] = Field(
        default="always",
        description="unless_refused: where the confidential verdict says `do not publish`, the release is held until "
        "`dpdist approve` publishes it. This choice is in no ε",
    )
    presentation: Presentation = Field(
        default=Presentation(), description="titles, labels, units and rules of print; it never changes a figure"
    )
    runtime: Runtime = Field(default=Runtime(), description="where and how the work is done; it never changes the result")

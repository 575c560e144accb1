"""For `kinds.files` and `repeated_samples`: how files are split, and which mechanisms (arms) are tried."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, Self

from pydantic import Field, model_validator

from dpdist.job import Adjacency, Budget, Family, Frozen, Mechanism, Name, Synthesis, budget_text
from dpdist.studies.kinds.populations import PopulationName
from dpdist.studies.kinds.table_errors import STATISTICS, sizes_of
from dpdist.studies.settings import StudyOfFiles, known_or_refused

DIRECT = "direct"
"""Label of the samples' direct estimates, which have no protection."""


class FilesArm(Frozen):
    """A mechanism in place of the job's, with its model, reference and values of ε.

    With `histogram`, this share of ε pays for noisy histograms of the current sample, which give limits in place of a
    reference.
    """

    label: Name
    mechanism: Mechanism
    family: Family | None = Field(default=None, description="of mechanisms that fit a likelihood")
    synthesis: Synthesis = "fbs"
    synthetic_sets: int = Field(default=1, ge=1, le=20)
    adjacency: Adjacency = "zero_out"
    reference: Literal["sample", "none"] = "sample"
    histogram: Budget | None = Field(default=None, description="share of ε")
    epsilons: tuple[Budget, ...] | None = Field(default=None, description="of the study's; unset: all")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.label == DIRECT:
            raise ValueError(f"'{DIRECT}' names the samples' own estimates: give another label")
        if self.mechanism.statistics is not None and self.family is not None:
            raise ValueError(f"'{self.mechanism}' fits no likelihood: leave family out")
        if self.mechanism.statistics is None and self.family is None:
            raise ValueError(f"'{self.mechanism}' fits a likelihood: name its family")
        if self.histogram is not None and (self.reference != "none" or self.histogram >= 1):
            raise ValueError("histogram is a share of ε, below 1, of a mechanism with reference: none")
        if self.mechanism.needs_reference and self.reference == "none" and self.histogram is None:
            raise ValueError(f"'{self.mechanism}' needs a reference, or a histogram")
        return self


RELEASE = "reference_tables"
Comparison = Literal["reference_only", "laplace_finest", "laplace_composed"]
COMPARISONS: tuple[Comparison, ...] = ("reference_only", "laplace_finest", "laplace_composed")


class FileCase(Frozen):
    """A public file, the job for its parts, and the way in which it is split.

    - `halves`: one half is the reference of the other.
    - `samples`: of two disjoint samples, each a `share` of the file, one is the reference; the file is the truth.
    - `periods`: each level of `column` is the reference of the next. The first release spends `first` of its ε on
      histograms; without `first`, the first period's file is public.
    - `pps`: samples of `sample` units from a file or a simulated `population`, which is the truth, with probabilities that
      grow with the outcome; another sample is the reference. The study's mechanisms replace the job's own.
    """

    name: Name
    file: str | None = Field(default=None, description="in the folder that `dpdist study --data` names")
    population: PopulationName | None = Field(default=None, description="simulated, in place of a file and its job")
    job: str | None = Field(default=None, description="a job file, or the name of a shipped job")
    split: Literal["halves", "samples", "periods", "pps"]
    share: float = Field(default=0.1, gt=0, le=0.5)
    column: str | None = None
    first: Budget | None = Field(default=None, description="share of ε; unset: the first period is a public file")
    complete: tuple[str, ...] = Field(default=(), description="columns of which records with missing values are left out")
    drift: float = Field(default=1.0, gt=0, description="of the current part's weights and outcomes, in halves and pps")
    power: float = Field(default=1.0, gt=0, description="of the current weights and outcomes about their means, in pps")
    adjacency: Adjacency = "zero_out"
    sample: int | None = Field(default=None, ge=2, description="units of a pps sample")
    by: tuple[str, ...] = Field(default=(), description="columns of a pps case's tables, in place of the job's own")
    above: float | None = Field(default=None, description="the population of pps: records whose outcome is above this")
    weight_bounds: tuple[float, float] | None = Field(
        default=None, description="public, for mechanisms without a reference"
    )
    mechanisms: tuple[str, ...] | None = Field(default=None, description="labels of a pps case's; unset: all")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.split == "periods") != (self.column is not None):
            raise ValueError("column names what tells periods apart: it goes with split: periods, and only with it")
        if self.first is not None and (self.split != "periods" or self.first >= 1):
            raise ValueError("first is a share, below 1, of the first period's ε")
        if self.drift != 1.0 and self.split not in ("halves", "pps"):
            raise ValueError("drift is for split: halves and pps")
        return self

    @model_validator(mode="after")
    def _one_population(self) -> Self:
        if (self.file is None) == (self.population is None):
            raise ValueError("give file or population, one of them")
        if (self.file is None) != (self.job is None):
            raise ValueError("job goes with file: a simulated population has a job of its own")
        if (self.split == "pps") != (self.sample is not None):
            raise ValueError("sample is a number of units: it goes with split: pps, and only with it")
        if self.split != "pps":
            unasked = ("population", "by", "above", "weight_bounds", "mechanisms")
            needless = [name for name in unasked if getattr(self, name) not in (None, ())]
            needless += ["power"] if self.power != 1.0 else []
            if needless:
                raise ValueError(f"{needless[0]} is for split: pps")
        return self

    @property
    def n(self) -> int:
        """Records of a pps sample; 0 if only the file shows their number."""
        return self.sample or 0


class FilesStudy(StudyOfFiles):
    """|Error| in direct standard errors, median and maximum over cells and margins.

    Errors of counts are also computed for fixed cell sizes. If the truth is known: coverage, and RMSE relative to the
    direct estimate's.
    """

    kind: Literal["files"]
    cases: tuple[FileCase, ...] = Field(min_length=1)
    epsilons: tuple[Budget, ...] = Field(min_length=1)
    mechanisms: tuple[FilesArm, ...] = Field(default=(), description="of split: pps")

    @model_validator(mode="after")
    def _mechanisms_of_samples(self) -> Self:
        repeated = [case for case in self.cases if case.split == "pps"]
        if bool(repeated) != bool(self.mechanisms):
            raise ValueError("mechanisms are those of split: pps, which needs some")
        for case in repeated:
            known_or_refused(f"case '{case.name}'", case.mechanisms, [arm.label for arm in self.mechanisms])
        for case in repeated:
            for arm in self.arms_of(case):
                if arm.histogram is not None and case.weight_bounds is None:
                    raise ValueError(f"'{arm.label}' has no reference: case '{case.name}' needs weight_bounds")
        for arm in self.mechanisms:
            known_or_refused(f"mechanism '{arm.label}'", [budget_text(e) for e in arm.epsilons or ()], self.grid)
        return self

    @property
    def same_at_every_epsilon(self) -> tuple[str, ...]:
        return (DIRECT,)

    def arms_of(self, case: FileCase) -> tuple[FilesArm, ...]:
        return tuple(arm for arm in self.mechanisms if case.mechanisms is None or arm.label in case.mechanisms)

    def grid_of(self, arm: FilesArm) -> tuple[str, ...]:
        return self.grid if arm.epsilons is None else tuple(budget_text(Fraction(e)) for e in arm.epsilons)

    @property
    def labels(self) -> tuple[str, ...]:
        split = any(case.split != "pps" for case in self.cases)
        others = (RELEASE, *COMPARISONS) if split else ()
        return (*dict.fromkeys((*others, *(arm.label for arm in self.mechanisms))), DIRECT)

    @property
    def all_measures(self) -> tuple[str, ...]:
        shared = ("coverage", "ratio_direct", "cell_coverage", "grand")
        sizes = [f"{name}_{last}{size}" for name in STATISTICS for size in sizes_of(name) for last in ("", "last_")]
        return (*(f"{name}_{what}" for name in STATISTICS for what in shared), *sizes, "chain_epsilon")

"""Settings of a mechanism (an arm) in a study of repeated samples: model, reference, and values of ε."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from dpdist.job import Adjacency, Budget, Family, Frozen, Mechanism, Name, Synthesis

DIRECT = "direct"
"""Label of the samples' direct estimates, which are not protected."""


class FilesArm(Frozen):
    """A mechanism that replaces the job's own, with its model, its reference and its values of ε.

    With `histogram` there is no reference. Limits then come from noisy histograms of the current sample, which spend this
    share of ε.
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

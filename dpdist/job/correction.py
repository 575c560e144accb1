"""A release of a period that was released before: which version it is, of which release, and why."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dpdist.job.values import RELEASE, Frozen, Sentence


class Correction(Frozen):
    """What is published of a correction; it is a release of its own, with a charge of its own."""

    version: Annotated[int, Field(ge=2, le=1000)] = Field(description="of the period's releases: the first correction is 2")
    of: str = Field(pattern=RELEASE, description="id of the release that it corrects, as its manifest has it")
    reason: Sentence = Field(min_length=1, description="what was wrong, for readers")

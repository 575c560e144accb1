"""Settings of a correction, which replaces an earlier release of the same period: version, that release, and reason."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dpdist.job.values import RELEASE, Frozen, Sentence


class Correction(Frozen):
    """What a correction states in public. A correction is a further release, and is charged again."""

    version: Annotated[int, Field(ge=2, le=1000)] = Field(description="of the period's releases: the first correction is 2")
    of: str = Field(pattern=RELEASE, description="id of the release that it corrects, as its manifest has it")
    reason: Sentence = Field(min_length=1, description="what was wrong, for readers")

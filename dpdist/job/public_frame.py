"""Settings of exact sample counts that are published: the smallest allowed count, and why smaller ones are accepted."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from dpdist.job.values import Frozen, Sentence

FRAME_MINIMUM = 3
"""Smallest sample count that may be published without consent: smaller counts single out one person or one of two."""


def _reason(text: str) -> str:
    if not any(map(str.isalnum, text)):
        raise ValueError("state in words why sample counts so small may be published; the statement prints it")
    return text


class PublicFrame(Frozen):
    """Accepts that small sample counts are published, although they single people out."""

    accepted: Annotated[Sentence, AfterValidator(_reason)] = Field(
        description="why sample counts below frame_minimum may be published as they are; the statement prints it"
    )

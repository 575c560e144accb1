"""Settings of a held release: who may approve it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from dpdist.job.values import MINISIGN, Frozen

KeyText = Annotated[str, StringConstraints(pattern=MINISIGN)]
"""Of a public key as minisign writes it: the second line of its file."""


class Approval(Frozen):
    """What a run makes is held aside, and published under one of these keys."""

    required: Literal[True] = Field(default=True, description="true: nothing is published before somebody approves it")
    keys: tuple[KeyText, ...] = Field(
        default=(),
        max_length=100,
        description="public keys of those who may approve: the second line of the file that `dpdist keygen` writes as "
        "FILE.pub; unset: whoever has any key may",
    )

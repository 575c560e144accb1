"""Settings of a release that must be approved before it is published: the keys of those who may approve it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpdist.job.values import Frozen, KeyText


class Approval(Frozen):
    """The release of a run is held back, and published when somebody approves it under one of these keys."""

    required: Literal[True] = Field(default=True, description="true: nothing is published before somebody approves it")
    keys: tuple[KeyText, ...] = Field(
        default=(),
        max_length=100,
        description="public keys of those who may approve: the second line of the file that `dpdist keygen` writes as "
        "FILE.pub; unset: whoever has any key may",
    )

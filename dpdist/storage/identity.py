"""What decides a run's result, and how two runs differ in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Identity:
    """What decides a run's result: the job (runtime and paths aside) and the input's content."""

    job: Mapping[str, Any]
    """Settings by dotted key."""
    input: str
    """SHA-256 of the content."""

    def differences(self, other: Identity) -> list[str]:
        """What differs, in words: "job (budget.epsilon, …)", "input (its content)"."""
        keys = sorted(self.job.keys() | other.job.keys())
        mine, theirs = ([job.get(key, "not stated") for key in keys] for job in (self.job, other.job))
        changed = [each for each in zip(keys, theirs, mine, strict=True) if each[1] != each[2]]
        shown = [f"{key}: {there!s:.40} there, {here!s:.40} here" for key, there, here in changed[:5]]
        found = [f"job ({'; '.join(shown)}{'; …' if len(changed) > 5 else ''})"] if changed else []
        return found + (["input (its content)"] if self.input != other.input else [])

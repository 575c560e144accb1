"""Lists all that determines a run's result, and says in what two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from dpdist.job import spec_of


@dataclass(frozen=True)
class Identity:
    """All that determines a run's result: job without runtime and paths, content of the input and, with noise, code."""

    job: Mapping[str, Any]
    """Settings of the job, by dotted key."""
    input: str
    """SHA-256 of the input file's content."""
    version: str = field(default_factory=lambda: version("dpdist"))
    """The version of dpdist that began the run."""

    def differences(self, other: Identity) -> list[str]:
        """The differences in words, such as "job (budget.epsilon, …)", "input (its content)", "version of dpdist (…)".

        The version counts only if the run adds noise. Another version may compute other sums, and the noise that is stored
        must not be added to them.
        """
        keys = sorted(self.job.keys() | other.job.keys())
        mine, theirs = ([job.get(key, "not stated") for key in keys] for job in (self.job, other.job))
        changed = [each for each in zip(keys, theirs, mine, strict=True) if each[1] != each[2]]
        shown = [f"{key}: {there!s:.40} there, {here!s:.40} here" for key, there, here in changed[:5]]
        found = [f"job ({'; '.join(shown)}{'; …' if len(changed) > 5 else ''})"] if changed else []
        found += ["input (its content)"] if self.input != other.input else []
        return found + ([f"version of dpdist ({other.version} there, {self.version} here)"] if self._recoded(other) else [])

    def remedy(self, other: Identity, otherwise: str) -> str:
        """A remedy where only the version differs; else `otherwise`."""
        same, known = self.job == other.job and self.input == other.input, other.version[:1].isdigit()
        install = f"install dpdist {other.version}, which drew the noise that is kept; or "
        return (install if same and known and self._recoded(other) else "") + otherwise

    def _recoded(self, other: Identity) -> bool:
        return self.version != other.version and self.adds_noise

    @property
    def adds_noise(self) -> bool:
        """True if released figures contain noise, which is drawn once and stored."""
        spec = spec_of(self.job)
        return spec is not None and spec.adds_noise

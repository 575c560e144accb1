"""Types of the texts that a mechanism's `statement.py` adds to its release's statement, and a text that several share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpdist.models.outputs import ReleaseView

WIDE = "Where most weights are well below their public bound, these intervals are too wide."
"""A caution for mechanisms in which a record counts by its sampling weight over the weight's public upper bound."""


@dataclass(frozen=True)
class Words:
    """The texts of a mechanism.

    A mechanism that fits a likelihood may leave them empty. The texts of the likelihood and of its draws are then used.
    """

    density: str = ""
    """Description of the parameters, with {outcome} and {weight}; empty: the likelihood's description."""
    errors: str = ""
    """Which errors are in the standard errors of estimates from parameters; empty: the errors of posterior draws."""
    errors_of_records: str = ""
    """Which errors are in the standard errors of estimates from synthetic records.

    Empty: the errors of the parameters, and the error of synthesis.
    """
    steps: tuple[str, ...] = ()
    """Processing steps after the statistics were released, of every job."""
    settings: Mapping[str, Mapping[object, str]] = field(default_factory=dict)
    """Further processing steps that depend on a setting: the setting's name, and a text for each of its values."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Texts of the statement's entries that only this mechanism has, by the entry's name."""

    def density_of(self, release: ReleaseView) -> str:
        """Description of the parameters, with {outcome} and {weight}."""
        return self.density

    def post_processing(self, release: ReleaseView) -> list[str]:
        """Processing steps after the statistics were released."""
        return [*self.steps, *(texts[getattr(release.job.mechanism, name)] for name, texts in self.settings.items())]

    def errors_of(self, release: ReleaseView) -> str:
        """Which errors are in the standard errors of estimates from parameters."""
        return self.errors

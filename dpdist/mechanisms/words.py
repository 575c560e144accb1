"""The texts that a mechanism adds to its release's statement, beside its promise; its `statement.py` defines them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dpdist.core.records import Frame
from dpdist.job import Job
from dpdist.models.protocol import Draws, StratumModel

WIDE = "Where most weights are well below their public bound, these intervals are too wide."
"""Of mechanisms that count weights by their share of the bound."""


class ReleaseView(Protocol):
    """What a mechanism's texts may use from a release: its job, public frame, described sets, models and parameters."""

    @property
    def job(self) -> Job: ...

    @property
    def frame(self) -> Frame: ...

    @property
    def sets(self) -> tuple[Mapping[str, Mapping[str, Any]], ...]: ...

    @property
    def donors(self) -> Mapping[str, object]:
        """The reference's records by stratum, if synthetic records take their values from them."""
        ...

    def model(self, stratum: int) -> StratumModel: ...

    def theta(self, model: StratumModel, stratum: int, set: int) -> Draws: ...


@dataclass(frozen=True)
class Words:
    """Texts of a mechanism that fits no likelihood.

    A mechanism with a likelihood uses the texts of the likelihood and its draws.
    """

    density: str = ""
    """Description of its parameters, with {outcome} and {weight}; empty: the likelihood's description."""
    errors: str = ""
    """Errors included in the standard errors of estimates from parameters; empty: those of draws of a posterior."""
    errors_of_records: str = ""
    """Errors included for estimates from synthetic records, where they differ from those of parameters and synthesis."""
    steps: tuple[str, ...] = ()
    """Processing steps after the release of its statistics that every job has."""
    settings: Mapping[str, Mapping[object, str]] = field(default_factory=dict)
    """Further processing steps by setting of the mechanism: the setting's name, and a text for each of its values."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Texts of statement entries that only this mechanism has, by name."""

    def density_of(self, release: ReleaseView) -> str:
        """Description of its parameters, with {outcome} and {weight}."""
        return self.density

    def post_processing(self, release: ReleaseView) -> list[str]:
        """Processing steps after the release of its statistics."""
        return [*self.steps, *(texts[getattr(release.job.mechanism, name)] for name, texts in self.settings.items())]

    def errors_of(self, release: ReleaseView) -> str:
        """Errors included in the standard errors of estimates from its parameters."""
        return self.errors

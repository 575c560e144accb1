"""What a mechanism adds to its release's statement, beside what it promises; its `statement.py` has the texts."""

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
    """What a mechanism's words may ask of a release: its job, public frame, described sets, models and parameters."""

    @property
    def job(self) -> Job: ...

    @property
    def frame(self) -> Frame: ...

    @property
    def sets(self) -> tuple[Mapping[str, Mapping[str, Any]], ...]: ...

    @property
    def donors(self) -> Mapping[str, object]:
        """The reference's records by stratum, where synthetic records take their values."""
        ...

    def model(self, stratum: int) -> StratumModel: ...

    def theta(self, model: StratumModel, stratum: int, set: int) -> Draws: ...


@dataclass(frozen=True)
class Words:
    """Texts of a mechanism that fits no likelihood; of one that does, the likelihood and its draws have them."""

    density: str = ""
    """What its parameters are, with {outcome} and {weight}; empty: a likelihood's."""
    errors: str = ""
    """What is in the standard errors of estimates from its parameters; empty: as draws of a posterior have them."""
    errors_of_records: str = ""
    """The same of estimates from synthetic records, where they are not those of parameters and synthesis."""
    steps: tuple[str, ...] = ()
    """What becomes of its statistics after their release, whatever the job."""
    settings: Mapping[str, Mapping[object, str]] = field(default_factory=dict)
    """The same by a setting of the mechanism: its name, and a text for each of its values."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """What entries of the statement that it alone can have say in words, by name."""

    def density_of(self, release: ReleaseView) -> str:
        """What its parameters are, with {outcome} and {weight}."""
        return self.density

    def post_processing(self, release: ReleaseView) -> list[str]:
        """What becomes of its statistics after their release."""
        return [*self.steps, *(texts[getattr(release.job.mechanism, name)] for name, texts in self.settings.items())]

    def errors_of(self, release: ReleaseView) -> str:
        """What is in the standard errors of estimates from its parameters."""
        return self.errors

"""A run's copy of its charge. Nothing here needs a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Receipt:
    """The copy of a run's charge: its ledger and its entry."""

    ledger: str
    """Identity that the ledger has had since its creation."""
    number: int
    sha256: str

    @property
    def line(self) -> dict[str, Any]:
        return {"ledger": self.ledger, "number": self.number, "sha256": self.sha256}

"""Defines a receipt, a run's copy of its charge in a ledger; it needs no database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Receipt:
    """What proves a run's charge: its ledger, and the number and checksum of its entry there."""

    ledger: str
    """Identity of the ledger since its creation."""
    number: int
    sha256: str

    @property
    def line(self) -> dict[str, Any]:
        return {"ledger": self.ledger, "number": self.number, "sha256": self.sha256}

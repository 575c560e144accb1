"""The copy of its charge that a run stores. Nothing here needs a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Receipt:
    """What a run keeps of its charge: which ledger, which entry."""

    ledger: str
    """The identity that the ledger was begun with."""
    number: int
    sha256: str

    @property
    def line(self) -> dict[str, Any]:
        return {"ledger": self.ledger, "number": self.number, "sha256": self.sha256}

"""Formats what a plan and a release's statement both say: the guarantee with its cost, and known problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpdist.estimation.donors import DONORS as DONORS_FILE
from dpdist.privacy import claims

DONATED = "the reference's weights and outcomes are published with the release"
DONORS = f"public/released/{DONORS_FILE}"
PUBLISHED_TOO = f"{DONATED}: {DONORS}. Publish the release only if the reference really is public"


def drifted(drift: Mapping[str, Any]) -> Iterator[str]:
    """States how many cells have moved away from the reference, by column."""
    moved = {name: len(cells) for name, cells in drift.items() if isinstance(cells, list) and cells}
    if moved:
        cells = ", ".join(f"{name} in {number:,}" for name, number in moved.items())
        yield (
            f"cells have moved away from the reference ({cells}; `drift` in statement.json names them). A change of shape "
            "is in no standard error: next time take a newer reference, or pay histograms"
        )


def stated_cautions(statement: Mapping[str, Any]) -> dict[str, str]:
    """Lists known problems; releases of earlier versions list none."""
    listed = "\n".join(f"- {caution}" for caution in [*statement.get("cautions", ()), *drifted(statement.get("drift", {}))])
    return {"cautions": listed} if listed else {}


def promise(statement: Mapping[str, Any]) -> dict[str, str]:
    """States the guarantee, its cost and what it protects, as the statement has them; empty if nothing is promised."""
    if "headline" not in statement or statement["guarantee"] == "none":
        return claims.headline(statement)
    verb = "is to protect" if statement["guarantee"] == "asymptotic" else "protects"
    return claims.headline(statement) | {verb: statement["headline"]}

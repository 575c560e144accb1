"""Recognises jobs in the format of an earlier version of dpdist, and says how to write each old key now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from dpdist.job.contradiction import Contradiction
from dpdist.job.families import Family
from dpdist.job.mechanisms import SPECS, STATISTICS


def of_earlier_form(keys: Mapping[str, Any]) -> bool:
    """True if a published job has keys that only earlier formats have."""
    return any(under_model(keys)) or any(constants_of_others(keys.get("mechanism")))


def under_model(keys: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Yields old keys under `model`: the outcome, and statistics of mechanisms without a likelihood."""
    model = keys.get("model")
    if not isinstance(model, dict):
        return
    if "outcome" in model:
        outcomes = model["outcome"]
        several = isinstance(outcomes, list) and all(isinstance(name, str) for name in outcomes)
        own = f"[{', '.join(outcomes)}]" if several else outcomes if isinstance(outcomes, str) else "…"
        allowed = "family, predictors, synthesis, prior and what else is the likelihood's"
        remedy = f"move it out of model, to a line of its own: outcome: {own}"
        yield Contradiction(("model", "outcome"), "an outcome is no part of the model", remedy, allowed)
    if model.get("family") in STATISTICS.values():
        found = f"'{model['family']}' is no likelihood: the mechanism's name says it all"
        remedy = "delete model; outcome stands beside mechanism"
        yield Contradiction(("model", "family"), found, remedy, f"one of {', '.join(get_args(Family))}")


def constants_of_others(mechanism: object) -> Iterator[str]:
    """Yields constants that belong to other mechanisms; in an earlier format every job had the constants of all."""
    spec = SPECS.get(str(mechanism.get("name"))) if isinstance(mechanism, dict) else None
    if spec is not None and isinstance(mechanism, dict):
        others = {name for each in SPECS.values() for name in each.model_fields} - spec.model_fields.keys()
        yield from (name for name in mechanism if name in others)

"""For `publish.standard_errors` and tables: a figure's public design effect, from the job or its reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpdist.core.records import TOTAL, Cells, Floats
from dpdist.estimation.estimators import STATISTICS
from dpdist.job import DesignEffect, Job, Statistic

KEY = "design_effects"


def design_effects(job: Job, promise: Mapping[str, Any]) -> tuple[DesignEffect, ...]:
    """Returns the design effects of a release, or none. A figure takes the first effect that fits it."""
    if not job.survey.effects_of_reference:
        return job.survey.stated_effects
    return effects_in_promise(promise)


def effects_in_promise(promise: Mapping[str, Any]) -> tuple[DesignEffect, ...]:
    """Returns the effects estimated from a reference. Raises `ValueError` or `TypeError` for wrong entries."""
    return tuple(DesignEffect.model_validate(entry) for entry in promise.get("reference", {}).get(KEY, ()))


def effect_of(effects: tuple[DesignEffect, ...], columns: frozenset[str], statistic: str, outcome: str | None) -> float:
    """Returns the effect of a statistic in cells crossed by these columns; 1 if none is known."""
    return next((effect.effect for effect in effects if effect.fits(columns, statistic, outcome)), 1.0)


def effects_in(effects: tuple[DesignEffect, ...], cells: Cells, statistic: str, outcome: str | None) -> Floats:
    """Returns a statistic's effects, (cell,)."""
    crossed = [
        frozenset(name for name, level in zip(cells.by, label, strict=True) if level != TOTAL) for label in cells.labels
    ]
    by_columns = {columns: effect_of(effects, columns, statistic, outcome) for columns in set(crossed)}
    return np.array([by_columns[columns] for columns in crossed])


def plain_effects(effects: tuple[DesignEffect, ...], cells: Cells, outcome: str) -> list[Floats]:
    """Returns the effects of counts, means and totals, (cell,) each. Counts have the same effects for every outcome."""
    return [effects_in(effects, cells, name, None if name == "count" else outcome) for name in STATISTICS]


def further_effects(effects: tuple[DesignEffect, ...], cells: Cells, statistic: Statistic) -> Floats:
    """Returns the effects of a further statistic, (cell,). A difference has the effects of both figures."""
    base = statistic.of or statistic
    return effects_in(effects, cells, base.name, base.variable)

"""What each mechanism is, said once: facts that the rest of dpdist asks for in place of a mechanism's name.

A job's own constants stand in `Mechanism`. `strict` is what `Job.strict` says; a contract test holds promises to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpdist.job.names import MechanismName, Statistics

if TYPE_CHECKING:
    from dpdist.job.whole import Job


def never(job: Job) -> bool:
    return False


def always(job: Job) -> bool:
    return True


def with_reference(job: Job) -> bool:
    """Weights fixed on a reference are functions of a record; learned on the file itself, they are not."""
    return job.reference is not None


def with_public_bounds(job: Job) -> bool:
    return not job.local


@dataclass(frozen=True)
class Facts:
    """A mechanism as the rest of dpdist sees it."""

    strict: Callable[[Job], bool] = never
    """Whether the bound holds for every file."""
    statistics: Statistics | None = None
    """What it sums where it fits no likelihood; its jobs then have no `model`."""
    adds_noise: bool = False
    """It releases sums under noise: it has no posterior, no draws and no sampler."""
    clamps: bool = False
    """It draws from ∏ exp(clamp(α(f − g), ±M))."""
    tunes_weights: bool = False
    """It searches for privacy weights that bring the bound under the target; on a reference, for some below it."""
    fixed_weights: bool = False
    """Its weights follow from the rule's own constants ([G])."""
    cuts_weights: bool = False
    """What fixed weights leave over the target is cut off."""
    clips: Callable[[Job], bool] = never
    """Whether weights and outcomes are clipped to public bounds before they are added up."""
    tabulates: bool = False
    """It releases figures of the tables' cells, and no model of the records."""
    whole_tables: bool = False
    """It noises the figures of whole tables, margins as cells."""
    by_cell: bool = False
    """It releases noisy sums of the tables' base cells, whose limits a reference fixes."""
    sets_are_free: bool = False
    """Synthetic sets are drawn from what was released: any number at one cost."""
    reference: Literal["unused", "optional", "needed"] = "unused"
    own_histograms: bool = False
    """Noisy histograms of the current file may take the place of a reference, and do where a job names none."""
    centres: bool = False
    """It is centred at a fit of the reference, and plans a drift from it."""
    constants: frozenset[str] = frozenset()
    """Keys of `mechanism` that are its own, beside name, weights and fallback."""


WHOLE_TABLES = Facts(
    strict=with_public_bounds,
    clips=with_public_bounds,
    tabulates=True,
    statistics="noisy_tables",
    adds_noise=True,
    whole_tables=True,
    constants=frozenset({"sensitivity", "consistency"}),
)
"""Of `laplace` and `laplace_composed`, which differ in how the budget is shared alone."""
FACTS: dict[MechanismName, Facts] = {
    "weighted": Facts(tunes_weights=True, reference="optional", constants=frozenset({"aim"})),
    "unweighted": Facts(),
    "weighted_e": Facts(fixed_weights=True, cuts_weights=True, reference="optional"),
    "censor_w": Facts(strict=with_reference, clamps=True, fixed_weights=True, reference="optional"),
    "censor_uw": Facts(strict=always, clamps=True),
    "centred": Facts(strict=always, clamps=True, reference="needed", centres=True, constants=frozenset({"drift"})),
    "perturbed_histogram": Facts(strict=always, statistics="histogram", adds_noise=True, constants=frozenset({"bins"})),
    "laplace": WHOLE_TABLES,
    "laplace_composed": WHOLE_TABLES,
    "laplace_strict": Facts(strict=always, statistics="cell_sums", adds_noise=True, clips=always, tabulates=True),
    "reference_tables": Facts(
        strict=always,
        statistics="reference_cells",
        adds_noise=True,
        by_cell=True,
        tabulates=True,
        reference="needed",
        own_histograms=True,
        constants=frozenset({"shrinkage"}),
    ),
    "sanitized_statistics": Facts(
        strict=always,
        adds_noise=True,
        by_cell=True,
        tabulates=True,
        sets_are_free=True,
        reference="needed",
        constants=frozenset({"shrinkage", "noise"}),
    ),
}


def those(fact: Callable[[Facts], bool]) -> tuple[MechanismName, ...]:
    """Names of the mechanisms of which a fact holds, for messages."""
    return tuple(name for name, facts in FACTS.items() if fact(facts))


STATISTICS: dict[MechanismName, Statistics] = {
    name: facts.statistics for name, facts in FACTS.items() if facts.statistics is not None
}
"""Statistics of the mechanisms that fit no likelihood: their jobs have no `model`."""

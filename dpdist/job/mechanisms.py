"""Lists one specification per mechanism, distinguished by `name`: constants, guarantee, facts and refusals.

A new mechanism is a class here, a member of `Mechanism`, and a new folder under dpdist/mechanisms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args

from pydantic import Field

from dpdist.job.marginals import WeightedMarginals
from dpdist.job.mechanism import MechanismSpec
from dpdist.job.modips import Modips
from dpdist.job.noisy_mechanisms import (
    Laplace,
    LaplaceComposed,
    LaplaceStrict,
    PerturbedHistogram,
    ReferenceTables,
    SanitizedStatistics,
    WeightRegularisation,
)
from dpdist.job.partitions import FlatLaplace, Steps, UniversalHistogram
from dpdist.job.posteriors import CensorUW, CensorW, Centred, Unweighted, Weighted, WeightedE
from dpdist.job.privbayes import PrivBayes

Mechanism = Annotated[
    Weighted
    | Unweighted
    | WeightedE
    | CensorW
    | CensorUW
    | Centred
    | PerturbedHistogram
    | Laplace
    | LaplaceComposed
    | LaplaceStrict
    | WeightRegularisation
    | ReferenceTables
    | SanitizedStatistics
    | Modips
    | FlatLaplace
    | UniversalHistogram
    | Steps
    | WeightedMarginals
    | PrivBayes,
    Field(discriminator="name"),
]
"""A job's mechanism."""
SPECS: dict[str, type[MechanismSpec]] = {
    get_args(spec.model_fields["name"].annotation)[0]: spec for spec in get_args(get_args(Mechanism)[0])
}
"""Every mechanism's specification, by its name."""


def spec_of(settings: Mapping[str, Any]) -> type[MechanismSpec] | None:
    """Returns the specification of a job's mechanism, from its settings by dotted key.

    None where they name no known one.
    """
    return SPECS.get(settings.get("mechanism.name", ""))


def those(fact: Callable[[type[MechanismSpec]], object]) -> tuple[str, ...]:
    """Returns names of the mechanisms for which a fact holds, for messages."""
    return tuple(name for name, spec in SPECS.items() if fact(spec))


STATISTICS: dict[str, str] = {name: spec.statistics for name, spec in SPECS.items() if spec.statistics is not None}
"""Statistics of the mechanisms that fit no likelihood. Their jobs have no `model`."""

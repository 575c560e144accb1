"""Lists the specification of every mechanism, from which a job's key `mechanism: {name: …}` selects one.

A new mechanism is a class that is listed here, and a new folder under dpdist/mechanisms.
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
"""The mechanism of a job, one of all specifications."""
SPECS: dict[str, type[MechanismSpec]] = {
    get_args(spec.model_fields["name"].annotation)[0]: spec for spec in get_args(get_args(Mechanism)[0])
}
"""Specifications by the name of the mechanism."""


def spec_of(settings: Mapping[str, Any]) -> type[MechanismSpec] | None:
    """The specification that a job's settings, by dotted key, name as mechanism.

    None where they name no known mechanism.
    """
    return SPECS.get(settings.get("mechanism.name", ""))


def those(fact: Callable[[type[MechanismSpec]], object]) -> tuple[str, ...]:
    """Names, for messages, of the mechanisms for which a fact holds."""
    return tuple(name for name, spec in SPECS.items() if fact(spec))


STATISTICS: dict[str, str] = {name: spec.statistics for name, spec in SPECS.items() if spec.statistics is not None}
"""Statistics of the mechanisms that fit no likelihood, by mechanism. Their jobs have no `model`."""

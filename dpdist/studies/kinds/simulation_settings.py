"""For `kinds.simulation` and the figures: laws of data, models, mechanisms to study, and measures."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal, Self, Union

from pydantic import Field, create_model, model_validator

from dpdist.core.errors import suggestion
from dpdist.job import (
    FAMILIES,
    SAMPLERS,
    SPECS,
    Adjacency,
    Budget,
    Family,
    Frozen,
    MechanismSpec,
    Name,
    SamplerName,
    budget_text,
    those,
)
from dpdist.studies.generators import GENERATORS, Generator, GeneratorName, generator
from dpdist.studies.settings import Study, known_or_refused

CHAINS = 4
"""Number of Markov chains of a fit by Stan, which together give the study's draws."""
DATA = "data"
"""Label, in results, of the confidential data's own figures."""
Measure = Literal[
    "database_bound",
    "unweighted_database_bound",
    "epsilon_local",
    "epsilon_local_range",
    "records_censored",
    "privacy_weight",
    "record_bound_before",
    "record_bound_after",
    "max_ecdf",
    "avg_ecdf",
    "mean",
    "median",
    "q15",
    "q90",
    "fits",
]


class SimulationLaw(Frozen):
    name: GeneratorName
    parameters: dict[str, float]

    @model_validator(mode="after")
    def _parameters_of_the_law(self) -> Self:
        names = [field.name for field in dataclasses.fields(GENERATORS[self.name])]
        for name in self.parameters:
            if name not in names:
                near = suggestion(name, names, "take one of these")
                raise ValueError(f"'{name}' is no parameter of {self.name} ({', '.join(names)}): {near}")
        if missing := [name for name in names if name not in self.parameters]:
            raise ValueError(f"{self.name} needs {', '.join(missing)}")
        self.generator()
        return self

    def generator(self) -> Generator:
        return generator(self.name, self.parameters)


class Case(Frozen):
    """A law of files, their size, and the model fitted to them."""

    name: Name
    generator: SimulationLaw
    n: int = Field(ge=1, description="records of a simulated file")
    family: Family

    @model_validator(mode="after")
    def _of_one_outcome(self) -> Self:
        families = [name for name, facts in FAMILIES.items() if facts.weight is False]
        if self.family not in families:
            raise ValueError(f"a study simulates one outcome: its model is one of {', '.join(families)}")
        if self.has_predictors and not self.generator.generator().levels:
            raise ValueError(
                f"{self.family} has predictors, and {self.generator.name} has none: take another law or family"
            )
        return self

    @property
    def has_predictors(self) -> bool:
        return FAMILIES[self.family].predictors

    @property
    def sampler(self) -> SamplerName:
        """The first of the family's samplers, which are ordered with Markov chains last."""
        return SAMPLERS[self.family][0]


class Arm(MechanismSpec):
    """A mechanism under study; `label` distinguishes arms with the same mechanism.

    `enforced: false` accepts a bound above ε/2, as the papers do. `match` tunes weights to the bound of another arm on the
    same data. `reference: true` fixes constants on another simulated file of the same law and size.
    """

    label: Name | None = None
    enforced: bool = True
    match: str | None = None
    reference: bool = False
    cases: tuple[str, ...] | None = Field(default=None, description="cases to run on; unset: all")
    epsilons: tuple[Budget, ...] | None = Field(default=None, description="ε to run at, of the study's; unset: all")
    adjacency: Adjacency | None = Field(default=None, description="unset: the study's")

    @property
    def key(self) -> str:
        return self.label or self.name

    @model_validator(mode="after")
    def _what_can_be_let_pass_or_matched(self) -> Self:
        if self.needs_reference and not self.reference:
            raise ValueError(f"{self.name} is fixed on a reference: add reference: true")
        if self.reference and (not self.takes_reference or not self.enforced or self.match is not None):
            allowed = ", ".join(those(lambda spec: spec.takes_reference))
            raise ValueError(f"reference: true is for {allowed}, enforced and not matched: leave it out")
        if not self.enforced and not self.bounded_by_weights:
            allowed = " and ".join(those(lambda spec: spec.tunes_weights or spec.cuts_weights))
            raise ValueError(f"enforced: false is for {allowed}: {self.name} has no bound to let pass")
        if self.match is not None and (not self.tunes_weights or not self.enforced):
            raise ValueError("match is for weighted mechanisms whose bound is enforced")
        return self


if TYPE_CHECKING:
    AnyArm = Arm
else:
    _ARMS = tuple(create_model(spec.__name__, __base__=(spec, Arm), __doc__=spec.__doc__) for spec in SPECS.values())
    AnyArm = Annotated[Union[_ARMS], Field(discriminator="name")]  # noqa: UP007
    """A mechanism's constants together with the settings of an arm."""


class Simulation(Study):
    """Mechanisms on data simulated from known laws."""

    kind: Literal["simulation"] = "simulation"
    cases: tuple[Case, ...] = Field(min_length=1)
    adjacency: Adjacency = "zero_out"
    draws: int = Field(default=1000, ge=100, description="S: draws that bounds are taken over")
    mechanisms: tuple[AnyArm, ...] = Field(min_length=1)
    measures: tuple[Measure, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _arms_can_run(self) -> Self:
        if self.draws < 100 * CHAINS and any(case.sampler == "stan" for case in self.cases):
            raise ValueError(
                f"draws: {self.draws} is too few for a fit by {CHAINS} Markov chains: give {100 * CHAINS} or more"
            )
        keys = [arm.key for arm in self.mechanisms]
        for place, arm in enumerate(self.mechanisms):
            if arm.match is not None and arm.match not in keys[:place]:
                raise ValueError(f"mechanism '{arm.key}' matches '{arm.match}', which is not one listed before it")
            if not self.epsilons and self.needs_epsilon(arm):
                raise ValueError(f"mechanism '{arm.key}' needs a grid of epsilons (or enforced: false)")
            known_or_refused(f"mechanism '{arm.key}'", arm.cases, self.case_names)
            known_or_refused(f"mechanism '{arm.key}'", [budget_text(e) for e in arm.epsilons or ()], self.grid)
        return self

    @property
    def labels(self) -> tuple[str, ...]:
        return (DATA, *(arm.key for arm in self.mechanisms))

    @property
    def all_measures(self) -> tuple[str, ...]:
        return self.measures

    def arm(self, label: str) -> Arm:
        return next(arm for arm in self.mechanisms if arm.key == label)

    def needs_epsilon(self, arm: Arm) -> bool:
        """True if results depend on ε; otherwise one run serves all ε."""
        if arm.match is not None:
            return self.needs_epsilon(self.arm(arm.match))
        return arm.spends and (arm.enforced or not arm.tunes_weights)

    def grid_of(self, arm: Arm) -> tuple[str, ...]:
        return self.grid if arm.epsilons is None else tuple(budget_text(epsilon) for epsilon in arm.epsilons)

    def arms_of(self, case: Case) -> tuple[Arm, ...]:
        return tuple(arm for arm in self.mechanisms if arm.cases is None or case.name in arm.cases)

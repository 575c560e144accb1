"""Studies of guarantees: exact worst-case losses of clamped mechanisms on small finite spaces (`privacy.finite`).

Losses are multiples of the promised ε, so a loss above 1 breaks the promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dpdist.job import Budget, Frozen, Name, budget_text
from dpdist.privacy import finite
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, Result, StudyKind
from dpdist.studies.results import as_number
from dpdist.studies.settings import StudyOfArms

WORST_LOSS = "worst_loss"


class FiniteCase(Frozen):
    """A finite space of record values and parameters; a random one is new in every replicate."""

    name: Name
    space: Literal["random", "two_point"]
    values: int = Field(default=4, ge=2, le=8)
    parameters: int = Field(default=5, ge=2, le=50)
    n: int = Field(ge=1, le=20, description="records of the largest file")


class FiniteArm(Frozen):
    """Log likelihoods clamped to ±M, a share of ε, and the neighbours compared."""

    label: Name
    clamp: Budget = Field(description="M/ε: 1/2 for zero_out, 1/4 for substitution")
    neighbours: Literal["zero_out", "substitution"] = "zero_out"
    centred: bool = Field(default=False, description="clamp log p(z | θ) − log p(z | first θ) in place of log p(z | θ)")
    weights: Literal["none", "reference", "current"] = Field(
        default="none", description="min-max weights: fixed in advance, or learned on the file at hand"
    )


class Guarantees(StudyOfArms):
    """Exact worst-case losses of clamped mechanisms on finite spaces, as multiples of the promised ε."""

    measures = (WORST_LOSS,)
    kind: Literal["guarantees"]
    cases: tuple[FiniteCase, ...] = Field(min_length=1)
    mechanisms: tuple[FiniteArm, ...] = Field(min_length=1)


def losses(study: Guarantees, case: FiniteCase, number: int) -> Replicate:
    """Losses by arm, on the space of replicate `number`."""
    rng = study.key_of(case.name, number).generator("space")
    random = case.space == "random"
    space = finite.random_space(case.values, case.parameters, rng) if random else finite.two_point_space()
    results = [
        Result(arm.label, epsilon, WORST_LOSS, loss(space, case.n, arm, as_number(epsilon)))
        for arm in study.mechanisms
        for epsilon in study.grid
    ]
    return Replicate(results, [])


def loss(space: finite.Space, n: int, arm: FiniteArm, epsilon: float) -> float:
    clamp = float(arm.clamp) * epsilon
    if arm.weights == "current":
        utility = finite.learned(space, clamp)
    else:
        log_density = space.log_density - (space.log_density[:, :1] if arm.centred else 0.0)
        bound = abs(space.log_density).max(axis=1)
        alpha = finite.linear(bound, bound) if arm.weights == "reference" else np.ones_like(bound)
        utility = finite.clamped(alpha[:, None] * log_density, clamp)
    return finite.worst_loss(space, utility, n, arm.neighbours) / epsilon


class GuaranteesKind(StudyKind):
    settings = Guarantees
    heads = ("Label", "Clamp M", "Weights", "Neighbours")
    beside_title = "Beside the promises"

    @property
    def captions(self) -> Mapping[str, Caption]:
        reading = (
            "Largest |log p(θ | D) − log p(θ | D′)| over all neighbouring files D, D′ and all θ, over the promised ε: "
            "at most 1 where the promise is kept."
        )
        return {WORST_LOSS: Caption("worst-case loss / promised ε", reading)}

    def replicate(self, study: Guarantees, case: int, number: int) -> Replicate:
        return losses(study, study.cases[case], number)

    def facts(self, study: Guarantees) -> list[Fact]:
        return [
            ("Spaces", [f"{case.name}: {_space(case)}, files of up to {case.n} records" for case in study.cases]),
            ("Losses", ["exact: all files, all neighbours, all parameters; no sampling within a space"]),
            (
                "Replicates",
                [f"R = {study.replicates} random spaces of each case, seed {study.seed}; the two-point space is fixed"],
            ),
            ("ε", [", ".join(study.grid)]),
        ]

    def arms(self, study: Guarantees) -> list[tuple[str, ...]]:
        return [_arm(arm) for arm in study.mechanisms]

    def target(self, study: Any, case: str, epsilon: str, measure: str) -> float | None:
        return 1.0


def _space(case: FiniteCase) -> str:
    if case.space == "two_point":
        return "two values, two parameters, one of them rare under the prior"
    return f"random densities of {case.values} values under {case.parameters} parameters"


def _arm(arm: FiniteArm) -> tuple[str, ...]:
    weights = {"none": "none", "reference": "min-max, fixed in advance", "current": "min-max, learned on the file at hand"}
    centred = ", of f minus its value at a fixed parameter" if arm.centred else ""
    return arm.label, f"{budget_text(arm.clamp)} ε{centred}", weights[arm.weights], arm.neighbours

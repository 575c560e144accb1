"""One replicate of a study of guarantees: exact worst-case losses on one space, over the promised ε."""

from __future__ import annotations

from dpdist.core.keys import Key
from dpdist.privacy import finite
from dpdist.studies.kinds.simulation import Replicate, Result
from dpdist.studies.results import as_number
from dpdist.studies.settings import WORST_LOSS, FiniteArm, FiniteCase, Guarantees


def losses(study: Guarantees, case: FiniteCase, number: int) -> Replicate:
    """The loss of every clamp on the `number`-th space."""
    rng = Key(study.seed.to_bytes(32, "big")).child(case.name).child(str(number)).generator("space")
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
        alpha = finite.linear(bound, bound) if arm.weights == "reference" else 1.0 + 0.0 * bound
        utility = finite.clamped(alpha[:, None] * log_density, clamp)
    return finite.worst_loss(space, utility, n, arm.neighbours) / epsilon

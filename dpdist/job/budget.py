"""Settings of a release's privacy budget: ε, δ or ρ, and the neighbouring files for which it holds."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from pydantic import Field, TypeAdapter, model_validator

from dpdist.job.names import Adjacency, Exchange
from dpdist.job.values import Budget, Delta, Frozen, budget_text
from dpdist.job.zcdp import epsilon_of, rho_of


class ReleaseBudget(Frozen):
    """The budget of the whole release: ε is what all synthetic sets may cost together.

    Under Gaussian noise, ε holds with a δ. Then the job states either ε or ρ; from ρ and δ an ε follows.
    """

    epsilon: Budget = Field(description="of the whole release, all synthetic sets together; exact, write it in quotes")
    adjacency: Adjacency = Field(
        default="zero_out",
        description="what neighbouring files differ in: zero_out, one record's outcome and weight, there or switched off; "
        "substitution, one record's outcome and weight, exchanged at the same x; add_remove, a whole record, there or not",
    )
    exchange: Exchange = Field(
        default="same_x",
        description="of substitution: same_x, outcome and weight alone; anywhere, table columns too, of reference_tables",
    )
    delta: Delta | None = Field(default=None, description="of Gaussian noise: the δ at which epsilon holds")
    rho: Budget | None = Field(default=None, description="of Gaussian noise, in place of epsilon: of zCDP")

    @model_validator(mode="before")
    @classmethod
    def _epsilon_of_rho(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("rho") is None:
            return given
        if given.get("delta") is None:
            raise ValueError("rho needs a delta, at which epsilon is told: add delta, below one over the records")
        known = {name: TypeAdapter(kind).validate_python(given[name]) for name, kind in (("rho", Budget), ("delta", Delta))}
        epsilon = epsilon_of(known["rho"], known["delta"])
        if given.get("epsilon") not in (None, epsilon, budget_text(epsilon)):
            raise ValueError("epsilon follows from rho and delta: leave it out, or state epsilon and delta alone")
        return given | {"epsilon": epsilon}

    @property
    def concentrated(self) -> Fraction:
        """ρ of a budget with a δ: as stated, or the largest ρ for which ε holds at δ."""
        if self.delta is None:
            raise ValueError("a budget without delta has no rho")
        return self.rho if self.rho is not None else rho_of(self.epsilon, self.delta)

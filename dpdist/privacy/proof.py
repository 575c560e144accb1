"""The proof record of a release: its queries, distances, laws and scales of noise, and the loss that follows.

The record follows from the job and from the queries behind promise, charge and rounds, and so reveals nothing of the
confidential file. `rederive` needs only the record, and the formulas that it states. Losses of queries add up. The k
records of a unit lose k times the ε of one record, or k² times its ρ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import exp, log
from typing import Any, NamedTuple

from dpdist.core.files import PROOF
from dpdist.core.records import UNIT
from dpdist.job import Job
from dpdist.job.budget import least_epsilon
from dpdist.privacy.claims import promised
from dpdist.privacy.guarantees import (
    Asymptotic,
    Concentrated,
    Moved,
    NoGuarantee,
    NoisyQuery,
    Promise,
    Strict,
    neighbour_of,
    record_epsilon,
)
from dpdist.privacy.noisy_counts import queries_of_counts

GATE_SENSITIVITY = UNIT + 2
"""Sensitivity of a gate's value in parts of unit/2^20: UNIT for the record, 1 for rounding down, 1 for float64 rounding."""
FORMULAS = {
    "discrete_laplace": "epsilon = times * distance / scale, with the distance in the L1 norm",
    "discrete_gaussian": "rho = times * squared_distance / (2 * scale^2), with the distance in the L2 norm",
    "bounded_discrete_laplace": (
        "epsilon <= times * changes * sums * log(2 * exp(distance / (sums * scale)) - 1); the query's `epsilon` "
        "is for one change"
    ),
    "posterior_draw": "epsilon = times * distance, where the distance is the largest change of a draw's log density",
}
"""The loss of one record by a query of each law; distances are changes of exact sums between neighbouring files."""
HOLDS = {
    "strict": "for every file",
    "strict zCDP": "for every file",
    "strict for exact draws": "for every file, if draws are exact, which is not proven for this release",
    "asymptotic": "no theorem: the distance of a draw is a target, met by a bound that was computed from the file",
    "none": "nothing is promised",
}
"""Files for which the claim of each class of guarantee holds."""
TOTALS = ("epsilon", "substitution_epsilon", "rho", "substitution_rho", "delta")
"""Figures of a statement that appear as totals in the record."""
ROUNDING = 1.0 + 1e-9
"""Factor for rounding a loss that is not a rational number."""


def query_of_gates(job: Job) -> NoisyQuery:
    """The query for all gates of a job, which share its ε equally; approval/acceptance.py has the proof."""
    distance, number = Moved(*[Fraction(GATE_SENSITIVITY)] * 3), len(job.gates)
    scale = GATE_SENSITIVITY * number / record_epsilon(job, job.epsilon.gates)
    return NoisyQuery("values of gates", distance, scale, times=number)


def proof_record(job: Job, promise: Promise, queries: Iterable[NoisyQuery] | None) -> dict[str, Any]:
    """The record as JSON values. `queries` are the mechanism's; None if it draws from a posterior."""
    total, exchanged = promise.total, "anywhere" if job.sizes_secret else "same_x"
    claims = promised(promise, {})
    entries = _draws(job, total) if queries is None else [query.entry for query in queries]
    further = [*queries_of_counts(job), *([query_of_gates(job)] if job.gates else [])]
    stated = [] if isinstance(total, NoGuarantee) else [*entries, *(query.entry for query in further)]
    return {
        "format": PROOF,
        "guarantee": total.name,
        "holds": HOLDS[total.name],
        "adjacency": claims["adjacency"],
        "neighbours": {"claimed": neighbour_of(job), "exchanged": exchanged},
        "records_of_unit": job.most_records,
        "formulas": {law: FORMULAS[law] for law in sorted({entry["law"] for entry in stated})},
        "queries": stated,
        "composition": promise.composition,
        "total": {name: claims[name] for name in TOTALS if name in claims},
    }


def _draws(job: Job, total: Strict | Concentrated | Asymptotic | NoGuarantee) -> list[dict[str, Any]]:
    """The entry of posterior draws: switching a record off changes the log density by 2M, an exchange by 4M."""
    if isinstance(total, NoGuarantee):
        return []
    off = record_epsilon(job, job.epsilon_per_set) / (2 if job.budget.adjacency == "substitution" else 1)
    distance, number = Moved(off, 2 * off, 2 * off), job.synthetic_sets
    return [{"name": "draw of a set", "law": "posterior_draw", "distance": distance.texts, "times": number}]


class UnitLoss(NamedTuple):
    """The loss of a unit under the claimed neighbours and under an exchange: ε, or ρ under Gaussian noise."""

    claimed: Fraction
    exchanged: Fraction
    gaussian: bool

    def epsilons(self, delta: Fraction) -> tuple[Fraction, Fraction]:
        """The ε of both at this δ; a pure ε is unchanged."""
        if not self.gaussian:
            return self.claimed, self.exchanged
        epsilon, exchange_epsilon = (
            Fraction(least_epsilon(float(rho), float(delta))) for rho in (self.claimed, self.exchanged)
        )
        return epsilon, exchange_epsilon


def rederive(record: Mapping[str, Any]) -> UnitLoss:
    """The loss that follows from the queries of a proof record."""
    queries, most = record["queries"], int(record["records_of_unit"])
    gaussian = any(query["law"] == "discrete_gaussian" for query in queries)
    if gaussian and any(query["law"] != "discrete_gaussian" for query in queries):
        raise ValueError("rho and epsilon of different laws do not add up")
    off_loss, exchange_loss = (
        sum((loss(query, neighbour) for query in queries), Fraction(0))
        for neighbour in (record["neighbours"][kind] for kind in ("claimed", "exchanged"))
    )
    times = most**2 if gaussian else most
    return UnitLoss(times * off_loss, times * exchange_loss, gaussian)


def loss(query: Mapping[str, Any], neighbour: str) -> Fraction:
    """The loss of one record by a query, by the formula of its law."""
    law, times = query["law"], int(query["times"])
    if law == "posterior_draw":
        return times * Fraction(query["distance"][neighbour])
    scale = Fraction(query["scale"])
    if law == "discrete_laplace":
        return times * Fraction(query["distance"][neighbour]) / scale
    if law == "discrete_gaussian":
        return times * Fraction(query["squared_distance"][neighbour]) / (2 * scale**2)
    if law == "bounded_discrete_laplace":
        sums, epsilon = int(query["sums"]), Fraction(query["epsilon"])
        change = sums * log(2.0 * exp(float(Fraction(query["distance"]) / (sums * scale))) - 1.0)
        return (
            times * Fraction(query["changes"][neighbour]) * (epsilon if change <= epsilon * ROUNDING else Fraction(change))
        )
    raise ValueError(f"no law {law!r}")

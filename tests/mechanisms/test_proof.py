"""The proof record of every job: ε follows from it by plain arithmetic, and it is what was promised."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from small_jobs import cases

from dpdist.job.loading import job_of
from dpdist.mechanisms.registry import mechanism_of, proof_of
from dpdist.privacy.guarantees import NoGuarantee

CASES = cases()
SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "schemas" / "proof-1.json"


STEP = Fraction(1, 1000)
"""A Gaussian σ is rounded up to a multiple of it."""


def loss_of_record(record: dict[str, Any], kind: str, less: Fraction = Fraction(0)) -> tuple[Fraction | float, bool]:
    """An outsider's arithmetic: the loss of one privacy unit from the record alone, and whether it is a ρ.

    Every Gaussian σ is taken to be smaller by `less`.
    """
    which, most = record["neighbours"][kind], record["records_of_unit"]
    total: Fraction | float = Fraction(0)
    gaussian = False
    for query in record["queries"]:
        if query["law"] == "posterior_draw":
            once: Fraction | float = Fraction(query["distance"][which])
        elif query["law"] == "discrete_laplace":
            once = Fraction(query["distance"][which]) / Fraction(query["scale"])
        elif query["law"] == "discrete_gaussian":
            gaussian, once = True, Fraction(query["squared_distance"][which]) / (2 * (Fraction(query["scale"]) - less) ** 2)
        else:
            assert query["law"] == "bounded_discrete_laplace"
            moved = float(Fraction(query["distance"])) / query["sums"] / float(Fraction(query["scale"]))
            once = float(Fraction(query["changes"][which])) * query["sums"] * math.log(2.0 * math.exp(moved) - 1.0)
        total += query["times"] * once
    return (most**2 if gaussian else most) * total, gaussian


def epsilon_at(rho: float, delta: float) -> float:
    """ε of ρ-zCDP at δ (Canonne, Kamath & Steinke 2020, proposition 12), on a grid of orders α."""
    orders = (1.0 + math.exp(step / 2000.0) for step in range(-20_000, 20_000))
    return min(
        order * rho + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0) for order in orders
    )


@pytest.mark.parametrize("name", CASES)
def test_what_is_promised_follows_from_the_record_alone(name: str) -> None:
    """Under the claimed neighbours and under an exchange; an ε is equal, a ρ below the claim by σ's rounding only."""
    job = job_of(CASES[name])
    record = json.loads(json.dumps(proof_of(job)))
    jsonschema.validate(record, json.loads(SCHEMA.read_text(encoding="utf-8")))
    total = mechanism_of(job).promise(job).total
    if isinstance(total, NoGuarantee):
        assert (record["queries"], record["guarantee"]) == ([], "none")
        return
    (loss, gaussian), (exchanged, _) = loss_of_record(record, "claimed"), loss_of_record(record, "exchanged")
    due = total.rho if gaussian else total.epsilon
    unrounded, _ = loss_of_record(record, "claimed", less=STEP)
    assert float(unrounded) >= float(due) * (1.0 - 1e-6)
    assert float(due) == pytest.approx(float(loss), rel=1e-4 if gaussian else 1e-6)
    assert float(loss) <= float(due) * (1.0 + 1e-9)
    most = total.substitution_rho if gaussian else total.substitution_epsilon
    assert float(exchanged) == pytest.approx(float(most), rel=1e-4)
    assert float(exchanged) <= float(most) * (1.0 + 1e-9)
    if gaussian:
        assert epsilon_at(float(due), float(total.delta)) == pytest.approx(float(total.epsilon), rel=1e-5)


def test_records_of_every_law_are_tried_and_less_noise_shows() -> None:
    """Control: half of a scale, or one query more, is no longer what is promised."""
    records = [proof_of(job_of(said)) for said in CASES.values()]
    assert {query["law"] for record in records for query in record["queries"]} == {
        "posterior_draw",
        "discrete_laplace",
        "discrete_gaussian",
        "bounded_discrete_laplace",
    }
    for record in records:
        loss, _ = loss_of_record(record, "claimed")
        for query in record["queries"]:
            if "scale" in query:
                less = {**query, "scale": str(Fraction(query["scale"]) / 2)}
                queries = [less if other is query else other for other in record["queries"]]
                assert loss_of_record({**record, "queries": queries}, "claimed")[0] > 1.001 * float(loss)

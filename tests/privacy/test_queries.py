"""A query's loss follows from its distance and its noise; losses add up; nobody asks for more than was promised."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from small_jobs import cases, unchecked

from dpdist.engine.protocol import Measurement, Released
from dpdist.mechanisms.promises import Defined, LossExceeded, NoisySums, within_loss
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.privacy.guarantees import (
    Concentrated,
    Moved,
    NoisyQuery,
    Strict,
    guarantee_of,
    large_delta,
    neighbour_of,
    total_loss,
)

pytestmark = pytest.mark.quick
MOVED = Moved(Fraction(1), Fraction(2), Fraction(3))
ONE = NoisyQuery("one", MOVED, Fraction(2))


def test_the_loss_is_the_distance_in_scales() -> None:
    assert [ONE.loss(neighbour) for neighbour in ("off", "same_x", "anywhere")] == [Fraction(k, 2) for k in (1, 2, 3)]
    assert replace(ONE, times=3).loss("same_x") == 3
    gaussian = replace(ONE, law="gaussian")
    assert [gaussian.loss(neighbour) for neighbour in ("off", "same_x", "anywhere")] == [Fraction(k, 8) for k in (1, 4, 9)]
    assert NoisyQuery.losing("it", MOVED, Fraction(1, 7), "anywhere").loss("anywhere") == Fraction(1, 7)
    assert total_loss([ONE, ONE.further(), replace(ONE, times=2)], "off") == Fraction(3, 2)


def test_the_loss_is_that_of_discrete_laplace_noise() -> None:
    """Largest log ratio of probabilities around sums that are 2 apart. Control: it is smaller where they are 1 apart."""
    values, scale = np.arange(-400, 401), float(ONE.scale)

    def largest(apart: int) -> float:
        return float(np.abs(np.abs(values - apart) - np.abs(values)).max()) / scale

    assert largest(2) == float(ONE.loss("same_x"))
    assert largest(1) < float(ONE.loss("same_x"))


def asking(*requests: Measurement) -> Generator[Any, Any, Released]:
    yield from requests
    return Released(())


SUMS = np.zeros(2)
ASKED = Defined("query").sums(SUMS, ONE, 1)
BEYOND: dict[str, tuple[list[Measurement], str]] = {
    "twice": ([ASKED, ASKED], "query 'one' exceeds the promise"),
    "no loss is stated": ([Measurement(SUMS, ASKED.noise)], "does not state what its noise loses"),
    "a part before its first": ([ASKED._replace(stated=ONE.further())], "before the part that states its loss"),
    "more of an exchange": (
        [Defined("query").sums(SUMS, replace(ONE, moved=ONE.moved._replace(anywhere=3 * ONE.moved.anywhere)), 1)],
        "query 'one' exceeds the promise",
    ),
    "another scale": ([Measurement(SUMS, ASKED.noise._replace(scale=Fraction(1)), ONE)], "does not state"),
    "another law": ([Measurement(SUMS, ASKED.noise._replace(law="gaussian"), ONE)], "does not state"),
}


@pytest.mark.parametrize("what", BEYOND)
def test_what_was_not_promised_is_refused(what: str) -> None:
    requests, message = BEYOND[what]
    rounds = within_loss(asking(*requests), [ONE])
    with pytest.raises(LossExceeded, match=message):
        list(rounds)


def test_what_was_promised_passes_and_parts_of_a_query_cost_once() -> None:
    part = Defined("query").sums(SUMS, ONE.further(), 2)
    rounds = within_loss(asking(ASKED, part, part), [ONE])
    assert [rounds.send(None) for _ in range(3)] == [ASKED, part, part]
    with pytest.raises(StopIteration) as end:
        rounds.send(None)
    assert end.value.value == Released(())


STRICT = [
    name
    for name, job in cases().items()
    if not name.startswith("shipped") and isinstance(MECHANISMS[job["mechanism"]["name"]], NoisySums)
]


def test_laws_do_not_mix() -> None:
    """ε and ρ have no sum. Control: Gaussian queries alone have a guarantee."""
    job = unchecked(cases()["tables-gaussian"])
    gaussian = NoisyQuery("other", MOVED, Fraction(10**6), "gaussian")
    assert isinstance(guarantee_of(job, [gaussian]), Concentrated)
    for queries in ([gaussian, ONE], [ONE, gaussian]):
        with pytest.raises(ValueError, match="Gaussian queries lose"):
            guarantee_of(job, queries)


def test_a_delta_of_one_record_or_more_has_a_caution() -> None:
    """Publishing one of n records has δ = 1/n. None where the number of records is secret."""
    job = unchecked(cases()["tables-gaussian"])
    codes = {n: [caution.code for caution in large_delta(job, n)] for n in (None, 999_999, 1_000_000, 1_500_000)}
    assert job.budget.delta == Fraction("1e-6")
    assert codes == {None: [], 999_999: [], 1_000_000: ["large_delta"], 1_500_000: ["large_delta"]}


@pytest.mark.parametrize("name", STRICT)
def test_a_promise_is_the_sum_of_its_queries(name: str) -> None:
    """Queries of twice the scale lose half, and the promise follows. Gaussian ones state the job's ρ and lose less."""
    job = unchecked(cases()[name])
    mechanism = MECHANISMS[job.mechanism.name]
    assert isinstance(mechanism, NoisySums)
    kind: Any = type(mechanism)

    class Softer(kind):  # type: ignore[misc]
        def queries(self, *given: Any) -> Any:
            return tuple(_softer(query) for query in super().queries(*given))

    whole, half = (made.promise(job).per_set for made in (mechanism, Softer()))
    if isinstance(whole, Strict):
        assert half.epsilon * 2 == whole.epsilon
        loss = total_loss(mechanism.queries(job, job.mechanism), neighbour_of(job)) * job.most_records
        assert whole.epsilon == loss / job.mechanism.noises(job) or whole.epsilon == loss / job.synthetic_sets
    else:
        assert half.rho == whole.rho


def _softer(query: NoisyQuery) -> NoisyQuery:
    bounded = {"epsilon": query.epsilon / 2} if hasattr(query, "epsilon") else {}
    return replace(query, scale=2 * query.scale, **bounded)

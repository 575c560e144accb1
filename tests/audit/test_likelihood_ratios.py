"""The attacker on noisy sums and choices: exact losses, the law of a choice, and faults that sums alone do not show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
import yaml
from coded_files import CASES, measured
from options import Option, bases, farthest, joined, option, tried

from dpdist.audit.auditing import bound_of_scores
from dpdist.audit.likelihood_ratios import NeighbourQueries, NotAdded, compare, refuse_unknown_law
from dpdist.core.records import Crosstab, Floats
from dpdist.engine.protocol import Choice, Measurement, Noise
from dpdist.job import NoiseName
from dpdist.mechanisms.parts import builder_of
from dpdist.privacy.guarantees import Moved
from dpdist.sampling import sampler_of
from dpdist.testing.losses import taken_in

DRAWS = 20_000


@pytest.mark.parametrize("name", CASES)
def test_the_worst_record_costs_what_is_claimed(name: str) -> None:
    """Sums have exactly their part of ε, and with choices nearly all of it."""
    epsilon, found = Fraction(CASES[name].epsilon), measured(name)
    assert found.distance == pytest.approx(float(epsilon * CASES[name].sums), rel=1e-6)
    assert 0.9 <= found.loss / float(epsilon) <= 1.0 + 1e-9


def test_who_is_chosen_has_the_law_of_the_largest_of_noisy_scores() -> None:
    """Against a sum over the lattice; four standard errors. Control: the other file's law is another."""
    scale, gap = 3, 4.0
    lattice = np.arange(-200, 201)
    law = np.exp(-np.abs(lattice) / scale)
    law /= law.sum()
    first = [sum(law[k] * law[lattice <= x + behind].sum() for k, x in enumerate(lattice)) for behind in (-gap, gap)]
    noise = Noise(Fraction(scale), 2, 1)
    near, far = (Choice(np.array([[0.0, behind]]), noise) for behind in (gap, -gap))
    scores = NeighbourQueries([near], [far]).scores(DRAWS, DRAWS // 2)
    shares = [float((own == min(scores[0])).mean()) for own in scores]
    for share, due in zip(shares, first, strict=True):
        assert share == pytest.approx(due, abs=4.0 * np.sqrt(0.25 / DRAWS))
    assert first[1] - first[0] > 0.3, "control"


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_noise_whose_scale_tells_the_file_is_seen(law: NoiseName) -> None:
    """The sums are the same. Control: the same scale."""
    sums, half = np.array([5.0]), DRAWS // 2
    near, far, same = ([Measurement(sums, Noise(Fraction(scale), 1, 1, law))] for scale in (1000, 3000, 1000))
    assert bound_of_scores(*NeighbourQueries(near, far).scores(DRAWS, half), half) > 0.7
    assert bound_of_scores(*NeighbourQueries(near, same).scores(DRAWS, half), half) == 0.0


@pytest.mark.parametrize(
    "other",
    [
        Choice(np.zeros((1, 4)), Noise(Fraction(3), 4, 1)),
        Measurement(np.zeros(1), Noise(Fraction(3), 1, 1)),
        Measurement(np.zeros(4), Noise(Fraction(4), 4, 1)),
        Measurement(np.zeros(4), Noise(Fraction(3), 4, 1, "gaussian")),
    ],
    ids=["kind", "number", "scale", "law"],
)
def test_queries_that_differ_in_more_than_values_have_no_bounded_cost(other: Choice | Measurement) -> None:
    """Control: the same query costs nothing."""
    sums = Measurement(np.zeros(4), Noise(Fraction(3), 4, 1))
    for pair in (NeighbourQueries([sums], [other]), NeighbourQueries([other], [sums])):
        assert pair.loss == pair.distance == np.inf
    assert NeighbourQueries([sums], [sums]).loss == NeighbourQueries([sums], [sums]).distance == 0.0, "control"


def test_noise_that_is_bound_to_no_sums_is_not_taken_for_noise_on_equal_sums() -> None:
    """A file's own sensitivities: its sums are in no query. Control: under public bounds they are, and differ."""
    assert farthest(option("laplace_composed")).distance > 0.0
    own = option("laplace_composed")
    local = own.job.mechanism.model_copy(update={"sensitivity": "local"})
    vars(own)["job"] = own.job.model_copy(update={"mechanism": local})
    assert own.job.local
    with pytest.raises(NotAdded):
        farthest(own)


@dataclass
class Multiplied:
    """A query whose noise is not added."""

    sums: Floats
    noise: Noise

    def under(self, noise: Floats) -> Floats:
        return self.sums * noise


def test_noise_that_is_not_added_is_not_taken_for_noise_that_is() -> None:
    with pytest.raises(NotAdded):
        refuse_unknown_law(Multiplied(np.ones(1), Noise(Fraction(1), 1, 0)))


def test_sums_drawn_within_their_range_are_attacked_at_their_exact_ratio() -> None:
    """A record that moves two sums from the ends of their ranges. Control: half the noise loses more than is claimed.

    The pair attains the distance. So bounds have a false-alarm rate of 1 in 10,000; at 1 in 20, one was above it.
    """
    bounded = {"mechanism": {"law": "normal", "variance": 400.0, "truncation": "bounded"}}
    job = Option("modips", "zero_out", yaml.safe_dump(bounded)).job
    base = list(bases(job))[1]
    near = joined(base, taken_in(job, tried(job, False)).part(3, 4))
    crosstab = Crosstab({"field": np.arange(2, dtype=np.int32)}, {"field": ("arts", "law")}, np.array([13, 13]), (), ())
    model, half = builder_of(job).build(job, crosstab, slice(0, 2)), DRAWS // 2
    sampler = sampler_of(job, None)  # type: ignore[arg-type]
    for part, least, most in ((1, 0.4, 1.0), (2, 1.0, 3.0)):
        stated = tuple(
            replace(query, moved=Moved(*(distance / part for distance in query.moved)), scale=query.scale / part)
            for query in model.queries  # type: ignore[attr-defined]
        )
        scaled = replace(model, queries=stated)  # type: ignore[type-var]
        (found,) = compare(job, scaled, None, sampler, near, [base])
        bound = bound_of_scores(*found.scores(DRAWS, half), half, alarm=1e-4)
        assert least < bound <= found.distance <= most
        assert (found.distance > 1.0) == (part == 2)

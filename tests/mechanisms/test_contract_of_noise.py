"""Every registered mechanism that adds noise adds enough, to all that it releases, and states what it drew.

Mechanisms that are broken on purpose are told what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_jobs import Said, cases, unchecked
from small_runs import captured

from dpdist.audit.likelihood_ratios import exactly
from dpdist.core.records import Floats
from dpdist.engine.protocol import Choice, Pass
from dpdist.job import SPECS, Job
from dpdist.job.checks import contradictions
from dpdist.mechanisms.parts import GAUSSIAN
from dpdist.mechanisms.perturbed_histogram import post, query
from dpdist.mechanisms.perturbed_histogram.post import Histogram
from dpdist.mechanisms.perturbed_histogram.query import HistogramCounts, PerturbedHistogramMechanism
from dpdist.mechanisms.perturbed_histogram.sensitivity import bin_counts
from dpdist.mechanisms.promises import Defined, LossExceeded, released_sets
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Moved, NoisyQuery
from dpdist.testing.losses import CapturedStratum, answered, problems_of_scale
from dpdist.testing.mechanisms import problems_of_answers, problems_of_stated_noise

Cases = Callable[[str], CapturedStratum]
ADJACENCIES = ("zero_out", "substitution", "add_remove")
EXCHANGED_ANYWHERE = {"adjacency": "substitution", "exchange": "anywhere"}


def four_columns(job: Said) -> Said:
    """A network of one more column, which was a stratum: two of its rounds choose between columns."""
    field = {"bounds": [0, 1], "codes": {"arts": 0, "law": 1}}
    tables = [{**table, "by": []} for table in job["tables"]]
    columns, outcome = job["columns"] | {"field": field}, [*job["outcome"], "field"]
    return job | {"strata": [], "columns": columns, "outcome": outcome, "tables": tables}


def strict_jobs() -> dict[str, Said]:
    """Small jobs of every strict mechanism that adds noise: its adjacencies, exchanges anywhere, and other noise."""
    crossed = {name: job for name, job in cases().items() if not name.startswith("shipped")}
    strict = {name: job for name, job in crossed.items() if unchecked(job).mechanism.adds_noise and unchecked(job).strict}
    plain = {name: job for name, job in strict.items() if any(f"-{how}-" in name for how in ADJACENCIES)}
    anywhere = {
        f"{name} anywhere": job | {"budget": job["budget"] | EXCHANGED_ANYWHERE}
        for name, job in plain.items()
        if "-substitution-" in name
    }
    allowed = {name: job for name, job in anywhere.items() if not contradictions(unchecked(job))}
    return plain | allowed | {name: strict[name] for name in OTHER_NOISE} | {FOUR_COLUMNS: four_columns(strict[NETWORK])}


NETWORK, FOUR_COLUMNS = "privbayes-network", "privbayes of four columns"
OTHER_NOISE = (
    "laplace_composed-public",
    "tables-two-outcomes",
    "tables-histogram",
    "tables-public-weights",
    "tables-gaussian",
    "sanitized-gaussian",
    "modips-nested",
    "weighted_marginals-chosen",
    "weighted_marginals-adaptive",
    "weighted_marginals-sums",
    NETWORK,
    "privbayes-degree",
    "steps-ordered",
)
"""Variants with several stages, other laws of noise or common sets."""
JOBS = strict_jobs()


@pytest.fixture(scope="module")
def known() -> dict[str, CapturedStratum]:
    return {}


@pytest.fixture
def case_of(inputs: Path, known: dict[str, CapturedStratum], tmp_path_factory: pytest.TempPathFactory) -> Cases:
    def found(name: str) -> CapturedStratum:
        if name not in known:
            known[name] = captured(name, JOBS[name], inputs, tmp_path_factory.mktemp("case") / "work")
        return known[name]

    return found


def test_every_strict_mechanism_that_adds_noise_has_jobs_here() -> None:
    noisy = {name for name, spec in SPECS.items() if spec.adds_noise}
    assert noisy - {job["mechanism"]["name"] for job in JOBS.values()} == {"laplace"}, "it has no guarantee"


def test_two_rounds_of_four_columns_choose_between_columns(case_of: Cases) -> None:
    """Control: of three columns one round does."""
    for name, rounds in ((FOUR_COLUMNS, 2), (NETWORK, 1)):
        case = case_of(name)
        asked = [query for query in answered(case, case.records, exactly()).queries if isinstance(query, Choice)]
        columns = len(case.job.outcomes)
        assert sum(len(query.scores[0]) > 1 for query in asked[: columns - 2]) == rounds


SELDOM = {
    *("tables-zero_out-residuals", "tables-substitution-residuals", "tables-substitution-residuals anywhere"),
    *("tables-two-outcomes", "tables-public-weights", "tables-histogram", "tables-gaussian", "tables-add_remove-residuals"),
}
"""Seconds each: tests/audit/test_every_option.py has all options of tables under these neighbours, and these are `long`."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] if name in SELDOM else []) for name in JOBS])
def test_noise_is_enough_is_in_all_that_is_released_and_is_stated(name: str, case_of: Cases) -> None:
    case = case_of(name)
    assert problems_of_scale(name, case) == []
    assert problems_of_answers(name, case) == []
    assert problems_of_stated_noise(name, case) == []


COUNTS = "perturbed_histogram-{}-histogram"
BINS = COUNTS.format("zero_out")


def _scaled(by: Fraction) -> PerturbedHistogramMechanism:
    """Counts of bins under noise of so many times the scale that its sensitivity was worked out for."""

    class Scaled(PerturbedHistogramMechanism):
        def rounds(self, job: Job, settings: Any, model: Histogram, recorder: Any, learned: None) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                own = bin_counts(job)
                patch.setattr(query, "bin_counts", lambda job: replace(own, scale=by * own.scale))
                reply, rounds = None, super().rounds(job, settings, model, recorder, learned)
                try:
                    while True:
                        reply = yield rounds.send(reply)
                except StopIteration as end:
                    return end.value

    return Scaled()


@pytest.mark.parametrize("share", [8, 2], ids=["an eighth of the scale", "all of epsilon in each of two sets"])
def test_less_noise_than_was_promised_is_refused_when_it_is_asked_for(share: int, case_of: Cases) -> None:
    with pytest.raises(LossExceeded, match="query 'counts of bins' exceeds the promise"):
        problems_of_scale("it", case_of(BINS), _scaled(Fraction(1, share)))


def test_weights_that_are_not_clipped_when_a_file_is_read_are_found_out(
    case_of: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mechanism clips a weight at its public bounds: a weight of four times the bound costs four times the budget."""
    monkeypatch.setattr("dpdist.testing.losses.taken_in", lambda job, records: records)
    (line,) = problems_of_scale("it", case_of("laplace_composed-public"))
    assert line.startswith("it: two neighbouring files cost 48, and the job's epsilon is 12: compare the scale")


def test_a_share_of_the_budget_that_is_lost_is_found_out(case_of: Cases) -> None:
    (line,) = problems_of_scale("it", case_of(BINS), _scaled(Fraction(100)))
    assert line.startswith("it: no neighbouring files cost more than 0.12 of epsilon = 12")


class Rewritten(PerturbedHistogramMechanism):
    """Rounds over counts of bins that are written out here, with a fault."""

    def __init__(self, noisy: Callable[[Floats, Defined, Histogram, int], Any]) -> None:
        self.noisy = noisy

    def rounds(self, job: Job, settings: Any, model: Histogram, recorder: Any, learned: None) -> Any:
        sums, drawn = (yield Pass(HistogramCounts(model), "sum")), list[Draws]()
        for number in range(1, job.synthetic_sets + 1):
            found = yield from self.noisy(sums, Defined.by_content(model), model, number)
            drawn.append(Draws({"counts": found}))
        return released_sets(recorder, drawn, 0.0)


def own_query(model: Histogram) -> NoisyQuery:
    return NoisyQuery("counts of bins", Moved.of(1), model.scale)


def _as_it_should(sums: Floats, own: Defined, model: Histogram, number: int) -> Any:
    return (yield own.sums(sums, own_query(model), number))


def _not_added(sums: Floats, own: Defined, model: Histogram, number: int) -> Any:
    yield own.sums(sums, own_query(model), number)
    return sums


def _added_to_the_first_alone(sums: Floats, own: Defined, model: Histogram, number: int) -> Any:
    noisy = yield own.sums(sums, own_query(model), number)
    return np.column_stack([noisy[:, :1], sums[:, 1:]])


def _one_number(sums: Floats, own: Defined, model: Histogram, number: int) -> Any:
    return (yield own.sums(sums, own_query(model), 1))


def _drawn_once() -> Callable[..., Any]:
    kept = list[Floats]()

    def noisy(sums: Floats, own: Defined, model: Histogram, number: int) -> Any:
        if number == 1:
            kept[:] = [(yield own.sums(sums, own_query(model), 1))]
        return kept[0]

    return noisy


def _one_noise(sums: Floats, own: Defined, model: Histogram, number: int) -> Any:
    """The noise of the first bin is worked out, and added to the others too."""
    noisy = yield own.sums(sums[:, :1], own_query(model), number)
    return sums + (noisy - sums[:, :1])


EXACT = "it: under the same noisy answers 'counts' of set {} differs between neighbouring files: it takes exact sums"
NO_EFFECT = "it: query {} changes nothing that is released: is its answer used?"
SHARED = "it: one noisy answer is in sets 1, 2, and its specification says that records were protected 2 times"
FAULTS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "none": (_as_it_should, []),
    "noise is drawn and not added": (
        _not_added,
        [
            *(EXACT.format(k) for k in (1, 2)),
            *(NO_EFFECT.format(k) for k in (1, 2)),
            *(f"it: no noisy answer changes set {k}: it is released without noise" for k in (1, 2)),
        ],
    ),
    "noise is added to one bin": (_added_to_the_first_alone, [EXACT.format(k) for k in (1, 2)]),
    "two sets ask for one noise": (
        _one_number,
        ["it: two queries ask for the noise number 1: give each query a different number"],
    ),
    "two sets release one answer": (_drawn_once(), [SHARED]),
    "all bins have one noise": (_one_noise, [EXACT.format(k) for k in (1, 2)]),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_wrong_with_the_answers_is_told(what: str, case_of: Cases) -> None:
    noisy, due = FAULTS[what]
    found = problems_of_answers("it", case_of(BINS), Rewritten(noisy))
    assert len(found) == len(due)
    assert [line for line, start in zip(found, due, strict=True) if not line.startswith(start)] == []


def test_a_law_that_measurements_misstate_is_told(case_of: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    right = post.figures
    monkeypatch.setattr(post, "figures", lambda *given: (each._replace(law=GAUSSIAN) for each in right(*given)))
    found = problems_of_stated_noise("it", case_of(BINS))
    assert [line.partition(" of scale")[0] for line in found] == ["it: measurements.parquet states discrete_gaussian"]


def test_noise_of_another_scale_than_the_release_states_is_told(case_of: Cases) -> None:
    """In its measurements and in its released object: the noise itself has twice the scale."""
    found = problems_of_stated_noise("it", case_of(BINS), _scaled(Fraction(2)))
    assert [line.split(" ")[1] for line in found] == ["measurements.parquet", "the"]

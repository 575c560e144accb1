"""The noise that strict mechanisms ask for, and add: scale, size and set as worked out by hand (METHODS §7, §8).

Scales in the comments are sensitivity × UNIT/ε. The noise is known here, and no record lies where rounding would matter.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_clamped import KEY, Notes
from test_reference_tables import job as tables_job
from test_reference_tables import survey

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.records import Floats, Frame
from dpdist.engine.protocol import Noise, Pass, Released
from dpdist.engine.rounds import drive, fresh_noise
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms import stratum_sums
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.promises import NOT_REFUSED
from dpdist.mechanisms.reference_tables.cells import ReferenceSummary, summary_of
from dpdist.mechanisms.reference_tables.post import ReferenceCells
from dpdist.mechanisms.reference_tables.query import (
    CLIPPED,
    CLIPPED_BY_HISTOGRAMS,
    CLIPPED_IN_STAGES,
    CLIPPED_SECRET,
    SEVERAL,
    SEVERAL_SECRET,
)
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.mechanisms.sanitized_lognormal.post import SanitizedLognormal
from dpdist.mechanisms.sanitized_lognormal.winsorising_inversion import Whitened
from dpdist.mechanisms.stratum_sums import LossExceeded
from dpdist.models.protocol import Draws, StratumModel
from dpdist.sampling import facts
from dpdist.sampling.samplers import ExactSampler

UNIT = 2**20
CELLS = 3
JOB = """
dataset: noise
period: "2021"
columns:
  field: {{levels: [arts, law, medicine]}}
  salary: {{bounds: [1000, 200000], outside: clip}}
  hours: {{bounds: [1, 80], outside: clip}}
  {weight}
survey: {{weight: weight}}
outcome: {outcome}
model: {model}
mechanism: {{name: {name}{more}}}
budget: {{epsilon: "{epsilon}", adjacency: {adjacency}}}
synthetic_sets: {sets}
{reference}
tables:
  - {{name: one, by: [field], statistics: [count, {{mean: salary}}]}}
"""
BOUNDED = "weight: {bounds: [1, 1000], outside: clip}"
GAUSSIAN = ", noise: gaussian"
AT_AN_EIGHTH = '2.41909319", rho: "1/8", delta: "1e-6'
"""ε of ρ = 1/8 at that δ."""
FILE = "reference: {path: before.parquet, period: '2020'}"
BINNED = "reference: {histogram: {epsilon: '0.25'}}"
FRESH = "reference: {release: before, histogram: {epsilon: '0.25'}}"


def said(name: str, adjacency: str, epsilon: str, **other: object) -> Job:
    plain = {"outcome": "salary", "sets": 1, "reference": "", "more": ""} | other
    plain["weight"] = "" if name == "perturbed_histogram" else BOUNDED
    plain["model"] = "{family: lognormal}" if name == "sanitized_statistics" else "null"
    text = JOB.format(name=name, adjacency=adjacency, epsilon=epsilon, **plain)
    if name == "perturbed_histogram":
        text = text.replace("survey: {weight: weight}\n", "").replace("by: [field], ", "")
    return parse_job(text)


def records(seed: int, outcomes: int) -> Records:
    """200 of each of three cells."""
    rng, n = np.random.default_rng(seed), 200 * CELLS
    y, w = np.exp(rng.normal(10.5, 0.5, n)), np.exp(rng.normal(4.0, 0.7, n))
    y = np.column_stack([y, rng.uniform(5.0, 60.0, n)]) if outcomes > 1 else y
    return Records(np.arange(n), np.repeat(np.arange(CELLS, dtype=np.int32), 200), y, w, np.full(n, -1, np.int32))


FRAME = Frame(
    {"field": np.arange(CELLS, dtype=np.int32)}, {"field": ("arts", "law", "medicine")}, np.full(CELLS, 200), (), ()
)


def known(number: Noise) -> Floats:
    """Every number its own."""
    return 1e7 * (1 + number.set) + np.arange(number.size, dtype=np.float64) ** 2


def driven(job: Job) -> tuple[list[Noise], list[Floats], StratumModel, Released]:
    """What a mechanism asked for, the exact sums of its passes, and what it released under `known` noise."""
    model = builder_of(job).build(job, FRAME, slice(0, CELLS))
    now, before = (records(seed, len(job.outcomes)) for seed in (1, 2))
    learned: ReferenceSummary | Whitened | None = None
    if isinstance(model, ReferenceCells) and job.has_reference:
        learned = summary_of(model, [before.about(k) for k in range(len(job.outcomes))])
    elif isinstance(model, SanitizedLognormal):
        learned = model.learned(before)
    asked: list[Noise] = []
    sums: list[Floats] = []

    def visit(request: Pass) -> Floats:
        sums.append(request.kernel(now, {}, Notes()))
        return sums[-1]

    def noise(request: Noise) -> Floats:
        asked.append(request)
        return known(request)

    rounds = MECHANISMS[job.mechanism.name].protect(job, model, Notes(), learned)
    return asked, sums, model, drive(rounds, model, ExactSampler(1), KEY, "all", visit, noise)


ANYWHERE = "substitution, exchange: anywhere"
PAIR, TWO = "salary", "[salary, hours]"
Asked = list[tuple[Fraction, int, int] | tuple[Fraction, int, int, str]]


def binned(moved: int) -> Asked:
    """Of histograms at 1/4, in multiples of what a record that is switched off moves."""
    learned = [(Fraction(120 * UNIT), 1, 3), (Fraction(120 * UNIT), 2, 4), (Fraction(10 * UNIT), 1, 5)]
    return [(moved * scale, *rest) for scale, *rest in [*learned, (Fraction(32, 3), 0, 0), (Fraction(4 * UNIT, 3), 6, 1)]]


CASES: dict[str, tuple[Job, Asked]] = {
    # a cell's 1 − v and vc: 1/ε on both, exchanged 2/ε; the simplex's three sums 1/ε
    "tables": (said("reference_tables", "zero_out", "1/2", reference=FILE), [(Fraction(2 * UNIT), 6, 1)]),
    "exchanged": (said("reference_tables", "substitution", "1/2", reference=FILE), [(Fraction(4 * UNIT), 6, 1)]),
    "secret": (said("reference_tables", "add_remove", "1/2", reference=FILE), [(Fraction(2 * UNIT), 9, 1)]),
    "anywhere": (said("reference_tables", ANYWHERE, "1/2", reference=FILE), [(Fraction(4 * UNIT), 9, 1)]),
    # K = 2: 1/ε on 1 − v, 2/ε on all others
    "tables, two": (
        said("reference_tables", "zero_out", "1/2", reference=FILE, outcome=TWO),
        [(Fraction(2 * UNIT), 3, 1), (Fraction(4 * UNIT), 6, 2)],
    ),
    "exchanged, two": (
        said("reference_tables", "substitution", "3", reference=FILE, outcome=TWO),
        [(Fraction(2 * UNIT, 3), 3, 1), (Fraction(4 * UNIT, 3), 6, 2)],
    ),
    "secret, two": (
        said("reference_tables", "add_remove", "1/2", reference=FILE, outcome=TWO),
        [(Fraction(2 * UNIT), 3, 1), (Fraction(4 * UNIT), 12, 2)],
    ),
    # positions, by ½: 1/240 for their total, 1/120 for a choice of two (twice as much), 1/20 for sums by level; two
    # histograms at the 3/16 left: 32/3; all exchanged twice that; the rest is 3/4 of 1
    "binned": (said("reference_tables", "zero_out", "1", reference=BINNED), binned(1)),
    "binned, exchanged": (said("reference_tables", "substitution", "1", reference=BINNED), binned(2)),
    # beside an earlier release: the weight's and the outcomes' histograms at 1/4, over bins that follow from the release
    "refreshed": (
        said("reference_tables", "zero_out", "1", reference=FRESH),
        [(Fraction(8), 0, 0), (Fraction(4 * UNIT, 3), 6, 1)],
    ),
    "refreshed, exchanged, two": (
        said("reference_tables", "substitution", "3", reference=FRESH, outcome=TWO),
        [(Fraction(24), 0, 0), (Fraction(8 * UNIT, 11), 3, 1), (Fraction(16 * UNIT, 11), 6, 2)],
    ),
    # locations of three cells and three sums of squares, once for all sets
    "sanitized": (said("sanitized_statistics", "zero_out", "1/2", reference=FILE, sets=3), [(Fraction(2 * UNIT), 9, 1)]),
    "sanitized, exchanged": (
        said("sanitized_statistics", "substitution", "1/2", reference=FILE, sets=3),
        [(Fraction(4 * UNIT), 9, 1)],
    ),
    # σ² = Δ²/2ρ, Δ 1 and 7/4 and what rounding adds
    "sanitized, gaussian": (
        said("sanitized_statistics", "zero_out", AT_AN_EIGHTH, reference=FILE, sets=3, more=GAUSSIAN),
        [(Fraction(2 * UNIT) + Fraction(1, 1000), 9, 1, "gaussian")],
    ),
    "sanitized, gaussian, exchanged": (
        said("sanitized_statistics", "substitution", AT_AN_EIGHTH, reference=FILE, sets=3, more=GAUSSIAN),
        [(Fraction(7 * UNIT, 2) + 6 + Fraction(1, 1000), 9, 1, "gaussian")],
    ),
    # pairs 2 apart, every set at half of ε
    "cell sums": (
        said("laplace_strict", "zero_out", "1", sets=2),
        [(Fraction(4 * UNIT), 6, 1), (Fraction(4 * UNIT), 6, 2)],
    ),
    # 3/2 of half of ε, on each kind of sum by itself; exchanged 5/2
    "modips": (
        said("modips", "zero_out", "1", sets=2, more=", law: lognormal"),
        [(Fraction(3 * UNIT), size, number) for number, size in enumerate([3, 3, 1] * 2, 1)],
    ),
    "modips, exchanged": (
        said("modips", "substitution", "1", more=", law: lognormal"),
        [(Fraction(5 * UNIT, 2), size, number) for number, size in enumerate([3, 3, 1], 1)],
    ),
    # a record enters its cell and the total: 2 · 2/ε, eight figures
    "noisy tables": (
        said("laplace_composed", "substitution", "1/2", more=", sensitivity: public"),
        [(Fraction(8 * UNIT), 8, 1)],
    ),
    # a bin by 1, or two bins, every set at half of ε
    "histogram": (said("perturbed_histogram", "zero_out", "1", sets=2), [(Fraction(2), 7, 1), (Fraction(2), 7, 2)]),
    "histogram, exchanged": (
        said("perturbed_histogram", "substitution", "1", sets=2),
        [(Fraction(4), 7, 1), (Fraction(4), 7, 2)],
    ),
}


def plain(request: Noise) -> Noise:
    """Without what it is bound to."""
    return request._replace(query="", sums="")


def expected(case: str, sums: list[Floats]) -> list[Noise]:
    """Of histograms the number of counts is that of the bins: all of them are noised."""
    return [Noise(scale, size or sums[-2].size, *rest) for scale, size, *rest in CASES[case][1]]


@pytest.mark.parametrize("case", CASES)
def test_a_mechanism_asks_for_noise_of_the_scale_that_its_promise_needs(case: str) -> None:
    asked, sums, *_ = driven(CASES[case][0])
    assert [plain(one) for one in asked] == expected(case, sums)


@pytest.mark.parametrize("case", CASES)
def test_noise_a_fifth_smaller_than_its_query_states_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stratum_sums, "Noise", lambda scale, *rest: Noise(scale * Fraction(4, 5), *rest))
    with pytest.raises(LossExceeded, match="does not state what its noise loses"):
        driven(CASES[case][0])


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("tables", {CLIPPED}),
        ("exchanged, two", {CLIPPED, SEVERAL}),
        ("secret", {CLIPPED_SECRET}),
        ("anywhere", {CLIPPED_SECRET}),
        ("secret, two", {SEVERAL_SECRET}),
        ("binned", {CLIPPED_BY_HISTOGRAMS}),
        ("refreshed", {CLIPPED_IN_STAGES}),
    ],
)
def test_the_statement_tells_of_the_scales_in_force(case: str, told: set[str]) -> None:
    job = CASES[case][0]
    assumptions = set(MECHANISMS[job.mechanism.name].promise(job).assumptions)
    scales = {CLIPPED, CLIPPED_BY_HISTOGRAMS, CLIPPED_IN_STAGES, SEVERAL, CLIPPED_SECRET, SEVERAL_SECRET}
    assert assumptions & scales == told
    assert len(set(map(len, scales))) == len(scales), "each is its own text"


@pytest.mark.parametrize(
    ("case", "told"), [("tables", True), ("secret", True), ("sanitized", True), ("binned", False), ("refreshed", True)]
)
def test_that_a_reference_was_not_refused_is_said_to_be_outside_of_the_budget(case: str, told: bool) -> None:
    job = CASES[case][0]
    assert (NOT_REFUSED in MECHANISMS[job.mechanism.name].promise(job).assumptions) == told


LAWS = {"laplace": "discrete Laplace", "gaussian": "discrete Gaussian"}


@pytest.mark.parametrize("case", CASES)
def test_the_statement_names_the_law_that_is_asked_for_and_no_other(case: str) -> None:
    job = CASES[case][0]
    (law,) = {request.law for request in driven(job)[0]}
    (other,) = LAWS.keys() - {law}
    texts = [facts(job)["noise"], *MECHANISMS[job.mechanism.name].promise(job).assumptions]
    assert LAWS[law] in texts[0]
    assert any(LAWS[law] in text for text in texts[1:])
    assert not any(LAWS[other] in text for text in texts)


def table(asked: list[Noise]) -> Floats:
    """The noise on a table's cells, its columns as they were asked for."""
    return np.column_stack([known(one).reshape(CELLS, -1) for one in asked if one.set in (1, 2)])


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][0].mechanism.name == "reference_tables"])
def test_a_table_is_the_exact_clipped_sums_and_all_of_the_noise(case: str) -> None:
    """Sums of records clipped by hand at the released limits, to within their rounding."""
    asked, sums, model, released = driven(CASES[case][0])
    assert isinstance(model, ReferenceCells)
    theta, outcomes = released.parameters[0], len(model.outcomes)
    assert theta["sums"][0] - sums[-1] == pytest.approx(table(asked), rel=1e-12)
    now, limits = records(1, outcomes), theta["limits"][0]
    centre, cap, reach = limits[:, :outcomes], limits[:, outcomes], limits[:, outcomes + 1 :]
    v = np.minimum(now.weight / cap[now.frame], 1.0)[:, None]
    c = np.clip((now.outcomes - centre[now.frame]) / reach[now.frame], -1.0, 1.0)
    own = [1.0 - v, v * (1.0 + c) / 2.0, v * (1.0 - c) / 2.0] if model.simplex else [1.0 - v, v * c]
    exact = UNIT * np.column_stack(own).reshape(CELLS, 200, -1).sum(axis=1)
    assert theta["sums"][0] - table(asked) == pytest.approx(exact, abs=2 * 200)


def test_sanitized_sums_have_all_of_the_noise_in_every_set() -> None:
    asked, sums, _, released = driven(CASES["sanitized"][0])
    assert len(released.parameters) == 3
    for theta in released.parameters:
        told = np.concatenate([theta["sums"][0].reshape(-1), theta["scatter"][0]])
        exact = np.concatenate([sums[-1][:, :2].reshape(-1), sums[-1][:, 2:].sum(axis=0)])
        assert told - exact == pytest.approx(known(asked[0]), rel=1e-12)


def test_cell_sums_and_counts_have_noise_of_their_own_in_every_set() -> None:
    for case, name in (("cell sums", "sums"), ("histogram", "counts")):
        asked, sums, _, released = driven(CASES[case][0])
        for request, theta in zip(asked, released.parameters, strict=True):
            assert (theta[name] - sums[-1]).reshape(-1) == pytest.approx(known(request), rel=1e-12)


def test_every_figure_of_a_table_has_its_noise() -> None:
    """Three cells and the total, the last of them."""
    asked, sums, _, released = driven(CASES["noisy tables"][0])
    exact = np.vstack([sums[-1], sums[-1].sum(axis=0)])
    assert released.parameters[0]["table one"][0] - exact == pytest.approx(known(asked[0]).reshape(4, 2), rel=1e-12)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Fraction, int]]:
    """Scale and size of what OpenDP is asked for."""
    from dpdist.privacy.noise import whole_laplace

    found: list[tuple[Fraction, int]] = []

    def recording(scale: Fraction, size: int, draw: Callable[[Fraction, int], Floats] = whole_laplace) -> Floats:
        found.append((scale, size))
        return draw(scale, size)

    monkeypatch.setattr("dpdist.privacy.noise.whole_laplace", recording)
    return found


def test_what_is_asked_for_is_what_is_drawn(recorded: list[tuple[Fraction, int]]) -> None:
    noise = fresh_noise(Noise(Fraction(7, 3), 5, 2))
    assert (recorded, noise.shape) == ([(Fraction(7, 3), 5)], (5,))


def test_a_release_draws_once_at_the_scale_that_its_statement_needs(
    tmp_path: Path, recorded: list[tuple[Fraction, int]]
) -> None:
    """End to end, exchanged at ε = 1/2: 4 units on two sums of six cells."""
    for seed, name in ((1, "now"), (2, "before")):
        pd.DataFrame(survey(seed, 1500)).to_parquet(tmp_path / f"{name}.parquet")
    plain = ("[laplace_composed, laplace_finest, reference_only]", "[]")
    dpdist.run(tables_job(tmp_path, epsilon="1/2", edit=plain), tmp_path / "ws")
    assert recorded == [(Fraction(4 * UNIT), 12)]


def test_the_tails_of_histograms_err_together_and_what_cells_are_shrunk_to_within_a_group_alone() -> None:
    """Three cells, the first two of one group: all tails assume the same. Control: the common error is a group's."""
    _, _, model, released = driven(CASES["binned"][0])
    assert isinstance(model, ReferenceCells)
    theta = released.parameters[0].values
    none = {name: np.zeros_like(theta[name]) for name in ("noise", "common", "tail")}

    def moves(name: str) -> Floats:
        error = {name: np.full((1, CELLS, 2), 0.01), "group": np.array([[0.0, 0.0, 1.0]])}
        means = model.noised_again(Draws({**theta, **none, **error}), 600, 400, np.random.default_rng(1))["means"]
        return np.log(means[..., 0] / theta["means"][..., 0])

    together = moves("tail")
    np.testing.assert_allclose(together[:, 0], together[:, 1], rtol=1e-9)
    np.testing.assert_allclose(together[:, 0], together[:, 2], rtol=1e-9)
    assert together.std(axis=0) == pytest.approx(0.01, rel=0.15)
    apart = moves("common")
    np.testing.assert_allclose(apart[:, 0], apart[:, 1], rtol=1e-9)
    assert abs(np.corrcoef(apart[:, 0], apart[:, 2])[0, 1]) < 0.2

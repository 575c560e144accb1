"""Every registered mechanism keeps the contract of `dpdist.testing`, and one that does not is told what it lacks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from named_draws import Drawn
from public_files import statement_of
from small_jobs import EXACT, RECORDED, cases, jobs_under, reach, unchecked
from small_runs import run

from dpdist.job import SPECS, Job, MechanismSpec, Noisy
from dpdist.job.checks import contradictions
from dpdist.mechanisms.parts import Incomplete, builder_of, measured_of
from dpdist.mechanisms.promises import promise_of
from dpdist.mechanisms.registry import MECHANISMS, mechanism_of
from dpdist.mechanisms.tables import post
from dpdist.mechanisms.tables.cells import ResidualCells
from dpdist.privacy.claims import NOT_REFUSED
from dpdist.privacy.guarantees import Asymptotic, Promise, Strict
from dpdist.testing.mechanisms import problems, problems_of_noise, record_dependent

pytestmark = pytest.mark.quick


def first_cases(noisy: bool) -> dict[str, str]:
    """The first small job of every mechanism that needs no Markov chain, by the mechanism's name."""
    names = [name for name in cases() if not name.startswith("shipped")]
    own = {mechanism: [name for name in names if name.startswith(f"{mechanism}-")] for mechanism in SPECS}
    return {mechanism: found[0] for mechanism, found in own.items() if found and SPECS[mechanism].adds_noise == noisy}


VARIANTS = [
    "laplace_composed-public",
    "tables-release",
    "tables-histogram",
    "tables-gaussian",
    "sanitized-gaussian",
    "modips-bounded",
    "modips-nested",
    "weighted_marginals-chosen",
    "weighted_marginals-adaptive",
    "weighted_marginals-named",
    "weighted_marginals-sums",
    "privbayes-network",
    "privbayes-degree",
]
"""Other noise of the same mechanisms."""
NOISY = [*first_cases(noisy=True).values(), *VARIANTS]
SILENT = ["weighted-zero_out-bernoulli", "censor_uw-zero_out-beta"]
"""Jobs that draw noise, and jobs that draw none."""


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_keeps_its_contract(name: str) -> None:
    assert any(fate == EXACT and case.startswith(f"{RECORDED.get(name, name)}-") for case, fate in reach().items()), (
        "tests/small_jobs.py"
    )
    assert problems(name, MECHANISMS[name], jobs_under(name)) == []


def test_every_name_that_a_job_can_say_has_a_mechanism() -> None:
    assert set(MECHANISMS) == set(SPECS)


def test_what_strict_mechanisms_refuse_others_accept() -> None:
    """Control: the rules are no mistakes in themselves."""
    (job,) = [job for job in jobs_under("weighted") if job.mechanism.fallback == "pool" and job.strata]
    assert not job.strict
    assert [rule for rule, changed in record_dependent(job).items() if contradictions(changed)] == []


@dataclass(frozen=True)
class Silent:
    """A mechanism that lacks a scope and what protects."""

    def promise(self, job: Job) -> Promise:
        return promise_of(job, Strict(job.budget.adjacency, job.epsilon_per_set))


@dataclass(frozen=True)
class Unlisted(Silent):
    """A strict mechanism whose name no list of strict ones holds."""

    scope: Literal["stratum"] = "stratum"

    def protect(self, *_: object) -> None: ...


@dataclass(frozen=True)
class Modest(Unlisted):
    """Asymptotic, under the name of a strict one."""

    def promise(self, job: Job) -> Promise:
        return promise_of(job, Asymptotic(job.budget.adjacency, job.epsilon_per_set))


@dataclass(frozen=True)
class Generous(Unlisted):
    """Forgets to count its sets."""

    def promise(self, job: Job) -> Promise:
        return replace(super().promise(job), total=Strict(job.budget.adjacency, job.epsilon_per_set))


@pytest.mark.parametrize(
    ("name", "mechanism", "lacks"),
    [
        ("unweighted", Silent(), ["it has no scope", "it has no protect"]),
        ("censor_uw", Modest(), ["it promises Asymptotic, and to Job.strict the job is strict: make them one"]),
        ("censor_uw", Generous(), ["it promises ε = 6, and the job's budget is 12"]),
    ],
)
def test_a_mechanism_is_told_what_it_lacks(name: str, mechanism: object, lacks: list[str]) -> None:
    assert problems(name, mechanism, jobs_under(name)) == [f"{name}: {line}" for line in lacks]


def test_a_strict_mechanism_that_no_list_holds_is_told_what_it_would_let_pass() -> None:
    said = problems("unweighted", Unlisted(), jobs_under("unweighted"))
    assert "unweighted: it promises strict, and to Job.strict the job is not strict: make them one" in said
    for rule in ("missing: drop", "fallback: pool"):
        lacks = f"unweighted: it is strict, and a job with '{rule}', which depends on the records, is accepted: refuse it"
        assert lacks in said


@pytest.mark.parametrize(
    ("module", "part", "lacks"),
    [
        ("query", "MECHANISMS", "write it in dpdist/mechanisms/tables/query.py"),
        ("post", "model_of", "write it in dpdist/mechanisms/tables/post.py"),
        ("post", "WORDS", "write it in dpdist/mechanisms/tables/post.py"),
        ("post", "figures", "write it in dpdist/mechanisms/tables/post.py"),
        ("post", "DEFINITIONS", "write it in dpdist/mechanisms/tables/post.py"),
    ],
)
def test_a_mechanism_without_a_part_is_refused_before_anything_is_read(
    module: str, part: str, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs_under("tables")[0]
    mechanism_of(job)
    monkeypatch.delattr(f"dpdist.mechanisms.tables.{module}.{part}")
    with pytest.raises(Incomplete, match=f"'tables' has no {part}: {lacks}"):
        mechanism_of(job)


@pytest.mark.parametrize("text", ["density", "errors"])
def test_a_mechanism_without_texts_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "WORDS", replace(post.WORDS, **{text: ""}))
    with pytest.raises(Incomplete, match=rf"'tables' has no WORDS\.{text}"):
        mechanism_of(jobs_under("tables")[0])


@pytest.mark.parametrize("method", ["expect", "simulate", "resampled", "noised_again"])
def test_a_model_without_a_method_that_publishing_needs_is_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with all of them it is the model. Without `noised_again` intervals would leave noise out."""
    made = jobs_under("tables")[0]
    kept = {
        name: getattr(ResidualCells, name) for name in dir(ResidualCells) if name != method and not name.startswith("__")
    }
    assert builder_of(made) is ResidualCells
    monkeypatch.setattr(post, "model_of", lambda _: type("ResidualCells", (), kept))
    with pytest.raises(Incomplete, match=rf"'tables' has no ResidualCells\.{method}"):
        builder_of(made)


def test_a_folder_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SPECS["tables"], "package", "dpdist.mechanisms.nowhere")
    with pytest.raises(Incomplete, match=r"no query: write dpdist/mechanisms/nowhere/query\.py"):
        mechanism_of(jobs_under("tables")[0])


def test_a_statistic_without_a_definition_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpdist.mechanisms.tables.post.DEFINITIONS", {"a": "a sum"})
    measured = measured_of(jobs_under("tables")[0])
    assert measured.definition("a") == measured.definition("a income") == "a sum"
    with pytest.raises(Incomplete, match="the statistic 'b' of 'tables' has no definition"):
        measured.definition("b")


@pytest.mark.parametrize("base", [MechanismSpec, Noisy])
def test_a_specification_without_a_guarantee_cannot_be_imported(base: type[MechanismSpec]) -> None:
    """One that adds noise states it too: noise alone makes nothing strict."""
    with pytest.raises(TypeError, match=r"Unsaid does not state its guarantee: write guarantee\(job\) in its class"):

        class Unsaid(base):  # type: ignore[valid-type, misc]
            name: Literal["tables"]


def test_a_mechanism_that_no_job_can_name_is_told_so() -> None:
    assert problems("frobenius", Unlisted(), []) == [
        "frobenius: no job can name it: write the place of its specification into PLACES in dpdist/job/specs.py"
    ]


@pytest.mark.parametrize(
    ("case", "told"), [("sanitized_statistics-zero_out-lognormal", True), ("modips-zero_out-sufficient", False)]
)
def test_that_a_reference_was_not_refused_is_said_to_be_outside_of_the_budget(case: str, told: bool) -> None:
    job = unchecked(cases()[case])
    assert (NOT_REFUSED in mechanism_of(job).promise(job).assumptions) == told


def _run(case: str, inputs: Path, workspace: Path) -> tuple[dict[str, Any], list[Drawn]]:
    """What a small job's statement says, and the noise that it drew."""
    drawn = list[Drawn]()
    run(case, cases()[case], inputs, workspace, drawn)
    said: dict[str, Any] = statement_of(workspace)
    return said, drawn


@pytest.mark.parametrize(
    "case", ["laplace_composed-public", "sanitized-gaussian", "weighted_marginals-adaptive", SILENT[0]]
)
def test_a_statement_names_the_noise_that_is_drawn(case: str, inputs: Path, tmp_path: Path) -> None:
    """Of a few jobs; tests/golden asks it of all."""
    said, drawn = _run(case, inputs, tmp_path / "work")
    assert bool(drawn) == (case in NOISY)
    assert problems_of_noise(case, said, {noise.law for noise in drawn}) == []
    assert (said["mechanism"].get("noise", "laplace") == "gaussian") == ("gaussian" in {one.law for one in drawn})


def test_a_statement_that_names_other_noise_is_found_out() -> None:
    said = {"guarantee": "strict", "assumptions": ["all sums have discrete Laplace noise"]}
    assert problems_of_noise("it", said, {"laplace"}) == []
    assert problems_of_noise("it", said, {"gaussian"}) == [
        "it: Gaussian noise is drawn, but the statement does not name it",
        "it: the statement names Laplace noise, but none is drawn",
    ]
    assert problems_of_noise("it", said | {"assumptions": []}, {"laplace"}) == [
        "it: Laplace noise is drawn, but the statement does not name it"
    ]

"""Every registered mechanism keeps the contract of `mechanism_contract`, and one that does not is told what it lacks."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from mechanism_contract import jobs_under, problems, problems_of_noise, record_dependent
from named_draws import Drawn
from small_jobs import cases
from small_runs import run, write_inputs

from dpdist.job import SPECS, Job, MechanismSpec
from dpdist.job.checks import contradictions
from dpdist.job.mechanism import Noisy
from dpdist.mechanisms import statements
from dpdist.mechanisms.laplace_cells.release import CellSums
from dpdist.mechanisms.promises import promise_of
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.privacy.guarantees import Asymptotic, Promise, Strict
from dpdist.publish import measured_figures

NOISY = [
    "perturbed_histogram-substitution-histogram",
    "laplace_composed-zero_out-noisy_tables",
    "laplace_composed-public",
    "laplace_strict-zero_out-cell_sums",
    "weight_regularisation-zero_out-regularised_cells",
    "reference_tables-refreshed",
    "reference_tables-histogram",
    "sanitized_statistics-zero_out-lognormal",
    "sanitized-gaussian",
    "modips-zero_out-sufficient",
    "modips-bounded",
    "modips-nested",
    "flat_laplace-substitution-partition",
    "universal_histogram-zero_out-partition",
    "steps-zero_out-partition",
    "weighted_marginals-chosen",
    "weighted_marginals-named",
]
SILENT = ["weighted-zero_out-bernoulli", "censor_uw-zero_out-beta"]
"""Jobs that draw noise, and jobs that draw none."""


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_keeps_its_contract(name: str) -> None:
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


def test_a_mechanism_without_a_member_is_told_which() -> None:
    assert problems("unweighted", Silent(), jobs_under("unweighted")) == [
        "unweighted: it has no scope",
        "unweighted: it has no protect",
    ]


def test_a_strict_mechanism_that_no_list_holds_is_told_what_it_would_let_pass() -> None:
    said = problems("unweighted", Unlisted(), jobs_under("unweighted"))
    assert "unweighted: it promises strict, and to Job.strict the job is not strict: make them one" in said
    for rule in ("missing: drop", "fallback: pool"):
        lacks = f"unweighted: it is strict, and a job with '{rule}', which depends on the records, is accepted: refuse it"
        assert lacks in said


def test_a_promise_that_is_less_than_the_job_is_taken_for_is_told_so() -> None:
    assert problems("censor_uw", Modest(), jobs_under("censor_uw")) == [
        "censor_uw: it promises Asymptotic, and to Job.strict the job is strict: make them one"
    ]


def test_a_promise_of_another_budget_is_told_so() -> None:
    assert problems("censor_uw", Generous(), jobs_under("censor_uw")) == [
        "censor_uw: it promises ε = 6, and the job's budget is 12"
    ]


def test_noisy_statistics_that_publishing_does_not_know_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a new mechanism: its measurements would be left out, and its statement would be another's."""
    monkeypatch.delitem(measured_figures.MEASURED, CellSums)
    name = "laplace_strict"
    monkeypatch.delitem(statements.WORDS, name)
    assert problems(name, MECHANISMS[name], jobs_under(name)) == [
        f"{name}: its noisy statistics would not stand in measurements.parquet: add them to MEASURED",
        f"{name}: its statement has no errors: write it in its statement.py, named in mechanisms/statements.py",
        f"{name}: its statement has no density: write it in its statement.py, named in mechanisms/statements.py",
    ]


class Unsaid(Noisy):
    """A specification that forgets its guarantee."""

    name: Literal["laplace_strict"]
    guarantee = MechanismSpec.guarantee


def test_a_specification_without_a_guarantee_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    name, jobs = "laplace_strict", jobs_under("laplace_strict")
    assert problems(name, MECHANISMS[name], jobs) == []
    monkeypatch.setitem(SPECS, name, Unsaid)
    assert problems(name, MECHANISMS[name], jobs) == [
        f"{name}: its specification does not say its guarantee: write guarantee(job)"
    ]


def test_a_mechanism_that_no_job_can_name_is_told_so() -> None:
    assert problems("frobenius", Unlisted(), []) == [
        "frobenius: no job can name it: write its specification in dpdist/job/mechanisms.py, a member of Mechanism",
        "frobenius: no small job stands for it: add what a job under it says to tests/small_jobs.py",
    ]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


def _run(case: str, inputs: Path, workspace: Path) -> tuple[dict[str, Any], list[Drawn]]:
    """What a small job's statement says, and the noise that it drew."""
    drawn = list[Drawn]()
    run(case, cases()[case], inputs, workspace, drawn)
    said: dict[str, Any] = json.loads((workspace / "public" / "statement.json").read_text(encoding="utf-8"))
    return said, drawn


@pytest.mark.parametrize("case", [*NOISY, *SILENT])
def test_a_statement_names_the_noise_that_is_drawn(case: str, inputs: Path, tmp_path: Path) -> None:
    said, drawn = _run(case, inputs, tmp_path / "work")
    assert bool(drawn) == (case in NOISY)
    assert problems_of_noise(case, said, drawn) == []
    assert (said["mechanism"].get("noise", "laplace") == "gaussian") == ("gaussian" in {one.law for one in drawn})


def test_a_statement_that_names_other_noise_is_found_out() -> None:
    said = {"guarantee": "strict", "assumptions": ["all sums have discrete Laplace noise"]}
    assert problems_of_noise("it", said, [Drawn("laplace", 1.0, 3)]) == []
    assert problems_of_noise("it", said, [Drawn("gaussian", 1.0, 3)]) == [
        "it: Gaussian noise is drawn, and the statement does not name it",
        "it: the statement names Laplace noise, and none is drawn",
    ]
    assert problems_of_noise("it", said | {"assumptions": []}, [Drawn("laplace", 1.0, 3)]) == [
        "it: Laplace noise is drawn, and the statement does not name it"
    ]

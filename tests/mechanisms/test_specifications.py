"""What specifications of mechanisms refuse on their own, and what becomes of jobs of an earlier form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from small_jobs import Said, said, unchecked

from dpdist.core.errors import JobError
from dpdist.core.public_files import DamagedFile
from dpdist.estimation.crosstab_table import read_job
from dpdist.job import SPECS, Guarantee, Job, Noisy
from dpdist.job.checks import contradictions
from dpdist.job.loading import parse_job
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.testing.mechanisms import problems, record_dependent

STRICT = said("modips", "substitution", "sufficient")
UNBOUNDED = "a weight without public bounds"


class New(Noisy):
    """A strict mechanism of sums under noise that says nothing of weights."""

    name: Literal["perturbed_histogram"] = "perturbed_histogram"
    package: ClassVar[str] = "dpdist.mechanisms.perturbed_histogram"
    statistics: ClassVar[str | None] = "histogram"
    tabulates: ClassVar[bool] = True

    def guarantee(self, job: object) -> Guarantee:
        return "strict"


class Careless(New):
    """One that says it clips no weights."""

    def clips(self, job: object) -> bool:
        return False


def under(spec: Noisy) -> Job:
    return unchecked(STRICT).model_copy(update={"mechanism": spec})


def test_a_strict_noisy_mechanism_asks_for_the_bounds_of_weights_unless_it_says_otherwise() -> None:
    """Of a new one, too: its sums have no sensitivity without. Control: with bounds its job is accepted."""
    assert contradictions(under(New())) == []
    (found,) = contradictions(record_dependent(under(New()))[UNBOUNDED])
    assert found.where == ("columns", "weight")
    assert "needs public bounds of the weight" in found.fault


def test_the_contract_names_a_mechanism_that_accepts_weights_without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "perturbed_histogram"
    assert problems(name, MECHANISMS[name], [under(New())]) == []
    assert problems(name, MECHANISMS[name], [under(Careless())]) == [
        f"{name}: it is strict, and a job with '{UNBOUNDED}', which depends on the records, is accepted: refuse it"
    ]


FOREIGN = [
    ("tables", "bins", "null"),
    ("tables", "shrinkage", "true"),
    ("weighted", "drift", "0.25"),
    ("weighted", "noise", "laplace"),
]
"""Constants of other mechanisms at their defaults."""


@pytest.mark.parametrize(("mechanism", "constant", "value"), FOREIGN)
def test_a_constant_of_another_mechanism_is_refused_by_name_at_its_default_too(
    mechanism: str, constant: str, value: str
) -> None:
    family = "residuals" if mechanism == "tables" else "bernoulli"
    job = said(mechanism, "zero_out", family)
    assert parse_job(json.dumps(job)).mechanism.name == mechanism
    foreign: Said = job | {"mechanism": job["mechanism"] | {constant: json.loads(json.dumps(_value(value)))}}
    with pytest.raises(JobError) as refused:
        parse_job(json.dumps(foreign))
    (problem,) = refused.value.problems
    assert (problem.where, problem.fault) == (f"mechanism.{constant}", f"'{mechanism}' has no {constant}")
    having = [name for name, spec in SPECS.items() if constant in spec.model_fields]
    assert problem.remedy == f"leave it out, or use {' or '.join(having)}"


def _value(text: str) -> Any:
    return {"null": None, "true": True}.get(text, text)


@pytest.mark.parametrize("mechanism", ["weighted_e", "censor_w"])
def test_fixed_weights_refuse_constants_that_their_rule_has_not(mechanism: str) -> None:
    """Control: of the rule that has it."""
    job = said(mechanism, "zero_out", "lognormal" if mechanism == "weighted_e" else "beta")

    def refused(weights: Said) -> list[tuple[str | int, ...]]:
        mine = unchecked(job | {"mechanism": {"name": mechanism, "weights": weights}})
        return [each.where for each in contradictions(mine)]

    assert refused({"rule": "linear", "radius": 0.3}) == [("mechanism", "weights", "radius")]
    assert refused({"rule": "cluster", "radius": 0.3}) == []
    assert refused({"rule": "scalar"}) == [("mechanism", "weights")]


def published(folder: Path, **changes: Any) -> Path:
    """A folder with the job of a release, changed."""
    (folder / "job.json").write_text(json.dumps(unchecked(STRICT).public | changes), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"family": "lognormal", "outcome": "salary"}},
        {"model": {"family": "cell_sums"}},
        {"mechanism": {"name": "tables", "bins": None, "fallback": "refuse"}},
    ],
    ids=["outcome within the model", "statistics as a family", "constants of all mechanisms"],
)
def test_a_release_of_an_earlier_form_is_said_to_be_one_with_what_to_do(changes: Said, tmp_path: Path) -> None:
    with pytest.raises(DamagedFile, match="a job of an earlier form") as refused:
        read_job(published(tmp_path, **changes), "job.json")
    assert "version of dpdist that made it" in refused.value.remedy
    assert "spends its budget again" in refused.value.remedy


def test_a_job_that_is_damaged_is_not_said_to_be_of_an_earlier_form(tmp_path: Path) -> None:
    assert read_job(published(tmp_path), "job.json").mechanism.name == "modips"
    with pytest.raises(DamagedFile, match="synthetic_sets") as refused:
        read_job(published(tmp_path, synthetic_sets="many"), "job.json")
    assert refused.value.remedy == ""

"""Mechanisms of dpdist 0.2 in a job file: every key that they had, as `tables` reads it, and what they refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dpdist.core.errors import JobError
from dpdist.job import Job
from dpdist.job.loading import parse_job

CLIPPED = {"outside": "clip"}
COLUMNS: dict[str, Any] = {
    "field": {"levels": ["arts", "law"]},
    "sex": {"levels": ["f", "m"]},
    "salary": {"bounds": [0, 150_000], **CLIPPED},
    "weight": {"bounds": [1, 60], **CLIPPED},
}
FILE = {"path": "before.parquet", "period": "2019"}
SECRET = {"epsilon": "4", "adjacency": "add_remove"}
ANYWHERE = {"epsilon": "4", "adjacency": "substitution", "exchange": "anywhere"}
KEYS: dict[str, Any] = {
    "dataset": "small",
    "period": "2021",
    "input": {"path": "now.parquet"},
    "columns": COLUMNS,
    "survey": {"weight": "weight"},
    "outcome": "salary",
    "mechanism": {"name": "tables"},
    "budget": {"epsilon": "4", "adjacency": "substitution"},
    "reference": FILE,
    "tables": [{"name": "t", "by": ["field", "sex"], "statistics": ["count", {"mean": "salary"}]}],
}


def parsed(**keys: Any) -> Job:
    return parse_job(json.dumps(KEYS | keys))


def of_column(name: str, **entry: Any) -> dict[str, Any]:
    return {"columns": COLUMNS | {name: entry}}


@pytest.mark.parametrize(
    ("former", "keys", "present", "dropped"),
    [
        ("reference_tables", {}, {}, ""),
        ("reference_tables", {"shrinkage": True}, {}, "mechanism.shrinkage"),
        ("reference_tables", {"shrinkage": False}, {}, "mechanism.shrinkage"),
        ("table_package", {}, {}, ""),
        *(("table_package", {"strategy": one}, {}, "mechanism.strategy") for one in ("auto", "base_cells", "per_table")),
        ("table_package", {"objective": "largest"}, {"objective": "largest"}, ""),
        ("table_package", {"noise": "laplace", "strategy": "top_down"}, {"noise": "laplace"}, "mechanism.strategy"),
        ("table_package", {"noise": "gaussian"}, {"noise": "gaussian"}, ""),
        ("laplace_strict", {}, {}, ""),
    ],
)
def test_keys_of_a_former_mechanism_are_those_of_tables_or_have_no_effect(
    former: str, keys: dict[str, Any], present: dict[str, Any], dropped: str
) -> None:
    """A caution names the mechanism and what has no effect. Control: under the present name such a key is refused."""
    budget = KEYS["budget"] | ({"delta": "1e-6"} if keys.get("noise") == "gaussian" else {})
    job = parsed(mechanism={"name": former, **keys}, budget=budget)
    stated = {"noise": "laplace"} | present
    assert {name: job.public["mechanism"].get(name) for name in ("name", *stated)} == {"name": "tables"} | stated
    (caution,) = job.of_alias
    assert (former in str(caution), "has no effect" in str(caution)) == (True, bool(dropped))
    assert dropped in str(caution)
    assert parsed(budget=budget, mechanism={"name": "tables"} | present).of_alias == ()
    if dropped:
        with pytest.raises(JobError, match=dropped.rpartition(".")[2]):
            parsed(mechanism={"name": "tables", **keys})


def test_histograms_beside_a_release_have_no_effect_under_a_former_name() -> None:
    """They brought shapes of a release of reference_tables up to date. Control: `tables` refuses them."""
    both = {"release": "earlier/public", "histogram": {"epsilon": "1"}}
    job = parsed(mechanism={"name": "reference_tables"}, reference=both)
    assert job.reference is not None
    assert (job.reference.release_folder, job.reference.histograms) == ("earlier/public", None)
    assert "reference.histogram has no effect" in str(job.of_alias[0])
    with pytest.raises(JobError, match="needs no histograms"):
        parsed(reference=both)


def test_the_removed_mechanism_is_refused_with_its_successor() -> None:
    with pytest.raises(JobError, match=r"'weight_regularisation' was removed in dpdist 0\.3") as refused:
        parsed(mechanism={"name": "weight_regularisation"})
    assert "use tables" in str(refused.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"strata": ["field"]},
        {"rake": [{"by": ["sex"], "totals": {"f": 100, "m": 200}}]},
        {"reference": {"release": "earlier/public"}},
        {"budget": ANYWHERE | {"delta": "1e-6"}, "mechanism": {"name": "tables", "noise": "gaussian"}},
    ],
    ids=["strata", "public totals", "an earlier release", "Gaussian noise against any exchange"],
)
def test_what_packages_of_tables_refused_is_read(keys: dict[str, Any]) -> None:
    """Of the same jobs under their former names, too."""
    job = parsed(**keys)
    assert (job.mechanism.name, job.of_alias) == ("tables", ())
    former = parsed(**keys | {"mechanism": {**keys.get("mechanism", {}), "name": "table_package"}})
    assert former.mechanism == job.mechanism


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "an outcome that is not clipped": (
        of_column("salary", bounds=[0, 9]),
        "an outcome outside its bounds",
        "outside: clip",
    ),
    "no bounds of the weight and no reference": (
        {"columns": {name: entry for name, entry in COLUMNS.items() if name != "weight"}, "reference": None},
        "need public bounds of the weight",
        "add weight: {bounds",
    ),
    "zeros that are dropped": (of_column("salary", bounds=[0, 9], zeros="drop", **CLIPPED), "zeros dropped", "keep these"),
    "secret numbers on histograms": (
        {"budget": SECRET, "reference": {"histogram": {"epsilon": "1"}}},
        "limits only if numbers of records are public",
        "name a public file",
    ),
    "secret numbers without a reference": ({"budget": SECRET, "reference": None}, "only if numbers", "add reference"),
    "some columns against any exchange": (
        {"budget": ANYWHERE, "predictors": {"protect": {"columns": ["sex"]}}},
        "keeps the counts by field public",
        "leave columns out",
    ),
    "no delta under Gaussian noise": (
        {"mechanism": {"name": "tables", "noise": "gaussian"}},
        "no epsilon holds without a delta",
        "add delta",
    ),
    "histograms of the whole budget": (
        {"reference": {"histogram": {"epsilon": "4"}}},
        "would spend the whole budget",
        "usually 1/6",
    ),
    "histograms beside a file": (
        {"reference": {**FILE, "histogram": {"epsilon": "1"}}},
        "not path and histogram",
        "keep the keys of one form",
    ),
    "a file beside a release": ({"reference": {"path": "a", "release": "b"}}, "not path and release", "keep the keys"),
    "a release with a period": ({"reference": {"release": "a", "period": "2020"}}, "states its own period", "leave it out"),
    "histograms with a period": (
        {"reference": {"histogram": {"epsilon": "1"}, "period": "2020"}},
        "histograms come from the current file",
        "leave it out",
    ),
    "histograms of no budget": ({"reference": {"histogram": {}}}, "missing key", "add 'epsilon'"),
    "a reference of the job's own period": ({"reference": {"path": "a", "period": "2021"}}, "the job's own", "earlier"),
}
"""What one of the former mechanisms refused, and `tables` does as well."""


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_of_former_mechanisms_is_refused_with_a_remedy(case: str) -> None:
    keys, fault, remedy = REFUSED[case]
    with pytest.raises(JobError) as refused:
        parsed(**keys)
    problems = [f"{one.fault} {one.allowed}" for one in refused.value.problems if remedy in one.remedy]
    assert any(fault in one for one in problems), refused.value


def test_the_job_that_these_change_is_read() -> None:
    """Control."""
    assert parsed().mechanism.name == "tables"

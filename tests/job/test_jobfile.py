"""The job file: exact, frozen, and helpful about typing errors wherever they stand."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st
from pydantic import BaseModel, ValidationError

import dpdist
from dpdist import job as vocabulary
from dpdist.core.errors import DataError, JobError, Problem
from dpdist.job import MODELS, Job, MechanismSpec, ReleaseBudget, Runtime, budget_text
from dpdist.job.checks import contradictions, scheduler_contradictions
from dpdist.job.loading import find_job, load_job, parse_job
from dpdist.mechanisms.registry import MECHANISMS

pytestmark = pytest.mark.quick

STATISTICS = {name: spec.statistics for name, spec in vocabulary.SPECS.items() if spec.statistics is not None}
"""What mechanisms sum that fit no likelihood, by mechanism. Their jobs have no `model`."""
JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))

TEXT = """\
dataset: tiny
period: "2020"
input:
  path: survey.parquet
columns:
  field:
    levels: [arts, law]
  sex: {levels: [f, m]}
  salary:
    bounds: [0, 1000000]
universe:
  - column: sex
    keep: [f, m]
survey:
  weight: weight
  design_strata: [field]
strata: [field]
outcome: salary
model:
  family: lognormal
  predictors: [sex]
  prior:
    name: improper
mechanism:
  name: weighted
  weights:
    rule: linear
    c: 0.9
budget:
  epsilon: "10.8"
sampler:
  draws: 100
tables:
  - name: salaries
    by: [field]
    statistics:
      - count
      - mean: salary
record:
  log_lik: never
runtime:
  executor: serial
"""


def edited(*path: str | int, to: object) -> dict[str, Any]:
    """The job as a mapping, one key changed."""
    said: dict[str, Any] = yaml.safe_load(TEXT)
    place: Any = said
    for part in path[:-1]:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[part]
    place[path[-1]] = to
    return said


def problems(text: str) -> tuple[Problem, ...]:
    with pytest.raises(JobError) as caught:
        parse_job(text)
    return caught.value.problems


def job_with(*path: str | int, to: object) -> Job:
    return parse_job(yaml.safe_dump(edited(*path, to=to)))


TYPING_ERRORS = [
    ("datset", "dataset: tiny", "dataset: tiny\ndatset: x", "dataset"),
    ("input.simulat", "  path: survey.parquet", "  simulat: {}", "simulate"),
    ("columns.field.level", "    levels: [arts, law]", "    levels: [arts, law]\n    level: 2", "levels"),
    ("columns.sex.mising", "sex: {levels: [f, m]}", "sex: {levels: [f, m], mising: drop}", "missing"),
    ("columns.salary.outsid", "    bounds: [0, 1000000]", "    bounds: [0, 1]\n    outsid: clip", "outside"),
    ("universe.0.columns", "  - column: sex", "  - column: sex\n    columns: sex", "column"),
    ("survey.wieght", "  weight: weight", "  weight: weight\n  wieght: weight", "weight"),
    ("model.predictor", "  predictors: [sex]", "  predictor: [sex]", "predictors"),
    ("model.prior.log_ds", "    name: improper", "    name: proper\n    log_ds: 1", "log_sd"),
    ("mechanism.fall_back", "  name: weighted", "  name: weighted\n  fall_back: pool", "fallback"),
    ("mechanism.weights.rul", "    c: 0.9", "    rul: 0.9", "rule"),
    ("mechanism.weights.reweigh", "    c: 0.9", "    reweigh: 0.9", "reweight"),
    ("budget.adjacancy", '  epsilon: "10.8"', '  epsilon: "10.8"\n  adjacancy: zero_out', "adjacency"),
    ("sampler.draw", "  draws: 100", "  draw: 100", "draws"),
    ("tables.0.margin", "    by: [field]", "    by: [field]\n    margin: true", "margins"),
    ("tables.0.statistic", "    by: [field]", "    by: [field]\n    statistic: [count]", "statistics"),
    ("tables.0.statistics.1.variabel", "- mean: salary", "- {name: mean, variabel: salary}", "variable"),
    ("record.loglik", "  log_lik: never", "  loglik: never", "log_lik"),
    ("runtime.worker", "  executor: serial", "  worker: 3", "workers"),
]


@pytest.mark.parametrize(("key", "old", "new", "near"), TYPING_ERRORS, ids=[case[0] for case in TYPING_ERRORS])
def test_an_unknown_key_is_answered_with_the_nearest_known_one_and_its_line(
    key: str, old: str, new: str, near: str
) -> None:
    text = TEXT.replace(old, new, 1)
    at = text.index(new) + new.index(key.rpartition(".")[2] + ":")
    line = text[:at].count("\n") + 1
    (problem,) = problems(text)
    assert (problem.where, problem.fault, problem.places) == (key, "unknown key", (f"line {line}",))
    assert problem.remedy == f"did you mean '{near}'?"
    assert near in problem.allowed


def test_a_key_that_resembles_nothing_is_answered_with_all_known_ones() -> None:
    (problem,) = problems(TEXT.replace("  draws: 100", "  zzz: 100"))
    assert (problem.where, problem.allowed, problem.remedy) == (
        "sampler.zzz",
        "adapt_delta, attempts, chains, draws, name, toolchain, warmup",
        "delete the key",
    )


def test_a_misspelt_key_that_must_be_given_is_one_problem_not_two() -> None:
    (problem,) = problems(TEXT.replace("dataset: tiny", "datset: tiny"))
    assert (problem.where, problem.remedy) == ("datset", "did you mean 'dataset'?")


def test_a_mistake_in_a_table_is_one_problem_not_also_an_empty_list_of_tables() -> None:
    (problem,) = problems(TEXT.replace("- count", "- cuont"))
    assert (problem.where, problem.places) == ("tables.0.statistics.0.name", ("line 37",))


def test_a_level_of_no_allowed_type_is_one_problem() -> None:
    (problem,) = problems(TEXT.replace("[f, m]}", "[f, 1.5]}"))
    assert problem.where == "columns.sex.levels.1"


def test_a_missing_key_is_named_with_the_line_of_its_parent() -> None:
    (problem,) = problems(TEXT.replace("  family: lognormal\n", ""))
    assert (problem.where, problem.fault, problem.places) == ("model.family", "missing key", ("line 19",))


def test_a_job_without_an_outcome_is_refused() -> None:
    (problem,) = problems(TEXT.replace("outcome: salary\n", ""))
    assert (problem.where, problem.fault) == ("outcome", "missing key")


FAMILY = "  family: lognormal\n"
EARLIER = TEXT.replace("outcome: salary\n", "").replace(FAMILY, FAMILY + "  outcome: OUTCOME\n")
"""A job of the earlier form: the outcome stood in the model."""
SECOND = ("  salary:\n", "  wage: {bounds: [0, 1000]}\n  salary:\n")


@pytest.mark.parametrize("outcome", ["salary", "[salary]", "[salary, wage]"])
def test_a_job_of_the_earlier_form_is_refused_with_the_line_to_write_which_mends_it(outcome: str) -> None:
    (problem,) = problems(EARLIER.replace("OUTCOME", outcome))
    assert (problem.where, problem.places) == ("model.outcome", ("line 20",))
    before, line = problem.remedy.split("of its own: ")
    assert before == "move it out of model, to a line "
    mended = EARLIER.replace("  outcome: OUTCOME\n", "").replace("\nmodel:", f"\n{line}\nmodel:")
    wanted = TEXT.replace("outcome: salary", f"outcome: {outcome}")
    assert parse_job(mended.replace(*SECOND)).identity == parse_job(wanted.replace(*SECOND)).identity


@pytest.mark.parametrize("outcome", ["3", "null", "[salary, 3]", "{name: salary}"])
def test_what_was_no_outcome_in_the_earlier_form_is_not_repeated(outcome: str) -> None:
    (problem,) = problems(EARLIER.replace("OUTCOME", outcome))
    assert problem.remedy.endswith("outcome: …")


@pytest.mark.parametrize(("mechanism", "family"), STATISTICS.items())
def test_a_family_that_was_no_likelihood_is_refused_and_the_mechanism_named_in_its_place(
    mechanism: str, family: str
) -> None:
    earlier = EARLIER.replace("OUTCOME", "salary").replace("family: lognormal", f"family: {family}")
    found = problems(earlier.replace("name: weighted", f"name: {mechanism}"))
    assert [(each.where, each.places) for each in found] == [
        ("model.outcome", ("line 20",)),
        ("model.family", ("line 19",)),
    ]
    assert found[1].remedy == "delete model; outcome goes at the same level as mechanism"
    assert family not in found[1].allowed


def test_a_job_of_the_earlier_form_is_refused_before_any_file_is_read(tmp_path: Path) -> None:
    """Of its program and its calibration there is neither. Control: in today's form they are missed."""
    files = TEXT.replace(FAMILY, "  family: user\n  program: none.stan\n") + "calibration: {path: none.yaml}\n"
    earlier = files.replace("outcome: salary\n", "").replace("model:\n", "model:\n  outcome: salary\n")
    with pytest.raises(JobError) as refused:
        parse_job(earlier, folder=tmp_path)
    assert [(each.where, each.places) for each in refused.value.problems] == [("model.outcome", ("line 19",))]
    with pytest.raises(JobError, match=r"'none\.stan' cannot be read"):
        parse_job(files, folder=tmp_path)


MODEL = TEXT[TEXT.index("model:\n") : TEXT.index("mechanism:\n")]


def named(mechanism: str) -> str:
    """A mechanism's name, with the constants that it cannot do without."""
    return f"name: {mechanism}" + {"modips": "\n  law: normal", "universal_histogram": "\n  layers: 2"}.get(mechanism, "")


@pytest.mark.parametrize("mechanism", STATISTICS)
def test_a_model_beside_a_mechanism_that_fits_none_is_refused_before_any_file_is_read(
    mechanism: str, tmp_path: Path
) -> None:
    """Neither the survey nor its reference is there. Control: without the model it is not what is wrong."""
    said = TEXT.replace("name: weighted", named(mechanism)) + "reference: {path: before.parquet}\n"
    (tmp_path / "job.yaml").write_text(said)
    with pytest.raises(JobError) as refused:
        load_job(tmp_path / "job.yaml")
    (problem,) = refused.value.problems
    assert (problem.where, problem.places) == ("model", ("line 19",))
    assert problem.fault == f"'{mechanism}' fits no likelihood"
    assert "model" not in {each.where for each in problems(said.replace(MODEL, ""))}


@pytest.mark.parametrize("unsaid", ["", "model: null\n"])
@pytest.mark.parametrize("mechanism", sorted({*MECHANISMS} - {*STATISTICS}))
def test_a_mechanism_that_fits_a_likelihood_is_refused_without_a_model_before_any_file_is_read(
    mechanism: str, unsaid: str, tmp_path: Path
) -> None:
    text = TEXT.replace(MODEL, unsaid).replace("name: weighted", f"name: {mechanism}")
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(JobError) as refused:
        load_job(tmp_path / "job.yaml")
    (problem,) = refused.value.problems
    line = text[: text.index(f"name: {mechanism}")].count("\n") + 1
    assert (problem.where, problem.places) == ("mechanism.name", (f"line {line}",))
    assert problem.fault == f"'{mechanism}' fits a likelihood, and none is stated"
    assert problem.remedy == "add model: {family: lognormal}, or another family"


@pytest.mark.parametrize(
    ("mechanism", "model", "where"),
    [("weighted", None, "mechanism.name"), ("tables", {"family": "lognormal"}, "model")],
)
def test_a_job_that_was_made_without_a_file_is_held_to_it_before_any_file_is_read(
    mechanism: str, model: dict[str, str] | None, where: str, tmp_path: Path
) -> None:
    """Control: with what it must state, its survey is missed."""
    said = edited("mechanism", to={"name": mechanism}) | {"model": model}
    mended = said | {"model": {"family": "lognormal"} if model is None else None}
    with pytest.raises(JobError) as refused:
        dpdist.plan(Job.model_validate(said), tmp_path / "none.parquet")
    assert [each.where for each in refused.value.problems] == [where]
    with pytest.raises(DataError, match=r"none\.parquet"):
        dpdist.plan(Job.model_validate(mended), tmp_path / "none.parquet")


@pytest.mark.parametrize("mechanism", STATISTICS)
def test_no_message_of_a_job_without_a_model_names_statistics_that_it_cannot_state(mechanism: str) -> None:
    wrong = TEXT.replace(MODEL, "").replace("name: weighted", f"{named(mechanism)}\n  fallback: proper_prior")
    wrong = wrong.replace("outcome: salary", "outcome: [salary, wage]").replace(*SECOND)
    said = " ".join(each.text() for each in problems(wrong + "fit: {warn_below: .5}\n"))
    assert f"'{mechanism}'" in said
    internal = set(STATISTICS.values()) - set(vocabulary.SPECS)
    assert not [name for name in internal if re.search(rf"'{name}'|(?<!\w){name},", said)]


def test_every_problem_of_a_job_is_told_at_once() -> None:
    text = TEXT.replace("draws: 100", "draws: 1").replace('"10.8"', "0").replace("serial", "seriel")
    assert [(p.where, p.places) for p in problems(text)] == [
        ("budget.epsilon", ("line 30",)),
        ("sampler.draws", ("line 32",)),
        ("runtime.executor", ("line 42",)),
    ]


@pytest.mark.parametrize("above", ["# a comment\n", "\n\n\n", "---\n", "\ufeff# a byte order mark\n"])
def test_line_numbers_count_lines_that_say_nothing(above: str) -> None:
    (problem,) = problems(above + TEXT.replace("draws: 100", "draw: 100"))
    assert problem.places == (f"line {32 + above.count(chr(10))}",)


@pytest.mark.parametrize(
    ("old", "new", "where", "line"),
    [
        ("predictors: [sex]", "predictors: [field]", "model.predictors.0", 21),
        ("predictors: [sex]", "predictors: [salary]", "model.predictors.0", 21),
        ("outcome: salary", "outcome: field", "outcome", 18),
        ("  weight: weight", "  weight: sex", "survey.weight", 15),
        ("keep: [f, m]", "keep: [f, x]", "universe.0.keep", 13),
        ("column: sex", "column: salary", "universe.0.column", 12),
        ("rule: linear", "rule: fixed_point", "mechanism.weights.c", 28),
        ("rule: linear", "rule: inverse\n    g: 0.1", "mechanism.weights.g", 28),
        ("by: [field]", "by: [field, town]", "tables.0.by.1", 35),
        ("mean: salary", "mean: sex", "tables.0.statistics.1", 38),
        ("- count", "- {count: sex}", "tables.0.statistics.0", 37),
    ],
)
def test_keys_that_contradict_each_other_are_refused_at_the_line_of_the_one_to_change(
    old: str, new: str, where: str, line: int
) -> None:
    assert (where, (f"line {line}",)) in [(p.where, p.places) for p in problems(TEXT.replace(old, new, 1))]


@pytest.mark.parametrize("name", vocabulary.SPECS)
def test_a_mechanism_has_its_own_constants_and_says_its_guarantee(name: str) -> None:
    spec = vocabulary.SPECS[name]
    assert spec.guarantee is not MechanismSpec.guarantee
    assert all(field.description for field in spec.model_fields.values())
    assert spec.model_validate(yaml.safe_load(named(name).replace("\n  ", "\n"))).name == name


def test_keys_that_agree_are_not_refused() -> None:
    assert contradictions(job_with("mechanism", "weights", "g", to=0.1)) == []


@pytest.mark.parametrize(
    ("written", "exact"),
    [
        ("10.8", Fraction(54, 5)),
        ('"10.8"', Fraction(54, 5)),
        ('"1/3"', Fraction(1, 3)),
        ("0.1", Fraction(1, 10)),
        ("1e-2", Fraction(1, 100)),
        ("3", Fraction(3)),
        ("' 2.50 '", Fraction(5, 2)),
    ],
)
def test_a_budget_is_the_exact_number_as_written(written: str, exact: Fraction) -> None:
    job = parse_job(TEXT.replace('"10.8"', written))
    assert job.budget.epsilon == exact


def test_the_budget_of_a_set_is_an_exact_share() -> None:
    job = job_with("synthetic_sets", to=3)
    assert job.epsilon_per_set == Fraction(18, 5)
    assert job.epsilon_per_set * 3 == job.budget.epsilon


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=10**9))
def test_the_text_of_a_budget_is_the_budget(epsilon: Fraction) -> None:
    assert Fraction(budget_text(epsilon)) == epsilon
    said = ReleaseBudget(epsilon=budget_text(epsilon)).model_dump_json()
    assert ReleaseBudget.model_validate_json(said).epsilon == epsilon


@pytest.mark.parametrize(
    "written", ["0", "-1", '"0"', '"-1/3"', ".nan", ".inf", "true", "[1]", "null", '"1/0"', '"ten"', '"1e400"']
)
def test_a_budget_that_is_not_a_usable_number_above_zero_is_refused(written: str) -> None:
    (problem,) = problems(TEXT.replace('"10.8"', written))
    assert (problem.where, problem.places) == ("budget.epsilon", ("line 30",))


@pytest.mark.parametrize("written", ["2020", '"2020"', "'2020'"])
def test_a_period_is_text_with_or_without_quotes(written: str) -> None:
    assert parse_job(TEXT.replace('"2020"', written)).period == "2020"


@pytest.mark.parametrize("written", ["2020-01-31", "2020-13-45"])
def test_a_period_that_looks_like_a_date_is_the_text_as_written(written: str) -> None:
    assert parse_job(TEXT.replace('"2020"', written)).period == written


def _parts(value: object) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from _parts(getattr(value, name))
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _parts(inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from _parts(inner)


def test_no_part_of_a_job_can_be_changed() -> None:
    parts = list(_parts(parse_job(TEXT)))
    assert len(parts) > 12
    for part in parts:
        for name in type(part).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(part, name, getattr(part, name))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_shipped_job_is_valid_and_found_by_its_name(path: Path) -> None:
    job = load_job(path.stem)
    assert job.identity == load_job(path).identity
    assert job.identity == load_job(f"{path.stem}.yaml").identity


def test_a_folder_named_like_a_shipped_job_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doctorates").mkdir()
    assert find_job("doctorates").suffix == ".yaml"


def test_a_job_of_ones_own_comes_before_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doctorates.yaml").write_text(TEXT, encoding="utf-8")
    assert load_job("doctorates.yaml").dataset == "tiny"


def test_a_path_with_a_folder_is_never_looked_up_among_the_shipped_jobs(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no such file"):
        load_job(tmp_path / "doctorates.yaml")


def test_the_schema_is_json_and_knows_every_top_level_key() -> None:
    schema = json.loads(json.dumps(Job.model_json_schema()))
    assert set(schema["properties"]) == set(Job.model_fields)
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_schema_knows_every_key_that_a_shipped_job_uses(path: Path) -> None:
    schema = Job.model_json_schema()

    def resolve(part: dict[str, Any]) -> list[dict[str, Any]]:
        if "$ref" in part:
            return resolve(schema["$defs"][part["$ref"].rpartition("/")[2]])
        return [part, *(inner for option in (*part.get("anyOf", ()), *part.get("oneOf", ())) for inner in resolve(option))]

    def unknown(value: object, part: dict[str, Any], where: str) -> list[str]:
        options = resolve(part)
        if isinstance(value, list):
            items = next((o["items"] for o in options if "items" in o), {})
            return [bad for i, inner in enumerate(value) for bad in unknown(inner, items, f"{where}.{i}")]
        if not isinstance(value, dict):
            return []
        known = {name: inner for o in options for name, inner in o.get("properties", {}).items()}
        other = next((o["additionalProperties"] for o in options if o.get("additionalProperties")), None)
        other = {} if other is True else other
        if known.keys() >= {"name", "variable"}:
            return []
        bad = [f"{where}.{name}" for name in value if name not in known and other is None]
        return bad + [
            b for name, inner in value.items() for b in unknown(inner, known.get(name, other or {}), f"{where}.{name}")
        ]

    said = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert unknown(said, schema, "job") == []
    assert unknown({**said, "survey": {"wieght": "w"}}, schema, "job") == ["job.survey.wieght"]


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_survives_the_round_trip_through_json(path: Path) -> None:
    job = load_job(path)
    again = Job.model_validate_json(job.model_dump_json())
    assert again == job
    assert again.identity == job.identity
    assert Job.model_validate(yaml.safe_load(yaml.safe_dump(job.model_dump(mode="json")))) == job


def test_what_is_published_of_a_job_is_a_job_again() -> None:
    job = parse_job(TEXT)
    assert not {"input", "runtime", "ledger", "record", "compare"} & set(job.public)
    assert Job.model_validate(job.public).public == job.public


SAME_RESULT = [
    (("ledger",), {"total": "9"}),
    (("runtime",), {"executor": "dask", "workers": 7}),
    (("runtime", "memory_per_worker"), "9GiB"),
    (("input", "path"), "elsewhere.csv"),
    (("input",), {}),
    (("budget", "epsilon"), 10.8),
    (("budget", "epsilon"), "54/5"),
    (("period",), 2020),
    (("budget", "adjacency"), "zero_out"),
    (("mechanism", "fallback"), "refuse"),
    (("presentation",), {"title": "Salaries", "columns": {"field": {"label": "Field", "levels": {"law": "Law"}}}}),
]


@pytest.mark.parametrize(("path", "value"), SAME_RESULT, ids=lambda v: ".".join(v) if isinstance(v, tuple) else "")
def test_runtime_paths_spelling_and_stated_defaults_leave_the_identity_alone(path: tuple[str, ...], value: object) -> None:
    assert job_with(*path, to=value).identity == parse_job(TEXT).identity


def test_clipping_beside_codes_changes_nothing() -> None:
    """Codes lie within the bounds. Control: without codes it is another job."""
    codes = {"bounds": [1, 2], "codes": {"no": 1, "yes": 2}}
    plain, clipped = (job_with("columns", "salary", to=codes | more) for more in ({}, {"outside": "clip"}))
    assert clipped.identity == plain.identity
    assert clipped.clipped_columns == ()
    assert job_with("columns", "salary", to={"bounds": [1, 2], "outside": "clip"}).clipped_columns == ("salary",)


OTHER_RESULT = [
    (("dataset",), "other"),
    (("period",), "2021"),
    (("input",), {"simulate": {"kind": "doctorates", "population": 100, "sample": 50, "seed": 1}}),
    (("columns", "field", "levels"), ["law", "arts"]),
    (("columns", "salary", "bounds"), [0, 999999]),
    (("columns", "salary", "missing"), "drop"),
    (("columns", "salary", "zeros"), "drop"),
    (("columns", "salary", "outside"), "clip"),
    (("columns", "town"), {"levels": ["a"]}),
    (("universe",), []),
    (("universe", 0, "keep"), ["f"]),
    (("assumed_public",), ["how many people answered"]),
    (("survey", "weight"), "w"),
    (("survey", "design_strata"), []),
    (("survey", "psu"), "psu"),
    (("survey", "population"), 1000),
    (("survey", "fpc"), ["size"]),
    (("survey", "lonely_psu"), "average"),
    (("survey", "design_effect"), 1.5),
    (("survey", "replicate_weights"), {"kind": "brr", "prefix": "r", "number": 8}),
    (("model", "predictors"), []),
    (("model", "synthesis"), "fbp"),
    (("model", "prior", "name"), "proper"),
    (("model", "prior", "log_sd"), 0.6),
    (("mechanism", "weights", "rule"), "inverse"),
    (("mechanism", "weights", "c"), 0.8),
    (("mechanism", "weights", "g"), 0.1),
    (("mechanism", "weights", "reweight"), 0.9),
    (("mechanism", "weights", "scale"), 0.9),
    (("mechanism", "weights", "shift"), 0.1),
    (("mechanism", "fallback"), "pool"),
    (("budget", "epsilon"), "10.8000001"),
    (("budget", "adjacency"), "substitution"),
    (("synthetic_sets",), 2),
    (("sampler", "draws"), 101),
    (("tables", 0, "name"), "other"),
    (("tables", 0, "by"), []),
    (("tables", 0, "margins"), False),
    (("tables", 0, "statistics"), ["count"]),
    (("approval",), "required"),
    (("publish",), "always"),
    (("correction",), {"version": 2, "of": "0" * 64, "reason": "a code was wrong"}),
    (("frame_minimum",), 5),
    (("withhold_above",), 0.5),
    (("public_frame",), {"accepted": "the counts are published elsewhere"}),
    (("rake",), [{"by": ["sex"], "totals": {"f": 10, "m": 20}}]),
    (("compare",), ["laplace"]),
    (("record", "log_lik"), "always"),
]


@pytest.mark.parametrize(("path", "value"), OTHER_RESULT, ids=[".".join(map(str, path)) for path, _ in OTHER_RESULT])
def test_everything_else_changes_the_identity(path: tuple[str | int, ...], value: object) -> None:
    assert job_with(*path, to=value).identity != parse_job(TEXT).identity


def test_strata_change_the_identity() -> None:
    text = TEXT.replace("    by: [field]", "    by: []")
    assert parse_job(text.replace("\nstrata: [field]", "\nstrata: []")).identity != parse_job(text).identity


def test_outcomes_and_their_order_change_the_identity() -> None:
    text = TEXT.replace("  salary:\n", "  wage: {bounds: [0, 1000]}\n  salary:\n").replace("      - mean: salary\n", "")
    outcomes = ("salary", "wage", "[salary, wage]", "[wage, salary]")
    assert len({str(parse_job(text.replace("outcome: salary", f"outcome: {own}")).identity) for own in outcomes}) == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("accept", {"epsilon": "1", "gates": [{"measure": "largest", "of": "count", "limit": 0.5}]}),
        ("privacy_unit", {"column": "household", "most": 5}),
        ("predictors", {"protect": {"epsilon": "1/4"}}),
    ],
)
def test_what_not_every_job_can_have_changes_the_identity(key: str, value: object) -> None:
    said = yaml.safe_load(TEXT)
    assert Job.model_validate(said | {key: value}).identity != Job.model_validate(said).identity


def test_the_list_of_what_changes_the_identity_names_every_top_level_key_but_what_changes_no_figure() -> None:
    no_figure = {"format", "runtime", "presentation", "ledger", "extends"}
    of_tables = {"hierarchies", "recode"}  # tests/job/test_table_entries.py and test_recode.py
    of_mechanisms, of_stan_alone = {"reference", "fit", "calibration", "microdata"}, {"diagnostics"}
    listed = {path[0] for path, _ in OTHER_RESULT} | {"strata", "outcome", "accept", "privacy_unit", "predictors"}
    assert listed == set(Job.model_fields) - no_figure - of_mechanisms - of_stan_alone - of_tables
    stan = TEXT.replace("sampler:\n", "sampler:\n  name: stan\n")
    assert parse_job(stan + "diagnostics: {policy: fail}\n").identity != parse_job(stan).identity


def test_simulated_surveys_with_other_settings_are_other_inputs() -> None:
    said = {"kind": "doctorates", "population": 100, "sample": 50, "seed": 1}
    others = [{"population": 101}, {"sample": 51}, {"seed": 2}, {"sd": 0.5}, {"noise_sd": 0.5}, {"noise": "lognormal"}]
    identities = {str(job_with("input", to={"simulate": said | other}).identity) for other in ({}, *others)}
    assert len(identities) == 7


def test_a_family_that_a_job_may_name_is_registered_and_the_other_way_round() -> None:
    assert set(typing.get_args(vocabulary.Family)) == set(MODELS) == set(vocabulary.FAMILIES)


@pytest.mark.parametrize(
    ("runtime", "told"),
    [
        ({"scheduler": "tls://s:8786", "tls": "c"}, "needs executor: dask"),
        ({"executor": "dask", "scheduler": "s:8786"}, "not an address"),
        ({"executor": "dask", "scheduler": "tls://s:8786"}, "needs certificates"),
        ({"executor": "dask", "scheduler": "tcp://s:8786"}, "open to everybody"),
        ({"executor": "dask", "scheduler": "tcp://s:8786", "tls": "c"}, "write tls://"),
        ({"executor": "dask", "tls": "c"}, "name it in runtime.scheduler"),
    ],
)
def test_a_scheduler_is_named_in_full_and_its_links_are_encrypted(runtime: dict[str, object], told: str) -> None:
    assert any(
        told in f"{against.fault}: {against.remedy}"
        for against in scheduler_contradictions(Runtime.model_validate(runtime))
    )


@pytest.mark.parametrize(
    "runtime",
    [
        {"executor": "dask"},
        {"executor": "dask", "scheduler": "config"},
        {"executor": "dask", "scheduler": "tls://[fd00::1]:8786", "tls": "c"},
        {"executor": "dask", "scheduler": "tcp://127.0.0.1:8786"},
        {"executor": "dask", "scheduler": "tcp://s:8786", "allow_plain": True},
    ],
)
def test_a_scheduler_that_is_named_in_full_is_allowed(runtime: dict[str, object]) -> None:
    assert list(scheduler_contradictions(Runtime.model_validate(runtime))) == []


def test_a_job_without_aliases_may_have_as_many_levels_as_it_writes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of 100,000 strata lists 100,000 levels. Control: as many values by aliases are refused."""
    monkeypatch.setattr("dpdist.job.yaml_lines.MOST_VALUES", 100)
    many = TEXT.replace("levels: [arts, law]", f"levels: [{', '.join(f'l{k}' for k in range(200))}]")
    assert len(parse_job(many).columns["field"].levels or ()) == 200
    with pytest.raises(JobError, match="more than 100 values, with those of aliases"):
        parse_job(f"x: &x [{', '.join(['a'] * 60)}]\ny: [*x, *x, *x]\n{TEXT}")

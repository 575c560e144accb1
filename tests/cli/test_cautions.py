"""What a plan warns of comes true in the run, and a job without a fault has no caution."""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Formatter

import numpy as np
import pandas as pd
import pytest
from command_line import invoke, succeed
from public_files import statement_of

import dpdist
from dpdist.cli.caution_lines import FROM_MECHANISM
from dpdist.core.cautions import KINDS, Caution
from dpdist.core.errors import DataError, FitError
from dpdist.job.loading import parse_job
from dpdist.release import cautions

JOB = """
dataset: tiny
period: "1"
columns:
  field: {levels: [arts, law]}
  sex: {levels: [f, m]}
  salary: {bounds: [0, 10000000]}
survey: {weight: weight}
strata: [field]
outcome: salary
model: {family: lognormal, predictors: [sex]}
mechanism: {name: weighted, weights: fixed_point}
budget: {epsilon: "3.6"}
sampler: {draws: 300}
tables: [{name: t, by: [field, sex], statistics: [count]}]
record: {log_lik: never}
"""


def survey(folder: Path, small: int) -> Path:
    """A stratum of 200 records, and one of `small`."""
    n, rng = 200 + small, np.random.default_rng(small)
    columns = {"field": ["law"] * 200 + ["arts"] * small, "sex": np.resize(["f", "m"], n)}
    numbers = {"salary": np.exp(rng.normal(11, 0.4, n)), "weight": np.exp(rng.normal(3, 0.4, n))}
    pd.DataFrame({**columns, **numbers}).to_parquet(folder / "survey.parquet")
    return folder / "survey.parquet"


def told(text: str, path: Path) -> list[str]:
    """Cautions on the plan alone, without those of the weight rule and what to look at before publishing."""
    found = cautions(dpdist.plan(parse_job(text), path))
    return [str(one) for one in found if one.code not in (*FROM_MECHANISM, "fit_unseen", "exact_losses")]


def test_a_stratum_that_cannot_reach_the_target_is_foretold_and_refused_by_the_run(tmp_path: Path) -> None:
    path = survey(tmp_path, 11)
    (caution,) = told(JOB, path)
    assert caution.startswith("stratum 'arts': with 11 records, the bound probably cannot be lowered to Δ* = 1.8")
    with pytest.raises(FitError, match="stratum arts"):
        dpdist.run(parse_job(JOB), tmp_path / "ws", path)


def test_a_stratum_that_is_large_enough_has_no_caution_and_a_release(tmp_path: Path) -> None:
    path = survey(tmp_path, 48)
    assert told(JOB, path) == []
    dpdist.run(parse_job(JOB), tmp_path / "ws", path)


@pytest.mark.parametrize(
    "change",
    [
        ("name: weighted, weights: fixed_point", "name: unweighted"),
        ("predictors: [sex]", "predictors: [sex], prior: {name: proper}"),
    ],
)
def test_what_does_not_weigh_or_has_a_prior_has_no_such_caution(change: tuple[str, str], tmp_path: Path) -> None:
    assert told(JOB.replace(*change), survey(tmp_path, 11)) == []


def test_published_counts_of_one_and_two_records_are_counted(tmp_path: Path) -> None:
    """One woman and two men in arts; control: three of each."""
    few, enough = survey(tmp_path, 3), tmp_path / "enough.parquet"
    pd.concat([pd.read_parquet(few)] * 3).to_parquet(enough)
    text = JOB.replace("name: weighted, weights: fixed_point", "name: unweighted").replace(
        "predictors: [sex]", "predictors: [sex], prior: {name: proper}"
    )
    (said,) = [caution for caution in told(text, few) if "sample counts" in caution]
    assert said.startswith("2 of the 4 published sample counts are below 3, and 1 of these is 1. ")
    assert not [caution for caution in told(text, enough) if "sample counts" in caution]


def test_a_tiny_budget_is_foretold(tmp_path: Path) -> None:
    (caution,) = told(JOB.replace('"3.6"', '"0.0001"'), survey(tmp_path, 48))
    assert caution.startswith(
        "2 strata ('arts' first): with 48 records, the bound probably cannot be lowered to Δ* = 5e-05"
    )


def test_levels_without_a_record_and_a_weak_guarantee_are_remarked(tmp_path: Path) -> None:
    text = JOB.replace("[f, m]", "[f, m, x]").replace('"3.6"', '"1000"')
    assert told(text, survey(tmp_path, 48)) == [
        "ε = 1000 is a weak guarantee: whoever knows all other records can be nearly certain about the last one. "
        "Use a smaller epsilon.",
        "No record has 1 of the 3 levels of 'sex': x. Check the spelling of these levels. If the levels really are "
        "empty, their cells are published as empty or contain only noise.",
    ]


@pytest.mark.parametrize("verb", ["validate", "plan"])
def test_validate_and_plan_print_it(verb: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    text = succeed(verb, tmp_path / "job.yaml", "--input", survey(tmp_path, 11))
    assert "with 11 records, the bound probably cannot be lowered" in " ".join(text.split())


@pytest.mark.parametrize("said", ["linear", "none"])
def test_what_to_look_at_before_publishing_is_said_by_validate_plan_and_run(said: str, tmp_path: Path) -> None:
    """Of a law and of a weight rule; run names its folder. Control: without a rule there are no losses to measure."""
    text = JOB.replace("weights: fixed_point", f"weights: {said}")
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    job, path, work = f"{tmp_path}/job.yaml", str(survey(tmp_path, 200)), f"{tmp_path}/ws"
    for line, named in (("validate", "WORKSPACE"), ("plan", "WORKSPACE"), ("run", work)):
        more = ["-w", work] if line == "run" else []
        done = invoke(line, job, "--input", path, *more)
        shown = "".join(done.output.split())
        assert done.exit_code == 0, done.output
        assert shown.count(f"Lookat`dpdistreport{named}--confidential`beforepublishing") + shown.count("fit_unseen,") == 1
        assert (f"`dpdistaudit{named}`measures" in shown or "exact_losses" in shown) == (said != "none")
    quiet = invoke("validate", job, "--input", path, "--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")


def test_psu_codes_that_begin_again_in_every_stratum_are_foretold(tmp_path: Path) -> None:
    """Codes 1 and 2 in thirty strata that the job does not name. Controls: the strata are named; codes of their own."""
    path, rng = survey(tmp_path, 400), np.random.default_rng(1)
    rows = pd.read_parquet(path)
    rows["block"], rows["psu"] = np.arange(len(rows)) // 20, rng.permutation(np.resize([1, 2], len(rows)))
    rows["code"] = 2 * rows["block"] + rows["psu"]
    rows.to_parquet(path)
    text = JOB.replace("survey: {weight: weight}", "survey: {weight: weight, psu: psu}")
    *left_out, caution = told(text, path)
    assert [each.startswith("Published standard errors ignore clustering") for each in left_out] == [True]
    assert caution.startswith("'psu' has fewer than 10 codes, and the job names no design strata.")
    assert "survey.design_strata" in caution
    assert not [each for each in told(text.replace("psu: psu", "psu: code"), path) if "fewer than 10 codes" in each]
    named = text.replace("psu: psu", "psu: psu, design_strata: [block]").replace(
        "columns:\n", f"columns:\n  block: {{levels: [{', '.join(map(str, range(30)))}]}}\n"
    )
    assert not [each for each in told(named, path) if "fewer than 10 codes" in each]


OLD = JOB.replace("mechanism: {name: weighted, weights: fixed_point}", "mechanism: {name: tables}").replace(
    "model: {family: lognormal, predictors: [sex]}\n", ""
)


def of_tables(period: str, more: str) -> str:
    """A job of tables by its own columns, without strata, with further keys."""
    text = OLD.replace("strata: [field]\n", "").replace("sampler: {draws: 300}\n", "")
    text = text.replace("10000000]}", "10000000], outside: clip}\n  weight: {bounds: [1, 200], outside: clip}")
    text = text.replace("record: {log_lik: never}\n", "").replace('"3.6"', '"3.6", adjacency: substitution')
    return text.replace('period: "1"', f"period: '{period}'") + f"{more}\n"


def with_reference(folder: Path, period: str, of_reference: str) -> list[str]:
    """Cautions on a job with a reference of a period."""
    (folder / "earlier").mkdir()
    earlier = survey(folder / "earlier", 60)
    reference = f"reference: {{path: {earlier}, period: '{of_reference}', provenance: public}}"
    return told(of_tables(period, reference), survey(folder, 48))


@pytest.mark.parametrize(("period", "years"), [("1983-1985", 18), ("1992", 11), ("1994", 0), ("wave 3", 0)])
def test_an_old_reference_has_a_caution(tmp_path: Path, period: str, years: int) -> None:
    told_of = with_reference(tmp_path, "2003-2005", period)
    warned = [each for each in told_of if each.startswith("The reference is from")]
    assert warned == [] if not years else f"The reference is from {period}, {years} years from 2003-2005" in warned[0]


@pytest.mark.parametrize(
    ("design", "warns"), [("", False), (", psu: unit", True), (", psu: unit, design_effect: 1.5", False)]
)
def test_a_design_that_is_in_no_published_error_has_a_caution(tmp_path: Path, design: str, warns: bool) -> None:
    path = survey(tmp_path, 48)
    rows = pd.read_parquet(path).assign(unit=lambda each: np.arange(len(each)) // 4)
    rows.to_parquet(path)
    warned = [
        each for each in told(JOB.replace("{weight: weight}", f"{{weight: weight{design}}}"), path) if "ignore" in each
    ]
    assert len(warned) == warns
    if warns:
        assert "clustering by unit" in warned[0]


@pytest.mark.parametrize("column", ["salary", "weight"])
def test_no_variation_left_in_the_predictors_groups_is_found_before_the_run(column: str, tmp_path: Path) -> None:
    """Control: one record of another value, with which the run goes on."""
    path = survey(tmp_path, 60)
    rows = pd.read_parquet(path)
    flat = rows.assign(**{column: rows["sex"].map({"f": 20.0, "m": 30.0}).where(rows["field"] == "arts", rows[column])})
    flat.to_parquet(path)
    with pytest.raises(DataError, match="stratum arts: outcome or weight has no variation left") as refused:
        dpdist.validate(parse_job(JOB), path)
    assert "drop predictors" in str(refused.value)
    flat.loc[flat.index[-1], column] = 25.0
    flat.to_parquet(path)
    dpdist.validate(parse_job(JOB), path)


def test_every_text_of_the_catalogue_is_found_again_with_its_code_and_is_explained() -> None:
    """With and without its remedy, as plans and statements have it. Control: a text that is in no catalogue."""
    for code, kind in KINDS.items():
        names = {name: f"<{name}>" for _, name, _, _ in Formatter().parse(kind.text + kind.remedy) if name}
        caution = Caution.of(code, **names)
        assert {Caution.stated(caution.text).code, Caution.stated(str(caution)).code} == {code}
        shown = invoke("explain", code)
        assert (shown.exit_code, shown.output.partition(",")[0]) == (0, code)
        words = " ".join(shown.output.split())
        assert kind.explanation in words
        assert kind.explanation.count(". ") > 0, "what it means, and what to do"
        assert not re.findall(r"\b(?!PSU)[A-Z]{3,}\b|[{}]", words.replace("PSUs", "")), "placeholders"
    assert Caution.stated("whatever a plug-in says").code == "from_mechanism"
    unknown = invoke("explain", "nosuch")
    assert (unknown.exit_code, unknown.output.partition("\n")[0]) == (2, "explain nosuch: 1 problem")
    listed = invoke("explain")
    assert (listed.exit_code, [code for code in KINDS if f"{code}: " not in listed.output]) == (0, [])


@pytest.mark.parametrize(
    ("job", "reference", "doubt"),
    [
        ("20244", "2012", "one of them may be misspelled"),
        ("2024", "2025", "the reference is the later of the two"),
        ("2024-Q3", "2024-Q4", "the reference is the later of the two"),
        ("2024-Q3", "2025", "the reference is the later of the two"),
        ("wave 9", "wave 10", "the reference is the later of the two"),
        ("2024-Q1", "2023-Q4", ""),
        ("2024-Q1", "2024", ""),
        ("wave 3", "1994", ""),
        ("2003-2005", "1999-2001", ""),
    ],
)
def test_a_later_reference_and_periods_of_other_length_have_a_caution(
    tmp_path: Path, job: str, reference: str, doubt: str
) -> None:
    warned = [each for each in with_reference(tmp_path, job, reference) if each.startswith("The job is for period")]
    text = f"The job is for period {job}, and its reference is from {reference}: {doubt}. Check both periods."
    assert warned == [text] * bool(doubt)


@pytest.mark.parametrize("reference", ["", "reference: null", 'reference: {histogram: {epsilon: "0.6"}}'])
def test_a_job_without_a_reference_learns_what_that_costs_unless_it_says_so(tmp_path: Path, reference: str) -> None:
    told_of = told(of_tables("2021", reference), survey(tmp_path, 48))
    warned = [each for each in told_of if "names no reference" in each]
    assert len(warned) == ("histogram" not in reference)
    assert all("cost 0.6 of its ε = 3.6." in each and "one and a half to four times as large" in each for each in warned)


@pytest.mark.parametrize("code", ["predicted_far_off", "hidden_counts"])
def test_no_caution_advises_to_merge_the_total_of_all_records(code: str) -> None:
    """Both name cells, of which the total can be the only one."""
    assert "these cells" not in KINDS[code].remedy
    assert "merge levels with few records" in KINDS[code].remedy


def test_an_unknown_code_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="no caution has the code 'weak'"):
        Caution.of("weak", text="")
    refused = invoke("explain", "weak_guarante")
    assert refused.exit_code != 0
    assert "did you mean 'weak_guarantee'?" in refused.output


def test_validate_plan_and_run_show_the_same_list(tmp_path: Path) -> None:
    """And JSON has a code for each text. Control: the plan has some."""
    (tmp_path / "job.yaml").write_text(JOB.replace("[f, m]", "[f, m, x]"), encoding="utf-8")
    path, notes, shown = str(survey(tmp_path, 200)), list[str](), dict[str, dict[str, list[str]]]()
    for verb in ("validate", "plan"):
        done = invoke(verb, tmp_path / "job.yaml", "--input", path, "--json")
        assert done.exit_code == 0, done.output
        shown[verb] = json.loads(done.stdout.splitlines()[-1])
    dpdist.run(
        tmp_path / "job.yaml",
        tmp_path / "ws",
        path,
        listener=lambda event: notes.append(event.note) if event.note else None,
    )
    assert shown["validate"]["cautions"] == shown["plan"]["cautions"]
    assert "empty_levels" in shown["plan"]["caution_codes"]
    assert len(shown["plan"]["caution_codes"]) == len(shown["plan"]["cautions"])
    pairs = zip(shown["plan"]["cautions"], shown["plan"]["caution_codes"], strict=True)
    assert {f"{text} [{code}]".replace("WORKSPACE", str(tmp_path / "ws")) for text, code in pairs} <= set(notes)
    statement = statement_of(tmp_path / "ws")
    assert len(statement["caution_codes"]) == len(statement["cautions"])

"""A rehearsal runs what a job's columns allow on thirds of a public file, and recommends by a rule that it states."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pandas as pd
import pytest
from command_line import invoke

from dpdist.core.errors import JobError
from dpdist.core.progress import silent
from dpdist.core.records import Crosstab
from dpdist.job import Runtime
from dpdist.job.loading import job_of, load_job, parse_job
from dpdist.quality.predicted.replicates import DirectFigures, ReplicateFigures
from dpdist.release import run
from dpdist.runtime.executors import Serial
from dpdist.studies.rehearsal import Runs, TrialTask, drawn_again, page, rehearse, small, write_recommended
from dpdist.studies.rehearsal_thirds import FileThirds, Thirds, in_thirds, public_reference, public_source
from dpdist.studies.rehearsal_trials import (
    COARSEN,
    COLUMNS,
    DRAWS,
    LARGER,
    NOISY,
    RULE,
    Candidate,
    Rehearsal,
    Trial,
    advice,
    candidates,
    confirmed,
    in_order,
    of_candidate,
    tied,
    with_repetitions,
)

JOB = """
dataset: people
period: "2024"
input: {path: confidential.parquet}
columns:
  region: {levels: [north, south, east]}
  income: {bounds: [1, 1000000], outside: clip}
  weight: {bounds: [1, 200], outside: clip}
survey: {weight: weight}
outcome: income
mechanism: {name: tables}
budget: {epsilon: "2", adjacency: substitution}
reference: {path: earlier.parquet, provenance: the public file of 2022}
tables: [{name: incomes, by: [region], statistics: [count, {mean: income}]}]
"""
PUBLIC = {"path": "earlier.parquet", "provenance": "the public file of 2022"}


def people(seed: int, records: int = 900) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    region = rng.choice(["north", "south", "east"], records)
    income = np.exp(rng.normal(10.3, 0.5, records)).round()
    return pd.DataFrame({"region": region, "income": income, "weight": rng.uniform(5.0, 60.0, records).round(1)})


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rehearsal]:
    """A rehearsal beside a confidential file that is not there, of a job that merges two levels."""
    folder, earlier = tmp_path_factory.mktemp("rehearsed"), people(1)
    earlier.loc[::2, "region"] = earlier.loc[::2, "region"].replace("east", "west")
    earlier.to_parquet(folder / "earlier.parquet")
    merging = JOB.replace("north, south, east]}", "north, south, east, west]}") + "recode: {region: {west: east}}\n"
    (folder / "job.yaml").write_text(merging, encoding="utf-8")
    return folder, rehearse(load_job(folder / "job.yaml"), folder / "out")


def test_the_confidential_file_is_not_opened(rehearsed: tuple[Path, Rehearsal]) -> None:
    """It does not exist; control: validating the job misses it."""
    folder, made = rehearsed
    assert made.trials
    assert invoke("validate", folder / "job.yaml").exit_code == 2


def test_every_mechanism_is_run_or_refused_with_a_reason(rehearsed: tuple[Path, Rehearsal]) -> None:
    from dpdist.mechanisms.registry import MECHANISMS

    _, made = rehearsed
    met = {each.candidate.label.partition(" ")[0].strip(",") for each in made.trials}
    refused = {each.label.partition(" ")[0].strip(",") for each in made.refused}
    assert met | refused == set(MECHANISMS)
    assert {"tables", "sanitized_statistics", "weighted"} <= met
    assert all(each.reason for each in made.refused)
    assert not {"unweighted"} & met


def test_rehearsal_csv_has_every_cell_of_every_mechanism(rehearsed: tuple[Path, Rehearsal]) -> None:
    folder, made = rehearsed
    rows = pd.read_csv(folder / "out" / "rehearsal.csv")
    assert tuple(rows.columns) == tuple(COLUMNS)
    assert len(rows) == 2 * 4 * sum(each.draws for each in made.trials)
    assert made.best.draws == DRAWS
    assert set(rows["cell"]) == {"north", "south", "east", "Total"}
    assert set(rows["statistic"]) == {"count", "mean of income"}
    assert rows["covered"].isin([True, False]).all()
    assert (rows.set_index("mechanism")["guarantee"]["tables"] == "strict").all()
    again = pd.read_csv(folder / "out" / "confirmation.csv")
    assert made.trials[0].candidate.label in set(again["mechanism"])


def test_thirds_are_equal_in_every_cell(tmp_path: Path) -> None:
    """They are disjoint and make the whole. What makes no third of its cell is in every reference, and in nothing else."""
    rows = people(1)
    rows.loc[:1, "region"] = "west"
    rows.to_parquet(tmp_path / "earlier.parquet")
    job = parse_job(
        JOB.replace("south, east]", "south, east, west]").replace("earlier.parquet", f"{tmp_path}/earlier.parquet")
    )
    thirds = in_thirds(job, public_source(job, None), None)
    whole = thirds.table.to_pandas()
    sizes = whole.groupby(["region", thirds.third]).size().unstack()
    assert (sizes[0].isna() | (sizes[0] == sizes[1]) & (sizes[1] == sizes[2])).all()
    assert sizes.loc["west", 3] == 2
    assert (thirds.cells, thirds.thin) == (4, 1)
    assert thirds.caution.startswith("1 of 4 cells have fewer than 6 records")
    order = list(whole)
    for current, swapped in ((0, False), (0, True), (1, False)):
        now, before, truth = (pd.read_parquet(path) for path in thirds.written(current, swapped, tmp_path / "split"))
        assert "west" not in {*now["region"], *truth["region"]}
        assert now.groupby("region").size().equals(truth.groupby("region").size())
        both = pd.concat([now, before, truth]).sort_values(order).reset_index(drop=True)
        assert both.equals(whole.sort_values(order).reset_index(drop=True))


def test_a_file_with_too_few_records_for_thirds_is_refused(tmp_path: Path) -> None:
    """Control: with three records a cell there are thirds, and the page says that no interval is judged."""
    rows = people(1, 60).groupby("region").head(2)
    rows.to_parquet(tmp_path / "earlier.parquet")
    job = parse_job(JOB.replace("earlier.parquet", f"{tmp_path}/earlier.parquet"))
    with pytest.raises(JobError, match=r"too few records for three parts[^\n]*\n.*\n.*--public"):
        in_thirds(job, public_source(job, None), None)
    people(1, 60).groupby("region").head(3).to_parquet(tmp_path / "earlier.parquet")
    assert in_thirds(job, public_source(job, None), None).caution.startswith("3 of 3 cells have fewer than 6")


def test_records_that_the_job_leaves_out_do_not_unbalance_thirds(tmp_path: Path) -> None:
    """Those outside the universe, and those without an outcome where the job drops them."""
    rows = people(1).assign(status=["in", "out", "in"] * 300)
    rows.loc[rows.index % 4 == 0, "income"] = np.nan
    rows.to_parquet(tmp_path / "earlier.parquet")
    text = JOB.replace("1000000], outside: clip", "1000000], missing: drop").replace("200], outside: clip", "200]")
    text = text.replace("{name: tables}", "{name: weighted}\nmodel: {family: lognormal, predictors: [region]}")
    text = text.replace("reference: {path: earlier.parquet, provenance: the public file of 2022}\n", "")
    text = text.replace("  weight: {", "  status: {levels: [in, out]}\n  weight: {")
    job = parse_job(text + "universe: [{column: status, keep: [in]}]\n")
    thirds = in_thirds(job, public_source(job, tmp_path / "earlier.parquet"), None)
    assert thirds.table.num_rows == 900, "records outside the universe count in variances"
    parts = thirds.written(0, False, tmp_path / "split")
    sizes = [len(pd.read_parquet(path).query("status == 'in'").dropna()) for path in (parts.current, parts.truth)]
    assert sizes[0] == sizes[1] > 100


def test_at_most_so_many_records_are_taken(tmp_path: Path) -> None:
    people(1).to_parquet(tmp_path / "earlier.parquet")
    job = parse_job(JOB.replace("earlier.parquet", f"{tmp_path}/earlier.parquet"))
    assert in_thirds(job, public_source(job, None), 500).table.num_rows == 500


def test_the_recommended_job_runs(rehearsed: tuple[Path, Rehearsal]) -> None:
    """With the job's own input and reference, from its own folder."""
    folder, made = rehearsed
    people(2).to_parquet(folder / "confidential.parquet")
    job = load_job(folder / "out" / "recommended.yaml")
    assert job.strict
    assert job.budget.epsilon == 2
    assert job.mechanism.name == made.trials[0].candidate.label.partition(" ")[0].strip(",")
    assert Path(str(job.input.path)).resolve() == folder / "confidential.parquet"
    release = run(job, folder / "ws", counted=False)
    assert release.statement["epsilon"] == "2"
    (folder / "confidential.parquet").unlink()


def test_small_counts_that_a_run_refuses_are_told(tmp_path: Path, rehearsed: tuple[Path, Rehearsal]) -> None:
    """Of the whole public file, on page and job. Control: a file without any."""
    rows = people(1, 300)
    rows.loc[:1, "region"] = "west"
    rows.to_parquet(tmp_path / "few.parquet")
    job = parse_job(JOB.replace("south, east]", "south, east, west]").replace("earlier", f"{tmp_path}/few"))
    best = candidates(job, "earlier.parquet", PUBLIC)[0][0]
    told = small(best, in_thirds(job, public_source(job, None), None))
    assert told.startswith("1 of the 4 published sample counts is below 3, and none of these is 1")
    made = rehearsed[1]
    assert made.caution == ""
    assert all("Caution" not in text for text in (page(made), write_recommended(made, tmp_path)))
    assert all(
        "1 of the 4" in text
        for made in [made._replace(caution=told)]
        for text in (page(made), write_recommended(made, tmp_path))
    )


def test_the_page_states_the_rule_and_what_was_not_run(rehearsed: tuple[Path, Rehearsal]) -> None:
    folder, made = rehearsed
    text = (folder / "out" / "index.html").read_text(encoding="utf-8")
    assert RULE in text
    assert made.trials[0].candidate.label in text
    assert all(each.label in text for each in made.refused)
    assert set(re.findall(r"\w+://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}, "it loads nothing"


def made_up(label: str, strict: bool, error: float, covered: float) -> Trial:
    """A trial with this error and this coverage in every cell."""
    cells = pd.DataFrame({"table": "t", "statistic": "count", "cell": list("abcdefghij"), "bias": error, "replicate": 0})
    cells = cells.assign(name="count", outcome=None, records=80, **dict.fromkeys(("relative", "given_n", "alone"), np.nan))
    held = (np.arange(10) < 10 * covered).astype(float)
    cells = cells.assign(error=error, held=held, direct_held=1.0)
    return Trial(Candidate(label, {}, "", strict, {}, ()), cells, 0, 1.0)


class Files:
    """Thirds that are never read."""

    def written(self, *of: object) -> FileThirds:
        return FileThirds(Path(), Path(), Path())


class Drawn(Runs):
    """Further draws with errors that were set."""

    errors: ClassVar = {"lucky": 0.9, "patient": 0.3, "far": 5.0}

    def repeated(self, candidate: Candidate, current: int, draws: Iterable[int]) -> Trial:
        (first, *more) = [made_up(candidate.label, True, self.errors[candidate.label], 1.0) for _ in draws]
        return with_repetitions(first, more)


def test_no_candidate_is_best_by_its_first_draw_alone() -> None:
    """A lucky first draw keeps the others out of reach until its further draws. Control: one far off is drawn once."""
    found = [made_up("lucky", True, 0.1, 1.0), made_up("patient", True, 0.3, 1.0), made_up("far", True, 5.0, 1.0)]
    files = cast(Thirds, Files())
    runs = Drawn(files, Path(), TrialTask(Path(), ""), Path(), Serial(Runtime()))
    trials = drawn_again(found, runs, silent)
    assert [one.draws for one in trials] == [DRAWS, DRAWS, 1]
    assert first_of(trials) == "patient"


def test_the_order_is_that_of_the_rule() -> None:
    """Strict and good before a better one that is not strict; good before bad; then the smallest error."""
    found = [
        made_up("asymptotic, best", False, 0.1, 1.0),
        made_up("strict, uncovered", True, 0.05, 0.8),
        made_up("strict, good", True, 0.4, 0.9),
        made_up("strict, better", True, 0.3, 0.9),
        made_up("strict, far", True, 1.5, 1.0),
    ]
    ordered, _, _ = confirmed(found, lambda candidate: next(each for each in found if each.candidate is candidate))
    assert [each.candidate.label for each in ordered] == [
        "strict, better",
        "strict, good",
        "asymptotic, best",
        "strict, uncovered",
        "strict, far",
    ]


def on_reference(trial: Trial, changes: int) -> Trial:
    """The same of a job with a public reference, and so many changes."""
    recommended = {"reference": {"path": "earlier.parquet"}}
    changed = tuple(map(str, range(changes)))
    return replace(trial, candidate=trial.candidate._replace(recommended=recommended, changed=changed))


def first_of(found: list[Trial]) -> str:
    return in_order(found, lambda each: each.good)[0].candidate.label


def test_largest_error_bias_and_coverage_weigh_as_the_median_does() -> None:
    """A smaller median is not enough, beside one cell that is far off, beside a bias, or beside intervals that miss."""
    sound = made_up("sound", True, 0.45, 0.9)
    lucky = made_up("lucky", True, 0.4, 0.9)
    far = Trial(lucky.candidate, lucky.cells.assign(error=[0.3] * 9 + [11.2], bias=0.0), 0, 1.0)
    biased = Trial(lucky.candidate, lucky.cells.assign(bias=-0.83), 0, 1.0)
    missed = Trial(lucky.candidate, lucky.cells.assign(held=[0.0] * 4 + [1.0] * 6), 0, 1.0)
    assert first_of([sound, lucky]) == "lucky"
    for worse in (far, biased, missed):
        assert worse.error <= 0.4
        assert not worse.good
        assert first_of([worse, sound]) == "sound"


def test_where_none_is_good_enough_the_page_says_which_cells_are_off_and_what_to_do(
    rehearsed: tuple[Path, Rehearsal],
) -> None:
    """Cells of few records are to be merged; others need budget. Control: nothing is said of a good one."""
    _, made = rehearsed
    far = made_up("far", True, 0.3, 1.0)
    cells = far.cells.assign(records=[3, 500, *[80] * 8], error=[22.0, 9.0, *[0.3] * 8], bias=0.0)

    def of(trial: Trial) -> Rehearsal:
        return made._replace(trials=[trial], good=trial.good, confirmations={trial.candidate.label: trial}, refused=[])

    off = of(Trial(far.candidate, cells, 0, 1.0))
    said = advice(off)
    assert said[0].startswith("the first third, t, count: 2 of 10 cells are more than 4 direct standard errors off")
    assert "a (3 records), b (500 records)" in said[0]
    assert said[1:3] == [COARSEN, LARGER]
    assert COARSEN in page(off)
    for direct, limit in ((10, "0.85"), (8, "0.75")):
        held = far.cells.assign(held=[1.0] * 7 + [0.0] * 3, direct_held=[1.0] * direct + [0.0] * (10 - direct))
        missed = advice(of(Trial(far.candidate, held, 0, 1.0)))
        assert missed[0].endswith(f"intervals cover 0.70 of the truth, direct ones {direct / 10:.2f}; the limit is {limit}")
    assert advice(of(made_up("noisy", True, 1.4, 1.0)))[1] == NOISY
    assert advice(of(made_up("good", True, 0.3, 1.0))) == []
    assert "What to change" not in page(of(made_up("good", True, 0.3, 1.0)))


def test_scores_that_tie_within_their_error_prefer_the_reference_and_then_the_simpler_job() -> None:
    """.94 against 1.04 in one draw each; control: without a tie the smaller score comes first."""
    given = on_reference(made_up("reference", True, 0.26, 1.0), 1)
    other = made_up("histograms", True, 0.24, 1.0)
    assert other.score < given.score
    assert first_of([other, given]) == "reference"
    assert first_of([other, on_reference(made_up("reference", True, 0.4, 1.0), 1)]) == "histograms"
    simple = on_reference(made_up("simple", True, 0.255, 1.0), 0)
    assert first_of([other, given, simple]) == "simple"


def test_draws_of_the_noise_are_averaged_and_tell_how_far_a_score_is_chance() -> None:
    one, two = made_up("a", True, 0.2, 1.0), made_up("a", True, 0.4, 1.0)
    both = with_repetitions(one, [two])
    assert both.draws == 2
    assert both.score == pytest.approx((one.score + two.score) / 2)
    assert both.score_error == pytest.approx(np.std([one.score, two.score], ddof=1) / np.sqrt(2))
    rival = on_reference(with_repetitions(made_up("b", True, 0.3, 1.0), [made_up("b", True, 0.5, 1.0)]), 0)
    assert rival.score > 1.2 * both.score
    assert tied(rival, both)
    assert not tied(on_reference(made_up("b", True, 0.4, 1.0), 0), made_up("a", True, 0.3, 1.0)), "one draw has no error"


def test_what_is_not_good_enough_is_not_called_recommended(rehearsed: tuple[Path, Rehearsal]) -> None:
    """On page and job. Control: a good one is."""
    folder, made = rehearsed
    bad = made._replace(good=False)
    good = made._replace(good=True)
    for text in (page(bad), write_recommended(bad, folder / "out")):
        assert "None is good enough; the best is: " in text
        assert "Recommended: " not in text
    assert all("Recommended: " in text for text in (page(good), write_recommended(good, folder / "out")))


def test_a_mechanism_is_as_good_as_its_worst_statistic() -> None:
    """Means that miss are not hidden by counts that are held; control: counts alone are good enough."""
    held, missed = made_up("one", True, 0.1, 1.0), made_up("one", True, 0.2, 0.7)
    both = Trial(held.candidate, pd.concat([held.cells, missed.cells.assign(statistic="mean")]), 0, 1.0)
    assert (held.good, both.good, both.coverage, both.error) == (True, False, 0.7, 0.2)


def test_a_job_without_a_public_file_names_the_option() -> None:
    text = JOB.replace("reference: {path: earlier.parquet, provenance: the public file of 2022}", "")
    job = parse_job(text)
    with pytest.raises(JobError, match=r"no public file to rehearse on[^\n]*\n.*\n.*--public"):
        public_source(job, None)


def test_the_confidential_file_is_refused_as_the_public_one(tmp_path: Path) -> None:
    """By either name, and by a link to it. Control: a file that only looks like it is taken."""
    for name in ("now.csv", "alike.csv"):
        (tmp_path / name).write_text("weight,pay,town\n1,2,a\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "now.csv")
    job = parse_job(JOB)
    job = job.model_copy(update={"input": job.input.model_copy(update={"path": str(tmp_path / "now.csv")})})
    for name in ("now.csv", "link.csv"):
        with pytest.raises(JobError, match="the public file is the job's own input"):
            public_source(job, tmp_path / name)
    assert public_source(job, tmp_path / "alike.csv").columns == ["weight", "pay", "town"]


def test_a_simulated_job_rehearses_on_a_twin() -> None:
    """Another draw of the same survey: the confidential one's seed gives the confidential file."""
    job = load_job("doctorates")
    twin = public_source(job, None)
    assert twin.rows == job.input.simulate.sample  # type: ignore[union-attr]
    from dpdist.survey.source import open_source

    assert twin.fingerprint() != open_source(job).fingerprint()


def test_as_little_is_changed_as_a_mechanism_needs() -> None:
    """A clipped weight is refused by a likelihood's mechanism; unclipped it is allowed."""
    runs, _ = of(JOB)
    assert runs["weighted (lognormal)"].terms["columns"]["weight"] == {"bounds": [1.0, 200.0]}
    assert runs["tables"].terms["columns"]["weight"]["outside"] == "clip"


SEVERAL = JOB.replace("{name: tables}", "{name: modips, law: lognormal}\nsynthetic_sets: 3\nstrata: [region]")
SEVERAL = SEVERAL.replace("reference: {path: earlier.parquet, provenance: the public file of 2022}\n", "")


def of(text: str) -> tuple[dict[str, Candidate], dict[str, str]]:
    """Candidates and refusals by label."""
    runs, refused = candidates(parse_job(text), "earlier.parquet", PUBLIC)
    return {each.label: each for each in runs}, {each.label: each.reason for each in refused}


def test_a_job_with_several_sets_and_strata_still_tries_the_mechanisms_of_one_set() -> None:
    """They keep the job's clipped weight: one change does not bring another."""
    runs, _ = of(SEVERAL)
    for label in ("tables", "laplace_composed"):
        assert runs[label].terms["columns"]["weight"]["outside"] == "clip"
        assert runs[label].terms.get("synthetic_sets", 1) == 1
    assert [each.label for each in runs.values() if each.terms.get("synthetic_sets") == 3], "its own"


def test_what_a_recommendation_changes_is_listed() -> None:
    """Mechanism, sets and strata, each from what to what; control: the job's own mechanism changes nothing."""
    runs, _ = of(SEVERAL)
    assert runs["laplace_composed"].changed == (
        "strata: [region] → left out",
        "mechanism.name: modips → laplace_composed",
        "mechanism.law: lognormal → left out",
        "mechanism.sensitivity: not there → public",
        "synthetic_sets: 3 → left out",
    )
    assert "reference: not there → {path: earlier.parquet" in " ".join(runs["tables"].changed)
    own, _ = of(JOB)
    assert own["tables"].changed == ()


GATED = JOB + "accept: {epsilon: '0.2', gates: [{measure: median, of: count, limit: 0.2}]}\n"


def test_a_recommended_job_keeps_its_gates_and_loads() -> None:
    """What could not be gated is not tried, and says so; what is tried has the budget that gates leave."""
    runs, refused = of(GATED)
    assert runs["tables"].recommended["accept"]["epsilon"] == "0.2"
    for each in runs.values():
        assert job_of(each.recommended).accept is not None
        assert job_of(each.terms).budget.epsilon == Fraction("1.8")
    assert "gates" in refused["weighted (lognormal)"] or "accept" in refused["weighted (lognormal)"]
    ungated, _ = of(JOB)
    assert "weighted (lognormal)" in ungated
    assert job_of(ungated["tables"].terms).budget.epsilon == 2


def test_modips_is_tried_with_every_law_that_the_outcome_can_have() -> None:
    """Its law has no default. Control: whole numbers and yes-or-no outcomes have other laws."""
    runs, _ = of(JOB)
    assert {"modips (normal)", "modips (lognormal)"} <= set(runs)
    assert "modips (normal)" in of(JOB.replace("[1, 1000000]", "[0, 1000000]"))[0]
    assert "modips (lognormal)" not in of(JOB.replace("[1, 1000000]", "[0, 1000000]"))[0]
    assert "modips (multinomial)" in of(JOB.replace("[1, 1000000]", "[1, 9], whole: true"))[0]
    assert "modips (bernoulli)" in of(JOB.replace("[1, 1000000]", "[0, 1], whole: true"))[0]


def test_clamped_mechanisms_are_given_a_prior_and_wait_for_the_option() -> None:
    """They draw by Markov chains, which takes long: they are refused with the option's name, and tried with it."""
    _, refused = of(JOB)
    assert "--chains" in refused["censor_uw (lognormal)"]
    runs, _ = candidates(parse_job(JOB), "earlier.parquet", PUBLIC, chains=True)
    clamped = next(each for each in runs if each.label == "censor_uw (lognormal)")
    assert clamped.terms["model"]["prior"] == {"name": "proper"}
    assert "model.prior" in " ".join(clamped.changed) or "model" in " ".join(clamped.changed)


CELLS = parse_job(JOB.replace("north, south, east", ", ".join("abcdefghij"))).tables[0]
COUNT = CELLS.statistics[0]


def errors_of(
    missing: Sequence[int] = (), apart: float = 0.0, given_n: float = 10.0, reach: float | None = None, error: float = 10.0
) -> pd.DataFrame:
    """Errors of ten cells, some not published. Direct figures are 100, their errors 10, and the truth is `apart` from them.

    Published figures are 1 higher, with an error of 5 and an interval that reaches 8.
    """
    crosstab = Crosstab({"region": np.arange(10, dtype=np.int32)}, {"region": tuple("abcdefghij")}, np.full(10, 20), (), ())
    cells, ten = CELLS.model_copy(update={"margins": False}).cells(crosstab), np.ones(10)
    half = 1.7291 * given_n if reach is None else reach
    direct = DirectFigures(CELLS, COUNT, cells, 20.0 * ten, 100.0 * ten, error * ten, given_n * ten, half * ten)
    published = np.where(np.isin(np.arange(10), list(missing)), np.nan, 101.0)
    rows = pd.DataFrame({"region": list("abcdefghij"), "statistic": "count", "variable": None, "estimator": "parameters"})
    rows = rows.assign(estimate=published, lower=published - 8.0, upper=published + 8.0, standard_error=5.0)
    figures = ReplicateFigures(direct, 10.0 * ten, np.nan * ten, (100.0 + apart) * ten, half * ten)
    return figures.errors_of(rows)


def test_a_figure_that_is_missing_counts_against_a_mechanism() -> None:
    """It is infinitely far off, and no interval holds; control: all published."""
    one = Candidate("one", {}, "strict", True, {}, ())
    lost: list[list[int]] = [[], [1, 2, 3, 4, 5, 6], [1, 2]]
    whole, holes, few = (Trial(one, of_candidate(one, errors_of(at)), 0, 1.0) for at in lost)
    assert (whole.good, whole.error, whole.coverage) == (True, 0.1, 1.0)
    assert (holes.good, holes.error, holes.coverage) == (False, float("inf"), 0.4)
    assert (few.good, few.coverage) == (False, 0.8)


def test_an_interval_is_judged_by_a_third_with_an_error_of_its_own() -> None:
    """The published interval reaches 8, and a direct one 17: together 19. Control: both miss a truth that is 30 off.

    Where a direct error holds random sizes, the published one loses as much. 8 √(1 − (10² − 9²)/5²) is 3.9, and with 15.6
    it reaches 16.0.
    """
    for apart, published, direct in ((17.0, 1.0, 1.0), (21.0, 0.0, 1.0), (30.0, 0.0, 0.0)):
        found = errors_of(apart=apart)
        assert (found["held"] == published).all(), apart
        assert (found["direct_held"] == direct).all(), apart
    assert (errors_of(apart=17.5, given_n=9.0)["held"] == 0.0).all()
    assert (errors_of(apart=16.5, given_n=9.0)["held"] == 1.0).all()
    alone = errors_of(given_n=np.nan)
    assert alone[["held", "direct_held"]].isna().all(axis=None), "one record has no error"


def test_what_direct_intervals_miss_too_is_no_fault_of_a_mechanism() -> None:
    """Both miss three of ten: good. Control: direct ones miss one, so the mechanism misses too many."""
    trial = made_up("a", True, 0.2, 0.7)
    both = Trial(trial.candidate, trial.cells.assign(direct_held=trial.cells["held"]), 0, 1.0)
    assert both.good
    alone = Trial(trial.candidate, trial.cells.assign(direct_held=[0.0] + [1.0] * 9), 0, 1.0)
    assert not alone.good
    assert alone.score == pytest.approx(2.0)
    unjudged = Trial(trial.candidate, trial.cells.assign(held=np.nan, direct_held=np.nan), 0, 1.0)
    assert unjudged.good, "errors alone are judged"


def test_the_largest_error_of_one_draw_does_not_decide() -> None:
    """One draw of four is far off: the median is not. Control: three of four are."""
    near, far = made_up("a", True, 0.3, 1.0), made_up("a", True, 0.3, 1.0)
    far = Trial(far.candidate, far.cells.assign(error=[0.3] * 9 + [80.0]), 0, 1.0)
    once, often = with_repetitions(near, [near, near, far]), with_repetitions(far, [far, far, near])
    assert once.by_statistic["largest"].tolist() == [0.3]
    assert once.good
    assert not often.good


def test_a_statistic_without_any_direct_error_is_no_good_one() -> None:
    """Nothing can be judged: it does not come first."""
    one = Candidate("one", {}, "strict", True, {}, ())
    assert Trial(one, of_candidate(one, errors_of(error=0.0, given_n=0.0)), 0, 1.0).error == float("inf")


def test_intervals_of_a_statistic_without_direct_error_are_judged() -> None:
    """Counts that the design fixes have no direct error; direct ones always hold. Control: as many hold as may.

    A score is the share of intervals that miss, over the largest that is good: 0.15.
    """
    trial = made_up("a", True, 0.2, 1.0)
    for held, score in ((7, 0.3 / 0.15), (9, 0.1 / 0.15)):
        fixed = trial.cells.assign(statistic="fixed", error=np.nan, bias=np.nan, held=[1.0] * held + [0.0] * (10 - held))
        both = Trial(trial.candidate, pd.concat([trial.cells, fixed]), 0, 1.0)
        assert both.score == pytest.approx(score)


def test_the_verdict_asks_the_other_third_too() -> None:
    """One that was good by chance is not recommended as good; the next is tried. Controls: it holds; none holds."""
    first, second = made_up("first", True, 0.2, 1.0), made_up("second", True, 0.3, 0.9)
    bad = made_up("", True, 0.2, 0.5)

    def where(fails: set[str]) -> tuple[str, bool, list[str]]:
        asked = []

        def again(candidate: Candidate) -> Trial:
            asked.append(candidate.label)
            return bad if candidate.label in fails else first

        ordered, good, _ = confirmed([second, first], again)
        return ordered[0].candidate.label, good, asked

    assert where(set()) == ("first", True, ["first"])
    assert where({"first"}) == ("second", True, ["first", "second"])
    assert where({"first", "second"}) == ("first", False, ["first", "second"])


def test_a_simulated_job_recommends_a_simulated_reference() -> None:
    """A twin has no file: its settings are named. Control: a file is named by its path."""
    job = load_job("doctorates")
    ground = public_reference(job, None)
    assert ground == {"simulate": job.input.simulate.model_copy(update={"seed": 2018}).model_dump(mode="json")}  # type: ignore[union-attr]
    runs, _ = candidates(job, "earlier.parquet", ground)
    strict = next(each for each in runs if each.label == "tables")
    assert strict.recommended["reference"] == ground
    assert job_of(strict.recommended).reference is not None
    assert public_reference(parse_job(JOB), None)["path"] == "earlier.parquet"
    plain = JOB.replace("reference: {path: earlier.parquet, provenance: the public file of 2022}", "")
    assert public_reference(parse_job(plain), Path("other.csv")) == {"path": "other.csv", "provenance": "a public file"}

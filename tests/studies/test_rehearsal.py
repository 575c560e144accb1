"""A rehearsal runs what a job's columns allow on halves of a public file, and recommends by a rule that it states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dpdist.cli.main import app
from dpdist.core.errors import JobError
from dpdist.job.loading import load_job, parse_job
from dpdist.release import run
from dpdist.studies.rehearsal import halved, public_source, rehearse
from dpdist.studies.rehearsal_candidates import Candidate, candidates
from dpdist.studies.rehearsal_trials import COLUMNS, RULE, Rehearsal, Trial

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
mechanism: {name: reference_tables}
budget: {epsilon: "2", adjacency: substitution}
reference: {path: earlier.parquet, provenance: the public file of 2022}
tables: [{name: incomes, by: [region], statistics: [count, {mean: income}]}]
"""


def people(seed: int, records: int = 1200) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    region = rng.choice(["north", "south", "east"], records)
    income = np.exp(rng.normal(10.3, 0.5, records)).round()
    return pd.DataFrame({"region": region, "income": income, "weight": rng.uniform(5.0, 60.0, records).round(1)})


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rehearsal]:
    """A rehearsal beside a confidential file that is not there."""
    folder = tmp_path_factory.mktemp("rehearsed")
    people(1).to_parquet(folder / "earlier.parquet")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    return folder, rehearse(load_job(folder / "job.yaml"), folder / "out")


def test_the_confidential_file_is_not_opened(rehearsed: tuple[Path, Rehearsal]) -> None:
    """It does not exist; control: validating the job misses it."""
    folder, made = rehearsed
    assert made.trials
    assert CliRunner().invoke(app, ["validate", str(folder / "job.yaml")]).exit_code == 2


def test_every_mechanism_is_run_or_refused_with_a_reason(rehearsed: tuple[Path, Rehearsal]) -> None:
    from dpdist.mechanisms.registry import MECHANISMS

    _, made = rehearsed
    met = {each.candidate.label.partition(" ")[0].strip(",") for each in made.trials}
    refused = {each.label.partition(" ")[0].strip(",") for each in made.refused}
    assert met | refused == set(MECHANISMS)
    assert {"reference_tables", "laplace_strict", "sanitized_statistics", "weighted"} <= met
    assert all(each.reason for each in made.refused)
    assert not {"unweighted"} & met


def test_rehearsal_csv_has_every_cell_of_every_mechanism(rehearsed: tuple[Path, Rehearsal]) -> None:
    folder, made = rehearsed
    rows = pd.read_csv(folder / "out" / "rehearsal.csv")
    assert tuple(rows.columns) == COLUMNS
    assert len(rows) == 2 * 4 * len(made.trials)
    assert set(rows["cell"]) == {"north", "south", "east", "Total"}
    assert set(rows["statistic"]) == {"count", "mean of income"}
    assert rows["covered"].isin([True, False]).all()
    assert (rows.set_index("mechanism")["guarantee"]["reference_tables"] == "strict").all()
    again = pd.read_csv(folder / "out" / "confirmation.csv")
    assert set(again["mechanism"]) == {made.trials[0].candidate.label}


def test_halves_are_halves_of_every_cell(tmp_path: Path) -> None:
    """They are disjoint and make the whole; a record that is alone in its cell serves as reference in both."""
    rows = people(1)
    rows.loc[0, "region"] = "west"
    rows.to_parquet(tmp_path / "earlier.parquet")
    job = parse_job(
        JOB.replace("south, east]", "south, east, west]").replace("earlier.parquet", f"{tmp_path}/earlier.parquet")
    )
    halves = halved(job, public_source(job, None), None)
    whole = halves.table.to_pandas()
    sizes = whole.groupby(["region", halves.half]).size().unstack()
    assert (sizes[0] - sizes[1]).abs().max() <= 1
    assert sizes.loc["west"].tolist()[2:] == [1.0]
    parts = []
    for current in (0, 1):
        paths = halves.written(current, tmp_path)
        own, other = (pd.read_parquet(path) for path in paths)
        assert len(own) + len(other) == len(rows)
        assert "west" not in set(own["region"])
        parts.append(own)
    both = pd.concat([*parts, whole[halves.half == 2]]).sort_values(list(whole)).reset_index(drop=True)
    assert both.equals(whole.sort_values(list(whole)).reset_index(drop=True))


def test_at_most_so_many_records_are_taken(tmp_path: Path) -> None:
    people(1).to_parquet(tmp_path / "earlier.parquet")
    job = parse_job(JOB.replace("earlier.parquet", f"{tmp_path}/earlier.parquet"))
    assert halved(job, public_source(job, None), 500).table.num_rows == 500


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


def test_the_page_states_the_rule_and_what_was_not_run(rehearsed: tuple[Path, Rehearsal]) -> None:
    folder, made = rehearsed
    text = (folder / "out" / "index.html").read_text(encoding="utf-8")
    assert RULE in text
    assert made.trials[0].candidate.label in text
    assert all(each.label in text for each in made.refused)
    assert "http" not in text.replace("http://www.w3.org", "")


def made_up(label: str, strict: bool, error: float, covered: float) -> Trial:
    """A trial with this error and this coverage in every cell."""
    cells = pd.DataFrame({"table": "t", "statistic": "count", "cell": list("abcdefghij"), "bias": error})
    held = (np.arange(10) < 10 * covered).astype(float)
    return Trial(Candidate(label, {}, "", strict), cells.assign(error_in_direct_se=error, covered=held), 0, 1.0)


def test_the_order_is_that_of_the_rule() -> None:
    """Strict and good before a better one that is not strict; good before bad; then the smallest error."""
    from dpdist.studies.rehearsal import by_rule

    found = [
        made_up("asymptotic, best", False, 0.1, 1.0),
        made_up("strict, uncovered", True, 0.05, 0.8),
        made_up("strict, good", True, 0.4, 0.9),
        made_up("strict, better", True, 0.3, 0.9),
        made_up("strict, far", True, 1.5, 1.0),
    ]
    assert [each.candidate.label for each in sorted(found, key=by_rule)] == [
        "strict, better",
        "strict, good",
        "asymptotic, best",
        "strict, uncovered",
        "strict, far",
    ]


def test_a_mechanism_is_as_good_as_its_worst_statistic() -> None:
    """Means that miss are not hidden by counts that are held; control: counts alone are good enough."""
    held, missed = made_up("one", True, 0.1, 1.0), made_up("one", True, 0.2, 0.7)
    both = Trial(held.candidate, pd.concat([held.cells, missed.cells.assign(statistic="mean")]), 0, 1.0)
    assert (held.good, both.good, both.coverage, both.error) == (True, False, 0.7, 0.2)


def test_a_job_without_a_public_file_names_the_option() -> None:
    text = JOB.replace("reference: {path: earlier.parquet, provenance: the public file of 2022}", "")
    job = parse_job(text.replace("reference_tables", "laplace_strict"))
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


def test_two_variants_are_tried_before_a_mechanism_is_refused() -> None:
    """A clipped weight is refused by a likelihood's mechanism; unclipped it is allowed."""
    runs, _ = candidates(parse_job(JOB), "earlier.parquet")
    weighted = next(each for each in runs if each.label == "weighted (lognormal)")
    assert weighted.terms["columns"]["weight"] == {"bounds": [1.0, 200.0]}
    strict = next(each for each in runs if each.label == "laplace_strict")
    assert strict.terms["columns"]["weight"]["outside"] == "clip"

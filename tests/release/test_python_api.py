"""A release in Python: an object over its public folder, jobs and records from memory, by-products for the custodian."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import small_release
import yaml
from object_server import BUCKET, ObjectServer
from public_files import statement_of
from scipy import stats

import dpdist

ONE = small_release.JOB.replace("{name: tables", "{name: modips, law: normal")
SETS = ONE.replace("runtime:", "synthetic_sets: 4\nruntime:")
WEIGHTED = """
dataset: small
period: "2021"
columns:
  field: {levels: [arts, law]}
  salary: {bounds: [0, 200000]}
survey: {weight: weight}
outcome: salary
model: {family: lognormal, predictors: [field]}
mechanism: {name: weighted}
budget: {epsilon: "20"}
sampler: {draws: 200}
record: {log_lik: always}
tables:
  - {name: salaries, by: [field], statistics: [count, {mean: salary}]}
runtime: {executor: serial}
"""
SANITIZED = """
dataset: graduates
period: "2019"
input: {simulate: {kind: doctorates, population: 20000, sample: 600, seed: 2019}}
columns:
  sex: {levels: [male, female]}
  salary: {bounds: [1000, 1000000], outside: clip}
survey: {weight: weight}
outcome: salary
model: {family: lognormal}
mechanism: {name: sanitized_statistics}
budget: {epsilon: "3", adjacency: substitution}
synthetic_sets: 2
reference: {simulate: {kind: doctorates, population: 20000, sample: 600, seed: 2017}, period: "2017"}
tables:
  - {name: salaries, by: [sex], statistics: [count, {mean: salary}]}
runtime: {executor: serial}
"""


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "survey.parquet"
    small_release.survey().to_parquet(path)
    return path


@pytest.fixture(scope="module")
def workspace(survey: Path) -> Path:
    return survey.parent / "ws"


@pytest.fixture(scope="module")
def release(survey: Path, workspace: Path) -> dpdist.Release:
    """Four synthetic sets, each under noise of its own."""
    return dpdist.run(SETS, workspace, survey)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> dpdist.Release:
    """Two synthetic sets of one noisy fit."""
    return dpdist.run(SANITIZED, tmp_path_factory.mktemp("sanitized") / "ws")


def test_a_release_stands_for_its_public_folder(release: dpdist.Release, workspace: Path) -> None:
    public = workspace / "public"
    assert Path(release) == public
    assert (os.fspath(release), str(release), f"{release}") == (str(public),) * 3
    assert release / "tables" / "counts.parquet" == public / "tables" / "counts.parquet"


def test_tables_are_the_published_ones(release: dpdist.Release, workspace: Path) -> None:
    """A frame is read anew: what one reader changes, the next does not see."""
    assert list(release.tables) == ["counts"]
    table = release.tables["counts"]
    pd.testing.assert_frame_equal(table, pd.read_parquet(workspace / "public" / "tables" / "counts.parquet"))
    table["estimate"] = 0.0
    assert (release.tables["counts"]["estimate"] > 0).any()


def test_a_wide_table_is_the_one_in_print(release: dpdist.Release, workspace: Path) -> None:
    """The same names and figures as in the file for spreadsheets, by its first column."""
    printed = pd.read_csv(workspace / "public" / "tables" / "counts.wide.csv", index_col="field", na_values=[".."])
    wide = release.tables.wide("counts")
    assert list(wide.columns) == list(printed.columns)
    assert list(wide.index) == ["arts", "law", "Total"]
    flags = [name for name in wide if name.endswith(", flag")]
    figures = [name for name in wide if name not in flags]
    np.testing.assert_allclose(wide[figures].to_numpy(float), printed[figures].to_numpy(float))
    for name in flags:
        assert [flag or None for flag in wide[name]] == [flag if isinstance(flag, str) else None for flag in printed[name]]


def test_an_unknown_table_is_refused_with_the_known_ones(release: dpdist.Release) -> None:
    for ask in (release.tables.__getitem__, release.tables.wide):
        with pytest.raises(KeyError, match=r"'count'.*tables of the release: counts"):
            ask("count")
    assert "count" not in release.tables


def test_synthetic_sets_are_numbered_from_one(release: dpdist.Release, workspace: Path) -> None:
    expected = pd.read_parquet(workspace / "public" / "synthetic" / "set-4.parquet")
    pd.testing.assert_frame_equal(release.synthetic(4), expected)
    for number in (0, 5, -1):
        with pytest.raises(IndexError, match=rf"no synthetic set {number}: sets are numbered from 1 to 4"):
            release.synthetic(number)


def test_the_statement_is_the_file(release: dpdist.Release, workspace: Path) -> None:
    assert release.statement == statement_of(workspace)


def women(records: pd.DataFrame) -> tuple[float, float]:
    """The mean salary of women and its variance."""
    cell = records[records["sex"] == "f"]
    return float(cell["salary"].mean()), float(cell["salary"].var() / len(cell))


def test_sets_are_combined_by_the_rule_of_the_methods(release: dpdist.Release) -> None:
    """T = B/m + W and its degrees of freedom, by hand. Control: Rubin's rule for missing data gives another error."""
    q, u = np.array([women(release.synthetic(k)) for k in (1, 2, 3, 4)]).T
    between, within = q.var(ddof=1), u.mean()
    found = release.combine(women)
    df = 3 * (1 + within / (between / 4)) ** 2
    assert found.estimate == pytest.approx(q.mean())
    assert found.standard_error == pytest.approx(np.sqrt(between / 4 + within))
    assert found.df == pytest.approx(df)
    reach = stats.t.ppf(0.95, df) * found.standard_error
    assert (found.lower, found.upper) == pytest.approx((q.mean() - reach, q.mean() + reach))
    assert found.standard_error != pytest.approx(np.sqrt(between * 1.25 + within), rel=1e-3)


def test_a_column_by_name_is_its_weighted_mean(release: dpdist.Release) -> None:
    """With the linearised variance of the tutorial, records as units."""

    def mean(records: pd.DataFrame) -> tuple[float, float]:
        w, y = records["weight"].to_numpy(), records["salary"].to_numpy()
        centre = np.average(y, weights=w)
        residual = w * (y - centre) / w.sum()
        return centre, len(w) / (len(w) - 1) * (residual**2).sum()

    assert release.combine("salary") == pytest.approx(release.combine(mean))


@pytest.mark.parametrize(
    ("statistic", "found"),
    [
        ("income", "no numeric column 'income'"),
        ("sex", "no numeric column 'sex'"),
        (lambda records: records["salary"].mean(), "returned a float"),
        (lambda records: (1.0, 2.0, 3.0), "returned a tuple"),
        (lambda records: (1.0, -1.0), r"returned \(1, -1\)"),
        (lambda records: (np.nan, 1.0), r"returned \(nan, 1\)"),
    ],
    ids=["unknown", "text", "alone", "three", "negative", "nan"],
)
def test_a_statistic_without_estimate_and_variance_is_refused(
    release: dpdist.Release, statistic: str | Callable[[pd.DataFrame], object], found: str
) -> None:
    with pytest.raises(dpdist.AnalysisError, match=found):
        release.combine(statistic)  # type: ignore[arg-type]


def test_sets_of_one_noisy_fit_are_not_combined(sanitized: dpdist.Release) -> None:
    """Their noise does not vary between sets: B/m + W leaves it out. The statement has the rule V + (V + W)/m."""
    assert any("V + (V + W)/m" in said for said in sanitized.statement["standard_errors"])
    with pytest.raises(dpdist.AnalysisError, match="does not vary between them"):
        sanitized.combine("salary")


def test_one_set_does_not_tell_a_standard_error(survey: Path, tmp_path: Path) -> None:
    release = dpdist.run(ONE, tmp_path / "ws", survey)
    with pytest.raises(dpdist.AnalysisError, match="one synthetic set"):
        release.combine("salary")


def test_tables_without_records_say_so(survey: Path, tmp_path: Path) -> None:
    release = dpdist.run(small_release.LAPLACE_JOB, tmp_path / "ws", survey)
    with pytest.raises(IndexError, match="only tables"):
        release.synthetic(1)
    with pytest.raises(dpdist.AnalysisError, match="no synthetic records"):
        release.combine("salary")


class Text(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, page: str):
        super().__init__()
        self.tags, self.text = list[str](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_release_shows_guarantee_and_tables(release: dpdist.Release, survey: Path, tmp_path: Path) -> None:
    """In text and in a notebook, where a name that looks like a tag stays a name."""
    page = Text(release._repr_html_())
    for shown in (repr(release), page.text):
        assert "small 2021" in shown
        assert "strict, ε = 3" in shown
        assert release.statement["headline"] in shown
        assert "counts" in shown
    hostile = tmp_path / "<script>"
    shutil.copytree(release, hostile / "public")
    assert set(Text(dpdist.open_release(hostile)._repr_html_()).tags) == {"h4", "table", "tr", "th", "td"}


def test_a_release_is_opened_by_its_workspace_or_public_folder(release: dpdist.Release, workspace: Path) -> None:
    for place in (workspace, str(workspace), workspace / "public", release):
        opened = dpdist.open_release(place)
        assert Path(opened) == workspace / "public"
        pd.testing.assert_frame_equal(opened.tables["counts"], release.tables["counts"])


def test_a_folder_that_was_changed_is_not_opened(release: dpdist.Release, tmp_path: Path) -> None:
    """A figure altered, a file removed, a folder of something else. Control: the copy as it was is opened."""
    public = Path(shutil.copytree(release, tmp_path / "public"))
    dpdist.open_release(public)
    table, kept = public / "tables" / "counts.csv", (public / "tables" / "counts.csv").read_bytes()
    table.write_bytes(kept.replace(b"1", b"2", 1))
    with pytest.raises(dpdist.WorkspaceError, match=r"counts\.csv: it is not the file"):
        dpdist.open_release(public)
    table.unlink()
    with pytest.raises(dpdist.WorkspaceError, match=r"counts\.csv: no such file"):
        dpdist.open_release(public)
    (tmp_path / "other").mkdir()
    for nothing in (tmp_path / "other", tmp_path / "nowhere"):
        with pytest.raises(dpdist.WorkspaceError, match="no release"):
            dpdist.open_release(nothing)


def test_publishing_again_gives_the_release(release: dpdist.Release, tmp_path: Path, workspace: Path) -> None:
    shutil.copytree(workspace, tmp_path / "ws")
    again = dpdist.publish(tmp_path / "ws")
    assert (again / "manifest.json").read_bytes() == (release / "manifest.json").read_bytes()


def test_a_release_in_an_object_store_is_its_url(
    s3: ObjectServer, survey: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files come here when asked for, are verified, and leave with the object."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DPDIST_SCRATCH", str(tmp_path))
    url = f"s3://{BUCKET}/python/{tmp_path.name}"
    release = dpdist.run(small_release.LAPLACE_JOB, url, survey)
    assert (str(release), os.fspath(release)) == (f"{url}/public",) * 2
    assert os.listdir(tmp_path) == []
    table = release.tables["counts"]
    for place in (url, f"{url}/public", release):
        pd.testing.assert_frame_equal(dpdist.open_release(place).tables["counts"], table)
    assert dpdist.open_evaluation(url)["counts"].shape[0] > 0
    client, name = s3.client("s3"), f"python/{tmp_path.name}/public/tables/counts.csv"
    client.put_object(Bucket=BUCKET, Key=name, Body=b"field,sex\n")
    with pytest.raises(dpdist.WorkspaceError, match=rf"{url}: .*counts\.csv: it is not the file"):
        dpdist.open_release(url)
    with pytest.raises(dpdist.WorkspaceError, match="no release"):
        dpdist.open_release(f"{url}-elsewhere")
    del release, place
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_the_evaluation_is_the_custodians(release: dpdist.Release, workspace: Path, tmp_path: Path) -> None:
    """By table, as the run left it; its text has names and no figure. A public folder has none."""
    found = dpdist.open_evaluation(workspace)
    expected = pd.read_parquet(workspace / "confidential" / "evaluation" / "counts.parquet")
    pd.testing.assert_frame_equal(found["counts"], expected)
    assert repr(found) == "<confidential evaluations: counts>"
    shutil.copytree(release, tmp_path / "public")
    with pytest.raises(dpdist.WorkspaceError, match="no evaluation"):
        dpdist.open_evaluation(tmp_path)


def test_draws_of_a_posterior_are_opened(release: dpdist.Release, workspace: Path, survey: Path, tmp_path: Path) -> None:
    """All draws are numbers; a mechanism of noise has none."""
    dpdist.run(WEIGHTED, tmp_path / "ws", survey)
    posterior, tensor = dpdist.open_posterior(tmp_path / "ws"), dpdist.open_log_lik(tmp_path / "ws")
    assert (posterior.sizes["draw"], tensor.sizes["draw"]) == (200, 200)
    assert all(bool(np.isfinite(posterior[name]).all()) for name in posterior.data_vars)
    values = tensor["log_lik"].load()
    assert (np.isnan(values).all(("chain", "draw")) == (values["record"] < 0)).all()
    for open_ in (dpdist.open_posterior, dpdist.open_log_lik):
        with pytest.raises(dpdist.WorkspaceError, match="it has no"):
            open_(workspace)


def test_a_job_is_taken_in_every_form(survey: Path, tmp_path: Path) -> None:
    """A mapping, a text, a path, a name, a job: the plan has the same one."""
    path = tmp_path / "job.yaml"
    path.write_text(small_release.JOB, encoding="utf-8")
    job = dpdist.parse_job(small_release.JOB)
    forms = (job, yaml.safe_load(small_release.JOB), small_release.JOB, path, str(path))
    assert [dpdist.plan(form, survey).job == job for form in forms] == [True] * 5
    assert dpdist.validate("doctorates").job == dpdist.load_job("doctorates")


def test_a_wrong_job_is_refused_in_every_form(tmp_path: Path) -> None:
    """Of a mapping the key is named, without a line. What is no job is said to be none."""
    wrong = yaml.safe_load(small_release.JOB) | {"datset": "x"}
    with pytest.raises(dpdist.JobError, match=r"datset: unknown key\n.*\n.*did you mean 'dataset'"):
        dpdist.plan(wrong)
    with pytest.raises(dpdist.JobError, match="a list"):
        dpdist.plan([wrong])  # type: ignore[arg-type]
    with pytest.raises(dpdist.JobError, match="no such file"):
        dpdist.run("doctorate", tmp_path / "ws")
    assert not (tmp_path / "ws").exists()


def test_records_in_memory_are_taken_as_a_file_is(survey: Path, tmp_path: Path) -> None:
    """The same census, from pandas and Arrow; the run resumes with the same records alone, in whatever chunks."""
    frame = small_release.survey()
    table = pa.Table.from_pandas(frame, preserve_index=False)
    plans = [dpdist.plan(small_release.LAPLACE_JOB, given) for given in (survey, frame, table)]
    assert len({str(plan.crosstab.count.tolist()) for plan in plans}) == 1
    chunked = pa.concat_tables([table.slice(0, 300), table.slice(300)])
    release = dpdist.run(small_release.LAPLACE_JOB, tmp_path / "ws", frame)
    before = (release / "manifest.json").read_bytes()
    for same in (frame.copy(), table, chunked, frame.set_axis(range(5, 805))):
        assert (dpdist.run(small_release.LAPLACE_JOB, tmp_path / "ws", same) / "manifest.json").read_bytes() == before
    with pytest.raises(dpdist.WorkspaceError, match="input"):
        dpdist.run(small_release.LAPLACE_JOB, tmp_path / "ws", frame.iloc[1:])


def test_records_in_memory_are_checked_as_a_file_is() -> None:
    """Values of several types, a name twice, a level that is not declared: the column is named and no value quoted."""
    frame = small_release.survey()
    mixed = frame.astype({"salary": object})
    mixed.loc[3, "salary"] = "secret-17"
    twice = pd.concat([frame, frame[["sex"]]], axis=1)
    unknown = frame.assign(sex=frame["sex"].where(frame.index != 3, "secret-17"))
    for given, column in ((mixed, "salary: values of several types"), (twice, "sex: two columns"), (unknown, "sex: ")):
        with pytest.raises(dpdist.DataError, match=column) as caught:
            dpdist.validate(small_release.JOB, given)
        assert "secret-17" not in str(caught.value)
        assert "the table in memory" in str(caught.value)


def test_a_plan_prints_in_ten_lines_and_shows_no_record(survey: Path) -> None:
    for plan in (dpdist.plan(SETS, survey), dpdist.plan(SANITIZED), dpdist.plan(WEIGHTED, survey)):
        lines = str(plan).splitlines()
        assert len(lines) <= 10
        assert repr(plan) == str(plan)
    assert lines[0] == "Plan of small 2021"
    assert "  records: 800, after applying the universe filter and the job's rules" in lines
    assert any(line.startswith("  aimed at: ε = 20") for line in lines)


def test_sizes_that_are_secret_are_not_in_a_printed_plan() -> None:
    """Control: a plan that may show them does."""
    said = yaml.safe_load(SANITIZED)
    said |= {"mechanism": {"name": "tables"}, "synthetic_sets": 1}
    said["input"]["simulate"]["sample"] = 617
    del said["model"]
    plans = [dpdist.plan(said | {"budget": {"epsilon": "3", "adjacency": each}}) for each in ("substitution", "add_remove")]
    assert [plan.job.sizes_secret for plan in plans] == [False, True]
    assert ["617" in str(plan) for plan in plans] == [True, False]


def test_only_public_names_are_listed() -> None:
    assert dir(dpdist) == sorted(dpdist.__all__)
    assert all(hasattr(dpdist, name) for name in dpdist.__all__)


def test_functions_say_what_they_take_and_give() -> None:
    """Parameters, what is returned and raised, an example."""
    asked = [dpdist.run, dpdist.validate, dpdist.publish, dpdist.open_release, dpdist.open_evaluation]
    asked += [dpdist.open_log_lik, dpdist.open_posterior, dpdist.Release.synthetic, dpdist.Release.combine]
    parts = ("Parameters\n", "Returns\n", "Raises\n", "Example\n")
    assert [each.__name__ for each in asked if any(part not in str(each.__doc__) for part in parts)] == []


def test_an_input_that_is_no_file_and_no_table_is_named() -> None:
    """Not by an error of Python's own. Control: a path that is not there has another cause."""
    with pytest.raises(dpdist.JobError, match=r"input: a int\n *allowed: a path, a data frame of pandas"):
        dpdist.validate("nhanes_bmi", 5)  # type: ignore[arg-type]
    with pytest.raises(dpdist.DataError, match="no such file"):
        dpdist.validate("nhanes_bmi", "nowhere.parquet")


def test_tables_show_themselves_outside_a_notebook_too(release: dpdist.Release) -> None:
    """As they are printed, the first lines of each."""
    shown = repr(release.tables)
    assert shown.startswith("counts\n")
    assert release.tables.wide("counts").head(10).to_string(na_rep="") in shown
    assert str(release.tables) == shown

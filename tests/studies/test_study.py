"""A study as a whole: results do not depend on workers, kills or order; refusals teach; the page stands alone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from command_line import invoke

from dpdist.core.errors import StudyError, WorkspaceError
from dpdist.core.progress import Event
from dpdist.quality.microdata import distances, quantile_interval
from dpdist.studies.kinds import load_study, parse_study
from dpdist.studies.kinds.simulation import replicate
from dpdist.studies.run import run

STUDY = """\
study: small
title: "A small study"
seed: 7
replicates: 4
cases:
  - {name: beta, generator: {name: beta, parameters: {a: 0.5, b: 3}}, n: 120, family: beta}
epsilons: ["5", "1/3"]
draws: 100
mechanisms:
  - {name: unweighted}
  - {name: weighted, weights: {rule: linear, c: 1, reweight: 0.95}, enforced: false}
  - {name: censor_uw}
  - {name: perturbed_histogram, bins: 5}
measures: [database_bound, records_censored, max_ecdf, avg_ecdf, mean, median, q15, q90, privacy_weight, fits]
beside:
  - title: "Published"
    measure: records_censored
    columns: {paper: "Paper"}
    rows: [{mechanism: censor_uw, epsilon: "5", values: {paper: 3}}]
figures:
  - {kind: violins, measure: database_bound, title: "Bounds <&>"}
  - {kind: ecdf, title: "Distribution functions"}
  - {kind: record_bounds, title: "Record bounds"}
  - {kind: weights_and_bounds, title: "Weights and bounds", mechanisms: [weighted]}
  - {kind: by_size, measure: max_ecdf, title: "By size", log: true}
"""
SHIPPED = ("global_dp_beta", "vector_weights_counts", "modips_normal")


def study(**update):
    return parse_study(STUDY).model_copy(update=update)


def bare(**update):
    """The same results, with nothing drawn."""
    return study(figures=(), **update)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The small study, run once in this process."""
    return run(study(), tmp_path_factory.mktemp("study") / "out")


def table(folder):
    return pd.read_parquet(folder / "replicates.parquet")


def test_the_summary_has_the_columns_that_other_programs_rely_on(done):
    summary = pd.read_csv(done / "summary.csv")
    assert list(summary.columns) == ["mechanism", "epsilon", "measure", "mean", "sd", "replicates"]
    assert set(summary.mechanism) == {"data", "unweighted", "weighted", "censor_uw", "perturbed_histogram"}
    assert {"records_censored", "max_ecdf", "avg_ecdf", "database_bound", "q15_lower"} <= set(summary.measure)
    assert summary.epsilon.unique() == pytest.approx([5.0, 1 / 3])
    assert (summary.replicates == 4).all()


def test_the_summary_is_mean_and_standard_deviation_of_the_replicates(done):
    assert list(table(done).columns) == ["mechanism", "epsilon", "replicate", "measure", "value"]
    summary = pd.read_csv(done / "summary.csv")
    for row in summary.itertuples():
        found = table(done)
        one = (found.mechanism == row.mechanism) & (found.measure == row.measure) & np.isclose(found.epsilon, row.epsilon)
        assert row.mean == pytest.approx(found[one].value.mean(), rel=1e-8)
        assert row.sd == pytest.approx(found[one].value.std(), rel=1e-8, abs=1e-12)


def test_what_no_epsilon_decides_is_the_same_at_every_epsilon(done):
    wide = table(done).pivot_table(index=["mechanism", "measure", "replicate"], columns="epsilon", values="value")
    for name in ("data", "unweighted", "weighted"):
        assert (wide.loc[name][5.0] == wide.loc[name][wide.columns[0]]).all()
    assert not (wide.loc["censor_uw"][5.0] == wide.loc["censor_uw"][wide.columns[0]]).all()


def test_measures_are_those_of_the_records_that_were_simulated_and_synthesized(done):
    """Recomputed from the record-level by-products of the first replicate."""
    said = study()
    kept = {
        (rows.mechanism, rows.epsilon): rows.columns for rows in replicate(said, said.cases[0], 1, records=True).records
    }
    y, found = kept["data", "5"]["outcome"], table(done)
    for mechanism, epsilon, value in [("unweighted", "5", 5.0), ("censor_uw", "5", 5.0), ("perturbed_histogram", "5", 5.0)]:
        synthetic = kept[mechanism, epsilon]["outcome"]
        one = found[(found.mechanism == mechanism) & (found.epsilon == value) & (found.replicate == 1)]
        values = dict(zip(one.measure, one.value, strict=True))
        assert (values["max_ecdf"], values["avg_ecdf"]) == pytest.approx(distances(y, synthetic))
        assert values["mean"] == pytest.approx(synthetic.mean())
        interval = quantile_interval(synthetic, 0.15)
        assert (values["q15"], values["q15_lower"], values["q15_upper"]) == pytest.approx(interval)
    bound = kept["censor_uw", "5"]["weighted_record_bound"]
    one = found[(found.mechanism == "censor_uw") & (found.epsilon == 5.0) & (found.replicate == 1)]
    assert bound.max() == pytest.approx(one[one.measure == "database_bound"].value.item())
    assert bound.max() <= 2.5


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.long
def test_results_are_the_same_on_any_number_of_workers(done, tmp_path, workers):
    runtime = study().runtime.model_copy(update={"executor": "dask", "workers": workers})
    found = run(study(runtime=runtime), tmp_path / "out")
    assert table(found).equals(table(done))
    for name in ("summary.csv", "index.html"):
        assert (found / name).read_bytes() == (done / name).read_bytes()


def test_more_replicates_add_to_those_that_are_there(done, tmp_path):
    folder = tmp_path / "out"
    run(bare(), folder, replicates=2)
    before = {path: path.stat().st_mtime_ns for path in (folder / "parts").iterdir()}
    run(bare(), folder, replicates=4)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert table(folder).equals(table(done))


@pytest.mark.long
def test_a_study_that_was_killed_resumes_and_does_only_what_is_missing(done, tmp_path):
    path, folder = tmp_path / "small.yaml", tmp_path / "out"
    path.write_text(STUDY)
    command = [sys.executable, "-m", "dpdist", "study", str(path), "--out", str(folder)]
    process = subprocess.Popen([*command, "--replicates", "400"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list((folder / "parts").glob("beta-0*.parquet"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {part: part.stat().st_mtime_ns for part in (folder / "parts").glob("beta-*.parquet")}
    assert before
    assert not (folder / "summary.csv").exists()
    run(bare(), folder)
    assert {part: part.stat().st_mtime_ns for part in before} == before
    assert table(folder).equals(table(done))


def test_a_damaged_part_is_made_again(done, tmp_path):
    folder = run(bare(), tmp_path / "out", replicates=2)
    (folder / "parts" / "beta-00002.parquet").write_bytes(b"half a file")
    events = list[Event]()
    run(bare(), folder, listener=events.append)
    assert next(event.note for event in events if event.note).endswith(
        "replicates exist already: the study resumes with them."
    )
    assert table(folder).equals(table(done))


def test_a_folder_belongs_to_one_study(tmp_path):
    folder = run(bare(), tmp_path / "out", replicates=1)
    with pytest.raises(WorkspaceError, match="different settings"):
        run(bare(seed=8), folder)
    run(bare(title="Another title"), folder, replicates=1)
    (folder / "study.json").unlink()
    with pytest.raises(WorkspaceError, match="unknown study"):
        run(bare(), folder)


def test_a_folder_that_was_begun_under_other_versions_is_refused(tmp_path):
    folder = run(bare(), tmp_path / "out", replicates=1)
    said = json.loads((folder / "study.json").read_text())
    said["versions"]["numpy"] = "0.1"
    (folder / "study.json").write_text(json.dumps(said))
    with pytest.raises(WorkspaceError, match="different versions"):
        run(bare(), folder, replicates=1)


def test_an_arm_that_the_data_do_not_allow_is_counted_as_refused(tmp_path):
    arm = study().mechanisms[1].model_copy(update={"enforced": True})
    folder = run(bare(mechanisms=(arm,), beside=()), tmp_path / "out", replicates=1)
    found = table(folder)
    low = found[(found.mechanism == "weighted") & np.isclose(found.epsilon, 1 / 3)]
    assert low.measure.tolist() == ["refused"]
    assert "refused" in (folder / "index.html").read_text()


REFERRING = """\
study: referring
title: "Fixed on another file"
seed: 11
replicates: 2
cases:
  - {name: beta, generator: {name: beta, parameters: {a: 0.5, b: 3}}, n: 1000, family: beta}
epsilons: ["5", "1/4"]
draws: 100
mechanisms:
  - {name: unweighted}
  - {name: censor_uw}
  - {name: censor_w}
  - {name: censor_w, label: censor_w_fixed, reference: true}
  - {name: centred, reference: true}
measures: [max_ecdf, database_bound]
"""


def test_arms_that_are_fixed_on_another_file_are_strict_and_centring_wins(tmp_path):
    """METHODS §4b: centred at ε = 1/4 is closer than Censor_uw at 5, and at 5 no worse than unprotected by a half."""
    folder = run(parse_study(REFERRING), tmp_path / "out")
    found = pd.read_csv(folder / "summary.csv")
    apart = found[found.measure == "max_ecdf"].set_index(["mechanism", "epsilon"])["mean"]
    assert apart["centred", 0.25] < apart["censor_uw", 5.0]
    assert apart["centred", 5.0] < 1.5 * apart["unweighted", 5.0]
    assert apart["censor_w_fixed", 5.0] != apart["censor_w", 5.0]
    bounds = found[found.measure == "database_bound"].set_index(["mechanism", "epsilon"])["mean"]
    assert all(bounds[name, 0.25] <= 0.125 for name in ("centred", "censor_w_fixed"))
    page = (folder / "index.html").read_text()
    assert page.count("strict for exact draws") >= 3


MISTAKES = {
    "no reference": ("name: censor_uw}\n", "name: centred}\n", "add reference: true", "line 12"),
    "reference in vain": ("name: censor_uw}\n", "name: censor_uw, reference: true}\n", "leave it out", "line 12"),
    "misspelt key": ("epsilons:", "epsilonss:", "did you mean 'epsilons'?", "line 7"),
    "misspelt mechanism": ("name: censor_uw}\n", "name: censor_uv}\n", "did you mean 'censor_uw'?", "line 12"),
    "misspelt weights": ("reweight: 0.95", "reweigh: 0.95", "did you mean 'reweight'?", "line 11"),
    "misspelt measure": ("max_ecdf, avg", "max_edcf, avg", "did you mean 'max_ecdf'?", "line 14"),
    "parameter of another law": (
        "{a: 0.5, b: 3}",
        "{a: 0.5, mean: 3}",
        "'mean' is not a parameter of beta (a, b)",
        "line 6",
    ),
    "parameter missing": ("{a: 0.5, b: 3}", "{a: 0.5}", "beta needs b", "line 6"),
    "parameter out of range": ("{a: 0.5, b: 3}", "{a: -0.5, b: 3}", "greater than 0", "line 6"),
    "two arms of one name": ("name: censor_uw}\n", "name: unweighted}\n", "give another", "line 1"),
    "a model of weights": ("family: beta}", "family: lognormal}", "is one of beta", "line 6"),
    "no replicates": ("replicates: 4", "replicates: 0", "a number of at least 1", "line 4"),
    "a budget of nothing": ('"1/3"', '"0"', "greater than 0", "line 7"),
    "unknown arm in a figure": ("mechanisms: [weighted]", "mechanisms: [weightd]", "did you mean 'weighted'?", "line 1"),
    "unknown measure in a figure": ("measure: max_ecdf,", "measure: max_edcf,", "max_ecdf", "line 1"),
    "no clamp for the family": (
        "beta, parameters: {a: 0.5, b: 3}}, n: 120, family: beta",
        "poisson, parameters: {mean: 9}}, n: 120, family: poisson",
        "censor_uw",
        "line 12",
    ),
    "matching what comes later": ("enforced: false}", "match: censor_uw}", "not one listed before it", "line 1"),
    "given twice": ("seed: 7", "seed: 7\nseed: 8", "given twice", "line 4"),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_in_a_study_file_are_told_with_line_and_remedy(mistake):
    right, wrong, says, line = mistake
    assert right in STUDY
    with pytest.raises(StudyError) as caught:
        parse_study(STUDY.replace(right, wrong, 1))
    assert says in str(caught.value)
    assert line in str(caught.value)


def test_the_command_line_runs_a_study_and_refuses_what_is_wrong(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    command = ["study", str(path), "--out", str(tmp_path / "out")]
    found = invoke(*command, "--replicates", "1", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout.splitlines()[-1])["event"] == "done"
    assert (tmp_path / "out" / "index.html").exists()
    path.write_text(STUDY.replace("seed: 7", "seed: seven"))
    wrong = invoke(*command)
    assert wrong.exit_code == 2
    assert "seed" in wrong.stderr
    missing = invoke("study", "global_dp_bta", "--out", tmp_path / "x")
    assert missing.exit_code == 2
    assert "did you mean 'global_dp_beta'?" in missing.stderr


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_studies_are_found_by_name(name):
    assert load_study(name).study == name


class Page(HTMLParser):
    """Elements, identifiers and references of a page; raises where an element is not closed in order."""

    VOID = ("meta", "link", "img", "br", "hr", "input", "wbr")

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.ids, self.references = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href"):
                self.references.append(value)
            self.references += re.findall(r"url\(([^)]*)\)", value or "")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone(done):
    """No script, no file beside it, no address elsewhere; every reference is to an identifier that is there once."""
    text = (done / "index.html").read_text()
    page = Page(text)
    assert "script" not in page.seen
    assert not re.search(r"https?:|@import|<link", text)
    assert len(set(page.ids)) == len(page.ids)
    assert page.references
    assert all(reference.startswith("#") and reference[1:] in page.ids for reference in page.references)
    assert page.seen.count("svg") == 5
    assert text.count('role="img"') == 5


def test_the_page_says_what_a_reader_must_know(done):
    text = (done / "index.html").read_text()
    for said in (
        "simulated",
        "Beta(0.5, 3)",
        "120 records",
        "R = 4",
        "seed 7",
        "S = 100",
        "numpy",
        "NumPy",
        "strict",
        "Paper",
    ):
        assert said in text
    assert "Bounds &lt;&amp;&gt;" in text
    assert str(done) not in text

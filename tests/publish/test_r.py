"""R reads what a release leaves, the Stata files, the CSV and the noisy measurements, and gets the published figures.

These tests need R with haven: `apt-get install r-base-core r-cran-haven`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_release import JOB, survey

import dpdist
from dpdist.job.loading import parse_job

NEEDED = "R with haven is needed: apt-get install r-base-core r-cran-haven"
SCRIPT = """
library(haven)
figures <- function(d) {
  for (f in sort(unique(d$field))) { own <- d[d$field == f, ]
    cat(f, sum(own$weight), sum(own$weight * own$salary) / sum(own$weight), "\\n") }
  cat("Total", sum(d$weight), sum(d$weight * d$salary) / sum(d$weight), "\\n")
}
options(digits = 17)
records <- read_dta("synthetic/set-1.dta")
records$field <- as.character(as_factor(records$field))
figures(records)
figures(read.csv("synthetic/set-1.csv"))
measured <- read_dta("../../composed/public/measurements.dta")
a <- subset(measured, statistic == "a" & cell_sex == "Total")
for (f in c("arts", "law", "Total")) { own <- a[a$cell_field == f, ]
  cat(f, own$value * own$weight_cap, 0, "\\n") }
"""
PRESENTATION = """
presentation:
  formats: [csv, dta]
  columns: {field: {label: Field, levels: {arts: Arts et 法律, law: Law}}, salary: {label: pay, unit: US dollars}}
"""


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    survey().to_parquet(folder / "survey.parquet")
    composed = JOB.replace("strata: [field]\n", "").replace("{name: tables", "{name: laplace_composed, sensitivity: public")
    for name, job in {"composed": composed, "ws": JOB}.items():
        dpdist.run(parse_job(job + PRESENTATION), folder / name, input=folder / "survey.parquet")
    return folder / "ws" / "public"


@pytest.mark.system
def test_records_and_measurements_give_the_published_totals_in_r(public: Path) -> None:
    program = shutil.which("Rscript")
    assert program is not None, NEEDED
    done = subprocess.run(
        [program, "--vanilla", "-e", SCRIPT], cwd=public, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{NEEDED}\n{done.stderr}"
    lines = [line.rsplit(maxsplit=2) for line in done.stdout.splitlines()]
    composed = public.parents[1] / "composed" / "public"
    found = [(name, float(count), float(mean)) for name, count, mean in lines]
    assert [name for name, *_ in found] == ["Arts et 法律", "Law", "Total", *["arts", "law", "Total"] * 2]

    def published(estimator: str, statistic: str, folder: Path = public) -> list[float]:
        table = pd.read_parquet(folder / "tables" / "counts.parquet").query("sex == 'Total'")
        own = table.query(f"estimator == '{estimator}' and statistic == '{statistic}'").set_index("field")["estimate"]
        return [float(own[name]) for name in ("arts", "law", "Total")]

    for rows in (found[:3], found[3:6]):
        assert np.allclose([count for _, count, _ in rows], published("records", "count"), rtol=1e-9)
        assert np.allclose([mean for *_, mean in rows], published("records", "mean"), rtol=1e-9)
    assert np.allclose([count for _, count, _ in found[6:]], published("parameters", "count", composed), rtol=1e-9)
    direct = [float(own["weight"].sum()) for _, own in survey().groupby("field")]
    assert not np.allclose(direct, published("records", "count")[:2], rtol=1e-5), "without noise this would show nothing"


@pytest.mark.system
def test_the_pages_example_for_r_gives_the_figure_that_the_page_names(public: Path) -> None:
    """That for Python is run in test_page. Those for Stata and SAS are not run: these programs are not free."""
    html = (public / "index.html").read_text(encoding="utf-8")
    code = re.search(r"<h3>R</h3>\s*<pre[^>]*><code>(.*?)</code>", html, re.DOTALL)
    assert code is not None
    program = shutil.which("Rscript")
    assert program is not None, NEEDED
    script = "options(digits = 17)\n" + unescape(code[1])
    done = subprocess.run(
        [program, "--vanilla", "-e", script], cwd=public, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    table = pd.read_parquet(public / "tables" / "counts.parquet").query("estimator == 'records' and statistic == 'mean'")
    of = table.query("sex == 'Total'").set_index("field")["estimate"]
    first, names, figures = done.stdout.splitlines()
    assert float(first.split()[1]) == pytest.approx(of["Total"], rel=1e-9)
    assert [float(each) for each in figures.split()] == pytest.approx([of[name] for name in names.split()], rel=1e-9)


def test_measurements_for_stata_are_those_of_the_parquet_file(public: Path) -> None:
    whole, stata = pd.read_parquet(public / "measurements.parquet"), pd.read_stata(public / "measurements.dta")
    assert len(stata.columns) == len(whole.columns)
    for name, column in zip(whole.columns, stata.columns, strict=True):
        if pd.api.types.is_numeric_dtype(whole[name]):
            assert np.array_equal(whole[name].to_numpy(float), stata[column].to_numpy(float), equal_nan=True)
        else:
            assert list(whole[name].fillna("")) == list(stata[column])
    before = (public / "measurements.dta").read_bytes()
    dpdist.publish(public.parent)
    assert (public / "measurements.dta").read_bytes() == before

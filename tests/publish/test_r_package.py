"""The R package opens what dpdist releases, and gives Python's estimates and standard errors; R CMD check is clean.

These tests need R with the packages that `.ci/run` installs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pages import ROOT
from small_release import JOB, survey

import dpdist
from dpdist.core.files import write_text
from dpdist.core.minisign import SecretKey
from dpdist.estimation.estimators import combine_sets
from dpdist.opening.verifying import sign

pytestmark = pytest.mark.system
PACKAGE = ROOT / "r"
NEEDED = "R with jsonlite, survey, mitools, testthat, tibble, knitr, rmarkdown and openssl is needed: see .ci/run"
SETS = (
    JOB.replace("mechanism: {name: tables}", "model: {family: lognormal, predictors: [sex]}\nmechanism: {name: weighted}")
    .replace('epsilon: "3"', 'epsilon: "12"')
    .replace("  weight: {bounds: [1, 60], outside: clip}\n", "")
    + "synthetic_sets: 3\npresentation: {formats: [csv]}\n"
)
DPDIST = str(Path(sys.executable).with_name("dpdist"))
"""The command of this environment."""
FORMULA = "salary ~ field + sex"
ANALYSIS = f"""
library(dpdist)
release <- dp_open("public", "agency.key.pub")
fits <- with(dp_designs(release), survey::svyglm({FORMULA}))
combined <- as.data.frame(dp_combine(release, fits))
counts <- release$tables$counts
facts <- list(
  figures = combined, names = rownames(combined), estimates = counts$estimate, guarantee = release$statement$guarantee,
  verified = dp_verify("public")$whole
)
cat(jsonlite::toJSON(facts, digits = NA, auto_unbox = TRUE))
"""


def call(*command: str, folder: Path, **environment: str) -> str:
    """Standard output of a program of R, which must succeed."""
    assert shutil.which(command[0]) is not None, NEEDED
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{NEEDED}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of R with the package, which was built and checked: no error, no warning, no note."""
    folder = tmp_path_factory.mktemp("r")
    shutil.copytree(PACKAGE, folder / "dpdist-source")
    call("R", "CMD", "build", "dpdist-source", folder=folder)
    (built,) = folder.glob("dpdist_*.tar.gz")
    printed = call("R", "CMD", "check", "--no-manual", built.name, folder=folder, _R_CHECK_CRAN_INCOMING_="false")
    assert "Status: OK" in printed, "\n".join(line for line in printed.splitlines() if not line.endswith((" OK", " NONE")))
    (folder / "library").mkdir()
    call("R", "CMD", "INSTALL", "--no-docs", "-l", "library", built.name, folder=folder)
    return folder / "library"


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed release of three sets."""
    folder = tmp_path_factory.mktemp("sets")
    made = Path(dpdist.run(dpdist.parse_job(SETS), folder / "ws", input=survey(300)))
    key = SecretKey.from_os()
    sign(made, key)
    write_text(made.parent / "agency.key.pub", key.public.text)
    return made


def regression(records: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Weighted least squares of the formula with linearised variances, records as units: coefficients and variances."""
    x = np.column_stack([np.ones(len(records)), records["field"] == "law", records["sex"] == "m"]).astype(float)
    w, y, n = records["weight"].to_numpy(), records["salary"].to_numpy(), len(records)
    bread = np.linalg.inv(x.T @ (w[:, None] * x))
    beta = bread @ (x.T @ (w * y))
    influence = (x * (w * (y - x @ beta))[:, None]) @ bread
    centred = influence - influence.mean(axis=0)
    return beta, n / (n - 1) * (centred**2).sum(axis=0)


def test_a_regression_in_r_has_pythons_estimates_and_errors(library: Path, public: Path) -> None:
    """To 1e-8, and degrees of freedom too. Control: Rubin's rule for missing data gives other errors."""
    script = f"options(dpdist.command = {json.dumps(DPDIST)})\n{ANALYSIS}"
    printed = json.loads(call("Rscript", "-e", script, folder=public.parent, R_LIBS=str(library)))
    release = dpdist.open_release(public)
    fits = [regression(release.synthetic(number)) for number in (1, 2, 3)]
    betas, variances = (np.array(part) for part in zip(*fits, strict=True))
    combined = combine_sets(betas, variances, np.inf)
    names = dict(zip(printed["names"], printed["figures"], strict=True))
    assert list(names) == ["(Intercept)", "fieldlaw", "sexm"]
    figures = np.array([[one["estimate"], one["standard_error"], one["df"]] for one in names.values()])
    expected = np.array([combined.value, combined.standard_error, combined.df]).T
    assert np.allclose(figures, expected, rtol=1e-8, atol=0.0)
    rubin = np.sqrt(variances.mean(axis=0) + (1 + 1 / 3) * betas.var(axis=0, ddof=1))
    assert not np.allclose(figures[:, 1], rubin, rtol=1e-3)
    assert np.allclose(
        np.array(printed["estimates"], dtype=float), release.tables["counts"]["estimate"], rtol=1e-12, equal_nan=True
    )
    assert (printed["guarantee"], printed["verified"]) == (release.statement["guarantee"], True)


@pytest.mark.parametrize("folder", sorted((ROOT / "tests" / "fixtures").glob("*/*/manifest.json")), ids=str)
def test_releases_of_earlier_versions_open_in_r(folder: Path, library: Path) -> None:
    script = f"library(dpdist); print(dp_open({json.dumps(str(folder.parent))}))"
    printed = call("Rscript", "-e", script, folder=library, R_LIBS=str(library))
    assert re.search(r"guarantee: (strict|asymptotic), epsilon = ", printed)


def test_what_is_wrong_is_said_in_dpdists_own_words(library: Path, tmp_path: Path) -> None:
    """A run that cannot be planned ends in R with the command's message; no budget is spent."""
    write_text(tmp_path / "job.yaml", JOB + "format: 9\n")
    script = f"""options(dpdist.command = {json.dumps(DPDIST)}); library(dpdist)
    tryCatch(dp_run("job.yaml", "ws"), dpdist_error = function(e) cat(conditionMessage(e)))"""
    printed = call("Rscript", "-e", script, folder=tmp_path, R_LIBS=str(library))
    assert "exit code 2" in printed
    assert "format 9, which a dpdist later" in printed
    assert not (tmp_path / "ws").exists()

"""Medians, quantiles and ratios of a survey, whose direct errors are those of R's `survey`, under every kind of design.

Quantiles have one method, that of `svyquantile` with its defaults in survey 4.1: the 95 % interval of the share at or
below the quantile, read off as values. Many answers are heaped.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

import dpdist
from dpdist.core.progress import silent
from dpdist.core.records import cross
from dpdist.estimation import direct
from dpdist.estimation.direct import Direct
from dpdist.opening.results import open_evaluation
from dpdist.planning.making import make_plan
from dpdist.survey.census import design_of, records_as_they_came, replicates_as_they_came

SCRIPT = Path(__file__).parent / "quantiles.R"
GOLDEN = Path(__file__).parent / "quantiles.txt"
NEEDED = "needs Rscript with the package survey (Debian: apt install r-base-core r-cran-survey)"
JOB = """
dataset: further
period: "2024"
input: {{path: {path}}}
columns:
  stratum: {{levels: [A, B, C]}}
  status: {{levels: [emp, un, out]}}
  sex: {{levels: [f, m]}}
  region: {{levels: [n, s]}}
  income: {{bounds: [0, 30000], outside: clip}}
  hours: {{bounds: [0, 100], outside: clip}}
  heaped: {{bounds: [0, 30000], outside: clip}}
  weight: {{bounds: [1, 100], outside: clip}}
survey: {{weight: weight, design_strata: [stratum]{design}}}
outcome: [income, hours, heaped]
mechanism: {{name: tables}}
budget: {{epsilon: "5000", adjacency: substitution}}
public_frame: {{accepted: test}}
reference: {{path: {before}, provenance: public}}
tables:
  - {{name: t, by: [region, sex]{universe}, statistics: [{statistics}]}}
runtime: {{executor: serial}}
"""
DESIGNS = {
    "psu": ", psu: psu",
    "strata": "",
    "fpc": ", psu: psu, fpc: psus",
    "stages": ", psu: psu, fpc: [psus, size]",
    "bootstrap": ", replicate_weights: {kind: bootstrap, prefix: rw, number: 40}",
    "fay": ", replicate_weights: {kind: fay, fay: 0.5, prefix: rw, number: 40}",
}
STATISTICS = {
    "quantile 0.1": "{quantile: income, at: 0.1}",
    "quantile 0.5": "{median: income}",
    "quantile 0.9": "{quantile: income, at: 0.9}",
    "quantile 0.5 (heaped)": "{median: heaped}",
    "ratio": "{ratio: [income, hours]}",
}
Estimated = dict[tuple[str, str], tuple[float, float]]
"""Value and standard error by statistic and cell."""


def survey() -> pd.DataFrame:
    rng = np.random.default_rng(30)
    n = 900
    rows = pd.DataFrame({"stratum": rng.choice(["A", "B", "C"], n), "psu": rng.integers(1, 7, n)})
    rows["status"] = rng.choice(["emp", "un", "out"], n, p=[0.6, 0.15, 0.25])
    rows["sex"], rows["region"] = rng.choice(["f", "m"], n), rng.choice(["n", "s"], n)
    rows["income"] = (rng.gamma(2, 900, n) + 40 * rows["psu"]).round(-2)
    rows["hours"], _ = rng.integers(0, 60, n), rng.choice(["yes", "no"], n)
    rows["weight"] = rng.integers(5, 90, n)
    rows["heaped"] = rows["income"].round(-3)
    rows["psus"] = rows["stratum"].map({"A": 9, "B": 12, "C": 20})
    rows["size"] = 3 * rows.groupby(["stratum", "psu"])["psu"].transform("size")
    again = np.random.default_rng(31).choice([0.5, 1.5], (n, 40)) * rows["weight"].to_numpy()[:, None]
    return rows.assign(row=np.arange(n), **{f"rw{r + 1}": again[:, r] for r in range(40)})


def job_of(folder: Path, design: str, statistics: str, universe: str = "") -> dpdist.Job:
    rows, before = pd.read_csv(folder / "data.csv"), folder / "before.csv"
    rows.assign(income=0.9 * rows["income"] + 1.0).to_csv(before, index=False)
    return dpdist.parse_job(
        JOB.format(
            path=folder / "data.csv", before=before, design=DESIGNS[design], statistics=statistics, universe=universe
        )
    )


def found(design: str, folder: Path) -> Estimated:
    """Direct estimates and standard errors by statistic and cell."""
    survey().to_csv(folder / "data.csv", index=False)
    job = job_of(folder, design, ", ".join(STATISTICS.values()))
    plan = make_plan(job, None, silent)
    passes = [records_as_they_came(job, plan.source, plan.census, j) for j in range(len(job.outcomes))]
    replicates = replicates_as_they_came(job, plan.source)
    direct = Direct.of(job, plan.crosstab, design_of(job, plan.census), passes, replicates)
    (table,) = job.tables
    cells = cross(plan.crosstab, table.by, table.margins)
    figures = {}
    for name, statistic in zip(STATISTICS, table.statistics, strict=True):
        value, variance = direct.estimate(cells, statistic)
        for label, *figure in zip(cells.labels, value, np.sqrt(variance), strict=True):
            figures[name, " ".join(label)] = tuple(figure)
    return figures


def figures_of_r(lines: list[str]) -> Estimated:
    """From the script's lines: statistic, cell, value, standard error and df."""
    figures = {}
    for line in lines:
        *names, value, error, _ = line.split()
        figures[" ".join(names[:-2]), " ".join(names[-2:])] = (float(value), float(error))
    return figures


def assert_alike(mine: Estimated, of_r: Estimated) -> None:
    assert len(of_r) == 5 * len(STATISTICS)
    for cell, figure in of_r.items():
        np.testing.assert_allclose(mine[cell], figure, rtol=1e-9, err_msg=str(cell))


@pytest.mark.parametrize("design", DESIGNS)
def test_direct_errors_of_quantiles_and_ratios_are_those_of_r(design: str, tmp_path: Path) -> None:
    """From figures that R printed. Control: another design's are not these."""
    golden = [line.split(maxsplit=1) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    of_r = {each: figures_of_r([line for name, line in golden if name == each]) for each in DESIGNS}
    mine = found(design, tmp_path)
    assert_alike(mine, of_r[design])
    other = "strata" if design == "psu" else "psu"
    with pytest.raises(AssertionError):
        assert_alike(mine, of_r[other])
    heaped = [error for (statistic, _), (_, error) in mine.items() if "heaped" in statistic]
    assert max(heaped) > 0.0


@pytest.mark.system
@pytest.mark.parametrize("design", DESIGNS)
def test_r_prints_these_figures(design: str, tmp_path: Path) -> None:
    program = shutil.which("Rscript")
    assert program is not None, NEEDED
    mine = found(design, tmp_path)
    command = [program, "--vanilla", str(SCRIPT), design, str(tmp_path / "data.csv")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{NEEDED}\n{done.stderr}"
    assert_alike(mine, figures_of_r(done.stdout.splitlines()))


# svyby(~income, ~region + sex, subset(design, status != "out"), svyquantile, quantiles = .5), R survey 4.1-1
MEDIANS = {
    ("n", "f"): (1700, 140.74929),
    ("s", "f"): (1700, 187.66571),
    ("n", "m"): (1600, 140.74929),
    ("s", "m"): (1600, 140.74929),
}


def test_the_evaluation_of_a_run_has_the_errors_of_r_and_so_has_the_estimator(tmp_path: Path) -> None:
    """Two answers were in one product: 182.4 in the evaluation, and 140.7 from `dpdist.estimation.direct`."""
    rows = survey()
    rows.to_csv(tmp_path / "data.csv", index=False)
    job = job_of(tmp_path, "psu", "count, {median: income}", ", universe: {status: [emp, un]}")
    dpdist.run(job, tmp_path / "ws", counted=False)
    evaluated = open_evaluation(tmp_path / "ws")["t"].query("statistic == 'median'").set_index(["region", "sex"])
    sample = direct.DesignSample.of(
        rows["weight"].to_numpy(float), rows["stratum"].astype("category").cat.codes.to_numpy(), rows["psu"].to_numpy()
    )
    inside = [((rows["region"] == r) & (rows["sex"] == s) & (rows["status"] != "out")).to_numpy() for r, s in MEDIANS]
    own = direct.quantile(sample, csr_array(np.array(inside, dtype=float)), rows["income"].to_numpy(float), 0.5)
    for k, (cell, (value, error)) in enumerate(MEDIANS.items()):
        row = evaluated.loc[[cell]].iloc[0]
        assert (row["direct"], own.value[k]) == (value, value)
        assert row["direct_se"] == pytest.approx(error, rel=1e-7)
        assert own.standard_error[k] == pytest.approx(error, rel=1e-7)


def test_a_difference_of_medians_has_the_covariance_of_its_cells(tmp_path: Path) -> None:
    """Both sexes' medians under common PSUs: the linearised form with the slopes of either interval."""
    rows = survey()
    rows.to_csv(tmp_path / "data.csv", index=False)
    statistics = "{median: income}, {difference: {median: income}, from: {sex: m}}"
    dpdist.run(job_of(tmp_path, "psu", statistics), tmp_path / "ws", counted=False)
    evaluated = open_evaluation(tmp_path / "ws")["t"].set_index(["statistic", "region", "sex"])
    error = evaluated["direct_se"]
    for region in ("n", "s", "Total"):
        apart = np.hypot(error["median", region, "f"], error["median", region, "m"])
        difference = error["difference of median from sex m", region, "f"]
        assert 0.5 * apart < difference < 1.5 * apart
        assert difference != pytest.approx(apart, rel=1e-3)
        assert np.isnan(error["difference of median from sex m", region, "m"])

"""Strict tables of five public files, with an earlier file and without: errors in direct standard errors, drift named.

Figures are printed (`-s`), and noise has a name: they are the same every time. What is asked for and does not hold yet is
no limit here: docs/explanation/accuracy.md says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from public_files import statement_of

import dpdist
from dpdist.core.records import TOTAL

pytestmark = [pytest.mark.slow, pytest.mark.real_data]
Named = Callable[[str], AbstractContextManager[None]]


class Survey(NamedTuple):
    """A file, its table's columns, its outcome with public bounds, and the weight's public bounds."""

    file: str
    by: tuple[str, str]
    outcome: str
    top: int
    weights: tuple[float, float]


SURVEYS = {
    "nscg": Survey("nscg2013", ("degree_field", "sex"), "salary", 150_000, (0.1, 20_000)),
    "tax": Survey("cps_taxunits", ("state", "filing_status"), "wages", 2_000_000, (1, 10_000)),
    "ses": Survey("ses_austria", ("industry", "sex"), "earnings_hour", 300, (1, 50)),
    "recs": Survey("recs2015", ("division", "housing_type"), "total_dollars", 12_000, (1, 200_000)),
}
CPS = Survey("cps_org_men", ("education", "union"), "wage", 100, (0.01, 20))
SPLITS = 2
JOB = """
dataset: unseen
period: "2"
columns:
{levels}  {outcome}: {{bounds: [0, {top}], missing: error, outside: clip}}
  weight: {{bounds: [{low}, {high}], outside: clip}}
survey: {{weight: weight}}
outcome: {outcome}
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "1", adjacency: substitution}}
{reference}
public_frame: {{accepted: the files are public}}
tables: [{{name: one, by: [{by}], statistics: [count, {{mean: {outcome}}}]}}]
runtime: {{executor: serial}}
"""


class Found(NamedTuple):
    """Of a release: every published cell against the direct estimate, and base cells that the drift test names."""

    cells: pd.DataFrame
    drifted: dict[str, list[str]]
    named: dict[str, set[str]]
    """By variable, base cells that the statement names as shrunk, collapsed, or with errors mostly not the sample's own."""

    def unnamed(self, by: tuple[str, str], far: float = 4.0) -> list[str]:
        """Figures of base cells more than `far` direct standard errors off that the statement does not name."""
        base = self.cells[(self.cells[list(by)] != TOTAL).all(axis=1) & (self.cells["direct_se"] > 0)]
        off = base[base["synthetic_error_in_se"].abs() > far]
        what = off["statistic"].map({"count": "weight", "mean": "outcome"})
        told = zip(what, off[by[0]] + " / " + off[by[1]], strict=True)
        return [f"{one} of {cell}" for one, cell in told if cell not in self.named[one]]


def read(survey: Survey, data: Path) -> pd.DataFrame:
    rows = pd.read_parquet(data / f"{survey.file}.parquet").dropna(subset=[survey.outcome, *survey.by])
    if survey.file == "nscg2013":
        rows = rows[rows["employment_status"] == "Employed"]
    return rows.astype(dict.fromkeys(survey.by, str)).reset_index(drop=True)


def job(survey: Survey, mechanism: str, reference: str, *rows: pd.DataFrame) -> dpdist.Job:
    """A job with the levels of these rows."""
    levels = "".join(f"  {name}: {{levels: {json.dumps(sorted(set(pd.concat(rows)[name])))}}}\n" for name in survey.by)
    low, high = survey.weights
    told = survey._asdict() | {"levels": levels, "low": low, "high": high, "by": ", ".join(survey.by)}
    return dpdist.parse_job(JOB.format(**told, mechanism=mechanism, reference=reference))


def release(survey: Survey, folder: Path, before: pd.DataFrame | None, now: pd.DataFrame) -> Found:
    """Without `before` histograms of the current file take a reference's place."""
    folder.mkdir()
    both = [now] if before is None else [before, now]
    reference = 'reference: {histogram: {epsilon: "1/3"}}'
    if before is not None:
        before.to_parquet(folder / "before.parquet")
        reference = f"reference: {{path: {folder}/before.parquet, provenance: the file's other part}}"
    now.to_parquet(folder / "now.parquet")
    asked = job(survey, "tables", reference, *both)
    public = dpdist.run(asked, folder / "ws", input=folder / "now.parquet", counted=False)
    rows = pd.read_parquet(public / "tables" / "one.parquet").query("estimator == 'parameters'")
    rows = rows[[*survey.by, "statistic", "lower", "upper", "standard_error"]]
    direct = pd.read_parquet(folder / "ws" / "confidential" / "evaluation" / "one.parquet")
    said = statement_of(public)
    together = {name for names in said.get("collapsed", {}).get("units", []) for name in names}
    lists = [said.get(entry, {}) for entry in ("shrunk", "beyond_sampling", "not_identified")]
    named = {
        what: together.union(*(each.get(column, ()) for each in lists))
        for what, column in (("weight", "weight"), ("outcome", survey.outcome))
    }
    return Found(direct.merge(rows, on=[*survey.by, "statistic"]), said.get("drift", {}), named)


def told(name: str, found: list[Found]) -> pd.DataFrame:
    """Median and largest error by statistic, means and maxima over releases, printed.

    `ten` is the largest over cells of ten records or more, which the verdict judges.
    """
    errors = pd.concat([each.cells.assign(split=k) for k, each in enumerate(found)])
    errors = errors[errors["direct_se"] > 0]
    by_split = errors.groupby(["statistic", "split"])["synthetic_error_in_se"].agg(["median", "max"])
    figures = by_split.groupby("statistic").agg({"median": "mean", "max": "max"})
    figures["ten"] = errors[errors["records"] >= 10].groupby("statistic")["synthetic_error_in_se"].max()
    all_cells = errors[(errors.iloc[:, :2] == TOTAL).all(axis=1)].assign(
        apart=lambda own: (own["synthetic"] - own["direct"]).abs() / own["standard_error"]
    )
    figures["all"] = all_cells.groupby("statistic")["apart"].mean()
    print(f"\n{name}: {figures.round(2).to_dict('index')}", flush=True)
    return figures


@pytest.mark.parametrize("name", SURVEYS)
def test_with_the_other_half_as_reference_no_cell_is_far_off(
    name: str, data: Path, tmp_path: Path, noise_of: Named
) -> None:
    rows = read(SURVEYS[name], data)
    found = []
    for split in range(SPLITS):
        half = np.random.default_rng(1000 + split).random(len(rows)) < 0.5
        with noise_of(f"{name} {split}"):
            found.append(release(SURVEYS[name], tmp_path / str(split), rows[half], rows[~half]))
    figures = told(f"{name}, with a reference", found)
    unnamed = [cell for each in found for cell in each.unnamed(SURVEYS[name].by)]
    print(f"{name}: over 4 and not named: {unnamed or 'none'}", flush=True)
    assert (figures["median"] < 0.8).all()
    assert len(unnamed) <= 1, unnamed
    assert (figures["ten"] < 8.0).all(), figures


@pytest.mark.parametrize("name", SURVEYS)
def test_without_a_reference_median_cells_are_near(name: str, data: Path, tmp_path: Path, noise_of: Named) -> None:
    rows = read(SURVEYS[name], data)
    found = []
    for split in range(SPLITS):
        half = rows[np.random.default_rng(1000 + split).random(len(rows)) < 0.5]
        with noise_of(f"{name} {split}"):
            found.append(release(SURVEYS[name], tmp_path / str(split), None, half))
    figures = told(f"{name}, without", found)
    assert (figures["median"] < 2.5).all(), "homes have 2,800 records in 41 cells and margins, and 2.2 of means"


def clipped(survey: Survey, folder: Path, now: pd.DataFrame, quantile: float) -> pd.DataFrame:
    """Strict Laplace tables with this quantile of weights and outcomes as bounds, beside direct estimates without them."""
    folder.mkdir()
    now.to_parquet(folder / "now.parquet")
    found = {}
    for part in (quantile, 1.0):
        top, high = (float(now[column].quantile(part)) for column in (survey.outcome, "weight"))
        asked = job(survey._replace(top=top, weights=(survey.weights[0], high)), "tables", "", now)
        dpdist.run(asked, folder / str(part), input=folder / "now.parquet", counted=False)
        found[part] = pd.read_parquet(folder / str(part) / "confidential" / "evaluation" / "one.parquet")
    own, direct = found[quantile], found[1.0].set_index([*survey.by, "statistic"])
    direct = direct.loc[pd.MultiIndex.from_frame(own[[*survey.by, "statistic"]])].reset_index()
    error = (own["synthetic"] - direct["direct"]).abs()
    held = (own["synthetic_lower"] <= direct["direct"]) & (direct["direct"] <= own["synthetic_upper"])
    whole = own[["direct_se", "records"]].join(own[[*survey.by, "statistic"]])
    return whole.assign(direct_se=direct["direct_se"], error=error / direct["direct_se"], held=held)


@pytest.mark.parametrize("quantile", [0.9, 0.95, 0.99, 0.999])
def test_clipping_at_quantiles_that_cost_nothing_does_not_hold_what_it_says(
    quantile: float, data: Path, tmp_path: Path, noise_of: Named
) -> None:
    """What a first stage that finds quantiles could reach at best: they are the file's own here, and cost no ε.

    Its bias is in no interval: figures of all records are off by over two direct errors in three files or all.
    """
    off = {}
    for name, survey in SURVEYS.items():
        rows = read(survey, data)
        with noise_of(f"{name} {quantile}"):
            found = pd.concat(
                clipped(
                    survey, tmp_path / f"{name}{k}", rows[np.random.default_rng(1000 + k).random(len(rows)) < 0.5], quantile
                )
                for k in range(SPLITS)
            )
        found = found[found["direct_se"] > 0]
        grand = found[(found[list(survey.by)] == TOTAL).all(axis=1)].groupby("statistic")["error"].mean()
        figures = found.groupby("statistic").agg({"error": ["median", "max"], "held": "mean"}).round(2)
        print(f"\n{name}, clipped at {quantile}: {figures.to_dict('index')}, all {grand.round(1).to_dict()}", flush=True)
        off[name] = grand.max()
    if quantile <= 0.99:
        assert sorted(off.values())[1] > 2.0, off


def test_after_twenty_years_intervals_hold_or_the_drift_test_names_the_cell(
    data: Path, tmp_path: Path, noise_of: Named
) -> None:
    """Men's wages of 2003–05 with those of 1983–85 as reference. Control: between halves of one period it names few."""
    rows = read(CPS, data)
    early = rows["period"] == "1983-1985"
    found = []
    for split in range(SPLITS):
        with noise_of(f"cps {split}"):
            found.append(release(CPS, tmp_path / str(split), rows[early], rows[~early]))
    told("cps, 1983-85 to 2003-05", found)
    held, named = [], []
    for each in found:
        cells = each.cells[(each.cells[list(CPS.by)] != TOTAL).all(axis=1)]
        inside = (cells["lower"] <= cells["direct"]) & (cells["direct"] <= cells["upper"])
        held += inside.tolist()
        for _, row in cells[~inside].iterrows():
            what = "weight" if row["statistic"] == "count" else CPS.outcome
            named.append(" / ".join(row[name] for name in CPS.by) in each.drifted.get(what, []))
    print(
        f"\ncps: hold {np.mean(held):.2f}, of {len(named)} others named {np.mean(named) if named else 1.0:.2f}", flush=True
    )
    assert np.mean(held) >= 0.8 or np.mean(named) >= 0.9
    half = np.random.default_rng(7).random(len(rows)) < 0.5
    with noise_of("cps control"):
        control = release(CPS, tmp_path / "control", rows[early & half], rows[early & ~half])
    assert sum(len(cells) for what, cells in control.drifted.items() if what != "in_words") <= 1

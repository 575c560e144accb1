"""Rehearsals of four public files and of a simulated establishment survey: what is recommended, and its error elsewhere.

One command makes the table of docs/explanation/accuracy.md again (`-s` prints it, a line a file and statistic):
`pytest -m slow -s tests/studies/test_rehearsals_of_files.py`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.studies.rehearsal import rehearse

pytestmark = [pytest.mark.slow, pytest.mark.real_data]

MOST = 30_000
"""Records of a file that are taken, at random: each third has a third of them."""
JOB = """
dataset: rehearsed
period: "2"
input: {{path: nobody-has-it.parquet}}
columns:
{levels}  {outcome}: {{bounds: {bounds}, outside: clip}}
  {weight}: {{bounds: {weights}, outside: clip}}
survey: {{weight: {weight}{design}}}
outcome: {outcome}
mechanism: {{name: tables}}
budget: {{epsilon: "1", adjacency: substitution}}
reference: {{path: {folder}/public.parquet, provenance: a public file}}
tables: [{{name: one, by: [{by[0]}, {by[1]}], statistics: [count, {{mean: {outcome}}}]}}]
"""


class Survey(NamedTuple):
    by: tuple[str, str]
    outcome: str
    bounds: str
    weights: str
    weight: str = "weight"
    design: str = ""
    keep: str = ""
    """Records that the job is of, as a query."""


SURVEYS = {
    "nscg2013": Survey(
        ("degree_field", "sex"), "salary", "[0, 150000]", "[0.1, 20000]", keep="employment_status == 'Employed'"
    ),
    "cps_taxunits": Survey(("age_group", "filing_status"), "wages", "[0, 2000000]", "[1, 10000]"),
    "nhanes2015": Survey(
        ("sex", "age_group"), "bmi", "[10, 100]", "[1000, 300000]", "weight_exam", keep="weight_exam > 0 and age >= 20"
    ),
    "ses_austria": Survey(("industry", "sex"), "earnings_hour", "[0, 300]", "[1, 50]"),
    "vehicles": Survey(("kind", "age"), "miles", "[0, 400000]", "[1, 5000]", design=", design_strata: [kind]"),
}


def vehicles(seed: int = 1, population: int = 400_000, sample: int = 12_000) -> pd.DataFrame:
    """Like a survey of trucks: miles a year are skewed, idle ones have 0, heavy kinds are few and sampled at high rates."""
    rng = np.random.default_rng(seed)
    kinds = {"pickup": 0.62, "van": 0.25, "light": 0.08, "medium": 0.03, "heavy": 0.02}
    kind = rng.choice(list(kinds), population, p=list(kinds.values()))
    age = rng.choice(["new", "middle", "old"], population, p=[0.2, 0.45, 0.35])
    middle = pd.Series(kind).map(dict(zip(kinds, [9.1, 9.3, 9.4, 9.7, 10.6], strict=True))).to_numpy()
    middle = middle - pd.Series(age).map({"new": 0.0, "middle": 0.2, "old": 0.9}).to_numpy()
    miles = np.where(rng.random(population) < 0.06, 0.0, np.minimum(np.exp(rng.normal(middle, 1.0)), 300_000))
    size = (1.0 + miles / miles.mean()) ** 0.5 / pd.Series(kind).map(kinds).to_numpy()
    rate = np.minimum(1.0, sample * size / size.sum())
    drawn = rng.random(population) < rate
    rows = pd.DataFrame({"kind": kind, "age": age, "miles": miles.round(-2), "weight": (1 / rate).round(2)})
    return rows[drawn].reset_index(drop=True)


def read(name: str, survey: Survey, data: Path) -> pd.DataFrame:
    rows = vehicles() if name == "vehicles" else pd.read_parquet(data / f"{name}.parquet")
    rows = rows.query(survey.keep) if survey.keep else rows
    return rows[[*survey.by, survey.outcome, survey.weight]].dropna().astype(dict.fromkeys(survey.by, str))


@pytest.mark.parametrize("name", SURVEYS)
def test_what_is_recommended_is_measured_on_the_other_third(name: str, data: Path, tmp_path: Path) -> None:
    """Printed: the mechanism, errors and coverage there, suppressed cells, wall time."""
    survey = SURVEYS[name]
    rows = read(name, survey, data)
    rows.to_parquet(tmp_path / "public.parquet")
    levels = "".join(f"  {each}: {{levels: {json.dumps(sorted(rows[each].unique()))}}}\n" for each in survey.by)
    job = dpdist.parse_job(JOB.format(**survey._asdict(), levels=levels, folder=tmp_path))
    began = time.perf_counter()
    made = rehearse(job, tmp_path / "out", records=MOST)
    took = time.perf_counter() - began
    print(
        f"\n{name}: {made.verdict}: {made.best.candidate.label} ({made.best.candidate.guarantee}), {made.records} records, "
        f"{len(made.trials)} run, {made.best.suppressed} cells suppressed, {took:.0f} s"
    )
    for each in made.trials:
        parts = each.by_statistic.set_index("statistic")[["median", "largest", "coverage"]].round(2).to_dict("index")
        print(f"  {each.candidate.label}: score {each.score:.2f} over {each.draws} draws, {parts}")
    assert made.confirmed is not None
    for row in made.confirmed.by_statistic.to_dict("records"):
        shown = " ".join(f"{what} {row[what]:.2f}" for what in ("median", "largest", "bias", "coverage"))
        print(f"  other third, {row['statistic']}: {shown}", flush=True)
    assert made.good == (made.best.good and made.confirmed.good)
    assert made.best.candidate.strict

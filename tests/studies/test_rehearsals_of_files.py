"""Rehearsals of four public files and of a simulated establishment survey: what is recommended, and its error elsewhere.

One command makes the table of docs/explanation/accuracy.md again (`-s` prints it, a line a file and statistic):
`pytest -m slow -s tests/studies/test_rehearsals_of_files.py`.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import public_surveys
import pytest
from public_surveys import PublicSurvey

import dpdist
from dpdist.studies.rehearsal import rehearse

pytestmark = [pytest.mark.slow, pytest.mark.real_data]

MOST = 30_000
"""Records of a file that are taken, at random: each third has a third of them."""
SURVEYS = {
    "nscg2013": public_surveys.SURVEYS["nscg"],
    "cps_taxunits": public_surveys.SURVEYS["tax"]._replace(by=("age_group", "filing_status")),
    "nhanes2015": public_surveys.SURVEYS["nhanes"]._replace(weights="[1000, 300000]", design="", further=()),
    "ses_austria": public_surveys.SURVEYS["ses"],
    "vehicles": PublicSurvey(
        *("vehicles", ("kind", "age"), "miles", "[0, 400000]", "[1, 5000]"), design=", design_strata: [kind]"
    ),
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


def read(name: str, data: Path) -> pd.DataFrame:
    return SURVEYS[name].of(vehicles()) if name == "vehicles" else SURVEYS[name].read(data)


def job(survey: PublicSurvey, rows: pd.DataFrame, folder: Path) -> dpdist.Job:
    reference = f"path: {folder}/public.parquet, provenance: a public file"
    return survey.job(rows, "rehearsed", reference, "input: {path: nobody-has-it.parquet}")


@pytest.mark.parametrize("name", SURVEYS)
def test_what_is_recommended_is_measured_on_the_other_third(name: str, data: Path, tmp_path: Path) -> None:
    """Printed: the mechanism, errors and coverage there, suppressed cells, wall time."""
    rows = read(name, data)
    rows.to_parquet(tmp_path / "public.parquet")
    began = time.perf_counter()
    made = rehearse(job(SURVEYS[name], rows, tmp_path), tmp_path / "out", records=MOST)
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

"""Public files as surveys: their columns and public bounds, and jobs of one table of counts and means under `tables`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pandas as pd

import dpdist

CLUSTERED = ", design_strata: [stratum], psu: psu"
FAY = ", replicate_weights: {kind: fay, fay: 0.5, prefix: brr_, number: 96}"
EFFECT = ", design_effect: reference"
JOB = """
dataset: {dataset}
period: "2"
columns:
{levels}  {outcome}: {{bounds: {bounds}, outside: clip}}
  {weight}: {{bounds: {weights}, outside: clip}}
survey: {{weight: {weight}{design}}}
outcome: {outcome}
mechanism: {{name: tables}}
budget: {{epsilon: "1", adjacency: substitution}}
reference: {{{reference}}}
tables: [{{name: one, by: [{by[0]}, {by[1]}], statistics: [count, {{mean: {outcome}}}]}}]
{more}
"""


class PublicSurvey(NamedTuple):
    """A file, its table's columns, its outcome and weight with public bounds, and its design."""

    file: str
    by: tuple[str, str]
    outcome: str
    bounds: str
    weights: str
    weight: str = "weight"
    design: str = ""
    further: tuple[str, ...] = ()
    """Columns of the design."""
    keep: str = ""
    """Records that the job is of, as a query."""

    @property
    def categories(self) -> list[str]:
        return [*self.by, *({"stratum"} & set(self.further))]

    def read(self, data: Path) -> pd.DataFrame:
        return self.of(pd.read_parquet(data / f"{self.file}.parquet"))

    def of(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The job's records and columns."""
        rows = rows.query(self.keep) if self.keep else rows
        rows = rows[[*self.by, self.outcome, self.weight, *self.further]].dropna().reset_index(drop=True)
        if self.outcome == "uninsured":
            rows = rows.assign(uninsured=(rows["uninsured"] == "Yes").astype(float))
        return rows.astype(dict.fromkeys(self.categories, str))

    def job(self, rows: pd.DataFrame, dataset: str, reference: str, more: str = "") -> dpdist.Job:
        """A job with the levels of these rows, and these further keys."""
        levels = "".join(f"  {name}: {{levels: {json.dumps(sorted(rows[name].unique()))}}}\n" for name in self.categories)
        named = {"dataset": dataset, "levels": levels, "reference": reference, "more": more}
        return dpdist.parse_job(JOB.format(**self._asdict(), **named))


SURVEYS = {
    "nscg": PublicSurvey(
        *("nscg2013", ("degree_field", "sex"), "salary", "[0, 150000]", "[0.1, 20000]"),
        keep="employment_status == 'Employed'",
    ),
    "tax": PublicSurvey("cps_taxunits", ("state", "filing_status"), "wages", "[0, 2000000]", "[1, 10000]"),
    "ses": PublicSurvey("ses_austria", ("industry", "sex"), "earnings_hour", "[0, 300]", "[1, 50]"),
    "nhis": PublicSurvey(
        *("nhis2003", ("ethnicity", "age_group"), "uninsured", "[0, 1]", "[100, 50000]"),
        design=CLUSTERED,
        further=("stratum", "psu"),
    ),
    "nhanes": PublicSurvey(
        *("nhanes2015", ("sex", "age_group"), "bmi", "[10, 100]", "[1000, 400000]", "weight_exam"),
        design=CLUSTERED,
        further=("stratum", "psu"),
        keep="weight_exam > 0 and age >= 20",
    ),
    "recs": PublicSurvey(
        *("recs2015", ("division", "housing_type"), "total_dollars", "[0, 20000]", "[500, 300000]"),
        design=FAY,
        further=tuple(f"brr_{k}" for k in range(1, 97)),
    ),
    "asec": PublicSurvey("cps_asec2012", ("education", "sex"), "hourly_wage", "[0, 400]", "[50, 10000]"),
}

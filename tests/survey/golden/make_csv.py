"""Survey files as CSV for make_golden.R, every float in all its digits: python make_csv.py DATA CSV."""

import sys
from pathlib import Path

import pandas as pd

for name in ("nhanes2015", "nhis2003", "recs2015", "schools_apistrat", "schools_apiclus2"):
    survey = pd.read_parquet(Path(sys.argv[1]) / f"{name}.parquet")
    floats = survey.select_dtypes("float32").columns
    survey.astype(dict.fromkeys(floats, "float64")).to_csv(Path(sys.argv[2]) / f"{name}.csv", index=False)

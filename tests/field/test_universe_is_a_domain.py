"""A universe, and rules that drop records, leave a domain of the sample, as `subset` of a design does in R's `survey`.

Numbers of drawn records and PSUs are those before the filter. R's figures are constants here; a test with the mark
`system` computes them again.
"""

from __future__ import annotations

import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.core.progress import silent
from dpdist.core.records import TOTAL, cross
from dpdist.estimation.crosstab_table import read_crosstab
from dpdist.estimation.direct import Direct, degrees_of_freedom, direct, totals
from dpdist.estimation.estimators import STATISTICS
from dpdist.job import Job, Statistic
from dpdist.opening.results import open_evaluation
from dpdist.planning.making import make_plan
from dpdist.release import validate
from dpdist.survey.census import design_of, place, records_as_they_came, replicate_sums


def pay_survey() -> pd.DataFrame:
    """The field case: stratum D has one record of the universe, of 40 that were drawn."""
    rng, n = np.random.default_rng(5), 400
    strata, share = ["A", "B", "C", "D"], [0.4, 0.3, 0.2, 0.1]
    rows = pd.DataFrame({"stratum": rng.choice(strata, n, p=share), "employed": rng.choice(["yes", "no"], n, p=[0.6, 0.4])})
    rows = rows.assign(sex=rng.choice(["f", "m"], n), N=rows["stratum"].map({"A": 900, "B": 400, "C": 120, "D": 60}))
    rows["weight"] = np.round(rows["N"] / rows.groupby("stratum")["stratum"].transform("size"), 4)
    income = rng.gamma(2, 900, n) + rows["stratum"].map({"A": 0, "B": 500, "C": 900, "D": 2000})
    rows["income"] = income.round(0).mask(rng.random(n) < 0.1)
    rows["sex"] = rows["sex"].mask(rng.random(n) < 0.05)
    last = rows.index[(rows["stratum"] == "D") & (rows["employed"] == "yes")]
    rows.loc[last[1:], "employed"] = "no"
    rows.loc[last[0], ["income", "sex"]] = [4321.0, "f"]
    return rows


PAY: dict[str, Any] = {
    "dataset": "universe",
    "period": "2024",
    "columns": {
        "employed": {"levels": ["yes", "no"]},
        "sex": {"levels": ["f", "m"], "missing": "drop"},
        "stratum": {"levels": ["A", "B", "C", "D"]},
        "income": {"bounds": [0, 20000], "outside": "clip", "missing": "drop"},
    },
    "universe": [{"column": "employed", "keep": ["yes"]}],
    "outcome": "income",
    "mechanism": {"name": "laplace"},
    "budget": {"epsilon": "1000"},
    "public_frame": {"accepted": "test file"},
    "tables": [{"name": "pay", "by": ["sex"], "statistics": ["count", {"mean": "income"}, {"total": "income"}]}],
    "runtime": {"executor": "serial"},
}
STRATA = {"weight": "weight", "design_strata": ["stratum"]}
PAY_ERRORS = {
    "fpc": {
        ("count", "f"): 31.04567,
        ("count", "m"): 31.36439,
        ("count", TOTAL): 34.961,
        ("mean", "f"): 114.5709,
        ("mean", "m"): 112.6202,
        ("mean", TOTAL): 80.12,
        ("total", "f"): 78923.29,
        ("total", "m"): 77541.49,
    },
    "strata": {
        ("count", "f"): 35.34304,
        ("count", "m"): 35.62015,
        ("count", TOTAL): 39.711,
        ("mean", "f"): 130.6645,
        ("mean", "m"): 127.2684,
        ("mean", TOTAL): 90.975,
        ("total", "f"): 90624.8,
        ("total", "m"): 88212.9,
    },
    "nothing missing": {
        ("count", "f"): 37.49381,
        ("count", "m"): 36.80687,
        ("count", TOTAL): 38.203,
        ("mean", "f"): 114.8663,
        ("mean", "m"): 118.1942,
        ("mean", TOTAL): 82.159,
        ("total", "f"): 90729.86,
        ("total", "m"): 88031.81,
        ("total", TOTAL): 105440,
    },
    "no strata": {
        ("count", "f"): 38.99244,
        ("count", "m"): 38.33001,
        ("count", TOTAL): 43.833,
        ("mean", "f"): 115.5057,
        ("mean", "m"): 118.0503,
        ("mean", TOTAL): 82.574,
        ("total", "f"): 92471.83,
        ("total", "m"): 90087.61,
        ("total", TOTAL): 111631,
    },
}
"""R's standard errors, as it prints them."""
PAY_DESIGNS = {
    "fpc": STRATA | {"fpc": ["N"]},
    "strata": STRATA,
    "nothing missing": STRATA,
    "no strata": {"weight": "weight"},
}


@pytest.mark.parametrize("design", PAY_ERRORS)
def test_direct_errors_of_a_release_count_records_before_the_universe(design: str, tmp_path: Path) -> None:
    rows = pay_survey()
    if design in ("nothing missing", "no strata"):
        rows = rows.fillna({"income": 1000.0, "sex": "f"})
    dpdist.run(PAY | {"survey": PAY_DESIGNS[design]}, tmp_path / "ws", rows, counted=False)
    evaluated = open_evaluation(tmp_path / "ws")["pay"].set_index(["statistic", "sex"])["direct_se"]
    for figure, expected in PAY_ERRORS[design].items():
        assert evaluated[figure] == pytest.approx(expected, rel=2e-5), figure


def small_survey() -> pd.DataFrame:
    """Six strata of five PSUs. Of the universe are: no record of stratum 5, one PSU of 4, one record of 2."""
    i = np.arange(240)
    h, p = i % 6, i // 6 % 5
    rows = pd.DataFrame({"y": ((i * 37) % 101) / 7 + 1, "w": 1 + ((i * 13) % 17) / 3, "h": h, "p": p, "id": i})
    rows = rows.assign(sex=np.where(i * 7 % 3 == 0, "f", "m"), e=np.where(i * 11 % 7 < 4, "yes", "no"))
    rows = rows.assign(N=12 + h, M=20 + p, Nr=150 + 10 * h)
    rows.loc[(h == 5) | ((h == 4) & (p > 0)) | ((h == 3) & (p == 2)), "e"] = "no"
    second = rows.index[(h == 2) & (rows["e"] == "yes")]
    rows.loc[second[1:], "e"] = "no"
    rows["y"] = rows["y"].mask(i * 5 % 23 == 0)
    again = {f"r{r}": rows["w"] * (1 + 0.5 * (((i * i + 3 * i * r * r + 7 * r) % 13) / 6 - 1)) for r in range(1, 13)}
    return rows.assign(**again, p=[f"t{k}" for k in p])


BY_STRATUM = {"weight": "w", "design_strata": ["h"]}
BY_TOWN = BY_STRATUM | {"psu": "p"}
DESIGNS: dict[str, dict[str, Any]] = {
    "records": BY_STRATUM,
    "no strata": {"weight": "w"},
    "records fpc": BY_STRATUM | {"fpc": ["Nr"]},
    "PSUs": BY_TOWN,
    "PSUs fpc": BY_TOWN | {"fpc": ["N"]},
    "two stages": BY_TOWN | {"fpc": ["N", "M"]},
    "replicates": {
        "weight": "w",
        "replicate_weights": {"kind": "bootstrap", "prefix": "r", "number": 12, "centre": "mean"},
    },
    "lonely certainty": BY_TOWN | {"lonely_psu": "certainty"},
    "lonely average": BY_TOWN | {"lonely_psu": "average"},
    "lonely adjust": BY_TOWN | {"lonely_psu": "centred"},
}
IN_R = r"""
suppressMessages(library(survey)); options(warn = -1, survey.lonely.psu = "fail")
s <- read.csv("survey.csv", na.strings = ""); s$one <- 1; s$p <- as.integer(factor(s$p))
lone <- subset(s, !(h == 1 & p > 1))
out <- function(case, d) {
  u <- subset(d, e == "yes" & !is.na(y))
  for (g in c("Total", "f", "m")) { q <- if (g == "Total") u else subset(u, sex == g)
    for (st in c("count", "mean", "total")) {
      f <- switch(st, count = svytotal(~one, q), mean = svymean(~y, q), total = svytotal(~y, q))
      cat(sprintf("%s,%s,%s,%.12g,%.12g,%g\n", case, g, st, coef(f), SE(f), degf(q))) } } }
cat("case,cell,statistic,value,se,df\n")
out("records", svydesign(~1, strata = ~h, weights = ~w, data = s))
out("no strata", svydesign(~1, weights = ~w, data = s))
out("records fpc", svydesign(~1, strata = ~h, weights = ~w, fpc = ~Nr, data = s))
out("PSUs", svydesign(~p, strata = ~h, weights = ~w, nest = TRUE, data = s))
out("PSUs fpc", svydesign(~p, strata = ~h, weights = ~w, fpc = ~N, nest = TRUE, data = s))
out("two stages", svydesign(~p + id, strata = ~h, weights = ~w, fpc = ~N + M, nest = TRUE, data = s))
out("replicates", svrepdesign(weights = ~w, repweights = as.matrix(s[paste0("r", 1:12)]), type = "bootstrap",
  scale = 1 / 12, rscales = rep(1, 12), data = s))
for (l in c("certainty", "average", "adjust")) { options(survey.lonely.psu = l)
  out(paste("lonely", l), svydesign(~p, strata = ~h, weights = ~w, nest = TRUE, data = lone)) }
"""
FROM_R = """
case,cell,statistic,value,se,df
records,Total,count,236.666666667,24.8015485226,62
records,Total,mean,8.78853118712,0.550914977972,62
records,Total,total,2079.95238095,260.89109966,62
records,f,count,132.666666667,18.9366916487,37
records,f,mean,9.11055276382,0.750040020307,37
records,f,total,1208.66666667,211.684118573,37
records,m,count,104,16.016195507,25
records,m,mean,8.37774725275,0.790687618231,25
records,m,total,871.285714286,152.4926222,25
no strata,Total,count,236.666666667,28.0974263047,66
no strata,Total,mean,8.78853118712,0.547689462443,66
no strata,Total,total,2079.95238095,285.462463226,66
no strata,f,count,132.666666667,22.4023891268,38
no strata,f,mean,9.11055276382,0.745292467093,38
no strata,f,total,1208.66666667,238.280656155,38
no strata,m,count,104,20.0762840861,27
no strata,m,mean,8.37774725275,0.783057686522,27
no strata,m,total,871.285714286,183.094644667,27
records fpc,Total,count,236.666666667,21.5727474244,62
records fpc,Total,mean,8.78853118712,0.476869956222,62
records fpc,Total,total,2079.95238095,226.203880084,62
records fpc,f,count,132.666666667,16.4550131588,37
records fpc,f,mean,9.11055276382,0.648818423357,37
records fpc,f,total,1208.66666667,183.305719782,37
records fpc,m,count,104,13.9504829085,25
records fpc,m,mean,8.37774725275,0.685214333427,25
records fpc,m,total,871.285714286,132.541346229,25
PSUs,Total,count,236.666666667,28.8222522059,11
PSUs,Total,mean,8.78853118712,1.19535790669,11
PSUs,Total,total,2079.95238095,405.011298518,11
PSUs,f,count,132.666666667,23.7627158942,7
PSUs,f,mean,9.11055276382,1.62969468987,7
PSUs,f,total,1208.66666667,338.445933141,7
PSUs,m,count,104,16.3112095062,4
PSUs,m,mean,8.37774725275,1.72993009736,4
PSUs,m,total,871.285714286,222.46011388,4
PSUs fpc,Total,count,236.666666667,23.1209872603,11
PSUs fpc,Total,mean,8.78853118712,0.935637120715,11
PSUs fpc,Total,total,2079.95238095,318.5576958,11
PSUs fpc,f,count,132.666666667,18.9590201341,7
PSUs fpc,f,mean,9.11055276382,1.27336175225,7
PSUs fpc,f,total,1208.66666667,265.37860492,7
PSUs fpc,m,count,104,13.2338810425,4
PSUs fpc,m,mean,8.37774725275,1.35791476422,4
PSUs fpc,m,total,871.285714286,176.219186253,4
two stages,Total,count,236.666666667,25.9686529245,11
two stages,Total,mean,8.78853118712,0.958056237284,11
two stages,Total,total,2079.95238095,339.37644159,11
two stages,f,count,132.666666667,20.9621420545,7
two stages,f,mean,9.11055276382,1.30329836323,7
two stages,f,total,1208.66666667,281.66337817,7
two stages,m,count,104,15.3283898438,4
two stages,m,mean,8.37774725275,1.38994275288,4
two stages,m,total,871.285714286,189.320127045,4
replicates,Total,count,236.666666667,21.8300105653,10
replicates,Total,mean,8.78853118712,0.118527050287,10
replicates,Total,total,2079.95238095,200.721130401,10
replicates,f,count,132.666666667,12.5544800424,10
replicates,f,mean,9.11055276382,0.215333856157,10
replicates,f,total,1208.66666667,125.079527853,10
replicates,m,count,104,9.74218079237,10
replicates,m,mean,8.37774725275,0.210613077552,10
replicates,m,total,871.285714286,83.5311247363,10
lonely certainty,Total,count,164.333333333,27.0698684477,7
lonely certainty,Total,mean,8.69110402782,1.33829976027,7
lonely certainty,Total,total,1428.23809524,352.383862601,7
lonely certainty,f,count,132.666666667,23.7627158942,7
lonely certainty,f,mean,9.11055276382,1.62969468987,7
lonely certainty,f,total,1208.66666667,338.445933141,7
lonely certainty,m,count,31.6666666667,12.9657668925,0
lonely certainty,m,mean,6.93383458647,0.586663008119,0
lonely certainty,m,total,219.571428571,98.1261278226,0
lonely average,Total,count,164.333333333,30.2650329956,7
lonely average,Total,mean,8.69110402782,1.49626461912,7
lonely average,Total,total,1428.23809524,393.977135474,7
lonely average,f,count,132.666666667,23.7627158942,7
lonely average,f,mean,9.11055276382,1.62969468987,7
lonely average,f,total,1208.66666667,338.445933141,7
lonely average,m,count,31.6666666667,15.8797565053,0
lonely average,m,mean,6.93383458647,0.718512510428,0
lonely average,m,total,219.571428571,120.1794718,0
lonely adjust,Total,count,164.333333333,31.1109126978,7
lonely adjust,Total,mean,8.69110402782,1.36788861301,7
lonely adjust,Total,total,1428.23809524,362.907722072,7
lonely adjust,f,count,132.666666667,23.7627158942,7
lonely adjust,f,mean,9.11055276382,1.62969468987,7
lonely adjust,f,total,1208.66666667,338.445933141,7
lonely adjust,m,count,31.6666666667,20.0803939758,0
lonely adjust,m,mean,6.93383458647,0.851813383022,0
lonely adjust,m,total,219.571428571,130.982308269,0
"""


def small_job(survey: dict[str, Any], **keys: Any) -> Job:
    levels = {"h": {"levels": list(range(6))}, "e": {"levels": ["yes", "no"]}, "sex": {"levels": ["f", "m"]}}
    columns = levels | {"y": {"bounds": [0, 100], "missing": "drop"}}
    tables = [{"name": "t", "by": ["sex"], "statistics": ["count", {"mean": "y"}, {"total": "y"}]}]
    universe = [{"column": "e", "keep": ["yes"]}]
    return Job.model_validate(
        PAY | {"columns": columns, "universe": universe, "survey": survey, "outcome": "y", "tables": tables} | keys
    )


def figures_of(name: str, folder: Path) -> pd.DataFrame:
    """Value, standard error and degrees of freedom by cell and statistic."""
    rows, job = small_survey(), small_job(DESIGNS[name])
    if name.startswith("lonely"):
        rows = rows[~((rows["h"] == 1) & (rows["p"] != "t0"))]
    rows.to_parquet(folder / "survey.parquet")
    plan = make_plan(job, folder / "survey.parquet", silent)
    records = place(job, plan.source, plan.census, folder)
    sums, cells = totals([records], plan.crosstab, job.survey.psu is not None), cross(plan.crosstab, ["sex"], margins=True)
    more = design_of(job, plan.census), replicate_sums(job, plan.source, plan.crosstab)
    df = degrees_of_freedom(sums, plan.crosstab, cells, *more)
    estimates = zip(STATISTICS, direct(sums, plan.crosstab, cells, *more), strict=True)
    parts = [
        pd.DataFrame({"cell": cells.names, "statistic": name, "value": of.value, "se": np.sqrt(of.variance), "df": df})
        for name, of in estimates
    ]
    return pd.concat(parts).set_index(["cell", "statistic"]).sort_index()


def expected(case: str, printed: str = FROM_R) -> pd.DataFrame:
    figures = pd.read_csv(StringIO(printed.strip()))
    return figures[figures["case"] == case].drop(columns="case").set_index(["cell", "statistic"]).sort_index()


def agree(case: str, found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Within what ten digits hold. R's `adjust` takes deviations of counts and totals from 0."""
    if case == "lonely adjust":
        found, expected = (figures.xs("mean", level="statistic") for figures in (found, expected))
    np.testing.assert_allclose(found[["value", "se", "df"]], expected[["value", "se", "df"]], rtol=1e-8)


@pytest.mark.parametrize("case", DESIGNS)
def test_designs_have_the_errors_that_r_gives_in_a_subset(case: str, tmp_path: Path) -> None:
    agree(case, figures_of(case, tmp_path), expected(case))


@pytest.mark.system
def test_r_gives_these_figures(tmp_path: Path) -> None:
    small_survey().to_csv(tmp_path / "survey.csv", index=False)
    (tmp_path / "figures.R").write_text(IN_R, encoding="utf-8")
    printed = subprocess.run(["Rscript", "figures.R"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    for case in DESIGNS:
        (tmp_path / case).mkdir()
        pd.testing.assert_frame_equal(expected(case, printed), expected(case), rtol=1e-8)
        agree(case, figures_of(case, tmp_path / case), expected(case, printed))


def test_further_statistics_count_the_same_records_and_psus(tmp_path: Path) -> None:
    small_survey().to_parquet(tmp_path / "survey.parquet")
    for case in ("records", "records fpc", "PSUs", "PSUs fpc"):
        plan = make_plan(job := small_job(DESIGNS[case]), tmp_path / "survey.parquet", silent)
        records = records_as_they_came(job, plan.source, plan.census, 0)
        sample, cells = (
            Direct.of(job, plan.crosstab, design_of(job, plan.census), [records]),
            cross(plan.crosstab, ["sex"], True),
        )
        errors = [np.sqrt(sample.estimate(cells, Statistic(name="total", variable="y")).variance)]
        expected_errors = expected(case).xs("total", level="statistic")["se"].loc[cells.names]
        np.testing.assert_allclose(errors[0], expected_errors, rtol=1e-8)


def test_a_stratum_with_one_record_of_the_universe_is_not_lonely(tmp_path: Path) -> None:
    rows = pay_survey()
    job = PAY | {"survey": STRATA}
    validate(job, rows)
    drawn_alone = rows[(rows["stratum"] != "D") | (rows["employed"] == "yes")]
    with pytest.raises((DataError, JobError), match="a single record"):
        validate(job, drawn_alone)


def test_a_population_is_no_smaller_than_the_records_drawn(tmp_path: Path) -> None:
    rows = pay_survey()
    drawn = int((rows["stratum"] == "C").sum())
    inside = int(((rows["stratum"] == "C") & (rows["employed"] == "yes")).sum())
    assert inside < drawn - 1
    with pytest.raises((DataError, JobError), match="fewer records in a stratum's population than in the sample"):
        validate(PAY | {"survey": PAY_DESIGNS["fpc"]}, rows.assign(N=rows["N"].mask(rows["stratum"] == "C", drawn - 1)))


STRICT = {
    "columns": PAY["columns"]
    | {
        "sex": {"levels": ["f", "m"]},
        "income": {"bounds": [0, 20000], "outside": "clip"},
        "weight": {"bounds": [1, 60], "outside": "clip"},
    },
    "mechanism": {"name": "modips", "law": "normal"},
    "budget": {"epsilon": "1000", "adjacency": "substitution"},
    "synthetic_sets": 2,
}


def complete() -> pd.DataFrame:
    return pay_survey().fillna({"income": 1000.0, "sex": "f"})


def test_a_release_carries_what_publishing_needs_for_the_same_errors(tmp_path: Path) -> None:
    rows, job = complete(), PAY | STRICT | {"survey": STRATA}
    dpdist.run(job, tmp_path / "ws", rows, counted=False)
    table, crosstab = tmp_path / "ws" / "public" / "tables" / "pay.parquet", tmp_path / "ws" / "public" / "released"
    before = table.read_bytes()
    drawn = read_crosstab(crosstab.parent, "released/frame.parquet", Job.model_validate(job)).sampled
    assert drawn == {(level,): n for level, n in rows["stratum"].value_counts().items()}
    dpdist.publish(tmp_path / "ws")
    assert table.read_bytes() == before


def test_few_records_that_a_universe_leaves_out_count_as_the_minimum(tmp_path: Path) -> None:
    """The number of records left out is a sample count: one below the minimum is not published."""
    rows = complete()
    left = rows[(rows["stratum"] != "B") | (rows["employed"] == "yes")]
    added = rows[(rows["stratum"] == "B") & (rows["employed"] == "no")].head(1)
    rows = pd.concat([left, added], ignore_index=True)
    job = PAY | STRICT | {"survey": STRATA}
    frames = {}
    for number in (1, 2):
        folder = tmp_path / str(number)
        dpdist.run(job | {"frame_minimum": 3}, folder, rows, counted=False)
        frames[number] = read_crosstab(folder / "public", "released/frame.parquet", Job.model_validate(job)).sampled
        rows = pd.concat([rows, added], ignore_index=True)
    assert frames[1] == frames[2]
    assert frames[1] is not None
    inside = int(((left["stratum"] == "B") & (left["employed"] == "yes")).sum())
    assert frames[1]["B",] == inside + 3


def test_records_that_a_rule_of_the_design_leaves_out_are_stated(tmp_path: Path) -> None:
    """A PSU's rule drops records, too. Control: without a record or a rule to drop, no number is published or stated."""
    rows = complete()
    rows["town"] = rows.groupby("stratum").cumcount() % 4 + 1.0
    columns: dict[str, Any] = STRICT["columns"]
    for rule in ("drop", "error"):
        declared = columns | {"town": {"levels": [1, 2, 3, 4], "missing": rule}}
        job = PAY | STRICT | {"survey": STRATA | {"psu": "town"}, "universe": [], "columns": declared}
        file = rows.assign(town=rows["town"].mask(np.arange(len(rows)) % 9 == 0)) if rule == "drop" else rows
        dpdist.run(job, tmp_path / rule, file, counted=False)
        crosstab = read_crosstab(tmp_path / rule / "public", "released/frame.parquet", Job.model_validate(job))
        statement = (tmp_path / rule / "public" / "statement.json").read_text(encoding="utf-8")
        assert (crosstab.sampled is not None) == ("the number of sampled records" in statement) == (rule == "drop")


def test_secret_sizes_keep_the_number_of_drawn_records_secret(tmp_path: Path) -> None:
    """Two files that differ in records outside the universe have one release, whose errors are of a Poisson sample."""
    secret = {"budget": {"epsilon": "1000", "adjacency": "add_remove"}, "predictors": {"protect": {"epsilon": "200"}}}
    job = PAY | STRICT | secret | {"survey": {"weight": "weight"}, "strata": [], "public_frame": None}
    rows = complete()
    fewer = rows[(rows["employed"] == "yes") | (np.arange(len(rows)) % 3 == 0)]
    released = {}
    for name, file in (("all", rows), ("fewer", fewer)):
        dpdist.run(job, tmp_path / name, file, counted=False)
        public = tmp_path / name / "public"
        crosstab = read_crosstab(public, "released/frame.parquet", Job.model_validate(job))
        statement = (public / "statement.json").read_text(encoding="utf-8")
        assert crosstab.sampled is None
        assert "the number of sampled records" not in statement
        released[name] = pd.read_parquet(public / "tables" / "pay.parquet").set_index(["statistic", "sex"])
    total = released["all"].loc["count", TOTAL]
    inside = rows[rows["employed"] == "yes"]
    poisson = np.sqrt(len(inside)) * inside["weight"].mean()
    assert total["standard_error"].max() >= 0.95 * poisson

"""A table's universe: its figures are those of some levels alone, in every product, and beside direct estimates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest
from public_files import statement_of

from dpdist.core.errors import JobError
from dpdist.core.records import Crosstab, cross
from dpdist.job.loading import parse_job
from dpdist.mechanisms.tables.workload import Workload, WorkloadTable
from dpdist.release import run
from dpdist.testing.mechanisms import CLIPPED_WEIGHT, COLUMNS, survey

STATISTICS = ["count", {"mean": "salary"}, {"total": "salary"}]
WORK = ["full", "part", "none"]
EMPLOYED = {"work": ["full", "part"]}


def records(seed: int) -> pd.DataFrame:
    """Records with three levels of work."""
    made = survey(seed, 600)
    return made.assign(work=np.random.default_rng(seed).choice(WORK, len(made)))


def job(folder: Path, mechanism: str, **keys: Any) -> str:
    """A table of the employed by sex, the same by work, the part-time alone, and all by sex and work."""
    for seed, name in enumerate(("current", "earlier")):
        records(seed).to_parquet(folder / f"{name}.parquet")
    made = {
        "dataset": "small",
        "period": "2019",
        "input": {"path": str(folder / "current.parquet")},
        "columns": {name: COLUMNS[name] for name in ("field", "sex", "salary")}
        | {"weight": CLIPPED_WEIGHT, "work": {"levels": WORK}},
        "survey": {"weight": "weight"},
        "outcome": "salary",
        "mechanism": {"name": mechanism},
        "budget": {"epsilon": "4", "adjacency": "substitution"},
        "reference": {"path": str(folder / "earlier.parquet"), "period": "2017"},
        "tables": [
            {"name": "employed", "by": ["sex"], "universe": EMPLOYED, "statistics": STATISTICS},
            {"name": "status", "by": ["work", "sex"], "universe": EMPLOYED, "statistics": STATISTICS},
            {"name": "part_time", "by": ["sex"], "universe": {"work": ["part"]}, "statistics": STATISTICS},
            {"name": "full", "by": ["sex", "work"], "statistics": STATISTICS},
        ],
        "withhold_above": None,
    }
    return json.dumps({name: key for name, key in (made | keys).items() if key is not None})


def figures(public: Path, table: str, by: list[str], estimator: str = "parameters") -> pd.DataFrame:
    """Estimates and standard errors by cell and statistic."""
    rows = pd.read_parquet(public / "tables" / f"{table}.parquet")
    rows = rows[rows["estimator"] == estimator]
    return rows.pivot_table(index=by, columns="statistic", values=["estimate", "standard_error"])


@pytest.mark.parametrize(
    ("mechanism", "reference", "adjacency"),
    [
        ("tables", True, "substitution"),
        ("tables", True, "add_remove"),
        ("tables", False, "substitution"),
    ],
)
def test_a_universe_has_what_a_table_by_its_columns_holds(
    mechanism: str, reference: bool, adjacency: str, tmp_path: Path
) -> None:
    """Counts, totals and means, also of synthetic records, and direct estimates. Control: the figures of all records."""
    budget = {"epsilon": "4", "adjacency": adjacency}
    made = parse_job(job(tmp_path, mechanism, budget=budget, **({} if reference else {"reference": None})))
    run(made, tmp_path / "made")
    public = tmp_path / "made" / "public"
    whole = figures(public, "full", ["work", "sex"])["estimate"]
    wanted = whole.loc["full"] + whole.loc["part"]
    wanted["mean"] = wanted["total"] / wanted["count"]
    employed = figures(public, "employed", ["sex"])
    np.testing.assert_allclose(employed["estimate"], wanted, rtol=1e-9)
    assert not np.allclose(employed["estimate"]["count"], whole.loc["Total"]["count"], rtol=0.1)
    assert np.isfinite(employed["standard_error"].to_numpy()).all()
    status = figures(public, "status", ["work", "sex"])
    np.testing.assert_allclose(status["estimate"].loc[["full", "part"]], whole.loc[["full", "part"]], rtol=1e-9)
    np.testing.assert_allclose(status["estimate"].loc["Total"], wanted, rtol=1e-9)
    part = figures(public, "part_time", ["sex"])
    both = figures(public, "full", ["work", "sex"]).xs("part")
    np.testing.assert_allclose(part["estimate"], both["estimate"], rtol=1e-9)
    np.testing.assert_allclose(part["standard_error"], both["standard_error"], rtol=1e-9)
    synthetic = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    inside = synthetic[synthetic["work"].isin(EMPLOYED["work"])]
    by_hand = inside.groupby("sex")["weight"].sum()
    np.testing.assert_allclose(
        figures(public, "employed", ["sex"], "records")["estimate"]["count"][["f", "m"]], by_hand, rtol=1e-9
    )
    compared = pd.read_parquet(tmp_path / "made/confidential/evaluation/employed.parquet")
    direct = compared.drop_duplicates(["sex", "statistic"]).pivot_table(index="sex", columns="statistic", values="direct")
    file = records(0)
    file = file[file["work"].isin(EMPLOYED["work"])].assign(product=file["weight"] * file["salary"])
    sums = file.groupby("sex")[["weight", "product"]].sum()
    np.testing.assert_allclose(direct.loc[["f", "m"], "count"], sums["weight"], rtol=1e-9)
    np.testing.assert_allclose(direct.loc[["f", "m"], "mean"], sums["product"] / sums["weight"], rtol=1e-9)


def test_every_product_names_a_universe(tmp_path: Path) -> None:
    """SDMX has a code for two levels together, and one level's own. Control: the table of all records has neither."""
    keys = {"presentation": {"sdmx": {"agency": "XX", "version": "1.0"}, "columns": {"work": {"label": "Work status"}}}}
    run(parse_job(job(tmp_path, "tables", reference=None, **keys)), tmp_path / "made")
    public = tmp_path / "made" / "public"
    named = "Work status: full or part"
    assert f"the universe of table employed: {named}" in statement_of(public)["public"]
    assert f"Universe: {named}." in (public / "index.html").read_text()
    (book,) = public.rglob("*.xlsx")
    sheets = openpyxl.load_workbook(book)
    notes = [{str(cell.value) for row in sheets[name] for cell in row} for name in ("Table 1", "Table 4")]
    assert f"Universe: {named}." in notes[0]
    assert not any("Universe" in note for note in notes[1])
    codes = {name: set(pd.read_csv(public / "sdmx" / f"{name}.csv")["WORK"]) for name in ("employed", "part_time", "full")}
    assert codes == {"employed": {"FULL_OR_PART"}, "part_time": {"PART"}, "full": {"FULL", "PART", "NONE", "_T"}}
    assert "full or part" in (public / "sdmx" / "structure.json").read_text()


REFUSED = {
    "partt": ({"work": ["full", "partt"]}, [], "'partt' is not a level of 'work'", "did you mean 'part'?"),
    "twice": ({"work": ["full", "full"]}, [], "'full' is named twice", "delete one"),
    "every": (
        {"work": ["none", "part", "full"]},
        [],
        "every level of 'work' is in the universe",
        "leave the column out of it",
    ),
    "column": ({"wrk": ["full"]}, [], "column 'wrk' is not declared", "did you mean 'work'?"),
    "number": ({"salary": [1000]}, [], "'salary' has bounds", "name another column"),
    "by one": ({"work": ["full"]}, ["work"], "only one level of it is in the universe", "leave the column out of by"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_universe_that_is_none_is_refused(case: str, tmp_path: Path) -> None:
    universe, by, fault, remedy = REFUSED[case]
    table = {"name": "t", "by": by, "universe": universe, "statistics": ["count"]}
    with pytest.raises(JobError) as caught:
        parse_job(job(tmp_path, "tables", tables=[table]))
    assert any(fault in problem.fault and remedy in problem.remedy for problem in caught.value.problems), caught.value


def test_a_model_must_distinguish_the_columns_of_a_universe(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"model": {"family": "lognormal", "predictors": ["sex"]}, "reference": None}
    with pytest.raises(JobError, match="the model does not use 'work'"):
        parse_job(job(tmp_path, "weighted", **keys))


def test_cells_of_a_package_are_those_of_its_tables() -> None:
    """Base cells add up as records do, and a universe is a column of measured tables unless its own columns are."""
    rng = np.random.default_rng(3)
    sizes, names = (3, 2, 4), ("work", "sex", "age")
    codes = np.array(np.unique(rng.integers(0, sizes, (60, 3)), axis=0))
    count = rng.integers(1, 9, len(codes)).astype(float)
    levels = {name: tuple(f"{name}{k}" for k in range(size)) for name, size in zip(names, sizes, strict=True)}
    crosstab = Crosstab(dict(zip(names, codes.T.astype(np.int32), strict=True)), levels, count.astype(np.int64), (), ())
    universes = {"work": ["work0", "work2"], "age": ["age1", "age2", "age3"]}, {"age": ["age2"]}
    tables = (
        WorkloadTable("t", (1, 0), True, 1.0, ((0, (0, 2)), (2, (1, 2, 3)))),
        WorkloadTable("u", (1,), False, 1.0, ((2, (2,)),)),
        WorkloadTable("v", (0, 2), True, 1.0, ((2, (2,)),)),
    )
    workload = Workload(codes, sizes, count, tables, names)
    for table, universe in zip(tables, (*universes, universes[1]), strict=True):
        cells = cross(crosstab, [names[k] for k in table.by], table.margins, universe)
        np.testing.assert_array_equal(workload.published(table).matrix.toarray(), cells.membership.toarray())
    # v tells its universe by age. t and u have universes over columns that they do not have: columns 3 and 4.
    assert workload.measured == ((0, 1, 3), (1, 4), (0, 2))
    assert workload.summing((1, 4)).shape == (4, len(codes))
    assert workload.named((1, 4)) == "sex x universe 2"

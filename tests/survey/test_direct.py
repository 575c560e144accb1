"""Direct estimates of a release, streamed by frame row and PSU, against those of the same records held whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from dpdist.confidential.records import Records
from dpdist.core.errors import DataError
from dpdist.core.progress import silent
from dpdist.core.records import TOTAL, Cells, Crosstab, cross
from dpdist.estimation import direct as statistics
from dpdist.estimation.direct import (
    DesignSample,
    SamplingDesign,
    Totals,
    degrees_of_freedom,
    direct,
    errors_given_sizes,
    totals,
)
from dpdist.estimation.estimators import STATISTICS, PsuSums, counts_and_means
from dpdist.job import Job
from dpdist.planning.making import make_plan
from dpdist.survey.census import design_of, place, records_as_they_came, replicate_sums

REPLICATES = {"kind": "fay", "fay": 0.5, "prefix": "rep", "number": 8}


def job(survey: dict[str, Any]) -> Job:
    return Job.model_validate(
        {
            "dataset": "tiny",
            "period": "2020",
            "columns": {
                "region": {"levels": ["n", "s", "w"]},
                "sex": {"levels": ["f", "m"]},
                "field": {"levels": ["arts", "law", "none"]},
                "salary": {"bounds": [0, 1e7]},
            },
            "survey": {"weight": "weight", "design_strata": ["region"], **survey},
            "outcome": "salary",
            "model": {"family": "lognormal", "predictors": ["sex"]},
            "mechanism": {"name": "weighted"},
            "budget": {"epsilon": "10"},
            "tables": [{"name": "t", "by": ["sex", "field"], "statistics": ["count", {"mean": "salary"}]}],
        }
    )


def survey() -> pd.DataFrame:
    rng = np.random.default_rng(6)
    n = 240
    rows = pd.DataFrame(
        {
            "region": rng.choice(["n", "s", "w"], n),
            "sex": rng.choice(["f", "m"], n),
            "field": rng.choice(["arts", "law"], n),
            "town": rng.choice(list("abcd"), n),
            "salary": np.exp(rng.normal(10.0, 0.5, n)),
            "weight": np.exp(rng.normal(3.0, 0.4, n)),
        }
    )
    rows["towns"] = rows["region"].map({"n": 9.0, "s": 12.0, "w": 20.0})
    rows["size"] = rows.groupby(["region", "town"])["sex"].transform("size") + 5.0
    again = {f"rep{r}": rows["weight"] * rng.choice([0.5, 1.5], n) for r in range(1, 9)}
    return pd.concat([rows, pd.DataFrame(again)], axis=1)


def in_the_release(said: Job, rows: pd.DataFrame, folder: Path) -> tuple[Cells, dict[str, np.ndarray]]:
    """Cells, and value, standard error and df of counts and means as the evaluation has them."""
    rows.to_parquet(folder / "survey.parquet")
    plan = make_plan(said, folder / "survey.parquet", silent)
    records = place(said, plan.source, plan.census, folder)
    blocks = [records.part(start, start + 50) for start in range(0, len(records), 50)]
    found = totals(blocks, plan.crosstab, said.survey.psu is not None)
    cells = cross(plan.crosstab, said.tables[0].by, margins=True)
    more = design_of(said, plan.census), replicate_sums(said, plan.source, plan.crosstab)
    told = {}
    for name, estimate in zip(STATISTICS, direct(found, plan.crosstab, cells, *more), strict=True):
        told[name] = np.array(
            [estimate.value, np.sqrt(estimate.variance), degrees_of_freedom(found, plan.crosstab, cells, *more)]
        )
    return cells, told


def held_whole(said: Job, rows: pd.DataFrame, cells: Cells) -> dict[str, np.ndarray]:
    design, w = said.survey, rows["weight"].to_numpy()
    if design.replicate_weights is not None:
        again = rows[list(design.replicate_weights.columns)].to_numpy()
        sample = DesignSample.replicated(w, again, design.replicate_weights)
    else:
        sizes = [rows[name].to_numpy() for name in design.fpc]
        psu = None if design.psu is None else rows[design.psu].astype("category").cat.codes.to_numpy()
        region = rows["region"].astype("category").cat.codes.to_numpy()
        sample = DesignSample.of(w, region, psu, *sizes, lonely=design.lonely_psu)
    inside = [
        np.all([(rows[name] == level) | (level == TOTAL) for name, level in zip(cells.by, label, strict=True)], axis=0)
        for label in cells.labels
    ]
    domains = csr_array(np.array(inside, dtype=float))
    y = rows["salary"].to_numpy()
    made = (statistics.count(sample, domains), statistics.mean(sample, domains, y), statistics.total(sample, domains, y))
    return dict(zip(("count", "mean", "total"), map(np.array, made), strict=True))


DESIGNS: dict[str, dict[str, Any]] = {
    "records": {},
    "records fpc": {"fpc": "size_of_region"},
    "PSUs": {"psu": "town"},
    "PSUs fpc": {"psu": "town", "fpc": "towns"},
    "two stages": {"psu": "town", "fpc": ["towns", "size"]},
    "replicates": {"replicate_weights": REPLICATES},
    "lonely certainty": {"psu": "town", "lonely_psu": "certainty"},
    "lonely average": {"psu": "town", "lonely_psu": "average"},
    "lonely centred": {"psu": "town", "lonely_psu": "centred"},
}


@pytest.mark.parametrize("name", DESIGNS)
def test_the_release_estimates_under_the_design_of_its_job(name: str, tmp_path: Path) -> None:
    rows = survey().assign(size_of_region=150.0)
    if name.startswith("lonely"):
        rows.loc[rows["region"] == "w", "town"] = "a"
    said = job(DESIGNS[name])
    cells, found = in_the_release(said, rows, tmp_path)
    expected = held_whole(said, rows, cells)
    for statistic in ("count", "mean", "total"):
        np.testing.assert_allclose(found[statistic], expected[statistic], rtol=1e-9, atol=1e-9)


def errors_of(said: Job, rows: pd.DataFrame, folder: Path) -> tuple[Cells, np.ndarray, np.ndarray]:
    """Cells, and standard errors (statistic, cell) as designed and given the base cells' numbers of records."""
    rows.to_parquet(folder / "survey.parquet")
    plan = make_plan(said, folder / "survey.parquet", silent)
    found = totals([place(said, plan.source, plan.census, folder)], plan.crosstab, said.survey.psu is not None)
    cells, design = cross(plan.crosstab, said.tables[0].by, margins=True), design_of(said, plan.census)
    designed = np.sqrt([each.variance for each in direct(found, plan.crosstab, cells, design)])
    return cells, designed, errors_given_sizes(found, plan.crosstab, cells, design)


def test_errors_given_sizes_take_base_cells_as_strata(tmp_path: Path) -> None:
    """By hand: Σ n/(n−1) Σ(w − w̄)² over a cell's base cells, and the same of w(y − R)/Ŵ; also of a finite population."""
    rows = survey().assign(size_of_region=150.0)
    base = rows.groupby(["region", "sex", "field"])
    assert base.size().min() > 1
    for fpc in (False, True):
        cells, _, given = errors_of(job({"fpc": "size_of_region"} if fpc else {}), rows, tmp_path)
        free = 1.0 - rows["region"].map(rows.groupby("region").size()) / 150.0 if fpc else pd.Series(1.0, rows.index)
        for k, label in enumerate(cells.labels):
            own = pd.Series(True, rows.index)
            for name, level in zip(cells.by, label, strict=True):
                own &= (rows[name] == level) | (level == TOTAL)
            inside = rows[own]
            if inside.empty:
                continue
            ratio = np.average(inside["salary"], weights=inside["weight"])
            linear = {
                "count": inside["weight"],
                "mean": inside["weight"] * (inside["salary"] - ratio) / inside["weight"].sum(),
                "total": inside["weight"] * inside["salary"],
            }
            for found, u in zip(given[:, k], linear.values(), strict=True):
                parts = u.groupby([inside["region"], inside["sex"], inside["field"]])
                share = free[own].groupby([inside["region"], inside["sex"], inside["field"]]).first()
                assert found == pytest.approx(np.sqrt((share * parts.size() * parts.var()).sum()), rel=1e-9)


def test_a_base_cell_of_a_single_record_has_the_variance_of_the_others_given_sizes() -> None:
    """500 files of rows with 1 to 3 records, of one law: variances given sizes have the mean of squared errors of the mean
    count. Such rows counted as certain once, as the control does: then variances are far too small. Unknown where all rows
    have one record.
    """
    rng, size = np.random.default_rng(3), np.array([1] * 12 + [2] * 4 + [3] * 2 + [1, 1])
    codes = {"cell": np.array([0] * 18 + [1] * 2, dtype=np.int32), "row": np.arange(20, dtype=np.int32)}
    crosstab = Crosstab(codes, {"cell": ("a", "b"), "row": tuple(range(20))}, size, (), ())
    cells, row, given = cross(crosstab, ("cell",), margins=False), np.repeat(np.arange(20), size), list[np.ndarray]()
    for _ in range(500):
        weight = rng.normal(10.0, 2.0, len(row))
        sums = PsuSums(*(np.bincount(row, part) for part in (weight, weight, weight**2, weight**2, weight**2)))
        ends = np.zeros(len(size)), np.zeros(len(size))
        given.append(errors_given_sizes(Totals(sums, ends, ends, None), crosstab, cells, SamplingDesign("certainty"))[0])
    variance = np.square(np.array(given))
    assert np.isnan(variance[:, 1]).all()
    assert variance[:, 0].mean() == pytest.approx(4.0 * size[:18].sum(), rel=0.1)
    assert (variance[:, 0] * 14 / 26).mean() < 0.7 * 4.0 * size[:18].sum()


def test_the_designed_error_of_a_count_holds_the_chance_in_its_size_and_the_given_one_does_not(tmp_path: Path) -> None:
    """No design strata; where weights are alike in a base cell only that chance is left. Control: cells that are strata."""
    rows, plain = survey(), job({"design_strata": []})
    rows["weight"] = rows["field"].map({"arts": 7.0, "law": 9.0})
    cells, designed, given = errors_of(plain, rows, tmp_path)
    inner = [k for k, label in enumerate(cells.labels) if label != (TOTAL, TOTAL) and "none" not in label]
    assert (given[0, inner] == 0).all()
    assert (designed[0, inner] > 7.0).all()
    _, designed, given = errors_of(plain, survey(), tmp_path)
    assert (given[0, inner] < 0.8 * designed[0, inner]).all()
    np.testing.assert_allclose(given[1, inner], designed[1, inner], rtol=0.15, err_msg="means hardly differ")
    _, designed, given = errors_of(job({"design_strata": ["sex", "field"]}), survey(), tmp_path)
    np.testing.assert_allclose(given[:, inner], designed[:, inner], rtol=1e-9)


def test_there_is_no_error_given_sizes_where_psus_are_drawn(tmp_path: Path) -> None:
    assert np.isnan(errors_of(job({"psu": "town"}), survey(), tmp_path)[2]).all()


def test_the_lonely_rules_are_told_apart(tmp_path: Path) -> None:
    """By hand: of three strata one has a single PSU. Its part is 0, the others' mean, or its own deviation squared."""
    rows = survey()
    rows.loc[rows["region"] == "w", "town"] = "a"
    psus = rows.groupby(["region", "town"])["weight"].sum()
    parts = [len(t) / (len(t) - 1) * ((t - t.mean()) ** 2).sum() for t in (psus["n"], psus["s"])]
    own = (psus["w", "a"] - psus.mean()) ** 2
    by_hand = {"certainty": sum(parts), "average": 1.5 * sum(parts), "centred": sum(parts) + own}
    for rule, variance in by_hand.items():
        found = in_the_release(job({"psu": "town", "lonely_psu": rule}), rows, tmp_path)[1]["count"][1][-1]
        assert found == pytest.approx(np.sqrt(variance), rel=1e-9)


def test_an_empty_cell_has_no_mean_and_one_without_variance_no_error(tmp_path: Path) -> None:
    rows = survey()
    flat = (rows["sex"] == "f") & (rows["field"] == "arts")
    rows.loc[flat, "salary"] = 30_000.0
    cells, found = in_the_release(job({"psu": "town"}), rows, tmp_path)
    empty, constant = cells.labels.index(("f", "none")), cells.labels.index(("f", "arts"))
    assert found["count"][:2, empty].tolist() == [0.0, 0.0]
    assert np.isnan(found["mean"][:2, empty]).all()
    assert found["mean"][0, constant] == pytest.approx(30_000.0)
    assert found["mean"][1, constant] == pytest.approx(0.0, abs=1e-7)


def problems(said: Job, rows: pd.DataFrame, folder: Path) -> str:
    rows.to_parquet(folder / "survey.parquet")
    with pytest.raises(DataError) as raised:
        make_plan(said, folder / "survey.parquet", silent)
    return str(raised.value)


def test_a_design_that_the_file_does_not_have_is_refused_with_its_remedy(tmp_path: Path) -> None:
    rows = survey()
    lonely = rows.assign(town=rows["town"].where(rows["region"] != "w", "a"))
    said = problems(job({"psu": "town"}), lonely, tmp_path)
    assert "a single PSU (w)" in said
    assert "lonely_psu: certainty, average or centred" in said
    spoilt = rows.assign(rep3=rows["rep3"].where(rows.index != 7))
    assert "rep3: missing replicate weights (row 8)" in problems(job({"replicate_weights": REPLICATES}), spoilt, tmp_path)
    small = problems(job({"psu": "town", "fpc": "towns"}), rows.assign(towns=3.0), tmp_path)
    assert "towns: fewer PSUs in a stratum's population than in the sample" in small
    mixed = problems(job({"psu": "town", "fpc": "weight2"}), rows.assign(weight2=np.arange(240) % 2 + 9), tmp_path)
    assert "weight2: different sizes in one design stratum" in mixed
    tight = problems(job({"psu": "town", "fpc": ["towns", "size"]}), rows.assign(size=2.0), tmp_path)
    assert "size: fewer records in a PSU's population than in the sample" in tight
    first = rows[~((rows["region"] == "w") & (rows["town"] == "a") & rows.duplicated(["region", "town"]))]
    lone = problems(job({"psu": "town", "fpc": ["towns", "size"]}), first, tmp_path)
    assert "size: a single record sampled from a larger PSU" in lone


@pytest.mark.parametrize("number", [4, 12])
def test_a_wrong_number_of_replicate_weights_is_refused(number: int, tmp_path: Path) -> None:
    said = problems(job({"replicate_weights": {**REPLICATES, "number": number}}), survey(), tmp_path)
    assert f"8 columns rep<number>, not {number}" in said


def test_a_psu_without_a_record_in_the_universe_was_sampled_too(tmp_path: Path) -> None:
    """As in a domain of R's: its total is 0. By hand for the count; control: the same without the fourth PSU."""
    rows = survey().assign(status="in")
    rows.loc[(rows["region"] == "n") & (rows["town"] == "d"), "status"] = "out"
    universe = {"universe": [{"column": "status", "keep": ["in"]}]}
    said = Job.model_validate(job({"psu": "town"}).model_dump() | universe)
    inside = rows[rows["status"] == "in"]
    psus = inside.groupby(["region", "town"])["weight"].sum()
    parts = [np.append(psus["n"].to_numpy(), 0.0), psus["s"].to_numpy(), psus["w"].to_numpy()]
    variance = sum(len(t) / (len(t) - 1) * ((t - t.mean()) ** 2).sum() for t in parts)
    found = in_the_release(said, rows, tmp_path)[1]["count"][1][-1]
    assert found == pytest.approx(np.sqrt(variance), rel=1e-9)
    assert in_the_release(said, inside, tmp_path)[1]["count"][1][-1] < 0.9 * found


def test_a_census_of_a_stratum_is_not_lonely(tmp_path: Path) -> None:
    """One PSU of a population of one: nothing was sampled there."""
    rows = survey()
    rows.loc[rows["region"] == "w", "town"] = "a"
    rows["towns"] = rows["region"].map({"n": 9.0, "s": 12.0, "w": 1.0})
    found = in_the_release(job({"psu": "town", "fpc": "towns"}), rows, tmp_path)[1]
    rest = rows[rows["region"] != "w"]
    alone = in_the_release(job({"psu": "town", "fpc": "towns"}), rest, tmp_path)[1]
    assert found["count"][1][-1] == pytest.approx(alone["count"][1][-1], rel=1e-9)


@pytest.mark.parametrize("name", ["records", "PSUs", "two stages", "replicates"])
def test_outcomes_are_also_read_as_they_stand_in_the_file(name: str, tmp_path: Path) -> None:
    """Half of the salaries lie beyond bounds that clip: direct estimates are those of the file before that."""
    rows = survey()
    rows.to_parquet(tmp_path / "survey.parquet")
    said = job(DESIGNS[name])
    said.columns["salary"] = said.columns["salary"].model_copy(update={"bounds": (0.0, 22000.0), "outside": "clip"})
    plan = make_plan(said, tmp_path / "survey.parquet", silent)
    cells = cross(plan.crosstab, said.tables[0].by, margins=True)
    more = design_of(said, plan.census), replicate_sums(said, plan.source, plan.crosstab)
    expected = held_whole(said, rows, cells)
    found = totals(records_as_they_came(said, plan.source, plan.census, 0), plan.crosstab, said.survey.psu is not None)
    stored = totals([place(said, plan.source, plan.census, tmp_path)], plan.crosstab, said.survey.psu is not None)
    as_stored = dict(zip(STATISTICS, direct(stored, plan.crosstab, cells, *more), strict=True))
    for statistic, estimate in zip(STATISTICS, direct(found, plan.crosstab, cells, *more), strict=True):
        given = np.array([estimate.value, np.sqrt(estimate.variance)])
        np.testing.assert_allclose(given, expected[statistic][:2], rtol=1e-9, atol=1e-9)
        if statistic != "count":
            assert (as_stored[statistic].value < 0.95 * estimate.value)[estimate.value > 0].all()


def test_a_file_that_changed_since_the_census_is_not_read_again(tmp_path: Path) -> None:
    survey().to_parquet(tmp_path / "survey.parquet")
    said = job({})
    said.columns["salary"] = said.columns["salary"].model_copy(update={"bounds": (0.0, 22000.0), "outside": "clip"})
    plan = make_plan(said, tmp_path / "survey.parquet", silent)
    survey().head(200).to_parquet(tmp_path / "survey.parquet")
    with pytest.raises(DataError, match="changed while it was read"):
        list(records_as_they_came(said, plan.source, plan.census, 0))


def of_alike_strata(spread: float) -> tuple[Any, Any, Cells, Any]:
    """40 strata of 9 to 400 records whose weights vary by `spread` of them, and an outcome that is one within each."""
    rng = np.random.default_rng(3)
    size = rng.integers(9, 400, 40)
    stratum = np.repeat(np.arange(40), size)
    weight = np.exp(rng.normal(6.0, 1.0, 40))[stratum] * (1.0 + spread * rng.standard_normal(len(stratum)))
    codes = {"region": np.arange(40, dtype=np.int32)}
    crosstab = Crosstab(
        codes, {"region": tuple(np.char.mod("%02d", np.arange(40)))}, size.astype(np.int64), (), ("region",)
    )
    outcome = np.full(len(stratum), 1.0 / 3.0)
    records = Records.of_outcomes(outcome, weight, stratum.astype(np.int32))
    found = totals([records.part(k, k + 500) for k in range(0, len(records), 500)], crosstab, False)
    return found, crosstab, cross(crosstab, ["region"], margins=True), records


def test_a_standard_error_that_is_rounding_is_0() -> None:
    """Weights that are one within every design stratum, as calibrated ones: counts have no sampling error, nor has a
    constant outcome's mean. Plain sums of squares make 1e-10 of the estimate of it, which is no unit for errors."""
    found, crosstab, cells, _ = of_alike_strata(0.0)
    plain = counts_and_means(found.sums, crosstab, cells)
    assert (plain[0].variance > 0).any(), "the sums are exact here: the case shows nothing"
    for estimate in direct(found, crosstab, cells):
        assert (estimate.variance == 0.0).all()


@pytest.mark.parametrize("spread", [1e-5, 1e-3, 0.3])
def test_a_small_standard_error_that_is_none_of_rounding_stays(spread: float) -> None:
    found, crosstab, cells, records = of_alike_strata(spread)
    count = direct(found, crosstab, cells)[0]
    expected = np.zeros(len(cells))
    for k in range(40):
        own = records.weight[records.row == k]
        expected[k] = len(own) * np.var(own, ddof=1)
    expected[40] = expected[:40].sum()
    np.testing.assert_allclose(np.sqrt(count.variance), np.sqrt(expected), rtol=2e-3)
    assert (count.variance > 0).all()

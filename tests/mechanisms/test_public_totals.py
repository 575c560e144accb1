"""Tables of `reference_tables` meet the public totals that a job states, with a reference and without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from public_files import statement_of

import dpdist
from dpdist.core.errors import DataError, JobError
from dpdist.core.records import TOTAL
from dpdist.job import Job
from dpdist.release import cautions

REFERENCE = "reference: {path: before.parquet}\n"
ALL = "rake: [{by: [], totals: {Total: 250000}}]\n"
BY_SEX = "rake: [{by: [sex], totals: {f: 140000, m: 110000}}]\n"
JOB = """
dataset: totals
period: "2021"
input: {path: now.parquet}
columns:
  field: {levels: [arts, law, medicine]}
  sex: {levels: [f, m]}
  salary: {bounds: [0, 150000], outside: clip}
  weight: {bounds: [1, 3000], outside: clip}
survey: {weight: weight}
outcome: salary
mechanism: {name: tables}
budget: {epsilon: "1"}
tables:
  - {name: salaries, by: [field, sex], statistics: [count, {mean: salary}, {total: salary}]}
runtime: {executor: serial}
"""


def survey(seed: int, n: int = 3000) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    field, sex = rng.choice(3, n, p=[0.2, 0.3, 0.5]), rng.choice(2, n)
    salary = np.minimum(np.exp(rng.normal(10.6 + 0.2 * field, 0.5, n)), 150_000.0)
    weight = np.clip(np.exp(rng.normal(4.0, 0.7, n)), 1.0, 3000.0)
    columns = {"field": np.array(["arts", "law", "medicine"])[field], "sex": np.array(["f", "m"])[sex]}
    return pd.DataFrame(columns | {"salary": salary, "weight": weight})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("totals")
    survey(1).to_parquet(found / "now.parquet")
    survey(2).to_parquet(found / "before.parquet")
    return found


def job(folder: Path, *said: str) -> Job:
    text = JOB + "".join(said)
    return dpdist.parse_job(text.replace("now.parquet", f"{folder}/now.parquet").replace("before.", f"{folder}/before."))


def released(folder: Path, workspace: Path, *said: str) -> tuple[pd.DataFrame, Path]:
    public = dpdist.run(job(folder, *said), workspace)
    table = pd.read_parquet(public / "tables" / "salaries.parquet")
    return table[table["estimator"] == "parameters"].set_index(["statistic", "field", "sex"]).sort_index(), public


@pytest.mark.parametrize("reference", [REFERENCE, ""], ids=["reference", "histograms"])
def test_the_grand_total_is_the_public_one_and_intervals_know_it(folder: Path, tmp_path: Path, reference: str) -> None:
    """Control: without the total the grand count is another, with an error; shares of cells do not change."""
    plain, _ = released(folder, tmp_path / "plain", reference)
    table, public = released(folder, tmp_path / "met", reference, ALL)
    grand, before = (found.loc[("count", TOTAL, TOTAL)] for found in (table, plain))
    assert (grand["estimate"], grand["standard_error"], grand["lower"], grand["upper"]) == (250_000, 0, 250_000, 250_000)
    assert before["standard_error"] > 500
    assert table.loc[("count", "law", "f"), "standard_error"] > 100
    assert table.loc[("mean", TOTAL, TOTAL), "standard_error"] > 100
    cells = table.loc["count"].drop(index=TOTAL, level="field").drop(index=TOTAL, level="sex")["estimate"]
    assert cells.sum() == pytest.approx(250_000, rel=1e-9)
    product = table.loc["count", "estimate"] * table.loc["mean", "estimate"]
    np.testing.assert_allclose(table.loc["total", "estimate"], product, rtol=1e-9)
    records = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    assert records["weight"].sum() == pytest.approx(250_000, rel=1e-9)
    told = statement_of(public)
    assert any("raked to the public totals by all records" in step for step in told["post_processing"])


def test_a_margin_is_the_public_one_and_its_cells_vary_within_it(folder: Path, tmp_path: Path) -> None:
    table, _ = released(folder, tmp_path / "ws", BY_SEX)
    for sex, total in (("f", 140_000), ("m", 110_000)):
        own = table.loc[("count", slice(None), sex), :]
        assert own.loc[("count", TOTAL, sex), "estimate"] == pytest.approx(total, rel=1e-9)
        assert own.loc[("count", TOTAL, sex), "standard_error"] < 1e-6 * total
        assert (own.drop(index=TOTAL, level="field")["standard_error"] > 100).all()


@pytest.mark.parametrize(
    ("rakes", "told"),
    [
        ("{by: [], totals: {all: 1000}}", "'all' is not a combination of levels of all records"),
        (
            "{by: [], totals: {Total: 1000}}, {by: [sex], totals: {f: 500, m: 400}}",
            "the totals sum to 900, those of all records to 1000",
        ),
        (
            "{by: [sex], totals: {f: 150000, m: 100000}}, {by: [sex, field], totals: {f / arts: 40000, f / law: 40000, "
            "f / medicine: 40000, m / arts: 40000, m / law: 40000, m / medicine: 50000}}",
            "the totals sum to 120000 in f, those of sex to 150000",
        ),
    ],
)
def test_totals_that_contradict_each_other_are_refused(folder: Path, rakes: str, told: str) -> None:
    """The last two margins have one grand total: they differ by sex alone."""
    with pytest.raises(JobError, match=told):
        dpdist.validate(job(folder, f"rake: [{rakes}]\n"))


def with_level(old: str, new: str, *said: str) -> Job:
    return dpdist.parse_job((JOB + "".join(said)).replace(old, new))


def test_levels_that_hold_a_slash_are_summed_as_levels() -> None:
    """Totals by sex, and by sex and a field named "arts / music", agree. Control: with 1 more in the field they do not."""
    cells = "f / arts / music: 4, f / law: 5, f / medicine: 6, m / arts / music: 7, m / law: 8, m / medicine: {}"
    rake = "rake: [{{by: [sex], totals: {{f: 15, m: 24}}}}, {{by: [sex, field], totals: {{{}}}}}]\n"
    with_level("levels: [arts, ", "levels: [arts / music, ", rake.format(cells.format(9)))
    with pytest.raises(JobError, match="sum to 25 in m, those of sex to 24"):
        with_level("levels: [arts, ", "levels: [arts / music, ", rake.format(cells.format(10)))


def test_combinations_of_one_label_are_refused() -> None:
    """Field "a / b" and sex "f" read as field "a" and sex "b / f" does."""
    rake = "rake: [{by: [field, sex], totals: {a / b / f: 1}}]\n"
    text = (JOB + rake).replace("[arts, law, medicine]", "[a, a / b]").replace("levels: [f, m]", "levels: [f, b / f]")
    with pytest.raises(JobError, match="'a / b / f' stands for two combinations of levels"):
        dpdist.parse_job(text)


def test_totals_below_the_number_of_records_are_named_before_the_run(folder: Path) -> None:
    """3,000 records: totals in thousands are below them. Control: a total of as many as there are records."""
    wider = "bounds: [0.01, 3000]"

    def named(total: int) -> list[str]:
        text = (JOB + ALL).replace("250000", str(total)).replace("bounds: [1, 3000]", wider)
        plan = dpdist.plan(dpdist.parse_job(text.replace("now.parquet", f"{folder}/now.parquet")))
        return [str(caution) for caution in cautions(plan) if caution.code == "low_public_totals"]

    (line,) = named(250)
    assert "rake, all records: public totals are smaller than the number of sample records (Total)" in line
    assert named(3000) == []


def test_totals_that_weights_within_their_bounds_cannot_have_are_refused(folder: Path) -> None:
    """3,000 records of weights up to 3,000. Control: one unit less is allowed."""
    too_many = "rake: [{by: [], totals: {Total: 9000001}}]\n"
    with pytest.raises(DataError, match="totals beyond what weights from 1 to 3000 can add up to"):
        dpdist.validate(job(folder, too_many))
    dpdist.validate(job(folder, too_many.replace("9000001", "9000000")))

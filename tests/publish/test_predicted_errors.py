"""Published figures that may be far from direct ones are named by table, statistic and cell: margins too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from trucks import JOB as OF_TRUCKS, trucks

import dpdist
from dpdist.core.keys import Key
from dpdist.core.records import TOTAL, counted_and_named
from dpdist.opening.results import open_evaluation
from dpdist.publish import predicted_errors
from dpdist.publish.predicted_errors import FAR_NAMED


def test_a_line_counts_margins_and_base_cells_and_names_margins_first() -> None:
    labels = [("a", "x"), ("a", TOTAL), *((f"b{k}", "x") for k in range(20))]
    text = counted_and_named(labels)
    assert text.startswith("1 margin and 21 base cells (a, Total; a, x; b0, x")
    assert text.endswith("; and 12 more)")
    assert counted_and_named([("a",)]) == "1 base cell (a)"


ON_REFERENCE = """
dataset: small
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  field: {{levels: [a, b, c, d, e, f]}}
  salary: {{bounds: [0, 150000], outside: clip}}
survey: {{weight: weight}}
outcome: salary
mechanism: {{name: tables}}
budget: {{epsilon: "0.05", adjacency: zero_out}}
reference: {{path: {folder}/before.parquet, period: "2020", provenance: simulated}}
withhold_above: null
tables:
  - {{name: salaries, by: [field], statistics: [count, {{mean: salary}}]}}
runtime: {{executor: serial}}
"""


def salaries(rng: np.random.Generator, records: int) -> pd.DataFrame:
    """A file with this many records in every field, whose weights and salaries have the same laws in every period."""
    field = np.repeat(np.arange(6), records)
    salary = np.minimum(np.exp(rng.normal(10.3 + 0.03 * field, 0.6)), 150_000.0)
    return pd.DataFrame(
        {"field": np.array(list("abcdef"))[field], "salary": salary, "weight": np.exp(rng.normal(4.0 + 0.05 * field, 0.6))}
    )


@pytest.mark.parametrize(("of_reference", "shift"), [(30, 0.0), (30, 1e7), (20_000, 0.0)])
def test_figures_that_rest_on_a_small_reference_are_not_said_to_be_as_accurate_as_direct_ones(
    of_reference: int, shift: float, tmp_path: Path
) -> None:
    """Wherever the outcome's scale begins. At this ε, estimates of 1,000 records of a field are nearly the reference's own.
    A mean rests on its field's 30 records, and on 180 of all fields where these are alike. So it errs by √(1000/180) = 2.4
    to √(1000/30) = 5.8 direct errors, and all means are named. Control: with 20,000 records no field's figure is; that of
    all records may be, because noise at this ε hides drift that all have in common. In both cases figures that are off by
    over 4 are named.
    """
    rng = np.random.default_rng(7)
    for name, records in (("now", 1_000), ("before", of_reference)):
        salaries(rng, records).eval(f"salary = salary + {shift}").to_parquet(tmp_path / f"{name}.parquet")
    job = ON_REFERENCE.format(folder=tmp_path).replace("[0, 150000]", f"[{shift:.0f}, {150_000 + shift:.0f}]")
    release = dpdist.run(
        dpdist.parse_job(job),
        tmp_path / "ws",
        study=Key(bytes(32)).child("small reference"),
    )
    errors = open_evaluation(tmp_path / "ws")["salaries"].set_index(["statistic", "field"])["synthetic_error_in_se"].abs()
    named = release.statement.get("beyond_direct", {}).get("tables", {}).get("salaries", {})
    ratios = pd.Series({(name.split()[0], cell): ratio for name, cells in named.items() for cell, ratio in cells.items()})
    assert set(errors.index[errors > FAR_NAMED]) <= set(ratios.index)
    wide, note = release.tables.wide("salaries"), "if the cautions name it as one that may be far off"
    flags = {("mean", cell): flag for cell, flag in wide.get("Mean of salary, flag", pd.Series()).items()}
    assert {key for key in ratios.index if key[0] == "mean"} <= {key for key, flag in flags.items() if flag == "caution"}
    html = (release.folder / "index.html").read_text(encoding="utf-8")
    assert (note in html) == bool(len(ratios))
    assert html.count('<span class="flag caution">') >= len(ratios)
    if of_reference > 1_000:
        assert {cell for _, cell in ratios.index} <= {"Total"}
        return
    assert (errors > FAR_NAMED).any()
    assert set(ratios["mean"].index) == set(errors["mean"].index)
    assert np.sqrt(1_000 / 180) <= ratios["mean"].median() <= np.sqrt(1_000 / 30)


def test_files_of_one_weight_give_no_alarm_and_a_weight_that_grows_is_told(tmp_path: Path) -> None:
    """The number of records fixes the count of all, and only noise moves it. Control: one field's weights grow by 1.3."""
    job = dpdist.parse_job(ON_REFERENCE.format(folder=tmp_path).replace('"0.05"', '"1"'))
    for draw in range(2):
        rng, (before, now) = np.random.default_rng(draw), (tmp_path / "before.parquet", tmp_path / "now.parquet")
        salaries(rng, 1_000).assign(weight=40.0).to_parquet(before)
        rows = salaries(rng, 1_000).assign(weight=40.0)
        rows.to_parquet(now)
        still = dpdist.run(job, tmp_path / f"still-{draw}", study=Key(bytes(32)).child(f"one weight {draw}")).statement
        assert "beyond_direct" not in still
        assert not any("Weights, over all records," in caution for caution in still.get("cautions", []))
        rows.assign(weight=np.where(rows["field"] == "c", 52.0, 40.0)).to_parquet(now)
        grown = dpdist.run(job, tmp_path / f"grown-{draw}", study=Key(bytes(32)).child(f"grown {draw}")).statement
        assert any("Weights, over all records," in caution for caution in grown["cautions"])


@pytest.mark.slow
def test_without_a_reference_figures_far_off_are_named_where_weights_differ_by_cell(tmp_path: Path) -> None:
    """Weights of 3 to 37,000 by type, which vary little within a cell: the law of all weights overstates direct errors.

    Measured under this noise at ε = .15: .95 of counts, .84 of means and .96 of totals that are off by over 4 are named.
    Control: not all figures are named.
    """
    trucks().to_parquet(tmp_path / "trucks.parquet")
    release = dpdist.run(
        dpdist.parse_job(OF_TRUCKS.replace('epsilon: "1"', 'epsilon: "0.15"')),
        tmp_path / "ws",
        input=tmp_path / "trucks.parquet",
        study=Key(bytes(32)).child("weights"),
    )
    named = {name.split()[0]: set(cells) for name, cells in release.statement["beyond_direct"]["tables"]["trucks"].items()}
    for statistic, rows in open_evaluation(tmp_path / "ws")["trucks"].groupby("statistic"):
        cells = rows["state"] + ", " + rows["type"]
        off = rows["synthetic_error_in_se"].abs() > FAR_NAMED
        assert off.sum() > 100
        assert cells[off].isin(named[str(statistic)]).mean() > 0.8
        assert len(named[str(statistic)]) < 0.8 * len(cells)


def test_figures_of_records_that_are_all_alike_are_not_named_where_they_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Direct errors are nearly 0, and figures at ε = 10,000 are right to .0001. Control: some are named without a size
    below which none is."""
    rng = np.random.default_rng(9)
    for name in ("now", "before"):
        rows = salaries(rng, 400).assign(area=rng.integers(0, 5, 2_400), kind=rng.integers(0, 3, 2_400))
        number = rows["field"].map("abcdef".index)
        rows["salary"] = 1_000.0 * (number + 1) + 137.0 * rows["area"] * (rows["area"] > 2)
        rows["weight"] = 10.0 + 5.0 * rows["kind"]
        rows.to_parquet(tmp_path / f"{name}.parquet")
    job = ON_REFERENCE.format(folder=tmp_path).replace('"0.05"', '"10000"').replace("zero_out", "substitution")
    job += "publish: always\n"
    further = (
        "  area: {levels: [0, 1, 2, 3, 4]}\n  kind: {levels: [0, 1, 2]}\n  weight: {bounds: [1, 100], outside: clip}\n"
    )
    job = job.replace("  salary: {bounds", f"{further}  salary: {{bounds")
    tables = [["field", "area"], ["field", "kind"], ["area", "kind"], ["field", "area", "kind"]]
    statistics = "margins: true, statistics: [count, {mean: salary}]"
    listed = "".join(f"  - {{name: {'_'.join(by)}, by: [{', '.join(by)}], {statistics}}}\n" for by in tables)
    job = job.replace("  - {name: salaries, by: [field], statistics: [count, {mean: salary}]}\n", listed)
    usual, found = predicted_errors.NEVER_FAR, {}
    for size in (usual, 0.0):
        monkeypatch.setattr(predicted_errors, "NEVER_FAR", size)
        release = dpdist.run(dpdist.parse_job(job), tmp_path / f"ws-{size}", study=Key(bytes(32)).child("alike"))
        found[size] = "beyond_direct" in release.statement
    errors = open_evaluation(tmp_path / "ws-0.0")["field_area"].query("statistic == 'mean'")
    assert ((errors["synthetic"] / errors["direct"] - 1.0).abs() < 1e-4).all()
    assert found == {usual: False, 0.0: True}

"""Published figures that may be far from direct ones are named by table, statistic and cell: margins too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from first_year import job_text, rows_of
from small_release import JOB, survey
from trucks import HEAVIEST, trucks
from trucks import JOB as OF_TRUCKS

import dpdist
from dpdist.cli.report import report
from dpdist.core.keys import Key
from dpdist.core.records import TOTAL, Floats
from dpdist.core.table_cells import cell_name, counted_and_named, cross, is_margin
from dpdist.models.outputs import DRAWS
from dpdist.opening.results import open_evaluation
from dpdist.planning.noise_of_counts import in_words
from dpdist.publish.folder import grounds_of
from dpdist.publish.predicted_errors import FAR, FAR_NAMED, beyond_direct, cautions, entry, predicted, within_cells
from dpdist.publish.public_bounds import expectations
from dpdist.publish.released import ReleasedObject, read_released
from dpdist.publish.standard_errors import Spread, Spreads
from dpdist.publish.tables import Grounds
from dpdist.quality.predicted.errors import replicate, truths_of
from dpdist.quality.predicted.population import Population
from dpdist.quality.predicted.replicates import release_of, tables_of
from dpdist.survey.reference_file import ReferenceFile


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ReleasedObject:
    folder = tmp_path_factory.mktemp("small")
    survey(8000).to_parquet(folder / "survey.parquet")
    dpdist.run(dpdist.parse_job(JOB), folder / "ws", input=folder / "survey.parquet")
    return read_released(folder / "ws" / "public" / "released")


def under_common_errors(release: ReleasedObject, size: float, common: bool) -> Grounds:
    """Spreads whose noise has this many direct standard errors in every base cell: one error for all, or one for each."""
    (weight, product), n = expectations(release)[0], release.frame.count.astype(float)
    drawn = np.random.default_rng(1).standard_normal((DRAWS, 1 if common else len(n)))
    factor = 1.0 + size * drawn / np.sqrt(n)
    still = Spread(weight[None], product[None])
    noised = Spread(weight * factor, np.broadcast_to(product, factor.shape))
    return Grounds([(weight, product)], (), Spreads((still, still, noised, still, still)))


def test_a_margin_is_named_where_it_alone_is_far_off(small: ReleasedObject) -> None:
    """Four base cells of 1.4 direct errors with one common error make a total of about 2.8. Controls: with errors of their
    own no figure is named, and with a common one of .5 none is, either."""
    far = beyond_direct(small, {"salary": under_common_errors(small, 1.4, common=True)})
    named = far["counts"]["count"]
    assert (TOTAL, TOTAL) in named
    assert named[TOTAL, TOTAL] > FAR
    assert all(is_margin(label) for label in named)
    (said,) = [text for text in map(str, cautions(far)) if "count:" in text]
    assert "margin" in said
    assert cell_name((TOTAL, TOTAL)) in said
    assert "base cell" not in said
    assert entry(far)["beyond_direct"]["tables"]["counts"]["count"]["Total, Total"] > FAR
    for size, common in ((1.4, False), (0.5, True)):
        assert "count" not in beyond_direct(small, {"salary": under_common_errors(small, size, common)}).get("counts", {})


def test_a_line_counts_margins_and_base_cells_and_names_margins_first() -> None:
    labels = [("a", "x"), ("a", TOTAL), *((f"b{k}", "x") for k in range(20))]
    text = counted_and_named(labels)
    assert text.startswith("1 margin and 21 base cells (a, Total; a, x; b0, x")
    assert text.endswith("; and 12 more)")
    assert counted_and_named([("a",)]) == "1 base cell (a)"


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trucks")
    trucks().to_parquet(folder / "trucks.parquet")
    dpdist.run(dpdist.parse_job(OF_TRUCKS), folder / "ws", input=folder / "trucks.parquet")
    return folder / "ws"


def direct_errors() -> pd.DataFrame:
    """Direct standard errors of the counts of all margins of trucks."""
    rows, n = trucks(), len(trucks())
    found = {}
    for name in ("state", "type"):
        for level, own in rows.groupby(name)["weight"]:
            label = (level, TOTAL) if name == "state" else (TOTAL, level)
            found[label] = np.sqrt((own**2).sum() - own.sum() ** 2 / n)
    return pd.Series(found)


def test_every_margin_whose_noise_is_over_four_direct_errors_is_in_the_statement(space: Path) -> None:
    """Noise of k base cells has the standard deviation √k √2 · 2 · 37,000 at ε = 1. Control: not every margin is."""
    statement = json.loads((space / "public" / "statement.json").read_text())
    named = statement["beyond_direct"]["tables"]["trucks"]["count"]
    release = read_released(space / "public" / "released")
    cells = cross(release.frame, ("state", "type"), True)
    noise = pd.Series(np.sqrt(2.0 * np.asarray(cells.membership.sum(axis=1))) * 2 * HEAVIEST, pd.Index(cells.names))
    direct = direct_errors()
    bad = [label for label in direct.index if noise[cell_name(label)] > 4.0 * direct[label]]
    assert len(bad) > 10
    assert {cell_name(label) for label in bad} <= named.keys()
    text = " ".join(statement["cautions"])
    assert "trucks, count: figures may be more than 4 direct standard errors off" in text
    assert "margins and" in text
    assert "trucks, count: figures may be more than 4" in " ".join(report(space).split())


def test_a_plan_states_the_noise_of_margins_and_what_it_hides(space: Path) -> None:
    """Control: at a hundred times the budget no count is hidden for certain."""
    job = f"{OF_TRUCKS}input: {{path: {space.parent}/trucks.parquet}}\n"
    text = "\n".join(in_words(dpdist.plan(dpdist.parse_job(job))))
    assert "noise has a standard deviation of 104,652 to 3,335,751 (Total, Total), in the unit of the weight" in text
    assert "noise hides" in text
    plenty = "\n".join(in_words(dpdist.plan(dpdist.parse_job(job.replace('"1"', '"100"')))))
    assert "noise hides" not in plenty


ON_REFERENCE = """
dataset: small
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  field: {{levels: [a, b, c, d, e, f]}}
  salary: {{bounds: [0, 150000], outside: clip}}
survey: {{weight: weight}}
outcome: salary
mechanism: {{name: reference_tables}}
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


@pytest.mark.parametrize("of_reference", [30, 20_000])
def test_figures_that_rest_on_a_small_reference_are_not_said_to_be_as_accurate_as_direct_ones(
    of_reference: int, tmp_path: Path
) -> None:
    """At this ε, estimates of 1,000 records of a field are nearly the reference's own. A mean of 30 records errs by
    √(1000/30) = 5.8 direct errors, and all figures are named. Control: with 20,000 records no field is; totals are, as
    noise that fields have in common moves them. In both cases figures that are off by over 4 are named."""
    rng = np.random.default_rng(7)
    salaries(rng, 1_000).to_parquet(tmp_path / "now.parquet")
    salaries(rng, of_reference).to_parquet(tmp_path / "before.parquet")
    release = dpdist.run(
        dpdist.parse_job(ON_REFERENCE.format(folder=tmp_path)),
        tmp_path / "ws",
        study=Key(bytes(32)).child("small reference"),
    )
    errors = open_evaluation(tmp_path / "ws")["salaries"].set_index(["statistic", "field"])["synthetic_error_in_se"].abs()
    named = release.statement.get("beyond_direct", {}).get("tables", {}).get("salaries", {})
    ratios = pd.Series({(name.split()[0], cell): ratio for name, cells in named.items() for cell, ratio in cells.items()})
    assert set(errors.index[errors > FAR_NAMED]) <= set(ratios.index)
    if of_reference > 1_000:
        assert {cell for _, cell in ratios.index} <= {TOTAL}
        return
    assert (errors > FAR_NAMED).sum() > 2
    assert set(ratios.index) == set(errors.index)
    assert ratios["mean"].median() == pytest.approx(np.sqrt(1_000 / of_reference), rel=0.2)


@pytest.mark.parametrize(("name", "epsilon"), [("heaped", "0.3"), ("odd kind", "0.05")])
def test_the_statement_predicts_the_errors_that_a_plan_does(name: str, epsilon: str, tmp_path: Path) -> None:
    """Root mean squares over a plan's replicates, of all published cells.

    At the lower ε cells share a noisy sum, and follow the reference rather than their sample. The ratio was .46, as if they
    followed the sample. Control: noise alone is less.
    """
    for half, seed in (("now", 1), ("before", 2)):
        rows_of(name, seed).to_parquet(tmp_path / f"{half}.parquet")
    before = f"reference: {{path: {tmp_path}/before.parquet, provenance: simulated}}\n"
    job = dpdist.parse_job(job_text(name, f"input: {{path: {tmp_path}/now.parquet}}\n", before, epsilon))
    plan, squares, stated, of_noise = dpdist.plan(job), list[Floats](), list[Floats](), list[Floats]()
    assert isinstance(plan.reference, ReferenceFile)
    population = Population.of(job, plan.reference, plan.frame)
    truths, (table,) = truths_of(job, plan.frame, population), job.tables
    for k in range(4):
        key = Key(bytes(32)).child(f"stated {k}")
        files = replicate(job, plan.frame, population, truths, key.generator("files"))
        release = release_of(job, plan.frame, files.current, files.reference, key)
        shown = tables_of(release)[table.name]
        grounds, cells = grounds_of(release, tmp_path, records=False)[0]["income"], cross(release.frame, table.by, True)
        stated.append(np.array(predicted(release, table, cells, grounds, within_cells(release)["income"])[:2]))
        of_noise.append(np.array(predicted(release, table, cells, grounds)[:2]))
        squares.append(np.array([figures.beside(shown)["error"].to_numpy() ** 2 for figures in files.figures]))
    errors = np.sqrt(np.mean(squares, axis=0))
    ratios = np.median(np.median(stated, axis=0) / errors, axis=1)
    assert ((ratios > 0.8) & (ratios < 1.3)).all(), ratios
    assert (np.median(np.median(of_noise, axis=0) / errors, axis=1) < ratios - 0.05).all()


def test_files_of_one_weight_give_no_alarm_and_a_weight_that_grows_to_its_limit_is_named(tmp_path: Path) -> None:
    """Limits lie 1.3 times above equal weights. So after growth by 1.3 noise decides whether all weights seem beyond them.

    Half of such drifts went unnamed. Without drift the total of counts was "99 direct standard errors off" in a third of
    releases. A drift alarm without drift has a probability of at most .05 each, so two in four one of .014.
    """
    job, drifted = dpdist.parse_job(ON_REFERENCE.format(folder=tmp_path).replace('"0.05"', '"1"')), 0
    for draw in range(4):
        rng, (before, now) = np.random.default_rng(draw), (tmp_path / "before.parquet", tmp_path / "now.parquet")
        salaries(rng, 1_000).assign(weight=40.0).to_parquet(before)
        rows = salaries(rng, 1_000).assign(weight=40.0)
        rows.to_parquet(now)
        still = dpdist.run(job, tmp_path / f"still-{draw}", study=Key(bytes(32)).child(f"one weight {draw}")).statement
        assert "beyond_direct" not in still
        drifted += "drift" in still
        rows.assign(weight=np.where(rows["field"] == "c", 52.0, 40.0)).to_parquet(now)
        grown = dpdist.run(job, tmp_path / f"grown-{draw}", study=Key(bytes(32)).child(f"grown {draw}")).statement
        assert grown["drift"]["weight"] == ["c"]
    assert drifted < 2

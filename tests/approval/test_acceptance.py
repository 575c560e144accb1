"""Gates: what one record may add to a value, exactly; what is published, refused and spent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import invoke
from edited_text import edited
from named_draws import named
from small_release import JOB, survey

import dpdist
from dpdist.approval.acceptance import (
    GateFigures,
    GateResult,
    cautions,
    gate_noise,
    gate_value,
    noise_scale,
    numerator,
    order_statistic,
    refuse_unmet,
    scaled_errors,
)
from dpdist.core.errors import JobError, NotAccepted, WorkspaceError
from dpdist.core.records import UNIT, Crosstab, Floats
from dpdist.job import Statistic
from dpdist.ledger.accounts import charges, total
from dpdist.ledger.book import Ledger
from dpdist.privacy.cell_sums import CellBounds
from dpdist.privacy.proof import GATE_SENSITIVITY
from dpdist.storage.workspace import Workspace

BOUNDS = CellBounds(60.0, -1000.0, 5000.0)
SHARES = (1.0, 0.5, 0.75)
MEMBERSHIP = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1]])
"""Cells that hold each of three base cells: the cells themselves, two together, all."""
EXTREMES = [(w, y) for w in (0.0, 1e-9, 13.7, 59.0, 60.0) for y in (-1e12, -1000.0, 0.1, 5000.0, 1e12)]
OF = {"count": Statistic(name="count"), "mean": Statistic(name="mean", variable="y")}


def part(base: int, record: tuple[float, float] | None) -> Floats:
    """What a record in a base cell adds to Σa and Σb of every cell; None: it is not there."""
    rows = np.zeros((3, 2))
    if record is not None:
        rows[base] = BOUNDS.pairs(np.array([record[0]]), np.array([record[1]]))[0]
    return MEMBERSHIP @ rows


def values(of: Statistic, sums: Floats, figures: GateFigures) -> Iterator[float]:
    errors, lengths = scaled_errors(of, BOUNDS, sums, figures)
    yield from (order_statistic(errors, float(lengths.max()), share) for share in SHARES)


def published(rng: np.random.Generator, of: str, sums: Floats) -> GateFigures:
    """A release near to a file, or far from it."""
    far = rng.choice([1e-6, 0.1, 3.0])
    count = np.abs(sums[:, 0] / UNIT * 60.0 * (1 + far * rng.normal(size=5))) + 1.0
    centre = count if of == "count" else rng.uniform(-1000, 5000, 5)
    return GateFigures(centre, np.abs(centre) * rng.choice([0.01, 1.0]) + 0.5, count)


def moves(of: str, seed: int) -> Iterator[float]:
    """Differences of every gate's value between neighbouring files: one record off, there, exchanged, or moved."""
    rng = np.random.default_rng(seed)
    others = sum(
        (part(int(rng.integers(3)), (rng.uniform(0, 60), rng.uniform(-1000, 5000))) for _ in range(rng.integers(1, 40))),
        np.zeros((5, 2)),
    )
    figures = published(rng, of, others)
    chosen = [EXTREMES[k] for k in rng.choice(len(EXTREMES), 6, replace=False)]
    states = [None, *product(range(3), chosen)]
    reached = [list(values(OF[of], others + part(*(state or (0, None))), figures)) for state in states]
    for k in range(len(SHARES)):
        column = [each[k] for each in reached]
        yield max(column) - min(column)


@pytest.mark.parametrize("of", ["count", "mean"])
def test_one_record_moves_a_gate_by_no_more_than_its_sensitivity(of: str) -> None:
    """Over files, releases and extreme records, whatever the record does; and the bound is reached.

    So discrete Laplace noise of scale GATE_SENSITIVITY/ε has log ratios of at most ε under any two neighbours.
    """
    worst = max(move for seed in range(300) for move in moves(of, seed))
    assert worst <= GATE_SENSITIVITY
    assert worst > 0.9 * GATE_SENSITIVITY, "the bound is no larger than it must be"


def test_control_the_sum_of_errors_has_a_larger_sensitivity() -> None:
    """A record is in three cells here: the mean error, were it noised alike, would leak more than is said."""
    sums = np.full((5, 2), 100.0 * UNIT)
    figures = GateFigures(np.zeros(5), np.ones(5), np.full(5, 6000.0))
    here, there = (
        float(scaled_errors(OF["count"], BOUNDS, sums + part(0, state), figures)[0].sum()) for state in (None, (60.0, 0.0))
    )
    assert (there - here) / BOUNDS.weight * UNIT == pytest.approx(3 * UNIT)
    assert 3 * UNIT > GATE_SENSITIVITY


GATES = """
accept:
  epsilon: "1"
  gates:
    - {measure: largest, of: count, limit: LIMIT}
    - {measure: median, of: {mean: salary}, limit: 0.5}
    - {measure: coverage, of: count, limit: 0.5}
"""


def job(limit: float, more: str = "") -> dpdist.Job:
    return dpdist.parse_job(JOB + GATES.replace("LIMIT", str(limit)) + more)


def test_a_release_that_meets_its_gates_says_so_and_costs_its_whole_budget(tmp_path: Path) -> None:
    frame = survey(4000)
    with named("gates"):
        made = dpdist.run(job(0.9, "ledger: {}\n"), tmp_path / "ws", frame)
    said = made.statement
    assert (said["epsilon"], said["epsilon_per_set"], said["substitution_epsilon"]) == ("3", "2", "5")
    assert "ε = 1 of the total goes to the gates" in said["composition"]
    inside = "ε covers the gates' answer, but neither runs in other workspaces nor a later decision to withhold"
    assert inside in said["acceptance"]["in_words"]
    assert total(charges(Ledger(f"{tmp_path}/ledger.sqlite").entries(), "small")) == 3
    largest, median, coverage = said["acceptance"]["gates"]
    assert all(gate["accepted"] for gate in (largest, median, coverage))
    rows = made.tables["counts"]
    rows = rows[(rows["statistic"] == "count") & (rows["estimator"] == "parameters")]
    crossed = frame.pivot_table("weight", "field", "sex", "sum", margins=True, margins_name="Total")
    direct = [crossed.loc[field, sex] for field, sex in rows[["field", "sex"]].to_numpy()]
    errors = np.abs(rows["estimate"].to_numpy() - direct) / rows["estimate"].to_numpy()
    assert abs(largest["measured"] - errors.max()) < 8 * largest["noise_sd"], "oracle: pandas"
    scale = GATE_SENSITIVITY / Fraction(1, 3) * Fraction(60) / Fraction(rows["estimate"].min()) / UNIT
    assert largest["noise_sd"] == pytest.approx(float(scale) * np.sqrt(2.0))
    assert "ε does not cover it. Gates" not in dpdist.report(tmp_path / "ws", confidential=True).replace("\n", " ")
    again = dpdist.publish(tmp_path / "ws").statement
    assert again["acceptance"] == said["acceptance"]


def test_a_gates_noise_is_told_before_the_run(tmp_path: Path) -> None:
    """Oracle: the sd that a release states, times the smallest published count, and for means times |mean| too."""
    frame = survey(4000)
    with named("gates"):
        made = dpdist.run(job(0.9), tmp_path / "ws", frame)
    rows = made.tables["counts"].query("estimator == 'parameters'")
    counts = rows[rows["statistic"] == "count"]["estimate"].to_numpy()
    means = rows[rows["statistic"] == "mean"]["estimate"].abs().to_numpy()
    own = job(0.9)
    assert own.accept is not None
    of_count, of_mean, _ = (numerator(own, gate) for gate in own.accept.gates)
    largest, median, _ = made.statement["acceptance"]["gates"]
    assert largest["noise_sd"] == pytest.approx(of_count / counts.min())
    assert median["noise_sd"] == pytest.approx(of_mean / (counts * means).min())
    said = " ".join(map(str, cautions(own)))
    assert f"{of_count:,.0f} divided by the smallest listed count. " in said
    assert f"is above {of_count / 0.9:,.0f}" in said


def test_a_gate_that_its_own_noise_fails_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    """The noise of three gates at ε = 1 is √2 · 3 over the records of the smallest cell, at weights of 60."""
    frame = survey(4000)
    least = np.sqrt(2.0) * 3.0 * GATE_SENSITIVITY / UNIT / frame.groupby(["field", "sex"]).size().min()
    file = tmp_path / "records.parquet"
    frame.to_parquet(file)
    with pytest.raises(JobError, match=r"accept\.gates\[0\](.|\n)*the noise has a standard deviation of at least"):
        dpdist.run(job(0.99 * least, f"ledger: {{url: 'sqlite:///{tmp_path}/ledger.sqlite'}}\n"), tmp_path / "ws", file)
    assert not (tmp_path / "ledger.sqlite").exists()
    assert dpdist.validate(job(1.01 * least), file), "control"


def test_a_table_that_was_gated_stays_as_it_was_measured(tmp_path: Path) -> None:
    """Another table under its name, or none, is refused; one more is published, and named nowhere as gated."""
    with named("gates"):
        dpdist.run(job(0.9), tmp_path / "ws", survey(4000))
    text = JOB + GATES.replace("LIMIT", "0.9")
    own = "  - {name: counts, by: [field, sex], statistics: [count, {mean: salary}]}\n"
    more = "  - {name: fields, by: [field, sex], margins: false, statistics: [count, {mean: salary}]}\n"
    other = own.replace("counts, by: [field, sex],", "counts, by: [field, sex], margins: false,")
    assert own in text
    before = (tmp_path / "ws" / "public" / "statement.json").read_bytes()
    for tables in (other, own.replace("counts", "renamed")):
        with pytest.raises(JobError, match="counts, which the gates name"):
            dpdist.publish(tmp_path / "ws", job=text.replace(own, tables))
    assert (tmp_path / "ws" / "public" / "statement.json").read_bytes() == before
    made = dpdist.publish(tmp_path / "ws", job=text.replace(own, own + more))
    assert "fields" in made.tables
    assert made.statement["acceptance"]["tables"] == ["counts"]
    assert "and on no table that was added later" in made.statement["acceptance"]["in_words"]


def test_control_a_table_without_gates_may_be_another(tmp_path: Path) -> None:
    with named("no gates"):
        dpdist.run(dpdist.parse_job(JOB), tmp_path / "ws", survey(300))
    other = JOB.replace("counts, by: [field, sex],", "counts, by: [field, sex], margins: false,")
    assert other != JOB
    assert len(dpdist.publish(tmp_path / "ws", job=other).tables["counts"])


def test_a_unit_of_several_records_has_noise_for_all_of_them() -> None:
    """Five records of a household may each move a gate."""
    one, five = (noise_scale(job(0.5, more)) for more in ("", "privacy_unit: {column: household, most: 5}\n"))
    assert five == 5 * one


def test_a_release_that_misses_a_gate_is_not_published_however_often_it_is_run(tmp_path: Path) -> None:
    """The message holds noisy values alone, the same ones every time; the budget stays charged."""
    job_file, data = tmp_path / "job.yaml", tmp_path / "survey.parquet"
    survey(400).to_parquet(data)
    ample = JOB.replace('epsilon: "3"', 'epsilon: "1002"') + GATES.replace('epsilon: "1"', 'epsilon: "1000"')
    job_file.write_text(ample.replace("LIMIT", "5e-4") + "ledger: {}\n")  # noise is small beside the errors
    heard = []
    for _ in range(2):
        done = invoke("run", job_file, "-w", f"{tmp_path}/ws", "--input", data)
        assert done.exit_code == 1
        assert not (tmp_path / "ws" / "public").exists()
        heard.append(done.output[done.output.index("gates:") :])
    assert heard[0] == heard[1]
    assert "largest of count: at most 0.0005" in heard[0]
    kept: list[dict[str, Any]] = json.loads((tmp_path / "ws" / "confidential" / "acceptance.json").read_text())
    assert f"{kept[0]['measured']:.3g} (noise sd" in heard[0]
    assert len(charges(Ledger(f"{tmp_path}/ledger.sqlite").entries(), "small")) == 1
    with pytest.raises(NotAccepted):
        dpdist.run(dpdist.parse_job(job_file.read_text()), tmp_path / "again", survey(400))


def measured(measure: str, estimates: Floats, limit: float) -> GateResult:
    """A gate on the counts of two fields and their total, without noise; intervals reach 20 to both sides."""
    said = job(0.5).model_dump(mode="json") | {"tables": [{"name": "counts", "by": ["field"], "statistics": ["count"]}]}
    said["accept"]["gates"] = [{"measure": measure, "of": "count", "limit": limit}]
    own = dpdist.Job.model_validate(said)
    crosstab = Crosstab({"field": np.arange(2, dtype=np.int32)}, {"field": ("arts", "law")}, np.array([9, 9]), (), ())
    rows = {"estimator": "parameters", "statistic": "count", "variable": None, "estimate": estimates}
    half = np.where(estimates == 0, 0.0, 20.0)
    table = pd.DataFrame(rows).assign(lower=estimates - half, upper=estimates + half)
    assert own.accept is not None
    return gate_value(own, own.accept.gates[0], crosstab, {"salary": ROWS}, {"counts": table}, 0.0)


ROWS = np.array([[2.0 * UNIT, 0.0], [3.0 * UNIT, 0.0]])
"""Σa of two fields: direct counts of 120 and 180; 300 in all."""


@pytest.mark.parametrize("gap", [np.nan, 0.0])
@pytest.mark.parametrize(
    ("measure", "limit", "met"),
    [("largest", 0.9, False), ("median", 0.9, True), ("coverage", 0.6, True), ("coverage", 0.9, False)],
)
def test_a_cell_without_a_figure_is_an_error_beyond_every_limit(gap: float, measure: str, limit: float, met: bool) -> None:
    """One of three cells is missing, or 0: the largest error is not met, and a share of cells is one of all three."""
    found = measured(measure, np.array([121.0, gap, 302.0]), limit)
    assert (found.accepted, found.figures, found.without_figure) == (met, 3, 1)
    assert (found.measured is None) != met
    whole = measured(measure, np.array([121.0, 181.0, 302.0]), limit)
    assert (whole.accepted, whole.without_figure) == (True, 0), "control"


def test_what_a_gate_says_of_cells_without_a_figure() -> None:
    said = "largest of count: beyond every limit, because 1 of 3 cells has no figure, or a figure of 0"
    with pytest.raises(NotAccepted, match=said):
        refuse_unmet([measured("largest", np.array([121.0, np.nan, 302.0]), 0.9)])


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"limit": "0.8"}, "terms that are summed"),
        ({"of: count, limit: LIMIT": "of: {mean: salary}, limit: LIMIT"}, "terms that are summed"),
        ({"bounds: [1, 60]": "bounds: [1, 61]"}, "terms that are summed"),
        ({'epsilon: "1"\n  gates': 'epsilon: "1.5"\n  gates'}, "scale"),
        ({"records": "others"}, "the exact sums"),
    ],
)
def test_noise_of_gates_serves_the_gates_and_the_records_that_it_was_drawn_for(
    other: dict[str, str], found: str, tmp_path: Path
) -> None:
    """A run that goes on with other facts is refused, as with any other kept noise; control: with the same it goes on."""
    text, limit = JOB + GATES, other.pop("limit", "0.9")
    sums = {"salary": ROWS}
    space = Workspace.of_place(tmp_path / "ws")
    space.completions.mkdir(parents=True)
    first = gate_noise(space, dpdist.parse_job(text.replace("LIMIT", "0.9")), sums)
    assert np.array_equal(gate_noise(space, dpdist.parse_job(text.replace("LIMIT", "0.9")), sums), first)
    if other.pop("records", ""):
        sums = {"salary": ROWS + 1.0}
    text = edited(text, *other.items())
    with pytest.raises(WorkspaceError, match=f"was drawn for something else: .*{found}"):
        gate_noise(space, dpdist.parse_job(text.replace("LIMIT", limit)), sums)


def test_without_gates_the_report_says_what_a_look_costs(tmp_path: Path) -> None:
    with named("no gates"):
        dpdist.run(dpdist.parse_job(JOB), tmp_path / "ws", survey(300))
    assert "ε does not cover it. If gates" in " ".join(dpdist.report(tmp_path / "ws", confidential=True).split())


@pytest.mark.parametrize(
    ("edits", "match"),
    [
        ([('epsilon: "1"\n  gates', 'epsilon: "3"\n  gates')], "gates would spend the whole budget"),
        ([("  weight: {bounds: [1, 60], outside: clip}\n", "")], "public bounds"),
        ([("of: count, limit: 0.5", "of: count, limit: 1.5")], "a share above 1"),
        ([("{mean: salary}, limit", "{total: salary}, limit")], "gates apply to counts and means"),
        ([("  gates:", "  tables: [ages]\n  gates:")], "no table 'ages'"),
        ([("{name: tables}", "{name: laplace}"), ("strata: [field]\n", "")], "cannot be combined with 'laplace'"),
    ],
)
def test_gates_that_cannot_be_measured_are_refused(edits: list[tuple[str, str]], match: str) -> None:
    text = JOB + GATES.replace("LIMIT", "0.5")
    dpdist.parse_job(text)
    text = edited(text, *edits)
    with pytest.raises(JobError, match=match):
        dpdist.parse_job(text)

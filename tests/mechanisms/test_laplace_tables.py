"""Laplace tables whose margins are noised too, as releases: sensitivities, noise, consistency, what is said of them."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from edited_text import edited
from public_files import statement_of

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.errors import JobError
from dpdist.core.records import TOTAL, UNIT, Crosstab, cross
from dpdist.estimation import least_squares
from dpdist.estimation.estimators import Stage, stratum_sizes
from dpdist.mechanisms.laplace_tables.post import NoisyTables
from dpdist.mechanisms.laplace_tables.query import FINER, RowSums, exact as exact_figures
from dpdist.privacy.cell_sums import CellBounds
from dpdist.publish import noisy_figures
from dpdist.publish.noisy_figures import NoisedTables
from dpdist.publish.released import ReleasedObject, read_released
from dpdist.publish.statement import statement as made_statement
from dpdist.publish.tables import Grounds, table as published_table

JOB = """
dataset: noised
period: "2020"
columns:
  field: {levels: [arts, law, none]}
  sex: {levels: [f, m]}
  salary: {bounds: [0, 200000], outside: clip}
  weight: {bounds: [1, 60]}
survey: {weight: weight}
outcome: salary
mechanism: {name: laplace}
budget: {epsilon: "3"}
tables:
  - {name: salaries, by: [field, sex], statistics: [count, {mean: salary}, {total: salary}]}
  - {name: fields, by: [field], statistics: [count, {mean: salary}]}
runtime: {executor: serial}
"""
PUBLIC = [
    ("{name: laplace}", "{name: laplace_composed, sensitivity: public}"),
    ("weight: {bounds: [1, 60]}", "weight: {bounds: [1, 60], outside: clip}"),
]
AGREEING = [("{name: laplace}", "{name: laplace, consistency: least_squares}")]
N = 3000


def text(*edits: tuple[str, str]) -> str:
    return edited(JOB, *edits)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(6)
    return pd.DataFrame(
        {
            "field": rng.choice(["arts", "law"], N, p=[0.3, 0.7]),
            "sex": rng.choice(["f", "m"], N),
            "salary": np.exp(rng.normal(11.0, 0.4, N)).clip(0, 200_000),
            "weight": np.exp(rng.normal(3.0, 0.4, N)).clip(1, 60),
        }
    )


@pytest.fixture(scope="module")
def source(rows: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "survey.parquet"
    rows.to_parquet(path)
    return path


VARIANTS = {
    "laplace": [],
    "agreeing": AGREEING,
    "composed": [("{name: laplace}", "{name: laplace_composed}")],
    "public": PUBLIC,
    "public agreeing": [
        (PUBLIC[0][0], "{name: laplace_composed, sensitivity: public, consistency: least_squares}"),
        PUBLIC[1],
    ],
}


@pytest.fixture(scope="module")
def spaces(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("noised")
    for name, edits in VARIANTS.items():
        dpdist.run(dpdist.parse_job(text(*edits)), folder / name, input=source)
    return {name: folder / name for name in VARIANTS}


def published(space: Path, table: str = "salaries") -> pd.DataFrame:
    return pd.read_parquet(space / "public" / "tables" / f"{table}.parquet")


def exact(rows: pd.DataFrame, keys: tuple[str, ...]) -> dict[tuple[str, ...], dict[str, float]]:
    """Direct figures and local sensitivities of every cell, by hand."""
    found = {}
    for mask in range(2 ** len(keys)):
        by = [key for k, key in enumerate(keys) if not mask >> k & 1]
        groups = rows.groupby(by) if by else [((), rows)]
        for label, part in groups:
            named = dict(zip(by, label if isinstance(label, tuple) else (label,), strict=True))
            w, p = part["weight"], part["weight"] * part["salary"]
            found[tuple(named.get(key, TOTAL) for key in keys)] = {
                "count": w.sum(),
                "mean": p.sum() / w.sum(),
                "total": p.sum(),
                "range count": w.max() - w.min(),
                "range total": p.max() - p.min(),
                "range mean": (p.max() - p.min()) / (w.sum() - (w.max() - w.min())),
            }
    return found


def kept_noise(space: Path) -> tuple[np.ndarray, np.ndarray]:
    """In units of Δ/2^20: all of it, and the fine part of it."""
    coarse, fine = (np.load(path)["noise"] for path in sorted((space / "confidential" / "noise").glob("*.npz")))
    return coarse + fine / FINER, fine / FINER


def test_local_sensitivities_need_no_public_bounds_of_the_weight(source: Path, tmp_path: Path) -> None:
    """Control: public ones do, and the job is refused for it."""
    undeclared = ("  weight: {bounds: [1, 60]}\n", "")
    for name in ("laplace", "laplace_composed"):
        said = dpdist.parse_job(text(undeclared, ("{name: laplace}", f"{{name: {name}}}")))
        dpdist.run(said, tmp_path / name, source)
        released = pd.read_parquet(tmp_path / name / "public" / "tables" / "fields.parquet")
        assert released["estimate"].notna().sum() > 0
    with pytest.raises(JobError, match="needs public bounds of the weight"):
        dpdist.parse_job(text(undeclared, PUBLIC[0]))


def test_figures_are_the_files_under_kept_noise_of_the_slides_sensitivity(
    spaces: dict[str, Path], rows: pd.DataFrame
) -> None:
    """Every figure less its direct one is Δ/2^20 times the noise that was drawn and kept, in two parts."""
    true, space = exact(rows, ("field", "sex")), spaces["laplace"]
    noise = kept_noise(space)[0]
    table = published(space)
    delta = {name: max(cell[f"range {name}"] for cell in true.values()) for name in ("count", "mean", "total")}
    kept = noise[: 12 * 3].reshape(12, 3)
    by_cell = table.groupby(["field", "sex"], sort=False)
    for (label, part), own in zip(by_cell, kept, strict=True):
        for statistic, units in zip(("count", "mean", "total"), own, strict=True):
            estimate = part[part["statistic"] == statistic]["estimate"].iloc[0]
            if label in true:
                expected = true[label][statistic] + units * delta[statistic] / UNIT
                assert estimate == pytest.approx(expected, rel=1e-9)
            else:
                assert np.isnan(estimate) if statistic == "mean" else estimate == 0.0, "no record is there: known"
    diagnostics = pd.read_parquet(space / "confidential" / "strata.parquet")["diagnostics"][0]
    assert diagnostics["count of salaries"] == pytest.approx(delta["count"])


def differences(space: Path, off: float) -> tuple[np.ndarray, float]:
    """Figures of counts that agree without noise, less each other; of them `off` times the fine noise is taken."""
    release = read_released(space / "public" / "released")
    model = release.model(0)
    theta, delta = release.theta(model, 0, 0), pd.read_parquet(space / "confidential" / "strata.parquet")["diagnostics"][0]
    fine, start, found = kept_noise(space)[1], 0, []
    for table in model.tables:
        shape = table.parameter.shape
        own, start = fine[start : start + table.parameter.size].reshape(shape)[:, 0], start + table.parameter.size
        values = theta[table.parameter.name][0, :, 0] - off * own * delta[f"count of {table.name}"] / UNIT
        found.append(dict(zip(table.cells.labels, values, strict=True)))
    both, fields = found
    rows = [both[f, "f"] + both[f, "m"] - both[f, TOTAL] for f in ("arts", "law", TOTAL)]
    rows += [both["arts", s] + both["law", s] - both[TOTAL, s] for s in ("f", "m")]
    rows += [fields[(f,)] - both[f, TOTAL] for f in ("arts", "law", TOTAL)]
    return np.array(rows), delta["count of salaries"]


def divisor(values: np.ndarray) -> float | None:
    """The largest number whose whole multiples all values are, by trying all there can be; None if there is none."""
    largest = np.abs(values).max()
    for start in range(1, 2**23, 2**19):
        k = np.arange(start, start + 2**19)
        for value in values:
            multiple = value / largest * k
            k = k[np.abs(multiple - np.rint(multiple)) < 1e-3]
        if len(k):
            return float(largest / k[0])
    return None


def test_public_figures_do_not_tell_the_files_sensitivities(spaces: dict[str, Path]) -> None:
    """Chance hits 8 differences once in 10^12 releases. Control: without the fine noise the attack finds Δ."""
    for variant in ("laplace", "agreeing"):
        old, delta = differences(spaces[variant], 1.0)
        found = divisor(old)
        assert found is not None
        assert found * UNIT / delta == pytest.approx(round(found * UNIT / delta), rel=1e-6)
        assert divisor(differences(spaces[variant], 0.0)[0]) is None


def test_the_budget_of_a_composed_table_is_shared_by_the_figures_that_a_record_enters(spaces: dict[str, Path]) -> None:
    """4 cells of 3 figures and 2 cells of 2: 16 figures."""
    said = {
        name: json.loads((spaces[name] / "public" / "released" / "set-1.json").read_text())["strata"]["all"]["noise"]
        for name in spaces
    }
    scale = {name: Fraction(text.split("scale ")[1].split(",")[0]) for name, text in said.items()}
    assert scale["laplace"] == Fraction(UNIT, 3)
    assert scale["composed"] == 16 * scale["laplace"]
    assert scale["public"] == Fraction(UNIT * 2 * 6, 3), "6 cells, each by a pair of sensitivity 2"


def test_a_record_moves_the_sums_of_all_its_cells_by_no_more_than_the_noise_is_for(rows: pd.DataFrame) -> None:
    """Exact, on neighbours; control: the sums of one table alone would need less."""
    job = dpdist.parse_job(text(*PUBLIC))
    codes = {"field": np.array([0, 0, 1, 1], dtype=np.int32), "sex": np.array([0, 1, 0, 1], dtype=np.int32)}
    levels = {"field": ("arts", "law", "none"), "sex": ("f", "m")}
    crosstab = Crosstab(codes, levels, np.array([2, 2, 2, 2]), (), ())
    model = NoisyTables.build(job, crosstab, slice(0, 4))
    rng, largest = np.random.default_rng(1), 0.0
    for w, y in [(60.0, 200_000.0), (60.0, 0.0), *zip(rng.uniform(0, 60, 50), rng.uniform(-9e4, 3e5, 50), strict=True)]:
        records = Records(np.arange(1), np.array([1], dtype=np.int32), np.array([y]), np.array([w]), np.zeros(1, np.int32))
        sums = RowSums(model).sums(records)
        moved = sum(float(np.abs(table.cells.membership @ sums).sum()) for table in model.tables)
        largest = max(largest, moved)
    assert largest == 2 * UNIT * 6, "a record of the largest weight at an end of the outcome's bounds attains it"
    assert model.scale == Fraction(2 * UNIT * 6, 3)
    assert largest > 2 * UNIT * cross(crosstab, ["field", "sex"], True).per_record


@pytest.mark.parametrize("variant", ["agreeing", "public agreeing"])
def test_least_squares_makes_all_tables_agree(spaces: dict[str, Path], variant: str) -> None:
    both = published(spaces[variant]), published(spaces[variant], "fields")
    counts = both[0][both[0]["statistic"] == "count"].set_index(["field", "sex"])["estimate"]
    totals = both[0][both[0]["statistic"] == "total"].set_index(["field", "sex"])["estimate"]
    means = both[0][both[0]["statistic"] == "mean"].set_index(["field", "sex"])["estimate"]
    for adding in (counts, totals):
        for field in ("arts", "law"):
            assert adding[field, "f"] + adding[field, "m"] == pytest.approx(adding[field, TOTAL], rel=1e-9)
        assert adding["arts", TOTAL] + adding["law", TOTAL] == pytest.approx(adding[TOTAL, TOTAL], rel=1e-9)
    assert means["law", "f"] == pytest.approx(totals["law", "f"] / counts["law", "f"])
    other = both[1][both[1]["statistic"] == "count"].set_index("field")["estimate"]
    for field in ("arts", "law", TOTAL):
        assert other[field] == pytest.approx(counts[field, TOTAL], rel=1e-9)


def test_without_it_they_do_not(spaces: dict[str, Path]) -> None:
    """Control: four noises of scale 20 or more agree to 1e-9 with a probability below 1e-6."""
    for variant in ("laplace", "composed", "public"):
        table = published(spaces[variant])
        counts = table[table["statistic"] == "count"].set_index(["field", "sex"])["estimate"]
        assert counts["law", "f"] + counts["law", "m"] != pytest.approx(counts["law", TOTAL], rel=1e-9)


def test_what_is_said_of_the_guarantee(spaces: dict[str, Path]) -> None:
    for variant in ("laplace", "composed", "agreeing"):
        said = statement_of(spaces[variant])
        assert (said["guarantee"], said["epsilon"], said["adjacency"]) == ("none", None, None)
        assert "no privacy guarantee" in said["guarantee_in_words"]
        assert any("computed from this file" in line for line in said["assumptions"])
        assert said["standard_errors"][0].startswith("There are no standard errors")
        assert published(spaces[variant])["standard_error"].isna().all()
    said = statement_of(spaces["public"])
    assert (said["guarantee"], said["epsilon"], said["delta"], said["substitution_epsilon"]) == ("strict", "3", "0", "3")
    assert "for every file that meets the conditions" in said["guarantee_in_words"]
    for name in ("sensitivity", "consistency"):
        assert name in said["mechanism"]


def test_there_are_no_synthetic_records_and_it_is_said_why(spaces: dict[str, Path]) -> None:
    for space in spaces.values():
        assert not (space / "public" / "synthetic").exists()
        assert statement_of(space)["synthetic_sets"] == 0
        assert any("no synthetic records" in step for step in statement_of(space)["post_processing"])
        assert set(published(space)["estimator"]) == {"parameters"}
        evaluated = pd.read_parquet(space / "confidential" / "evaluation" / "salaries.parquet")
        assert evaluated["synthetic_records"].isna().all()
        assert evaluated["synthetic"].notna().any()
    assert "none: for comparison only" in dpdist.report(spaces["laplace"])


def test_errors_of_a_public_table_hold_its_noise(spaces: dict[str, Path], rows: pd.DataFrame) -> None:
    """sd of a count's noise: √2 · 2·6/3 · 60 = 339; 400 draws tell it to some 6 %. The sample's composition, of a binomial
    count with weights of nearly one mean, is the rest. Least squares takes part of the noise away."""

    def errors(variant: str) -> pd.Series:
        table = published(spaces[variant])
        return table[table["statistic"] == "count"].set_index(["field", "sex"])["standard_error"]

    plain, agreeing = errors("public"), errors("public agreeing")
    noise = np.sqrt(2.0) * 2 * 6 / 3 * 60
    share = float(((rows["field"] == "law") & (rows["sex"] == "f")).mean())
    composition = N * share * (1.0 - share) * rows["weight"].mean() ** 2
    assert plain["law", "f"] == pytest.approx(np.sqrt(noise**2 + composition), rel=0.15)
    assert agreeing[TOTAL, TOTAL] < 0.95 * plain[TOTAL, TOTAL]
    true = exact(rows, ("field", "sex"))
    table = published(spaces["public"])
    counts = table[table["statistic"] == "count"].set_index(["field", "sex"])["estimate"]
    assert all(abs(counts[label] - true[label]["count"]) < 14 * noise for label in true), "exceeded in e^-19 of cases"


def many_small_cells(rng: np.random.Generator) -> tuple[Crosstab, Records]:
    """120 cells of 5 records each, on average, from one population; weights of one law."""
    n, levels = 600, {"field": tuple(f"f{k}" for k in range(60)), "sex": ("f", "m")}
    cell, count = np.unique(rng.integers(0, 120, n), return_counts=True)
    codes = {"field": (cell // 2).astype(np.int32), "sex": (cell % 2).astype(np.int32)}
    rows, salary = np.repeat(np.arange(len(cell)), count).astype(np.int32), np.exp(rng.normal(11.0, 0.4, n))
    weight = np.exp(rng.normal(3.0, 0.4, n)).clip(1, 60)
    return Crosstab(codes, levels, count, (), ()), Records(np.arange(n), rows, salary, weight, np.zeros(n, np.int32))


def test_means_of_public_tables_lie_within_the_bounds() -> None:
    """Control: ratios of the same sums do not."""
    job = dpdist.parse_job(text(("[arts, law, none]", f"[{', '.join(f'f{k}' for k in range(60))}]"), *PUBLIC))
    rng = np.random.default_rng(9)
    crosstab, records = many_small_cells(rng)
    model = NoisyTables.build(job, crosstab, slice(0, len(crosstab)))
    noise = np.rint(rng.laplace(0.0, float(model.scale), model.size))
    exact = exact_figures(model, RowSums(model).sums(records), None)
    found = model.figures(model.tables_of(exact + noise), "salaries")
    ratio, there = found["total"] / found["count"], model.tables[0].occupied > 0
    assert (found["count"][0, there] <= 0).sum() > 5
    assert ((ratio < 0) | (ratio > 200_000))[0, there].sum() > 5
    mean = found["mean"][0, there]
    assert ((mean >= 0) & (mean <= 200_000)).all()
    inside = (found["count"] > 0) & (ratio >= 0) & (ratio <= 200_000)
    np.testing.assert_allclose(found["mean"][inside], ratio[inside], rtol=1e-9)
    bounds = CellBounds(60.0, 0.0, 2e5)
    edge = bounds.mean(np.array([0.0, 0.0, 0.0, -1.0, -1.0]), np.array([0.0, 5.0, -5.0, 5.0, -3e5]))
    np.testing.assert_array_equal(edge, [np.nan, 2e5, 0.0, 2e5, 0.0])


def test_errors_over_many_small_cells_do_not_count_the_noise_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the file's total count, over 100 samples and releases: the root mean square of 10 published errors is within .6
    and 2.5 times the spread. Control: composition with the noise in it says more than 3 times as much."""
    monkeypatch.setattr(noisy_figures, "DRAWS", 50)
    job = dpdist.parse_job(text(("[arts, law, none]", f"[{', '.join(f'f{k}' for k in range(60))}]"), *PUBLIC))
    rng, totals, said, old = np.random.default_rng(8), [], [], []
    for number in range(100):
        crosstab, records = many_small_cells(rng)
        model = NoisyTables.build(job, crosstab, slice(0, len(crosstab)))
        noise = np.rint(rng.laplace(0.0, float(model.scale), model.size))
        theta = model.tables_of(exact_figures(model, RowSums(model).sums(records), None) + noise)
        totals.append(model.figures(theta, "salaries")["count"][0, -1])
        if number < 10:
            key = SimpleNamespace(generator=lambda _: rng)
            release = SimpleNamespace(
                crosstab=crosstab,
                job=job,
                design_effects=(),
                seed=key,
                stage=Stage.of(stratum_sizes(crosstab)),
                theta=lambda *_, theta=theta: theta,
            )
            cells = model.tables[0].cells
            said.append(NoisedTables.of(release, model).variance_parts(job.tables[0], cells)[0].total[-1])
            expected = tuple(values[0] for values in model.expect(theta))
            old.append(noisy_figures.composition(release, cells, [expected])[0].variance[-1])
    spread, published, before = np.std(totals), np.sqrt(np.mean(said)), np.sqrt(np.mean(old))
    assert 0.6 * spread < published < 2.5 * spread
    assert before > 3.0 * spread


def test_least_squares_that_stop_early_are_told_of(spaces: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of all tables still add up. Control: with steps enough the statement says nothing, and figures are those of
    the direct solution."""
    release = read_released(spaces["public agreeing"] / "public" / "released")
    direct, totals = [row["estimate"] for row in _counts(release)], []
    monkeypatch.setattr(least_squares, "DIRECT", 0)
    for steps, stopped in ((2, True), (300, False)):
        monkeypatch.setattr(least_squares, "MOST_STEPS", steps)
        assert any("stopped" in text for text in made_statement(release)["post_processing"]) == stopped
        found = _counts(release)
        inner = sum(row["estimate"] for row in found if TOTAL not in (row["field"], row["sex"]))
        totals.append([row["estimate"] for row in found])
        assert inner == pytest.approx(totals[-1][-1], rel=1e-9)
    assert totals[1] == pytest.approx(direct, rel=1e-7, abs=1e-3)
    assert totals[0] != pytest.approx(direct, rel=1e-7, abs=1e-3)


def _counts(release: ReleasedObject) -> list[dict]:
    model, said = release.model(0), release.job.tables[0]
    assert isinstance(model, NoisyTables)
    grounds = {"salary": Grounds(None, (), None, noised=NoisedTables.of(release, model))}
    return [row for row in published_table(release, said, grounds).to_pylist() if row["statistic"] == "count"]


def test_counts_alone_need_half_the_noise_and_no_weight_column() -> None:
    edits = [
        *PUBLIC,
        ("survey: {weight: weight}\n", ""),
        ("statistics: [count, {mean: salary}, {total: salary}]", "statistics: [count]"),
        ("statistics: [count, {mean: salary}]", "statistics: [count]"),
    ]
    codes = {"field": np.array([0], dtype=np.int32), "sex": np.array([0], dtype=np.int32)}
    crosstab = Crosstab(codes, {"field": ("arts", "law", "none"), "sex": ("f", "m")}, np.array([5]), (), ())
    model = NoisyTables.build(dpdist.parse_job(text(*edits)), crosstab, slice(0, 1))
    assert model.scale == Fraction(UNIT * 6, 3)
    assert model.bounds is not None
    assert model.bounds.weight == 1.0
    assert model.size == 12 + 4


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ([("mechanism:", "model: {family: cell_sums}\nmechanism:")], "'cell_sums' is not a likelihood"),
        ([("{name: laplace}", "{name: laplace, sensitivity: public}")], "use laplace_composed or tables"),
        ([PUBLIC[0]], "state outside: clip"),
        ([PUBLIC[0], ("  weight: {bounds: [1, 60]}\n", "")], "needs public bounds of the weight"),
        (
            [*PUBLIC, ("salary: {bounds: [0, 200000], outside: clip}", "salary: {bounds: [0, 200000]}")],
            "state outside: clip",
        ),
        (
            [("weight: {bounds: [1, 60]}", "weight: {bounds: [1, 60], outside: clip}")],
            "these rules do not apply to a weight",
        ),
        ([('"3"}', '"3", adjacency: substitution}')], "gives no guarantee under any adjacency"),
        ([('"3"}', '"3", adjacency: add_remove}')], "cannot give a guarantee under add_remove"),
        ([("outcome:", "strata: [field]\noutcome:")], "leave strata out"),
        ([("tables:", "synthetic_sets: 3\ntables:")], "one set of tables"),
        ([("tables:", "rake: [{by: [sex], totals: {f: 1, m: 1}}]\ntables:")], "no weights that could be raked"),
        ([("{name: laplace}", "{name: laplace, bins: 5}")], "has no bins"),
    ],
)
def test_what_such_tables_cannot_be_is_refused(edits: list[tuple[str, str]], told: str) -> None:
    with pytest.raises(JobError, match=told):
        dpdist.parse_job(text(*edits))


def test_other_mechanisms_have_neither_key() -> None:
    for key in ("sensitivity: public", "consistency: least_squares"):
        said = text(("{name: laplace}", f"{{name: tables, {key}}}"), PUBLIC[1])
        with pytest.raises(JobError, match=f"has no {key.split(':')[0]}"):
            dpdist.parse_job(said)

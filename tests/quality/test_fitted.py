"""Comparators that are fitted: what an FBS or FBP release would have published, beside a strict one."""

from __future__ import annotations

import hashlib
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from edited_text import edited

import dpdist
from dpdist.confidential.records import Records
from dpdist.core.errors import JobError
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab, cross
from dpdist.estimation.crosstab_table import crosstab_from_table
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.publish.released import read_released
from dpdist.quality import model_baselines
from dpdist.quality.model_baselines import BaselineSums, Visits, fit_comparators, job_of_comparator
from dpdist.storage.tables import read_table, write_records
from dpdist.storage.workspace import Workspace

JOB = """
dataset: beside
publish: always
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  field: {{levels: [arts, law, medicine]}}
  sex: {{levels: [f, m]}}
  salary: {{bounds: [0, 200000], outside: clip}}
survey: {{weight: weight}}
outcome: salary
mechanism: {{name: tables}}
budget: {{epsilon: "{epsilon}", adjacency: substitution}}
reference: {{path: {folder}/before.parquet, period: "2020", provenance: public-use file of 2020}}
tables:
  - {{name: salaries, by: [field, sex], statistics: [count, {{mean: salary}}, {{total: salary}}]}}
compare: [laplace_composed, fbs, fbp]
runtime: {{executor: serial}}
"""
FIELDS, SEXES = ("arts", "law", "medicine"), ("f", "m")
TOTALS = {"arts": 70000.0, "law": 150000.0, "medicine": 330000.0}


def survey(seed: int, n: int = 3000, zeros: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    field, sex = rng.choice(3, n, p=[0.2, 0.3, 0.5]), rng.choice(2, n)
    salary = np.exp(rng.normal(10.4 + 0.2 * field + 0.1 * sex, 0.4, n)) * (rng.random(n) >= zeros)
    weight = np.exp(rng.normal(4.0 + 0.3 * field, 0.6, n))
    named = {"field": np.array(FIELDS)[field], "sex": np.array(SEXES)[sex]}
    return pd.DataFrame({**named, "salary": np.minimum(salary, 2e5), "weight": weight})


def job(folder: Path, *edits: tuple[str, str], epsilon: str = "9") -> Job:
    return parse_job(edited(JOB.format(folder=folder, epsilon=epsilon), *edits))


def written(folder: Path, zeros: float = 0.0, n: int = 3000) -> Path:
    folder.mkdir(exist_ok=True)
    survey(1, n, zeros).to_parquet(folder / "now.parquet")
    survey(2, n, zeros).to_parquet(folder / "before.parquet")
    return folder


def placed(rows: pd.DataFrame, path: Path) -> Crosstab:
    """Records in frame order at `path`, and their frame."""
    known = list(product(range(3), range(2)))
    row = np.array(
        [known.index((FIELDS.index(f), SEXES.index(s))) for f, s in zip(rows["field"], rows["sex"], strict=True)]
    )
    order = np.argsort(row, kind="stable")
    codes = {name: np.array(known, dtype=np.int32)[:, k] for k, name in enumerate(("field", "sex"))}
    crosstab = Crosstab(codes, {"field": FIELDS, "sex": SEXES}, np.bincount(row, minlength=6), (), ())
    columns = (rows[name].to_numpy()[order] for name in ("salary", "weight"))
    n = len(rows)
    records = Records(np.arange(n), row[order].astype(np.int32), *columns, np.full(n, -1, dtype=np.int32))
    write_records(path, records, [0, n])
    return crosstab


def of_table(said: Job, found: BaselineSums, crosstab: Crosstab, how: str, estimator: str) -> dict[str, np.ndarray]:
    table = said.tables[0]
    figures = found.figures(how, estimator, cross(crosstab, table.by, table.margins))
    return {name: figures[name] for name in ("count", "mean", "total")}


@pytest.mark.parametrize(
    ("how", "strata", "rake"),
    [
        ("fbs", "", False),
        ("fbs", "strata: [field]", False),
        ("fbs", "", True),
        ("fbp", "", False),
        pytest.param("fbp", "strata: [field]", False, marks=pytest.mark.long),
        pytest.param("fbp", "", True, marks=pytest.mark.long),
    ],
)
def test_a_comparator_is_the_release_that_it_stands_for(how: str, strata: str, rake: bool, tmp_path: Path) -> None:
    """With the keys of an actual release it has that release's published figures, from parameters and from records."""
    folder = written(tmp_path)
    strict = job(folder, ("runtime:", f"{strata}\nruntime:"))
    if rake:
        strict = Job.model_validate(strict.model_dump() | {"rake": [{"by": ["field"], "totals": TOTALS}]})
    plain = job_of_comparator(strict, how)
    dpdist.run(Job.model_validate(plain.model_dump() | {"rake": strict.rake}), tmp_path / "ws")
    space, scratch = Workspace.of_place(tmp_path / "ws"), tmp_path / "scratch"
    scratch.mkdir()
    crosstab = crosstab_from_table(read_table(space.crosstab))
    found = fit_comparators(strict, crosstab, space.records, Key.read(space.key), scratch)
    assert found.note == "asymptotic, ε = 9 over 3 sets, substitution"
    assert set(found.notes(cross(crosstab, ["field", "sex"], True))) == {found.note}
    assert plain.budget == strict.budget
    table = pd.read_parquet(space.public / "tables" / "salaries.parquet")
    for estimator in ("parameters", "records"):
        for name, figures in of_table(strict, found, crosstab, how, estimator).items():
            own = table[(table["statistic"] == name) & (table["estimator"] == estimator)]["estimate"]
            assert figures == pytest.approx(own.to_numpy(), rel=1e-9)
    other = fit_comparators(strict, crosstab, space.records, Key.from_os(), _empty(tmp_path / "other"))
    count = of_table(strict, other, crosstab, how, "parameters")["mean"]
    assert np.abs(count / of_table(strict, found, crosstab, how, "parameters")["mean"] - 1.0).min() > 1e-9, (
        "control: other keys"
    )


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_records_of_zero_count_and_earn_nothing(tmp_path: Path) -> None:
    """Exact oracle: the fit without them, counts scaled up by the records in every cell, totals as they were."""
    rows, said, key = survey(3, zeros=0.2), job(written(tmp_path)), Key(b"\x05" * 32)
    crosstab = placed(rows, tmp_path / "all.arrow")
    without = placed(rows[rows["salary"] > 0], tmp_path / "positive.arrow")
    found = fit_comparators(said, crosstab, tmp_path / "all.arrow", key, _empty(tmp_path / "a"))
    plain = fit_comparators(said, without, tmp_path / "positive.arrow", key, _empty(tmp_path / "b"))
    scale = crosstab.count / without.count
    assert scale.min() > 1.1
    for how, estimator in product(("fbs", "fbp"), ("parameters", "records")):
        own, others = found.sums[how, estimator], plain.sums[how, estimator]
        assert own[0] == pytest.approx(others[0] * scale, rel=1e-12)
        assert own[1] == pytest.approx(others[1], rel=1e-12)
    assert "treats their number as public" in found.note
    assert "public" not in plain.note


def test_memory_is_that_of_a_block_and_results_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, key = job(written(tmp_path)), Key(b"\x06" * 32)
    frame = placed(survey(4, zeros=0.1), tmp_path / "records.arrow")
    whole = fit_comparators(said, frame, tmp_path / "records.arrow", key, _empty(tmp_path / "a"))
    largest: list[int] = []
    blocks = Visits.blocks

    def watched(visits: Visits) -> object:
        for number, records in blocks(visits):
            largest.append(len(records))
            yield number, records

    monkeypatch.setattr(model_baselines, "block_rows", lambda draws: 128)
    monkeypatch.setattr(Visits, "blocks", watched)
    split = fit_comparators(said, frame, tmp_path / "records.arrow", key, _empty(tmp_path / "b"))
    assert max(largest) <= 128
    assert len(set(largest)) > 1
    for name, sums in whole.sums.items():
        assert split.sums[name] == pytest.approx(sums, rel=1e-6)


def test_what_cannot_be_fitted_is_missing_and_says_why(tmp_path: Path) -> None:
    """Law's fit misses its target, nobody of arts has an outcome: of cells and margins with these, not of medicine."""
    rows = survey(5)
    rows = pd.concat([rows[rows["field"] != "law"], rows[rows["field"] == "law"].head(8)])
    rows.loc[rows["field"] == "arts", "salary"] = 0.0
    rows.to_parquet(tmp_path / "now.parquet")
    survey(2).to_parquet(tmp_path / "before.parquet")
    dpdist.run(job(tmp_path, ("runtime:", "strata: [field]\nruntime:")), tmp_path / "ws")
    found = pd.read_parquet(tmp_path / "ws" / "confidential" / "evaluation" / "salaries.parquet")
    for how in ("fbs", "fbp"):
        by_field = found.groupby("field")
        known = by_field[f"{how}_error_in_se"].apply(lambda each: each.notna().all())
        assert known.to_dict() == {"arts": False, "law": False, "medicine": True, "Total": False}
        notes = by_field[f"{how}_note"].agg(lambda each: " | ".join(sorted(set(each))))
        assert "no record with an outcome above 0" in notes["arts"]
        assert notes["law"].startswith("missing: stratum law: ")
        assert notes["medicine"].startswith("asymptotic, ε = 9 over 3 sets, substitution")
        assert "stratum law" in notes["Total"]
        assert "above 0" in notes["Total"]
    text = dpdist.report(tmp_path / "ws", confidential=True)
    assert "fbs: asymptotic" in text
    assert "fbp: missing: stratum law" in " ".join(text.split())


def test_outcomes_that_no_law_can_follow_are_missing_and_say_so(tmp_path: Path) -> None:
    """Every other outcome 300 orders of magnitude below: a mean beyond float64; and all alike: no variation."""
    written(tmp_path)
    for far, told in ((1e-300, "overflow floating-point numbers"), (5e4, "no variation")):
        rows = survey(1)
        rows.assign(salary=np.where(np.arange(len(rows)) % 2, far, 5e4)).to_parquet(tmp_path / "now.parquet")
        dpdist.run(job(tmp_path), tmp_path / told)
        found = pd.read_parquet(tmp_path / told / "confidential" / "evaluation" / "salaries.parquet")
        assert found[["fbs", "fbp", "fbs_records", "fbp_records"]].isna().all(axis=None)
        assert found["fbs_note"].str.contains(told).all()


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.long
def test_a_run_that_dies_comparing_resumes_and_leaves_its_release_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed amid the comparators' fits: nothing that was drawn or published changes, and nothing public names them."""
    folder, visits = written(tmp_path, zeros=0.02), [0]
    said = job(folder, ("runtime:", "strata: [field]\nruntime:"))
    plain = Visits.__call__

    def dying(own: Visits, request: object) -> object:
        visits[0] += 1
        if visits[0] == 20:
            raise KeyboardInterrupt
        return plain(own, request)

    monkeypatch.setattr(Visits, "__call__", dying)
    with pytest.raises(KeyboardInterrupt):
        dpdist.run(said, tmp_path / "ws")
    monkeypatch.undo()
    kept = tmp_path / "ws" / "confidential"
    before = digests(tmp_path / "ws" / "public"), digests(kept / "noise")
    assert not (kept / "evaluation" / "salaries.parquet").exists()
    dpdist.run(said, tmp_path / "ws")
    assert (digests(tmp_path / "ws" / "public"), digests(kept / "noise")) == before
    assert before[1]
    first = pd.read_parquet(kept / "evaluation" / "salaries.parquet")
    assert first["fbs_error_in_se"].notna().all()
    assert not list(kept.glob("scratch-*"))
    dpdist.run(said, tmp_path / "ws")
    pd.testing.assert_frame_equal(first, pd.read_parquet(kept / "evaluation" / "salaries.parquet"))
    for path in (tmp_path / "ws" / "public").rglob("*"):
        assert not path.is_file() or b"fbs_" not in path.read_bytes()
    assert read_released(tmp_path / "ws" / "public" / "released").job.compare == ()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "salary: {bounds: [0, 200000], outside: clip}",
            'salary: {bounds: [0, 1], codes: {"No": 0, "Yes": 1}}',
            "single value",
        ),
        ("bounds: [0, 200000], outside: clip", "bounds: [0, 1], whole: true, outside: clip", "single whole value"),
        ("bounds: [0, 200000]", "bounds: [-5, 200000]", "bounds outside"),
        ("bounds: [0, 200000]", "bounds: [-5, 0]", "bounds outside"),
        ("survey: {weight: weight}", "survey: {}", "name survey.weight"),
        ("outcome: salary", "outcome: [salary, hours]", "one outcome"),
    ],
)
def test_an_outcome_that_is_never_lognormal_is_refused_at_once(old: str, new: str, told: str, tmp_path: Path) -> None:
    hours = ("columns:", "columns:\n  hours: {bounds: [0, 4000], outside: clip}")
    with pytest.raises(JobError) as refused:
        job(tmp_path, (old, new), hours)
    assert "fbs and fbp" in str(refused.value)
    assert told in str(refused.value)
    job(tmp_path, (old, new), hours, ("[laplace_composed, fbs, fbp]", "[laplace_composed]"))

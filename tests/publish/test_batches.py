"""Batches of strata: sums over batches are those over all rows; large strata stand alone; parameters are texts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from simulated_doctorates import simulated as doctorates

import dpdist
from dpdist.core import records
from dpdist.publish.folder import grounds_of, publish
from dpdist.publish.released import ByBatch, Parameters, ReleasedObject, read_released, run_here, write_released
from dpdist.publish.standard_errors import Spreads, simulate_errors, variances

JOB = (
    doctorates(8000, 800, 3)
    + """\
survey: {weight: weight, design_strata: [field]}
strata: [field]
outcome: salary
model: {family: lognormal, predictors: [sex]}
mechanism: {name: weighted}
budget: {epsilon: "20"}
synthetic_sets: 2
sampler: {draws: 100}
tables:
  - {name: by_sex, by: [sex], statistics: [count, {mean: salary}, {total: salary}]}
  - {name: by_field, by: [field], statistics: [count, {mean: salary}], margins: true}
"""
)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> ReleasedObject:
    folder = tmp_path_factory.mktemp("batches") / "ws"
    dpdist.run(dpdist.parse_job(JOB), folder)
    return read_released(folder / "public" / "released")


def test_batches_are_cut_by_numbers_of_strata_and_records(release: ReleasedObject, monkeypatch: pytest.MonkeyPatch) -> None:
    count = release.crosstab.stratum_count
    assert release.crosstab.batches() == [range(len(count))]
    monkeypatch.setattr(records, "BATCH_STRATA", 3)
    assert [len(batch) for batch in release.crosstab.batches()] == [3, 3, 2]
    monkeypatch.setattr(records, "BATCH_RECORDS", int(count.max()) - 1)
    largest = int(count.argmax())
    found = release.crosstab.batches()
    assert range(largest, largest + 1) in found
    assert [k for batch in found for k in batch] == list(range(len(count)))


def test_sums_over_batches_have_the_standard_errors_of_all_rows(
    release: ReleasedObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last digit in one batch, and to rounding in three. Control: without the last batch they are others."""
    (by_rows,) = simulate_errors(release, lambda _: None, by_row=True).spreads or ()
    grounds = grounds_of(release, tmp_path, records=False)[0]["salary"]
    assert grounds.expected is not None

    def errors(found: Spreads) -> list[np.ndarray]:
        cells = [release.cells(table) for table in release.job.tables]
        return [of_figure for one in cells for of_figure in variances(release, one, grounds.expected, found)]

    def over_batches(by_batch: ByBatch = run_here) -> list[np.ndarray]:
        (found,) = simulate_errors(release, lambda _: None, by_batch).spreads or ()
        assert found.by_cells is not None
        return errors(found)

    wanted = errors(by_rows)
    for one, other in zip(over_batches(), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    monkeypatch.setattr(records, "BATCH_STRATA", 3)
    for one, other in zip(over_batches(), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)

    def lost(work, released, strata):
        return (work(released, strata[0]) for _ in strata)

    assert not np.allclose(over_batches(lost)[0], wanted[0])


def test_any_cut_publishes_the_same_records_and_figures(
    release: ReleasedObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With strata that are too large for a batch, too, whose records are written as they are drawn."""
    publish(release, tmp_path / "one")
    monkeypatch.setattr(records, "BATCH_STRATA", 3)
    monkeypatch.setattr(records, "BATCH_RECORDS", 90)
    assert {len(batch) for batch in release.crosstab.batches()} > {1}
    publish(release, tmp_path / "several")
    for number in (1, 2):
        one, several = (pq.read_table(tmp_path / name / f"synthetic/set-{number}.parquet") for name in ("one", "several"))
        assert one.equals(several)
    for table in release.job.tables:
        one, several = (pq.read_table(tmp_path / name / f"tables/{table.name}.parquet") for name in ("one", "several"))
        assert one.schema == several.schema
        for name in one.column_names:
            if one[name].type == "double":
                np.testing.assert_allclose(one[name].to_numpy(), several[name].to_numpy(), rtol=1e-9)
            else:
                assert one[name].equals(several[name])


def test_parameters_as_texts_are_written_as_dictionaries_are(release: ReleasedObject, tmp_path: Path) -> None:
    sets = tuple({label: dict(theta) for label, theta in of_set.items()} for of_set in release.sets)
    assert all(isinstance(of_set, Parameters) for of_set in release.sets)
    assert release.sets == sets
    write_released(tmp_path / "texts", release)
    whole = {"set": 1, "family": release.job.family, "strata": sets[0]}
    text = (tmp_path / "texts" / "set-1.json").read_text(encoding="utf-8")
    assert json.loads(text) == whole
    assert len(text.splitlines()) == 6 + len(sets[0]), "a line for each stratum"
    write_released(tmp_path / "dictionaries", replace(release, sets=sets))
    digests = [hashlib.sha256((tmp_path / name / "set-2.json").read_bytes()).digest() for name in ("texts", "dictionaries")]
    assert digests[0] == digests[1]

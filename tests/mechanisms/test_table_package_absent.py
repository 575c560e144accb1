"""A release whose reference has records in crosses of columns that the current file lacks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpdist
from dpdist.core.records import Floats
from dpdist.job import Job
from dpdist.job.loading import parse_job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.table_package.post import FromReference, PackageCells
from dpdist.models.protocol import Improper
from dpdist.packages.package import Reference
from dpdist.publish.folder import publish
from dpdist.publish.released import read_released
from dpdist.quality.predicted.population import Population
from dpdist.release import run
from dpdist.survey.reference_file import ReferenceFile, absent_records, records_of
from dpdist.testing.small import CLIPPED_WEIGHT, COLUMNS, survey

STATISTICS = ["count", {"mean": "salary"}, {"median": "salary"}]
TABLES = [{"name": name, "by": [name], "margins": True, "statistics": STATISTICS} for name in ("field", "sex")]


def _absent(records: pd.DataFrame) -> pd.Series[bool]:
    return (records["field"] == "law") & (records["sex"] == "m")


def _job(folder: Path) -> Job:
    """The current file has no record of one cross; the reference has records of all."""
    current = survey(1)
    current[~_absent(current)].to_parquet(folder / "current.parquet")
    earlier = survey(2)
    weight = np.where(_absent(earlier), 1.5 * earlier["weight"], earlier["weight"])
    earlier.assign(weight=weight).to_parquet(folder / "earlier.parquet")
    text = {
        "dataset": "small",
        "period": "2019",
        "input": {"path": str(folder / "current.parquet")},
        "columns": {name: COLUMNS[name] for name in ("field", "sex", "salary")} | {"weight": CLIPPED_WEIGHT},
        "survey": {"weight": "weight"},
        "outcome": "salary",
        "mechanism": {"name": "table_package"},
        "budget": {"epsilon": "4", "adjacency": "substitution"},
        "reference": {"path": str(folder / "earlier.parquet"), "period": "2017"},
        "tables": TABLES,
    }
    return parse_job(json.dumps(text))


def _learned(job: Job, tables: int = 2) -> tuple[PackageCells, FromReference]:
    """The model of a job's first tables, and what its plan's prediction learns."""
    plan = dpdist.plan(job)
    assert isinstance(plan.reference, ReferenceFile)
    population = Population.of(plan.job, plan.reference, plan.frame)
    kept = plan.job.model_copy(update={"tables": plan.job.tables[:tables]})
    model = builder_of(kept).build(kept, plan.frame, plan.frame.rows_of(0))
    assert isinstance(model, PackageCells)
    model = model.with_absent(population.absent)
    return model, model.learned(population.as_it_is(), None)


def test_records_of_crosses_that_the_file_lacks_inform_levels_and_are_never_copied(tmp_path: Path) -> None:
    """Limits are those that the plan learns. Tables are the same when published again, from released records alone.

    Control: a reference without these records gives other limits.
    """
    job = _job(tmp_path)
    earlier = pd.read_parquet(tmp_path / "earlier.parquet")
    run(job, tmp_path / "made")
    public = tmp_path / "made" / "public"
    donors = pd.read_parquet(public / "released" / "donors.parquet")
    further = donors[donors["cell"].isna()]
    assert len(donors) == len(earlier)
    assert len(further) == _absent(earlier).sum() > 0
    levels = [COLUMNS[name]["levels"].index(level) for name, level in (("field", "law"), ("sex", "m"))]
    assert set(zip(further["level field"], further["level sex"], strict=True)) == {tuple(levels)}
    synthetic = pd.read_parquet(public / "synthetic" / "set-1.parquet")
    assert not _absent(synthetic).any()
    table = pd.read_parquet(public / "tables" / "field.parquet")
    assert np.isfinite(table["standard_error"]).all()
    publish(read_released(public / "released"), tmp_path / "again")
    for name in ("field", "sex"):
        shown = [pd.read_parquet(folder / "tables" / f"{name}.parquet") for folder in (public, tmp_path / "again")]
        pd.testing.assert_frame_equal(*shown)

    def limits(of: FromReference) -> Floats:
        return of.package.prior.limits.cap

    released = json.loads((public / "released" / "set-1.json").read_text())["strata"]["all"]
    caps = np.array(released["limits"]["values"])[:, 1]
    np.testing.assert_allclose(caps, limits(_learned(job)[1]), rtol=1e-12)
    earlier[~_absent(earlier)].to_parquet(tmp_path / "earlier.parquet")
    assert np.abs(limits(_learned(job)[1]) / caps - 1.0).max() > 1e-3


def test_fewer_columns_put_such_records_into_base_cells(tmp_path: Path) -> None:
    """Lawyers occur, so without the table by sex all records are in base cells. Control: with both tables some are not."""
    job = _job(tmp_path)
    for tables, absent in ((1, None), (2, 1)):
        model, learned = _learned(job, tables)
        reference = model.with_donors(learned.donors).source
        assert isinstance(reference, Reference)
        assert reference.absent is None or len(reference.absent) == (absent or 0)
        assert len(reference.cell) == len(survey(2))
        assert reference.cell.max() == len(model.count) - 1 + (absent or 0)


def test_a_reference_whose_weights_are_all_in_such_crosses_is_refused(tmp_path: Path) -> None:
    """It has no donors. Control: with others it is not."""
    job = _job(tmp_path)
    model, _ = _learned(job)
    plan = dpdist.plan(job)
    assert isinstance(plan.reference, ReferenceFile)
    records = Population.of(plan.job, plan.reference, plan.frame).as_it_is()
    with pytest.raises(Improper, match="no record with a weight above 0 in the cells of the tables"):
        model.learned(replace(records, weight=np.zeros(len(records))), None)


@pytest.mark.parametrize("secret", [False, True])
def test_no_cross_is_absent_where_numbers_of_records_are_secret(secret: bool, tmp_path: Path) -> None:
    """The file lacks one cross. Control: where numbers are public, its reference records are known."""
    made = _job(tmp_path)
    if secret:
        made = made.model_copy(update={"budget": made.budget.model_copy(update={"adjacency": "add_remove"})})
    public = dpdist.plan(_job(tmp_path))
    assert isinstance(public.reference, ReferenceFile)
    placed = records_of(made, public.reference, tmp_path)
    assert bool(absent_records(made, public.reference, placed).weight.size) is not secret

"""Quantiles without a reference are released from noisy histograms, or refused; those of heaped answers hold the truth."""

from __future__ import annotations

from pathlib import Path

import pytest
from quantile_surveys import Survey, job_of, released_quantiles

import dpdist
from dpdist.core.errors import DataError

LIGHT = Survey(light=0.03)
"""Noise leaves cells of the first area unidentified, and every group has such a cell."""


def test_a_quantile_over_cells_that_noise_leaves_unidentified_is_released_with_room_for_them(tmp_path: Path) -> None:
    """It was blank, and so were all margins over it."""
    published = released_quantiles(tmp_path, LIGHT, 2, reference=False)
    assert published["estimate"].notna().all()
    assert ((published["lower"] <= published["estimate"]) & (published["estimate"] <= published["upper"])).all()
    assert ((published["upper"] - published["lower"]) / published["estimate"]).max() < 1.0


def test_a_quantile_of_cells_that_share_histograms_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    """Control: the same table with enough records is planned."""
    job, _ = job_of(tmp_path, Survey(cell_records=100), reference=False)
    with pytest.raises(DataError) as refused:
        dpdist.validate(job)
    (problem,) = refused.value.problems
    assert problem.where == "tables[0] (groups): median of income, quantile 0.25 of income, quantile 0.9 of income"
    assert "4 base cells" in problem.fault
    assert "coarser columns" in problem.remedy
    dpdist.validate(job_of(tmp_path, Survey(), reference=False)[0])

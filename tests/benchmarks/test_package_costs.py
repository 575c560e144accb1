"""What a plan projects of a package's run is within a factor of 3 of what the run takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from package_costs import Size, measured

SMALL, LARGE = Size((4, 4, 3), 3, 20_000), Size((5, 4, 4, 4, 2), 15, 12_000)


@pytest.mark.slow
def test_time_and_memory_of_two_sizes_are_projected_within_a_factor_of_three(tmp_path: Path) -> None:
    """No constant was measured on these sizes. Control: the projection of the smaller is not within 3 of the larger's."""
    runs = [measured(tmp_path / str(number), size) for number, size in enumerate((SMALL, LARGE))]
    for run in runs:
        assert 1 / 3 < run.projected_seconds / run.seconds < 3
        assert 1 / 3 < run.projected_peak / run.peak < 3
    assert runs[1].seconds > 3 * runs[0].projected_seconds

"""Nested columns: which levels follow from which, by a map and by public records."""

from __future__ import annotations

import numpy as np
import pytest

from dpdist.core.records import Crosstab
from dpdist.job.tables import UNSEEN, UnnestedError, parents_in

LEVELS = {"region": ("N", "S"), "state": ("a", "b", "c"), "county": (1, 2, 3, 4)}


def crosstab(rows: list[tuple[int, int]], count: list[int] | None = None) -> Crosstab:
    codes = dict(zip(("region", "state"), np.array(rows, dtype=np.int32).T, strict=True))
    return Crosstab(codes, LEVELS, np.array(count or [1] * len(rows)), (), ())


def test_records_of_several_frames_tell_the_map_and_empty_rows_do_not() -> None:
    """Control: the empty row's pair would put c into two regions."""
    unstated = np.full(3, UNSEEN, dtype=np.int32)
    frames = [crosstab([(0, 0), (1, 2), (0, 2)], [4, 1, 0]), crosstab([(1, 1)])]
    assert parents_in(frames, "state", "region", unstated).tolist() == [0, 1, 1]
    with pytest.raises(UnnestedError) as refused:
        parents_in([crosstab([(0, 0), (1, 2), (0, 2)], [4, 1, 1])], "state", "region", unstated)
    assert (refused.value.level, refused.value.both) == ("c", ("N", "S"))


def test_a_stated_map_is_held_to_the_records_and_kept_unchanged() -> None:
    stated = np.array([0, UNSEEN, 1], dtype=np.int32)
    assert parents_in([crosstab([(0, 0), (1, 1)])], "state", "region", stated).tolist() == [0, 1, 1]
    assert stated.tolist() == [0, UNSEEN, 1]
    with pytest.raises(UnnestedError, match="state a: region N and S"):
        parents_in([crosstab([(1, 0)])], "state", "region", stated)

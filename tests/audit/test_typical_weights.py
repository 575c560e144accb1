"""Typical weights are learned under ε: sensitivity over pairs of adversarial records, and what all steps lose together.

Controls: half of the noise, and scores about a total that was not released.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from losses import CELLS, LEVELS, SIZE, Case

from dpdist.core.records import UNIT, Floats, Frame
from dpdist.job import Adjacency
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.reference_tables.histograms import Histograms
from dpdist.mechanisms.reference_tables.post import ReferenceCells
from dpdist.mechanisms.reference_tables.sensitivity import POSITION, best_columns, positions, shares_of_histograms
from dpdist.mechanisms.reference_tables.typical_weights import TypicalWeights
from dpdist.mechanisms.registry import MECHANISMS
from dpdist.privacy.queries import lost, neighbour_of
from dpdist.reference.histograms import Bins

pytestmark = pytest.mark.quick

ADJACENCIES: tuple[Adjacency, ...] = ("zero_out", "substitution")
WEIGHTS = np.array([0.0, 1e-300, 0.5, 40.0, 199.999, 200.0, 1e6])
"""Weights up to the public bound of 200, and beyond it."""


def typical(adjacency: Adjacency = "substitution") -> TypicalWeights:
    case = Case("reference_tables", adjacency, histogram="1/3")
    assert isinstance(case.model, ReferenceCells)
    made = TypicalWeights.build(case.job, case.model)
    assert isinstance(made, TypicalWeights)
    return made


def changes(made: TypicalWeights, middle: float | None) -> tuple[float, float]:
    """The largest change of a score, and of level sums in L1, over exchanges in a file of SIZE records a cell.

    `middle` is the released total; None computes it from the file itself, as no mechanism may.
    """
    place, base = made.positions(WEIGHTS), 0.2 * UNIT * SIZE * np.eye(CELLS)[0]

    def scores(sums: Floats) -> Floats:
        return made.scores(sums, float(sums.sum()) if middle is None else middle)

    of_scores, of_sums = 0.0, 0.0
    for cell in range(CELLS):
        one = np.eye(CELLS)[cell]
        for before in place:
            for after in place:
                pair = base + one * before, base + one * after
                of_scores = max(of_scores, float(np.abs(scores(pair[1]) - scores(pair[0])).max()))
                levels = [made.level_sums(sums, 1) for sums in pair]
                of_sums = max(of_sums, float(np.abs(levels[1] - levels[0]).sum()))
    return of_scores, of_sums


def test_a_record_moves_sums_and_scores_by_one_position_at_most_and_it_is_attained() -> None:
    """An exchange of the lightest for the heaviest weight, at the same x. Control: scores about the file's own total."""
    of_scores, of_sums = changes(typical(), 0.0)
    assert of_scores == of_sums == float(POSITION.same_x)
    assert changes(typical(), None)[0] > 1.2 * of_scores


def test_a_record_that_is_switched_off_moves_them_by_half_as_much() -> None:
    place = typical().positions(WEIGHTS)
    assert np.abs(place).max() == float(POSITION.off)
    assert {place.min(), place.max()} == {-UNIT / 2, UNIT / 2}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_all_steps_together_lose_what_histograms_are_given(adjacency: Adjacency) -> None:
    """Exactly, also where public sizes leave nothing to choose. Control: half of a scale loses twice as much."""
    case = Case("reference_tables", adjacency, histogram="1/3")
    made, (steps, rest) = typical(adjacency), shares_of_histograms(case.job)
    neighbour = neighbour_of(case.job)
    queries = made.total, made.choice, made.by_level, made.histograms.query
    assert lost(queries, neighbour) == sum(steps) + rest == Fraction(1, 3)
    assert MECHANISMS["reference_tables"].promise(case.job).total.epsilon == 1  # type: ignore[union-attr]
    assert positions(steps[2] * 2, adjacency).loss(neighbour) == 2 * steps[2]
    assert best_columns(steps[1], adjacency).loss(neighbour) == steps[1]


def test_one_cell_leaves_nothing_to_choose_and_its_histograms_have_the_noise_of_others() -> None:
    case = Case("reference_tables", "zero_out", histogram="1/3")
    codes = {name: np.zeros(1, dtype=np.int32) for name in LEVELS}
    frame = Frame(codes, LEVELS, np.array([SIZE]), (), ())
    model = builder_of(case.job).build(case.job, frame, slice(0, 1))
    assert isinstance(model, ReferenceCells)
    made = TypicalWeights.build(case.job, model)
    assert isinstance(made, Histograms)
    assert made.query.loss("off") == Fraction(3, 4) * Fraction(1, 3)


def test_relative_weights_have_fine_bins_in_every_cell() -> None:
    """Where typical weights are far apart, too. Control: the decades of weights as they are hold heavy cells alone."""
    sizes = np.geomspace(1e-3, 1e3, CELLS)
    bins = typical().histograms.relative_to(sizes, np.zeros(CELLS)).bins[0]
    few = Bins.within(bins.left[0], bins.right[-1], atoms=(False, True))
    values = 20.0 / sizes
    fine, coarse = (((kept.right - kept.left)[kept.number(values)] / values).max() for kept in (bins, few))
    assert fine < 0.3
    assert coarse > 10.0

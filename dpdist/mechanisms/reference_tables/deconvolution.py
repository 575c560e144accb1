"""The shape of cells whose group shares a histogram: the histogram without what sets the cells apart (METHODS §7b).

Cells of a group are taken to have one shape at scales of their own. So their histogram is a mixture of the shape over these
scales, and wider than the shape. Noisy sums tell the scales, and the shape is fitted to the noisy histogram through the
mixture; under it the sums tell other scales, and so on. Scales are about their mean in the group, as the histogram has the
group's level. They are shrunk until they vary as they do without noise (Louis 1984). Limits were fixed before the sums, by
the histogram alone. All of it is post-processing of noisy counts and noisy sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.core.records import Floats
from dpdist.estimation.small_area import shrunk
from dpdist.mechanisms.reference_tables.clipping import FARTHEST, Cell
from dpdist.mechanisms.reference_tables.clipping_inversion import noise_of_scales
from dpdist.mechanisms.reference_tables.histogram_bins import Bins
from dpdist.mechanisms.reference_tables.histograms import Histograms
from dpdist.mechanisms.reference_tables.release import ReferenceCells, Told
from dpdist.mechanisms.reference_tables.sensitivity import UNIT

ROUNDS = 2
A_BIN = 8
"""Points that stand for a bin."""

Limit = tuple[float, float, float]


def deconvolved(known: Histograms, counts: Floats, summary: Told, model: ReferenceCells, sums: Floats) -> Told:
    """Every outcome's cells, from noisy counts of `known` and noisy sums of `model` under limits that `told` fixed."""
    assert model.limits is not None
    if len(known.group) == int(known.group.max()) + 1:
        return summary
    limits, sized = model.limits, model.sized(sums, model.count)
    for _ in range(ROUNDS):
        apart = []
        for k, cells in enumerate(summary):
            own = list(zip(limits.centre[:, k].tolist(), limits.cap.tolist(), limits.reach[:, k].tolist(), strict=True))
            means = sized.sums[:, [0, 1 + k]] / UNIT / sized.size[:, None]
            apart.append(_apart(known, cells, own, means, sized.size, np.diag(model.noise)))
        summary = known.mixed(
            counts, [_matrices(known, summary, apart, group) for group in range(int(known.group.max()) + 1)]
        )
    return summary


def _apart(
    known: Histograms, cells: Sequence[Cell], limits: Sequence[Limit], means: Floats, size: Floats, of_sums: Floats
) -> Floats:
    """(log s, log g) of every cell about its group's mean, (cell, 2); `means` are 1 less mean v and mean vc."""
    solved, sampling, noise = [], [], []
    for cell, own, (left, product), n in zip(cells, limits, means, size, strict=True):
        slopes = cell.slopes(own)
        solved.append(cell.solve(1.0 - left, product, own))
        sampling.append(slopes.influence.var(axis=0) / n)
        noise.append(np.diag(noise_of_scales([slopes], of_sums / n**2, np.array([FARTHEST, cell.farthest]))))
    raw, known_errors, of_noise = np.array(solved), np.array(sampling), np.array(noise)
    found = np.zeros_like(raw)
    for group in range(int(known.group.max()) + 1):
        rows = np.flatnonzero(known.group == group)
        for k in range(2):
            part = shrunk(raw[rows, k], known_errors[rows, k], of_noise[rows, k])
            values = np.sqrt(part.kept) * (raw[rows, k] - part.mean)
            found[rows, k] = values - np.average(values, weights=size[rows])
    return found


def _matrices(known: Histograms, summary: Told, apart: Sequence[Floats], group: int) -> list[Floats | None]:
    """Of a group's histograms: the weight's, then every outcome's; two-valued outcomes are not mixed, nor is one cell."""
    own = np.flatnonzero(known.group == group)
    if len(own) == 1:
        return [None] * len(known.bins)
    bins, share = list(known.bins), known.model.count[own] / known.model.count[own].sum()
    found: list[Floats | None] = []
    if known.model.weighted:
        of_weight = bins.pop(0)
        points = _points(of_weight)
        found.append(_mixing(of_weight, [points * np.exp(s) for s in apart[0][own, 0]], share))
    for each, cells, moves in zip(bins, summary, apart, strict=True):
        shape = cells[own[0]]
        if shape.two_valued:
            found.append(None)
            continue
        moved = [shape.moving(_points(each), g) for g in moves[own, 1]]
        found.append(_mixing(each, moved, share))
    return found


def _points(bins: Bins) -> Floats:
    """A_BIN points of every bin, in the bins' order."""
    at = np.tile((np.arange(A_BIN) + 0.5) / A_BIN, len(bins.left))
    return bins.at(np.repeat(np.arange(len(bins.left)), A_BIN), at)


def _mixing(bins: Bins, moved: Sequence[Floats], share: Floats) -> Floats:
    """Probabilities (bin of a record, bin of its shape), of every cell's `moved` points at the cell's share."""
    size = len(bins.left)
    found, of_shape = np.zeros((size, size)), np.repeat(np.arange(size), A_BIN)
    for points, part in zip(moved, share, strict=True):
        np.add.at(found, (bins.number(points), of_shape), part / A_BIN)
    return found

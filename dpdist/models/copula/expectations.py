"""Expected weights and outcomes of cells under the score model, and their error from the reference's sampling.

Scores are cut into narrow bins. Within a bin, the weight w and the outcome y are replaced by their means under the
reference's own law. This is exact for that law. For another law the error is of the order of the squared bin width
(METHODS §5b).
"""

from __future__ import annotations

import numpy as np
import scipy

from dpdist.confidential.records import Records
from dpdist.core.records import Floats, Ints
from dpdist.models.copula.marginal import BINS
from dpdist.models.copula.normal_scores import Kind, Scored
from dpdist.models.copula.reference_summary import Facts, Law
from dpdist.models.copula.spline import basis
from dpdist.models.numerics.tiles import by_pattern

DRAWS = 64
"""Number of draws that are computed together, so that their products of bins take only some megabytes."""


def expectations(facts: Facts, law: Law, kind: Kind, bounds: tuple[float, float]) -> tuple[Floats, Floats]:
    """E(w) and E(wy) of every cell, (draw, cell) each, with outcomes clipped to `bounds`."""
    draws, cells = law.share.shape
    weight, product = np.empty((draws, cells)), np.empty((draws, cells))
    for cell in range(cells):
        bins = facts.bins[cell]
        for low in range(0, draws, DRAWS):
            rows = slice(low, low + DRAWS)
            share = law.share[rows, cell]
            chances = [_chances(law.mean[rows, cell, part], law.sd[rows, cell, part], bins.edges) for part in range(2)]
            ones = chances[1] * bins.one
            weight[rows, cell] = share * ones.sum(axis=1) + (1.0 - share) * (chances[0] @ bins.zero)
            if kind == "binary":
                product[rows, cell] = share * ones.sum(axis=1)
                continue
            located = facts.untied[cell] * (law.slopes[rows, cell] @ bins.splines.T) + facts.tie[cell] * bins.splines[:, 1]
            residual = facts.untied[cell] * law.residual[rows, cell]
            given = np.empty_like(located)
            for k, values in bins.means.items():
                inside = bins.outcome == k
                given[:, inside] = _mean(np.clip(values, *bounds), located[:, inside], residual)
            product[rows, cell] = share * (ones * given).sum(axis=1)
    return weight, product


def _chances(mean: Floats, sd: Floats, edges: Floats) -> Floats:
    """Probability of every bin under N(mean, sd²), (draw, bin); the outermost bins include the tails."""
    below = scipy.special.ndtr((edges[1:-1] - mean[:, None]) / sd[:, None])
    return np.diff(below, prepend=0.0, append=1.0, axis=1)


def _mean(values: Floats, located: Floats, sd: Floats) -> Floats:
    """Mean of an outcome whose score follows N(located, sd²), (draw, …); `values` (bin,) are its means in BINS."""
    below = scipy.special.ndtr((BINS[1:-1] - located[..., None]) / sd[:, None, None])
    return np.asarray(values[-1] - below @ np.diff(values))


def borrowed(facts: Facts, law: Law, scored: Scored, records: Records, share: Floats) -> Floats:
    """Covariance of the errors of (E w, E wy) that the sampling of the reference causes, (cell, 2, 2).

    The influence of a record on an efficient estimate is its influence on the direct estimate, projected on the
    statistics of the fit. The current records determine this projection. The remainder comes from the reference's own
    records. `share` (cell,) is the share of a unit's records that are in the cell. Only this share of the fit follows
    from the cell's records. `records` follow the current law, and `scored` are their scores.
    """
    pairs = np.column_stack([records.weight, records.weight * records.outcome])
    covariance = np.zeros((len(share), 2, 2))
    for rows, cell in by_pattern(scored.cell):
        z_w, z_y, part = scored.weight[rows], scored.outcome[rows], scored.part[rows].astype(np.float64)
        splines = basis(z_w)
        residual = part * (z_y - splines @ law.slopes[0, cell])
        statistics = [(1.0 - part) * z_w, (1.0 - part) * z_w**2, part * z_w, part * z_w**2, residual**2]
        functions = np.column_stack([np.ones(len(rows)), part, *statistics, residual[:, None] * splines])
        coefficients = np.linalg.lstsq(functions, pairs[rows], rcond=1e-8)[0]
        coefficients[2:] *= share[cell]
        left = pairs[rows] - functions @ coefficients
        left -= left.mean(axis=0)
        covariance[cell] = left.T @ left / len(rows) / float(facts.effective[cell])
    return covariance


def shares(count: Ints, unit: Ints) -> Floats:
    """Each cell's share of the records of its unit, (cell,); a unit is a set of cells that share a fit."""
    return np.asarray(count / np.bincount(unit, weights=count)[unit])

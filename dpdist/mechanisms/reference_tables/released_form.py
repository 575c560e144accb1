"""Names and dimensions of the released parameters of reference tables, and the conversion of points to lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdist.core.records import Floats
from dpdist.estimation.weighted_points import MOST_POINTS
from dpdist.models.protocol import Parameter


def released_form(
    labels: tuple[str, ...], outcomes: tuple[str, ...], simplex: bool, of_histograms: bool, noisy_counts: bool = False
) -> tuple[Parameter, ...]:
    """The parameters of cells with these labels.

    `simplex`: sample sizes are secret. `of_histograms`: histograms fixed the limits. `noisy_counts`: sample counts
    have noise too.
    """
    cell, several = ("cell", labels), len(outcomes) > 1
    each = [f" {name}" if several else "" for name in outcomes]
    names = ("weight", *(outcomes if several else ("outcome",)))
    pairs = ("weight", *(name + one for one in each for name in ("both", "outcome")))
    sums = ("v(1 + c)/2", "v(1 - c)/2") if simplex else ("vc",)
    limits = (*(f"centre{one}" for one in each), "cap", *(f"reach{one}" for one in each))
    return (
        Parameter("sums", (cell, ("sum", ("1 - v", *(sum_name + one for sum_name in sums for one in each))))),
        Parameter("limits", (cell, ("limit", limits))),
        Parameter("means", (cell, ("mean", names))),
        *(Parameter(name, (cell, ("covariance", pairs))) for name in ("sampling", "noise", "alone")),
        Parameter("common", (cell, ("mean", names))),
        Parameter("unit", (cell,)),
        Parameter("departure", (cell, ("scale", names))),
        Parameter("kept", (cell, ("scale", names))),
        *((Parameter("elasticity", (cell, ("mean", names))),) if noisy_counts else ()),
        *(_of_histograms(labels, names) if of_histograms else (_borrowed(labels, outcomes),)),
    )


def _borrowed(labels: tuple[str, ...], outcomes: tuple[str, ...]) -> Parameter:
    """The borrowed share of a cell's shape, by outcome."""
    return Parameter("borrowed", (("cell", labels), ("outcome", outcomes)))


def _of_histograms(labels: tuple[str, ...], names: tuple[str, ...]) -> tuple[Parameter, ...]:
    """Parameters that exist only if histograms fixed the limits.

    - `spans`: the ends of a range of a mean that the sums do not identify; null where they identify it.
    - `tail`: standard deviations of the error from the histograms' tails.
    - `group`: the number of the group of cells that shares histograms.
    - `at_bound`: the share of the group's weights at or beyond their public upper bound; NaN if noise hides it.
    """
    cell, ends = ("cell", labels), tuple(f"{e} {n}" for n in names for e in ("least", "most"))
    return (
        Parameter("spans", (cell, ("end", ends))),
        Parameter("tail", (cell, ("mean", names))),
        Parameter("group", (cell,)),
        Parameter("at_bound", (cell,)),
    )


def padded(weight: Floats, outcome: Floats) -> Floats:
    """Points as an array (MOST_POINTS, 2), filled up with NaN."""
    padded = np.full((MOST_POINTS, 2), np.nan)
    padded[: len(weight)] = np.column_stack([weight, outcome])
    return padded


def unpadded(points: Floats) -> list[list[list[list[float]]]]:
    """Points as lists by outcome, cell and point, without the NaN."""
    return [[pair[~np.isnan(pair[:, 0])].tolist() for pair in cells] for cells in points]


def covariances(errors: Sequence[Floats]) -> Floats:
    """The variance of the weight, then for each outcome its covariance with the weight and its variance, (cell, …)."""
    return np.column_stack([errors[0][:, 0, 0], *(column for each in errors for column in (each[:, 0, 1], each[:, 1, 1]))])

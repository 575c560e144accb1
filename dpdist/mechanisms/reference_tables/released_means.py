"""For `reference_tables.post`: the form of its released parameters, what they state of cells, and redrawn means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpdist.core.records import UNIT, Floats, Ints
from dpdist.estimation.weighted_points import MOST_POINTS
from dpdist.models.outputs import CellFacts
from dpdist.models.protocol import Draws, Parameter


def released_form(
    labels: tuple[str, ...], outcomes: tuple[str, ...], simplex: bool, of_histograms: bool, noisy_counts: bool = False
) -> tuple[Parameter, ...]:
    """The form of the parameters of cells with these labels.

    `simplex`: sample sizes are secret. `of_histograms`: histograms fixed the limits. `noisy_counts`: sample counts
    have noise too.
    """
    cell, several = ("cell", labels), len(outcomes) > 1
    suffixes = [f" {name}" if several else "" for name in outcomes]
    names = ("weight", *(outcomes if several else ("outcome",)))
    pairs = ("weight", *(name + one for one in suffixes for name in ("both", "outcome")))
    sums = ("v(1 + c)/2", "v(1 - c)/2") if simplex else ("vc",)
    limits = (*(f"centre{one}" for one in suffixes), "cap", *(f"reach{one}" for one in suffixes))
    return (
        Parameter("sums", (cell, ("sum", ("1 - v", *(sum_name + one for sum_name in sums for one in suffixes))))),
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


def cell_facts(described: Mapping[str, Any], count: Floats) -> CellFacts:
    """What the written parameters tell of cells; `count` are the cells' sample records, (cell,)."""
    values = {
        name: np.array(parameter["values"], dtype=np.float64)
        for name, parameter in described.items()
        if isinstance(parameter, Mapping) and "values" in parameter
    }
    variables, ends = values["means"].shape[1], values.get("spans")
    variances = [values[name][:, ::2] for name in ("noise", "sampling", "alone")]
    deviations = [values[name] for name in ("common", "tail") if name in values]
    return CellFacts(
        means=values["means"],
        noisy_sum=values["unit"].astype(np.int64),
        clipped_weights=(count - values["sums"][:, 0] / UNIT) * values["limits"][:, variables - 1],
        departures=values["departure"],
        kept_shares=values["kept"],
        borrowed_shares=values.get("borrowed"),
        ranges=None if ends is None else ends.reshape(-1, variables, 2),
        shares_at_bound=values.get("at_bound"),
        error_variances=np.sum([*variances, *(deviation**2 for deviation in deviations)], axis=0),
        noise_variances=variances[0],
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
    return np.column_stack(
        [errors[0][:, 0, 0], *(column for error in errors for column in (error[:, 0, 1], error[:, 1, 1]))]
    )


FARTHEST_LOG_WEIGHT = 5.0
"""Largest error of a log mean weight."""


def resampled(theta: Draws, draws: int, rng: np.random.Generator) -> Draws:
    """Means under other samples of the reference and of the current file, without noise.

    `shape` (draw, cell) is the error of the reference's shapes, in standard deviations.
    """
    cells = theta["means"].shape[1]
    errors = _errors(theta, "sampling", theta["unit"][0].astype(np.int64), draws, rng)
    if theta["alone"].any():
        alone = _errors(theta, "alone", np.arange(cells), draws, rng)
        errors = [one + other for one, other in zip(errors, alone, strict=True)]
    shape = rng.standard_normal((draws, cells))
    return Draws({**_moved(theta, errors).values, "shape": shape})


def noised_again(theta: Draws, draws: int, rng: np.random.Generator) -> Draws:
    """Means under other noise, including two errors that cells share.

    The first is the error of the mean towards which cells are shrunk. The cells of a group of histograms share it, or
    all cells without histograms. The second is the error of the histograms' tails, which all cells share.
    """
    cells = theta["means"].shape[1]
    errors = _errors(theta, "noise", theta["unit"][0].astype(np.int64), draws, rng)
    group = theta["group"][0].astype(np.int64) if "group" in theta.values else np.zeros(cells, np.int64)
    single = np.bincount(group)[group] == 1
    for name, shared in (("common", np.where(single, -1, group)), ("tail", np.zeros_like(group))):
        if name in theta.values and theta[name].any():
            groups, number = np.unique(shared, return_inverse=True)
            drawn = [rng.standard_normal((draws, len(groups)))[:, number] for _ in errors]
            errors = [error + deviation * z for error, deviation, z in zip(errors, theta[name][0].T, drawn, strict=True)]
    return _moved(theta, errors)


def recounted(theta: Draws, counts: Floats, published: Floats) -> Draws:
    """Means under sample counts (draw, cell) that differ from the published ones (cell,), by the delta method."""
    unit = theta["unit"][0].astype(np.int64)
    members = np.eye(int(unit.max()) + 1)[unit]
    change = np.log((counts @ members) / (published @ members))[:, unit]
    return _moved(theta, [change * rate for rate in theta["elasticity"][0].T])


def _errors(theta: Draws, name: str, unit: Ints, draws: int, rng: np.random.Generator) -> list[Floats]:
    """Errors of log mean weights, then of each outcome's means, (draw, cell) each; equal for cells of one unit.

    Each outcome varies with the weight by its covariance. Covariances between outcomes are not needed for any table.
    """
    outcomes = theta["means"].shape[2] - 1
    of_weight, *pairs = np.split(theta[name][0], np.arange(1, 1 + 2 * outcomes), axis=1)
    sd, units = np.sqrt(of_weight[:, 0]), int(unit.max()) + 1
    shift = rng.standard_normal((draws, units))[:, unit]
    errors = [sd * shift]
    for k in range(outcomes):
        both, variance = pairs[2 * k][:, 0], pairs[2 * k + 1][:, 0]
        slope = np.divide(both, sd, out=np.zeros_like(sd), where=sd > 0)
        left = np.sqrt(np.maximum(variance - slope**2, 0.0))
        errors.append(slope * shift + left * rng.standard_normal((draws, units))[:, unit])
    return errors


def _moved(theta: Draws, errors: Sequence[Floats]) -> Draws:
    """The released means with these errors added."""
    weight = theta["means"][..., 0] * np.exp(np.clip(errors[0], -FARTHEST_LOG_WEIGHT, FARTHEST_LOG_WEIGHT))
    outcomes = [theta["means"][..., 1 + k] + error for k, error in enumerate(errors[1:])]
    return Draws({"means": np.stack([weight, *outcomes], axis=-1)})

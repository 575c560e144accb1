"""The public parts of `tables` in its registration: model, texts, and every measurement cell by cell, with its limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from dpdist.core.records import UNIT
from dpdist.job import NoiseName
from dpdist.mechanisms.parts import GAUSSIAN, LAPLACE, Figures
from dpdist.mechanisms.tables.cells import LARGE_WEIGHTS, SCORES, ResidualCells, model_of
from dpdist.mechanisms.tables.limits import STEPS_WIDER, WIDER, TableLimits
from dpdist.mechanisms.tables.measurements import PART_OF_LARGE
from dpdist.mechanisms.tables.scores import SHARE, RecordScores
from dpdist.mechanisms.tables.words import DEFINITIONS, QUERIES, WORDS
from dpdist.models.protocol import Draws, ReleaseView
from dpdist.privacy.guarantees import neighbour_of

__all__ = ["DEFINITIONS", "QUERIES", "WORDS", "figures", "model_of"]

LAW_NAMES: dict[NoiseName, str] = {"laplace": LAPLACE, "gaussian": GAUSSIAN}


def figures(release: ReleaseView, model: ResidualCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The noisy sums of every measurement, cell by cell."""
    noisy, parts, limits = theta["noisy"][0], model.released_parts(theta), _Limits(model, theta)
    statistics = ["weight residuals", *(f"outcome residuals{suffix}" for suffix in model.suffixes)][not model.weighted :]
    if model.secret:
        statistics = [f"{side}{suffix}" for side in ("above", "below") for suffix in model.suffixes]
    ends = np.cumsum([*[1] * model.secret, 1, *map(model.workload.number_of_groups, model.measured)])[:-1]
    cells, within = [*[()] * model.secret, (), *model.measured], _of_stratum(release, stratum)
    # Names and parts of sums of scores come after these.
    for number, (name, by, sums, part) in enumerate(zip(model.names, cells, np.split(noisy, ends), parts, strict=False)):
        of_number = model.secret and number == 0
        labels = ["records"] if of_number else statistics
        yield Figures(
            cells=[within | cell for cell in model.groups(by)],
            statistics=labels,
            values=sums[:, : len(labels)],
            scales=[model.joint.share("", part).scale] * len(labels),
            limits=_without_limits if of_number else partial(limits, number - model.secret),
            law=LAW_NAMES[model.joint.law],
            table=name,
            sensitivity=float(model.distance / UNIT),
        )
    if "beyond" in theta.values:
        yield from _beyond(release, model, stratum, theta)
    if "large" in theta.values:
        yield Figures(
            cells=[within],
            statistics=["large weights"],
            values=theta["large"].reshape(1, 1),
            scales=[model.joint.share("", PART_OF_LARGE).scale],
            limits=_without_limits,
            law=LAW_NAMES[model.joint.law],
            table=LARGE_WEIGHTS,
            sensitivity=float(model.distance / UNIT),
        )
    if "scores" in theta.values:
        yield from _of_scores(release, model, stratum, theta)
    if model.bins is not None:
        yield from _of_bins(release, model, stratum, theta)
        if model.of_quadrants is not None:
            yield Figures(
                cells=[_of_stratum(release, stratum)],
                statistics=[f"quadrant sum of weights and outcomes{suffix}" for suffix in model.suffixes],
                values=theta["quadrants"],
                scales=[model.of_quadrants.scale] * len(model.outcomes),
                limits=_without_limits,
                unit=1,
                law=LAW_NAMES[model.of_quadrants.law],
                table="quadrants",
                sensitivity=float(model.of_quadrants.moved.by(neighbour_of(release.job))),
            )


def _of_stratum(release: ReleaseView, stratum: int) -> dict[str, str]:
    """The stratum's levels, which all its measurements have."""
    crosstab = release.crosstab
    row = crosstab.rows_of(stratum).start
    return {name: str(crosstab.levels[name][crosstab.codes[name][row]]) for name in crosstab.strata}


def _beyond(release: ReleaseView, model: ResidualCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The noisy numbers of records beyond limits, by table."""
    part, coordinates = model.released_measurements(theta).part_beyond, theta["beyond"].shape[2] // STEPS_WIDER
    names = ["weights", *(f"outcomes{suffix}" for suffix in model.suffixes)][-coordinates:]
    within = _of_stratum(release, stratum)
    for by, counts in zip(model.measured, model.by_table(theta["beyond"][0]), strict=True):
        yield Figures(
            cells=[within | group for group in model.groups(by)],
            statistics=[f"beyond {int(WIDER**k)} limits of {name}" for name in names for k in range(STEPS_WIDER)],
            values=counts,
            scales=[model.joint.share("", part).scale] * counts.shape[1],
            limits=_without_limits,
            law=LAW_NAMES[model.joint.law],
            table=f"records beyond limits of {model.workload.named(by)}",
            sensitivity=float(model.distance / UNIT),
        )


def _of_scores(release: ReleaseView, model: ResidualCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The noisy sums of scores, by table, with centres and half-widths of sizes."""
    asked, weight = model.released_measurements(theta), release.job.survey.measured_weight
    columns = RecordScores.of(asked.file).columns
    of_columns = list(zip([*([weight] if weight is not None else []), *model.outcomes], columns, strict=True))
    ends = [None if name == SHARE else (scores.low, scores.high) for _, scores in of_columns for name in scores.names]
    for by, values, part in zip(model.measured, model.by_table(theta["scores"][0]), asked.parts_of_scores, strict=True):
        yield Figures(
            cells=[_of_stratum(release, stratum) | group for group in model.groups(by)],
            statistics=[f"scores of {name}: {score}" for name, scores in of_columns for score in scores.names],
            values=values,
            scales=[model.joint.share("", part).scale] * values.shape[1],
            limits=partial(_ends_of_scores, ends),
            law=LAW_NAMES[model.joint.law],
            table=SCORES.format(model.workload.named(by)),
            sensitivity=float(model.distance / UNIT),
        )


def _ends_of_scores(
    ends: list[tuple[float, float] | None], cell: int, column: int
) -> tuple[float | None, None, float | None]:
    if (of_column := ends[column]) is None:
        return None, None, None
    return sum(of_column) / 2.0, None, (of_column[1] - of_column[0]) / 2.0


def _of_bins(release: ReleaseView, model: ResidualCells, stratum: int, theta: Draws) -> Iterator[Figures]:
    """The noisy counts of every column's bins, with the bins' centres and half-widths."""
    assert model.bins is not None
    assert model.of_counts is not None
    weight = release.job.survey.measured_weight
    names = [*([weight] if weight is not None else []), *model.outcomes]
    counts = np.split(theta["counts"][0], model.bins.ends[:-1])
    for name, bins, of_column in zip(names, model.bins.columns, counts, strict=True):
        ends = np.concatenate([bins.cuts[:1], bins.cuts])
        middle, half = (ends[1:] + ends[:-1]) / 2.0, (ends[1:] - ends[:-1]) / 2.0
        yield Figures(
            cells=[_of_stratum(release, stratum)] * len(middle),
            statistics=[f"count in bins of {name}"],
            values=of_column[:, None],
            scales=[model.of_counts.scale],
            limits=partial(_ends_of_bin, middle.tolist(), half.tolist()),
            unit=1,
            law=LAW_NAMES[model.of_counts.law],
            table=f"bins of {name}",
            sensitivity=float(model.of_counts.moved.by(neighbour_of(release.job))),
        )


def _ends_of_bin(middle: list[float], half: list[float], number: int, statistic: int) -> tuple[float, None, float]:
    return middle[number], None, half[number]


def _without_limits(cell: int, column: int) -> tuple[None, None, None]:
    return None, None, None


@dataclass(frozen=True)
class _Limits:
    """The limits of measurements, computed when they are first asked for."""

    model: ResidualCells
    theta: Draws

    @cached_property
    def tables(self) -> tuple[TableLimits, ...]:
        return self.model.released_sums(self.theta).all_limits

    def __call__(self, table: int, cell: int, column: int) -> tuple[float | None, float | None, float | None]:
        """A cell's centre, weight cap and half width; the cap is that of weights, and the width that of outcomes."""
        of_table, statistic = self.tables[table], column + (not self.model.weighted)
        if self.model.secret:
            k, cap = column % len(self.model.outcomes), float(of_table.weight[cell])
            return float(of_table.mean[cell, k]), cap, float(of_table.outcome[cell, k])
        if statistic == 0:
            return float(of_table.centre[cell]), float(of_table.weight[cell]), None
        return float(of_table.mean[cell, statistic - 1]), None, float(of_table.outcome[cell, statistic - 1])

"""The model of noisy counts over a partition, and synthetic records that follow the counts ([S]; METHODS §9).

Attributes are the outcomes, with their levels or bins. A cell is a combination of levels. A partition is a tree over the
cells; each of its layers divides the cells into nodes. Counts of all layers are made consistent, from the root down, with
none below 0. The root has the public number of records, less the noisy sum of 1 − v where there are weights; v is the
weight over its public bound. A synthetic record's cell is drawn by its share of the counts. Its weight is the stratum's
mean weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from dpdist.confidential.records import Records
from dpdist.core.records import Codes, Floats, Frame, Ints
from dpdist.job import Job
from dpdist.mechanisms.partitions.attributes import Attribute
from dpdist.mechanisms.partitions.sensitivity import UNIT, count_scale, score_scale
from dpdist.mechanisms.partitions.spec import Partitioned, Steps, UniversalHistogram
from dpdist.mechanisms.partitions.tree import Tree, chosen, codes_of, consistent, ordered
from dpdist.mechanisms.sums_model import LinearSumsModel
from dpdist.models.design import design
from dpdist.models.protocol import Draws, Parameter
from dpdist.privacy.queries import record_epsilon

LEAST_MEAN_WEIGHT = 1e-3
"""Smallest mean v of a stratum; smaller means are raised to it."""


def scales_of(job: Job, settings: Partitioned) -> tuple[Fraction, Fraction | None]:
    """Scales of the noise on counts and on scores, in units of 1/UNIT; None: nothing is selected."""
    epsilon, adjacency = record_epsilon(job, job.epsilon_per_set), job.budget.adjacency
    selections = settings.selections(job)
    score = score_scale(settings.selecting * epsilon / selections, adjacency) if selections else None
    return count_scale((1 - settings.selecting) * epsilon / settings.layers_of(job), adjacency), score


@dataclass(frozen=True)
class PartitionCounts(LinearSumsModel):
    """The counts of one stratum; the statistics are (sum,), in units of 1/UNIT.

    With weights the first is the sum of 1 − v. Then follows v of every cell.
    """

    attributes: tuple[Attribute, ...]
    layers: tuple[tuple[int, ...], ...] | None
    """The attributes by which each layer splits its nodes; the last layer, which takes all other attributes, is left out.

    None: attributes are selected node by node.
    """
    selections: int
    count: int
    """Sample records, public."""
    weights: tuple[float, float] | None
    """Public bounds of the weight."""
    scale: Fraction
    """The scale of the noise on counts, in units of 1/UNIT."""
    score_scale: Fraction | None
    """The scale of the noise on scores, in units of 1/UNIT; None: nothing is selected."""

    @classmethod
    def build(cls, job: Job, frame: Frame, rows: slice, proper: bool = False) -> PartitionCounts:
        said, weight = job.mechanism, job.survey.weight
        assert isinstance(said, Partitioned)
        attributes = tuple(
            Attribute.of(name, job.columns[name], levels, name in said.bins)
            for name, levels in zip(job.outcomes, said.levels(job), strict=True)
        )
        counts, score = scales_of(job, said)
        return cls(
            design(frame, (), rows),
            job.outcome_column.bounds or (0.0, 1.0),
            attributes,
            _layers(said, job),
            said.selections(job),
            int(frame.count[rows].sum()),
            job.columns[weight].bounds if weight is not None else None,
            counts,
            score,
        )

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of levels of every attribute."""
        return tuple(each.levels for each in self.attributes)

    @cached_property
    def cells(self) -> int:
        return int(np.prod(self.shape))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Names of the parameters that publishing derives from the released counts."""
        levels = tuple(f"{each.name} = {label}" for each in self.attributes for label in each.labels)
        return Parameter("share", (("level", levels),)), Parameter("weight")

    def tree(self, selected: tuple[Ints, ...] = ()) -> Tree:
        """The tree of the layers that the job names, or of the selected attributes."""
        return chosen(selected, self.shape) if self.layers is None else self._named

    @cached_property
    def _named(self) -> Tree:
        assert self.layers is not None
        return ordered(self.layers, self.shape)

    def statistics(self, records: Records, alpha: Floats) -> Floats:
        whole = np.rint(alpha * UNIT)
        v = whole if self.weights is None else np.rint(whole * (records.weight / self.weights[1]))
        levels = [each.level(y) for each, y in zip(self.attributes, records.outcomes.T, strict=True)]
        counts = np.bincount(np.ravel_multi_index(levels, self.shape), weights=v, minlength=self.cells).astype(np.float64)
        return counts if self.weights is None else np.concatenate([[(whole - v).sum()], counts])

    def layered(self, tree: Tree, sums: Floats) -> Floats:
        """Sums of every node, layer by layer, from the sums of cells; with weights the sum of 1 − v stays in front."""
        first = self._first
        return np.concatenate([sums[:first], *tree.sums(sums[first:])])

    @property
    def _first(self) -> int:
        """Number of sums before the nodes' sums: 1 with weights, for the sum of 1 − v, otherwise 0."""
        return int(self.weights is not None)

    def parts(self, tree: Tree, sums: Floats) -> tuple[Floats, tuple[Floats, ...]]:
        """The sums (sum,) in parts: the sum of 1 − v, and the sums of each layer's nodes."""
        ends = self._first + np.cumsum(tree.sizes)[:-1]
        return sums[: self._first], tuple(np.split(sums, [self._first, *ends])[1:])

    def released(self, selected: tuple[Ints, ...], sums: Floats) -> Draws:
        """The released parameters: selected attributes, noisy sums as measured, and the parameters derived from them."""
        attributes = np.concatenate([*selected, np.empty(0)]).astype(float)
        cells = self._cells(self.tree(selected), sums)
        return Draws({"selected": attributes[None], "sums": sums[None], **self._followed(cells[None]).values})

    def _cells(self, tree: Tree, sums: Floats) -> Floats:
        """Σv of every cell, (cell,), consistent over all layers."""
        n, (absent, counts) = float(self.count), self.parts(tree, sums / UNIT)
        least = n if self.weights is None else n * max(self.weights[0] / self.weights[1], LEAST_MEAN_WEIGHT)
        return consistent(tree, counts, n - absent.sum(), self.weights is None, (least, n))

    def _followed(self, cells: Floats) -> Draws:
        """The parameters from counts of cells (draw, cell): the shares of every attribute's levels, and the mean weight.

        The shares are (draw, level).
        """
        total, table = cells.sum(axis=1), cells.reshape(len(cells), *self.shape)
        axes = range(1, len(self.shape) + 1)
        sums = [table.sum(axis=tuple(each for each in axes if each != own)) for own in axes]
        share = np.concatenate(sums, axis=1) / total[:, None]
        top = 1.0 if self.weights is None else self.weights[1]
        return Draws({"share": share, "weight": top * total / self.count, "cells": cells / total[:, None]})

    def shares(self, theta: Draws, outcome: int) -> Floats:
        """Shares of an outcome's levels, (draw, level)."""
        start = sum(self.shape[:outcome])
        return theta["share"][:, start : start + self.shape[outcome]]

    def expect(self, theta: Draws, outcome: int = 0) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every frame row, (draw, row) each."""
        weight = np.repeat(theta["weight"][:, None], len(self.design.pattern), axis=1)
        return weight, weight * (self.shares(theta, outcome) @ self.attributes[outcome].values)[:, None]

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of the weight with an outcome of at most `value`, (draw, pair)."""
        distinct, pair = np.unique(value, return_inverse=True)
        below = np.column_stack([self.attributes[outcome].until(float(one)) for one in distinct])
        return np.asarray((self.shares(theta, outcome) @ below)[:, pair.reshape(-1)])

    def simulate(self, theta: Draws, frame_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draws cells by their shares; records have the mean weight. Several outcomes are (record, outcome)."""
        n, cumulated = len(frame_row), np.cumsum(theta["cells"][0])
        cell = np.minimum(np.searchsorted(cumulated, rng.random(n) * cumulated[-1], side="right"), self.cells - 1)
        levels = np.unravel_index(cell, self.shape)
        drawn = [each.drawn(level, rng) for each, level in zip(self.attributes, levels, strict=True)]
        outcome = drawn[0] if len(drawn) == 1 else np.column_stack(drawn)
        return outcome, np.full(n, theta["weight"][0])

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Shares under other samples, without noise.

        A sample has Σv records, which is at most the effective number. How weights vary is unknown: they are taken to be
        0 or at their bound, which varies most for a given mean.
        """
        held, cells = max(1, round(self._total(theta))), theta["cells"][0]
        each = [self._followed(rng.multinomial(held, cells / cells.sum())[None].astype(float)) for _ in range(draws)]
        share = np.concatenate([one["share"] for one in each])
        part = min(1.0, held / self.count)
        spread = np.sqrt((1.0 - part) / held) * rng.standard_normal(draws) if self.weights is not None else np.zeros(draws)
        return Draws({"share": share, "weight": theta["weight"][0] * np.maximum(1.0 + spread, 0.0)})

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The derived parameters under other noise on the released counts, for standard errors only."""
        tree, total = self.tree(self._selected(theta)), self._total(theta)
        absent, made = np.full(self._first, self.count - total), list[Draws]()
        expected = UNIT * self.layered(tree, np.concatenate([absent, total * theta["cells"][0]]))
        for _ in range(draws):
            noisy = expected + float(self.scale) * rng.laplace(size=len(expected))
            made.append(self._followed(self._cells(tree, noisy)[None]))
        return Draws({name: np.concatenate([one[name] for one in made]) for name in ("share", "weight")})

    def _total(self, theta: Draws) -> float:
        """The sum Σv of the stratum."""
        return float(self.count * theta["weight"][0] / (1.0 if self.weights is None else self.weights[1]))

    def _selected(self, theta: Draws) -> tuple[Ints, ...]:
        """Selected attributes by layer: one for each node of the layer before it."""
        flat, found, nodes = theta["selected"][0].astype(np.int64), list[Ints](), 1
        for _ in range(self.selections):
            found.append(flat[:nodes])
            flat, nodes = flat[nodes:], int(sum(self.shape[by] for by in flat[:nodes]))
        return tuple(found)

    def measured(self, theta: Draws) -> tuple[Tree, Floats, tuple[Floats, ...]]:
        """The tree and the noisy sums as measured: of 1 − v, and of v by layer and node."""
        tree = self.tree(self._selected(theta))
        return tree, *self.parts(tree, theta["sums"][0])

    def named(self, tree: Tree) -> list[list[dict[str, str]]]:
        """By layer and node, the labels of the attributes that have one level in the whole node."""
        codes, found = codes_of(self.shape), []
        for layer, size in zip(tree.nodes, tree.sizes, strict=True):
            first = np.unique(layer, return_index=True)[1]
            alike = [np.bincount(layer, weights=own != own[first][layer], minlength=size) == 0 for own in codes]
            found.append(
                [
                    {each.name: each.labels[codes[k, cell]] for k, each in enumerate(self.attributes) if alike[k][node]}
                    for node, cell in enumerate(first)
                ]
            )
        return found

    def describe(self, theta: Draws) -> Mapping[str, Any]:
        """Selected attributes and noisy sums, as whole numbers in units of 1/UNIT."""
        return {
            "prior": "proper",
            "selected": theta["selected"][0].astype(int).tolist(),
            "sums": theta["sums"][0].astype(int).tolist(),
            "noise": f"discrete Laplace, scale {self.scale} on counts"
            + (f" and {self.score_scale} on scores" if self.score_scale is not None else "")
            + f", in units of 1/{UNIT}",
        }

    def recall(self, described: Mapping[str, Any]) -> Draws:
        """The inverse of `describe`."""
        raw = Draws({"selected": np.array(described["selected"], dtype=float)[None]})
        return self.released(self._selected(raw), np.array(described["sums"], dtype=float))


def _layers(spec: Partitioned, job: Job) -> tuple[tuple[int, ...], ...] | None:
    """Positions of the attributes of every layer but the last; None where attributes are selected."""
    if isinstance(spec, UniversalHistogram):
        order = np.random.default_rng(spec.order_seed).permutation(len(job.outcomes))
        return tuple((int(each),) for each in order[: spec.layers - 1])
    if isinstance(spec, Steps):
        splitting = (spec.order or ())[: spec.layers_of(job) - 1]
        return None if spec.order is None else tuple(tuple(map(job.outcomes.index, each)) for each in splitting)
    return ()


def model_of(job: Job) -> type[PartitionCounts]:
    """The model of every job under the mechanism."""
    return PartitionCounts

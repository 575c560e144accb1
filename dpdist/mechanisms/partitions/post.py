"""Public half of the partition mechanisms: tables, errors and records from noisy counts ([S]).

Attributes are the outcomes, with their levels or bins; a cell is a combination of levels. The tree's root has the
public number of records; with weights, the noisy sum of 1 − v is subtracted. Synthetic records have the mean weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import UNIT, Codes, Crosstab, Floats, Ints
from dpdist.estimation.least_squares import nearest_on_simplices
from dpdist.job import Column, Job
from dpdist.mechanisms.partitions.sensitivity import layer_counts, selection
from dpdist.mechanisms.partitions.spec import Partitioned
from dpdist.mechanisms.parts import (
    SUM_OF_ABSENT,
    SUM_OF_V,
    WIDE,
    Figures,
    Words,
    cells_of,
)
from dpdist.models.protocol import Draws, Parameter, ReleaseView
from dpdist.models.public_model import LinearModel, design


@dataclass(frozen=True)
class Tree:
    """Layers of nodes: `nodes` has for every layer the node of every cell, (cell,), numbered from 0 in each layer."""

    nodes: tuple[Ints, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(layer.max()) + 1 for layer in self.nodes)

    def sums(self, cells: Floats) -> tuple[Floats, ...]:
        """Counts of every layer's nodes, as sums of the cells' counts."""
        return tuple(
            np.bincount(layer, weights=cells, minlength=size).astype(np.float64)
            for layer, size in zip(self.nodes, self.sizes, strict=True)
        )

    def parents(self) -> tuple[Ints, ...]:
        """For every layer's nodes, the parent node in the layer before; for the first layer the root."""
        above = (np.zeros_like(self.nodes[0]), *self.nodes[:-1])
        parents = []
        for layer, before, size in zip(self.nodes, above, self.sizes, strict=True):
            parent = np.zeros(size, dtype=np.int64)
            parent[layer] = before
            parents.append(parent)
        return tuple(parents)


def codes_of(levels: Sequence[int]) -> Ints:
    """The level of every attribute in every cell, (attribute, cell); the last attribute varies fastest."""
    return np.indices(tuple(levels), dtype=np.int64).reshape(len(levels), -1)


def split_nodes(nodes: Ints, by: Ints, codes: Ints) -> Ints:
    """Nodes (cell,) after every node was split by its own attribute, `by` (node,)."""
    most = int(codes.max()) + 1
    return np.asarray(np.unique(nodes * most + codes[by[nodes], np.arange(len(nodes))], return_inverse=True)[1])


def ordered(layers: Sequence[Sequence[int]], levels: Sequence[int]) -> Tree:
    """The tree whose layers split all nodes by the named attributes; the last layer has all cells."""
    codes, split_layers = codes_of(levels), list[Ints]()
    nodes = np.zeros(codes.shape[1], dtype=np.int64)
    for names in layers:
        for attribute in names:
            nodes = split_nodes(nodes, np.full(nodes.max() + 1, attribute), codes)
        split_layers.append(nodes)
    return Tree((*split_layers, np.arange(codes.shape[1])))


def grown(selected: Sequence[Ints], levels: Sequence[int]) -> tuple[tuple[Ints, ...], NDArray[np.bool_]]:
    """Layers of a tree, each of whose nodes was split by one attribute, starting with the root.

    Also returns the attributes used above each node of the last layer, (node, attribute).
    """
    codes, is_used = codes_of(levels), np.zeros((1, len(levels)), dtype=np.bool_)
    layers = [np.zeros(codes.shape[1], dtype=np.int64)]
    for by in selected:
        nodes = split_nodes(layers[-1], by, codes)
        parent = np.zeros(nodes.max() + 1, dtype=np.int64)
        parent[nodes] = layers[-1]
        is_used = is_used[parent]
        is_used[np.arange(len(parent)), by[parent]] = True
        layers.append(nodes)
    return tuple(layers), is_used


def selected_tree(selected: Sequence[Ints], levels: Sequence[int]) -> Tree:
    """The tree of selected attributes; the last layer has all cells."""
    layers = grown(selected, levels)[0]
    return Tree((*layers[1:], np.arange(len(layers[0]))))


def consistent(tree: Tree, noisy: Sequence[Floats], root: float, exact: bool, ends: tuple[float, float] | None) -> Floats:
    """Counts of the cells, (cell,), that are consistent with all layers' noisy counts.

    `root` is the root's count, without noise if `exact`. With `ends`, the limits of the root's count, children are
    projected onto the nearest non-negative counts that sum to the parent's. Without `ends`, the counts are unbiased.
    """
    parents, first = tree.parents(), [np.asarray(noisy[-1])]
    spread = [np.ones(len(noisy[-1]))]
    for count, parent in zip(reversed([np.array([root]), *noisy[:-1]]), reversed(parents), strict=True):
        total, variance = (np.bincount(parent, weights=values[-1], minlength=len(count)) for values in (first, spread))
        first.append((variance * count + total) / (variance + 1.0))
        spread.append(variance / (variance + 1.0))
    above = np.array([root]) if exact else first[-1]
    above = above if ends is None else np.clip(above, *ends)
    for z, v, parent in zip(reversed(first[:-1]), reversed(spread[:-1]), parents, strict=True):
        children, variance = (np.bincount(parent, weights=values, minlength=len(above)) for values in (z, v))
        level = z + (v / variance[parent]) * (above - children)[parent]
        above = level if ends is None else nearest_on_simplices(level, parent, above)
    return above


@dataclass(frozen=True)
class Attribute:
    """Levels of an outcome: the whole numbers between the bounds, or bins; values are uniform within a bin."""

    name: str
    low: float
    high: float
    levels: int
    binned: bool

    @classmethod
    def of(cls, name: str, column: Column, levels: int, binned: bool) -> Attribute:
        return cls(name, *column.ends, levels, binned)

    @property
    def width(self) -> float:
        """The width of a bin, or 1 for whole numbers."""
        return (self.high - self.low) / self.levels if self.binned else 1.0

    @property
    def values(self) -> Floats:
        """The value of every level, or the middle of every bin, (level,)."""
        return np.asarray(
            self.low + self.width * (np.arange(self.levels) + (0.5 if self.binned else 0.0)), dtype=np.float64
        )

    @property
    def labels(self) -> tuple[str, ...]:
        if not self.binned:
            return tuple(f"{value:.10g}" for value in self.values)
        half = self.width / 2.0
        return tuple(f"from {value - half:.10g} to {value + half:.10g}" for value in self.values)

    def level(self, outcome: Floats) -> Ints:
        """The level of every outcome, from 0; the upper bound is in the last level."""
        place = np.floor((outcome - self.low) / self.width) if self.binned else np.rint(outcome - self.low)
        return np.clip(place, 0, self.levels - 1).astype(np.int64)

    def draw(self, level: Ints | Codes, rng: np.random.Generator) -> Floats:
        """Draws a value for each given level."""
        spread = rng.random(len(level)) - 0.5 if self.binned else 0.0
        return np.asarray(np.clip(self.values[level] + self.width * spread, self.low, self.high))

    def until(self, value: float) -> Floats:
        """The share of every level at or below a value, (level,)."""
        if not self.binned:
            return np.where(self.values <= value, 1.0, 0.0)
        return np.clip((value - self.values) / self.width + 0.5, 0.0, 1.0)


AGAIN = (
    "Estimates from the released parameters (estimator `parameters`): standard errors include the variation in the "
    "sample's composition by x (predictors, strata and table columns), and the variation of new samples of Σv records "
    "and of new noise, both simulated from the first set's counts. The variation of weights was not released, so their "
    "sum is assumed to vary as if each were either 0 or at its bound. The bias from keeping counts non-negative is "
    "estimated from noise on the released counts."
)
WORDS = Words(
    density="noisy counts of the combinations of {outcome}, in the observed sample",
    errors=f"{AGAIN} {WIDE}",
    steps=(
        "Counts of all layers are made consistent by least squares, from the root down: a node's children get the nearest "
        "non-negative counts. The root is the public number of records or, with weights, that number less the noisy sum "
        "of 1 − v. Cells get synthetic records in proportion to their counts. Values are uniform within bins, and all "
        "records of a stratum have its mean weight.",
    ),
)
LEAST_MEAN_WEIGHT = 1e-3
"""Smallest mean v of a stratum; smaller means are raised to it."""


@dataclass(frozen=True)
class PartitionCounts(LinearModel):
    """The counts of one stratum; the statistics are (sum,), in units of 1/UNIT.

    With weights the first is the sum of 1 − v. The sums v of all cells follow.
    """

    attributes: tuple[Attribute, ...]
    layers: tuple[tuple[int, ...], ...] | None
    """The attributes that split each layer's nodes, without the last layer, which splits by all that remain.

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
    def build(cls, job: Job, crosstab: Crosstab, rows: slice, proper: bool = False) -> PartitionCounts:
        settings = Partitioned.of(job)
        attributes = tuple(
            Attribute.of(name, job.columns[name], levels, name in settings.bins)
            for name, levels in zip(job.outcomes, settings.levels(job), strict=True)
        )
        scores = selection(job, settings)
        return cls(
            design(crosstab, (), rows),
            job.outcome_column.ends,
            attributes,
            settings.splits(job),
            settings.selections(job),
            int(crosstab.count[rows].sum()),
            job.weight_bounds,
            layer_counts(job, settings).scale,
            None if scores is None else scores.scale,
        )

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(attribute.levels for attribute in self.attributes)

    @cached_property
    def cells(self) -> int:
        return int(np.prod(self.shape))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        levels = tuple(f"{attribute.name} = {label}" for attribute in self.attributes for label in attribute.labels)
        return Parameter("share", (("level", levels),)), Parameter("weight")

    def tree(self, selected: tuple[Ints, ...] = ()) -> Tree:
        """The tree of the layers that the job names, or of the selected attributes."""
        return selected_tree(selected, self.shape) if self.layers is None else self._named

    @cached_property
    def _named(self) -> Tree:
        assert self.layers is not None
        return ordered(self.layers, self.shape)

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
        """The parameters from counts (draw, cell): shares of all attributes' levels (draw, level), and mean weight."""
        total, table = cells.sum(axis=1), cells.reshape(len(cells), *self.shape)
        axes = range(1, len(self.shape) + 1)
        sums = [table.sum(axis=tuple(other for other in axes if other != axis)) for axis in axes]
        share = np.concatenate(sums, axis=1) / total[:, None]
        top = 1.0 if self.weights is None else self.weights[1]
        return Draws({"share": share, "weight": top * total / self.count, "cells": cells / total[:, None]})

    def shares(self, theta: Draws, outcome: int) -> Floats:
        """Shares of an outcome's levels, (draw, level)."""
        start = sum(self.shape[:outcome])
        return theta["share"][:, start : start + self.shape[outcome]]

    def expect(self, theta: Draws, outcome: int = 0) -> tuple[Floats, Floats]:
        """E(w|x) and E(wy|x) of every crosstab row, (draw, row) each."""
        weight = np.repeat(theta["weight"][:, None], len(self.design.pattern), axis=1)
        return weight, weight * (self.shares(theta, outcome) @ self.attributes[outcome].values)[:, None]

    def until(self, theta: Draws, row: Ints, value: Floats, outcome: int = 0) -> Floats:
        """Share of the weight with an outcome of at most `value`, (draw, pair)."""
        distinct, pair = np.unique(value, return_inverse=True)
        below = np.column_stack([self.attributes[outcome].until(float(point)) for point in distinct])
        return np.asarray((self.shares(theta, outcome) @ below)[:, pair.reshape(-1)])

    def simulate(self, theta: Draws, crosstab_row: Codes, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Draws cells by their shares; records have the mean weight. Several outcomes are (record, outcome)."""
        n, cumulated = len(crosstab_row), np.cumsum(theta["cells"][0])
        cell = np.minimum(np.searchsorted(cumulated, rng.random(n) * cumulated[-1], side="right"), self.cells - 1)
        levels = np.unravel_index(cell, self.shape)
        values = [attribute.draw(level, rng) for attribute, level in zip(self.attributes, levels, strict=True)]
        outcome = values[0] if len(values) == 1 else np.column_stack(values)
        return outcome, np.full(n, theta["weight"][0])

    def resampled(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """Shares under other samples, without noise.

        A sample has Σv records, which is at most the effective number. Each weight is simulated as 0 or as its bound.
        """
        total, cells = max(1, round(self._total(theta))), theta["cells"][0]
        samples = [self._followed(rng.multinomial(total, cells / cells.sum())[None].astype(float)) for _ in range(draws)]
        share = np.concatenate([sample["share"] for sample in samples])
        part = min(1.0, total / self.count)
        spread = np.sqrt((1.0 - part) / total) * rng.standard_normal(draws) if self.weights is not None else np.zeros(draws)
        return Draws({"share": share, "weight": theta["weight"][0] * np.maximum(1.0 + spread, 0.0)})

    def noised_again(self, theta: Draws, records: int, draws: int, rng: np.random.Generator) -> Draws:
        """The derived parameters under other noise on the released counts, for standard errors only."""
        tree, total = self.tree(self._selected(theta)), self._total(theta)
        absent, parts = np.full(self._first, self.count - total), list[Draws]()
        expected = UNIT * self.layered(tree, np.concatenate([absent, total * theta["cells"][0]]))
        for _ in range(draws):
            noisy = expected + float(self.scale) * rng.laplace(size=len(expected))
            parts.append(self._followed(self._cells(tree, noisy)[None]))
        return Draws({name: np.concatenate([part[name] for part in parts]) for name in ("share", "weight")})

    def _total(self, theta: Draws) -> float:
        return float(self.count * theta["weight"][0] / (1.0 if self.weights is None else self.weights[1]))

    def _selected(self, theta: Draws) -> tuple[Ints, ...]:
        """Selected attributes by layer, one for each node of the previous layer."""
        flat, layers, nodes = theta["selected"][0].astype(np.int64), list[Ints](), 1
        for _ in range(self.selections):
            layers.append(flat[:nodes])
            flat, nodes = flat[nodes:], int(sum(self.shape[by] for by in flat[:nodes]))
        return tuple(layers)

    def measured(self, theta: Draws) -> tuple[Tree, Floats, tuple[Floats, ...]]:
        """The tree and the noisy sums as measured: of 1 − v, and of v by layer and node."""
        tree = self.tree(self._selected(theta))
        return tree, *self.parts(tree, theta["sums"][0])

    def named(self, tree: Tree) -> list[list[dict[str, str]]]:
        """For each node, by layer, the labels of attributes that are constant in it."""
        codes, labels = codes_of(self.shape), []
        for layer, size in zip(tree.nodes, tree.sizes, strict=True):
            first = np.unique(layer, return_index=True)[1]
            alike = [np.bincount(layer, weights=code != code[first][layer], minlength=size) == 0 for code in codes]
            labels.append(
                [
                    {
                        attribute.name: attribute.labels[codes[k, cell]]
                        for k, attribute in enumerate(self.attributes)
                        if alike[k][node]
                    }
                    for node, cell in enumerate(first)
                ]
            )
        return labels

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


def model_of(job: Job) -> type[PartitionCounts]:
    """The model of every job under the mechanism."""
    return PartitionCounts


DEFINITIONS = {
    "1 - v": SUM_OF_ABSENT,
    "v": SUM_OF_V,
}
"""Definitions of the statistics by name, for the metadata of the file."""
QUERIES = {"1 - v": "counts of nodes", "v": "counts of nodes"}
"""The query that every statistic answers, by the names of both."""


def figures(release: ReleaseView, model: PartitionCounts, stratum: int, theta: Draws) -> Iterator[Figures]:
    """Yields the noisy sum of 1 − v where there are weights, and then the noisy counts of every layer of the tree.

    A node has the levels that all its cells share.
    """
    of_stratum, cap = cells_of(release, model, stratum)[0], None if model.weights is None else model.weights[1]
    tree, absent, counts = model.measured(theta)
    sensitivity = 2.0 if release.job.budget.adjacency == "substitution" else 1.0
    summed = [("1 - v", [dict[str, str]()], absent)] if len(absent) else []
    layers = [("v", cells, values) for cells, values in zip(model.named(tree), counts, strict=True)]
    for statistic, cells, values in (*summed, *layers):
        yield Figures(
            [{**of_stratum, **cell} for cell in cells],
            [statistic],
            values[:, None],
            [model.scale],
            lambda *_: (None, cap, None),
            sensitivity=sensitivity,
        )

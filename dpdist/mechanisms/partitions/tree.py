"""For `partitions.query` and `post`: a tree over a cross's cells, with counts consistent over layers ([S]; METHODS §9).

A layer assigns each cell, a combination of levels, to a node. Each layer refines the previous one; the nodes of the
last layer are the cells. Branches may split by different attributes.

Every node has a noisy count, all with one variance. Two passes find the counts of least squares (Hay et al. 2010).
Upwards, a node's noisy count y and its children's sum s are weighted by precision: z = (V_s y + s)/(V_s + 1). Its
variance is V = V_s/(V_s + 1), in variances of one count. Downwards, a child gets its share of the difference between
the parent's count and the children's sum: z + (V/V_s)(parent − s). With equally many children these are eq. (2) and (3)
of [S].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdist.core.records import Floats, Ints
from dpdist.estimation.least_squares import nearest_on_simplices


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


def split(nodes: Ints, by: Ints, codes: Ints) -> Ints:
    """Nodes (cell,) after every node was split by its own attribute, `by` (node,)."""
    most = int(codes.max()) + 1
    return np.asarray(np.unique(nodes * most + codes[by[nodes], np.arange(len(nodes))], return_inverse=True)[1])


def ordered(layers: Sequence[Sequence[int]], levels: Sequence[int]) -> Tree:
    """The tree whose layers split all nodes by the named attributes; the last layer has all cells."""
    codes, split_layers = codes_of(levels), list[Ints]()
    nodes = np.zeros(codes.shape[1], dtype=np.int64)
    for names in layers:
        for attribute in names:
            nodes = split(nodes, np.full(nodes.max() + 1, attribute), codes)
        split_layers.append(nodes)
    return Tree((*split_layers, np.arange(codes.shape[1])))


def grown(selected: Sequence[Ints], levels: Sequence[int]) -> tuple[tuple[Ints, ...], NDArray[np.bool_]]:
    """Layers of a tree, each of whose nodes was split by one attribute, starting with the root.

    Also returns the attributes used above each node of the last layer, (node, attribute).
    """
    codes, used = codes_of(levels), np.zeros((1, len(levels)), dtype=np.bool_)
    layers = [np.zeros(codes.shape[1], dtype=np.int64)]
    for by in selected:
        nodes = split(layers[-1], by, codes)
        parent = np.zeros(nodes.max() + 1, dtype=np.int64)
        parent[nodes] = layers[-1]
        used = used[parent]
        used[np.arange(len(parent)), by[parent]] = True
        layers.append(nodes)
    return tuple(layers), used


def chosen(selected: Sequence[Ints], levels: Sequence[int]) -> Tree:
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

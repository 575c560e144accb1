"""Summary of a reference for the score model: distributions, proportions of zeros, priors of cells.

Where outcomes can be 0, records with and without an outcome of 0 have separate distributions of weights. Cells with few
reference records borrow from others (`shapes`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy

from dpdist.core.keys import Key
from dpdist.core.records import Codes, Floats, Ints
from dpdist.models.copula.marginal import BASIS, Marginal, MarginalBins, SplinePrior, bins_of
from dpdist.models.copula.shapes import PredictorCells, Shapes, by_class, cell_distributions

SHAPES = ("weight where the outcome is 0", "weight", "outcome")
"""Names of a cell's distributions."""
FEWEST = 2
"""A part with fewer records in the stratum has the other part's distribution of weights."""


class Law(NamedTuple):
    """Parameters of the score model by cell.

    - `share` (draw, cell): p, the probability of part 1, the records with an outcome other than 0.
    - `mean`, `sd` (draw, cell, part): μ and τ of the weight's score.
    - `slopes` (draw, cell, BASIS), `residual` (draw, cell): β and σ of the regression of the outcome's score.
    """

    share: Floats
    mean: Floats
    sd: Floats
    slopes: Floats
    residual: Floats

    @classmethod
    def nothing(cls, cells: int) -> Law:
        """One draw that is 0 everywhere and so changes nothing."""
        return cls(*(np.zeros((1, cells, *further)) for further in ((), (2,), (2,), (BASIS,), ())))

    def free(self) -> Law:
        """The parameters on scales without limits: logit p, μ, log τ, β and log σ, in the letters of this class."""
        return Law(scipy.special.logit(self.share), self.mean, np.log(self.sd), self.slopes, np.log(self.residual))

    def less(self, other: Law) -> Law:
        """Differences of parameters on the scales of `free`; 0 if two values are equal, as for two shares of 1."""
        pairs = zip(self, other, strict=True)
        return Law(*(np.subtract(a, b, out=np.zeros_like(a), where=a != b) for a, b in pairs))

    def plus(self, by: Law) -> Law:
        """The law after its parameters, on the scales of `free`, were moved by these differences."""
        law = Law(*(value + other for value, other in zip(self.free(), by, strict=True)))
        return Law(scipy.special.expit(law.share), law.mean, np.exp(law.sd), law.slopes, np.exp(law.residual))


@dataclass(frozen=True, eq=False)
class Facts:
    """Public facts of a reference for the cells of one stratum.

    - `of_weight` (cell, part) and `of_outcome` (cell, class) are positions in `marginals`.
    - `edges` (cell, class − 1): a record's class is the number of its cell's edges that are at or below its weight.
    - `share` (cell,): share of part 1, the records with an outcome other than 0.
    - `records` (cell,): number of the reference's records.
    - `own_share` (cell, SHAPES): weight of own records in a cell's distributions.
    - `effective` (cell,): number of records that the cell's distributions are worth.
    - `tie` (cell,): in cells that share a fit, the correlation of the scores of weight and outcome. The fit is then of
      the residual of the outcome's score (`normal_scores`).
    - `weight`, `outcome`: priors per cell, with locations (cell, part, 1) and (cell, BASIS).
    - `key`: gives every record its uniforms at atoms, as a function of the record's number alone.
    - `undone`: a correction that is added to a fit, on the scales of `Law.free`. It is the sum of two terms: what fits of
      files like the reference lack in weighted means (`bias_correction`), and the effect of privacy weights on such a
      fit.
    """

    marginals: tuple[Marginal, ...]
    of_weight: Ints
    of_outcome: Ints
    edges: Floats
    share: Floats
    records: Floats
    own_share: Floats
    effective: Floats
    tie: Floats
    weight: SplinePrior
    outcome: SplinePrior
    key: Key
    undone: Law

    def with_weights_corrected(self, more: Law) -> Facts:
        """The facts with a further term in the correction that is added to a fit."""
        return replace(self, undone=Law(*(a + b for a, b in zip(self.undone, more, strict=True))))

    @property
    def untied(self) -> Floats:
        return np.sqrt(1.0 - self.tie**2)

    def outcome_of(self, cell: Codes, weight: Floats) -> Ints:
        """Position of the distribution of each record's outcome, given its weight."""
        return np.asarray(self.of_outcome[cell, (weight[:, None] >= self.edges[cell]).sum(axis=1)])

    @cached_property
    def bins(self) -> tuple[MarginalBins, ...]:
        """Means within narrow bins of scores for each cell."""
        parts = zip(self.of_weight, self.of_outcome, self.edges, strict=True)
        return tuple(bins_of(self.marginals, *positions) for positions in parts)

    @property
    def nodes(self) -> Nodes:
        """Nodes of all marginals, in order."""
        number = np.repeat(np.arange(len(self.marginals)), [len(m.value) for m in self.marginals])
        return Nodes(number, *(np.concatenate([getattr(m, name) for m in self.marginals]) for name in Nodes._fields[1:]))

    def describe(self) -> Mapping[str, Any]:
        """All facts except the nodes, in JSON terms."""
        names = ("of_weight", "of_outcome", "edges", "share", "records", "own_share", "effective", "tie")
        # Released files write the own share of a cell's distributions under `own`.
        arrays = {"own" if name == "own_share" else name: getattr(self, name).tolist() for name in names}
        priors = {f"{name}_prior": [part.tolist() for part in getattr(self, name)] for name in ("weight", "outcome")}
        priors["undone"] = [part[0].tolist() for part in self.undone]
        return {**arrays, **priors, "key": self.key.hex(), "marginal_records": [m.records for m in self.marginals]}

    @classmethod
    def recall(cls, stored: Mapping[str, Any], nodes: Nodes) -> Facts:
        """The inverse of `describe` and `nodes`."""
        marginals = []
        for k, records in enumerate(stored["marginal_records"]):
            inside = nodes.marginal == k
            marginals.append(Marginal(nodes.value[inside], nodes.low[inside], nodes.high[inside], records))
        cells = len(stored["records"])
        numbers = {name: np.array(stored[name], dtype=np.float64) for name in ("share", "records")}
        # Releases of earlier versions have one class and no ties, and do not mark cells that borrow.
        own_share = np.array(stored.get("own", np.ones((cells, len(SHAPES)))), dtype=np.float64)
        return cls(
            tuple(marginals),
            np.array(stored["of_weight"], dtype=np.int64),
            np.array(stored["of_outcome"], dtype=np.int64).reshape(cells, -1),
            np.array(stored.get("edges", []), dtype=np.float64).reshape(cells, -1),
            numbers["share"],
            numbers["records"],
            own_share,
            np.array(stored.get("effective", stored["records"]), dtype=np.float64),
            np.array(stored.get("tie", np.zeros(cells)), dtype=np.float64),
            *(_prior(stored["weight_prior"]), _prior(stored["outcome_prior"])),
            Key.from_hex(stored["key"]),
            Law(*(np.array([part], dtype=np.float64) for part in stored["undone"])),
        )


def _prior(stored: Any) -> SplinePrior:
    location, variance = stored
    return SplinePrior(np.array(location, dtype=np.float64), np.array(variance, dtype=np.float64))


class Nodes(NamedTuple):
    """For each node (node,): the number of its marginal, its value, F(a−) and F(a)."""

    marginal: Ints
    value: Floats
    low: Floats
    high: Floats


def tell(cells: PredictorCells, cell: Codes, part: Ints, weight: Floats, outcome: Floats, binary: bool, key: Key) -> Facts:
    """Distributions and shares of every cell, without a fit; priors take weight and outcome to be independent.

    `Scores.summarise` replaces these priors by the reference's own fit.
    """
    marginals: list[Marginal] = []
    of_parts = [Shapes.empty(len(cells))] * 2
    for p in (1, 0):
        inside = part == p
        if inside.sum() >= FEWEST:
            of_parts[p] = cell_distributions(cells, cell[inside], weight[inside], True, marginals)
    for p in (1, 0):
        if (part == p).sum() < FEWEST:
            of_parts[p] = of_parts[1 - p]
    of_outcome = Shapes.empty(len(cells))
    classes, edges = of_outcome.position[:, None], np.empty((len(cells), 0))
    if not binary:
        inside = part == 1 if (part == 1).any() else np.ones(len(part), dtype=bool)
        of_outcome = cell_distributions(cells, cell[inside], outcome[inside], False, marginals)
        classes, edges = by_class(of_outcome.position, cell[inside], weight[inside], outcome[inside], marginals)
    size = np.bincount(cell, minlength=len(cells)).astype(np.float64)
    ones = np.bincount(cell[part == 1], minlength=len(cells))
    share = (ones + 0.5) / (size + 1.0)
    priors = SplinePrior.independence((len(cells), 2), 1), SplinePrior.independence((len(cells),), BASIS)
    shares = np.column_stack([shape.own_share for shape in (*of_parts, of_outcome)])
    behind = np.minimum(of_parts[1].effective, of_outcome.effective if not binary else of_parts[1].effective)
    alone = (shares[:, 1:] == 1.0).all(axis=1)
    of_weight = np.column_stack([shape.position for shape in of_parts])
    effective = np.where(alone, size, behind + size - ones)
    rest = (share, size, shares, effective, np.zeros(len(cells)), *priors, key, Law.nothing(len(cells)))
    return Facts(tuple(marginals), of_weight, classes, edges, *rest)


def facts_table(facts: Mapping[str, Facts]) -> pa.Table:
    """Distributions of all strata as a table with one row per node; the other facts are in the schema's metadata."""
    nodes = [stratum_facts.nodes for stratum_facts in facts.values()]
    stratum = np.repeat(np.arange(len(nodes), dtype=np.int64), [len(stratum_nodes.value) for stratum_nodes in nodes])
    columns = dict(zip(Nodes._fields, map(np.concatenate, zip(*nodes, strict=True)), strict=True))
    described = {label: stratum_facts.describe() for label, stratum_facts in facts.items()}
    return pa.table({"stratum": stratum, **columns}).replace_schema_metadata({"dpdist.reference": json.dumps(described)})


def facts_from_table(table: pa.Table) -> dict[str, Facts]:
    """The inverse of `facts_table`."""
    described: dict[str, Mapping[str, Any]] = json.loads(table.schema.metadata[b"dpdist.reference"])
    stratum, *columns = (table.column(name).to_numpy() for name in ("stratum", *Nodes._fields))
    edges = np.searchsorted(stratum, np.arange(len(described) + 1)).tolist()
    parts = [Nodes(*(column[low:high] for column in columns)) for low, high in pairwise(edges)]
    return {label: Facts.recall(stored, nodes) for (label, stored), nodes in zip(described.items(), parts, strict=True)}

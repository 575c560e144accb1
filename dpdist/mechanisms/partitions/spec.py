"""Job section of `flat_laplace`, `universal_histogram` and `steps`.

Outcomes are attributes of a record. All combinations of their levels are the cells of a partition of the records. A tree
refines the partition layer by layer. Every layer has noisy counts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from dpdist.job import Contradiction, JobView, broken
from dpdist.job.mechanism import Noisy, declared, levels_between, without_distinct_levels
from dpdist.job.values import LEAST_BUDGET, TOO_LITTLE, Budget, ColumnName, Guarantee

RULES = Path(__file__).with_name("rules.txt")
REHEARSED_BINS = 20
MOST_CELLS = 200_000
"""Largest number of cells, the combinations of all outcomes, in a stratum."""
Bins = Annotated[int, Field(ge=2, le=1_000)]
Group = Annotated[tuple[ColumnName, ...], BeforeValidator(lambda group: (group,) if isinstance(group, str) else group)]
"""One outcome, or several by which one layer is split together."""


class Partitioned(Noisy):
    """Noisy counts over the combinations of all outcomes, and records that are made from them."""

    bins: dict[ColumnName, Bins] = Field(
        default={}, description="number of equal bins for an outcome without levels, by outcome"
    )
    statistics: ClassVar[str | None] = "partition"
    several_outcomes: ClassVar[bool] = True

    def guarantee(self, job: JobView) -> Guarantee:
        return "strict"

    @classmethod
    def rehearsed(cls, job: JobView) -> Iterator[tuple[str, dict[str, Any]]]:
        """Settings that a rehearsal tries: bins for outcomes without levels, and as few layers as possible."""
        without = [name for name in declared(job) if not job.columns[name].whole and job.columns[name].codes is None]
        bins = {"bins": dict.fromkeys(without, REHEARSED_BINS)} if without else {}
        yield "", bins | ({"layers": 2} if "layers" in cls.model_fields else {})

    def against_noisy_crosstab(self, job: JobView) -> str:
        return (
            "nothing is proven about a record that moves to another stratum, because counts and selections are made by "
            "stratum"
        )

    def clips(self, job: JobView) -> bool:
        return True

    def levels(self, job: JobView) -> tuple[int, ...]:
        """Number of public levels, or bins, of every declared outcome."""
        return tuple(self.bins.get(name) or levels_between(job.columns[name]) for name in declared(job))

    def layers_of(self, job: JobView) -> int:
        """Number of layers with noisy counts. The last layer has all cells."""
        return 1

    def splits(self, job: JobView) -> tuple[tuple[int, ...], ...] | None:
        """Positions of the attributes of every layer but the last; None if attributes are selected."""
        return ()

    def selections(self, job: JobView) -> int:
        """Number of layers in which the attribute to split by is selected under noise."""
        return 0

    @property
    def selecting(self) -> Fraction:
        """The share of a set's ε that selections take."""
        return Fraction(0)

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        for name in self.bins:
            yield from broken("binned", job, RULES, name=name, column=job.columns.get(name))
        unbinned = [name for name in declared(job) if name not in self.bins]
        for name in unbinned:
            column = job.columns[name]
            if column.whole or column.codes is not None:
                yield from without_distinct_levels(job, name, f"'{self.name}'")
            else:
                yield from broken("unbinned", job, RULES, name=name)
        yield from self._of_parts(job)
        cells = prod(self.levels(job)) if len(declared(job)) == len(job.outcomes) else 1
        facts = {"cells": f"{cells:,}", "too_many": cells > MOST_CELLS, "most": f"{MOST_CELLS:,}"}
        yield from broken("combinations", job, RULES, **facts)

    def _of_parts(self, job: JobView) -> Iterator[Contradiction]:
        """Every layer's counts, and every selection, must have enough ε for noise to be drawn."""
        parts = [(1 - self.selecting) / self.layers_of(job)]
        parts += [self.selecting / self.selections(job)] if self.selections(job) > 0 else []
        each = job.epsilon_per_set / job.most_records
        little = min(parts) * each < LEAST_BUDGET <= each
        facts = {"nothing_left": self.selecting >= 1, "little": little, "too_little": TOO_LITTLE}
        yield from broken("partitioned", job, RULES, **facts)

    def _of_layers(self, job: JobView, layers: int) -> Iterator[Contradiction]:
        yield from broken("layers", job, RULES, layers=layers)


class FlatLaplace(Partitioned):
    """One layer: a noisy count for every cell."""

    name: Literal["flat_laplace"] = Field(description="a noisy count for every combination of all outcomes")


class UniversalHistogram(Partitioned):
    """The universal histogram, modified: each layer but the last splits by one outcome, in a public random order."""

    name: Literal["universal_histogram"] = Field(
        description="noisy counts layer by layer, outcomes in a random order that is public"
    )
    layers: int = Field(description="number of layers; the last one has all remaining outcomes")
    order_seed: int = Field(default=0, ge=0, description="seed of the random order")

    def layers_of(self, job: JobView) -> int:
        return self.layers

    def splits(self, job: JobView) -> tuple[tuple[int, ...], ...]:
        order = np.random.default_rng(self.order_seed).permutation(len(job.outcomes))
        return tuple((int(attribute),) for attribute in order[: self.layers - 1])

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        yield from self._of_layers(job, self.layers)


class Steps(Partitioned):
    """STEPS: layers split by outcomes in the order of their importance, which the job names or AIC selects under noise."""

    name: Literal["steps"] = Field(
        description=(
            "noisy counts layer by layer, with outcomes in the order that the job states, or that AIC selects under noise"
        )
    )
    order: tuple[Group, ...] | None = Field(
        default=None,
        min_length=1,
        description="outcomes by layer, the most important first, as in [voted, [age, sex]]; the last layer has all others",
    )
    layers: int | None = Field(
        default=None, description="number of layers whose splits are selected under noise, instead of an order"
    )
    selection: Budget | None = Field(default=None, description='part of the ε of a set for selections; "1/10" if unset')

    @property
    def selecting(self) -> Fraction:
        return Fraction(0) if self.order is not None else self.selection or Fraction(1, 10)

    def layers_of(self, job: JobView) -> int:
        if self.order is None:
            return self.layers or 1
        return len(self.order) + (len(set(job.outcomes)) > sum(map(len, self.order)))

    def splits(self, job: JobView) -> tuple[tuple[int, ...], ...] | None:
        if self.order is None:
            return None
        return tuple(tuple(map(job.outcomes.index, names)) for names in self.order[: self.layers_of(job) - 1])

    def selections(self, job: JobView) -> int:
        return 0 if self.order is not None else max(0, self.layers_of(job) - 1)

    def contradictions(self, job: JobView) -> Iterator[Contradiction]:
        yield from super().contradictions(job)
        yield from broken("steps", job, RULES)
        if self.order is None and self.layers is not None:
            yield from self._of_layers(job, self.layers)
        elif self.order is not None and self.layers is None:
            yield from self._of_order(job, [name for group in self.order for name in group])

    def _of_order(self, job: JobView, order: list[str]) -> Iterator[Contradiction]:
        for i, name in enumerate(order):
            yield from broken("ordered", job, RULES, name=name, again=name in order[:i])
        everything = len(self.order or ()) == 1 and len(set(order)) == len(job.outcomes)
        yield from broken("order", job, RULES, everything=everything)

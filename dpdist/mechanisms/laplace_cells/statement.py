"""Texts for the statement of a release by `laplace_strict`: noisy sums of base cells under public bounds."""

from __future__ import annotations

from dpdist.mechanisms.words import Words

SUMS = (
    "Weights and outcomes are clipped to public bounds. A record enters one finest cell, by a weight and a centred "
    "product. Their L1 distance from any other values' in the same cell, or from none, is at most 2 units of the bounds. "
    "Both sums have discrete Laplace noise of scale {}/ε of a set's ε in these units. Margins are sums of cells."
)
NOISED_AGAIN = (
    "Estimator `parameters`: composition of the sample over cells, and other noise, simulated. How records vary within a "
    "cell was not released and is not in it. Nor is the bias of clipping and of setting cells into their bounds."
)
SET_INTO_BOUNDS = (
    "A cell's mean weight and mean outcome are set into their public bounds. A synthetic record has its cell's means, so "
    "that totals agree with the tables and nothing else is modelled."
)


WORDS = Words(
    density="noisy sums of {weight} and of its product with {outcome} in every finest cell",
    errors=NOISED_AGAIN,
    steps=(SET_INTO_BOUNDS,),
)

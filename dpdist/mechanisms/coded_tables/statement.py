"""Texts that the statements of mechanisms on tables of coded columns share."""

from __future__ import annotations

ENTERED = (
    "A record enters one cell of every measured table, by its weight in units of the weight's public upper bound, to "
    "which it is clipped; without weights by 1. Switching it off moves a table by at most 1 unit in L1, and any other "
    "values of its columns and weight by at most 2. All cells have discrete Laplace noise."
)
SAMPLED = (
    "Estimator `parameters`: the noise once more on the fitted tables, and samples of as many records as the weights' sum "
    "in units of their public bound, both simulated. How weights vary was not released: their sum errs as if they were 0 "
    "or at the bound. Counts that are set to 0 have a bias, estimated from noise on the fitted tables."
)

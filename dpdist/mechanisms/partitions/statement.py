"""Texts for the statement of a release by noisy counts over a partition."""

from __future__ import annotations

from dpdist.mechanisms.words import WIDE, Words

COUNTED = (
    "Outcomes cross to cells that levels and public bounds fix. Let v be a record's weight over the public bound, at most "
    "1 (1 without weights). A record adds v to one node of every layer of a tree over the cells, and 1 − v to one sum. "
    "Switched off it moves a layer by 1 in L1, with other values at the same x by 2. All counts have discrete Laplace "
    "noise of that scale over the layer's ε, cells without a record too."
)
LAYERS = "The tree has {layers} layers, each with an equal part of {share} of a set's ε."
SELECTED = (
    "Attributes that split the tree are selected node by node, the one with the least AIC under discrete Laplace noise. "
    "This takes {share} of a set's ε, in equal parts for {selections} selections on every branch. One record moves the "
    "AIC of a node's attributes by 0 to 2, as the number of levels is public."
)
MOVES = "A record that changes strata is not covered: public counts show it, and nothing is claimed for the noisy counts."
AGAIN = (
    "Estimator `parameters`: composition of the sample over x, other samples of as many records as Σv, and other noise, "
    "simulated from the first set's counts. How weights vary was not released: their sum errs as if they were 0 or at "
    "their bound. Counts that are kept from being negative have a bias, estimated from noise on the released counts."
)
WORDS = Words(
    density="noisy counts over the cross of {outcome}",
    errors=f"{AGAIN} {WIDE}",
    steps=(
        "Counts of all layers are made to agree by least squares, from the root down: each node's children are the "
        "nearest counts that are not negative. The root is the public number of records, or with weights what the noisy "
        "sum of 1 − v leaves of it. Synthetic records have cells by their counts, values uniform within bins, and their "
        "stratum's mean weight.",
    ),
)

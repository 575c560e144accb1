"""Texts for the statement of a release by `weight_regularisation`."""

from __future__ import annotations

from dpdist.mechanisms.laplace_cells.statement import NEAREST_WITHIN, RAW_SUMS, WITHHELD, WordsOfCells

MOVED_WEIGHTS = (
    "Weights are moved towards a common weight: a record counts with (1 - r) of its weight and r of the common one. The "
    "larger r, the less noise the sums need. Tables then have a bias where weights differ between cells or go with the "
    "outcome. At r = 1 they are unweighted tables, scaled."
)
SUMS = (
    "Weights and outcomes are clipped to public bounds. A record enters one base cell, by its moved weight and a centred "
    "product. Their L1 distance from any other values' in the same cell, or from none, is at most 2 units of the moved "
    "weight's bound. Both sums have discrete Laplace noise of scale {}/({} ε) in these units. Margins are sums of cells."
)
MEAN_ASKED = (
    "The common weight is the mean weight, under noise: the sum of weights over their bound moves by at most {0}. It has "
    "discrete Laplace noise of scale {0} over 1/20 of ε. It is divided by the number of sample records."
)
CHOICE_ASKED = (
    "How far weights are moved is chosen under noise. Two sums over cells say how far the weights' and the products' sums "
    "are from those under the common weight. A record moves both together by at most {0}. Both have discrete Laplace "
    "noise of scale {0} over 1/10 of ε. The choice has the least squared error that they and the noise predict."
)
WITH_BIAS = (
    "Estimator `parameters`: composition of the sample over cells, and other noise, simulated. Noise on the common "
    "weight moves all counts together, and is in the errors of all. So in one release of ten, most counts can lie "
    "outside of their 90 % intervals. The bias of moved weights is in the errors, too, if the distance was asked: a "
    "cell's is drawn with the size that its share of the sample predicts. Bias that one cell has more of than its "
    "share is in no error. How records vary within a cell was not released and is not in it. At a small ε the common "
    "weight is nearly all noise, and intervals of counts are wide."
)

WORDS = WordsOfCells(
    density="noisy sums of moved {weight} and of its product with {outcome} in every base cell",
    errors=WITH_BIAS,
    steps=(RAW_SUMS, WITHHELD, NEAREST_WITHIN),
)

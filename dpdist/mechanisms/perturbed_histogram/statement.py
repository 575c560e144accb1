"""Texts for the statement of a release by `perturbed_histogram`: noisy counts of bins."""

from __future__ import annotations

from dpdist.mechanisms.words import Words

COUNTS = (
    "The bins are fixed by public bounds and sizes. A record that is switched off changes one bin's count by 1, one that "
    "is exchanged two. Every count has discrete Laplace noise of scale 1/ε (2/ε under substitution) of a set's ε."
)
COUNTED_AGAIN = (
    "Estimator `parameters`: composition of the sample over x, other samples' bin counts and other noise, both simulated "
    "from the first set's histogram. Counts cut off at 0 have a bias, estimated from noise on that histogram. The bias of "
    "bins is not in it."
)


WORDS = Words(density="noisy histogram of {outcome} in equal bins", errors=COUNTED_AGAIN)

"""Texts for the statement of a release by `yes_no_counts`."""

from __future__ import annotations

from dpdist.mechanisms.words import Words

COUNTS = "A record is in one count of its cell. Every count has discrete Laplace noise of scale {}/ε of a set's ε."
WORDS = Words(
    density="noisy counts of {outcome} = 0 and of {outcome} = 1 in every cell",
    errors="Estimator `parameters`: other samples' counts and other noise, both simulated from the first set's counts.",
)

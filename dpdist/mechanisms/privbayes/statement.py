"""Texts for the statement of a release by `privbayes`."""

from __future__ import annotations

from dpdist.mechanisms.coded_tables.statement import SAMPLED
from dpdist.mechanisms.words import WIDE, Words

TABLES = (
    "The job's first column has a table of its own. Every other column has one with its parents, which are columns before "
    "it. To share {share} of ε, the noise of {tables} tables has {tables} times the scale of one."
)
CHOSEN = (
    "Columns and their parents are chosen in {rounds} rounds, which share {share} of ε: each time the largest score under "
    "discrete Laplace noise. A score is half the L1 distance of a table from independence of the column and its parents. A "
    "record that is switched off moves it by at most 2 units, an exchange by at most 4."
)
UNEXPLAINED = (
    "What clipping brings, and what the network leaves out, is in no error. The errors take the network as it was chosen."
)
WORDS = Words(
    density="noisy sums of {weight} in every cell of tables of {outcome}",
    errors=f"{SAMPLED} {UNEXPLAINED} {WIDE}",
    steps=(
        "Noisy tables are put onto counts of at least 0 with one total, and margins of a column are averaged over its "
        "tables. Given its parents, a column is independent of the other columns before it.",
        "Synthetic records hold all columns. Their weights are scaled until every column's margin is the fitted one. "
        "Counts of several columns can differ from the fitted tables in marginals.parquet, in whose errors no bias is.",
    ),
)

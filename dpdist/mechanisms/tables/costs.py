"""Projected time and memory of a run of `tables`, by figures that were fitted to runs of one thread.

Under conjugate gradients, projected time is .99 to 1.11 of that of four runs, of 62,222 to 738,960 sums. Projected memory
is .88 to .94 of that of three of them in one process; of the largest it is 1.4 times that of a driver with two workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from dpdist.mechanisms.tables.conjugate import BYTES, FEWEST_SIDES, MOST_SIDES
from dpdist.mechanisms.tables.drift_sizes import MOST_OF_DRIFT
from dpdist.mechanisms.tables.posterior import ENTRIES_OF_DRAWS, FEWEST_DRAWS, MOST_DENSE
from dpdist.mechanisms.tables.random_effects import MOST_EFFECTS, most_effects
from dpdist.models.protocol import DRAWS, Cost


def projected_cost(
    records: int,
    base_cells: int,
    number_of_sums: int,
    outcomes: int,
    sizes: Sequence[int],
    measured: Sequence[tuple[int, ...]],
    published: Sequence[tuple[int, int]],
    secret: bool,
) -> Cost:
    """From public sizes: numbers of records, base cells and sums, numbers of levels by column, columns of every measured
    set, and by published table its number of cells and the number of them that hold a record.
    """
    sums, cells, coordinates = float(number_of_sums), float(base_cells), 1 + outcomes
    factored = sums if sums <= MOST_DENSE else float(MOST_OF_DRIFT)
    further_pairs = [pair for pair in combinations(range(len(sizes)), 2) if pair not in measured] if len(sizes) > 2 else []
    pairs = sum(sizes[a] * sizes[b] for a, b in further_pairs)
    # Random effects of the prediction: of columns, of tables' cells, and of pairs of columns.
    all_effects = sum(sizes) + number_of_sums // coordinates + min(pairs, MOST_EFFECTS)
    effects = float(min(all_effects, most_effects(base_cells)))
    entries = cells * max(len(measured), 1) * (2 * coordinates - 1)
    tables, cells_shown = float(len(published)), float(sum(number for number, _ in published))
    of_rows = cells * sum(with_records for _, with_records in published)
    large = sums > MOST_DENSE
    draws = max(FEWEST_DRAWS, ENTRIES_OF_DRAWS // int(sums + 2 * coordinates * cells)) if large else DRAWS
    block = float(np.clip(BYTES // (4 * sums), FEWEST_SIDES, MOST_SIDES)) if large else float(draws)
    of_effects = 1.0e-10 * effects**3 + 2.0e-8 * cells * effects
    of_sums = 6.0e-4 * sums + 2.0e-10 * factored**3 + 1.0e-9 * min(sums, MOST_OF_DRIFT) ** 3
    seconds, of_draws = 2.5 + coordinates * (of_sums + of_effects) + 2.0e-4 * cells, 0.0
    if large:
        # Steps of conjugate gradients are more, and products slower, the larger the system is.
        product = np.sqrt(entries * sums)
        of_draws = 9.5e-7 * product * draws * (product / 2.8e6) ** 0.18
        of_tables = 1.9e-4 * cells_shown + 6.4e-9 * of_rows * draws
        seconds = 3.2 + 6.0e-5 * (coordinates * sums + records) + 7.6e-5 * product + of_draws + of_tables
    matrices = 1.0 if large else 1.0 + secret + 2.0 * coordinates
    dense = (4.0 + 2.0 * coordinates) * factored**2 + matrices * effects**2
    # Draws of two laws and of unprotected samples, once or twice, and errors of one block of them.
    draw_entries = 4.0 * draws * coordinates * cells + 6.5 * block * (sums + coordinates * cells)
    if large:
        # Draws have single precision, and rows of sums are computed at every product.
        draw_entries, entries = draw_entries / 2.0, 0.0
    memory = 3.0e8 + 8.0 * (dense + draw_entries + 4.0 * entries + 0.4 * tables * cells + 270.0 * cells) + 100.0 * records
    memory += 4.0e2 * cells_shown * large
    return Cost(seconds, of_draws + records * 1.0e-5, int(memory), solver(number_of_sums, base_cells))


def solver(sums: int, base_cells: int) -> str:
    """How all sums are estimated together. It follows from their number alone, whatever the shape of the tables."""
    how = "one matrix factorisation" if sums <= MOST_DENSE else "conjugate gradients"
    return f"{sums:,} noisy sums determine {base_cells:,} base cells ({how})"

"""Published figures that may be far from direct ones are named by table, statistic and cell: margins too."""

from __future__ import annotations

from dpdist.core.records import TOTAL
from dpdist.core.table_cells import counted_and_named


def test_a_line_counts_margins_and_base_cells_and_names_margins_first() -> None:
    labels = [("a", "x"), ("a", TOTAL), *((f"b{k}", "x") for k in range(20))]
    text = counted_and_named(labels)
    assert text.startswith("1 margin and 21 base cells (a, Total; a, x; b0, x")
    assert text.endswith("; and 12 more)")
    assert counted_and_named([("a",)]) == "1 base cell (a)"

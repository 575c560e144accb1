"""Studies of strict tables with a reference: simulated surveys, with errors against the truth in every cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dpdist.studies.kinds.captions import biases, coverages, ratios_of_errors
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, SimulatedKind, randomness
from dpdist.studies.kinds.strict_tables_replicates import replicate
from dpdist.studies.kinds.strict_tables_settings import StrictArm, StrictTablesStudy
from dpdist.studies.ratios import ratios

BESIDE = (
    ("direct", "survey-weighted estimates of the sample, not protected", "–", "none"),
    ("reference_only", "the earlier survey's means at the current public sizes", "–", "no current data"),
    (
        "laplace_composed",
        "direct + Laplace noise of the sample's own sensitivity, ε shared by a record's 8 figures",
        "–",
        "none",
    ),
)


class StrictTables(SimulatedKind):
    settings = StrictTablesStudy
    heads = ("Label", "What is released", "Cells", "Guarantee class")

    @property
    def captions(self) -> Mapping[str, Caption]:
        return ratios_of_errors(("direct",)) | biases() | coverages()

    def replicate(self, study: StrictTablesStudy, case: int, number: int) -> Replicate:
        return replicate(study, study.cases[case], number)

    def by_cell(self, study: Any, results: pd.DataFrame) -> pd.DataFrame:
        return ratios(study, results)

    def facts(self, study: StrictTablesStudy) -> list[Fact]:
        numbers = sorted({study.replicates_of(k) for k in range(len(study.cases))})
        return [
            (
                "Data",
                ["simulated doctorates, now and earlier; counts and mean salaries by field × sex with margins, 27 cells"],
            ),
            ("Cases", [f"{case.name}: {case.described()}" for case in study.cases]),
            (
                "Replicates",
                [f"R = {' or '.join(map(str, numbers))}, each with populations and samples of its own in every case"],
            ),
            ("ε", [", ".join(study.grid) + " of the whole release"]),
            randomness(study),
        ]

    def arms(self, study: StrictTablesStudy) -> list[tuple[str, ...]]:
        return [*BESIDE, *map(_arm, study.mechanisms)]


def _arm(arm: StrictArm) -> tuple[str, ...]:
    how = {
        "sanitized_statistics": f"whitened, winsorised sums, lognormal ({arm.synthesis.upper()})",
        "reference_tables": "clipped sums, clipping inverted with the reference",
    }
    shrunk = "cells shrunk as far as noise moved them" if arm.shrinkage else "cells stand alone"
    return arm.label, how[arm.mechanism], shrunk, f"strict, {arm.adjacency}"

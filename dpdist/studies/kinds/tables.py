"""Studies that compare tables from synthetic records with tables under noise, against the truth in every cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dpdist.job import budget_text
from dpdist.studies.kinds.captions import COVERAGE_TITLE, COVERED, MARGINS, coverages, ratios_of_errors
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, SimulatedKind, randomness
from dpdist.studies.kinds.simulation import CAPTIONS
from dpdist.studies.kinds.tables_replicates import tabulate
from dpdist.studies.kinds.tables_settings import STATISTICS, YARDSTICKS, Synthetic, TableCase, TablesStudy
from dpdist.studies.ratios import ratios

NOISED = {
    "direct": ("survey-weighted estimates of the sample, not protected", "–", "none"),
    "laplace": ("direct + Laplace noise of the sample's own sensitivity, all of ε in every figure", "–", "none"),
    "laplace_composed": ("the same, ε shared by the 8 figures that one record enters", "–", "none"),
    "laplace_strict": (
        "clipped sums of base cells + Laplace noise at public bounds, margins added",
        "–",
        "strict",
    ),
}
ALONE = (
    "Nominal .90, by the combining rule for who analyses the synthetic sets without the published errors: with one set W "
    "alone, without the spread between sets; never with the bias of the privacy weights."
)


TABLE = "; counts and mean salaries by field × sex with margins"
OWN_SAMPLE, OWN_POPULATION = "a sample of its own", "a population and a sample of its own"


class Tables(SimulatedKind):
    settings = TablesStudy
    heads = ("Label", "Model", "Weight rule", "Estimated from")

    @property
    def captions(self) -> Mapping[str, Caption]:
        sets = {
            f"{name}_coverage_sets": Caption(f"{name}s: the same from the synthetic sets alone, T = B/m + W", ALONE)
            for name in STATISTICS
        }
        margins = {
            f"{name}_coverage_margins": Caption(COVERAGE_TITLE.format(name).replace("cells", "margins"), COVERED + MARGINS)
            for name in STATISTICS
        }
        bound = {"database_bound": CAPTIONS["database_bound"]}
        return ratios_of_errors(YARDSTICKS) | coverages() | margins | sets | bound

    def replicate(self, study: TablesStudy, case: int, number: int) -> Replicate:
        return tabulate(study, study.cases[case], number)

    def by_cell(self, study: Any, results: pd.DataFrame) -> pd.DataFrame:
        return ratios(study, results)

    def facts(self, study: TablesStudy) -> list[Fact]:
        cases = [f"{c.name}: {_drawn(c)}" for c in study.cases]
        files = all(c.file is not None for c in study.cases)
        sets = [f"ε = {e} for m = {m}" for m, e in zip(study.sets, study.grid, strict=True)]
        return [
            ("Data", ["public files" + TABLE if files else "simulated doctorates" + TABLE + ", 27 cells", *cases]),
            ("Replicates", [f"R = {study.replicates}, each with {OWN_SAMPLE if files else OWN_POPULATION} in every case"]),
            (
                "ε",
                [f"{budget_text(study.epsilon_per_set)} per synthetic set, zero_out; noised tables have the total", *sets],
            ),
            ("Posterior draws", [f"S = {study.draws:,}, independent, one pooled fit"]),
            randomness(study),
        ]

    def target(self, study: TablesStudy, case: str, epsilon: str, measure: str) -> float | None:
        """Half the ε of one set for the database bound, 1 for a ratio, and otherwise None."""
        if measure == "database_bound":
            return float(study.epsilon_per_set) / 2.0
        return super().target(study, case, epsilon, measure)

    def arms(self, study: TablesStudy) -> list[tuple[str, ...]]:
        noised = [(name, *texts[:2], f"guarantee: {texts[2]}") for name, texts in NOISED.items()]
        return [*noised, *map(_arm, study.mechanisms)]


def _drawn(case: TableCase) -> str:
    """Says how a case's samples are drawn."""
    if case.file is not None:
        return (
            f"systematic PPS samples of {case.sample:,} from the records of {case.file.path}, sizes grow with the outcome"
        )
    whole = f"{case.population:,}, {case.noise} noise in log π"
    return f"stratified systematic PPS samples of {case.sample:,} from {whole}"


def _arm(arm: Synthetic) -> tuple[str, ...]:
    weights = {"inverse_inclusion": "1/E(π|x)", "proportional": "N/n"}[arm.population_weights]
    law = arm.synthesis.upper() + (f", weights {weights}" if arm.synthesis == "fbp" else "")
    estimated = {"records": "synthetic records", "expected_weights": "synthetic records, w* replaced by E(w|y*, x)"}
    return arm.label, law, arm.weights.rule, estimated.get(arm.estimator, "released parameters")

"""Studies of chains: releases of `reference_tables`, year after year, each with the previous release as its reference.

Meanwhile the survey changes, and the study shows how errors grow.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpdist.studies.kinds.captions import COVERAGE_TITLE, chain_epsilon, errors_in_direct_se
from dpdist.studies.kinds.chains_replicates import chain
from dpdist.studies.kinds.chains_settings import ChainArm, ChainStudy, late
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, SimulatedKind, randomness
from dpdist.studies.kinds.tables_settings import STATISTICS

BESIDE = (
    ("direct", "nothing: the population's own figures, whose distance from the direct estimates is chance", "–", "–"),
    (
        "laplace_composed",
        "direct + Laplace noise of the sample's own sensitivity, ε shared by a record's 8 figures",
        "–",
        "none",
    ),
)


class Chains(SimulatedKind):
    settings = ChainStudy
    heads = ("Label", "What is released", "Fixed on", "Guarantee class")

    @property
    def captions(self) -> Mapping[str, Caption]:
        reading = (
            "Nominal .90, with the standard errors that the release publishes: proportion of the 27 cells whose interval "
            "holds the population's figure, mean over the {}."
        )
        covered = {
            measure: Caption(COVERAGE_TITLE.format(name) + title, reading.format(when))
            for name in STATISTICS
            for measure, title, when in (
                (f"{name}_coverage", "", "chain"),
                (late(f"{name}_coverage"), ", last quarter of the chain", "chain's last quarter"),
            )
        }
        return {**errors_in_direct_se(), **covered, **chain_epsilon()}

    def replicate(self, study: ChainStudy, case: int, number: int) -> Replicate:
        return chain(study, study.cases[case], number)

    def facts(self, study: ChainStudy) -> list[Fact]:
        numbers = sorted({study.replicates_of(k) for k in range(len(study.cases))})
        return [
            (
                "Data",
                [
                    "simulated doctorates, a population and a sample of its own in every period; counts and mean salaries "
                    "by field × sex with margins, 27 cells"
                ],
            ),
            ("Cases", [f"{case.name}: {case.periods} periods, {case.described(' a period')}" for case in study.cases]),
            ("Replicates", [f"R = {' or '.join(map(str, numbers))} chains"]),
            ("ε", [", ".join(study.grid) + " of every release, histograms included: all chains cost the same in all"]),
            randomness(study),
        ]

    def arms(self, study: ChainStudy) -> list[tuple[str, ...]]:
        return [*BESIDE, *map(_arm, study.mechanisms)]


def _arm(arm: ChainArm) -> tuple[str, ...]:
    what, fixed = "reference_tables", "the release before; the first on period 0's file, which is public"
    if arm.renewed:
        fixed = "the file of the period before, as if it were public"
    if arm.refresh is not None:
        every = "every release" if arm.refresh == 1 else f"every {arm.refresh}th release"
        what += (
            f"; {every} spends {100 * float(arm.share):g} % of its ε on histograms that bring the carried shapes up to date"
        )
    return arm.label, what, fixed, f"strict, {arm.adjacency}"

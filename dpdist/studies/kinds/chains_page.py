"""What a page says of a study of chains: its cases, what stands beside its arms, the arms."""

from __future__ import annotations

from dpdist.studies.kinds.chains_settings import ChainArm, Chaining

HEADS = ("Label", "What is released", "Fixed on", "Guarantee class")
BESIDE = (
    ("direct", "nothing: the population's own figures, whose distance from the direct estimates is chance", "–", "–"),
    (
        "laplace_composed",
        "direct + Laplace noise of the sample's own sensitivity, ε shared by a record's 8 figures",
        "–",
        "none",
    ),
)


def facts(study: Chaining) -> list[tuple[str, list[str]]]:
    numbers = sorted({study.replicates_of(k) for k in range(len(study.cases))})
    return [
        (
            "Data",
            [
                "simulated doctorates, a population and a sample of its own in every period; counts and mean salaries by "
                "field × sex with margins, 27 cells"
            ],
        ),
        ("Cases", [f"{case.name}: {case.periods} periods, {case.described(' a period')}" for case in study.cases]),
        ("Replicates", [f"R = {' or '.join(map(str, numbers))} chains"]),
        ("ε", [", ".join(study.grid) + " of every release, histograms included: all chains cost the same in all"]),
    ]


def _arm(arm: ChainArm) -> tuple[str, str, str, str]:
    what, fixed = "reference_tables", "the release before; the first on period 0's file, which is public"
    if arm.renewed:
        fixed = "the file of the period before, as if it were public"
    if arm.refresh is not None:
        every = "every release" if arm.refresh == 1 else f"every {arm.refresh}th release"
        what += (
            f"; {every} spends {100 * float(arm.share):g} % of its ε on histograms that bring the carried shapes up to date"
        )
    return arm.label, what, fixed, f"strict, {arm.adjacency}"


def arms(study: Chaining) -> list[tuple[str, str, str, str]]:
    return [*BESIDE, *map(_arm, study.mechanisms)]

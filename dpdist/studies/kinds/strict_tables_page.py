"""What a page says of a study of strict tables: its cases, what stands beside its arms, the arms."""

from __future__ import annotations

from dpdist.studies.kinds.strict_tables_settings import ReferredArm, Referring

HEADS = ("Label", "What is released", "Cells", "Guarantee class")
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


def facts(study: Referring) -> list[tuple[str, list[str]]]:
    numbers = sorted({study.replicates_of(k) for k in range(len(study.cases))})
    return [
        ("Data", ["simulated doctorates, now and earlier; counts and mean salaries by field × sex with margins, 27 cells"]),
        ("Cases", [f"{case.name}: {case.described()}" for case in study.cases]),
        (
            "Replicates",
            [f"R = {' or '.join(map(str, numbers))}, each with populations and samples of its own in every case"],
        ),
        ("ε", [", ".join(study.grid) + " of the whole release"]),
    ]


def _arm(arm: ReferredArm) -> tuple[str, str, str, str]:
    how = {
        "sanitized_statistics": f"whitened, winsorised sums, lognormal ({arm.synthesis.upper()})",
        "reference_tables": "clipped sums, unclipped with the reference",
    }
    shrunk = "cells shrunk as far as noise moved them" if arm.shrinkage else "cells stand alone"
    return arm.label, how[arm.mechanism], shrunk, f"strict, {arm.adjacency}"


def arms(study: Referring) -> list[tuple[str, str, str, str]]:
    return [*BESIDE, *map(_arm, study.mechanisms)]

"""What a page says of a study of files: its cases, what is compared."""

from __future__ import annotations

from dpdist.job import budget_text
from dpdist.studies.filed import FileCase, Filed

HEADS = ("Label", "What it is", "Fixed on", "Guarantee class")
ARMS = (
    ("reference_tables", "the published estimates of real releases", "the reference", "strict"),
    ("reference_only", "the reference's means at the current public sizes", "the reference", "no current data"),
    ("laplace_finest", "clipped sums of the finest cells + Laplace noise", "a quantile of the reference's weights", "none"),
    (
        "laplace_composed",
        "direct + Laplace noise of the file's own sensitivity, ε shared by its figures",
        "–",
        "none",
    ),
    ("direct", "survey-weighted estimates of the sample, not protected", "–", "none"),
)


def facts(study: Filed) -> list[tuple[str, list[str]]]:
    noise = "noise is OpenDP's, as in any release, and differs from run to run"
    if any(case.split != "periods" for case in study.cases):
        noise = f"splits are keyed by seed {study.seed}; {noise}"
    return [
        (
            "Data",
            ["public files", *(f"{case.name}: {case.file} under job {case.job}; {_split(case)}" for case in study.cases)],
        ),
        ("Replicates", [f"R = {study.replicates}: {_replicates(study)}"]),
        ("ε", [", ".join(study.grid) + " of every release"]),
        ("Randomness", [noise]),
    ]


def _replicates(study: Filed) -> str:
    split = {case.split != "periods" for case in study.cases}
    chains, splits = "chains of releases of the same files, under noise of their own", "splits of each file"
    return splits if split == {True} else chains if split == {False} else f"{splits}; {chains}"


def _split(case: FileCase) -> str:
    drift = f", the current one times {case.drift:g}" if case.drift != 1.0 else ""
    how = {
        "halves": f"one half is the other's reference{drift}",
        "samples": f"two disjoint samples of {100 * case.share:g} %, one the other's reference; the file is the truth",
        "periods": f"a release for every {case.column}, each the next one's reference, {_first(case)}",
    }
    return f"{how[case.split]}; {case.adjacency}"


def _first(case: FileCase) -> str:
    if case.first is None:
        return "the first period's file public"
    return f"the first fixed on histograms of its own at {budget_text(case.first)} of its ε"

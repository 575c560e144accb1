"""Studies of releases: of public files that are split into parts, and of repeated samples of known populations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dpdist.job import budget_text
from dpdist.job.families import FAMILIES
from dpdist.mechanisms.registry import mechanism_of
from dpdist.studies.kinds.captions import COVERAGE_TITLE, chain_epsilon, errors_in_direct_se, ratio
from dpdist.studies.kinds.files_arms import FilesArm
from dpdist.studies.kinds.files_replicates import ratios, releases
from dpdist.studies.kinds.files_settings import FileCase, FilesStudy
from dpdist.studies.kinds.populations import DESCRIBED, UNITS
from dpdist.studies.kinds.protocol import Caption, Fact, Replicate, SimulatedKind, randomness
from dpdist.studies.kinds.sample_jobs import arm_job, job_of_case, tabulated_job
from dpdist.studies.kinds.tables_settings import STATISTICS

RELEASES = (
    "from {}: what is compared with direct estimates tells of these files' records, and may be shown because the "
    "files are public. Of files that are not, errors like these stay in a workspace's confidential folder."
)
OF_POPULATIONS = "from releases of samples from simulated populations. Nothing here comes from a respondent."
ARMS = (
    ("reference_tables", "the published estimates of releases", "the reference", "strict"),
    ("reference_only", "the reference's means at the current public sizes", "the reference", "no current data"),
    ("laplace_finest", "clipped sums of base cells + Laplace noise", "a quantile of the reference's weights", "none"),
    (
        "laplace_composed",
        "direct + Laplace noise of the file's own sensitivity, ε shared by its figures",
        "–",
        "none",
    ),
    ("direct", "survey-weighted estimates of the sample, not protected", "–", "none"),
)
BY_SAMPLES = ("direct", "survey-weighted estimates of the samples, not protected", "–", "none")


class Files(SimulatedKind):
    settings = FilesStudy
    heads = ("Label", "What it is", "Fixed on", "Guarantee class")

    @property
    def captions(self) -> Mapping[str, Caption]:
        return {**errors_in_direct_se(), **chain_epsilon(), **_around_the_truth()}

    def replicate(self, study: FilesStudy, case: int, number: int) -> Replicate:
        return releases(study, study.cases[case], number)

    def by_cell(self, study: Any, results: pd.DataFrame) -> pd.DataFrame:
        return ratios(results)

    def facts(self, study: FilesStudy) -> list[Fact]:
        return [
            (
                "Data",
                [sources(study), *(f"{case.name}: {_source(case)}; {_split(case)}" for case in study.cases)],
            ),
            ("Replicates", [f"R = {study.replicates}: {_replicates(study)}"]),
            ("ε", [", ".join(study.grid) + " of every release"]),
            randomness(study),
        ]

    def arms(self, study: FilesStudy) -> list[tuple[str, ...]]:
        """Rows on the compared arms. Splits of files have a fixed list; repeated samples add the study's mechanisms."""
        others = [arm for arm in ARMS if any(case.split != "pps" for case in study.cases) and arm[0] != "direct"]
        own = [_arm(study, arm) for arm in study.mechanisms if arm.label not in {arm[0] for arm in others}]
        return [*others, *own, BY_SAMPLES if own else ARMS[-1]]

    def made_of(self, study: FilesStudy) -> str:
        return RELEASES.format(sources(study)) if any(case.file for case in study.cases) else OF_POPULATIONS


def _around_the_truth() -> dict[str, Caption]:
    """Captions of errors and coverage relative to the truth: the figures of the whole file or population."""
    ratio_reading = (
        "Root mean squared error about the file's or population's figures over replicates, cell by cell, over the direct "
        "estimate's; means and standard deviations here are over cells and margins."
    )
    covered = (
        "Nominal .90, with the standard errors that the release publishes: proportion of cells and margins whose interval "
        "holds the figure of the whole file or population (of counts of `samples`, a sample's part of it)."
    )
    by_cell = (
        "Nominal .90: proportion of replicates whose interval holds the population's figure, cell by cell; means and "
        "standard deviations here are over cells and margins."
    )
    grand = "|Published figure of all records − the population's|, in published standard errors."
    captions: dict[str, Caption] = {}
    for name in STATISTICS:
        captions |= {
            f"{name}_ratio_direct": ratio(name, "direct", ratio_reading),
            f"{name}_coverage": Caption(COVERAGE_TITLE.format(name), covered),
            f"{name}_cell_coverage": Caption(COVERAGE_TITLE.format(name).replace("cells", "replicates"), by_cell),
            f"{name}_grand": Caption(f"|error| of the {name} of all records in published standard errors", grand),
        }
    return captions


def sources(study: FilesStudy) -> str:
    kinds = {"public files": any(case.file for case in study.cases)}
    kinds |= {"simulated populations": any(case.population for case in study.cases)}
    return " and ".join(name for name, there in kinds.items() if there)


def _source(case: FileCase) -> str:
    if case.population is not None:
        return f"{UNITS:,} simulated units, {DESCRIBED[case.population]}"
    above = f", outcomes above {case.above:g}" if case.above is not None else ""
    return f"{case.file} under job {case.job}{', by ' + ' × '.join(case.by) if case.by else ''}{above}"


def _replicates(study: FilesStudy) -> str:
    if all(case.split == "pps" for case in study.cases):
        return "samples, and references, of the same population"
    split = {case.split != "periods" for case in study.cases}
    chains, splits = "chains of releases of the same files, under noise of their own", "splits of each file"
    return splits if split == {True} else chains if split == {False} else f"{splits}; {chains}"


def _split(case: FileCase) -> str:
    if case.split == "pps":
        return _sample(case)
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


def _sample(case: FileCase) -> str:
    changed = [f"outcomes and weights times {case.drift:g}"] if case.drift != 1.0 else []
    changed += [f"outcomes and weights to the power {case.power:g} about their means"] if case.power != 1.0 else []
    now = f"; now {', '.join(changed)}" if changed else ""
    return f"PPS samples of {case.sample:,}, another such sample the reference{now}; the population is the truth"


def _arm(study: FilesStudy, arm: FilesArm) -> tuple[str, ...]:
    family = f", {arm.family}" if arm.family is not None else ""
    law = f", {arm.synthesis.upper()}" if arm.family is not None and FAMILIES[arm.family].synthesis else ""
    sets = f", {arm.synthetic_sets} sets" if arm.synthetic_sets > 1 else ""
    share = f"histograms of the sample itself, {budget_text(arm.histogram)} of ε" if arm.histogram is not None else "–"
    fixed_on = "another sample" if arm.reference == "sample" else share
    return arm.label, f"{arm.mechanism}{family}{law}{sets}", fixed_on, _promise(study, arm)


def _promise(study: FilesStudy, arm: FilesArm) -> str:
    case = next(case for case in study.cases if case.split == "pps" and arm in study.arms_of(case))
    said = arm_job(tabulated_job(job_of_case(case), case), case, arm, study.grid_of(arm)[0], "another sample")
    return f"{mechanism_of(said).promise(said).per_set.name}, {arm.adjacency}"

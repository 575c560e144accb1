"""What a page says of a study of files: its cases, what is compared, which limits its results keep."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from dpdist.job import budget_text
from dpdist.mechanisms.registry import mechanism_of
from dpdist.studies.kinds.files_arms import DIRECT, FiledArm, Limit
from dpdist.studies.kinds.files_settings import FileCase, Filed
from dpdist.studies.kinds.populations import DESCRIBED, UNITS
from dpdist.studies.kinds.sample_jobs import arm_job, job_of_case, tabulated_job
from dpdist.studies.readings import OF_POPULATIONS, RELEASES
from dpdist.studies.shown import Note

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


BY_SAMPLES = ("direct", "survey-weighted estimates of the samples, not protected", "–", "none")
MOST_NAMED = 12
"""Cases that break a limit, as far as a page names them."""


def facts(study: Filed) -> list[tuple[str, list[str]]]:
    noise = "noise is OpenDP's, as in any release, and differs from run to run"
    if any(case.split != "periods" for case in study.cases):
        noise = f"splits and samples are keyed by seed {study.seed}; {noise}"
    return [
        (
            "Data",
            [sources(study), *(f"{case.name}: {_source(case)}; {_split(case)}" for case in study.cases)],
        ),
        ("Replicates", [f"R = {study.replicates}: {_replicates(study)}"]),
        ("ε", [", ".join(study.grid) + " of every release"]),
        ("Randomness", [noise]),
    ]


def made_of(study: Filed) -> str:
    """What the page was made from, and why it may be shown."""
    return RELEASES.format(sources(study)) if any(case.file for case in study.cases) else OF_POPULATIONS


def sources(study: Filed) -> str:
    kinds = {"public files": any(case.file for case in study.cases)}
    kinds |= {"simulated populations": any(case.population for case in study.cases)}
    return " and ".join(name for name, there in kinds.items() if there)


def _source(case: FileCase) -> str:
    if case.population is not None:
        return f"{UNITS:,} simulated units, {DESCRIBED[case.population]}"
    above = f", outcomes above {case.above:g}" if case.above is not None else ""
    return f"{case.file} under job {case.job}{', by ' + ' × '.join(case.by) if case.by else ''}{above}"


def _replicates(study: Filed) -> str:
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


def arms(study: Filed) -> list[tuple[str, str, str, str]]:
    """What is compared: of halves, samples and periods always the same, of repeated samples the study's mechanisms."""
    others = [arm for arm in ARMS if any(case.split != "pps" for case in study.cases) and arm[0] != "direct"]
    own = [_arm(study, arm) for arm in study.mechanisms if arm.label not in {arm[0] for arm in others}]
    return [*others, *own, BY_SAMPLES if own else ARMS[-1]]


def _arm(study: Filed, arm: FiledArm) -> tuple[str, str, str, str]:
    family = f", {arm.family}" if arm.family is not None else ""
    law = f", {arm.synthesis.upper()}" if arm.family == "lognormal" else ""
    sets = f", {arm.synthetic_sets} sets" if arm.synthetic_sets > 1 else ""
    share = f"histograms of the sample itself, {budget_text(arm.histogram)} of ε" if arm.histogram is not None else "–"
    fixed_on = "another sample" if arm.reference == "sample" else share
    return arm.label, f"{arm.mechanism}{family}{law}{sets}", fixed_on, _promise(study, arm)


def _promise(study: Filed, arm: FiledArm) -> str:
    case = next(case for case in study.cases if case.split == "pps" and arm in study.arms_of(case))
    said = arm_job(tabulated_job(job_of_case(case), case), case, arm, study.grid_of(arm)[0], "another sample")
    return f"{mechanism_of(said).promise(said).per_set.name}, {arm.adjacency}"


def findings(study: Filed, results: pd.DataFrame) -> list[Note]:
    """Which limits the results keep, and where they do not: computed from the results, nothing else."""
    return [Note(title=limit.title, text=_kept(study, limit, results)) for limit in study.limits]


def _kept(study: Filed, limit: Limit, results: pd.DataFrame) -> str:
    values = list(measured(study, limit, results))
    broken = [each for each in values if not limit.met(each[1])]
    if not values:
        return "Nothing of it was measured."
    bounds = [f"at least {limit.at_least:g}"] if limit.at_least is not None else []
    bounds += [f"at most {limit.at_most:g}"] if limit.at_most is not None else []
    over = "means over replicates" if limit.over == "replicates" else "the worst replicate"
    told = f"Limit: {' and '.join(bounds)}, {over}. Kept in {len(values) - len(broken)} of {len(values)} results."
    if not broken:
        return told
    worst = sorted(broken, key=lambda each: _beyond(limit, each[1]), reverse=True)[:MOST_NAMED]
    named = "; ".join(f"{name} {value:.2f}{error}" for name, value, error in worst)
    return f"{told} Not in{' the following, and others' if len(broken) > len(worst) else ''}: {named}."


def _beyond(limit: Limit, value: float) -> float:
    below = limit.at_least - value if limit.at_least is not None else -np.inf
    return max(below, value - limit.at_most if limit.at_most is not None else -np.inf)


def measured(study: Filed, limit: Limit, results: pd.DataFrame) -> Iterator[tuple[str, float, str]]:
    """Every case, mechanism, ε and measure that a limit is of: its name, its figure, the figure's Monte Carlo error."""
    wanted = results[results["measure"].isin(limit.measures)]
    if limit.cases is not None:
        wanted = wanted[wanted["case"].isin(limit.cases)]
    if limit.mechanisms is not None:
        wanted = wanted[wanted["mechanism"].isin(limit.mechanisms)]
    by = ["case", "mechanism", "epsilon", "measure"]
    again = wanted.duplicated(["case", "mechanism", "measure", "replicate"]) & (wanted["mechanism"] == DIRECT)
    wanted = wanted[~again]  # the samples' own estimates stand under every ε
    several = wanted.groupby(["case", "mechanism"])["epsilon"].transform("nunique") > 1
    for (case, mechanism, epsilon, measure), own in wanted.assign(several=several).groupby(by, sort=False):
        values = own["value"].to_numpy(float)
        at = f" at ε = {epsilon}" if own["several"].iloc[0] else ""
        error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.2f}" if len(values) > 1 else ""
        whole = limit.over == "all"
        found = values[np.argmax([_beyond(limit, value) for value in values])] if whole else values.mean()
        yield f"{case} {mechanism}{at} {measure}", float(found), "" if whole else error

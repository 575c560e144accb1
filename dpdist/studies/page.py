"""One self-contained page: what was simulated, what reproduces, tables beside the published ones, figures, how to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from dpdist.core.records import Floats
from dpdist.job import budget_text
from dpdist.studies.figures import drawn
from dpdist.studies.kinds import chains_page, files_page, strict_tables_page
from dpdist.studies.kinds.chains_settings import Chaining
from dpdist.studies.kinds.files_settings import Filed
from dpdist.studies.kinds.simulation import ANY, job_of, mechanism_of
from dpdist.studies.kinds.strict_tables_settings import Referring
from dpdist.studies.kinds.tables_settings import Synthetic, Tabulated
from dpdist.studies.material import TITLES, Material
from dpdist.studies.ratios import MONTE_CARLO
from dpdist.studies.readings import INTERVALS, SIMULATED, reading
from dpdist.studies.results import as_number
from dpdist.studies.settings import Arm, FiniteArm, FiniteCase, Guarantees, Simulation
from dpdist.studies.shown import Beside

AnyStudy = Simulation | Guarantees | Tabulated | Referring | Filed | Chaining

WIDE = 5
"""Columns of (case, ε) that a table of results has at most."""
RANDOMNESS = (
    "NumPy generators keyed by seed {}, case and replicate, noise included; a study, not a release: its noise is not "
    "safe in floating point"
)
TABLE_HEADS = ("Label", "Model", "Weight rule", "Estimated from")
NOISED = {
    "direct": ("survey-weighted estimates of the sample, not protected", "–", "none"),
    "laplace": ("direct + Laplace noise of the sample's own sensitivity, all of ε in every figure", "–", "none"),
    "laplace_composed": ("the same, ε shared by the 8 figures that one record enters", "–", "none"),
    "laplace_strict": (
        "clipped sums of the 16 finest cells + Laplace noise at public bounds, margins added",
        "–",
        "strict",
    ),
}
HEADS = ("Label", "Mechanism", "Weights", "Guarantee class, or target")
FINITE_HEADS = ("Label", "Clamp M", "Weights", "Neighbours")
HEADS_OF: Mapping[type, tuple[str, ...]] = {
    Guarantees: FINITE_HEADS,
    Tabulated: TABLE_HEADS,
    Referring: strict_tables_page.HEADS,
    Filed: files_page.HEADS,
    Chaining: chains_page.HEADS,
}


def page(study: AnyStudy, results: pd.DataFrame, records: pd.DataFrame, versions: Mapping[str, str]) -> str:
    """The page as one HTML document without any external resource. Results are long, with text ε; see `results`."""
    material = Material(study, results, records)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dpdist.studies"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    measured = [name for name in study.asked if name in set(results.measure)]
    return environment.get_template("page.html").render(
        study=study,
        facts=_facts_of(study, versions),
        heads=HEADS_OF.get(type(study), HEADS),
        arms=_arms(study),
        notes=[*study.notes, *(files_page.findings(study, results) if isinstance(study, Filed) else [])],
        findings="What reproduces, and what does not"
        if isinstance(study, Simulation | Tabulated | Referring)
        else "Findings",
        beside_title="Beside the promises" if isinstance(study, Guarantees) else "Beside the published figures",
        beside=[_beside(table, material) for table in study.beside],
        figures=[(figure, Markup(svg)) for figure, svg in drawn(study.figures, material)],
        summaries=[(name, TITLES.get(name, name), reading(study, name), _summary(material, name)) for name in measured],
        intervals=INTERVALS if any(name.endswith("_lower") for name in set(results.measure)) else "",
        made_of=files_page.made_of(study) if isinstance(study, Filed) else SIMULATED,
        refused=int((results.measure == "refused").sum()),
    )


def _facts_of(study: AnyStudy, versions: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    if isinstance(study, Guarantees):
        return _finite_facts(study, versions)
    if isinstance(study, Filed):
        return [*files_page.facts(study), _versions(versions)]
    if isinstance(study, Referring):
        return [*strict_tables_page.facts(study), ("Randomness", [RANDOMNESS.format(study.seed)]), _versions(versions)]
    if isinstance(study, Chaining):
        return [*chains_page.facts(study), ("Randomness", [RANDOMNESS.format(study.seed)]), _versions(versions)]
    return _table_facts(study, versions) if isinstance(study, Tabulated) else _facts(study, versions)


def _versions(versions: Mapping[str, str]) -> tuple[str, list[str]]:
    return "Versions", [", ".join(f"{name} {version}" for name, version in versions.items())]


def _table_facts(study: Tabulated, versions: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    cases = [
        f"{c.name}: stratified systematic PPS samples of {c.sample:,} from {c.population:,}, {c.noise} noise in log π"
        for c in study.cases
    ]
    sets = [f"ε = {e} for m = {m}" for m, e in zip(study.sets, study.grid, strict=True)]
    return [
        ("Data", ["simulated doctorates; counts and mean salaries by field × sex with margins, 27 cells", *cases]),
        ("Replicates", [f"R = {study.replicates}, each with a population and a sample of its own in every case"]),
        ("ε", [f"{budget_text(study.epsilon_per_set)} per synthetic set, zero_out; noised tables have the total", *sets]),
        ("Posterior draws", [f"S = {study.draws:,}, independent, one pooled fit"]),
        ("Randomness", [RANDOMNESS.format(study.seed)]),
        _versions(versions),
    ]


def _tabulated(arm: Synthetic) -> tuple[str, str, str, str]:
    weights = {"inverse_inclusion": "1/E(π|x)", "proportional": "N/n"}[arm.population_weights]
    law = arm.synthesis.upper() + (f", weights {weights}" if arm.synthesis == "fbp" else "")
    estimated = {"records": "synthetic records", "expected_weights": "synthetic records, w* replaced by E(w|y*, x)"}
    return arm.label, law, arm.weights.rule, estimated.get(arm.estimator, "released parameters")


def _facts(study: Simulation, versions: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    cases = [f"{c.name}: {c.n:,} records of {c.generator.generator().text}, {c.family} model" for c in study.cases]
    samplers = sorted({case.sampler for case in study.cases})
    grid = ", ".join(study.grid) + f" per synthetic set, {study.adjacency}"
    return [
        ("Data", ["simulated", *cases]),
        ("Replicates", [f"R = {study.replicates}, each with a file of its own in every case"]),
        ("ε", [grid if study.epsilons else "no grid: the bound is what results"]),
        ("Posterior draws", [f"S = {study.draws:,}, independent, no Markov chains ({', '.join(samplers)})"]),
        ("Synthetic sets", [f"{study.synthetic_sets} per run, n records each"]),
        ("Randomness", [RANDOMNESS.format(study.seed)]),
        _versions(versions),
    ]


def _described(study: Simulation, arm: Arm) -> tuple[str, str, str, str]:
    """An arm in words: settings, and what its mechanism promises."""
    if arm.adds_noise:
        bins = ", ".join(f"{getattr(arm, name) or '⌈ln n⌉'} {name}" for name in arm.scanned)
        scale = "2/ε" if (arm.adjacency or study.adjacency) == "substitution" else "1/ε"
        return arm.key, arm.name, f"{bins}, noise of scale {scale}", f"strict, {arm.adjacency or study.adjacency}"
    weights = arm.weights.model_dump(exclude_defaults=True)
    weights.setdefault("rule", arm.weights.rule)
    if arm.weights.rule == "cluster":
        weights["radius"] = arm.weights.radius
    settings = ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in weights.items()
    )
    if arm.match is not None:
        promise = f"tuned to the bound that {arm.match} reached on the same file"
    else:
        job = job_of(study, study.cases[0], arm, study.grid[0] or ANY)
        promise = mechanism_of(arm).promise(job).per_set.name
        if not arm.enforced:
            promise += " (the bound is what results; it is not held to ε/2)"
    return arm.key, arm.name, settings, promise


def _finite_facts(study: Guarantees, versions: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    return [
        ("Spaces", [f"{case.name}: {_space(case)}, files of up to {case.n} records" for case in study.cases]),
        ("Losses", ["exact: all files, all neighbours, all parameters; no sampling within a space"]),
        ("Replicates", [f"R = {study.replicates} spaces of each kind, seed {study.seed}; two_point is the same in all"]),
        ("ε", [", ".join(study.grid)]),
        _versions(versions),
    ]


def _space(case: FiniteCase) -> str:
    if case.space == "two_point":
        return "two values, two parameters, one of them rare under the prior"
    return f"random densities of {case.values} values under {case.parameters} parameters"


def _arms(study: AnyStudy) -> list[tuple[str, str, str, str]]:
    if isinstance(study, Simulation):
        return [_described(study, arm) for arm in study.mechanisms]
    if isinstance(study, Filed):
        return files_page.arms(study)
    if isinstance(study, Referring):
        return strict_tables_page.arms(study)
    if isinstance(study, Chaining):
        return chains_page.arms(study)
    if isinstance(study, Tabulated):
        noised = [(name, *said[:2], f"guarantee: {said[2]}") for name, said in NOISED.items()]
        return [*noised, *map(_tabulated, study.mechanisms)]
    return [_finite(arm) for arm in study.mechanisms]


def _finite(arm: FiniteArm) -> tuple[str, str, str, str]:
    weights = {"none": "none", "reference": "min-max, fixed in advance", "current": "min-max, learned on the file at hand"}
    centred = ", of f − f at a fixed parameter" if arm.centred else ""
    return arm.label, f"{budget_text(arm.clamp)} ε{centred}", weights[arm.weights], arm.neighbours


def _beside(said: Beside, material: Material) -> dict[str, Any]:
    """A table of published figures with the study's own, and the Monte Carlo error of these."""
    rows = []
    for row in said.rows:
        epsilons = [e for e in material.study.grid if row.epsilon is None or as_number(e) == float(row.epsilon)]
        case = said.case or material.study.case_names[0]
        ours = _statistic(said, material, case, row.mechanism, epsilons[0] if epsilons else "")
        rows.append(
            {
                "mechanism": row.mechanism,
                "epsilon": "" if row.epsilon is None else epsilons[0] if epsilons else "",
                "published": [_text(row.values.get(key, "")) for key in said.columns],
                "ours": ours,
            }
        )
    return {"said": said, "rows": rows, "any_epsilon": any(row["epsilon"] for row in rows)}


def _statistic(said: Beside, material: Material, case: str, mechanism: str, epsilon: str) -> str:
    values = material.values(case, mechanism, epsilon, said.measure)
    if not len(values):
        return "—"
    if said.statistic == "range":
        least, most = number(values.min()), number(values.max())
        return least if least == most else f"{least} – {most}"
    if said.statistic == "median":
        error = material.values(case, mechanism, epsilon, said.measure + MONTE_CARLO)
        return number(float(np.nanmedian(values))) + (f" ± {error[0]:.2f}" if len(error) else "")
    if said.statistic == "five_numbers":
        return " · ".join(number(value) for value in np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0]))
    if said.statistic == "interval":
        ends = [material.values(case, mechanism, epsilon, said.measure + end) for end in ("_lower", "_upper")]
        text = f"{ends[0].mean():.1f} – {ends[1].mean():.1f}"
        return text if len(values) < 2 else f"{text}, sd {ends[0].std(ddof=1):.1f} – {ends[1].std(ddof=1):.1f}"
    if len(values) < 2:
        return number(values.mean())
    sd = float(values.std(ddof=1))
    error = sd / np.sqrt(len(values))
    places = max(0, 1 - int(np.floor(np.log10(error)))) if error > 0 else 3
    apart = f", sd {number(sd)}" if said.statistic == "mean_sd" else ""
    return f"{values.mean():,.{places}f} ± {error:.{places}f}{apart}"


def _summary(material: Material, measure: str) -> dict[str, Any]:
    """Mean (sd) of a measure by mechanism and (case, ε); the longer of the two goes down."""
    found = material.results[material.results.measure == measure]
    there = set(zip(found.case, found.epsilon, strict=True))
    places = [(case, e) for case in material.study.case_names for e in material.study.grid if (case, e) in there]
    labels = [label for label in material.study.labels if label in set(found.mechanism)]
    named = len(material.study.case_names) > 1
    names = [" ".join(part for part in (case if named else "", f"ε = {e}" if e else "") if part) for case, e in places]
    cells = [[_mean_sd(material.values(case, label, e, measure)) for case, e in places] for label in labels]
    if len(places) > WIDE:
        return {"corner": "Case", "heads": labels, "rows": list(zip(names, zip(*cells, strict=True), strict=True))}
    return {"corner": "Mechanism", "heads": names, "rows": list(zip(labels, cells, strict=True))}


def _mean_sd(values: Floats) -> tuple[str, str] | None:
    if not len(values):
        return None
    mean, sd = float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else np.nan
    return number(mean), "–" if np.isnan(sd) else number(sd if sd > 1e-12 * abs(mean) else 0.0)


def number(value: float) -> str:
    """Three significant digits, as a reader would write them."""
    size = abs(value)
    if not np.isfinite(value):
        return "∞" if value > 0 else "–"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    if size >= 0.01:
        return f"{value:.3f}"
    return f"{value:.2g}" if size else "0"


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"

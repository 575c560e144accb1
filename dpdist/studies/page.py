"""Writes a study's self-contained HTML page: settings, findings, tables beside published figures, plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from dpdist.core.records import Floats
from dpdist.publish.writers.page import environment
from dpdist.studies.figures import drawn
from dpdist.studies.file import kind_of
from dpdist.studies.kinds.protocol import Fact
from dpdist.studies.material import Material, number
from dpdist.studies.settings import Study
from dpdist.studies.verdicts import READING, findings, set_beside

WIDE = 5
"""Largest number of (case, ε) pairs that are always columns of a table. Of more, the longer list becomes rows."""
INTERVALS = (
    "Intervals are nominal 95 % within one data set, averaged over synthetic sets and then over replicates: for the mean "
    "mean ± 1.96 s/√n; for a quantile the order statistics whose ranks are the 2.5 % and 97.5 % points of Binomial(n, p). "
    "They treat synthetic records as if they were data and take no account of the draw of θ."
)


def page(study: Study, results: pd.DataFrame, records: pd.DataFrame, versions: Mapping[str, str]) -> str:
    """One HTML document that loads nothing; `results` has the columns of `write_results`."""
    kind, material = kind_of(study), Material(study, results, records)
    template = environment("dpdist.studies").get_template("page.html")
    measured = [name for name in study.all_measures if name in set(results.measure)]
    captions = {name: material.caption(name) for name in measured}
    return template.render(
        study=study,
        facts=[*kind.facts(study), _versions(versions)],
        heads=kind.heads,
        arms=kind.arms(study),
        notes=[*study.notes, *findings(study.limits, results, study.same_at_every_epsilon)],
        findings=kind.findings_title,
        beside_title=kind.beside_title,
        how_verdicts_are_made=READING,
        beside=[set_beside(table, material) for table in study.beside],
        figures=[(figure, Markup(svg)) for figure, svg in drawn(study.figures, material)],
        summaries=[(name, caption.title, caption.reading, _summary(material, name)) for name, caption in captions.items()],
        intervals=INTERVALS if any(name.endswith("_lower") for name in set(results.measure)) else "",
        made_of=kind.made_of(study),
        refused=int((results.measure == "refused").sum()),
    )


def _versions(versions: Mapping[str, str]) -> Fact:
    return "Versions", [", ".join(f"{name} {version}" for name, version in versions.items())]


def _summary(material: Material, measure: str) -> dict[str, Any]:
    """Mean and standard deviation by mechanism and (case, ε); the longer list becomes rows."""
    rows = material.results[material.results.measure == measure]
    there = set(zip(rows.case, rows.epsilon, strict=True))
    places = [(case, e) for case in material.study.case_names for e in material.study.grid if (case, e) in there]
    labels = [label for label in material.study.labels if label in set(rows.mechanism)]
    named = len(material.study.case_names) > 1
    names = [" ".join(part for part in (case if named else "", f"ε = {e}" if e else "") if part) for case, e in places]
    cells = [[_mean_sd(material.values(case, label, e, measure)) for case, e in places] for label in labels]
    if len(places) > max(WIDE, len(labels) - 1):
        return {"corner": "Case", "heads": labels, "rows": list(zip(names, zip(*cells, strict=True), strict=True))}
    return {"corner": "Mechanism", "heads": names, "rows": list(zip(labels, cells, strict=True))}


def _mean_sd(values: Floats) -> tuple[str, str] | None:
    if not len(values):
        return None
    spread = len(values) > 1 and bool(np.isfinite(values).all())
    mean, sd = float(values.mean()), float(values.std(ddof=1)) if spread else np.nan
    return number(mean), "–" if np.isnan(sd) else number(sd if sd > 1e-12 * abs(mean) else 0.0)

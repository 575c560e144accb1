"""Makes all sections of the custodian's report from the files of a run's workspace. They are confidential."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from dpdist.quality.report.error_sections import errors_section
from dpdist.quality.report.material import Material
from dpdist.quality.report.parts import Grid, Section, cell, grid
from dpdist.quality.report.record_sections import bounds_section, distributions_section
from dpdist.quality.report.verdict_section import verdict_section


def sections(material: Material) -> Iterator[Section]:
    """Yields all sections in the order of the page, the verdict first."""
    yield verdict_section(material)
    if material.bounds is not None:
        yield bounds_section(material, material.bounds)
    for number, (name, rows) in enumerate(material.tables.items(), start=1):
        yield errors_section(material, number, name, rows)
    if (material.space.newest / "synthetic" / "set-1.parquet").is_file():
        yield distributions_section(material)
    yield diagnostics_section(material)
    yield timings_section(material)


def diagnostics_section(material: Material) -> Section:
    """Shows the diagnostics of every stratum's fit."""
    made, rows = Section("diagnostics", "Diagnostics"), material.strata
    if not len(rows):
        made.sentences.append("The mechanism fits no strata: there is nothing to diagnose.")
        return made
    rows = rows.assign(
        **{
            name: rows[name].map(_pair)
            for name in rows.columns
            if rows[name].map(lambda v: isinstance(v, list | np.ndarray)).any()
        }
    )
    by = "epsilon_local" if "epsilon_local" in rows and rows["epsilon_local"].notna().any() else "rows"
    made.grids.append(grid("Strata", rows.dropna(axis=1, how="all").sort_values(by, ascending=False, kind="stable")))
    return made


def _pair(value: object) -> str:
    return "" if value is None else ", ".join(f"{float(number):.4g}" for number in np.atleast_1d(np.asarray(value)))


def timings_section(material: Material) -> Section:
    """Shows the seconds that each stage took, from the status of a finished run."""
    made, path = Section("timings", "Timings"), material.space.status
    log = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if log.get("state") != "finished":
        made.sentences.append(
            "The status of a run has them once it has ended: `dpdist report DIR --open` writes this page again."
        )
        return made
    rows = [[cell(name), cell(entry["done"]), cell(float(entry["seconds"]))] for name, entry in log["stages"].items()]
    made.grids.append(Grid("Stages of the run", ["stage", "units", "seconds"], rows))
    return made

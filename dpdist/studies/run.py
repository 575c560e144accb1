"""Runs studies: replicates in parallel as Parquet files, their table and page; or several studies with one page."""

from __future__ import annotations

import json
import platform
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from markupsafe import Markup
from pydantic import BeforeValidator, Field, model_validator

from dpdist.core.errors import StudyError, WorkspaceError, require
from dpdist.core.files import exclusive, replaced, write_json, write_text
from dpdist.core.progress import Event, Listener, silent, stage
from dpdist.core.records import Floats
from dpdist.core.this_process import refuse_nested_start
from dpdist.job import Frozen
from dpdist.job.loading import find_shipped
from dpdist.job.validation import validate_content
from dpdist.job.yaml_lines import mapping, read_yaml
from dpdist.publish.writers.page import environment
from dpdist.runtime.executors import executor
from dpdist.studies.figures import StudyMaterial, number
from dpdist.studies.kinds import NOT_A_MAPPING, load_study
from dpdist.studies.settings import Note, RecordRows, Result, Study, as_number, one_line
from dpdist.studies.verdicts import ANSWERS, READING, comparison_of, findings


def run(
    study: Study,
    out: str | Path,
    replicates: int | None = None,
    listener: Listener = silent,
    data: str | Path | None = None,
) -> Path:
    """Runs the missing parts of a study and writes summary.csv, replicates.parquet and index.html.

    Results are those of simulated data with keyed NumPy randomness: nothing in the folder is confidential, and nothing in
    it is a release. Results of a study of files contain facts on the files, which must be public.

    Parameters
    ----------
    study : from `load_study` or `parse_study`.
    out : the folder.
    replicates : number of replicates in place of the study's. If it is larger, existing replicates are kept.
    listener : is called with progress events.
    data : the folder of files that a study of files reads.

    Returns
    -------
    The folder.

    Raises
    ------
    WorkspaceError : the folder is another study's or in use.

    Example
    -------
    >>> study = dpdist.parse_study(Path("study.yaml").read_text())
    >>> (dpdist.run_study(study, "study") / "summary.csv").exists()
    True
    """
    require("matplotlib", "a study")
    refuse_nested_start()
    if replicates is not None:
        study = study.model_copy(update={"replicates": replicates})
    if data is not None:
        study = study.with_data(str(Path(data).absolute()))
    folder = Path(out).absolute()
    with owned(folder, study):
        units = [(c, number) for c in range(len(study.cases)) for number in range(1, study.replicates + 1)]
        missing = [k for k, (c, number) in enumerate(units) if not done(folder, study, c, number)]
        if missing and (there := len(units) - len(missing)):
            note = f"{there:,} of {len(units):,} replicates exist already: the study resumes with them."
            listener(Event("note", "replicates", there, len(units), note))
        with stage(listener, "replicates", len(units)) as tick:
            tick(len(units) - len(missing))
            if missing:
                with executor(study.runtime) as workers:
                    for _ in workers.map(Task(study, folder, tuple(units)), missing):
                        tick(1)
        material = material_of(study, folder)
        with stage(listener, "page", 1) as tick:
            write_text(folder / "index.html", page(material, versions()))
            tick(1)
    return folder


@dataclass(frozen=True)
class Task:
    """Computes and writes one replicate; the first one of a case also writes by-products."""

    study: Study
    folder: Path
    units: tuple[tuple[int, int], ...]

    def __call__(self, key: int) -> None:
        index, number = self.units[key]
        name, replicate = self.study.case_names[index], self.study.replicate(index, number)
        if number == 1:
            write_records(records_path(self.folder, name), name, replicate.records)
        write_results(part_path(self.folder, name, number), name, number, replicate.results)


COLUMNS = ("mechanism", "epsilon", "measure", "mean", "sd", "replicates")


def part_path(folder: Path, case: str, number: int) -> Path:
    return folder / "parts" / f"{case}-{number:05d}.parquet"


def records_path(folder: Path, case: str) -> Path:
    return folder / "parts" / f"{case}-records.parquet"


def write_results(path: Path, case: str, number: int, results: Sequence[Result]) -> None:
    """Writes a replicate's part atomically: case, mechanism, epsilon (exact text), replicate, measure, value."""
    columns = {
        "case": [case] * len(results),
        "mechanism": [r.mechanism for r in results],
        "epsilon": [r.epsilon for r in results],
        "replicate": pa.array([number] * len(results), pa.int32()),
        "measure": [r.measure for r in results],
        "value": [r.value for r in results],
    }
    with replaced(path) as temporary:
        pq.write_table(pa.table(columns), temporary)


def write_records(path: Path, case: str, rows: Sequence[RecordRows]) -> None:
    """Writes by-products atomically: case, mechanism, epsilon, record, column, value."""
    empty = {"record": [0], "value": [0.0], "case": "", "mechanism": "", "epsilon": "", "column": ""}
    frames = [pd.DataFrame(empty).iloc[:0]]
    frames += [
        pd.DataFrame({"record": range(len(values)), "value": values}).assign(
            case=case, mechanism=row.mechanism, epsilon=row.epsilon, column=name
        )
        for row in rows
        for name, values in row.columns.items()
    ]
    with replaced(path) as temporary:
        pd.concat(frames).to_parquet(temporary, index=False)


def read_part(path: Path) -> pd.DataFrame | None:
    """None if the file is missing or damaged."""
    try:
        return pd.read_parquet(path)
    except (OSError, pa.ArrowInvalid):
        return None


def tidy(parts: Sequence[pd.DataFrame], cases: int) -> pd.DataFrame:
    """All parts as one table: mechanism, epsilon, replicate, measure, value; `case` first if there are several."""
    table = pd.concat(parts, ignore_index=True)
    table["epsilon"] = pd.to_numeric(table["epsilon"].map(as_number))
    return table if cases > 1 else table.drop(columns="case")


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Mean, standard deviation (n − 1) and number of replicates of every measure, in order."""
    by = [name for name in ("mechanism", "epsilon", "measure", "case") if name in table]
    grouped = table.groupby(by, sort=False, dropna=False)["value"]
    summary = grouped.agg(mean="mean", sd="std", replicates="count").reset_index()
    return summary[[*COLUMNS, *(["case"] if "case" in table else [])]]


def write_table(folder: Path, table: pd.DataFrame, summary: pd.DataFrame) -> None:
    with replaced(folder / "replicates.parquet") as temporary:
        table.to_parquet(temporary, index=False)
    write_text(folder / "summary.csv", summary.to_csv(index=False, float_format="%.10g"))


def versions() -> Mapping[str, str]:
    """Packages on which figures may depend, with their versions."""
    packages = ("dpdist", "numpy", "scipy", "randomgen", "numba")
    return {"python": platform.python_version()} | {name: _version(name) for name in packages}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "source"


def material_of(study: Study, folder: Path) -> StudyMaterial:
    """Reads all replicates of a study that has run, and writes its tables."""
    parts = [read(folder, study, c, k) for c in range(len(study.cases)) for k in range(1, study.replicates + 1)]
    table = tidy(parts, len(study.cases))
    write_table(folder, table, summarise(table))
    replicates = pd.concat(parts)
    if (by_cell := study.by_cell(replicates)) is not None:
        write_text(folder / "ratios.csv", by_cell.to_csv(index=False, float_format="%.10g"))
        # The table has a million errors; the page shows their summary in ratios.csv.
        replicates = pd.concat([replicates[~replicates["measure"].str.contains(" error ")], by_cell])
    return StudyMaterial(study, replicates, pd.concat([pd.read_parquet(records_path(folder, n)) for n in study.case_names]))


def done(folder: Path, study: Study, case: int, number: int) -> bool:
    name = study.case_names[case]
    if number == 1 and read_part(records_path(folder, name)) is None:
        return False
    return read_part(part_path(folder, name, number)) is not None


def read(folder: Path, study: Study, case: int, number: int) -> pd.DataFrame:
    path = part_path(folder, study.case_names[case], number)
    if (part := read_part(path)) is None:
        raise WorkspaceError(str(folder), f"{path.name} vanished while the study ran", "run the same command again")
    return part


@contextmanager
def owned(folder: Path, study: Study) -> Iterator[None]:
    """Claims the folder for this study alone. Parts of another study or version are refused."""
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    with exclusive(folder / ".lock", folder, "another study runs in it", "wait for it, or choose another folder"):
        path, here = folder / "study.json", {"study": dict(study.identity), "versions": dict(versions())}
        if not path.exists():
            if any((folder / "parts").iterdir()) or (folder / "summary.csv").exists():
                raise WorkspaceError(str(folder), "it holds results of an unknown study", "choose an empty folder", 2)
            write_json(path, here)
        elif (begun := json.loads(path.read_text(encoding="utf-8"))) != here:
            which = "versions" if begun.get("study") == here["study"] else "settings"
            remedy = "choose another folder, or delete this one to start again"
            raise WorkspaceError(str(folder), f"it was begun by a study with different {which}", remedy, 2)
        yield


WIDE = 5
"""Largest number of (case, ε) pairs that are always columns of a table.
If there are more, the longer list becomes rows.
"""
INTERVALS = (
    "Intervals are nominal 95 % within one data set, averaged over synthetic sets and then over replicates: for the mean "
    "mean ± 1.96 s/√n; for a quantile the order statistics whose ranks are the 2.5 % and 97.5 % points of Binomial(n, p). "
    "They treat synthetic records as if they were data and take no account of the draw of θ."
)


def page(material: StudyMaterial, packages: Mapping[str, str]) -> str:
    """One HTML document that loads nothing."""
    study, results, _ = material
    template = environment("dpdist.studies").get_template("page.html")
    from dpdist.studies.figures import draw_figures

    shown_measures = [name for name in study.all_measures if name in set(results.measure)]
    captions = {name: material.caption(name) for name in shown_measures}
    used = ", ".join(f"{name} {version}" for name, version in packages.items())
    return template.render(
        study=study,
        facts=[*study.facts(), ("Versions", [used])],
        heads=study.heads,
        arms=study.arms(),
        notes=[*study.notes, *findings(study.limits, results)],
        how_verdicts_are_made=READING,
        comparisons=[comparison_of(table, material) for table in study.beside],
        figures=[(figure, Markup(svg)) for figure, svg in draw_figures(study.figures, material)],
        summaries=[(name, caption.title, caption.reading, _summary(material, name)) for name, caption in captions.items()],
        intervals=INTERVALS if any(name.endswith("_lower") for name in set(results.measure)) else "",
        made_of=study.made_of,
        refused=int((results.measure == "refused").sum()),
    )


def _summary(material: StudyMaterial, measure: str) -> dict[str, Any]:
    """Mean and standard deviation by mechanism and (case, ε); the longer list becomes rows."""
    rows = material.results[material.results.measure == measure]
    there = set(zip(rows.case, rows.epsilon, strict=True))
    places = [(case, e) for case in material.study.case_names for e in material.study.grid if (case, e) in there]
    labels = [label for label in material.study.labels if label in set(rows.mechanism)]
    several_cases = len(material.study.case_names) > 1
    names = [
        " ".join(part for part in (case if several_cases else "", f"ε = {e}" if e else "") if part) for case, e in places
    ]
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


class StudyEntry(Frozen):
    study: str = Field(description="name of a shipped study, or a path")
    replicates: int | None = Field(default=None, ge=1, description="unset: the study's")
    of: str = Field(description="the source, and which part of it")


class Overview(Frozen):
    """Studies of one page, in order."""

    title: str
    about: Annotated[str, BeforeValidator(one_line)] = ""
    studies: tuple[StudyEntry, ...] = Field(min_length=1)
    notes: tuple[Note, ...] = Field(default=(), description="what the studies do not reproduce, and why")

    @model_validator(mode="after")
    def _studies_differ(self) -> Self:
        names = [Path(entry.study).stem for entry in self.studies]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"the study '{twice}' is named twice: name it once")
        return self


def load(name: str | Path) -> Study | Overview:
    """Reads a study, or an overview: a file with the key `studies`. Raises `StudyError`."""
    path = find_shipped(name, "studies", StudyError)
    keys, lines = mapping(read_yaml(path, StudyError), str(path), StudyError, NOT_A_MAPPING)
    return validate_content(Overview, keys, str(path), lines, StudyError) if "studies" in keys else load_study(path)


class StudyPart(NamedTuple):
    """What the page shows of one study.
    `answers` counts verdicts on published figures; `seconds` are those of all calls.
    """

    of: str
    study: Study
    command: str
    comparisons: list[dict[str, Any]]
    findings: list[Note]
    seconds: float

    @property
    def answers(self) -> Counter[str]:
        return Counter(row["verdict"] for table in self.comparisons for row in table["rows"] if row["verdict"])


def run_overview(
    overview: Overview,
    out: str | Path,
    replicates: int | None = None,
    listener: Listener = silent,
    data: str | Path | None = None,
) -> Path:
    """Completes every study in folders of `out`, and writes `index.html` there after each study.

    A study of files needs the folder `data`; the page names studies that did not run. Parameters, folder and errors are
    those of `dpdist.run_study`.
    """
    folder, parts = Path(out).absolute(), list[StudyPart]()
    studies = [(entry, load_study(entry.study)) for entry in overview.studies]
    without = [(entry, study) for entry, study in studies if study.reads_files and data is None]
    for entry, study in studies:
        if (entry, study) in without:
            continue
        number = replicates or entry.replicates or study.replicates
        parts.append(_part(entry, study.model_copy(update={"replicates": number}), folder / study.study, listener, data))
        page = environment("dpdist.studies").get_template("overview.html")
        text = page.render(overview=overview, parts=parts, without=without, answers=list(ANSWERS.values()),
                           how_verdicts_are_made=READING, versions=versions())  # fmt: skip
        write_text(folder / "index.html", text)
    return folder


def _part(entry: StudyEntry, study: Study, folder: Path, listener: Listener, data: str | Path | None) -> StudyPart:
    path, begun = folder / "seconds.json", time.monotonic()
    seconds = json.loads(path.read_text(encoding="utf-8"))["seconds"] if path.exists() else 0.0
    run(study, folder, listener=listener, data=data)
    write_json(path, {"seconds": (seconds := seconds + time.monotonic() - begun)})
    material = material_of(study, folder)
    command = f"dpdist study {entry.study} --replicates {study.replicates} --out DIR" + " --data FOLDER" * study.reads_files
    tables = [comparison_of(table, material) for table in study.beside]
    limits = findings(study.limits, material.results)
    return StudyPart(entry.of, study, command, tables, limits, seconds)

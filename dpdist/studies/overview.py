"""For `cli.trials`: runs several studies, and writes one page of published figures beside this run's."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from dpdist.core.errors import StudyError
from dpdist.core.files import write_json, write_text
from dpdist.core.progress import Listener, silent
from dpdist.job import Frozen
from dpdist.job.loading import find_shipped
from dpdist.job.validation import validated
from dpdist.job.yaml_lines import mapping, read_yaml
from dpdist.publish.writers.page import environment
from dpdist.studies import results
from dpdist.studies.file import NOT_A_MAPPING, load_study
from dpdist.studies.run import material_of, run
from dpdist.studies.settings import Note, Study, one_line
from dpdist.studies.verdicts import ANSWERS, READING, findings, set_beside


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
            raise ValueError(f"the study '{twice}' stands twice: name it once")
        return self


def load(name: str | Path) -> Study | Overview:
    """Reads a study, or an overview: a file with the key `studies`. Raises `StudyError`."""
    path = find_shipped(name, "studies", StudyError)
    keys, lines = mapping(read_yaml(path, StudyError), str(path), StudyError, NOT_A_MAPPING)
    return validated(Overview, keys, str(path), lines, StudyError) if "studies" in keys else load_study(path)


class StudyPart(NamedTuple):
    """What the page shows of one study.
    `answers` counts verdicts on published figures; `seconds` are those of all calls.
    """

    of: str
    study: Study
    command: str
    beside: list[dict[str, Any]]
    findings: list[Note]
    seconds: float

    @property
    def answers(self) -> Counter[str]:
        return Counter(row["verdict"] for table in self.beside for row in table["rows"] if row["verdict"])


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
        wanted = replicates or entry.replicates or study.replicates
        parts.append(_part(entry, study.model_copy(update={"replicates": wanted}), folder / study.study, listener, data))
        page = environment("dpdist.studies").get_template("overview.html")
        text = page.render(overview=overview, parts=parts, without=without, answers=list(ANSWERS.values()),
                           how_verdicts_are_made=READING, versions=results.versions())  # fmt: skip
        write_text(folder / "index.html", text)
    return folder


def _part(entry: StudyEntry, study: Study, folder: Path, listener: Listener, data: str | Path | None) -> StudyPart:
    path, begun = folder / "seconds.json", time.monotonic()
    spent = json.loads(path.read_text(encoding="utf-8"))["seconds"] if path.exists() else 0.0
    run(study, folder, listener=listener, data=data)
    write_json(path, {"seconds": (spent := spent + time.monotonic() - begun)})
    material = material_of(study, folder)
    command = f"dpdist study {entry.study} --replicates {study.replicates} --out DIR" + " --data FOLDER" * study.reads_files
    beside = [set_beside(table, material) for table in study.beside]
    limits = findings(study.limits, material.results)
    return StudyPart(entry.of, study, command, beside, limits, spent)

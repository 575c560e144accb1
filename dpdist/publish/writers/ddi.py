"""For `publish.folder`: `codebook.xml`, the synthetic records described in DDI Codebook 2.5.

Parquet and CSV files hold levels as texts; Stata and SPSS files hold numbered codes. These two layouts are described as
separate variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.files import version_of, write_text
from dpdist.core.records import Level
from dpdist.job import Job
from dpdist.publish.writers.microdata import level_codes, variable_names

NAMESPACE = "ddi:codebook:2_5"
TEXTS, CODES = {"parquet": "Apache Parquet", "csv": "CSV, UTF-8"}, {"dta": "Stata", "sav": "SPSS"}
"""File endings of the two layouts, with texts or codes of levels, and descriptions of the files."""
APOSTROPHE = "An apostrophe stands before a name or level that a spreadsheet would run as a formula."
WEIGHT = "Use the weight {} in every estimate."
WEIGHT_ID = "W1"
KIND = "synthetic survey records"
STRICT = ", made from what was released under differential privacy"
COPIED = "; {} copied from records of the reference"


class DdiLayout(NamedTuple):
    """The files that share a layout, and the form that names of columns and levels have in them."""

    letter: str
    """First letter of the variables' ids."""
    files: Mapping[str, str]
    """Ids by path below the public folder."""
    names: Mapping[str, str]
    levels: Mapping[str, Mapping[Level, str]]


def write_ddi(path: Path, job: Job, statement: Mapping[str, Any]) -> None:
    """Writes the file if the job asks for it and has synthetic records; `path` is in the public folder."""
    if "ddi" not in job.presentation.formats or job.mechanism.whole_tables:
        return
    text = job.presentation
    title = text.title or f"{job.dataset}, {job.period}"
    root = Element("codeBook", {"xmlns": NAMESPACE, "version": "2.5", "xml:lang": text.language})
    cited = SubElement(SubElement(root, "docDscr"), "citation")
    _text(SubElement(cited, "titlStmt"), "titl", f"Codebook: {title}")
    _text(SubElement(cited, "prodStmt"), "software", "dpdist", version=version_of("dpdist"))
    root.append(_study(job, title, statement))
    schema = pq.read_schema(path.parent / "synthetic" / "set-1.parquet")
    layouts = list(_layouts(job, schema.names))
    for layout in layouts:
        root.extend(_file(path.parent, name, number, len(schema)) for name, number in layout.files.items())
    variables = SubElement(root, "dataDscr")
    for layout in layouts:
        variables.extend(_variable(job, layout, schema, name) for name in schema.names)
    indent(root)
    write_text(path, '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n")


def _layouts(job: Job, columns: Sequence[str]) -> Iterator[DdiLayout]:
    """The layout with texts, and the one with codes if any file has codes."""
    formats, levels_of = job.presentation.formats, {name: job.columns[name].levels or () for name in job.modelled_columns}
    texts = {name: {level: str(level) for level in levels} for name, levels in levels_of.items()}
    files = _files(job, "F", ["parquet", *(end for end in TEXTS if end in formats)])
    yield DdiLayout("V", files, dict(zip(columns, columns, strict=True)), texts)
    if coded := [end for end in CODES if end in formats]:
        codes = {
            name: {level: str(code) for level, code in level_codes(levels).items()} for name, levels in levels_of.items()
        }
        yield DdiLayout("C", _files(job, "G", coded), variable_names(columns), codes)


def _files(job: Job, letter: str, ends: Sequence[str]) -> dict[str, str]:
    paths = [f"synthetic/set-{number}.{end}" for number in range(1, job.synthetic_sets + 1) for end in ends]
    return {path: f"{letter}{number}" for number, path in enumerate(paths, start=1)}


def _study(job: Job, title: str, statement: Mapping[str, Any]) -> Element:
    text, study = job.presentation, Element("stdyDscr")
    cited = SubElement(study, "citation")
    named = SubElement(cited, "titlStmt")
    _text(named, "titl", title)
    _text(named, "IDNo", f"{job.dataset} {job.period}")
    if text.responsible or text.licence:
        producer = SubElement(cited, "prodStmt")
        _text(producer, "producer", text.responsible)
        _text(producer, "copyright", text.licence)
    if text.responsible or text.contact:
        distributed = SubElement(cited, "distStmt")
        _text(distributed, "distrbtr", text.responsible)
        _text(distributed, "contact", text.contact)
    about = SubElement(SubElement(study, "stdyInfo"), "sumDscr")
    _text(about, "timePrd", job.period)
    _text(about, "anlyUnit", "sample record")
    _text(about, "universe", text.universe)
    copied = COPIED.format(", ".join(job.microdata.columns)) if job.microdata.columns else ""
    _text(about, "dataKind", KIND + (STRICT if str(statement["guarantee"]).startswith("strict") else "") + copied)
    study.append(_method(job, statement))
    used = SubElement(SubElement(study, "dataAccs"), "useStmt")
    _text(used, "confDec", statement["guarantee_in_words"], required="no")
    _text(used, "contact", text.contact)
    _text(used, "conditions", text.licence)
    _text(used, "disclaimer", " ".join(statement.get("cautions", ())))
    return study


def _method(job: Job, statement: Mapping[str, Any]) -> Element:
    method = Element("method")
    collected = SubElement(method, "dataColl")
    if job.presentation.source:
        _text(SubElement(collected, "sources"), "dataSrc", job.presentation.source)
    if job.survey.weight:
        _text(collected, "weight", WEIGHT.format(job.survey.weight), ID=WEIGHT_ID)
    analysed = SubElement(method, "anlyInfo")
    for sentence in statement["standard_errors"]:
        _text(analysed, "EstSmpErr", sentence)
    for step in statement["post_processing"]:
        _text(method, "dataProcessing", step)
    return method


def _file(public: Path, name: str, number: str, columns: int) -> Element:
    path, described = public / name, Element("fileDscr", {"ID": number, "URI": name})
    text = SubElement(described, "fileTxt")
    _text(text, "fileName", path.name)
    size = SubElement(text, "dimensns")
    _text(size, "caseQnty", str(pq.read_metadata(path.with_suffix(".parquet")).num_rows))
    _text(size, "varQnty", str(columns))
    _text(text, "fileType", (TEXTS | CODES)[path.suffix[1:]])
    if path.suffix == ".csv":
        _text(described, "notes", APOSTROPHE)
    return described


def _variable(job: Job, layout: DdiLayout, schema: pa.Schema, name: str) -> Element:
    """A column of the records: label, unit, and its levels as the files have them, or its public bounds."""
    text, levels, columns = job.presentation, layout.levels.get(name), schema.names
    facts = {"ID": f"{layout.letter}{columns.index(name) + 1}", "name": layout.names[name]}
    facts |= {"files": " ".join(layout.files.values())}
    if name == job.survey.weight:
        facts["wgt"] = "wgt"
    elif job.survey.weight is not None:
        facts |= {"wgt-var": f"{layout.letter}{columns.index(job.survey.weight) + 1}", "weight": WEIGHT_ID}
    if unit := text.column(name).unit:
        facts["measUnit"] = unit
    facts["intrvl"] = "contin" if levels is None and name in job.components else "discrete"
    variable = Element("var", facts)
    _text(variable, "labl", text.label(name))
    bounds = job.outcome_columns[name].bounds if name in job.outcomes else None
    if bounds is not None:
        SubElement(SubElement(variable, "valrng"), "range", {"min": f"{bounds[0]:.10g}", "max": f"{bounds[1]:.10g}"})
    for level, value in (levels or {}).items():
        category = SubElement(variable, "catgry")
        _text(category, "catValu", value)
        _text(category, "labl", text.level(name, level))
    SubElement(variable, "varFormat", type="character" if _textual(layout, schema.field(name)) else "numeric")
    return variable


def _textual(layout: DdiLayout, field: pa.Field) -> bool:
    values = layout.levels.get(field.name)
    if values is None:
        return bool(pa.types.is_string(getattr(field.type, "value_type", field.type)))
    return not all(value.removeprefix("-").isdecimal() for value in values.values())


def _text(parent: Element, tag: str, text: str | None, **facts: str) -> None:
    if text:
        SubElement(parent, tag, facts).text = text

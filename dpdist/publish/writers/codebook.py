"""Descriptions of a release for other programs: codebook in CSVW, DDI Codebook, and the deployments registry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import pyarrow as pa
import pyarrow.parquet as pq

from dpdist.core.files import version_of, write_json, write_text
from dpdist.core.records import TOTAL, Level
from dpdist.estimation.estimators import STATISTICS
from dpdist.job import FLAGS, Job
from dpdist.job.presentation import Registry
from dpdist.job.yaml_lines import as_yaml
from dpdist.publish.printed_tables import FLAG, NO_ESTIMATE, PrintedTable, wide_heads
from dpdist.publish.writers.csv_tables import plain
from dpdist.publish.writers.microdata import level_codes, variable_names

LONG = {
    "statistic": "count, mean or total, as requested in the job",
    "variable": "the outcome of a mean or a total",
    "estimator": "what the estimate is computed from: released parameters, or synthetic records",
    "estimate": "the estimate",
    "standard_error": "its standard error",
    "df": "degrees of freedom of the interval; inf stands for the normal distribution",
    "lower": "lower limit of the 90 % interval",
    "upper": "upper limit of the 90 % interval",
    "suppressed": "true if there is no estimate",
    "withheld_because": "why there is no estimate, if the job's limit on the error withholds it",
}
"""Descriptions of the columns in a table's long file, apart from the columns that name its cells."""
FURTHER = {
    "statistic": "the statistic with its constants, as the job states it",
    "variable": "outcome of the statistic; for a ratio, both outcomes",
}
"""Descriptions for tables with statistics other than counts, means and totals."""


def write_codebook(path: Path, job: Job, tables: Sequence[tuple[PrintedTable, pa.Table]]) -> None:
    text = job.presentation
    entries = [described for table, printed in tables for described in (_long(job, table, printed), _wide(table))]
    if "csv" in text.formats:
        entries += [_records(job, path.parent, number) for number in range(1, job.published_sets + 1)]
    facts = {"dc:title": text.title or f"{job.dataset}, {job.period}", "dc:source": text.source}
    facts |= {"dc:rights": text.licence, "dc:publisher": text.responsible}
    known_facts = {name: value for name, value in facts.items() if value is not None}
    context = ["http://www.w3.org/ns/csvw", {"@language": text.language}]
    write_json(path, {"@context": context, **known_facts, "tables": entries, "notes": [*_columns(job)]})


def _columns(job: Job) -> list[dict[str, Any]]:
    text, variables = job.presentation, [*job.modelled_columns, *job.components, *job.microdata.columns]
    names, entries = variable_names(variables), []
    for name in dict.fromkeys([*variables, *job.cell_columns]):
        column: dict[str, Any] = {"column": name, "label": text.label(name)}
        column |= {"unit": text.column(name).unit} if text.column(name).unit else {}
        column |= {"variable": names[name]} if name in names else {}
        if name in job.columns and (levels := job.columns[name].levels):
            codes = level_codes(levels)
            column["levels"] = [
                {"level": str(level), "label": text.level(name, level), "code": codes[level]} for level in levels
            ]
        if name in job.columns and (texts := job.columns[name].codes):
            column["codes"] = [{"code": code, "text": text_of_code} for text_of_code, code in texts.items()]
        if merges := job.recode.get(name):
            column["recode"] = [{"level": level, "becomes": becomes} for level, becomes in merges.items()]
        entries.append(column)
    return entries


def _named(header: str, number: int, datatype: Any, description: str = "") -> dict[str, Any]:
    """A column's description; `titles` is its header in the file."""
    name = re.sub(r"[^A-Za-z0-9_.]", "_", header).lstrip("_") or "column"
    return {"name": f"{name}_{number}", "titles": header, "datatype": datatype} | (
        {"dc:description": description} if description else {}
    )


def _one_of(texts: Sequence[str]) -> dict[str, str]:
    return {"base": "string", "format": "|".join(re.sub(r"([\\^$.|?*+(){}\[\]])", r"\\\1", plain(text)) for text in texts)}


def _category(job: Job, name: str, number: int, *more: str) -> dict[str, Any]:
    levels = [str(level) for level in job.columns[name].levels or ()]
    return _named(plain(name), number, _one_of([*levels, *more]), job.presentation.label(name))


def _schema(url: str, title: str, columns: list[dict[str, Any]]) -> dict[str, Any]:
    return {"url": url, "dc:title": title, "tableSchema": {"columns": columns}}


def _long(job: Job, printed: PrintedTable, table: pa.Table) -> dict[str, Any]:
    plain_alone = set(table["statistic"].to_pylist()) <= set(STATISTICS)
    columns, texts = [], LONG if plain_alone else LONG | FURTHER
    for number, field in enumerate(table.schema, start=1):
        if field.name in LONG:
            kind = {pa.string(): "string", pa.bool_(): "boolean"}.get(field.type, "double")
            column = _named(field.name, number, kind, texts[field.name])
            columns.append(column | ({"null": ["", "inf"]} if field.name == "df" else {}))
        else:
            columns.append(_category(job, field.name, number, TOTAL))
    return _schema(f"tables/{printed.name}.csv", printed.caption, columns)


def _wide(printed: PrintedTable) -> dict[str, Any]:
    columns = [_named(plain(name), number, "string") for number, name in enumerate(printed.stub, start=1)]
    for number, head in enumerate(wide_heads(printed), start=len(columns) + 1):
        if head.endswith(f", {FLAG}"):
            columns.append(_named(plain(head), number, _one_of(FLAGS)))
        else:
            columns.append(_named(plain(head), number, "double") | {"null": ["", NO_ESTIMATE]})
    return _schema(f"tables/{printed.name}.wide.csv", f"{printed.caption}, as printed", columns)


def _records(job: Job, public: Path, number: int) -> dict[str, Any]:
    columns = [_category(job, name, place) for place, name in enumerate(job.modelled_columns, start=1)]
    for place, name in enumerate(job.components, start=len(columns) + 1):
        columns.append(_named(plain(name), place, "double", job.presentation.with_unit(name)))
    if job.microdata.columns:
        schema = pq.read_schema(public / "synthetic" / f"set-{number}.parquet")
        for place, name in enumerate(job.microdata.columns, start=len(columns) + 1):
            kind = _datatype(schema.field(name).type)
            columns.append(_named(plain(name), place, kind, job.presentation.with_unit(name)) | {"null": ""})
    return _schema(f"synthetic/set-{number}.csv", f"Synthetic records, set {number}", columns)


def _datatype(kind: pa.DataType) -> str:
    kind = getattr(kind, "value_type", kind)
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "double"
    return "boolean" if pa.types.is_boolean(kind) else "date" if pa.types.is_date(kind) else "string"


# Parquet and CSV files hold levels as texts; Stata and SPSS files hold numbered codes. These two layouts are described as
# separate variables.
NAMESPACE = "ddi:codebook:2_5"
TEXTS, CODES = {"parquet": "Apache Parquet", "csv": "CSV, UTF-8"}, {"dta": "Stata", "sav": "SPSS"}
"""File endings of the two layouts, with texts or codes of levels, and descriptions of the files."""
APOSTROPHE = "Names and levels that a spreadsheet would run as a formula begin with an apostrophe."
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
    if "ddi" not in job.presentation.formats or not job.published_sets:
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
    title_statement = SubElement(cited, "titlStmt")
    _text(title_statement, "titl", title)
    _text(title_statement, "IDNo", f"{job.dataset} {job.period}")
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
    use_statement = SubElement(SubElement(study, "dataAccs"), "useStmt")
    _text(use_statement, "confDec", statement["guarantee_in_words"], required="no")
    _text(use_statement, "contact", text.contact)
    _text(use_statement, "conditions", text.licence)
    _text(use_statement, "disclaimer", " ".join(statement.get("cautions", ())))
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
    for label, code in ((job.columns[name].codes if name in job.columns else None) or {}).items():
        category = SubElement(variable, "catgry")
        _text(category, "catValu", f"{code:.10g}")
        _text(category, "labl", label)
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


# Facts come from the privacy statement. What dpdist cannot know comes from the job's `presentation.registry`.
def write_registry(path: Path, job: Job, statement: Mapping[str, Any]) -> None:
    """Writes the file if the job asks for it."""
    if job.presentation.registry is not None:
        write_text(path, as_yaml(entry(job, job.presentation.registry, statement)))


def entry(job: Job, registry: Registry, statement: Mapping[str, Any]) -> dict[str, Any]:
    """The entry by the registry's schema of July 2026. It is a draft, on which the registry's board decides."""
    text = job.presentation
    name = text.title or f"{job.dataset}, {job.period}"
    administrative: dict[str, Any] = {"registry_authors": [registry.author or text.responsible]}
    deployment = {
        "basic": {
            "name": name,
            "data_curators": [text.responsible],
            "description": _described(job),
            "intended_use": registry.intended_use,
            "data_product_type": "Summary statistics",
            "data_product_region": registry.region,
            "publication_date": registry.publication_date.isoformat(),
            **({"data_product_sector": registry.sector} if registry.sector else {}),
        },
        **_claimed(statement),
        "deployment_model": {
            "model_name": "Central",
            "actors": statement["trust_model"],
            "release_type": "Many releases" if registry.continual else "One release",
            "data_source_type": "Dynamic" if registry.continual else "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": _listed(statement["post_processing"]),
            "composition": statement["composition"],
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": registry.tuning or text.choices,
            "mechanisms": _listed([_mechanism(job, statement), *statement["assumptions"]]),
            "justification": registry.justification,
        },
        "administrative": administrative | ({"sources": registry.url} if registry.url else {}),
    }
    period = [] if job.period in name else [job.period]
    slug = re.sub(r"[^a-z0-9]+", "-", "-".join([name, str(text.responsible), *period]).lower()).strip("-")
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}


def _claimed(statement: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {name: float(Fraction(statement[name])) for name in ("epsilon", "delta", "rho") if statement.get(name)}
    return {
        "dp_variant": {
            "variant_name": _variant(statement),
            "data_domain": _listed(statement["domain"]),
            "unprotected_quantities": _listed([*statement["not_protected"], *statement["public"]]),
        },
        "privacy_loss": {
            "privacy_unit": statement["privacy_unit"],
            "privacy_unit_details": _listed([statement["privacy_unit_in_words"], statement["adjacency_in_words"]]),
            "privacy_parameters": parameters,
            "privacy_parameters_details": statement["guarantee_in_words"],
        },
    }


def _described(job: Job) -> str:
    text = job.presentation
    tables = [text.table(table.name).title or table.name for table in job.tables]
    return _listed([*filter(None, (text.universe, text.source)), f"tables: {', '.join(tables)}", *_of_records(job)])


def _of_records(job: Job) -> list[str]:
    return [f"synthetic records: {job.published_sets} set(s)"] if job.published_sets else []


def _variant(statement: Mapping[str, Any]) -> str:
    """The registry's name of the privacy variant; "Custom" if the guarantee holds for exact draws only."""
    if "rho" in statement:
        return "Zero-concentrated DP"
    if statement["guarantee"] != "strict":
        return "Custom"
    return "Pure DP" if statement["delta"] == "0" else "Approximate DP"


def _mechanism(job: Job, statement: Mapping[str, Any]) -> str:
    noise = statement["sampler"].get("noise", "")
    parts = [str(job.mechanism), noise, f"dpdist {version_of('dpdist')}", f"OpenDP {version_of('opendp')}"]
    return "; ".join(filter(None, parts))


def _listed(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)

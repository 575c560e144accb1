"""Parts of the reference that follow from the code: keys of a job file, the command line, mechanisms by adjacency.

Written as MyST Markdown into `_generated`, which pages include. `python docs/generated.py` writes them without Sphinx.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from dpdist.cli.main import app
from dpdist.core.errors import JobError
from dpdist.job import SAMPLERS, STATISTICS, Job
from dpdist.job.families import FAMILIES
from dpdist.job.loading import parse_job
from dpdist.mechanisms.registry import MECHANISMS

ORDER = ("dataset", "period", "input", "columns", "universe", "survey", "strata", "outcome", "model", "mechanism", "budget")
"""Keys of a job in the order in which one writes them; others follow as the schema has them."""


def write(folder: Path) -> None:
    """Write every part."""
    folder.mkdir(exist_ok=True)
    parts = {"job-file": job_file(), "cli": commands(), "mechanisms": mechanisms(), "families": families()}
    for name, lines in parts.items():
        text = "\n".join(lines) + "\n"
        path = folder / f"{name}.md"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def job_file() -> Iterator[str]:
    """One table of the top-level keys, then one for every section."""
    schema = Job.model_json_schema()
    first = sorted(schema["properties"], key=lambda key: ORDER.index(key) if key in ORDER else len(ORDER))
    yield from _section("The keys of a job", schema | {"properties": {key: schema["properties"][key] for key in first}})
    for name in sorted(schema["$defs"]):
        if "properties" in schema["$defs"][name]:
            yield from _section(name, schema["$defs"][name])


def _section(title: str, part: dict[str, Any]) -> Iterator[str]:
    yield f"({'job' if title.startswith('The') else 'job-' + title.lower()})="
    yield f"## {title}\n"
    if text := part.get("description", "").strip():
        yield _line(text) + "\n"
    yield "| key | value | default | what it says |"
    yield "|---|---|---|---|"
    required = part.get("required", ())
    for key, said in part["properties"].items():
        default = "must be given" if key in required else _default(said)
        yield f"| `{key}` | {_kind(said)} | {default} | {_line(said.get('description', ''))} |"
    yield ""


def _default(said: dict[str, Any]) -> str:
    value = said.get("default")
    if isinstance(value, dict):
        return "its own defaults"
    shown = {None: "unset", True: "true", False: "false"}.get(value) if not isinstance(value, list) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,.10g}"
    return shown or ("none" if value == [] else f"`{value}`")


def _kind(said: dict[str, Any]) -> str:
    """What may stand there: a type, a choice, a link to a section."""
    if "$ref" in said:
        name = said["$ref"].rpartition("/")[2]
        return f"[{name}](#job-{name.lower()})"
    if choices := said.get("anyOf", said.get("oneOf")):
        kinds = [_kind(each) for each in choices if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in said or "const" in said:
        return ", ".join(f"`{value}`" for value in said.get("enum", [said.get("const")]))
    kind = said.get("type")
    if kind == "array":
        inner = said.get("items", said.get("prefixItems", [{}])[0] if "prefixItems" in said else {})
        return "[lower, upper]" if "prefixItems" in said else f"list of {_kind(inner)}"
    if kind == "object":
        more = said.get("additionalProperties")
        return f"keys with {_kind(more)}" if isinstance(more, dict) else "keys with values"
    if isinstance(kind, list):
        return "exact number in quotes"
    return {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}.get(
        str(kind), "value"
    )


def commands() -> Iterator[str]:
    """Every verb with its arguments and options."""
    yield from _command(typer.main.get_command(app), ("dpdist",))


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    name = " ".join(path)
    if len(path) > 1:
        yield f"## `{name}`\n"
    yield _line(command.help or "") + "\n"
    parameters = [each for each in command.params if each.name != "help"]
    if parameters:
        yield "| argument or option | what it says |"
        yield "|---|---|"
    for each in parameters:
        yield f"| {_parameter(each)} | {_line(getattr(each, 'help', None) or '')} |"
    yield ""
    for inner in getattr(command, "commands", {}).values():
        yield from _command(inner, (*path, inner.name))


def _parameter(each: Any) -> str:
    if each.param_type_name == "argument":
        return f"`{each.metavar or each.name.upper()}`"
    shown = ", ".join(f"`{name}`" for name in each.opts)
    return shown + (" (must be given)" if each.required else "")


BASE = """
dataset: example
period: "2020"
columns:
  region: {levels: [north, south]}
  pay: {bounds: %s, outside: clip}
%ssurvey: {%s}
outcome: pay
%s
mechanism: %s
budget: {epsilon: "1", adjacency: %s%s%s}
%s
tables:
  - {name: pay, by: [region], statistics: [count, {mean: pay}]}
"""
WEIGHTED, PLAIN = "weight: weight", ""
CLIPPED = "  weight: {bounds: [1, 100], outside: clip}\n"
"""Public bounds of the weight, of mechanisms that clip it there."""
ROOMS = "  rooms: {bounds: [1, 4], whole: true, outside: clip}\n"
"""A second outcome, of mechanisms that count the cross of several."""
LOGNORMAL = "model: {family: lognormal, predictors: [region]}"
PROPER = "model: {family: lognormal, predictors: [region], prior: {name: proper}}\nsampler: {name: stan}"
BETA = "strata: [region]\nmodel: {family: beta}"
REFERENCE = "reference: {path: earlier.parquet}"
WAYS: tuple[tuple[str, str, str, str, str, str], ...] = (
    # mechanism, how, bounds, survey, model, reference
    ("reference_tables", "", "[1, 9]", WEIGHTED, "", REFERENCE),
    ("laplace_strict", "", "[1, 9]", WEIGHTED, "", ""),
    ("sanitized_statistics", "", "[1, 9]", WEIGHTED, "model: {family: lognormal}", REFERENCE),
    ("sanitized_statistics", "noise: gaussian", "[1, 9]", WEIGHTED, "model: {family: lognormal}", REFERENCE),
    ("modips", "law: lognormal", "[1, 9]", WEIGHTED, "", ""),
    ("steps", "layers: 2", "[1, 9]", WEIGHTED, "strata: [region]", ""),
    ("universal_histogram", "layers: 2", "[1, 9]", WEIGHTED, "strata: [region]", ""),
    ("flat_laplace", "", "[1, 9]", WEIGHTED, "strata: [region]", ""),
    ("weighted_marginals", "", "[0, 1]", WEIGHTED, "strata: [region]", ""),
    ("perturbed_histogram", "", "[0, 1]", PLAIN, "strata: [region]", ""),
    ("laplace_composed", "sensitivity: public", "[1, 9]", WEIGHTED, "", ""),
    ("centred", "", "[1, 9]", WEIGHTED, PROPER, REFERENCE),
    ("censor_uw", "", "[0, 1]", PLAIN, BETA, ""),
    ("censor_w", "with a reference", "[0, 1]", PLAIN, BETA, REFERENCE),
    ("censor_w", "without one", "[0, 1]", PLAIN, BETA, ""),
    ("weighted", "", "[1, 9]", WEIGHTED, LOGNORMAL, ""),
    ("weighted_e", "", "[1, 9]", WEIGHTED, LOGNORMAL, ""),
    ("unweighted", "", "[1, 9]", WEIGHTED, LOGNORMAL, ""),
    ("laplace", "", "[1, 9]", WEIGHTED, "", ""),
    ("laplace_composed", "", "[1, 9]", WEIGHTED, "", ""),
)
ADJACENCIES = {
    "zero_out": ("zero_out", ""),
    "substitution": ("substitution", ""),
    "substitution, anywhere": ("substitution", ", exchange: anywhere"),
    "add_remove": ("add_remove", ""),
}


def mechanisms() -> Iterator[str]:
    """The class of guarantee that every mechanism has under every adjacency, as its own promise states it."""
    assert {way[0] for way in WAYS} == set(MECHANISMS), "a mechanism has no row in docs/generated.py"
    yield "| mechanism | " + " | ".join(f"`{name}`" for name in ADJACENCIES) + " |"
    yield "|---" * (1 + len(ADJACENCIES)) + "|"
    for way in WAYS:
        classes = [_class(way, *adjacency) for adjacency in ADJACENCIES.values()]
        assert set(classes) != {"refused"}, f"the example of {way[0]} in docs/generated.py is no job"
        shown = f"`{way[0]}`" + (f", {way[1]}" if way[1] else "")
        yield f"| {shown} | " + " | ".join(classes) + " |"


def _class(way: tuple[str, str, str, str, str, str], adjacency: str, exchange: str) -> str:
    name, how, bounds, survey, model, reference = way
    constants = f", {how}" if ":" in how else ""
    counts = STATISTICS.get(name) == "partition"
    constants += ", bins: {pay: 4}" if counts else ""
    delta = ', delta: "1e-6"' if how == "noise: gaussian" else ""
    clips = counts or "public" in how or name in ("reference_tables", "laplace_strict", "modips", "weighted_marginals")
    clipped = CLIPPED if clips else ""
    bounds = bounds + ", whole: true" if name == "weighted_marginals" else bounds
    text = BASE % (bounds, clipped, survey, model, f"{{name: {name}{constants}}}", adjacency, exchange, delta, reference)
    text = text.replace("outcome: pay", "outcome: [pay, rooms]").replace("  pay: {", ROOMS + "  pay: {") if counts else text
    try:
        job = parse_job(text)
    except JobError:
        return "refused"
    return MECHANISMS[job.mechanism.name].promise(job).total.name


def families() -> Iterator[str]:
    """Families of likelihoods, what they take and how they are sampled."""
    yield "| family | outcome | weight | predictors | samplers |"
    yield "|---|---|---|---|---|"
    weight = {True: "modelled, must be named", False: "none", None: "modelled, if named"}
    for name, facts in FAMILIES.items():
        if name not in STATISTICS.values():
            predictors = "yes" if facts.predictors else "no"
            cells = (f"`{name}`", facts.support.text, weight[facts.weight], predictors, ", ".join(SAMPLERS[name]))
            yield f"| {' | '.join(cells)} |"


def _line(text: str) -> str:
    """One line of Markdown: rich's marks and line breaks taken out, bars and angle brackets kept as text."""
    plain = re.sub(r"\[/?(?:bold)?\]", "", " ".join(text.split()))
    return re.sub(r"([|<>*_\[\]])", r"\\\1", plain) if "`" not in plain else plain.replace("|", r"\|")


if __name__ == "__main__":
    write(Path(__file__).parent / "_generated")

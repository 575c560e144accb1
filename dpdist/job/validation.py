"""YAML validated into a frozen object, or every problem with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

from dpdist.core.errors import Problem, ProblemsError, suggestion
from dpdist.core.plugins import REFUSED
from dpdist.job.families import Family
from dpdist.job.mechanism import MechanismSpec
from dpdist.job.reference import ONE_FORM
from dpdist.job.rules import Contradiction
from dpdist.job.specs import SPECS, STATISTICS, those
from dpdist.job.values import NAME, PATTERNS, TABLE
from dpdist.job.weights import Weights, sections as weight_sections
from dpdist.job.yaml_lines import Lines, Where, dotted, keys_of, place

Schema = TypeVar("Schema", bound=BaseModel)


def validate_content(
    schema: type[Schema], keys: dict[str, Any], source: str, lines: Lines, refusal: type[ProblemsError]
) -> Schema:
    """The content as a frozen object. Raises `refusal` with every problem, its line and what is allowed."""
    try:
        return schema.model_validate(keys)
    except ValidationError as error:
        causes = _causes(error.errors(include_url=False), schema)
        raise refusal(source, [_problem(e, lines, schema) for e in causes]) from None


def _causes(errors: Sequence[ErrorDetails], schema: type[BaseModel]) -> list[ErrorDetails]:
    """Removes errors that follow from others, such as a missing key that is misspelt."""
    misspelt = set[Where]()
    for error in errors:
        if error["type"] == "extra_forbidden" and (near := _nearest(error["loc"], schema)):
            misspelt.add((*error["loc"][:-1], near))
    return [
        error
        for error in errors
        if not (error["type"] == "missing" and tuple(error["loc"]) in misspelt)
        and not (error["type"] == "too_short" and any(_under(other["loc"], error["loc"]) for other in errors))
    ]


def _under(path: Where, above: Where) -> bool:
    return len(path) > len(above) and path[: len(above)] == above


def _nearest(path: Where, schema: type[BaseModel]) -> str | None:
    near = get_close_matches(str(path[-1]), sorted(_known_keys(path[:-1], schema)), n=1, cutoff=0.5)
    return near[0] if near else None


def _problem(error: ErrorDetails, lines: Lines, schema: type[BaseModel]) -> Problem:
    path = _without_tags(tuple(part for part in error["loc"] if part != "[key]"), schema)
    origin, facts = place(path, lines), error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        return _unknown(error["loc"], path, origin, schema)
    if error["type"] in ("missing", "union_tag_not_found"):
        path = path if error["type"] == "missing" else (*path, _TAG)
        return Problem(dotted(path), "missing key", "it must be given", f"add '{path[-1]}'", 1, origin)
    if error["type"] == REFUSED:
        kind, key = facts["kind"], (*path, _TAG) if facts["kind"] == "mechanism" else path
        allowed, remedy = (
            f"a {kind} of dpdist, or of a plug-in that can be used",
            f"fix the plug-in, or use another {kind}",
        )
        return Problem(dotted(key), facts["reason"], allowed, remedy, 1, place(key, lines))
    if error["type"] == "union_tag_invalid":
        return _no_option((*path, _TAG), facts["tag"], facts["expected_tags"], place((*path, _TAG), lines))
    message = error["msg"].removeprefix("Value error, ")
    if facts.get("expected") and isinstance(error["input"], str):
        return _no_option(path, error["input"], str(facts["expected"]), origin)
    if error["type"] == "none_required":
        return Problem(
            dotted(path), "not supported by the model and mechanism of this job", "null", "leave it out", 1, origin
        )
    value = (
        "inconsistent" if isinstance(error["input"], dict) and error["type"] == "value_error" else _shown(error["input"])
    )
    allowed, remedy = _in_words(error["type"], facts, message)
    return Problem(dotted(path), value, allowed, remedy, 1, origin)


_TAG = "name"
"""The key by which the members of a union are distinguished."""


def _no_option(path: Where, value: str, expected: str, origin: tuple[str, ...]) -> Problem:
    options = [option.strip("' ") for option in expected.replace(" or ", ", ").split(", ")]
    remedy = suggestion(value, options, "use one of these", 0.4)
    return Problem(dotted(path), f"'{value}' is not known", expected, remedy, 1, origin)


def _unknown(loc: Where, path: Where, origin: tuple[str, ...], schema: type[BaseModel]) -> Problem:
    keys, key = ", ".join(sorted(_known_keys(loc[:-1], schema))), str(path[-1])
    members = _members(_annotation(loc[:-2], schema)) if len(loc) > 1 else {}
    if alternatives := _having(key, members):
        remedy = f"leave it out, or use {alternatives}"
        return Problem(dotted(path), f"'{loc[-2]}' has no {key}", keys, remedy, 1, origin)
    remedy = f"did you mean '{near}'?" if (near := _nearest(loc, schema)) else "delete the key"
    elsewhere = {name for member in members.values() for name in member.model_fields}
    if not near and (far := get_close_matches(key, sorted(elsewhere), n=1, cutoff=0.8)):
        remedy = f"delete the key; '{far[0]}' is a key of {_having(far[0], members)}"
    return Problem(dotted(path), "unknown key", keys, remedy, 1, origin)


def _having(key: str, members: Mapping[str, type[BaseModel]]) -> str:
    return " or ".join(name for name, member in members.items() if key in member.model_fields)


def _shown(value: Any) -> str:
    if value is None or value in ([], (), {}):
        return "nothing" if value is None or value == {} else "an empty list"
    return f"{value!r:.80}"


_WORDS = {
    "greater_than": ("a number above {gt}", "write a larger number"),
    "greater_than_equal": ("a number of at least {ge}", "write a larger number"),
    "less_than": ("a number below {lt}", "write a smaller number"),
    "less_than_equal": ("a number of at most {le}", "write a smaller number"),
    "too_short": ("a list of {min_length} or more", "add to it"),
    "too_long": ("a list of {max_length} at most", "shorten it"),
    "string_too_short": ("a text of {min_length} or more characters", "lengthen it"),
    "string_too_long": ("a text of at most {max_length} characters", "shorten it"),
    "finite_number": ("a finite number", "write a number"),
    "literal_error": ("{expected}", "use one of these"),
}
_KINDS = {
    "int": ("a whole number", "write one"),
    "float": ("a number", "write one"),
    "string": ("a text", "write it in quotes"),
    "date": ("a day, such as 2026-11-22", "write one"),
    "bool": ("true or false", "write one of them"),
    "tuple": ("a list, as in [one, another]", "write it in brackets"),
    "dict": ("keys with values, as in {key: value}", "write them"),
    "model": ("keys with values, as in {key: value}", "see README for a job file"),
    "byte": ("a size with its unit, as in 2GiB", "write one"),
}


def _in_words(kind: str, facts: Mapping[str, Any], message: str) -> tuple[str, str]:
    """The allowed values and the remedy, for a kind of pydantic's errors. Messages of dpdist's checks stay unchanged."""
    if kind == "string_pattern_mismatch":
        return PATTERNS[facts["pattern"]], "rename it" if facts["pattern"] in (NAME, TABLE) else "write it so"
    if kind in _WORDS:
        allowed, remedy = _WORDS[kind]
        texts = {name: f"{value:,.10g}" if isinstance(value, int | float) else value for name, value in facts.items()}
        return allowed.format(**texts), remedy
    if message.startswith(ONE_FORM):  # `extends` has merged the mapping of the base with the job's
        return (
            message,
            "keep the keys of one form; where a job extends another, set inherited keys of the other form to null",
        )
    return _KINDS.get(kind.partition("_")[0], (message, "correct the value"))


def _known_keys(path: Where, schema: type[BaseModel]) -> set[str]:
    model = _plain(_annotation(path, schema))
    sections = weight_sections() if model is Weights else [model] if _is_model(model) else []
    return {name for section in sections for name in section.model_fields}


def _annotation(path: Where, schema: type[BaseModel]) -> Any:
    """The type at a path of pydantic's errors. Such a path names the member of a union before its keys."""
    annotation: Any = schema
    for part in path:
        annotation = _within(annotation, part)
    return annotation


def _without_tags(path: Where, schema: type[BaseModel]) -> Where:
    """Turns a path of pydantic's errors into the path in the file, which does not name members of unions."""
    annotation: Any = schema
    path_parts = list[str | int]()
    for part in path:
        path_parts += [] if part in _members(annotation) else [part]
        annotation = _within(annotation, part)
    return tuple(path_parts)


def _within(annotation: Any, part: str | int) -> Any:
    if member := _members(annotation).get(str(part)):
        return member
    inner = _plain(annotation)
    if _is_model(inner):
        field = inner.model_fields.get(str(part))
        if field is None:
            return None
        return next((data.written for data in field.metadata if hasattr(data, "written")), field.annotation)
    return next((argument for argument in reversed(get_args(inner)) if argument is not Ellipsis), None)


def _members(annotation: Any) -> dict[str, type[BaseModel]]:
    """Members of a union by the name that distinguishes them: a tag, or the only value that the key `name` can have."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is MechanismSpec:
        return dict[str, type[BaseModel]](SPECS.with_plugins())
    if get_origin(annotation) not in (Union, UnionType):
        return {}
    members = dict[str, type[BaseModel]]()
    for member in get_args(annotation):
        members |= _members(member) or {tag: _plain(member) for tag in _tags(member)}
    return members


def _tags(member: Any) -> tuple[str, ...]:
    if tags := tuple(str(data.tag) for data in getattr(member, "__metadata__", ()) if isinstance(data, Tag)):
        return tags
    model = _plain(member)
    names = get_args(model.model_fields[_TAG].annotation) if _is_model(model) and _TAG in model.model_fields else ()
    return names if len(names) == 1 else ()


def _plain(annotation: Any) -> Any:
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def of_earlier_form(keys: Mapping[str, Any]) -> bool:
    """True if a published job has keys that only earlier formats have."""
    return any(keys_of_earlier_form(keys)) or any(_constants_of_others(keys.get("mechanism")))


def keys_of_earlier_form(keys: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Yields old keys under `model`: the outcome, and statistics of mechanisms without a likelihood."""
    model = keys_of(keys.get("model"))
    if "outcome" in model:
        outcomes = model["outcome"]
        several = isinstance(outcomes, list) and all(isinstance(name, str) for name in outcomes)
        names = f"[{', '.join(outcomes)}]" if several else outcomes if isinstance(outcomes, str) else "…"
        allowed = "family, predictors, synthesis, prior and other settings of the likelihood"
        remedy = f"move it out of model, to a line of its own: outcome: {names}"
        yield Contradiction(("model", "outcome"), "an outcome does not belong to the model", remedy, allowed)
    family = model.get("family")
    former_family = isinstance(family, str) and family not in get_args(Family)
    if former_family and (family in STATISTICS or those(lambda spec: spec.statistics == family)):
        fault = f"'{family}' is not a likelihood; the name of the mechanism is enough"
        remedy = "delete model; outcome goes at the same level as mechanism"
        yield Contradiction(("model", "family"), fault, remedy, f"one of {', '.join(get_args(Family))}")


def _constants_of_others(mechanism: object) -> Iterator[str]:
    """Yields constants that belong to other mechanisms; in an earlier format every job had the constants of all."""
    settings = keys_of(mechanism)
    if (spec := SPECS.get(str(settings.get("name")))) is not None:
        for name in (name for name in settings if name not in spec.model_fields):
            if any(name in other.model_fields for other in SPECS.values()):
                yield name

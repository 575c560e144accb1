"""Reading a job: YAML with line numbers, unknown keys refused with the nearest known name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dpdist.errors import JobError, Problem, ProblemsError
from dpdist.job import Calibration, Job
from dpdist.job_consistency import contradictions

Path_ = tuple[str | int, ...]
Schema = TypeVar("Schema", bound=BaseModel)


NOT_A_MAPPING = Problem("job", "not a mapping of keys", "dataset:, columns:, …", "see README for a job file")


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a date is the text that was written."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def find_job(name: str | Path) -> Path:
    """A job file's path; a name without a folder is also looked up among the jobs shipped with dpdist."""
    return find_shipped(name, "", JobError)


def find_shipped(name: str | Path, folder: str, error: type[ProblemsError]) -> Path:
    """The path of a YAML file; a name without a folder is also looked up in jobs/`folder`, as shipped with dpdist."""
    path = Path(name)
    if path.is_file() or (path.exists() and path.name != str(name)):
        return path
    jobs = Path(str(resources.files("dpdist") / "jobs"))
    if not jobs.is_dir():  # a source checkout: jobs/ lies beside the package
        jobs = Path(__file__).parent.parent / "jobs"
    shipped = jobs / folder
    candidates = [shipped / path.name, shipped / f"{path.name}.yaml"]
    if path.name == str(name):
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    known = sorted(p.stem for p in shipped.glob("*.yaml"))
    raise error(
        str(name),
        [
            Problem(
                "file",
                "no such file",
                f"a YAML file, or one of the shipped ones: {', '.join(known)}",
                f"did you mean '{near[0]}'?" if (near := get_close_matches(path.stem, known, n=1)) else "check the path",
            )
        ],
    )


def load_job(name: str | Path) -> Job:
    """Read and validate a job file. Raises `JobError` with line, path, what is allowed and the remedy."""
    path = find_job(name)
    return parse_job(read_yaml(path, JobError), str(path), path.parent)


def parse_job(text: str, source: str = "job", folder: Path = Path()) -> Job:
    """Validate a job given as YAML text; files that it names lie in `folder`."""
    said, lines = mapping(text, source, JobError, NOT_A_MAPPING)
    said = _with_calibration(_with_program(said, folder, source, lines), folder, source, lines)
    job = validated(Job, said, source, lines, JobError)
    if against := contradictions(job):
        raise JobError(source, [_contradiction(path, message, lines) for path, message in against])
    return job


def read_yaml(path: Path, error: type[ProblemsError]) -> str:
    """The text of a file; raises `error` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        found = f"cannot be read ({type(cause).__name__})"
        raise error(str(path), [Problem("file", found, "a UTF-8 YAML file", "check the path")]) from None


def mapping(
    text: str, source: str, refusal: type[ProblemsError], otherwise: Problem
) -> tuple[dict[str, Any], Mapping[Path_, int]]:
    """What YAML text says, and the line of every path in it; `otherwise` is the problem where it is no mapping."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None and (at := _within_itself(node, ())) is not None:
            raise refusal(source, [_not_yaml("a value that contains itself", "an anchor above its own value", at)])
        said = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise refusal(source, [_not_yaml(error.problem or "not YAML", "check indentation and quotes", line)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        found = f"a character that YAML does not allow, #x{int(error.character):02x}"
        raise refusal(source, [_not_yaml(found, "delete it", line)]) from None
    except ValueError as error:
        raise refusal(source, [_not_yaml(str(error), "write the value in quotes", 1)]) from None
    if not isinstance(said, dict) or node is None:
        raise refusal(source, [otherwise])
    lines = dict(_lines(node, ()))
    twice = [
        Problem(_text(p), "given twice", "each key once", "delete one", 1, (f"line {n}",)) for p, n in _duplicates(node, ())
    ]
    if twice:
        raise refusal(source, twice)
    return said, lines


def validated(
    schema: type[Schema], said: dict[str, Any], source: str, lines: Mapping[Path_, int], refusal: type[ProblemsError]
) -> Schema:
    """What was said as a frozen object; raises `refusal` with every problem, its line and what is allowed."""
    try:
        return schema.model_validate(said)
    except ValidationError as error:
        causes = _causes(error.errors(include_url=False), schema)
        raise refusal(source, [_problem(e, lines, schema) for e in causes]) from None


def _with_program(said: dict[str, Any], folder: Path, source: str, lines: Mapping[Path_, int]) -> dict[str, Any]:
    """What was said, the name of a Stan program replaced by name and text."""
    model = said.get("model")
    if not isinstance(model, dict) or not isinstance(name := model.get("program"), str):
        return said
    place, path = _place(("model", "program"), lines), folder / name
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = f"'{name}' cannot be read ({type(error).__name__})"
        allowed = "the path of a Stan program, from the job file's folder"
        raise JobError(source, [Problem("model.program", found, allowed, "correct the path", 1, place)]) from None
    return said | {"model": model | {"program": {"name": path.name, "text": text}}}


def _with_calibration(said: dict[str, Any], folder: Path, source: str, lines: Mapping[Path_, int]) -> dict[str, Any]:
    """What was said, the path of a calibration replaced by what stands there, and its constants in the mechanism."""
    named, mechanism = said.get("calibration"), said.get("mechanism")
    if named is None or not isinstance(mechanism, dict):
        return said
    if not isinstance(named, dict) or set(named) != {"path"} or not isinstance(path := named["path"], str):
        place, allowed = _place(("calibration",), lines), "{path: …}, a file that `dpdist calibrate` wrote"
        raise JobError(source, [Problem("calibration", "no path, or more than a path", allowed, "name the file", 1, place)])
    found = load_calibration(folder / path)
    weights = mechanism.get("weights")
    own = [name for name in mechanism if name not in ("name", "weights", "fallback")]
    own += [f"weights.{name}" for name in (weights if isinstance(weights, dict) else {}) if name != "rule"]
    if own:
        place, allowed = _place(("mechanism",), lines), "name, weight rule and fallback; constants are the calibration's"
        problem = Problem(
            "mechanism", f"it states {', '.join(own)} beside a calibration", allowed, "leave it out", 1, place
        )
        raise JobError(source, [problem])
    rule = weights.get("rule") if isinstance(weights, dict) else weights
    tuned = found.mechanism.model_dump(mode="json")
    same = mechanism.get("name") == found.mechanism.name and rule in (None, found.mechanism.weights.rule)
    kept = {"fallback": mechanism["fallback"]} if "fallback" in mechanism else {}
    return said | {"calibration": found.model_dump(mode="json"), "mechanism": tuned | kept if same else mechanism}


def load_calibration(path: Path) -> Calibration:
    """A file that `dpdist calibrate` wrote. Raises `JobError`."""
    text, otherwise = (
        read_yaml(path, JobError),
        Problem("file", "no calibration", "a file of `dpdist calibrate`", "name one"),
    )
    said, lines = mapping(text, str(path), JobError, otherwise)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return validated(Calibration, said | {"sha256": digest}, str(path), lines, JobError)


def calibration_text(calibration: Calibration) -> str:
    """A calibration as YAML."""
    said = calibration.model_dump(mode="json", exclude={"sha256"})
    head = (
        "# Tuned on a reference period by `dpdist calibrate`; later jobs name it under calibration: {path: …}, unchanged.\n"
    )
    return head + yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=120)


def _not_yaml(found: str, remedy: str, line: int) -> Problem:
    return Problem("YAML", found, "valid YAML", remedy, 1, (f"line {line}",))


def _within_itself(node: yaml.Node, above: tuple[int, ...]) -> int | None:
    """The line of a node that an alias below it names again."""
    if id(node) in above:
        return int(node.start_mark.line) + 1
    inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    if isinstance(node, yaml.CollectionNode):
        for part in inner:
            if (line := _within_itself(part, (*above, id(node)))) is not None:
                return line
    return None


def _causes(errors: Sequence[ErrorDetails], schema: type[BaseModel]) -> list[ErrorDetails]:
    """Errors without their consequences: a typing error makes its key missing and the list around it too short."""
    misspelt = set[Path_]()
    for error in errors:
        if error["type"] == "extra_forbidden" and (near := _nearest(error["loc"], schema)):
            misspelt.add((*error["loc"][:-1], near))
    return [
        error
        for error in errors
        if not (error["type"] == "missing" and tuple(error["loc"]) in misspelt)
        and not (error["type"] == "too_short" and any(_under(other["loc"], error["loc"]) for other in errors))
    ]


def _under(path: Path_, above: Path_) -> bool:
    return len(path) > len(above) and path[: len(above)] == above


def _nearest(path: Path_, schema: type[BaseModel]) -> str | None:
    near = get_close_matches(str(path[-1]), sorted(_known_keys(path[:-1], schema)), n=1, cutoff=0.5)
    return near[0] if near else None


def _lines(node: yaml.Node, path: Path_) -> Iterator[tuple[Path_, int]]:
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            for inner, line in _lines(value, (*path, key.value)):
                yield inner, key.start_mark.line + 1 if inner == (*path, key.value) else line
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield from _lines(value, (*path, i))


def _duplicates(node: yaml.Node, path: Path_) -> Iterator[tuple[Path_, int]]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            here = (*path, key.value)
            if key.value in seen:
                yield here, key.start_mark.line + 1
            seen.add(key.value)
            yield from _duplicates(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield from _duplicates(value, (*path, i))


def _text(path: Path_) -> str:
    return ".".join(str(part) for part in path) or "job"


def _place(path: Path_, lines: Mapping[Path_, int]) -> tuple[str, ...]:
    while path and path not in lines:
        path = path[:-1]
    return (f"line {lines[path]}",) if path in lines else ()


def _problem(error: ErrorDetails, lines: Mapping[Path_, int], schema: type[BaseModel]) -> Problem:
    path = tuple(error["loc"])
    place = _place(path, lines)
    if error["type"] == "extra_forbidden":
        near_key = _nearest(path, schema)
        remedy = f"did you mean '{near_key}'?" if near_key else "delete the key"
        return Problem(_text(path), "unknown key", ", ".join(sorted(_known_keys(path[:-1], schema))), remedy, 1, place)
    if error["type"] == "missing":
        return Problem(_text(path), "missing key", "it must be given", f"add '{path[-1]}'", 1, place)
    message = error["msg"].removeprefix("Value error, ")
    expected = error.get("ctx", {}).get("expected")
    if expected and isinstance(error["input"], str):
        options = [option.strip("' ") for option in str(expected).replace(" or ", ", ").split(", ")]
        near = get_close_matches(error["input"], options, n=1, cutoff=0.4)
        remedy = f"did you mean '{near[0]}'?" if near else "use one of these"
        return Problem(_text(path), f"'{error['input']}' is not known", str(expected), remedy, 1, place)
    if error["type"] == "none_required":
        return Problem(
            _text(path), "not supported by the model and mechanism of this job", "null", "leave it out", 1, place
        )
    return Problem(
        _text(path), f"{error['input']!r:.80}" if path else "inconsistent", message, "correct the value", 1, place
    )


def _contradiction(path: Path_, message: str, lines: Mapping[Path_, int]) -> Problem:
    found, _, remedy = message.partition(": ")
    return Problem(
        _text(path), found, "keys that agree with each other", remedy or "correct one of them", 1, _place(path, lines)
    )


def _known_keys(path: Path_, schema: type[BaseModel]) -> set[str]:
    """Names of the fields at a path of a schema, found by walking its annotations."""
    annotation: Any = schema
    for part in path:
        said = _plain(annotation)
        if _is_model(said):
            annotation = said.model_fields[str(part)].annotation if part in said.model_fields else None
        else:
            annotation = next((argument for argument in reversed(get_args(said)) if argument is not Ellipsis), None)
    model = _plain(annotation)
    return set(model.model_fields) if _is_model(model) else set()


def _plain(annotation: Any) -> Any:
    """An annotation without its metadata and without `| None`."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = get_args(annotation)[0]
    return annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)

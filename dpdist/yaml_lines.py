"""YAML with the line of everything that it says; a key given twice, or a value that contains itself, is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dpdist.errors import Problem, ProblemsError

Where = tuple[str | int, ...]
"""Keys and positions that lead to a value."""
Lines = Mapping[Where, int]


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a date is the text that was written."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(path: Path, error: type[ProblemsError]) -> str:
    """The text of a file; raises `error` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        found = f"cannot be read ({type(cause).__name__})"
        raise error(str(path), [Problem("file", found, "a UTF-8 YAML file", "check the path")]) from None


def mapping(text: str, source: str, refusal: type[ProblemsError], otherwise: Problem) -> tuple[dict[str, Any], Lines]:
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
        Problem(dotted(p), "given twice", "each key once", "delete one", 1, (f"line {n}",))
        for p, n in _duplicates(node, ())
    ]
    if twice:
        raise refusal(source, twice)
    return said, lines


def written(said: Mapping[str, Any]) -> str:
    """As YAML, in the order given."""
    return yaml.safe_dump(said, sort_keys=False, allow_unicode=True, width=120)


def dotted(where: Where) -> str:
    """As it is told of: of the whole file, the job."""
    return ".".join(str(part) for part in where) or "job"


def place(where: Where, lines: Lines) -> tuple[str, ...]:
    """The line of a value, or of the nearest one above it."""
    while where and where not in lines:
        where = where[:-1]
    return (f"line {lines[where]}",) if where in lines else ()


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


def _lines(node: yaml.Node, where: Where) -> Iterator[tuple[Where, int]]:
    yield where, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            for inner, line in _lines(value, (*where, key.value)):
                yield inner, key.start_mark.line + 1 if inner == (*where, key.value) else line
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield from _lines(value, (*where, i))


def _duplicates(node: yaml.Node, where: Where) -> Iterator[tuple[Where, int]]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            here = (*where, key.value)
            if key.value in seen:
                yield here, key.start_mark.line + 1
            seen.add(key.value)
            yield from _duplicates(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield from _duplicates(value, (*where, i))

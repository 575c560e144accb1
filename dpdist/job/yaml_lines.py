"""YAML with the line number of every key, for messages.

A plain scalar is null, true, false, a decimal number or text, as in the core schema of YAML 1.2. So 010, 0x10, 1_0, 1:30,
`no` and dates are text. The reader refuses keys given twice, values that contain themselves, control characters, and text
that takes long to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dpdist.core.errors import Problem, ProblemsError, escape

Keys = dict[str, Any]
"""A mapping as a YAML file has it, before validation."""
Where = tuple[str | int, ...]
"""The keys, and positions in lists, that lead to a value."""
Lines = Mapping[Where, str]
"""The origin of every value: `line 3`, or another place."""
DEEPEST = 50
"""Largest depth to which lists and mappings may be nested."""
MOST_TEXT = 8 * 2**20
"""Characters of a job file. For eight times as many, the parser takes a minute and 2 GB before values can be counted."""
MOST_VALUES = 50_000
"""Largest number of values in a file with aliases, whose values count at each use. Without aliases, a file's length limits
them: 100,000 strata have as many levels.
"""


class _TooDeepError(yaml.MarkedYAMLError):
    """Raised where lists and mappings are nested too deep."""

    def __init__(self, mark: Any) -> None:
        super().__init__(problem=f"more than {DEEPEST} lists and mappings within each other", problem_mark=mark)


class _UnreadableError(yaml.MarkedYAMLError):
    """Raised for a value that is not of its tag's type, or that Python does not read."""

    def __init__(self, mark: Any) -> None:
        super().__init__(problem="a value that cannot be read", problem_mark=mark)


class _Loader(yaml.SafeLoader):
    """Reads YAML's safe types, with limited nesting. Plain scalars are typed by `_PLAIN`."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            raise _TooDeepError(self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def fetch_flow_collection_start(self, token: Any) -> None:
        """Limits the depth of [ and {, because the scanner's time grows with its square."""
        if self.flow_level > DEEPEST:
            raise _TooDeepError(self.get_mark())
        super().fetch_flow_collection_start(token)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, IndexError):  # for `!!bool 7`, and for thousands of digits, which Python refuses
            raise _UnreadableError(node.start_mark) from None

    def decimal(self, node: yaml.ScalarNode) -> int:
        """The whole number that a plain scalar, or one with the tag !!int, stands for: 010 is 10, and 0o10 is 8."""
        text = self.construct_scalar(node)
        return int(text) if text.lstrip("+-").isdecimal() else int(text, 0)


_TAG = "tag:yaml.org,2002:"
_PLAIN = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"0|-?[1-9][0-9]*", "-0123456789"),
    (
        "float",
        r"[-+]?([0-9]+\.[0-9]*([eE][-+][0-9]+)?|\.[0-9]+([eE][-+][0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
)
"""Types of plain scalars, patterns and first characters. What matches none is text. A whole number prints as it stands.

Every pattern is within YAML 1.1's. So text that is written for readers of YAML 1.1 is read here as it was meant.
"""
_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(
        f"{_TAG}{_name}", re.compile(rf"(?:{_pattern})\Z"), ["" if c == "\0" else c for c in _first]
    )
_Loader.add_constructor(f"{_TAG}int", _Loader.decimal)


def read_yaml(path: Path, error: type[ProblemsError]) -> str:
    """The text of a file. Raises `error` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        fault = f"cannot be read ({type(cause).__name__})"
        raise error.of(str(path), "file", fault, "a UTF-8 YAML file", "check the path") from None


def mapping(text: str, source: str, refusal: type[ProblemsError], otherwise: Problem) -> tuple[Keys, Lines]:
    """The mapping in YAML text, and the line of every path in it.

    `otherwise` is the problem to report if the text is not a mapping.
    """
    content, node = _load(text, source, refusal)
    if not isinstance(content, dict) or node is None:
        raise refusal(source, [otherwise])
    return content, {where: f"line {line}" for where, line in _lines(node, ())}


def value(text: str, source: str, refusal: type[ProblemsError]) -> Any:
    """The value in YAML text, of any type; None for empty text."""
    return _load(text, source, refusal)[0]


def _load(text: str, source: str, refusal: type[ProblemsError]) -> tuple[Any, yaml.Node | None]:
    """The value of YAML text, and its nodes. Raises `refusal` for text that is too long, is no YAML, or has a key twice."""
    if len(text) > MOST_TEXT:
        fault, allowed = f"a text of {len(text):,} characters", f"at most {MOST_TEXT:,}"
        raise refusal.of(
            source, "YAML", fault, allowed, "give the path of the job file; data are named under its key `input`"
        )
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None and (problem := _unreadable(node)) is not None:
            raise refusal(source, [problem])
        merges = node is None or "<<" in text  # Merging changes the nodes, whose lines are wanted as written.
        content = yaml.load(text, Loader=_Loader) if merges else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        remedies = {_TooDeepError: "write them one below the other", _UnreadableError: "write it in quotes"}
        remedy = remedies.get(type(error), "check indentation and quotes")
        fault = error.problem or "not YAML"
        if "\t" in _indentation(text, line):
            fault, remedy = "a tab at the beginning of the line", "indent by spaces: YAML takes no tabs there"
        raise refusal(source, [_not_yaml(fault, remedy, line)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        fault = f"a character that YAML does not allow, #x{int(error.character):02x}"
        raise refusal(source, [_not_yaml(fault, "delete it", line)]) from None
    twice = [
        Problem(dotted(p), "given twice", "each key once", "delete one", 1, (f"line {n}",))
        for p, n in (_duplicates(node, ()) if isinstance(content, dict) and node is not None else ())
    ]
    if twice:
        raise refusal(source, twice)
    return content, node


def keys_of(value: object) -> Keys:
    """The keys of a section before validation; none if it is not a mapping."""
    return value if isinstance(value, dict) else {}


def as_yaml(keys: Mapping[str, Any]) -> str:
    """A mapping as YAML text, in its order."""
    return yaml.safe_dump(keys, sort_keys=False, allow_unicode=True, width=120)


def documents(text: str) -> list[Any]:
    """The documents in a manifest shipped with dpdist, without empty ones. Kubernetes reads YAML 1.1."""
    return [document for document in yaml.safe_load_all(text) if document]


def written_documents(several: Iterable[Any]) -> str:
    """Several documents as YAML text, one after the other."""
    return yaml.safe_dump_all(several, sort_keys=False, allow_unicode=True, width=120)


def flow(value: Any) -> str:
    """A value as YAML on one line, quoted if it would otherwise be read as another value."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9)
    text = text.removesuffix("\n").removesuffix("\n...")
    return json.dumps(value, ensure_ascii=True) if "\n" in text else text


def dotted(where: Where) -> str:
    """A path as text on one line. The path of the whole file is `job`."""
    return ".".join(str(part).replace("\n", "\\n") for part in where) or "job"


def place(where: Where, lines: Lines) -> tuple[str, ...]:
    """The line of a value, or of the nearest value above it in the path."""
    while where and where not in lines:
        where = where[:-1]
    return (lines[where],) if where in lines else ()


def _indentation(text: str, line: int) -> str:
    lines = text.splitlines()
    return lines[line - 1][: -len(lines[line - 1].lstrip()) or None] if line <= len(lines) else ""


def _not_yaml(what: str, remedy: str, line: int) -> Problem:
    return Problem("YAML", what, "valid YAML", remedy, 1, (f"line {line}",))


def _unreadable(node: yaml.Node) -> Problem | None:
    size: dict[int, int] = {}
    problems: list[Problem] = []

    def visit(node: yaml.Node) -> int:
        """Counts the values under a node. Each node is visited once."""
        line = int(node.start_mark.line) + 1
        if id(node) not in size:
            size[id(node)] = -1
            if isinstance(node, yaml.ScalarNode) and escape(node.value) != node.value:
                fault = f"a control character in '{escape(node.value):.80}'"
                problems.append(_not_yaml(fault, "delete it", line))
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            inner = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in pairs for part in pair]
            size[id(node)] = 1 + sum(map(visit, inner))
        elif size[id(node)] < 0:
            problems.append(_not_yaml("a value that contains itself", "put the anchor elsewhere", line))
        return size[id(node)]

    if visit(node) > max(MOST_VALUES, len(size)):
        problems.append(_not_yaml(f"more than {MOST_VALUES:,} values, with those of aliases", "use fewer aliases", 1))
    return problems[0] if problems else None


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

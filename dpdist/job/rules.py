"""Contradictions between keys of a job, and rules for them as data: a line of a `rules.txt` for each.

The table of all jobs is beside this file, that of a mechanism beside its `spec.py`.

A line states a key, the condition under which it is refused, the fault, the remedy, and what is allowed if this is a list:

    rake | rake and not survey.weight | without a weight column there are no weights to rake | leave rake out

- A condition has alternatives (`or`) of terms that all hold (`and`). A term is a fact, `not` a fact, or a comparison.
- A fact is an attribute of the job (`survey.weight`), and true unless it is empty, zero or unset. `number` is a length.
- Facts are compared with numbers, words, `true`, `false`, `null`, or other facts after a point (`.period`). `a, b in facts`
  is true if one of the words is in the list or text.
- A rule whose condition begins with `else` is skipped if the one before was broken or skipped.
- `[group: condition]` begins a group, whose rules apply only under its condition, if it has one.
- Texts and keys may have facts in braces. The caller of a group gives those that are no attribute of the job,
  or functions that compute them where they are used.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import suppress
from functools import cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

from dpdist.core.errors import Problem
from dpdist.job.yaml_lines import Lines, Where, dotted, place


class Contradiction(NamedTuple):
    """Keys of a job that contradict each other: the path of the key to change, what is wrong, and the remedy."""

    where: Where
    fault: str
    remedy: str
    allowed: str = ""
    """The values that are allowed; empty if the remedy names them."""

    def problem(self, lines: Lines) -> Problem:
        return Problem(dotted(self.where), self.fault, self.allowed, self.remedy, 1, place(self.where, lines))


def listed(values: Sequence[object], most: int = 8) -> str:
    """The first values of a public list as text."""
    return ", ".join(map(str, values[:most])) + (", …" if len(values) > most else "")


class ContradictionRule(NamedTuple):
    """A line of the table."""

    key: str
    condition: str
    fault: str
    remedy: str
    allowed: str = ""


class RuleGroup(NamedTuple):
    condition: str
    rules: list[ContradictionRule]


TABLE = Path(__file__).with_name("rules.txt")
FACT = re.compile(r"\{([a-z_]+(?:\.[a-z_]+)*)\}")
COMPARISON = re.compile(r"(.+?) (=|!=|<|<=|>|>=|in) (.+)")
SIGNS: dict[str, Callable[[object, object], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    **{"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},  # type: ignore[dict-item]
}
Facts = Callable[[str], object]


@cache
def groups(file: Path = TABLE) -> dict[str, RuleGroup]:
    """The rules of a table by group."""
    table = dict[str, RuleGroup]()
    for line in filter(None, file.read_text(encoding="utf-8").splitlines()):
        if line.startswith("["):
            name, _, condition = line[1:-1].partition(": ")
            group = table[name] = RuleGroup(condition, [])
        else:
            group.rules.append(ContradictionRule(*line.split(" | ")))
    return table


def broken(group: str, job: object, table: Path = TABLE, /, **given: object) -> Iterator[Contradiction]:
    """The rules of a group that a job breaks, in order."""
    condition, rules = groups(table)[group]
    if condition and not holds(condition, _facts(job, given)):
        return
    facts, is_broken = _facts(job, given), False
    for key, condition, *texts in rules:
        alone = condition.removeprefix("else ")
        if is_broken and alone != condition:
            continue
        if is_broken := holds(alone, facts):
            yield Contradiction(tuple(_where(key, facts)), *(_filled(text, facts) for text in texts))


def holds(condition: str, facts: Facts) -> bool:
    return any(all(_true(*term, facts) != no for no, term in terms) for terms in _alternatives(condition))


@cache
def _alternatives(condition: str) -> list[list[tuple[bool, tuple[str, str, str]]]]:
    """The terms of every alternative: whether `not` begins it, then a fact, or a comparison's sides and sign."""

    def parsed(term: str) -> tuple[bool, tuple[str, str, str]]:
        bare = term.removeprefix("not ")
        comparison = COMPARISON.fullmatch(bare)
        return bare != term, (bare, "", "") if comparison is None else (comparison[1], comparison[2], comparison[3])

    return [[parsed(term) for term in terms.split(" and ")] for terms in condition.split(" or ")]


def _true(left: str, sign: str, right: str, facts: Facts) -> bool:
    if not sign:
        return bool(facts(left))
    if sign == "in":
        words = [facts(word[1:]) if word.startswith(".") else word for word in left.split(", ")]
        members = facts(right) or ()
        return any(word in members for word in words)  # type: ignore[operator]
    value, other = facts(left), facts(right[1:]) if right.startswith(".") else _literal(right)
    return SIGNS[sign](value, other) if sign in ("=", "!=") or None not in (value, other) else False


def _literal(text: str) -> object:
    with suppress(json.JSONDecodeError):
        return json.loads(text)
    return text


def _facts(job: object, given: dict[str, object]) -> Facts:
    """Facts by name: the given ones, and attributes of the job."""

    def attribute(of: object, name: str) -> object:
        if name == "number" and isinstance(of, Sized):
            return len(of)
        return None if of is None else getattr(of, name)

    def fact(name: str) -> object:
        first, *others = name.split(".")
        start = given[first] if first in given else attribute(job, first)
        return reduce(attribute, others, start() if callable(start) else start)

    return fact


def _where(key: str, facts: Facts) -> Iterator[str | int]:
    """The parts of a key. A fact is a name, a number in a list, or several of these."""
    for part in re.findall(r"\{[^}]+\}|[^.]+", key):
        value: Any = facts(part[1:-1]) if part.startswith("{") else part
        yield from value if isinstance(value, tuple) else [value]


def _filled(text: str, facts: Facts) -> str:
    """The text with its facts: numbers without trailing zeros, and the first values of a list."""

    def shown(match: re.Match[str]) -> str:
        value = facts(match[1])
        if isinstance(value, tuple | list):
            return listed(value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    return FACT.sub(shown, text)

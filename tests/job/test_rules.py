"""The table of rules: its lines are whole, its facts exist, and its conditions mean what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from dpdist.job import SPECS, Job, MechanismSpec
from dpdist.job.families import Runtime
from dpdist.job.rules import COMPARISON, FACT, TABLE, broken, groups, holds
from dpdist.mechanisms.tables.spec import Tables

pytestmark = pytest.mark.quick

MECHANISMS = Path("dpdist/mechanisms")
SOURCE = "".join(
    path.read_text(encoding="utf-8") for path in [*Path("dpdist/job").rglob("*.py"), *MECHANISMS.glob("*/spec.py")]
)
TABLES = [TABLE, *(path.resolve() for path in MECHANISMS.glob("*/rules.txt"))]


def facts_of(condition: str) -> Iterator[str]:
    for term in filter(None, re.split(r" (?:and|or) ", condition.removeprefix("else "))):
        comparison = COMPARISON.fullmatch(term.removeprefix("not "))
        left, sign, right = (term.removeprefix("not "), "", "") if comparison is None else comparison.groups()
        if sign != "in":
            yield left
        yield from [right] if sign == "in" else [right[1:]] if right.startswith(".") else []
        yield from (word[1:] for word in left.split(", ") if sign == "in" and word.startswith("."))


RULES = [(table, name, rule) for table in TABLES for name, group in groups(table).items() for rule in group.rules]
NAMED = sorted(
    {
        (table, name, fact)
        for table, name, rule in RULES
        for fact in [*facts_of(rule.condition), *facts_of(groups(table)[name].condition), *FACT.findall(" ".join(rule))]
    }
)


def kinds(annotation: Any) -> list[Any]:
    """The classes of an annotation: the members of a union, without what annotates them; `object` for any other form."""
    if hasattr(annotation, "__metadata__"):
        return kinds(annotation.__origin__)
    if get_origin(annotation) in (Union, UnionType):
        return [kind for member in get_args(annotation) for kind in kinds(member)]
    return [annotation if isinstance(annotation, type) else object]


def attribute(of: list[Any], name: str, table: Path = TABLE) -> list[Any]:
    found: list[Any] = []
    own = [spec for spec in SPECS.values() if spec.package.rpartition(".")[2] == table.parent.name]
    for kind in [spec for each in of for spec in ((own or [Tables]) if each is MechanismSpec else [each])]:
        if name in getattr(kind, "model_fields", {}):
            found += kinds(kind.model_fields[name].annotation)
        elif name in getattr(kind, "_fields", {}) or name in getattr(kind, "__annotations__", {}):
            found += kinds(get_type_hints(kind, include_extras=True)[name])
        elif isinstance(value := getattr(kind, name, None), property):
            found += kinds(get_type_hints(value.fget).get("return", object))
        elif hasattr(kind, name):
            found.append(object)
    return found


def unknown(group: str, fact: str, table: Path = TABLE) -> str:
    """What is wrong with a fact: its first name is no attribute of the job and not given, or a later one is none."""
    first, *others = fact.split(".")
    of: list[Any] = [Runtime if group == "scheduler" else Job]
    if not attribute(of, first):
        return "" if re.search(rf'\b{first}=|"{first}":', SOURCE) else f"nobody gives {first}"
    for name in [first, *others]:
        if name != "number" and object not in of and not (of := attribute(of, name, table)):
            return f"{fact}: no {name}"
    return ""


def test_every_fact_is_an_attribute_of_the_job_or_is_given() -> None:
    assert [wrong for table, group, fact in NAMED if (wrong := unknown(group, fact, table))] == []
    assert unknown("rake", "survey.wieght") == "survey.wieght: no wieght"
    assert unknown("rake", "rakes") == "nobody gives rakes"


def test_every_rule_has_a_fault_and_a_remedy_in_one_line() -> None:
    assert [rule for *_, rule in RULES if not all(rule[:4]) or not re.fullmatch(r"[a-z_.{}]+", rule.key)] == []


def test_every_group_is_asked() -> None:
    assert [name for _, name, _ in RULES if f'broken("{name}"' not in SOURCE] == []


JOB = SimpleNamespace(
    rake=(1, 2), period="2017", survey=SimpleNamespace(weight=None), earlier="2017", epsilon=0, text="a #b"
)


@pytest.mark.parametrize(
    ("condition", "broken"),
    [
        ("rake", True),
        ("not rake", False),
        ("rake and survey.weight", False),
        ("rake and survey.weight or period = 2017 and not survey.weight", False),  # the period is a text
        ("rake.number = 2", True),
        ("rake.number > 2", False),
        ("period = .earlier", True),
        ("period != .earlier", False),
        ("survey.weight = null", True),
        ("survey.weight.bounds", False),
        ("survey.weight > 1", False),
        ("epsilon <= 0", True),
        ("#b, #c in text", True),
        ("#c in survey.weight", False),
        (".epsilon in rake", False),
        (".rake.number in rake", True),
    ],
)
def test_a_condition_holds(condition: str, broken: bool) -> None:
    def fact(name: str) -> object:
        of: Any = JOB
        for part in name.split("."):
            of = None if of is None else len(of) if part == "number" else getattr(of, part)
        return of

    assert holds(condition, fact) == broken


def test_a_rule_after_else_waits_for_the_one_before() -> None:
    job = SimpleNamespace(microdata=SimpleNamespace(columns=("a",)), mechanism=SimpleNamespace(name="m", sets="drawn"))
    (first,) = broken("copied", SimpleNamespace(**vars(job), reference=object(), carries=True), able="tables", existing="")
    assert first.fault == "'m' does not copy further columns of a reference into synthetic records"
    assert first.remedy == "use mechanism: {name: tables}, or leave microdata out"


def test_an_unknown_fact_is_an_error() -> None:
    with pytest.raises(AttributeError):
        list(broken("rake", SimpleNamespace()))

"""Counts replaced words in names, texts and docstrings, by the glossary; the counts may only fall.

`python tests/docs/test_words.py` writes the counts anew, after a name was replaced.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpdist

COUNTS = Path(__file__).with_name("replaced_words.json")
PACKAGE = Path(dpdist.__file__).parent
REPLACED = {
    "carried": "earlier release, release chain",
    "referred": "reference-based",
    "refers": "has a reference",
    "refreshed": "update",
    "reach": "clipping interval, half-width",
    "window": "clipping interval, half-width",
    "unclip": "clipping inversion",
    "unclipped": "clipping inverted; as it came",
    "lending": "small-area borrowing",
    "lent": "borrowed",
    "united": "collapsed",
    "merged": "collapsed",
    "standing": "effective sample size",
    "falling": "nonlinear empirical-Bayes shrinkage",
    "fell": "nonlinear empirical-Bayes shrinkage",
    "agreeing": "calibration, raking to released margins; consistent",
    "places": "normal scores, probability integral transform",
    "levelled": "bias correction",
    "undone": "bias correction, inversion",
    "orders": "quantile levels",
    "relocated": "optimal-transport map",
    "told": "summary of the reference, or the noun that is meant",
    "found": "the noun that is meant",
    "said": "given, or the noun that is meant",
    "own": "the noun that is meant",
    "frozen": "weights fixed on the reference",
    "settled": "weights fixed on the reference; completed",
    "foreseen": "weights fixed on the reference",
    "span": "partition, batch of strata",
    "marks": "completion record",
    "settle": "put if absent",
}
"""What the glossary says in place of each."""
IN_TEXTS = frozenset(
    ["lending", "lent", "united", "falling", "fell", "agreeing", "unclipped", "relocated", "foreseen", "levelled", "undone"]
)
"""Those that mean nothing else in a sentence; text is what stands in quotes and has a blank, docstrings apart."""
IN_DOCSTRINGS = {"told": "summary of the reference, or given, stated, identified", "tells": "states, shows, identifies"}
"""Words that docstrings replace, and what they have in place of each."""
SUBJECT = "Of (docstring)"
"""The count of docstrings without a subject: they begin with `Of`, as in "Of the noise, in units"."""
Found = dict[str, dict[str, int]]
_OF_PERIODS = "a window of periods, over which a ledger's limit holds"
_OF_A_CHARGE = "a charge is reserved, then settled"
MEANT = {
    ("cli/ledger.py", "window"): _OF_PERIODS,
    ("job/budget.py", "window"): _OF_PERIODS,
    ("ledger/accounts.py", "window"): _OF_PERIODS,
    ("ledger/book.py", "settle"): _OF_A_CHARGE,
    ("ledger/charging.py", "settle"): _OF_A_CHARGE,
    ("ledger/runs.py", "settle"): _OF_A_CHARGE,
    ("job/values.py", "frozen"): "pydantic's word for a model that does not change",
}
"""Files where a word is meant, as the field or the library has it, and why."""


NO_NAMES = frozenset(["said", "found", "told", "own", "each", "known", "asked", "like", "apart", "among", "at", "itself"])
"""Names that say nothing of what they hold: of variables, parameters, fields, functions and import aliases."""
WRITTEN = {"job/tables.py: at"}
"""Fields of the job file."""


def words(name: str) -> list[str]:
    """Of an identifier, in lower case: at underscores and capitals."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)]


def defined(tree: ast.Module) -> Iterator[str]:
    """Names of functions, of classes and of functions' parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        if isinstance(node, ast.FunctionDef):
            yield from (each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))


def bound(tree: ast.Module) -> Iterator[str]:
    """Every name that a module binds: in comprehensions and lambdas, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def texts(tree: ast.Module) -> Iterator[str]:
    """Strings with a blank that are no docstring."""
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and " " in node.value
            and id(node) not in documented
        ):
            yield node.value


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value.strip()


def remedy(word: str) -> str:
    """What to write in place of a counted word."""
    if word == SUBJECT:
        return "a subject first, as in The scale of the noise"
    plain, _, where = word.partition(" (")
    return IN_DOCSTRINGS[plain] if where.startswith("docstring") else REPLACED[plain]


def counted(module: str, source: str) -> dict[str, int]:
    """Counts replaced words in a module's name, its other names, its texts and its docstrings."""
    tree = ast.parse(source)
    names = Counter(word for name in (module, *defined(tree)) for word in words(name) if word in REPLACED)
    prose = Counter(word for text in texts(tree) for word in re.findall(r"[a-z]+", text.lower()) if word in IN_TEXTS)
    written = list(docstrings(tree))
    documented = Counter(word for text in written for word in re.findall(r"[a-z]+", text) if word in IN_DOCSTRINGS)
    found = {**names, **{f"{word} (text)": number for word, number in prose.items()}}
    found |= {f"{word} (docstring)": number for word, number in documented.items()}
    found |= {SUBJECT: number} if (number := sum(text.startswith("Of ") for text in written)) else {}
    return dict(sorted(found.items()))


def package() -> Found:
    paths = sorted(PACKAGE.rglob("*.py"))
    found = {path.relative_to(PACKAGE).as_posix(): counted(path.stem, path.read_text("utf-8")) for path in paths}
    for name, word in MEANT:
        found[name].pop(word)  # one that has gone from its file is to go from the list too
    return {name: each for name, each in found.items() if each}


def changed(allowed: Found, there: Found) -> tuple[list[str], list[str]]:
    """What has grown, with the glossary's word; and what has shrunk."""
    grown, shrunk = [], []
    for name in sorted(allowed.keys() | there.keys()):
        before, now = allowed.get(name, {}), there.get(name, {})
        for word in sorted(before.keys() | now.keys()):
            line = f"{name}: {word}: {before.get(word, 0)} allowed, {now.get(word, 0)} there"
            if now.get(word, 0) > before.get(word, 0):
                grown.append(f"{line}; say: {remedy(word)}")
            elif now.get(word, 0) < before.get(word, 0):
                shrunk.append(line)
    return grown, shrunk


def test_every_name_says_what_it_holds() -> None:
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    assert {f"{file}: {name}" for file, tree in trees.items() for name in bound(tree) if name in NO_NAMES} == WRITTEN


@pytest.mark.parametrize(
    "text",
    [
        "said = 1",
        "self.own: int = 1",
        "def f(known): ...",
        "[each for each in x]",
        "lambda *told: told",
        "def among(): ...",
        "import numpy as at",
        "with x as found: ...",
        "(asked := 1)",
    ],
)
def test_a_name_that_says_nothing_is_seen(text: str) -> None:
    """Control."""
    assert set(bound(ast.parse(text))) & NO_NAMES


def test_replaced_words_do_not_come_back() -> None:
    grown, shrunk = changed(json.loads(COUNTS.read_text(encoding="utf-8")), package())
    assert not grown, "\n".join(grown)
    assert not shrunk, "\n".join(["fewer than allowed; write the counts anew: python tests/docs/test_words.py", *shrunk])


def test_a_name_or_a_text_with_a_replaced_word_is_counted() -> None:
    """Names of a module, a class, a function, a parameter, a text, a docstring; no part of another word."""
    method = 'def own_sum(self, told, unfounded): return "cells lent to others"'
    source = f'class UnclipCell:\n    """What was told."""\n    {method}\n'
    once = ("lending", "lent (text)", "own", "told", "told (docstring)", "unclip")
    assert counted("lending", source) == dict.fromkeys(once, 1)
    assert counted("cells", '"""Found, untold."""\ndef clipped(x): return x\n') == {}


def test_a_docstring_without_a_subject_is_counted() -> None:
    """Also one of an attribute; `Of` within a docstring is no fragment."""
    assert counted("cells", 'scale = 1\n"""Of the noise, in units."""\n') == {SUBJECT: 1}
    assert counted("cells", 'scale = 1\n"""The scale of the noise. Of two, the larger."""\n') == {}


def test_counts_may_neither_grow_nor_stay_where_a_word_went() -> None:
    allowed = {"a.py": {"told": 2}}
    assert changed(allowed, allowed) == ([], [])
    grown, _ = changed(allowed, {"a.py": {"told": 3}, "b.py": {"unclip": 1}})
    assert [line.split("; say: ")[1] for line in grown] == [REPLACED["told"], REPLACED["unclip"]]
    assert changed(allowed, {"a.py": {"told": 1}})[1] == ["a.py: told: 2 allowed, 1 there"]
    assert changed(allowed, {})[1] == ["a.py: told: 2 allowed, 0 there"]


if __name__ == "__main__":
    COUNTS.write_text(json.dumps(package(), indent=1) + "\n", encoding="utf-8")
    sys.exit(0)

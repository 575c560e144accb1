"""Merges a job's layers: the file that it extends, the file itself, and keys set on the command line.

Mappings are merged key by key. Any other value replaces the earlier one; null removes it. The origin of every value is
kept: a line, a base file and its line, or `--set`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpdist.core.errors import JobError, Problem
from dpdist.job.values import MINISIGN
from dpdist.job.yaml_lines import Lines, Where, dotted, mapping, place, value

NOT_A_MAPPING = Problem("job", "not a mapping of keys", "dataset:, columns:, …", "see README for a job file")
MOST_BASES = 5
SET = "--set"
READ_LATER: tuple[Where, ...] = (("input", "path"), ("reference", "path"), ("reference", "release"))
"""Keys that name files to be opened when the job is planned or run."""
READ_NOW: tuple[Where, ...] = (("calibration", "path"), ("model", "program"), ("reference", "key"))
"""Keys that name files, in the job file's folder, to be read with the job. A key may stand there itself."""
NO_PATH = re.compile(rf"://|{MINISIGN}")
MARK = re.compile(r"#\s*TODO (fill|confirm):(.*)")
TO_DO = {
    "fill": ("to be filled", "write it, and delete the mark"),
    "confirm": ("to be confirmed", "compare it with a public source, correct it, and delete the mark"),
}
Said = dict[str, Any]


@dataclass(frozen=True)
class Layers:
    """A job's keys and their origins. `base` is the extended file, by its name in the job, with its content."""

    said: Said
    lines: Lines
    base: tuple[str, Said] | None = None
    to_do: tuple[Problem, ...] = ()
    """Lines that `dpdist init` left to be filled or confirmed."""

    @property
    def differs(self) -> tuple[str, ...]:
        """Dotted keys whose values differ from the base's; none without a base."""
        return tuple(map(dotted, differences(self.base[1], self.said, ()))) if self.base is not None else ()

    def located(self, folder: Path) -> Layers:
        """Makes paths of files that are opened later relative to the working folder instead of the job file's folder."""

        def move(keys: Said) -> Said:
            return _moved(keys, READ_LATER, lambda path: str(folder / path))

        base = (self.base[0], move(self.base[1])) if self.base is not None else None
        return replace(self, said=move(self.said), base=base) if folder != Path() else self

    def with_settings(self, settings: Sequence[str], source: str) -> Layers:
        """Applies settings `key.path=value`, whose values are YAML. Paths in them are relative to the working folder."""
        said, lines = self.said, dict(self.lines)
        for setting in settings:
            keys, new = _setting(setting, source)
            where = _where(said, keys)
            said = _with(said, where, new, 0, source)
            for known in [each for each in lines if each[: len(where)] == where]:
                del lines[known]
            lines |= {where[:k]: SET for k in range(1, len(where) + 1) if where[:k] not in lines}
        return replace(self, said=said, lines=lines)


def read_layers(text: str, source: str, folder: Path) -> Layers:
    """Merges a job's text with the files that it extends. Raises `JobError`."""
    return _read(text, source, folder, ())


def to_do(text: str) -> tuple[Problem, ...]:
    """Lists the lines that comments mark as still to be filled or confirmed. A job with such lines is refused."""
    return tuple(
        Problem("TODO", f"left {TO_DO[mark[1]][0]}: {mark[2].strip():.160}", "", TO_DO[mark[1]][1], 1, (f"line {number}",))
        for number, line in enumerate(text.splitlines(), 1)
        if (mark := MARK.search(line))
    )


def _read(text: str, source: str, folder: Path, above: tuple[Path, ...]) -> Layers:
    said, lines = mapping(text, source, JobError, NOT_A_MAPPING)
    if "extends" not in said:
        return Layers(said, lines, to_do=to_do(text))
    named, rest = said["extends"], {key: each for key, each in said.items() if key != "extends"}
    path, above = _base_file(named, folder, source, place(("extends",), lines), above)
    base = _read(_text_of(path, named, source, place(("extends",), lines)), str(path), path.parent, above)
    moved = base.said
    if (step := os.path.relpath(path.parent, folder)) != ".":
        moved = _moved(base.said, (*READ_LATER, *READ_NOW), lambda name: os.path.join(step, name))
    known = {where: at if not at.startswith("line") else f"{named}, {at}" for where, at in base.lines.items()}
    over = {where for where in lines if not isinstance(_at(said, where), dict)}
    kept = {where: at for where, at in known.items() if not any(where[:k] in over for k in range(len(where) + 1))}
    left = tuple(replace(each, places=(f"{named}, {each.places[0]}",)) for each in base.to_do)
    return Layers(_laid_over(moved, rest), kept | dict(lines), (named, moved), (*to_do(text), *left))


def _base_file(
    named: Any, folder: Path, source: str, at: tuple[str, ...], above: tuple[Path, ...]
) -> tuple[Path, tuple[Path, ...]]:
    """The file that is extended, and the chain of all files so far."""
    allowed = "the path of another job file, as in base.yaml"
    if not isinstance(named, str) or not named:
        raise JobError(source, [Problem("extends", "no path of one file", allowed, "name the file", 1, at)])
    path = folder / named
    chain = (*above, Path(os.path.abspath(source)), Path(os.path.abspath(path)))
    if len({each.resolve() for each in chain}) < len(chain):
        found = f"'{named}' extends this file, or is this file"
        raise JobError(source, [Problem("extends", found, allowed, "take one extends: of the circle out", 1, at)])
    if len(chain) > MOST_BASES + 1:
        found, allowed = f"more than {MOST_BASES} files extend each other", f"at most {MOST_BASES}"
        raise JobError(source, [Problem("extends", found, allowed, "write some of them as one file", 1, at)])
    return path, chain[:-1]


def _text_of(path: Path, named: str, source: str, at: tuple[str, ...]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        found = f"'{named}' cannot be read ({type(error).__name__})"
        raise JobError(source, [Problem("extends", found, "a UTF-8 YAML file", "correct the path", 1, at)]) from None


def _laid_over(base: Said, over: Said) -> Said:
    made = dict(base)
    for key, new in over.items():
        old = base.get(key)
        if new is None:
            made.pop(key, None)
        else:
            made[key] = _laid_over(old, new) if isinstance(old, dict) and isinstance(new, dict) else new
    return made


def differences(base: Said, over: Said, where: Where) -> Iterator[Where]:
    """Paths of keys whose values differ between two jobs, in the first job's order."""
    for key in dict.fromkeys([*base, *over]):
        old, new = base.get(key), over.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, (*where, key))
        elif key not in base or key not in over or old != new:
            yield (*where, key)


def _moved(job: Said, keys: Sequence[Where], move: Callable[[str], str]) -> Said:
    """The content with the paths under these keys changed. URLs and public keys are left alone."""
    for section, key in keys:
        part = job.get(str(section))
        if isinstance(part, dict) and isinstance(path := part.get(key), str) and not NO_PATH.search(path):
            job = job | {str(section): part | {key: move(path)}}
    return job


def _at(value: Any, where: Where) -> Any:
    """The value at a path, or None if there is none.

    `lines` names every key as text. So a key that YAML reads as a number or as true or false is not found either.
    """
    for part in where:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _setting(setting: str, source: str) -> tuple[Where, Any]:
    """Splits a setting into its keys and its value."""
    name, equals, text = setting.partition("=")
    keys: Where = tuple(name.strip().split("."))
    if not equals or "" in keys:
        found, allowed = f"'{setting:.80}' is no key with a value", "key.path=value, as in period=2015"
        raise JobError(source, [Problem(SET, found, allowed, "write the key, = and the value", 1)])
    if keys[0] == "extends":
        raise JobError(source, [Problem("extends", "it cannot be set", "other keys", "name the base in a file", 1, (SET,))])
    nested: Any = value(text, f"{source}, {SET} {name}", JobError)
    for key in reversed(keys):
        nested = {key: nested}
    nested = _moved(nested, READ_NOW, os.path.abspath)
    for key in keys:
        nested = nested[key]
    return keys, nested


def _where(value: Any, keys: Where) -> Where:
    """The keys as they occur in the content: for a list, a number is a position."""
    found: Where = ()
    for key in keys:
        part = _at(value, found)
        found = (*found, int(key)) if isinstance(part, list) and str(key).isdecimal() else (*found, key)
    return found


def _with(value: Any, where: Where, new: Any, depth: int, source: str) -> Any:
    """The content with a new value at these keys; for a list, at a position from 0.

    Missing mappings on the way are added.
    """
    if depth == len(where):
        return new
    key, here = where[depth], where[:depth]
    if isinstance(value, list):
        if not isinstance(key, int) or key >= len(value):
            found, allowed = f"the list has no '{key}'", f"a position, from 0 to {len(value) - 1}"
            raise JobError(source, [Problem(dotted(here), found, allowed, "set the whole list", 1, (SET,))])
        return [_with(each, where, new, depth + 1, source) if i == key else each for i, each in enumerate(value)]
    if value is not None and not isinstance(value, dict):
        found = f"a value that has no key '{key}' within it"
        raise JobError(source, [Problem(dotted(here), found, "a mapping of keys", f"set {dotted(here)} itself", 1, (SET,))])
    made = _with((value or {}).get(key), where, new, depth + 1, source)
    kept = {name: each for name, each in (value or {}).items() if name != key or made is not None}
    return kept | ({key: made} if made is not None else {})

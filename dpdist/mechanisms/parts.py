"""Loads the parts of a mechanism from its package: its protection, model, texts and list of noisy figures.

The specification names the package (`MechanismSpec.package`). This file itself imports no part. So publishing, which asks
for models and texts only, loads no code that sees a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Generic, TypeVar

from dpdist.job import SPECS

T = TypeVar("T")
REQUIRED = {
    "MECHANISMS": ("query", "what sees its records, by the names that a job may state"),
    "model_of": ("post", "a function of the job that returns the class of the model"),
    "WORDS": ("post", "the texts of its statement"),
}
"""The names that every mechanism's package must define, each with its module and what it is."""
MEASURED = {
    "figures": ("post", "a function that lists the noisy figures of a stratum"),
    "DEFINITIONS": ("post", "what each of its statistics is, by name"),
}
"""The names that the package of a mechanism that adds noise must define as well."""
FORMER = {
    "MECHANISMS": "protect",
    "model_of": "release",
    "WORDS": "statement",
    "figures": "measured",
    "DEFINITIONS": "measured",
}
"""Modules of packages that are not yet in two halves."""


class Incomplete(TypeError):
    """Raised if a mechanism or a family is registered without one of its parts."""


class Parts(Mapping[str, T], Generic[T]):
    """One part of every mechanism, by the mechanism's name; it is loaded on first use.

    Raises `Incomplete`, which states what is missing and in which file it belongs.
    """

    def __init__(self, part: str, module: str, what: str) -> None:
        self._part, self._module, self._what = part, module, what

    def __getitem__(self, name: str) -> T:
        member: Any = getattr(_module(name, self._module, self._part, self._what), self._part, None)
        if isinstance(member, Mapping) and self._module == "query":
            member = member.get(name)
        if member is None:
            raise missing(name, self._module, self._part, self._what)
        part: T = member
        return part

    def __iter__(self) -> Iterator[str]:
        return iter(SPECS)

    def __len__(self) -> int:
        return len(SPECS)


def check(name: str) -> None:
    """Checks that a mechanism has all of its parts; raises `Incomplete` if one is missing."""
    for part, (module, what) in REQUIRED.items():
        Parts[Any](part, module, what)[name]
    if SPECS.named(name).adds_noise:
        for part, (module, what) in MEASURED.items():
            Parts[Any](part, module, what)[name]
        words: Any = Parts[Any]("WORDS", *REQUIRED["WORDS"])[name]
        for text in ("errors", *(("density",) if SPECS.named(name).statistics is not None else ())):
            if not getattr(words, text):
                raise missing(name, "post", f"WORDS.{text}", "a text that a release of noisy statistics needs")


def missing(name: str, module: str, part: str, what: str) -> Incomplete:
    """What a mechanism lacks, and the file in which it belongs."""
    return Incomplete(f"mechanism '{name}' has no {part}: write it in {_path(name, module)} ({what})")


def _path(name: str, module: str) -> str:
    return f"{SPECS.named(name).package.replace('.', '/')}/{module}.py"


def _module(name: str, module: str, part: str, what: str) -> ModuleType:
    path = f"{SPECS.named(name).package}.{module}"
    if part in FORMER and find_spec(SPECS.named(name).package) is not None and find_spec(path) is None:
        former = f"{SPECS.named(name).package}.{FORMER[part]}"
        path = former if find_spec(former) is not None else path
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
        raise Incomplete(f"mechanism '{name}' has no {module}: write {_path(name, module)} ({what})") from error

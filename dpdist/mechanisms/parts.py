"""Loads the parts of a mechanism from its package: its protection, model, texts and list of noisy figures.

The specification names the package (`MechanismSpec.package`). This file itself imports no part. So publishing, which asks
for models and texts only, loads no code that sees a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, TypeVar

from dpdist.job import SPECS
from dpdist.job.mechanisms import spec_named

T = TypeVar("T")
REQUIRED = {
    "protect": ("MECHANISMS", "what sees its records, by the names that a job may state"),
    "release": ("model_of", "a function of the job that returns the class of the model"),
    "statement": ("WORDS", "the texts of its statement"),
}
"""The modules of every mechanism's package, each with the name that it must define and what that is."""
MEASURED = {
    "figures": "a function that lists the noisy figures of a stratum",
    "DEFINITIONS": "what each of its statistics is, by name",
}
"""The names that `measured.py` must define; a mechanism that adds noise has this module."""


class Incomplete(TypeError):
    """Raised if a mechanism or a family is registered without one of its parts."""


class Parts(Mapping[str, T], Generic[T]):
    """One part of every mechanism, by the mechanism's name; it is loaded on first use.

    Raises `Incomplete`, which states what is missing and in which file it belongs.
    """

    def __init__(self, module: str, part: str, what: str) -> None:
        self._module, self._part, self._what = module, part, what

    def __getitem__(self, name: str) -> T:
        found: Any = getattr(_module(name, self._module, self._what), self._part, None)
        if isinstance(found, Mapping) and self._module == "protect":
            found = found.get(name)
        if found is None:
            raise missing(name, self._module, self._part, self._what)
        part: T = found
        return part

    def __iter__(self) -> Iterator[str]:
        return iter(SPECS)

    def __len__(self) -> int:
        return len(SPECS)


def check(name: str) -> None:
    """Checks that a mechanism has all of its parts; raises `Incomplete` if one is missing."""
    for module, (part, what) in REQUIRED.items():
        Parts[Any](module, part, what)[name]
    if spec_named(name).adds_noise:
        for part, what in MEASURED.items():
            Parts[Any]("measured", part, what)[name]
        words: Any = Parts[Any]("statement", *REQUIRED["statement"])[name]
        for text in ("errors", *(("density",) if spec_named(name).statistics is not None else ())):
            if not getattr(words, text):
                raise missing(name, "statement", f"WORDS.{text}", "a text that a release of noisy statistics needs")


def missing(name: str, module: str, part: str, what: str) -> Incomplete:
    """What a mechanism lacks, and the file in which it belongs."""
    return Incomplete(f"mechanism '{name}' has no {part}: write it in {_path(name, module)} ({what})")


def _path(name: str, module: str) -> str:
    return f"{spec_named(name).package.replace('.', '/')}/{module}.py"


def _module(name: str, module: str, what: str) -> ModuleType:
    path = f"{spec_named(name).package}.{module}"
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
        raise Incomplete(f"mechanism '{name}' has no {module}: write {_path(name, module)} ({what})") from error

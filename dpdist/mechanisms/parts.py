"""For `mechanisms.registry` and `publish`: loads a mechanism's parts from its folder: query, model, texts, noisy figures.

The specification names the package (`MechanismSpec.package`). A part is imported at its first use. So publishing, which
needs only models and texts, loads no code that sees a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, TypeVar

from dpdist.core.errors import JobError, Problem
from dpdist.job import SPECS, Job
from dpdist.models.protocol import Builder, ReleaseView

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


class Incomplete(TypeError):
    """Raised if a mechanism or a family is registered without one of its parts."""


class Parts(Mapping[str, T], Generic[T]):
    """One part of every mechanism, by the mechanism's name; it is loaded on first use.

    Raises `Incomplete`, which states what is missing and in which file it belongs.
    """

    def __init__(self, part: str, module: str, what: str) -> None:
        self._part, self._module, self._what = part, module, what

    def __getitem__(self, name: str) -> T:
        member: Any = getattr(_module(name, self._module, self._what), self._part, None)
        if isinstance(member, Mapping) and self._module == "query":
            member = member.get(name)
        if member is None:
            raise missing(name, self._module, self._part, self._what)
        part: T = member
        return part

    def optional(self, name: str, default: T) -> T:
        """The part of a mechanism that may lack it."""
        return self[name] if hasattr(_module(name, self._module, self._what), self._part) else default

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


def _module(name: str, module: str, what: str) -> ModuleType:
    path = f"{SPECS.named(name).package}.{module}"
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not path.startswith(error.name):
            raise
        raise Incomplete(f"mechanism '{name}' has no {module}: write {_path(name, module)} ({what})") from error


WIDE = "Where most weights are well below their public bound, these intervals are too wide."
"""A caution for mechanisms that count a record by its sampling weight over the weight's public upper bound."""


@dataclass(frozen=True)
class Words:
    """The texts of a mechanism.

    A mechanism that fits a likelihood may leave texts empty, and then has the likelihood's.
    """

    density: str = ""
    """Description of the parameters, with {outcome} and {weight}; empty: the likelihood's description."""
    errors: str = ""
    """Errors that the standard errors of estimates from parameters include; empty: the errors of posterior draws."""
    errors_of_records: str = ""
    """Errors that the standard errors of estimates from synthetic records include.

    Empty: the errors of the parameters, and the error of synthesis.
    """
    steps: tuple[str, ...] = ()
    """Processing steps of every job after the statistics were released."""
    settings: Mapping[str, Mapping[object, str]] = field(default_factory=dict)
    """Further processing steps that depend on a setting: the setting's name, and a text for each of its values."""
    entries: Mapping[str, str] = field(default_factory=dict)
    """Texts of statement entries that only this mechanism has, by entry."""

    def cautions_of(self, release: ReleaseView) -> list[str]:
        """Cautions that the released parameters of a release call for."""
        return []

    def reason_not_to_publish(self, release: ReleaseView) -> str | None:
        """Why the released parameters cannot stand for the file, such as weights beyond their public bound."""
        return None

    def density_of(self, release: ReleaseView) -> str:
        """Description of the parameters, with {outcome} and {weight}."""
        return self.density

    def post_processing(self, release: ReleaseView) -> list[str]:
        """Processing steps after the statistics were released."""
        return [*self.steps, *(texts[getattr(release.job.mechanism, name)] for name, texts in self.settings.items())]

    def errors_of(self, release: ReleaseView) -> str:
        """Errors that the standard errors of estimates from parameters include."""
        return self.errors


WORDS: Parts[Words] = Parts("WORDS", *REQUIRED["WORDS"])


def words_of(job: Job) -> Words:
    """The texts of a job's mechanism."""
    return WORDS[job.mechanism.name]


MODELS: Parts[Callable[[Job], Builder]] = Parts("model_of", *REQUIRED["model_of"])
"""By mechanism, a function of the job that returns the class of the model."""


NOISY = {
    "expect": "expected weight and weighted outcome, from which tables are made",
    "simulate": "synthetic weight and outcome",
    "resampled": "parameters of other samples; without them standard errors leave sampling out",
    "noised_again": "parameters under other noise; without them standard errors leave noise out",
}
"""Methods that a model of noisy sums must have, and what each gives.

Whole tables have standard errors of their own, so their models do not need these methods.
"""


def builder_of(job: Job) -> Builder:
    """The class of a job's model: its likelihood, or the statistics that get noise.

    Raises `Incomplete` if a model of noisy sums lacks a method that publishing needs. Raises `JobError` if the job protects
    sample counts, and the model lacks the method for that.
    """
    name, builder = job.mechanism.name, MODELS[job.mechanism.name](job)
    if job.mechanism.adds_noise and not job.mechanism.whole_tables:
        for method, what in NOISY.items():
            if not hasattr(builder, method):
                raise missing(name, "post", f"{getattr(builder, '__name__', 'model')}.{method}", what)
        if job.noisy_crosstab and not hasattr(builder, "recounted"):
            fault = f"'{name}' takes no noisy sample counts: its model has no recounted"
            remedy = f"leave predictors out, or write recounted(theta, counts) in {_path(name, 'post')}"
            raise JobError(job.dataset, [Problem("predictors", fault, "mechanisms whose model has it", remedy)])
    return builder

"""The parts of a mechanism, loaded from its folder: query, model, texts, noisy figures; types of `measurements.parquet`.

The specification names the package (`MechanismSpec.package`). A part is imported at its first use. So publishing, which
needs only models and texts, loads no code that sees a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from dpdist.core.errors import JobError
from dpdist.core.records import UNIT, Floats
from dpdist.job import SPECS, Job
from dpdist.models.protocol import Draws, ReleaseView, StratumModel
from dpdist.models.public_model import PublicModel

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


MODELS: Parts[Callable[[Job], type[StratumModel]]] = Parts("model_of", *REQUIRED["model_of"])
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


def builder_of(job: Job) -> type[StratumModel]:
    """The class of a job's model: its likelihood, or the statistics that get noise.

    Raises `Incomplete` if a model of noisy sums lacks a method that publishing needs. Raises `JobError` if the job protects
    sample counts, and the model lacks the method for that.
    """
    name, builder = job.mechanism.name, MODELS[job.mechanism.name](job)
    if job.mechanism.adds_noise and job.mechanism.sets != "none":
        for method, what in NOISY.items():
            if not hasattr(builder, method):
                raise missing(name, "post", f"{getattr(builder, '__name__', 'model')}.{method}", what)
        if job.noisy_crosstab and not hasattr(builder, "recounted"):
            fault = f"'{name}' takes no noisy sample counts: its model has no recounted"
            remedy = f"leave predictors out, or write recounted(theta, counts) in {_path(name, 'post')}"
            raise JobError.of(job.dataset, "predictors", fault, "mechanisms whose model has it", remedy)
    return builder


# Each mechanism's `post.py` lists its noisy figures with these types.
LAPLACE, GAUSSIAN = "discrete_laplace", "discrete_gaussian"
"""Names of the laws of noise."""
NO_LIMITS = (None, None, None)
"""The centre, cap and half width of a figure that is not clipped."""
SUM_OF_A = "the sum of a = min(w, U) / U, with w the weight and U the weight_cap"
SUM_OF_B = "the sum of b = a (clip(y, c - R, c + R) - c) / R, with y the outcome, c the centre and R the half_width"
SUM_OF_ABSENT = "the sum of 1 - v, v = min(w, U) / U, with w the weight and U the weight_cap"
SUM_OF_V = "the sum of v, v = min(w, U) / U, with w the weight and U the weight_cap; 1 without weights"


class Figures(NamedTuple):
    """Noisy figures of one kind, with what is needed to use them.

    - `cells`: for each cell its levels, by column.
    - `values`: the figures, (cell, statistic).
    - `scales`: scale of the noise on each statistic; None if it is confidential.
    - `limits`: a function of the positions of cell and statistic; it gives the centre, the cap and the half width of
      clipping.
    - `unit`: the figures are whole multiples of one over this number.
    - `law`: the name of the noise's law.
    - `table`: the name of the table that they belong to, if any.
    """

    cells: Sequence[dict[str, str]]
    statistics: Sequence[str]
    values: Floats
    scales: Sequence[Fraction | None]
    limits: Callable[[int, int], tuple[float | None, float | None, float | None]]
    unit: float = UNIT
    law: str = LAPLACE
    table: str | None = None
    sensitivity: float | None = None
    """Sensitivity of the figures to one record, in L1, or in L2 under Gaussian noise; unset: the scale times ε."""


FIGURES: Parts[Callable[[ReleaseView, Any, int, Draws], Iterator[Figures]]] = Parts("figures", *MEASURED["figures"])
DEFINITIONS: Parts[Mapping[str, str]] = Parts("DEFINITIONS", *MEASURED["DEFINITIONS"])
QUERIES: Parts[Mapping[str, str]] = Parts("QUERIES", "post", "the query of each statistic, by the names of both")
"""Part of mechanisms that publish the answers of several queries."""


class Measurements(NamedTuple):
    """What a mechanism measured: its noisy figures by stratum and by a set's parameters, and their definitions."""

    mechanism: str
    figures: Callable[[ReleaseView, Any, int, Draws], Iterator[Figures]]
    definitions: Mapping[str, str]
    queries: Mapping[str, str]
    """The name of the query of each statistic; empty where all statistics answer every query."""

    def definition(self, statistic: str) -> str:
        """The definition of a statistic, whose name ends with the outcome's if a job has several outcomes.
        Raises `Incomplete`.
        """
        if (start := _start_of(statistic, self.definitions)) is None:
            lacking = f"the statistic '{statistic}' of '{self.mechanism}' has no definition"
            raise Incomplete(f"{lacking}: add it to DEFINITIONS in its post.py")
        return self.definitions[start]

    def query(self, statistic: str) -> str | None:
        """The name of the query that a statistic answers; None if it may be any."""
        start = _start_of(statistic, self.queries)
        return None if start is None else self.queries[start]


def _start_of(statistic: str, names: Iterable[str]) -> str | None:
    """The longest of the names with which a statistic's name begins."""
    starts = [start for start in names if statistic == start or statistic.startswith(f"{start} ")]
    return max(starts, key=len, default=None)


def measured_of(job: Job) -> Measurements:
    """The list of noisy figures of a job's mechanism. Raises `Incomplete` if its package lacks a part."""
    name = job.mechanism.name
    return Measurements(name, FIGURES[name], DEFINITIONS[name], QUERIES.optional(name, {}))


def cells_of(release: ReleaseView, model: PublicModel, stratum: int) -> list[dict[str, str]]:
    """The cells of a stratum's patterns, as levels by column, including columns that are constant within a pattern.

    A pattern is a combination of levels that the model distinguishes.
    """
    crosstab, rows = release.crosstab, release.crosstab.rows_of(stratum)
    pattern = model.design.pattern
    first = np.unique(pattern, return_index=True)[1]
    codes = {name: crosstab.codes[name][rows] for name in release.job.categories}
    constant = [name for name, values in codes.items() if np.array_equal(values, values[first][pattern])]
    return [{name: str(crosstab.levels[name][codes[name][row]]) for name in constant} for row in first]

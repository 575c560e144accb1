"""Error classes of the whole package: fault, place, what is allowed, remedy, but no record's values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Self


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a job or a file.

    `where` is a column, or a key of the job. `places` are the first data rows, counted from 1, or file lines, counting the
    header. `values` are the wrong values; values from data are confidential, and shown only on request. `allowed` may be
    empty if the remedy contains it.
    """

    where: str
    fault: str
    allowed: str
    remedy: str
    count: int = 1
    places: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def text(self, show_values: bool = False) -> str:
        places = f" ({_together(self.places)}{', …' if self.count > len(self.places) else ''})" if self.places else ""
        values = f"\n    values:  {', '.join(self.values)}" if show_values and self.values else ""
        return layout(f"{self.where}: {self.fault}{places}", self.remedy, self.allowed) + values


def _together(places: Sequence[str]) -> str:
    """Places as a list, with the kind of place once if they have the same: line 2; lines 2, 3."""
    kinds, numbers = zip(*(place.rpartition(" ")[::2] for place in places), strict=True)
    if len(places) == 1 or len(set(kinds)) > 1 or not kinds[0]:
        return ", ".join(places)
    return f"{kinds[0]}s {', '.join(numbers)}"


def layout(fault: str, remedy: str, allowed: str = "") -> str:
    """The lines of a message: the fault, what is allowed if the remedy does not say so, and the remedy."""
    return "\n    ".join([fault, *([f"allowed: {allowed}"] if allowed else []), f"remedy:  {remedy}"])


def suggestion(name: object, candidates: Iterable[object], otherwise: str = "", cutoff: float = 0.6) -> str:
    """The remedy for an unknown name: the nearest of the known ones, or `otherwise` if none is near."""
    names = list(map(str, candidates))
    near = get_close_matches(str(name), names, 1, cutoff) or [
        candidate for candidate in names if candidate.lower() == str(name).lower()
    ]
    return f"did you mean '{near[0]}'?" if near else otherwise


class DpdistError(Exception):
    """Base class of all errors that dpdist raises on purpose. `exit_code` is the command's exit code.

    An error that is copied to another process keeps its attributes and its text; `__init__` does not run again.

    Parameters
    ----------
    text : the message. It never contains a confidential value.

    Example
    -------
    >>> try:
    ...     dpdist.open_release("nowhere")
    ... except dpdist.DpdistError as error:
    ...     print(type(error).__name__, error.exit_code)
    WorkspaceError 1
    """

    exit_code = 1

    def __reduce__(self) -> tuple[Callable[..., DpdistError], tuple[Any, ...], dict[str, Any]]:
        return _with_text, (type(self), *self.args), vars(self)

    def text(self, show_values: bool = False) -> str:
        return str(self)


def _with_text(kind: type[DpdistError], *text: Any) -> DpdistError:
    return kind.__new__(kind, *text)


class ProblemsError(DpdistError):
    """The job or the data are wrong."""

    exit_code = 2
    subject = "input"

    def __init__(self, source: str, problems: Sequence[Problem], subject: str | None = None):
        self.source, self.subject = source, subject or self.subject
        self.problems = tuple(problems)
        super().__init__(self.text())

    @classmethod
    def of(cls, source: str, where: str, fault: str, allowed: str, remedy: str, places: tuple[str, ...] = ()) -> Self:
        """The error with one problem."""
        return cls(source, [Problem(where, fault, allowed, remedy, 1, places)])

    def text(self, show_values: bool = False) -> str:
        many = f"{len(self.problems)} problems" if len(self.problems) > 1 else "1 problem"
        body = "\n".join("  " + p.text(show_values).replace("\n", "\n  ") for p in self.problems)
        return f"{self.subject} {self.source}: {many}\n{body}"


class JobError(ProblemsError):
    """The job file cannot be used.

    Parameters
    ----------
    source, problems : the file, or what was given in its place; and every `Problem` in it.

    Example
    -------
    >>> try:
    ...     dpdist.parse_job("dataset: example")
    ... except dpdist.JobError as error:
    ...     print(error.problems[0].where, "-", error.problems[0].fault)
    period - missing key
    """

    subject = "job"


class StudyError(ProblemsError):
    """The study file cannot be used.

    Parameters
    ----------
    source, problems : the file, or what was given in its place; and every `Problem` in it.

    Example
    -------
    >>> try:
    ...     dpdist.parse_study("kind: survey")
    ... except dpdist.StudyError as error:
    ...     print(error.problems[0].fault)
    no kind of study 'survey'
    """

    subject = "study"


class DataError(ProblemsError):
    """The confidential file, or the reference, does not fit the job. It is raised before any budget is spent.

    Parameters
    ----------
    source, problems : the file, or what was given in its place; and every `Problem` in it.
    subject : what the message calls the file; default: data.

    Example
    -------
    >>> try:
    ...     dpdist.validate("doctorates", input="nowhere.parquet")
    ... except dpdist.DataError as error:
    ...     print(error.problems[0].fault)
    no such file
    """

    subject = "data"

    def text(self, show_values: bool = False) -> str:
        counted = any(place.startswith("row ") for problem in self.problems for place in problem.places)
        message = super().text(show_values)
        return f"{message}\n  Rows are counted from 1, without the header." if counted else message


class AnalysisError(DpdistError):
    """A release does not allow this analysis of its synthetic sets, or the analysis gives no estimate.

    Parameters
    ----------
    fault, allowed, remedy : texts, which are also attributes.
    subject : what is refused, at the beginning of the message.

    Example
    -------
    >>> try:
    ...     dpdist.open_release("doctorates-2017").combine("height")
    ... except dpdist.AnalysisError as error:
    ...     print(error.fault)
    no numeric column 'height'
    """

    def __init__(self, fault: str, allowed: str, remedy: str, subject: str = "analysis"):
        self.fault, self.allowed, self.remedy = fault, allowed, remedy
        super().__init__(layout(f"{subject}: {fault}", remedy, allowed))


class FitError(DpdistError):
    """A stratum has no posterior, or its bound could not be brought below the target.

    Parameters
    ----------
    stratum, reason, remedy : the stratum's label, and two texts.

    Example
    -------
    >>> dpdist.FitError("biology", "too few records", "pool strata").stratum
    'biology'
    """

    def __init__(self, stratum: str, reason: str, remedy: str):
        self.stratum, self.reason, self.remedy = stratum, reason, remedy
        super().__init__(layout(f"stratum {stratum}: {reason}", remedy))


class NotAccepted(DpdistError):
    """A gate that the job states is not met, so nothing is published. Its values, measured under noise, may be shown.

    Parameters
    ----------
    measured, limits : texts on every gate.

    Example
    -------
    >>> dpdist.NotAccepted("fit .4", "fit .3").measured
    'fit .4'
    """

    def __init__(self, measured: str, limits: str):
        self.measured, self.limits = measured, limits
        remedy = "the budget is spent: publish nothing, or run a job with other tables, which spends its own budget"
        super().__init__(layout(f"gates: {measured}", remedy, limits))


class RemediedError(DpdistError):
    """An error whose message is its fault and its remedy."""

    def __init__(self, fault: str, remedy: str):
        self.fault, self.remedy = fault, remedy
        super().__init__(layout(fault, remedy))


class TaskError(RemediedError):
    """Work on a cluster failed for a reason outside of the data: it stalled, was killed, or ran out of memory."""


class ClusterError(DpdistError):
    """A scheduler or its workers cannot be reached or used, or have invalid certificates."""

    def __init__(self, fault: str, remedy: str, exit_code: int = 1):
        self.fault, self.remedy, self.exit_code = fault, remedy, exit_code
        super().__init__(layout(f"cluster: {fault}", remedy))


class WorkspaceError(DpdistError):
    """The workspace cannot be used: it belongs to another job, is in use, damaged, or not writable.

    Parameters
    ----------
    path, fault, remedy : the workspace, and texts on what is wrong and how to mend it.
    exit_code : the exit code of the command.

    Example
    -------
    >>> try:
    ...     dpdist.open_release("nowhere")
    ... except dpdist.WorkspaceError as error:
    ...     print(error.path)
    nowhere
    """

    def __init__(self, path: str, fault: str, remedy: str, exit_code: int = 1):
        self.path, self.fault, self.remedy = path, fault, remedy
        self.exit_code = exit_code
        super().__init__(layout(f"workspace {path}: {fault}", remedy))


class LedgerError(DpdistError):
    """The ledger cannot be used: it is missing, out of reach, busy or damaged, or the run began with another ledger."""

    def __init__(self, ledger: str, fault: str, remedy: str, exit_code: int = 1, no_answer: bool = False):
        self.ledger, self.fault, self.remedy, self.exit_code = ledger, fault, remedy, exit_code
        self.no_answer = no_answer
        super().__init__(layout(f"ledger {ledger}: {fault}", remedy))


class BudgetRefused(DpdistError):
    """A release would cost more than the limits of its dataset leave, or no limit covers its cost. Nothing was spent.

    Parameters
    ----------
    dataset : the dataset that has the limits.
    fault, allowed, remedy : texts.

    Example
    -------
    >>> dpdist.BudgetRefused("doctorates", "12 in all", "10 in all", "ask for less").exit_code
    3
    """

    exit_code = 3

    def __init__(self, dataset: str, fault: str, allowed: str, remedy: str):
        self.dataset, self.fault, self.allowed, self.remedy = dataset, fault, allowed, remedy
        super().__init__(layout(f"budget of {dataset}: {fault}", remedy, allowed))


class ToolchainError(DpdistError):
    """Stan programs cannot be compiled or run on this machine: a compiler, CmdStan or an extra of dpdist is missing."""

    exit_code = 2

    def __init__(self, fault: str, allowed: str, remedy: str):
        self.fault, self.allowed, self.remedy = fault, allowed, remedy
        super().__init__(layout(f"stan: {fault}", remedy, allowed))


class MissingExtra(RemediedError):
    """A command needs a library that the main install leaves out. `remedy` installs the extra that brings it."""

    exit_code = 2


class ProgramError(DpdistError):
    """A Stan program does not exist or does not compile. `fault` is Stan's message, without the program's text."""

    exit_code = 2

    def __init__(self, program: str, fault: str, remedy: str):
        self.program, self.fault, self.remedy = program, fault, remedy
        super().__init__(layout(f"program {program}: {fault}", remedy))


class StanError(DpdistError):
    """A Stan program stopped while it ran. `fault` is Stan's message, without numbers that may come from data."""

    def __init__(self, program: str, fault: str, remedy: str):
        self.program, self.fault, self.remedy = program, fault, remedy
        super().__init__(layout(f"program {program}: {fault}", remedy))


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Line separators, marks of writing direction, lone surrogates, and control characters but newline and tab."""


def control(text: str) -> str | None:
    character = re.search(f"[\t\n]|{_CONTROL.pattern}", text)
    return _written(character) if character else None


def escape(text: str) -> str:
    """The text with control characters written out. Newlines and tabs stay."""
    return _CONTROL.sub(_written, text)


def _written(character: re.Match[str]) -> str:
    return f"\\x{ord(character[0]):02x}" if ord(character[0]) < 0x100 else f"\\u{ord(character[0]):04x}"


EXTRAS = {
    "numba": "compiled",
    "pyreadstat": "formats",
    "xarray": "posterior",
    "psycopg": "postgres",
    "pysdmx": "sdmx",
    "arviz": "stan",
    "cmdstanpy": "stan",
    "httpstan": "stan",
    "platformdirs": "stan",
    "obstore": "stores",
    "matplotlib": "studies",
    "pytest": "testing",
    "opentelemetry": "tracing",
    "sklearn": "trees",
}
"""The extra of dpdist that brings a module."""


def install(module: str) -> str:
    """The command that brings a module."""
    return f"pip install 'dpdist[{EXTRAS[module]}]'"


def installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require(module: str, purpose: str) -> None:
    """Raises `MissingExtra` if a module that `purpose` needs is not installed."""
    if not installed(module):
        raise MissingExtra(f"{purpose} needs {module}, which is not installed", install(module))

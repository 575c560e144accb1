"""The one way from a job file, YAML text or mapping to a frozen `Job`.

`resolve` merges three layers: the file that a job extends, the file itself, and keys set on the command line. Mappings
are merged key by key. Any other value replaces the earlier one, and null removes it. Every value keeps its origin: a
line, a base file and its line, or `--set`. `freeze` reads the files named by keys, and validates everything.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from dpdist.core.errors import JobError, Problem, ProblemsError, suggestion
from dpdist.core.files import JOB, misfit
from dpdist.job import Calibration, Job
from dpdist.job.checks import Contradiction, contradictions
from dpdist.job.data import COLUMN, declared_levels, left_over, level_text, read_weights, recode_of, recoded_weights
from dpdist.job.specs import NO_MORE, PRESENT, Former, in_present_form
from dpdist.job.tables import written_place
from dpdist.job.validation import keys_of_earlier_form, validate_content
from dpdist.job.values import MINISIGN, NAME, PATTERNS
from dpdist.job.yaml_lines import Keys, Lines, Where, dotted, keys_of, mapping, place, read_yaml, value

JobLike: TypeAlias = Job | Mapping[str, Any] | str | Path
"""What `job_of` can make a job from."""
NOT_A_MAPPING = Problem("job", "not a mapping of keys", "dataset:, columns:, …", "see README for a job file")
MOST_BASES = 5
SET = "--set"
OPENED_LATER: tuple[tuple[str, str], ...] = (("input", "path"), ("reference", "path"), ("reference", "release"))
"""Keys that name files to open when the job is planned or run."""
TITLE = ("presentation", "title")
READ_NOW: tuple[Where, ...] = (
    *(("calibration", "path"), ("model", "program"), ("reference", "key")),
    ("survey", "design_weights", "path"),
)
"""Keys that name files, in the job file's folder, to read with the job; a public key may also be given directly."""
PERIOD = "{{period}}"
"""Text in the path of a file or of a workspace, or in the title, that stands for the job's period."""
NO_PATH = re.compile(rf"://|{MINISIGN}")
MARK = re.compile(r"#\s*TODO (fill|confirm):(.*)")
TO_DO = {
    "fill": ("to be filled", "fill it in, and delete the mark"),
    "confirm": ("to be confirmed", "compare it with a public source, correct it, and delete the mark"),
}


@dataclass(frozen=True)
class SourcedKeys:
    """A job's keys before validation, with the origin of every value. `folder` has the files that it names."""

    keys: Keys
    lines: Lines = field(default_factory=dict)
    source: str = "job"
    folder: Path = Path()
    base: tuple[str, Keys] | None = None
    """The extended file, by its name in the job, with its content."""
    to_do: tuple[Problem, ...] = ()
    """Lines of `dpdist init` that are still to be filled or confirmed. A job with such lines is refused."""

    def refused(self, where: Where, fault: str, allowed: str, remedy: str) -> JobError:
        """The error for a wrong value, with its origin."""
        return JobError.of(self.source, dotted(where), fault, allowed, remedy, place(where, self.lines))

    def located(self, folder: Path) -> SourcedKeys:
        """Makes paths of files that are opened later relative to the working folder, not to the job file's."""
        if folder == Path():
            return self

        def move(keys: Keys) -> Keys:
            return _moved(keys, OPENED_LATER, lambda path: str(folder / path))

        base = (self.base[0], move(self.base[1])) if self.base is not None else None
        return replace(self, keys=move(self.keys), base=base)

    def of_period(self) -> SourcedKeys:
        """Writes the job's period in place of `{{period}}` in paths of files that are opened later, and in the title."""
        if (period := self.keys.get("period")) is None:
            return self

        def fill(path: str) -> str:
            return in_path(path, str(period), "period", self.source)

        keys = _moved(self.keys, OPENED_LATER, fill)
        return replace(self, keys=_moved(keys, [TITLE], lambda title: title.replace(PERIOD, str(period))))

    def with_settings(self, settings: Sequence[str]) -> SourcedKeys:
        """Applies settings `key.path=value`, whose values are YAML. Paths in them are relative to the working folder."""
        keys, lines = self.keys, dict(self.lines)
        for setting in settings:
            names, new = _setting(setting, self.source)
            where = _positions(keys, names)
            keys = _replace(keys, where, new, 0, self.source)
            for below in [path for path in lines if path[: len(where)] == where]:
                del lines[below]
            lines |= {where[:k]: SET for k in range(1, len(where) + 1) if where[:k] not in lines}
        return replace(self, keys=keys, lines=lines)


def in_path(path: str, period: str, where: str, source: str) -> str:
    """Returns a path with the period in place of `{{period}}`. Raises `JobError` for a period that cannot name a file."""
    if PERIOD in path and not re.fullmatch(NAME, period):
        allowed = f"where a path has {PERIOD}: letters, digits, _ . and -, as in 2026-Q3"
        raise JobError.of(source, where, f"the period '{period:.80}' cannot name a file", allowed, "write it so")
    return path.replace(PERIOD, period)


def job_of(job: JobLike) -> Job:
    """Makes a job from a `Job`, a mapping as in a job file, YAML text, or the path or name of a file.

    Text with several lines is YAML. Other text is a path, or the name of a shipped job. Paths in a mapping, or in YAML
    text, are relative to the working folder. Raises `JobError`.
    """
    if isinstance(job, Job):
        if isinstance(job.mechanism, Former):
            raise JobError.of("job", "mechanism.name", NO_MORE.format(job.mechanism.name), PRESENT, f"use {PRESENT}")
        return job
    if isinstance(job, Mapping):
        return freeze(SourcedKeys(_plain(job)))
    if isinstance(job, str) and "\n" in job:
        return parse_job(job)
    if isinstance(job, str | Path):
        return load_job(job)
    allowed = "a Job, a mapping, YAML text, or the path or name of a job file"
    raise JobError.of("job", "job", f"a {type(job).__name__}", allowed, "give one of these")


def load_job(name: str | Path, settings: Sequence[str] | None = None) -> Job:
    """Reads and validates a job file. `settings`, each `key.path=value`, replace values of the file.

    Paths in the file are relative to its folder. Data of a shipped job, and paths in settings, are relative to the working
    folder.

    Parameters
    ----------
    name : a job file, or the name of a shipped job.
    settings : keys whose values replace the file's, each `key.path=value`.

    Returns
    -------
    The job, frozen.

    Raises
    ------
    JobError : every problem with its line, what is allowed and the remedy.

    Example
    -------
    >>> dpdist.load_job("doctorates", ["synthetic_sets=5"]).synthetic_sets
    5
    """
    return freeze(resolve(name, settings))


def parse_job(text: str, source: str = "job", folder: str | Path = Path()) -> Job:
    """Validates a job that is given as YAML text.

    Parameters
    ----------
    text : the content of a job file.
    source : the name for it in messages.
    folder : the folder that paths in it are relative to.

    Returns
    -------
    The job, frozen.

    Raises
    ------
    JobError : every problem with its line, what is allowed and the remedy.

    Example
    -------
    >>> text = Path("small.yaml").read_text()
    >>> dpdist.parse_job(text).budget.epsilon
    Fraction(8, 1)
    """
    if not isinstance(text, str):
        remedy = "give the text of a job; load_job takes a path"
        raise JobError.of(source, "text", f"a {type(text).__name__}", "YAML text", remedy)
    if not isinstance(folder, str | Path):
        fault, remedy = f"a {type(folder).__name__}", "name the folder of the job's files"
        raise JobError.of(source, "folder", fault, "a path", remedy)
    return freeze(_with_base(text, source, Path(folder), ()).located(Path(folder)))


def resolve(name: str | Path, settings: Sequence[str] | None = None) -> SourcedKeys:
    """Reads a job file with the files that it extends, and applies the settings. Raises `JobError`."""
    path = find_job(name)
    data = path.parent if path == Path(name) else Path()
    return _with_base(read_yaml(path, JobError), str(path), path.parent, ()).located(data).with_settings(settings or ())


def freeze(resolved: SourcedKeys) -> Job:
    """Reads the files that the keys name, and validates the job. Raises `JobError` with every problem."""
    resolved = resolved.of_period()
    keys, lines, source = resolved.keys, resolved.lines, resolved.source
    if (wrong := misfit(keys.get("format"), JOB)) is not None:
        raise resolved.refused(("format",), *wrong)
    if earlier := [fault.problem(lines) for fault in keys_of_earlier_form(keys)]:
        raise JobError(source, earlier)
    keys, alias = in_present_form(keys, lines, source)
    for completed in (_with_program, _with_signer, _with_recode, _with_weights, _with_calibration):
        keys = completed(replace(resolved, keys=keys))
    if resolved.base is not None:
        name, base = resolved.base
        keys |= {"extends": {"path": name, "differs": tuple(map(dotted, differences(base, resolved.keys, ())))}}
    try:
        job = validate_content(Job, keys, source, lines, JobError)
    except JobError as error:
        raise JobError(source, [*error.problems, *resolved.to_do]) from None
    against = dict.fromkeys(_as_written(fault, keys).problem(lines) for fault in contradictions(job))
    if against or resolved.to_do:
        raise JobError(source, [*against, *resolved.to_do])
    return job if alias is None else job.under_alias(alias)


def _as_written(fault: Contradiction, keys: Keys) -> Contradiction:
    """The contradiction, located at the key in the file, where tables and hierarchies may be shorthand."""
    where = written_place(fault.where, keys.get("tables"))
    if where[:1] == ("hierarchies",) and where[2:3] == ("columns",) and not isinstance(_content(keys, where[:2]), dict):
        where = (*where[:2], *where[3:])
    return fault._replace(where=where)


def find_job(name: str | Path) -> Path:
    """The path of a job file. A name without a folder may also be that of a job shipped with dpdist."""
    return find_shipped(name, "", JobError)


def find_shipped(name: str | Path, folder: str, error: type[ProblemsError]) -> Path:
    """The path of a YAML file.

    A name without a folder is also looked up in jobs/`folder`, among the files shipped with dpdist.
    """
    path = Path(name)
    if path.is_file() or (path.exists() and path.name != str(name)):
        return path
    jobs = Path(str(resources.files("dpdist") / "jobs"))
    if not jobs.is_dir():  # in a source checkout, jobs/ stands beside the package
        jobs = Path(__file__).parents[2] / "jobs"
    shipped = jobs / folder
    if path.name == str(name):
        for candidate in (shipped / path.name, shipped / f"{path.name}.yaml"):
            if candidate.is_file():
                return candidate
    names = sorted(file.stem for file in shipped.glob("*.yaml"))
    allowed = f"a YAML file, or one of the shipped ones: {', '.join(names)}"
    raise error.of(str(name), "file", "no such file", allowed, suggestion(path.stem, names, "check the path"))


def load_calibration(path: Path) -> Calibration:
    """Reads a file written by `dpdist calibrate`. Raises `JobError`."""
    text = read_yaml(path, JobError)
    no_mapping = Problem("file", "no calibration", "a file of `dpdist calibrate`", "name one")
    keys, lines = mapping(text, str(path), JobError, no_mapping)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return validate_content(Calibration, keys | {"sha256": digest}, str(path), lines, JobError)


def to_do(text: str) -> tuple[Problem, ...]:
    """Lists the lines that comments mark as still to be filled or confirmed."""
    return tuple(
        Problem("TODO", f"left {TO_DO[mark[1]][0]}: {mark[2].strip():.160}", "", TO_DO[mark[1]][1], 1, (f"line {number}",))
        for number, line in enumerate(text.splitlines(), 1)
        if (mark := MARK.search(line))
    )


def differences(base: Keys, over: Keys, where: Where) -> Iterator[Where]:
    """Paths of keys whose values differ between two jobs, in the first job's order."""
    for key in dict.fromkeys([*base, *over]):
        old, new = base.get(key), over.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, (*where, key))
        elif key not in base or key not in over or old != new:
            yield (*where, key)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _with_base(text: str, source: str, folder: Path, above: tuple[Path, ...]) -> SourcedKeys:
    """Merges a job's text with the files that it extends. `above` are the files that extend this one."""
    keys, lines = mapping(text, source, JobError, NOT_A_MAPPING)
    written = SourcedKeys(keys, lines, source, folder, to_do=to_do(text))
    if "extends" not in keys:
        return written
    name, rest = keys["extends"], {key: content for key, content in keys.items() if key != "extends"}
    path, above = _base_file(written, name, above)
    try:
        text_of_base = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        fault = f"'{name}' cannot be read ({type(error).__name__})"
        raise written.refused(("extends",), fault, "a UTF-8 YAML file", "correct the path") from None
    base = _with_base(text_of_base, str(path), path.parent, above)
    base_keys = base.keys
    if (step := os.path.relpath(path.parent, folder)) != ".":
        base_keys = _moved(base.keys, (*OPENED_LATER, *READ_NOW), lambda file: os.path.join(step, file))
    origins = {where: f"{name}, {line}" if line.startswith("line") else line for where, line in base.lines.items()}
    over = {where for where in lines if not isinstance(_content(keys, where), dict)}
    inherited = {
        where: line for where, line in origins.items() if not any(where[:k] in over for k in range(len(where) + 1))
    }
    open_in_base = tuple(replace(problem, places=(f"{name}, {problem.places[0]}",)) for problem in base.to_do)
    laid, origins = _laid_over(base_keys, rest), inherited | dict(lines)
    return replace(written, keys=laid, lines=origins, base=(name, base_keys), to_do=(*written.to_do, *open_in_base))


def _base_file(job: SourcedKeys, name: Any, above: tuple[Path, ...]) -> tuple[Path, tuple[Path, ...]]:
    where, allowed = ("extends",), "the path of another job file, as in base.yaml"
    if not isinstance(name, str) or not name:
        raise job.refused(where, "not the path of one file", allowed, "name the file")
    path = job.folder / name
    chain = (*above, Path(os.path.abspath(job.source)), Path(os.path.abspath(path)))
    if len({file.resolve() for file in chain}) < len(chain):
        fault = f"'{name}' extends this file, or is this file itself"
        raise job.refused(where, fault, allowed, "remove one `extends` from the cycle")
    if len(chain) > MOST_BASES + 1:
        fault = f"a chain of more than {MOST_BASES} files, each extending the next"
        raise job.refused(where, fault, f"at most {MOST_BASES}", "write some of them as one file")
    return path, chain[:-1]


def _laid_over(base: Keys, over: Keys) -> Keys:
    laid = dict(base)
    for key, new in over.items():
        old = base.get(key)
        if new is None:
            laid.pop(key, None)
        else:
            laid[key] = _laid_over(old, new) if isinstance(old, dict) and isinstance(new, dict) else new
    return laid


def _moved(keys: Keys, paths: Sequence[Where], move: Callable[[str], str]) -> Keys:
    """The content with changed file names at these paths, except for URLs and public keys."""
    for where in paths:
        if isinstance(name := _content(keys, where), str) and not NO_PATH.search(name):
            value: Any = move(name)
            for key in reversed(where):
                value = {key: value}
            keys = _laid_over(keys, value)
    return keys


def _content(keys: Any, where: Where) -> Any:
    """The value at a path, or None if there is none.

    `lines` has every key as text, so a key that YAML reads as a number, true or false is not found either.
    """
    for part in where:
        try:
            keys = keys[part]
        except (KeyError, IndexError, TypeError):
            return None
    return keys


def _setting(setting: str, source: str) -> tuple[Where, Any]:
    name, equals, text = setting.partition("=")
    where: Where = tuple(name.strip().split("."))
    if not equals or "" in where:
        fault, allowed = f"'{setting:.80}' is not a key with a value", "key.path=value, as in period=2015"
        raise JobError.of(source, SET, fault, allowed, "write the key, = and the value")
    if where[0] == "extends":
        raise JobError.of(source, "extends", "it cannot be set", "other keys", "write it in a job file", (SET,))
    nested: Any = value(text, f"{source}, {SET} {name}", JobError)
    for key in reversed(where):
        nested = {key: nested}
    return where, _content(_moved(nested, READ_NOW, os.path.abspath), where)


def _positions(keys: Any, names: Where) -> Where:
    where: Where = ()
    for name in names:
        part = _content(keys, where)
        where = (*where, int(name)) if isinstance(part, list) and str(name).isdecimal() else (*where, name)
    return where


def _replace(content: Any, where: Where, new: Any, depth: int, source: str) -> Any:
    """The content with a new value at a path; for a list, at a position from 0.

    Missing mappings on the way are added. None removes a key.
    """
    if depth == len(where):
        return new
    key, here = where[depth], where[:depth]
    if isinstance(content, list):
        if not isinstance(key, int) or key >= len(content):
            fault, allowed = f"the list has no '{key}'", f"a position, from 0 to {len(content) - 1}"
            raise JobError.of(source, dotted(here), fault, allowed, "set the whole list", (SET,))
        return [_replace(item, where, new, depth + 1, source) if i == key else item for i, item in enumerate(content)]
    if content is not None and not isinstance(content, dict):
        fault = f"a single value, which cannot contain a key '{key}'"
        raise JobError.of(source, dotted(here), fault, "a mapping of keys", f"set {dotted(here)} itself", (SET,))
    below = _replace((content or {}).get(key), where, new, depth + 1, source)
    remaining = {name: part for name, part in (content or {}).items() if name != key or below is not None}
    return remaining | ({key: below} if below is not None else {})


def _with_program(job: SourcedKeys) -> Keys:
    model = keys_of(job.keys.get("model"))
    if not isinstance(name := model.get("program"), str):
        return job.keys
    where, path = ("model", "program"), job.folder / name
    allowed = "the path of a Stan program (.stan) within the job file's folder"
    try:
        if path.suffix != ".stan" or not path.resolve().is_relative_to(job.folder.resolve()):
            fault = f"'{name}' is not a Stan program within the job file's folder"
            raise job.refused(where, fault, allowed, "put the program beside the job")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        fault = f"'{name}' cannot be read ({type(error).__name__})"
        raise job.refused(where, fault, allowed, "correct the path") from None
    return job.keys | {"model": model | {"program": {"name": path.name, "text": text}}}


def _with_signer(job: SourcedKeys) -> Keys:
    reference = keys_of(job.keys.get("reference"))
    if not isinstance(name := reference.get("key"), str):
        return job.keys
    from dpdist.core.minisign import PublicKey, SignatureError  # a library that few jobs need

    try:
        return job.keys | {"reference": reference | {"key": PublicKey.named(name, job.folder).line}}
    except SignatureError:
        where, fault = ("reference", "key"), f"'{name:.80}' is neither a public key nor the file of one"
        remedy = "name the .pub file that `dpdist keygen` wrote, or give its second line"
        raise job.refused(where, fault, PATTERNS[MINISIGN], remedy) from None


def _with_recode(job: SourcedKeys) -> Keys:
    for name, merges in recode_of(job.keys).items():
        texts = [level_text(level) for level in declared_levels(job.keys, name)]
        for source, target in merges.items():
            if texts and source not in texts and target is not None:  # codes of missing values need not be listed
                otherwise = f"add it to columns.{name}.levels: these are the levels of the file, before recode"
                where, remedy = ("recode", name, source), suggestion(source, texts, otherwise)
                fault = f"'{source:.80}' is not a level of '{name}'"
                raise job.refused(where, fault, ", ".join(texts[:8]), remedy)
    return left_over(job.keys)


def _with_weights(job: SourcedKeys) -> Keys:
    where, recode = ("survey", "design_weights"), recode_of(job.keys)
    content = keys_of(_content(job.keys, where))
    name, weights, by = content.get("path"), content.get("weights"), content.get("by")
    by = [by] if isinstance(by, str) else by or []
    if not isinstance(name, str) and not (isinstance(weights, dict) and recode):
        return job.keys
    allowed = f"a UTF-8 CSV file with the columns under `by` and a column {COLUMN}"
    try:
        if name is not None and weights is not None:
            raise ValueError("both path and weights are given")
        listed: Keys = read_weights(job.folder / name, by) if name is not None else content["weights"]
        weights = recoded_weights(listed, by, recode)
    except (OSError, ValueError, TypeError) as error:
        fault = str(error) if type(error) is ValueError else f"it cannot be read ({type(error).__name__})"
        key: Where = (*where, "path" if name is not None else "weights")
        fault = f"'{name}': {fault}" if name is not None else fault
        raise job.refused(key, fault, allowed, "correct it") from None
    read = {key: value for key, value in content.items() if key != "path"} | {"weights": weights}
    return job.keys | {"survey": job.keys["survey"] | {"design_weights": read}}


def _with_calibration(job: SourcedKeys) -> Keys:
    keys = job.keys
    named, mechanism = keys.get("calibration"), keys.get("mechanism")
    if named is None or not isinstance(mechanism, dict):
        return keys
    if not isinstance(named, dict) or set(named) != {"path"} or not isinstance(path := named["path"], str):
        where, fault = ("calibration",), "the path is missing, or there are other keys"
        allowed = "{path: …}, a file that `dpdist calibrate` wrote"
        raise job.refused(where, fault, allowed, "name the file")
    calibration = load_calibration(job.folder / path)
    weights = mechanism.get("weights")
    constants = [name for name in mechanism if name not in ("name", "weights", "fallback")]
    constants += [f"weights.{name}" for name in keys_of(weights) if name != "rule"]
    if constants:
        where, fault = ("mechanism",), f"it states {', '.join(constants)} as well as a calibration"
        allowed = "name, weight rule and fallback; the calibration states the constants"
        raise job.refused(where, fault, allowed, "leave it out")
    rule = weights.get("rule") if isinstance(weights, dict) else weights
    tuned = calibration.mechanism
    same = mechanism.get("name") == tuned.name and rule in (None, tuned.weights.rule)
    settings = {"fallback": mechanism["fallback"]} if "fallback" in mechanism else {}
    completed = tuned.model_dump(mode="json") | settings if same else mechanism
    return keys | {"calibration": calibration.model_dump(mode="json"), "mechanism": completed}

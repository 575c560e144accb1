"""Reads a job from a file, a text or a mapping, together with the Stan program and the calibration that it names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from dpdist.core.errors import JobError, Problem, ProblemsError
from dpdist.job import Calibration, Job
from dpdist.job.checks import Contradiction, contradictions
from dpdist.job.earlier_form import under_model
from dpdist.job.layering import Layers, read_layers
from dpdist.job.validation import validated
from dpdist.job.values import MINISIGN, PATTERNS
from dpdist.job.yaml_lines import Lines, dotted, mapping, place, read_yaml, written

JobLike: TypeAlias = Job | Mapping[str, Any] | str | Path
"""What `job_of` can make a job from."""


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
    candidates = [shipped / path.name, shipped / f"{path.name}.yaml"]
    if path.name == str(name):
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    known = sorted(p.stem for p in shipped.glob("*.yaml"))
    raise error(
        str(name),
        [
            Problem(
                "file",
                "no such file",
                f"a YAML file, or one of the shipped ones: {', '.join(known)}",
                f"did you mean '{near[0]}'?" if (near := get_close_matches(path.stem, known, n=1)) else "check the path",
            )
        ],
    )


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
    layers, path = job_layers(name, settings)
    return _job(layers, str(path), path.parent)


def job_layers(name: str | Path, settings: Sequence[str] | None = None) -> tuple[Layers, Path]:
    """A job's layers before validation; and its file, in whose folder its calibration and Stan program are."""
    path = find_job(name)
    layers = read_layers(read_yaml(path, JobError), str(path), path.parent)
    data = path.parent if path == Path(name) else Path()
    return layers.located(data).with_settings(settings or (), str(path)), path


def job_of(job: JobLike) -> Job:
    """Makes a job from a `Job`, a mapping as in a job file, YAML text, or the path or name of a file.

    Text with several lines is YAML. Other text is a path, or the name of a shipped job. Paths in a mapping, or in YAML
    text, are relative to the working folder. Raises `JobError`.
    """
    if isinstance(job, Job):
        return job
    if isinstance(job, Mapping):
        return _job(Layers(_plain(job), {}), "job", Path())
    if isinstance(job, str) and "\n" in job:
        return parse_job(job)
    if isinstance(job, str | Path):
        return load_job(job)
    allowed = "a Job, a mapping, YAML text, or the path or name of a job file"
    raise JobError("job", [Problem("job", f"a {type(job).__name__}", allowed, "give one of these")])


def _plain(given: Any) -> Any:
    """Converts mappings, sequences and paths to the types that YAML gives."""
    if isinstance(given, Mapping):
        return {key: _plain(value) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [_plain(value) for value in given]
    return str(given) if isinstance(given, Path) else given


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
        found, remedy = f"a {type(text).__name__}", "give the text of a job; load_job takes a path"
        raise JobError(source, [Problem("text", found, "YAML text", remedy)])
    if not isinstance(folder, str | Path):
        raise JobError(
            source, [Problem("folder", f"a {type(folder).__name__}", "a path", "name the folder of the job's files")]
        )
    return _job(read_layers(text, source, Path(folder)).located(Path(folder)), source, Path(folder))


def _job(layers: Layers, source: str, folder: Path) -> Job:
    """Validates the job that the layers result in. Raises `JobError`."""
    said, lines = layers.said, layers.lines
    if earlier := [_problem(each, lines) for each in under_model(said)]:
        raise JobError(source, earlier)
    said = _with_signer(_with_program(said, folder, source, lines), folder, source, lines)
    said = _with_calibration(said, folder, source, lines)
    if layers.base is not None:
        said = said | {"extends": {"path": layers.base[0], "differs": layers.differs}}
    try:
        job = validated(Job, said, source, lines, JobError)
    except JobError as error:
        raise JobError(source, [*error.problems, *layers.to_do]) from None
    against = [_problem(each, lines) for each in contradictions(job)]
    if against or layers.to_do:
        raise JobError(source, [*against, *layers.to_do])
    return job


def _with_program(keys: dict[str, Any], folder: Path, source: str, lines: Lines) -> dict[str, Any]:
    """Replaces the file name of a Stan program by its name and text."""
    model = keys.get("model")
    if not isinstance(model, dict) or not isinstance(name := model.get("program"), str):
        return keys
    at, path = place(("model", "program"), lines), folder / name
    allowed = "the path of a Stan program (.stan) within the job file's folder"
    try:
        if path.suffix != ".stan" or not path.resolve().is_relative_to(folder.resolve()):
            found = f"'{name}' is no Stan program within the job file's folder"
            raise JobError(source, [Problem("model.program", found, allowed, "put the program beside the job", 1, at)])
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        found = f"'{name}' cannot be read ({type(error).__name__})"
        raise JobError(source, [Problem("model.program", found, allowed, "correct the path", 1, at)]) from None
    return keys | {"model": model | {"program": {"name": path.name, "text": text}}}


def _with_signer(keys: dict[str, Any], folder: Path, source: str, lines: Lines) -> dict[str, Any]:
    """Replaces the file name of a public key by the key."""
    reference = keys.get("reference")
    if not isinstance(reference, dict) or not isinstance(name := reference.get("key"), str):
        return keys
    from dpdist.core.minisign import PublicKey, SignatureError  # a library that few jobs need

    try:
        return keys | {"reference": reference | {"key": PublicKey.named(name, folder).line}}
    except SignatureError:
        found, allowed = f"'{name:.80}' is no public key, and no file of one", PATTERNS[MINISIGN]
        at, remedy = (
            place(("reference", "key"), lines),
            "name the .pub file that `dpdist keygen` wrote, or give its second line",
        )
        raise JobError(source, [Problem("reference.key", found, allowed, remedy, 1, at)]) from None


def _with_calibration(keys: dict[str, Any], folder: Path, source: str, lines: Lines) -> dict[str, Any]:
    """Replaces the path of a calibration by its content, and puts its constants into the mechanism."""
    named, mechanism = keys.get("calibration"), keys.get("mechanism")
    if named is None or not isinstance(mechanism, dict):
        return keys
    if not isinstance(named, dict) or set(named) != {"path"} or not isinstance(path := named["path"], str):
        at, allowed = place(("calibration",), lines), "{path: …}, a file that `dpdist calibrate` wrote"
        raise JobError(source, [Problem("calibration", "no path, or more than a path", allowed, "name the file", 1, at)])
    found = load_calibration(folder / path)
    weights = mechanism.get("weights")
    own = [name for name in mechanism if name not in ("name", "weights", "fallback")]
    own += [f"weights.{name}" for name in (weights if isinstance(weights, dict) else {}) if name != "rule"]
    if own:
        at, allowed = place(("mechanism",), lines), "name, weight rule and fallback; constants are the calibration's"
        problem = Problem("mechanism", f"it states {', '.join(own)} beside a calibration", allowed, "leave it out", 1, at)
        raise JobError(source, [problem])
    rule = weights.get("rule") if isinstance(weights, dict) else weights
    tuned = found.mechanism.model_dump(mode="json")
    same = mechanism.get("name") == found.mechanism.name and rule in (None, found.mechanism.weights.rule)
    kept = {"fallback": mechanism["fallback"]} if "fallback" in mechanism else {}
    return keys | {"calibration": found.model_dump(mode="json"), "mechanism": tuned | kept if same else mechanism}


def load_calibration(path: Path) -> Calibration:
    """Reads a file written by `dpdist calibrate`. Raises `JobError`."""
    text, otherwise = (
        read_yaml(path, JobError),
        Problem("file", "no calibration", "a file of `dpdist calibrate`", "name one"),
    )
    said, lines = mapping(text, str(path), JobError, otherwise)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return validated(Calibration, said | {"sha256": digest}, str(path), lines, JobError)


def calibration_text(calibration: Calibration) -> str:
    """A calibration as YAML text."""
    said = calibration.model_dump(mode="json", exclude={"sha256"})
    head = (
        "# Tuned on a reference period by `dpdist calibrate`; later jobs name it under calibration: {path: …}, unchanged.\n"
    )
    return head + written(said)


def _problem(contradiction: Contradiction, lines: Lines) -> Problem:
    return Problem(
        dotted(contradiction.where),
        contradiction.found,
        contradiction.allowed,
        contradiction.remedy,
        1,
        place(contradiction.where, lines),
    )

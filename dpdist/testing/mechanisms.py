"""Checks of a plug-in's mechanism on small jobs of a small survey: entry point, promises, noise, answers and statement."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType, SimpleNamespace
from typing import Any, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dpdist.audit.likelihood_ratios import AnsweredQueries, exactly
from dpdist.core.errors import JobError
from dpdist.core.plugins import MECHANISMS as GROUP, PluginRefused
from dpdist.engine.protocol import Measurement, Query, noise_of
from dpdist.job import SPECS, Adjacency, Job, MechanismSpec
from dpdist.job.checks import contradictions
from dpdist.job.loading import parse_job
from dpdist.mechanisms.parts import GAUSSIAN, LAPLACE, Figures, builder_of, measured_of
from dpdist.mechanisms.registry import mechanism_of
from dpdist.models.protocol import Draws
from dpdist.privacy.guarantees import Asymptotic, Concentrated, NoGuarantee, Promise, Strict
from dpdist.release import run
from dpdist.testing.losses import (
    KEY,
    CapturedStratum,
    answered,
    capture,
    neighbours,
    problems_of_scale,
)

# Each synthetic set has answers of its own. The noise that a release states is the noise that was drawn.
#
# A check returns sentences on what is wrong; it returns none for a mechanism that keeps its contract.
TRIED = 4
"""Number of neighbouring files over which a release is compared."""
MOVED = 5.0
"""Sizes, in noise scales, by which one answer is moved in either direction, to see which sets depend on it."""
SLIGHT = 1000
"""Noise, in whole units, that makes all answers different and keeps each within its domain."""
LAWS = {"laplace": LAPLACE, "gaussian": GAUSSIAN}
_SCALE = re.compile(r"(?:scale|and) (\d+(?:/\d+)?)")
_STATED = (
    re.compile(r"noise of scale (?P<d>\d+)/ε of a set"),
    re.compile(r"noise of scale (?P<d>\d+)/\((?P<part>\d+(?:/\d+)?) ε\)"),
    re.compile(r"noise of scale (?P<d>\d+) over (?P<part>\d+/\d+) of ε"),
)
"""Patterns by which assumptions state a scale: a distance D, over ε or over a part of it."""


def problems_of_answers(name: str, case: CapturedStratum, mechanism: Any = None) -> list[str]:
    """Faults: a release that follows from exact sums, sets that share an answer, noise without effect."""
    try:
        base = answered(case, case.records, _noisy, mechanism)
    except ValueError as error:
        return [f"{name}: {error}"]
    of_sums = list(_of_exact_sums(name, case, base, mechanism))
    return list(dict.fromkeys([*of_sums, *_of_sets(name, case, base, mechanism)]))


def _noisy(number: int, query: Query) -> Any:
    return query.under(noise_of(KEY.child(str(number)))(query.noise))


def _imposed(base: AnsweredQueries, place: int = -1, by: float = 0.0, uneven: bool = False) -> Callable[[int, Query], Any]:
    """The answers of `base` with one of them moved; the queries' own answers after adaptive paths part.

    Uneven figures are moved in both directions in turn, because a mechanism may subtract their mean.
    """

    def answer(number: int, query: Query) -> Any:
        if number >= len(base.answers) or not _alike(query, base.queries[number]):
            return _noisy(number, query)
        if number != place:
            return base.answers[number]
        signs = (-1.0) ** np.arange(query.noise.size).reshape(np.shape(base.answers[number])) if uneven else 1.0
        return base.answers[number] + by * float(query.noise.scale) * signs

    return answer


def _asks_otherwise(other: AnsweredQueries, base: AnsweredQueries, after: int) -> bool:
    """True if a later query concerns other figures, because an answer may only decide a choice."""
    pairs = zip(other.queries[after + 1 :], base.queries[after + 1 :], strict=False)
    return any(query.noise != as_before.noise for query, as_before in pairs)


def _alike(left: Query, right: Query) -> bool:
    return type(left) is type(right) and left.noise.size == right.noise.size


def _differing(left: AnsweredQueries, right: AnsweredQueries) -> list[tuple[int, str]]:
    """Sets and parameters that differ between two releases."""
    pairs = zip(left.released.parameters, right.released.parameters, strict=True)
    return [
        (number, name)
        for number, (mine, theirs) in enumerate(pairs, 1)
        for name in mine.values
        if not np.array_equal(mine[name], theirs[name], equal_nan=True)
    ]


def _of_exact_sums(name: str, case: CapturedStratum, base: AnsweredQueries, mechanism: Any) -> Iterator[str]:
    files = neighbours(case.job, case.records)[0]
    for file in files[:: max(1, len(files) // TRIED)]:
        other = answered(case, file, _imposed(base), mechanism)
        for number, parameter in _differing(base, other):
            yield (
                f"{name}: under the same noisy answers '{parameter}' of set {number} differs between neighbouring files: "
                "it takes exact sums. Release answers of the queries, and nothing else"
            )


def _of_sets(name: str, case: CapturedStratum, base: AnsweredQueries, mechanism: Any) -> Iterator[str]:
    sets = len(base.released.parameters)
    noises = case.job.mechanism.noises(case.job)
    per_noise, reached = sets // noises, set[int]()
    for number, query in enumerate(base.queries):
        if not isinstance(query, Measurement):
            continue
        moves = ((MOVED, False), (-MOVED, False), (MOVED, True))
        perturbed_runs = [answered(case, case.records, _imposed(base, number, *move), mechanism) for move in moves]
        touched = sorted({set_number for other in perturbed_runs for set_number, _ in _differing(base, other)})
        reached |= set(touched)
        if not touched and not any(_asks_otherwise(other, base, number) for other in perturbed_runs):
            yield f"{name}: query {number + 1} changes nothing that is released: is its answer used?"
        if len({(set_number - 1) // per_noise for set_number in touched}) > 1:
            yield (
                f"{name}: one noisy answer is in sets {', '.join(map(str, touched))}, and its specification says that "
                f"records were protected {noises} times (noises): ask for noise of its own for each"
            )
    for set_number in sorted(set(range(1, sets + 1)) - reached):
        yield f"{name}: no noisy answer changes set {set_number}: it is released without noise"


def problems_of_stated_noise(name: str, case: CapturedStratum, mechanism: Any = None) -> list[str]:
    """Faults: `measurements.parquet`, the released object or the statement has other noise than was drawn."""
    rng = np.random.default_rng(3)
    once = answered(
        case, case.records, lambda _, query: query.under(np.rint(rng.uniform(0.0, SLIGHT, query.noise.size))), mechanism
    )
    noise_by_value: dict[float, set[tuple[str, Fraction]]] = {}
    for query, answer in zip(once.queries, once.answers, strict=True):
        for value in np.ravel(answer).tolist():
            noise_by_value.setdefault(value, set()).add((query.noise.law, query.noise.scale))
    scales = {query.noise.scale for query in once.queries}
    lines, units = list[str](), set[float]()
    for theta in once.released.parameters:
        for figures in _figures(case, theta):
            units.add(figures.unit)
            lines += _of_figures(name, figures, noise_by_value)
        lines += _described(name, case, theta, scales)
    promise = (mechanism or mechanism_of(case.job)).promise(case.job)
    return list(dict.fromkeys([*lines, *_assumed(name, case, promise.assumptions, units, scales)]))


def _figures(case: CapturedStratum, theta: Draws) -> Iterator[Figures]:
    release = SimpleNamespace(job=case.job, crosstab=case.fit.crosstab, theta=lambda *_: theta, model=lambda _: case.model)
    return measured_of(case.job).figures(release, case.model, case.stratum, theta)


def _of_figures(name: str, figures: Figures, noise_by_value: dict[float, set[tuple[str, Fraction]]]) -> Iterator[str]:
    for column, (statistic, scale) in enumerate(zip(figures.statistics, figures.scales, strict=True)):
        values = np.asarray(figures.values)[:, column]
        for value in values[np.isfinite(values)].tolist() if scale is not None else ():
            if value not in noise_by_value:
                yield f"{name}: measurements.parquet lists '{statistic}', but not as a query answered it"
            elif not any(
                scale_drawn == scale and figures.law.endswith(LAWS[law]) for law, scale_drawn in noise_by_value[value]
            ):
                had = " or ".join(
                    sorted(f"{LAWS[law]} of scale {scale_drawn}" for law, scale_drawn in noise_by_value[value])
                )
                text = f"{figures.law} of scale {scale} on '{statistic}'"
                yield f"{name}: measurements.parquet states {text}, but the noise was {had}"


def _described(name: str, case: CapturedStratum, theta: Draws, scales: set[Fraction]) -> Iterator[str]:
    described = str(case.model.describe(theta).get("noise", ""))
    for text in _SCALE.findall(described):
        if Fraction(text) not in scales:
            yield f"{name}: the released object says '{described}', but no noise of the scale {text} was asked for"


def _assumed(
    name: str, case: CapturedStratum, assumptions: Sequence[str], units: set[float], scales: set[Fraction]
) -> Iterator[str]:
    for text in assumptions:
        for found in (match for pattern in _STATED for match in pattern.finditer(text)):
            epsilon = case.job.epsilon_per_set * Fraction(found.groupdict().get("part") or 1)
            expected_scales = {Fraction(found["d"]) * Fraction(unit) / epsilon for unit in units}
            if not expected_scales & scales:
                yield f"{name}: the statement says '{found[0]}', but no noise of that scale was asked for"


FIELDS, SEXES = ("arts", "law"), ("f", "m")
FAMILIES = {"salary": "lognormal", "visits": "poisson", "voted": "bernoulli", "share": "beta"}
"""Outcomes of the survey, each with a family for it."""
COLUMNS: dict[str, dict[str, Any]] = {
    "field": {"levels": list(FIELDS)},
    "sex": {"levels": list(SEXES)},
    "salary": {"bounds": [1000, 1000000], "outside": "clip"},
    "share": {"bounds": [0, 1], "outside": "clip"},
    "visits": {"bounds": [0, 60], "outside": "clip"},
    "voted": {"bounds": [0, 1], "codes": {"no": 0, "yes": 1}},
}
ADJACENCIES = (*(f"{adjacency}, same_x" for adjacency in get_args(Adjacency)), "substitution, anywhere")
"""Every adjacency, with the values that an exchanged record may take."""
CLIPPED_WEIGHT = {"bounds": [1, 100], "outside": "clip"}
WIDENED = 100.0
"""Factor between public bounds of wide jobs and the survey's, so that wider clips are reached."""


def single(values: ArrayLike) -> np.ndarray:
    """The values in single precision, so that their file has the same bytes on every processor."""
    return np.asarray(values).astype(np.float32).astype(float)


def survey(seed: int, n: int = 240) -> pd.DataFrame:
    """Records with an outcome for every family, and a weight that falls with the salary."""
    rng = np.random.default_rng(seed)
    field, sex = rng.integers(0, len(FIELDS), n), rng.integers(0, len(SEXES), n)
    log_salary = 11.0 + 0.2 * field - 0.1 * sex + 0.4 * rng.standard_normal(n)
    return pd.DataFrame(
        {
            "field": np.array(FIELDS)[field],
            "sex": np.array(SEXES)[sex],
            "salary": single(np.exp(log_salary)),
            "share": single(rng.beta(2.0 + field, 3.0, n)),
            "visits": rng.negative_binomial(3, 0.3, n),
            "voted": np.where(rng.random(n) < 0.3 + 0.1 * field, "yes", "no"),
            "weight": np.clip(single(np.exp(14.5 - log_salary + 0.3 * rng.standard_normal(n))), 1.0, 100.0),
        }
    )


def accepted_jobs(
    spec: type[MechanismSpec],
    name: str,
    file: Path,
    keys: Mapping[str, Any],
    adjacencies: Iterable[str] = ADJACENCIES,
    wide: bool = False,
) -> tuple[dict[str, Job], list[str]]:
    """For each adjacency the first small job that the mechanism accepts, and reasons for refusals.

    `keys` are merged into every job, section by section. Jobs with public bounds of weights are tried first. In wide
    jobs, public bounds of weights, salaries and visits are `WIDENED`.
    """
    jobs, refusals = dict[str, Job](), list[str]()
    for under in adjacencies:
        adjacency, exchange = under.split(", ")
        budget = {"epsilon": "12", "adjacency": adjacency} | ({"exchange": exchange} if exchange == "anywhere" else {})
        for job in _small_jobs(spec, name, budget, wide):
            try:
                jobs[under] = parse_job(json.dumps(_laid_over(job, keys, file)))
                break
            except JobError as error:
                refusals.append(str(error))
    return jobs, refusals


def _small_jobs(spec: type[MechanismSpec], name: str, budget: Mapping[str, Any], wide: bool) -> Iterator[dict[str, Any]]:
    clipped, plain = {"weight": CLIPPED_WEIGHT}, dict[str, Any]()
    weights = ((True, clipped), (True, plain), (False, plain))
    cells: tuple[tuple[list[str], list[str]], ...] = (
        (["field", "sex"], ["field"]),
        (["field", "sex"], []),
        (["field"], ["field"]),
        (["field"], []),
    )
    for sets, (weighted, column_of_weight), outcome, (by, strata) in product((2, 1), weights, FAMILIES, cells):
        columns = {column: COLUMNS[column] for column in (*by, outcome)} | column_of_weight
        if wide:
            columns = {column: _widen(declared) for column, declared in columns.items()}
        yield {
            "dataset": "small",
            "publish": "always",
            "period": "1",
            "columns": columns,
            "survey": {"weight": "weight"} if weighted else {},
            "strata": strata,
            "outcome": outcome,
            "model": None if spec.statistics is not None else {"family": FAMILIES[outcome]},
            "mechanism": {"name": name},
            "budget": budget,
            "synthetic_sets": sets,
            "tables": [{"name": "t", "by": by, "margins": True, "statistics": ["count", {"mean": outcome}]}],
            "record": {"log_lik": "never"},
            "runtime": {"executor": "serial"},
        }


def _widen(column: dict[str, Any]) -> dict[str, Any]:
    """A column with wider public bounds, except bounds 0 and 1, which limit the outcome itself."""
    low, high = column.get("bounds", (0, 1))
    return column if high <= 1 else column | {"bounds": [low / WIDENED, high * WIDENED]}


def _laid_over(job: Mapping[str, Any], keys: Mapping[str, Any], file: Path) -> dict[str, Any]:
    laid = {**job, "input": {"path": str(file)}}
    for name, value in keys.items():
        section = laid.get(name)
        laid[name] = {**section, **value} if isinstance(section, Mapping) and isinstance(value, Mapping) else value
    return laid


# A check returns sentences that say what is missing; a mechanism that keeps its contract has none.
MEMBERS = ("scope", "promise", "protect")
SCOPES = ("stratum", "file")
STRICT = (Strict, Concentrated)
WORDS = {"laplace": "Laplace", "gaussian": "Gaussian"}


def problems(name: str, mechanism: object, jobs: Sequence[Job]) -> list[str]:
    """The faults of a mechanism, each once."""
    lacking = [f"{name}: it has no {member}" for member in MEMBERS if not hasattr(mechanism, member)]
    if lacking:
        return lacking
    lines = [*_register(name, mechanism), *(line for job in jobs for line in _promised(name, mechanism, job))]
    return list(dict.fromkeys(lines))


def _register(name: str, mechanism: Any) -> Iterator[str]:
    if name not in SPECS.with_plugins():
        yield f"{name}: no job can name it: write the place of its specification into PLACES in dpdist/job/specs.py"
    if mechanism.scope not in SCOPES:
        yield f"{name}: its scope is {mechanism.scope!r}, not one of {', '.join(SCOPES)}"


def _promised(name: str, mechanism: Any, job: Job) -> Iterator[str]:
    promise = mechanism.promise(job)
    if not isinstance(promise, Promise):
        yield f"{name}: promise returns {type(promise).__name__}, not a Promise"
        return
    kinds = {type(promise.total), type(promise.per_set)}
    if len(kinds) > 1:
        yield f"{name}: a set has another class of guarantee than the release"
    if not isinstance(promise.total, (*STRICT, Asymptotic, NoGuarantee)):
        yield f"{name}: its guarantee is {type(promise.total).__name__}, which is not a guarantee class"
    strict = isinstance(promise.total, STRICT)
    if strict != job.strict:
        what, other = ("strict", "is not") if strict else (type(promise.total).__name__, "is")
        yield f"{name}: it promises {what}, and to Job.strict the job {other} strict: make them one"
    if not isinstance(promise.total, NoGuarantee):
        yield from _of_the_budget(name, promise, job)
    if strict:
        yield from _refusals(name, job)


def _of_the_budget(name: str, promise: Promise, job: Job) -> Iterator[str]:
    assert not isinstance(promise.total, NoGuarantee)
    if promise.total.epsilon != job.budget.epsilon:
        yield f"{name}: it promises ε = {promise.total.epsilon}, and the job's budget is {job.budget.epsilon}"
    if promise.total.adjacency != job.budget.adjacency:
        yield f"{name}: it promises {promise.total.adjacency}, and the job asks for {job.budget.adjacency}"


def _refusals(name: str, job: Job) -> Iterator[str]:
    for rule, changed in record_dependent(job).items():
        if not contradictions(changed):
            yield f"{name}: it is strict, and a job with '{rule}', which depends on the records, is accepted: refuse it"


def record_dependent(job: Job) -> dict[str, Job]:
    """The job under each rule whose effect depends on outcomes."""
    outcome = job.outcomes[0]
    mechanisms_made = {
        f"{rule}: drop": job.model_copy(
            update={"columns": job.columns | {outcome: job.columns[outcome].model_copy(update={rule: "drop"})}}
        )
        for rule in ("missing", "zeros")
    }
    fallback = job.mechanism.model_copy(update={"fallback": "pool"})
    mechanisms_made["fallback: pool"] = job.model_copy(update={"mechanism": fallback})
    if job.survey.weight is not None and job.mechanism.adds_noise and not job.mechanism.by_cell:
        columns = {name: column for name, column in job.columns.items() if name != job.survey.weight}
        mechanisms_made["a weight without public bounds"] = job.model_copy(update={"columns": columns})
    return mechanisms_made


def problems_of_noise(name: str, statement: Mapping[str, Any], laws: Collection[str]) -> list[str]:
    """Faults: a statement names other laws of noise than were drawn; without a promise it may name none."""
    text, actual = json.dumps(statement["assumptions"]), set(laws)
    named = {law for law, word in WORDS.items() if f"discrete {word} noise" in text}
    owed = set() if statement["guarantee"] == "none" else actual
    lines = [f"{name}: {WORDS[law]} noise is drawn, but the statement does not name it" for law in sorted(owed - named)]
    return lines + [f"{name}: the statement names {WORDS[law]} noise, but none is drawn" for law in sorted(named - actual)]


SEES_RECORDS = ("confidential", "engine", "runtime", "sampling", "storage", "survey", "mechanisms.promises")
"""Parts of dpdist that no public half may import."""
NO_KEYS: Mapping[str, Any] = MappingProxyType({})


def check_mechanism(spec: type[MechanismSpec], keys: Mapping[str, Any] = NO_KEYS) -> tuple[str, ...]:
    """Checks a mechanism by its specification; its distribution must be installed.
    Returns the adjacencies that were not tried.

    Small jobs of a small survey are tried under every adjacency, with `keys` merged into them. So `keys` has what a job
    must state beside the mechanism's name, such as `{"mechanism": {"bins": {"share": 4}}}`. The survey's outcomes are
    `salary`, `share`, `visits` and `voted`. An adjacency is not tried if it accepts no small job. Losses are measured
    under wide public bounds too. Neither accuracy nor branches on exact sums are checked. Raises `AssertionError` with
    every fault and its remedy.
    """
    with TemporaryDirectory() as folder:
        name, file = str(get_args(spec.model_fields["name"].annotation)[0]), Path(folder) / "survey.parquet"
        jobs = dict[str, Job]()
        if not (lines := list(_lines_of_entry_point(spec, name))):
            survey(1).to_parquet(file)
            jobs, refusals = accepted_jobs(spec, name, file, keys)
            lines = list(dict.fromkeys(_lines(spec, name, Path(folder), jobs, refusals)))
            if spec.adds_noise and not lines:
                wide, _ = accepted_jobs(spec, name, file, keys, jobs, wide=True)
                for under, job in wide.items():
                    lines += _lines_of_wide(name, job, Path(folder) / "wide" / under)
        if lines:
            raise AssertionError("\n".join(lines))
        return tuple(under for under in ADJACENCIES if under not in jobs)


def _lines_of_entry_point(spec: type[MechanismSpec], name: str) -> Iterator[str]:
    try:
        registered = SPECS.named(name)
    except KeyError:
        place = f"{spec.__module__}:{spec.__qualname__}"
        yield f'{name}: no entry point leads to it: add {name} = "{place}" to [project.entry-points."{GROUP}"], and install'
        return
    except PluginRefused as refusal:
        yield f"{name}: {refusal}"
        return
    if registered is not spec:
        yield f"{name}: the entry point leads to {registered.__module__}:{registered.__qualname__}: check that one"


def _lines(
    spec: type[MechanismSpec], name: str, folder: Path, jobs: Mapping[str, Job], refusals: Sequence[str]
) -> Iterator[str]:
    yield from problems_of_halves(name, spec.package)
    if not jobs:
        yield f"{name}: no small job is accepted: state its required settings in keys. A refusal: {min(refusals, key=len)}"
        return
    for under, job in jobs.items():
        try:
            mechanism = mechanism_of(job)
            builder_of(job)
            yield from problems(name, mechanism, [job])
            if spec.adds_noise:
                yield from _lines_of_noise(name, job, folder / under)
        except Exception as error:  # code of others may fail in any way
            yield f"{name}: under {under} it fails: {type(error).__name__}: {error}"


def _lines_of_noise(name: str, job: Job, folder: Path) -> Iterator[str]:
    case = capture(job, folder / "first")
    for check in (problems_of_scale, problems_of_answers, problems_of_stated_noise) if job.strict else ():
        yield from check(name, case)
    laws = {query.noise.law for query in answered(case, case.records, exactly()).queries}
    run(job, folder / "whole")
    statement = json.loads((folder / "whole" / "public" / "statement.json").read_text(encoding="utf-8"))
    yield from problems_of_noise(name, statement, laws)


def _lines_of_wide(name: str, job: Job, folder: Path) -> list[str]:
    """Faults: neighbours cost too much under wide public bounds.
    They may cost little, because a mechanism's clipping can be narrow.
    """
    faults = problems_of_scale(name, capture(job, folder), least=0.0) if job.strict else []
    return [f"{line}, for values beyond the small survey's bounds too" for line in faults]


def problems_of_halves(name: str, package: str) -> list[str]:
    """Faults: the public half, or a module that it imports from the package, imports code that sees records."""
    barred = tuple(f"dpdist.{part}" for part in SEES_RECORDS) + tuple(f"{package}.{half}" for half in ("query", "protect"))
    lines, modules, read = list[str](), [f"{package}.post"], set[str]()
    while modules:
        module = modules.pop()
        if module in read or (file := _file(module)) is None:
            continue
        read.add(module)
        for imported in _imported(file.read_text(encoding="utf-8"), module):
            if any(imported == part or imported.startswith(f"{part}.") for part in barred):
                lines.append(
                    f"{name}: {module} imports {imported}, and the public half must not see records: move that part "
                    "to query.py"
                )
            elif imported.startswith(f"{package}."):
                modules.append(imported)
    return lines


def _file(module: str) -> Path | None:
    """The file of a module; None for a name of an object within a module."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _imported(text: str, module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))

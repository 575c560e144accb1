"""Small jobs: every mechanism × adjacency × family that a job can name; variants of other keys; the shipped jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from shipped_surveys import small

from dpdist.job import SAMPLERS, SPECS, Adjacency, Family, Job
from dpdist.job.checks import contradictions
from dpdist.job.families import BINARY, COUNT, FAMILIES, UNIT, FamilyFacts, Support, facts_of
from dpdist.job.loading import find_job, parse_job
from dpdist.job.yaml_lines import dotted
from dpdist.testing.mechanisms import CLIPPED_WEIGHT, COLUMNS

Said = dict[str, Any]
CURRENT, EARLIER, RELEASED, DESIGNED = "current.parquet", "earlier.parquet", "earlier_release", "designed.parquet"
"""Files that jobs name: two surveys, the public folder of a release of the earlier one, a survey with DESIGN_WEIGHTS."""
DESIGN_WEIGHTS = {"arts": 4.0, "law": 90.0}
EXACT = "exact or grid"
"""Of a job whose release needs no Markov chain: it is recorded."""

_OUTCOMES: dict[str, str | list[str]] = {"histogram": "share", "partition": ["voted", "share"], "marginals": "voted"}
"""Outcomes of mechanisms that fit no likelihood; other ones have the salary."""
_OF_SUPPORT = {UNIT: "share", COUNT: "visits", BINARY: "voted"}
"""Outcomes that a family takes; other ones have the salary."""
_PROGRAM: Said = {"program": "partial_pooling.stan", "parameters": {"mu": [2]}, "data": {"typical": [11.5, 4.8]}}
_REFERENCE = {"reference": {"path": EARLIER, "period": "2017", "provenance": "simulated"}}
_BINS = {"bins": {"share": 4}}
_TABLES = {"strata": [], "synthetic_sets": 1}
_MECHANISMS: dict[str, Said] = {
    "weighted": {},
    "unweighted": {},
    "weighted_e": {"epsilon": "60"},
    "censor_w": {"epsilon": "40"},
    "censor_uw": {},
    "centred": _REFERENCE,
    "perturbed_histogram": {},
    "laplace": _TABLES,
    "laplace_composed": _TABLES,
    "tables": _TABLES | _REFERENCE | {"weight": CLIPPED_WEIGHT},
    "sanitized_statistics": _REFERENCE | {"weight": CLIPPED_WEIGHT, "strata": []},
    "modips": {"weight": CLIPPED_WEIGHT, "constants": {"law": "lognormal"}},
    "flat_laplace": {"weight": CLIPPED_WEIGHT, "constants": _BINS},
    "universal_histogram": {"weight": CLIPPED_WEIGHT, "constants": _BINS | {"layers": 2}},
    "steps": {"weight": CLIPPED_WEIGHT, "constants": _BINS | {"layers": 2}},
    "marginals": {"weight": CLIPPED_WEIGHT, "synthetic_sets": 1},
}
RECORDED = {"marginals": "weighted_marginals"}
"""Names under which releases were recorded, on which the recorded noise depends."""
_NEW: Said = {"weight": CLIPPED_WEIGHT}
"""What a job under a mechanism says beside its name; `_NEW` is of a mechanism that needs nothing of its own."""


def _facts(mechanism: str, family: str) -> FamilyFacts:
    """What a family takes, or the statistics that a mechanism sums."""
    if family in FAMILIES:
        return facts_of(family)
    return FamilyFacts("", Support("numbers"), False if SPECS[mechanism].counts_records else None, False)


def said(mechanism: str, adjacency: Adjacency, family: str) -> Said:
    """A small job under the three names; it may be one that is refused."""
    fitted = family in FAMILIES
    facts, own = _facts(mechanism, family), _MECHANISMS.get(mechanism, _NEW)
    outcome = _OF_SUPPORT.get(facts.support, "salary") if fitted else _OUTCOMES.get(family, "salary")
    both = facts.predictors or (not fitted and outcome == "salary")
    by = ["sex"] if family == "scores" else ["field", "sex"] if both else ["field"]
    weight = facts.weight is not False
    outcomes = [outcome] if isinstance(outcome, str) else outcome
    columns = {name: COLUMNS[name] for name in (*by, *outcomes)}
    model: Said = {"family": family} | ({"predictors": ["sex"]} if facts.predictors else {})
    model |= _PROGRAM if family == "user" else {}
    if mechanism in ("censor_w", "censor_uw", "centred") and family == "lognormal":
        model |= {"prior": {"name": "proper"}}
    if mechanism == "sanitized_statistics":
        model.pop("predictors", None)
    return {
        "dataset": "golden",
        "period": "2019",
        "input": {"path": CURRENT},
        "columns": columns | ({"weight": own["weight"]} if weight and "weight" in own else {}),
        "survey": {"weight": "weight"} if weight else {},
        "strata": [] if family == "scores" else own.get("strata", ["field"]),
        "outcome": outcome,
        "model": model if fitted else None,
        "mechanism": {"name": mechanism, **own.get("constants", {})}
        | ({"aim": 0.4} if (mechanism, family) == ("weighted", "scores") else {}),
        "budget": {"epsilon": own.get("epsilon", "12"), "adjacency": adjacency},
        "synthetic_sets": own.get("synthetic_sets", 2),
        "reference": _REFERENCE["reference"] if family == "scores" else own.get("reference"),
        "tables": [{"name": "t", "by": by, "margins": True, "statistics": ["count", {"mean": outcomes[0]}]}],
        "record": {"log_lik": "never"},
        **({"sampler": {"draws": 100}} if family in SAMPLERS and mechanism != "sanitized_statistics" else {}),
    }


def crossed() -> Iterator[tuple[str, Said]]:
    """Every mechanism × adjacency × family that a job can name, with a name of its own."""
    for mechanism in SPECS:
        for adjacency in get_args(Adjacency):
            own = (statistics,) if (statistics := SPECS[mechanism].statistics) is not None else ()
            for family in (*own, *get_args(Family)):
                yield f"{RECORDED.get(mechanism, mechanism)}-{adjacency}-{family}", said(mechanism, adjacency, family)


def _with(job: Said, **keys: Any) -> Said:
    """The job with other keys: `a__b` is b of section a; a mapping for a section is laid over it."""
    made: Said = json.loads(json.dumps(job))
    for key, value in keys.items():
        *sections, last = key.split("__")
        inner = made
        for section in sections:
            inner = inner[section]
        inner[last] = value
    return made


def variants() -> Iterator[tuple[str, Said]]:
    """Keys that change what is released, one at a time."""
    weighted = said("weighted", "zero_out", "lognormal")
    for rule in ("none", "linear", "inverse", "scalar", "cluster"):
        yield f"weighted-rule-{rule}", _with(weighted, mechanism__weights=rule)
    yield "weighted-reweighted", _with(weighted, mechanism__weights={"rule": "inverse", "reweight": 0.95})
    yield "weighted-reference", _with(weighted, **_REFERENCE, mechanism__aim=0.4)
    yield "weighted-pool", _with(weighted, mechanism__fallback="pool", budget__epsilon="0.8")
    yield "weighted-proper", _with(weighted, mechanism__fallback="proper_prior", budget__epsilon="0.8")
    yield "weighted-fbp", _with(weighted, model__synthesis="fbp")
    proportional = {"model__synthesis": "fbp", "model__population_weights": "proportional"}
    yield "weighted-proportional", _with(weighted, **proportional, survey__population=9000)
    yield "weighted-expected", _with(weighted, model__synthetic_weights="expected")
    yield "weighted-raked", _with(weighted, rake=[{"by": ["sex"], "totals": {"f": 5000, "m": 4000}}])
    two = _with(weighted, outcome=["salary", "visits"], columns__visits={"bounds": [0.5, 60], "outside": "clip"})
    yield "weighted-two-outcomes", two
    yield "weighted_e-reference", _with(said("weighted_e", "zero_out", "lognormal"), **_REFERENCE)
    yield "censor_w-reference", _with(said("censor_w", "substitution", "beta"), **_REFERENCE)
    yield "weighted-grid-reference", _with(said("weighted", "zero_out", "negative_binomial"), **_REFERENCE)
    composed = said("laplace_composed", "substitution", "noisy_tables")
    public = _with(composed, mechanism__sensitivity="public", columns__weight=CLIPPED_WEIGHT)
    yield "laplace_composed-public", public
    yield "laplace_composed-consistent", _with(public, mechanism__consistency="least_squares")
    yield from _strict_variants()
    yield from _modips_variants()
    yield (
        "steps-ordered",
        _with(said("steps", "zero_out", "partition"), mechanism={"name": "steps", **_BINS, "order": ["share"]}),
    )
    flat = said("flat_laplace", "substitution", "partition")
    yield "flat_laplace-unweighted", _with(flat, survey={}, outcome="voted", mechanism={"name": "flat_laplace"})
    yield from _marginals_variants()


def _strict_variants() -> Iterator[tuple[str, Said]]:
    tables = said("tables", "substitution", "residuals")
    histogram = {"epsilon": "3"}
    yield "tables-anywhere", _with(tables, budget__exchange="anywhere")
    yield "tables-histogram", _with(tables, reference={"histogram": histogram})
    designed = {"weight": "weight", "design_weights": {"by": ["field"], "weights": DESIGN_WEIGHTS}}
    public = _with(tables, reference={"histogram": histogram}, survey=designed, input__path=DESIGNED)
    yield "tables-public-weights", public
    yield "tables-release", _with(tables, reference={"release": RELEASED})
    two_valued = {"columns__voted": COLUMNS["voted"], "outcome": "voted"}
    tabled = [{"name": "t", "by": ["field", "sex"], "margins": True, "statistics": ["count", {"mean": "voted"}]}]
    yield "tables-two-valued", _with(tables, **two_valued, tables=tabled)
    yield "tables-raked", _with(tables, rake=[{"by": ["sex"], "totals": {"f": 5000, "m": 4000}}])
    yield "tables-strata", _with(tables, strata=["field"])
    several = [*tables["tables"], {"name": "u", "by": ["sex"], "statistics": ["count", {"total": "salary"}]}]
    yield "tables-two-tables", _with(tables, tables=several)
    yield "tables-gaussian", _with(tables, mechanism__noise="gaussian", budget__delta="1e-6")
    both = [tables["tables"][0], {"name": "u", "by": ["sex"], "statistics": ["count", {"total": "share"}]}]
    both[0] = both[0] | {"statistics": ["count", {"mean": "salary"}, {"mean": "share"}]}
    two = {"outcome": ["salary", "share"], "columns__share": COLUMNS["share"]}
    yield "tables-two-outcomes", _with(tables, **two, tables=both)
    noisy = {"reference": {"histogram": histogram}, "mechanism__noise": "gaussian", "budget__delta": "1e-6"}
    yield "tables-gaussian-histograms", _with(tables, **two, **noisy, tables=both)
    sanitized = said("sanitized_statistics", "zero_out", "lognormal")
    yield "sanitized-gaussian", _with(sanitized, mechanism__noise="gaussian", budget__delta="1e-6")
    yield "sanitized-rho", _with(sanitized, mechanism__noise="gaussian", budget={"rho": "1/4", "delta": "1e-6"})
    yield "sanitized-fbp", _with(sanitized, model__synthesis="fbp")


def _modips_variants() -> Iterator[tuple[str, Said]]:
    modips = said("modips", "substitution", "sufficient")
    truncated = {"mechanism__truncation": "bounded", "mechanism__sanitization": "individual"}
    yield "modips-bounded", _with(modips, **truncated)
    regression = {"mechanism__law": "normal", "mechanism__location": "main_effects", "strata": []}
    yield "modips-regression", _with(modips, **regression)
    yield "modips-nested", _with(modips, mechanism__nested=2, synthetic_sets=4)
    tables = [{"name": "t", "by": ["field", "sex"], "margins": True, "statistics": ["count", {"mean": "voted"}]}]
    voted = {"columns__voted": COLUMNS["voted"], "outcome": "voted", "tables": tables}
    yield "modips-bernoulli", _with(modips, **voted, mechanism__law="bernoulli")
    visits = {"columns__visits": {"bounds": [0, 9], "whole": True, "outside": "clip"}, "outcome": "visits"}
    tables = [{"name": "t", "by": ["field"], "statistics": ["count", {"mean": "visits"}]}]
    unweighted = {"survey": {}, "mechanism": {"name": "modips", "law": "multinomial"}}
    yield "modips-multinomial", _with(modips, **visits, **unweighted, tables=tables)
    known = {"mechanism": {"name": "modips", "law": "normal", "variance": 1e9}, "survey": {}}
    yield "modips-known-variance", _with(modips, **known)


def _marginals_variants() -> Iterator[tuple[str, Said]]:
    """Three columns, with pairs that are chosen and pairs that are named."""
    sex = {"bounds": [0, 1], "codes": {"f": 0, "m": 1}}
    visits = {"bounds": [0, 12], "whole": True, "outside": "clip"}
    more = {"columns__sex": sex, "columns__visits": visits, "outcome": ["sex", "visits", "voted"]}
    tables = [{"name": "t", "by": ["field"], "statistics": ["count", {"mean": "visits"}, {"median": "visits"}]}]
    chosen = _with(said("marginals", "substitution", "marginals"), **more, tables=tables)
    yield "weighted_marginals-chosen", chosen
    yield "weighted_marginals-adaptive", _with(chosen, mechanism__select="adaptive")
    named = _with(chosen, mechanism__marginals=[["sex", "visits"], ["visits", "voted"]], budget__adjacency="zero_out")
    yield "weighted_marginals-named", named
    sums = [{"of": "visits"}, {"of": "visits", "by": "sex"}]
    yield "weighted_marginals-sums", _with(named, mechanism__sums=sums)
    yield "weighted_marginals-reference", named | _REFERENCE
    network = {"name": "marginals", "select": "privbayes"}
    for adjacency in ("zero_out", "substitution"):
        yield f"privbayes-{adjacency}-marginals", _with(said("marginals", adjacency, "marginals"), mechanism=network)
    yield "privbayes-network", _with(chosen, mechanism=network)
    yield "privbayes-degree", _with(chosen, mechanism=network | {"degree": 2}, budget__adjacency="zero_out")


@cache
def reach() -> dict[str, str]:
    """What becomes of every crossed name: refused, and at which keys; or the sampler, where that is a Markov chain."""
    return {name: _fate(job) for name, job in crossed()}


@cache
def nameable() -> dict[str, Job]:
    """Every crossed name and variant that is a job; of what needs a Markov chain too."""
    made = {name: job for name, job in crossed() if not reach()[name].startswith("refused")}
    return {name: unchecked(job) for name, job in (made | dict(variants())).items()}


def jobs_under(mechanism: str) -> list[Job]:
    """Small jobs of a mechanism: its adjacencies, families and variants."""
    return [job for job in nameable().values() if job.mechanism.name == mechanism]


def unchecked(job: Said) -> Job:
    """The job, whether or not its keys go together."""
    return Job.model_validate(job if "program" not in (job.get("model") or {}) else _with(job, model__program=_program()))


def _fate(job: Said) -> str:
    found = unchecked(job)
    if against := contradictions(found):
        return f"refused: {', '.join(sorted({dotted(each.where) for each in against}))}"
    return "stan" if found.sampler.name == "stan" else EXACT


@cache
def _program() -> Said:
    return {"name": _PROGRAM["program"], "text": (find_job("doctorates_pooling").parent / _PROGRAM["program"]).read_text()}


def parsed(job: Said) -> Job:
    return parse_job(json.dumps(job))


def shipped() -> dict[str, Said]:
    """The shipped jobs that need no Markov chain, each of a small simulated survey with its columns."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(find_job("doctorates").parent.glob("*.yaml"))}
    jobs = {name: yaml.safe_load(text) for name, text in texts.items()}
    return {f"shipped-{name}": small(name, job) for name, job in jobs.items() if _fate(job) == EXACT}


@cache
def cases() -> dict[str, Said]:
    """Every job whose release is recorded, by name. Callers change none of them."""
    made = {name: job for name, job in crossed() if reach()[name] == EXACT}
    return made | dict(variants()) | shipped()


def rooted(job: Said, folder: Path) -> Said:
    """The job, with the files that it names in `folder`."""
    made: Said = json.loads(json.dumps(job))
    for section, key in (("input", "path"), ("reference", "path"), ("reference", "release")):
        if (made.get(section) or {}).get(key):
            made[section][key] = str(folder / made[section][key])
    return made

"""Checks a job's model: outcomes, family, a user's program, and sampler."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

import numpy as np

from dpdist.job import SAMPLERS, Job, MechanismSpec, Prior, Sampler, those
from dpdist.job.contradiction import Contradiction, declared, listed
from dpdist.job.families import FAMILIES, families_for, family_facts


def likelihood(job: Job) -> Iterator[Contradiction]:
    """A model must be stated for a mechanism that fits one, and for no other."""
    name = job.mechanism.name
    if (statistics := job.mechanism.statistics is not None) and job.model is not None:
        yield Contradiction(("model",), f"'{name}' fits no likelihood", "leave model out: outcome stands beside it")
    elif not statistics and job.model is None:
        found = f"'{name}' fits a likelihood, and none is stated"
        yield Contradiction(("mechanism", "name"), found, "add model: {family: lognormal}, or another family")


def several_outcomes(spec: type[MechanismSpec]) -> bool:
    """True if a mechanism can take several outcomes: by noise on all of them, or by a posterior of them together."""
    return bool(spec.several_outcomes or not (spec.clamps or spec.adds_noise))


def outcomes(job: Job) -> Iterator[Contradiction]:
    """Several outcomes need a mechanism, or a family, that accepts several."""
    names, family, mechanism = job.outcomes, job.family, job.mechanism
    if len(names) == 1:
        return
    if len(set(names)) < len(names):
        yield Contradiction(("outcome",), "an outcome is named twice", "delete one")
    if mechanism.several_outcomes:
        if set(job.compare) & {"laplace_finest", "reference_only"}:
            found = f"laplace_finest and reference_only compare one outcome, and {len(names)} are named"
            yield Contradiction(("compare",), found, "leave them out, or name one outcome")
        return
    if family != "lognormal" and mechanism.statistics is None:
        found = f"'{family}' models one outcome, and {len(names)} are named"
        yield Contradiction(("outcome",), found, "name one, or take family: lognormal, which models several together")
    if job.sampler.name != "exact":
        found = f"the program of 'lognormal' models one outcome, and {len(names)} are named"
        yield Contradiction(("sampler", "name"), found, "take exact, or name one outcome")
    if mechanism.clamps or mechanism.adds_noise:
        found, able = f"'{mechanism.name}' takes one outcome, and {len(names)} are named", those(several_outcomes)
        remedy = "take a mechanism that takes several, or name one outcome"
        yield Contradiction(("mechanism", "name"), found, remedy, listed(able, len(able)))
    proper = job.likelihood.prior.name == "proper" or mechanism.fallback == "proper_prior"
    if proper and job.likelihood.prior.records <= len(names):
        found = f"with {len(names)} outcomes a prior worth {job.likelihood.prior.records:g} records is improper"
        yield Contradiction(("model", "prior", "records"), found, f"give more than {len(names)} records")
    if set(job.compare) & {"laplace_finest", "reference_only"}:
        found = f"laplace_finest and reference_only compare one outcome, and {len(names)} are named"
        yield Contradiction(("compare",), found, "leave them out, or name one outcome")
    if mechanism.weights.rule == "cluster":
        found = "'cluster' weights by the neighbours of one outcome"
        yield Contradiction(("mechanism", "weights"), found, "take fixed_point, linear or inverse, or name one outcome")


def family_keys(job: Job) -> Iterator[Contradiction]:
    """The family's keys must suit it, and so must the outcomes."""
    family, model, facts = job.family, job.likelihood, family_facts(job)
    if facts.weight is True and job.survey.weight is None:
        yield Contradiction(
            ("survey", "weight"), f"'{family}' models outcome and weight together", "name the weight column"
        )
    if facts.weight is False and job.survey.weight is not None:
        other = "" if job.mechanism.statistics else ", or take family: lognormal"
        remedy = f"leave survey.weight out (every record then counts as one){other}"
        yield Contradiction(("survey", "weight"), f"'{job.model_name}' models the outcome alone", remedy)
    if model.predictors and not facts.predictors:
        remedy = "use them as strata, or take a regression" + (
            f": {family}_regression" if f"{family}_regression" in FAMILIES else ""
        )
        yield Contradiction(("model", "predictors"), f"'{family}' has no predictors", remedy)
    yield from _within_support(job)
    if family != "lognormal":
        yield from _fixed_by_the_family(job)
    yield from _of_a_program(job) if family == "user" else _without_a_program(job)


def _within_support(job: Job) -> Iterator[Contradiction]:
    """Bounds and codes of outcomes must be values that the family's law can have."""
    family, support = job.family, family_facts(job).support
    for outcome in declared(job):
        bounds = job.columns[outcome].bounds
        if bounds is not None and (bounds[0] < support.low or bounds[1] > support.high):
            found = f"bounds outside what '{family}' takes, {support.text}"
            yield Contradiction(("columns", outcome, "bounds"), found, "narrow them")
        codes = job.columns[outcome].codes
        wrong = [text for text, code in (codes or {}).items() if not support.inside(np.array([code]))[0]]
        if codes is not None and wrong:
            found = f"'{family}' takes {support.text}, and '{wrong[0]}' is coded {codes[wrong[0]]:g}"
            yield Contradiction(("model", "family"), found, f"families that can take it are {families_for(codes.values())}")


def _fixed_by_the_family(job: Job) -> Iterator[Contradiction]:
    """Refuses keys of the lognormal family under other families, where their values are fixed."""
    family, model = job.family, job.likelihood
    if model.synthesis != "fbs" and family == "scores":
        found = "under 'scores' the population's law has no closed form: the weight is no power of its score"
        yield Contradiction(("model", "synthesis"), found, "write fbs")
    elif model.synthesis != "fbs":
        yield Contradiction(("model", "synthesis"), f"only 'lognormal' has {model.synthesis}", "write fbs")
    if model.prior != Prior():
        where = "" if family == "scores" else ", in its program"
        yield Contradiction(("model", "prior"), f"the prior of '{family}' is fixed{where}", "leave prior out")
    if job.mechanism.fallback == "proper_prior":
        yield Contradiction(
            ("mechanism", "fallback"), f"the prior of '{job.model_name}' is proper already", "take refuse or pool"
        )


def _of_a_program(job: Job) -> Iterator[Contradiction]:
    """A user's program needs all of its keys, and names that nothing else uses."""
    model = job.likelihood
    for name in ("program", "parameters"):
        if not getattr(model, name):
            yield Contradiction(("model", name), "a user's program needs it", f"add {name}")
    if model.program is not None and "#include" in model.program.text:
        yield Contradiction(("model", "program"), "it includes another file", "write the program into one file")
    own = {"N", "y", "w", "alpha", "generate", "reference", "clamp"}
    for name in (*job.strata, *model.predictors):
        if not name.isidentifier() or name in own:
            yield Contradiction(
                ("model", "predictors"), f"'{name}' cannot name a variable of a program", "rename the column"
            )
    columns = {*job.strata, *model.predictors}
    for name in model.data:
        if name in own | columns | {f"{column}_levels" for column in columns}:
            yield Contradiction(("model", "data", name), f"'{name}' is given by dpdist, record by record", "rename it")
    if not _finite(model.data):
        yield Contradiction(("model", "data"), "a value is no number, list or mapping of finite numbers", "write numbers")
    yield from _parameters(job)


def _parameters(job: Job) -> Iterator[Contradiction]:
    """A user's parameters need valid names and sizes."""
    model, columns = job.likelihood, {*job.strata, *job.likelihood.predictors}
    for name, dims in model.parameters.items():
        if name in ("chain", "draw", "stratum", *columns) or not name.isidentifier():
            yield Contradiction(
                ("model", "parameters", name), f"'{name}' is the name of a dimension", "rename the parameter"
            )
        for dim in dims:
            if isinstance(dim, int) and dim < 1:
                yield Contradiction(("model", "parameters", name), f"{dim} is no size", "give a size of at least 1")
            if isinstance(dim, str) and dim not in (*model.predictors, *job.strata):
                yield Contradiction(
                    ("model", "parameters", name), f"'{dim}' is no predictor", "name a predictor, or give a size"
                )


def _without_a_program(job: Job) -> Iterator[Contradiction]:
    """Refuses keys of a user's program under families that come with a program."""
    model = job.likelihood
    for name in ("program", "parameters", "data", "log_lik"):
        if getattr(model, name):
            yield Contradiction(
                ("model", name), f"'{job.family}' comes with its program", f"leave {name} out, or take family: user"
            )


def sampler_settings(job: Job) -> Iterator[Contradiction]:
    """The sampler must be one of the family's, without settings of other samplers."""
    sampler, known = job.sampler, SAMPLERS.get(job.family, ())
    if not known:
        if "sampler" in job.model_fields_set and sampler != Sampler(name="exact"):
            yield Contradiction(("sampler",), f"'{job.model_name}' draws from no posterior", "leave sampler out")
        return
    if sampler.name not in known:
        yield Contradiction(
            ("sampler", "name"), f"'{job.family}' has no {sampler.name} sampler", f"take {' or '.join(known)}"
        )
    if sampler.name != "stan":
        for name in sorted(sampler.model_fields_set - {"name", "draws"}):
            yield Contradiction(
                ("sampler", name), f"'{sampler.name}' makes independent draws and has no {name}", "leave it out"
            )
        if "diagnostics" in job.model_fields_set:
            yield Contradiction(("diagnostics",), f"'{sampler.name}' makes independent draws", "leave diagnostics out")


def _finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return isinstance(value, int | float) and isfinite(value)

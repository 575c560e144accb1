"""Checks of how a job is fitted and run: likelihood, sampler, budget, reference, calibration, scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from math import ceil, isfinite

import numpy as np

from dpdist.job import LEAST_BUDGET, TOO_LITTLE, Column, Job, MechanismSpec, Prior, Runtime, Sampler, those
from dpdist.job.families import FAMILIES, families_for, samplers_of
from dpdist.job.mechanism import declared, family_facts
from dpdist.job.rules import Contradiction, broken


def several_outcomes(spec: type[MechanismSpec]) -> bool:
    """True if a mechanism can take several outcomes, by noise on all of them or by a joint posterior."""
    return bool(spec.several_outcomes or not (spec.clamps or spec.adds_noise))


def outcomes(job: Job) -> Iterator[Contradiction]:
    """Several outcomes need a mechanism, or a family, that accepts several."""
    yield from broken("named_outcomes", job, twice=len(set(job.outcomes)) < len(job.outcomes))
    yield from broken("outcomes", job, able=lambda: ", ".join(those(several_outcomes)))
    yield from broken("compared_outcomes", job)


def family_keys(job: Job) -> Iterator[Contradiction]:
    """The family's keys must suit it, and so must the outcomes."""
    regression = f"{job.family}_regression"
    of_it = f": {regression}" if regression in FAMILIES else ""
    yield from broken("family", job, facts=family_facts(job), regression=of_it)
    yield from _within_support(job)
    yield from broken("fixed_by_family", job, states_prior=job.likelihood.prior != Prior())
    if job.family == "user":
        yield from _of_a_program(job)
    yield from broken("no_program", job)


def _within_support(job: Job) -> Iterator[Contradiction]:
    support = family_facts(job).support
    for outcome in declared(job):
        bounds = job.columns[outcome].bounds
        beyond = bounds is not None and (bounds[0] < support.low or bounds[1] > support.high)
        codes = job.columns[outcome].codes or {}
        wrong = next((text for text, code in codes.items() if not support.takes(np.array([float(code)]))[0]), None)
        facts = {"beyond": beyond, "wrong": wrong, "code": codes.get(wrong or ""), "support": support}
        yield from broken("support", job, name=outcome, families=partial(families_for, codes.values()), **facts)


def _of_a_program(job: Job) -> Iterator[Contradiction]:
    model = job.likelihood
    yield from broken("program", job, finite=_finite(model.data))
    reserved = {"N", "y", "w", "alpha", "generate", "reference", "clamp"}
    columns = dict.fromkeys([*job.strata, *model.predictors])
    for name in (*job.strata, *model.predictors):
        yield from broken("variable", job, name=name, unusable=not name.isidentifier() or name in reserved)
    given = reserved | {*columns, *(f"{column}_levels" for column in columns)}
    for name in model.data:
        yield from broken("program_data", job, name=name, given=name in given)
    for name, dims in model.parameters.items():
        taken = name in ("chain", "draw", "stratum", *columns) or not name.isidentifier()
        yield from broken("parameter", job, name=name, taken=taken)
        for dim in dims:
            size = dim if isinstance(dim, int) else 1
            yield from broken("dimension", job, name=name, dim=dim, size=size, unknown=size != dim and dim not in columns)


def sampler_settings(job: Job) -> Iterator[Contradiction]:
    """The sampler must be one of the family's, without another sampler's settings."""
    sampler, samplers = job.sampler, samplers_of(job.family) if job.mechanism.statistics is None else ()
    if not samplers:
        stated = "sampler" in job.model_fields_set and sampler != Sampler(name="exact")
        yield from broken("no_sampler", job, stated=stated)
        return
    yield from broken("sampler", job, lacking=sampler.name not in samplers, samplers=" or ".join(samplers))
    for name in sorted(sampler.model_fields_set - {"name", "draws"}):
        yield from broken("of_chains", job, name=name)
    yield from broken("independent", job, limited="diagnostics" in job.model_fields_set)


def _finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return isinstance(value, int | float) and isfinite(value)


def comparators(job: Job) -> Iterator[Contradiction]:
    """The comparators FBS and FBP need a weight, and an outcome that can be lognormal."""
    names = " and ".join(how for how in ("fbs", "fbp") if how in job.compare)
    yield from broken("fitted_comparators", job, fitted=names)
    for outcome in declared(job):
        why = _never_lognormal(job.columns[outcome])
        yield from broken("never_lognormal", job, fitted=names, name=outcome, why=why)


def _never_lognormal(column: Column) -> str | None:
    """The reason why no column with these bounds or codes can be lognormal, apart from zeros; None if it can."""
    low, high = column.bounds or (0.0, float("inf"))
    support = FAMILIES["lognormal"].support
    if low < support.low or high <= support.low:
        return f"has bounds outside what it takes, {support.text} (zeros are left out of the fit)"
    above = {value for value in (column.codes or {}).values() if value > 0}
    if column.codes is not None and len(above) < 2:
        return "is coded with a single value above 0"
    if column.whole and high - max(1, ceil(low)) < 1:
        return "has a single whole value above 0"
    return None


def reference(job: Job) -> Iterator[Contradiction]:
    """A mechanism that needs a reference must have one; a mechanism without use for it must not.

    An earlier release, or histograms of the current file, can be a reference only for some mechanisms and settings.
    """
    yield from broken("reference", job, able=lambda: " or ".join(those(lambda spec: spec.uses("reference"))))
    chained = job.mechanism.uses("reference.release") and job.carries
    yield from broken("no_public_file", job, chained=chained)
    if not job.epsilon.histograms:
        return
    weight, most, share = job.survey.measured_weight, job.most_records, job.mechanism.histogram_share
    bounds = job.columns[weight].bounds if weight in job.columns else None
    facts = {
        "share": share or Fraction(1, 3),
        "too_little": TOO_LITTLE,
        "little_left": 0 < job.epsilon.tables / most < LEAST_BUDGET,
        "little_each": job.epsilon.histograms / most < LEAST_BUDGET,
        "without_bounds": weight is not None and (bounds is None or bounds[0] < 0),
    }
    yield from broken("histograms", job, chained=chained, **facts)


def calibration(job: Job) -> Iterator[Contradiction]:
    """A calibration must be for this job's data, model, mechanism and budget, and from another period."""
    names = ("dataset", "columns", "universe", "survey", "strata", "outcome", "model", "budget", "synthetic_sets")
    for name in (*names, "privacy_unit") if job.calibration is not None else ():
        yield from broken("calibrated", job, name=name, differs=getattr(job.calibration, name) != getattr(job, name))
    yield from broken("calibration", job)


LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def scheduler_contradictions(runtime: Runtime) -> Iterator[Contradiction]:
    """An external scheduler needs a full address, and links that are encrypted or stay on this machine."""
    address, protocol, host = runtime.scheduler, None, ""
    if address not in (None, "config"):
        match = re.fullmatch(r"(tls|tcp)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})", str(address))
        protocol, host = ("unknown", "") if match is None else (match[1], match[2])
    yield from broken("scheduler", runtime, protocol=protocol, loopback=host in LOOPBACK)

"""Checks of how a job is fitted and run: likelihood, sampler, budget, reference, calibration, scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from math import ceil, isfinite

import numpy as np

from dpdist.job import LEAST_BUDGET, TOO_LITTLE, Column, Fit, Job, MechanismSpec, Prior, Runtime, Sampler, those
from dpdist.job.families import FAMILIES, families_for, parametric, samplers_of
from dpdist.job.mechanism import Contradiction, declared, family_facts, listed


def likelihood(job: Job) -> Iterator[Contradiction]:
    """A model must be stated for a mechanism that fits one, and for no other."""
    name = job.mechanism.name
    if (statistics := job.mechanism.statistics is not None) and job.model is not None:
        yield Contradiction(("model",), f"'{name}' fits no likelihood", "leave model out; outcome is a key of its own")
    elif not statistics and job.model is None:
        fault = f"'{name}' fits a likelihood, and none is stated"
        yield Contradiction(("mechanism", "name"), fault, "add model: {family: lognormal}, or another family")


def several_outcomes(spec: type[MechanismSpec]) -> bool:
    """True if a mechanism can take several outcomes, by noise on all of them or by a joint posterior."""
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
            fault = f"laplace_finest and reference_only are computed for one outcome, and {len(names)} are named"
            yield Contradiction(("compare",), fault, "leave them out, or name one outcome")
        return
    if family != "lognormal" and mechanism.statistics is None:
        fault = f"'{family}' models one outcome, and {len(names)} are named"
        yield Contradiction(("outcome",), fault, "name one, or use family: lognormal, which models several together")
    if job.sampler.name != "exact":
        fault = f"the program of 'lognormal' models one outcome, and {len(names)} are named"
        yield Contradiction(("sampler", "name"), fault, "use exact, or name one outcome")
    if mechanism.clamps or mechanism.adds_noise:
        fault, able = f"'{mechanism.name}' takes one outcome, and {len(names)} are named", those(several_outcomes)
        remedy = "use a mechanism that takes several, or name one outcome"
        yield Contradiction(("mechanism", "name"), fault, remedy, listed(able, len(able)))
    proper = job.likelihood.prior.name == "proper" or mechanism.fallback == "proper_prior"
    if proper and job.likelihood.prior.records <= len(names):
        fault = f"with {len(names)} outcomes, a prior that counts as {job.likelihood.prior.records:g} records is improper"
        yield Contradiction(("model", "prior", "records"), fault, f"let it count as more than {len(names)} records")
    if set(job.compare) & {"laplace_finest", "reference_only"}:
        fault = f"laplace_finest and reference_only are computed for one outcome, and {len(names)} are named"
        yield Contradiction(("compare",), fault, "leave them out, or name one outcome")
    if mechanism.weights.facts.uses_outcomes:
        fault = f"'{mechanism.weights.rule}' weights by the neighbours of one outcome"
        yield Contradiction(("mechanism", "weights"), fault, "use fixed_point, linear or inverse, or name one outcome")


def family_keys(job: Job) -> Iterator[Contradiction]:
    """The family's keys must suit it, and so must the outcomes."""
    family, model, facts = job.family, job.likelihood, family_facts(job)
    if facts.weight is True and job.survey.weight is None:
        yield Contradiction(
            ("survey", "weight"), f"'{family}' models outcome and weight together", "name the weight column"
        )
    if facts.weight is False and job.survey.weight is not None:
        other = "" if job.mechanism.statistics else ", or use family: lognormal"
        remedy = f"leave survey.weight out (every record then counts as one){other}"
        yield Contradiction(("survey", "weight"), f"'{job.model_name}' models only the outcome", remedy)
    if model.predictors and not facts.predictors:
        remedy = "use them as strata, or use a regression" + (
            f": {family}_regression" if f"{family}_regression" in FAMILIES else ""
        )
        yield Contradiction(("model", "predictors"), f"'{family}' has no predictors", remedy)
    yield from _within_support(job)
    if family != "lognormal":
        yield from _fixed_by_the_family(job)
    yield from _of_a_program(job) if family == "user" else _without_a_program(job)


def _within_support(job: Job) -> Iterator[Contradiction]:
    family, support = job.family, family_facts(job).support
    for outcome in declared(job):
        bounds = job.columns[outcome].bounds
        if bounds is not None and (bounds[0] < support.low or bounds[1] > support.high):
            fault = f"bounds outside the range of '{family}', {support.text}"
            yield Contradiction(("columns", outcome, "bounds"), fault, "narrow them")
        codes = job.columns[outcome].codes
        wrong = [text for text, code in (codes or {}).items() if not support.takes(np.array([float(code)]))[0]]
        if codes is not None and wrong:
            fault = f"'{family}' takes {support.text}, and '{wrong[0]}' is coded {codes[wrong[0]]:g}"
            yield Contradiction(("model", "family"), fault, f"families that can take it are {families_for(codes.values())}")


def _fixed_by_the_family(job: Job) -> Iterator[Contradiction]:
    family, model = job.family, job.likelihood
    if model.synthesis != "fbs" and family == "scores":
        fault = (
            "under 'scores', the distribution in the population has no closed form: the weight is not a power of its score"
        )
        yield Contradiction(("model", "synthesis"), fault, "write fbs")
    elif model.synthesis != "fbs":
        yield Contradiction(("model", "synthesis"), f"only 'lognormal' has {model.synthesis}", "write fbs")
    if model.prior != Prior():
        where = "" if family == "scores" else ", in its program"
        yield Contradiction(("model", "prior"), f"the prior of '{family}' is fixed{where}", "leave prior out")
    if job.mechanism.fallback == "proper_prior":
        yield Contradiction(
            ("mechanism", "fallback"), f"the prior of '{job.model_name}' is proper already", "use refuse or pool"
        )


def _of_a_program(job: Job) -> Iterator[Contradiction]:
    model = job.likelihood
    for name in ("program", "parameters"):
        if not getattr(model, name):
            yield Contradiction(("model", name), "a user's program needs it", f"add {name}")
    if model.program is not None and "#include" in model.program.text:
        yield Contradiction(("model", "program"), "it includes another file", "write the program into one file")
    reserved = {"N", "y", "w", "alpha", "generate", "reference", "clamp"}
    for name in (*job.strata, *model.predictors):
        if not name.isidentifier() or name in reserved:
            yield Contradiction(
                ("model", "predictors"), f"'{name}' cannot name a variable of a program", "rename the column"
            )
    columns = {*job.strata, *model.predictors}
    for name in model.data:
        if name in reserved | columns | {f"{column}_levels" for column in columns}:
            yield Contradiction(("model", "data", name), f"'{name}' is given by dpdist, record by record", "rename it")
    if not _finite(model.data):
        yield Contradiction(
            ("model", "data"), "a value is not a number, list or mapping of finite numbers", "write numbers"
        )
    yield from _parameters(job)


def _parameters(job: Job) -> Iterator[Contradiction]:
    model, columns = job.likelihood, {*job.strata, *job.likelihood.predictors}
    for name, dims in model.parameters.items():
        if name in ("chain", "draw", "stratum", *columns) or not name.isidentifier():
            yield Contradiction(
                ("model", "parameters", name), f"'{name}' is the name of a dimension", "rename the parameter"
            )
        for dim in dims:
            if isinstance(dim, int) and dim < 1:
                yield Contradiction(("model", "parameters", name), f"{dim} is not a size", "give a size of at least 1")
            if isinstance(dim, str) and dim not in (*model.predictors, *job.strata):
                yield Contradiction(
                    ("model", "parameters", name), f"'{dim}' is not a predictor", "name a predictor, or give a size"
                )


def _without_a_program(job: Job) -> Iterator[Contradiction]:
    model = job.likelihood
    for name in ("program", "parameters", "data", "log_lik"):
        if getattr(model, name):
            yield Contradiction(
                ("model", name), f"'{job.family}' comes with its program", f"leave {name} out, or use family: user"
            )


def sampler_settings(job: Job) -> Iterator[Contradiction]:
    """The sampler must be one of the family's, without another sampler's settings."""
    sampler, samplers = job.sampler, samplers_of(job.family) if job.mechanism.statistics is None else ()
    if not samplers:
        if "sampler" in job.model_fields_set and sampler != Sampler(name="exact"):
            yield Contradiction(("sampler",), f"'{job.model_name}' does not draw from a posterior", "leave sampler out")
        return
    if sampler.name not in samplers:
        yield Contradiction(
            ("sampler", "name"), f"'{job.family}' has no {sampler.name} sampler", f"use {' or '.join(samplers)}"
        )
    if sampler.name != "stan":
        for name in sorted(sampler.model_fields_set - {"name", "draws"}):
            yield Contradiction(
                ("sampler", name), f"'{sampler.name}' makes independent draws, so it has no {name}", "leave it out"
            )
        if "diagnostics" in job.model_fields_set:
            yield Contradiction(("diagnostics",), f"'{sampler.name}' makes independent draws", "leave diagnostics out")


def _finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return isinstance(value, int | float) and isfinite(value)


def noise_of_budget(job: Job) -> Iterator[Contradiction]:
    """Gaussian noise needs a δ. With other noise a job must not state one."""
    if job.mechanism.gaussian and job.budget.delta is None:
        fault = "with Gaussian noise, no epsilon holds without a delta"
        remedy = 'add delta, below one over the number of records, as in delta: "1e-6"'
        yield Contradiction(("budget", "delta"), fault, remedy)
    for key in ("delta", "rho") if not job.mechanism.gaussian else ():
        if getattr(job.budget, key) is not None:
            names = " or ".join(those(lambda spec: "noise" in spec.model_fields))
            fault = f"'{job.mechanism.name}' has a {key} only with Gaussian noise"
            remedy = f"leave it out, or use mechanism: {{name: {names}, noise: gaussian}}"
            yield Contradiction(("budget", key), fault, remedy)


def comparators(job: Job) -> Iterator[Contradiction]:
    """The comparators FBS and FBP need a weight, and an outcome that can be lognormal."""
    names = " and ".join(how for how in ("fbs", "fbp") if how in job.compare)
    if not names:
        return
    remedy = f"leave {names} out"
    if job.survey.weight is None:
        yield Contradiction(
            ("compare",), f"{names} would fit outcome and weight together", f"name survey.weight, or {remedy}"
        )
    if len(job.outcomes) > 1:
        fault = f"{names} would be fitted to one outcome, and {len(job.outcomes)} are named"
        yield Contradiction(("compare",), fault, f"{remedy}, or name one outcome")
    for outcome in declared(job):
        if why := _never_lognormal(job.columns[outcome]):
            yield Contradiction(("compare",), f"{names} would fit a lognormal law, and '{outcome}' {why}", remedy)


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
    """A mechanism that needs a reference must have one; a mechanism without use for it must not."""
    mechanism, name, form = job.mechanism, job.mechanism.name, job.reference
    if mechanism.needs_reference and form is None:
        fault, remedy = f"'{name}' {mechanism.needs_reference}, and the job names none", "add reference: {path: …}"
        if job.sizes_in_sums and mechanism.histogram_share is not None:
            fault += "; noisy histograms can replace a reference only if numbers of records are public"
            remedy += ", or use adjacency: substitution or zero_out without exchange: anywhere"
        yield Contradiction(("reference",), fault, remedy)
    scored = job.family == "scores"
    if scored and form is None:
        why = "'scores' turns values into scores by the distributions of a public file"
        yield Contradiction(("reference",), why, "add reference: {path: …}, or use family: lognormal")
    if form is None and any(how in job.compare for how in ("laplace_finest", "reference_only")):
        yield Contradiction(
            ("compare",),
            "laplace_finest and reference_only need a reference",
            "add reference: {path: …}, or leave them out",
        )
    if form is not None and not mechanism.uses("reference") and (mechanism.clamps or not scored):
        names = those(lambda spec: spec.uses("reference"))
        yield Contradiction(
            ("reference",), f"'{name}' does not use a reference", f"leave it out, or use {' or '.join(names)}"
        )
    if form is not None and form.is_redacted:
        yield Contradiction(("reference", "path"), "no file is named", "add path, an earlier period's file that is public")
    yield from release_or_histogram(job)
    if form is not None and form.period == job.period:
        yield Contradiction(
            ("reference", "period"), f"its period, {form.period}, is the job's own", "use an earlier period's file"
        )


def fit(job: Job) -> Iterator[Contradiction]:
    """Limits on a family's fit need a reference with records, on which the fit is measured."""
    if job.fit == Fit():
        return
    form = job.reference
    if form is None or not form.holds_records:
        fault = "a family's fit is measured on the records of a reference, and the job names none"
        yield Contradiction(("fit",), fault, "add reference: {path: …}, or leave fit out")
    elif not parametric(job.family):
        fault = f"'{job.model_name}' is not a parametric law that could be fitted to the reference without a Markov chain"
        yield Contradiction(("fit",), fault, "leave fit out")


def release_or_histogram(job: Job) -> Iterator[Contradiction]:
    """An earlier release, or histograms of the current file, can be a reference only for some mechanisms and settings."""
    form, name = job.reference, job.mechanism.name
    if form is None or form.holds_records:
        return
    share, chained = job.mechanism.histogram_share, job.mechanism.uses("reference.release") and job.carries
    if share is None and not chained:
        yield Contradiction(
            ("reference",), f"'{name}' is fixed on the records of a reference", "name a public file under reference.path"
        )
    elif chained and form.histograms is not None:
        fault = f"'{name}' measures drift with its own tables, and needs no histograms"
        yield Contradiction(("reference", "histogram"), fault, "leave it out")
        return
    if form.release_folder is not None and form.period is not None:
        yield Contradiction(("reference", "period"), "an earlier release states its own period", "leave it out")
    if form.histograms is None:
        return
    if form.histograms.epsilon >= job.budget.epsilon:
        fault = "the histograms would spend the whole budget that budget.epsilon states"
        remedy = f"give them a part of the budget, usually {share or Fraction(1, 3)}"
        yield Contradiction(("reference", "histogram", "epsilon"), fault, remedy)
    elif 0 < job.epsilon.tables / job.most_records < LEAST_BUDGET:
        fault = f"the histograms leave less than 1e-6 for the table, and {TOO_LITTLE}"
        yield Contradiction(("reference", "histogram", "epsilon"), fault, "give the histograms less, or raise epsilon")
    elif form.histograms.epsilon / job.most_records < LEAST_BUDGET:
        fault = f"with {job.most_records} records per unit, less than 1e-6 is left for each, and {TOO_LITTLE}"
        yield Contradiction(("reference", "histogram", "epsilon"), fault, "give the histograms more")
    yield from _histogram_alone(job)


def _histogram_alone(job: Job) -> Iterator[Contradiction]:
    """Histograms of the current file have no period, and cannot serve comparators that need an earlier file."""
    if job.reference is not None and job.reference.period is not None:
        yield Contradiction(("reference", "period"), "histograms come from the current file", "leave it out")
    if any(how in job.compare for how in ("laplace_finest", "reference_only")):
        yield Contradiction(
            ("compare",), "laplace_finest and reference_only need a file or an earlier release", "leave them out"
        )
    weight = job.survey.measured_weight
    bounds = job.columns[weight].bounds if weight in job.columns else (0.0, 1.0)
    if weight is not None and (weight not in job.columns or bounds is None or bounds[0] < 0):
        fault = "histograms instead of a reference need public bounds of the weight that begin at 0 or above"
        remedy = f"add {weight}: {{bounds: [1, …], outside: clip}} to columns, or add reference: {{path: …}}"
        yield Contradiction(("columns", weight), fault, remedy)


def calibration(job: Job) -> Iterator[Contradiction]:
    """A calibration must be for this job's data, model, mechanism and budget, and from another period."""
    tuned = job.calibration
    if tuned is None:
        return
    for name in (
        "dataset",
        "columns",
        "universe",
        "survey",
        "strata",
        "outcome",
        "model",
        "budget",
        "synthetic_sets",
        "privacy_unit",
    ):
        if getattr(tuned, name) != getattr(job, name):
            yield Contradiction(
                ("calibration",), f"it was made for another {name}", "calibrate this job on a reference period"
            )
    if tuned.mechanism.name != job.mechanism.name or tuned.mechanism.weights.rule != job.mechanism.weights.rule:
        yield Contradiction(
            ("calibration",), "it was made for another mechanism or weight rule", "calibrate this job on a reference period"
        )
    if tuned.referring != (job.reference is not None):
        with_or_without = "with" if tuned.referring else "without"
        yield Contradiction(
            ("calibration",), f"it was made {with_or_without} a reference", "give the job the same, or calibrate it again"
        )
    if tuned.period == job.period:
        yield Contradiction(
            ("calibration",), f"it was tuned on period {tuned.period}, the job's own", "tune on an earlier period"
        )


LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def scheduler_contradictions(runtime: Runtime) -> Iterator[Contradiction]:
    """An external scheduler needs a full address, and links that are encrypted or stay on this machine."""
    address, path = runtime.scheduler, ("runtime", "scheduler")
    if address is None:
        if runtime.tls is not None:
            yield Contradiction(
                ("runtime", "tls"), "certificates are only for a running scheduler", "name it in runtime.scheduler"
            )
        return
    if runtime.executor != "dask":
        yield Contradiction(("runtime", "executor"), "a running scheduler needs executor: dask", "write executor: dask")
    if address == "config":
        return
    match = re.fullmatch(r"(tls|tcp)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})", address)
    if match is None:
        yield Contradiction(
            path, "not an address", "write tls://host:port, tcp://host:port, or config to use Dask's configuration"
        )
    elif match[1] == "tls" and runtime.tls is None:
        yield Contradiction(
            ("runtime", "tls"), "a tls:// scheduler needs certificates", "name a folder with ca.crt, tls.crt and tls.key"
        )
    elif match[1] == "tcp" and runtime.tls is not None:
        yield Contradiction(path, "certificates and a tcp:// address", "write tls://")
    elif match[1] == "tcp" and match[2] not in LOOPBACK and not runtime.allow_plain:
        yield Contradiction(
            path, "tcp:// is open to everybody on its network", "use tls://, or set runtime.allow_plain: true"
        )

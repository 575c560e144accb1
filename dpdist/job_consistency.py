"""What one key of a job says against another: found once, when the job is read, each with its path and remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import product
from math import isfinite, prod

import numpy as np

from dpdist.families import FAMILIES, families_for
from dpdist.job import CLAMPED, FIXED_WEIGHTS, NOISY, REFERRING, Job, Mechanism, Prior, Runtime, Sampler, Weights

Path_ = tuple[str | int, ...]
Contradiction = tuple[Path_, str]
"""Path in the job, and "what is wrong: how to mend it"."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
WRITTEN = {
    *("count", "statistic", "variable", "estimator", "estimate", "standard_error", "df", "lower", "upper", "suppressed"),
    *("direct", "direct_se", "direct_df", "direct_cv"),
    *("synthetic", "synthetic_records", "laplace", "laplace_composed", "laplace_consistent", "truth"),
}
"""Columns that frames and tables have beside the categories."""


def contradictions(job: Job) -> list[Contradiction]:
    """Every contradiction; empty when the job is consistent."""
    return [
        *_categories(job),
        *_roles(job),
        *_universe(job),
        *_outcomes(job),
        *_family(job),
        *_sampler(job),
        *_tables(job),
        *_promises(job),
        *_rake(job),
        *_weights(job),
        *_clamp(job),
        *_strict(job),
        *_reference(job),
        *_calibration(job),
        *_histogram(job),
        *scheduler_contradictions(job.runtime),
    ]


def _categories(job: Job) -> Iterator[Contradiction]:
    """Columns used as categories are declared with levels, once in each list, under names of their own."""
    lists: list[tuple[Path_, tuple[str, ...]]] = [
        (("strata",), job.strata),
        (("model", "predictors"), job.model.predictors),
        (("survey", "design_strata"), job.survey.design_strata),
        *((("tables", i, "by"), table.by) for i, table in enumerate(job.tables)),
        *((("rake", i, "by"), rake.by) for i, rake in enumerate(job.rake)),
    ]
    for path, names in lists:
        for i, name in enumerate(names):
            if name not in job.columns:
                yield (*path, i), f"column '{name}' is not declared: add it to columns with its public levels"
            elif job.columns[name].levels is None:
                yield (*path, i), f"column '{name}' has bounds, but a category with levels is needed here"
            if name in names[:i]:
                yield (*path, i), f"'{name}' is named twice: delete one"
    for i, name in enumerate(job.model.predictors):
        if name in job.strata:
            yield ("model", "predictors", i), f"'{name}' is constant within a stratum: leave it out"
    for name in job.categories:
        if name in WRITTEN:
            yield ("columns", name), f"'{name}' is a column that tables have of their own: rename the column"
    if prod(len(job.columns[name].levels or ()) for name in job.categories if name in job.columns) >= 2**62:
        yield ("columns",), "the categories have too many combinations: merge levels"


def _roles(job: Job) -> Iterator[Contradiction]:
    """Outcome, weight and PSU are different columns, each with what its role needs."""
    outcomes, weight, psu = job.model.outcomes, job.survey.weight, job.survey.psu
    for outcome in outcomes:
        if outcome not in job.columns or job.columns[outcome].bounds is None:
            yield ("model", "outcome"), f"column '{outcome}' needs public bounds in columns"
    if weight is not None and weight in (*outcomes, *job.categories):
        yield ("survey", "weight"), f"'{weight}' is used as outcome or category as well"
    declared = job.columns.get(weight) if weight is not None else None
    clipped = declared is not None and declared.outside == "clip" and job.mechanism.name != "laplace_strict"
    if declared is not None and ((declared.missing, declared.zeros) != ("error", "error") or clipped):
        yield ("columns", str(weight)), "a weight has no rules: leave records without a weight out by a universe"
    if psu is not None and psu in (*outcomes, weight):
        yield ("survey", "psu"), f"'{psu}' is used as outcome or weight as well"
    replicated = job.survey.replicate_weights
    if replicated is not None and weight is None:
        yield ("survey", "replicate_weights"), "replicate weights are of a weight: name survey.weight"
    if replicated is not None and (psu is not None or job.survey.fpc):
        yield ("survey", "replicate_weights"), "replicate weights carry PSUs and populations: leave psu and fpc out"
    if len(job.survey.fpc) == 2 and psu is None:
        yield ("survey", "fpc"), "a second population size is that of a PSU: name survey.psu, or one column"
    for i, name in enumerate(job.survey.fpc):
        if name in (*outcomes, weight, psu, *job.categories) or name in job.survey.fpc[:i]:
            yield ("survey", "fpc", i), f"'{name}' is used as outcome, weight, PSU or category as well: name another column"
    used = set() if replicated is None else {*outcomes, weight, *job.categories} & set(replicated.columns)
    for clash in used:
        yield ("survey", "replicate_weights"), f"'{clash}' is used as outcome, weight or category as well: rename it"
    for name in job.model.prior.location:
        if name not in (*outcomes, weight):
            known = " or ".join(map(str, (*outcomes, weight)))
            yield ("model", "prior", "location", name), f"'{name}' is not modelled: name {known}"


def _universe(job: Job) -> Iterator[Contradiction]:
    for i, keep in enumerate(job.universe):
        domain = job.columns.get(keep.column)
        unknown = set(map(str, keep.keep)) - set(map(str, domain.levels or ())) if domain else set()
        if unknown:
            yield ("universe", i, "keep"), f"{sorted(unknown)} are not levels of '{keep.column}'"
        if keep.column in (*job.model.outcomes, job.survey.weight or ""):
            yield ("universe", i, "column"), "a universe may not depend on the outcome or the weight"


def _outcomes(job: Job) -> Iterator[Contradiction]:
    """Several outcomes go with what takes several."""
    names, family, mechanism = job.model.outcomes, job.model.family, job.mechanism
    if len(names) == 1:
        return
    if len(set(names)) < len(names):
        yield ("model", "outcome"), "an outcome is named twice: delete one"
    if family != "lognormal":
        found = f"'{family}' models one outcome, and {len(names)} are named"
        yield ("model", "outcome"), f"{found}: name one, or take family: lognormal, which models several together"
    if job.sampler.name != "exact":
        found = f"the program of 'lognormal' models one outcome, and {len(names)} are named"
        yield ("sampler", "name"), f"{found}: take exact, or name one outcome"
    if mechanism.name in (*CLAMPED, *NOISY):
        known = " or ".join(("weighted", "weighted_e", "unweighted"))
        yield ("mechanism", "name"), f"'{mechanism.name}' takes one outcome, and {len(names)} are named: take {known}"
    proper = job.model.prior.name == "proper" or mechanism.fallback == "proper_prior"
    if proper and job.model.prior.records <= len(names):
        found = f"with {len(names)} outcomes a prior worth {job.model.prior.records:g} records is improper"
        yield ("model", "prior", "records"), f"{found}: give more than {len(names)} records"
    if set(job.compare) & {"laplace_finest", "reference_only"}:
        found = f"laplace_finest and reference_only compare one outcome, and {len(names)} are named"
        yield ("compare",), f"{found}: leave them out, or name one outcome"
    if mechanism.weights.rule == "cluster":
        found = "'cluster' weights by the neighbours of one outcome"
        yield ("mechanism", "weights"), f"{found}: take fixed_point, linear or inverse, or name one outcome"


def _family(job: Job) -> Iterator[Contradiction]:
    """The family's own keys, and what it can take."""
    family, model, facts = job.model.family, job.model, FAMILIES[job.model.family]
    if facts.weight is True and job.survey.weight is None:
        yield ("survey", "weight"), f"'{family}' models outcome and weight together: name the weight column"
    if facts.weight is False and job.survey.weight is not None:
        remedy = "leave survey.weight out (every record then counts as one), or take family: lognormal"
        yield ("survey", "weight"), f"'{family}' models the outcome alone: {remedy}"
    if model.predictors and not facts.predictors:
        remedy = "use them as strata, or take a regression" + (
            f": {family}_regression" if f"{family}_regression" in FAMILIES else ""
        )
        yield ("model", "predictors"), f"'{family}' has no predictors: {remedy}"
    for outcome in _declared(job):
        if (bounds := job.columns[outcome].bounds) is not None:
            support = facts.support
            if bounds[0] < support.low or bounds[1] > support.high:
                found = f"bounds outside what '{family}' takes, {support.text}"
                yield ("columns", outcome, "bounds"), f"{found}: narrow them"
        codes = job.columns[outcome].codes
        wrong = [text for text, code in (codes or {}).items() if not facts.support.inside(np.array([code]))[0]]
        if codes is not None and wrong:
            found = f"'{family}' takes {facts.support.text}, and '{wrong[0]}' is coded {codes[wrong[0]]:g}"
            yield ("model", "family"), f"{found}: families that can take it are {families_for(codes.values())}"
    if family != "lognormal":
        if model.synthesis != "fbs":
            yield ("model", "synthesis"), f"only 'lognormal' has {model.synthesis}: write fbs"
        if model.prior != Prior():
            yield ("model", "prior"), f"the prior of '{family}' is fixed, in its program: leave prior out"
        if job.mechanism.fallback == "proper_prior":
            yield ("mechanism", "fallback"), f"the prior of '{family}' is proper already: take refuse or pool"
    if family == "user":
        for name in ("program", "parameters"):
            if not getattr(model, name):
                yield ("model", name), f"a user's program needs it: add {name}"
        if model.program is not None and "#include" in model.program.text:
            yield ("model", "program"), "it includes another file: write the program into one file"
        own = {"N", "y", "w", "alpha", "generate", "reference", "clamp"}
        for name in (*job.strata, *model.predictors):
            if not name.isidentifier() or name in own:
                yield ("model", "predictors"), f"'{name}' cannot name a variable of a program: rename the column"
        columns = {*job.strata, *model.predictors}
        for name in model.data:
            if name in own | columns | {f"{column}_levels" for column in columns}:
                yield ("model", "data", name), f"'{name}' is given by dpdist, record by record: rename it"
        if not _finite(model.data):
            yield ("model", "data"), "a value is no number, list or mapping of finite numbers: write numbers"
        for name, dims in model.parameters.items():
            if name in ("chain", "draw", "stratum", *columns) or not name.isidentifier():
                yield ("model", "parameters", name), f"'{name}' is the name of a dimension: rename the parameter"
            for dim in dims:
                if isinstance(dim, int) and dim < 1:
                    yield ("model", "parameters", name), f"{dim} is no size: give a size of at least 1"
                if isinstance(dim, str) and dim not in (*model.predictors, *job.strata):
                    yield ("model", "parameters", name), f"'{dim}' is no predictor: name a predictor, or give a size"
    else:
        for name in ("program", "parameters", "data", "log_lik"):
            if getattr(model, name):
                yield ("model", name), f"'{family}' comes with its program: leave {name} out, or take family: user"


def _sampler(job: Job) -> Iterator[Contradiction]:
    """The sampler is one that the family has, and is given only the settings that it has."""
    sampler, known = job.sampler, FAMILIES[job.model.family].samplers
    if not known:
        if "sampler" in job.model_fields_set and sampler != Sampler():
            yield ("sampler",), f"'{job.model.family}' draws from no posterior: leave sampler out"
        return
    if sampler.name not in known:
        yield ("sampler", "name"), f"'{job.model.family}' has no {sampler.name} sampler: take {' or '.join(known)}"
    if sampler.name != "stan":
        for name in sorted(sampler.model_fields_set - {"name", "draws"}):
            yield ("sampler", name), f"'{sampler.name}' makes independent draws and has no {name}: leave it out"
        if "diagnostics" in job.model_fields_set:
            yield ("diagnostics",), f"'{sampler.name}' makes independent draws: leave diagnostics out"


def _tables(job: Job) -> Iterator[Contradiction]:
    names, outcomes = [table.name for table in job.tables], job.model.outcomes
    for i, table in enumerate(job.tables):
        if names.index(table.name) != i:
            yield ("tables", i, "name"), f"table '{table.name}' is named twice"
        for j, statistic in enumerate(table.statistics):
            if statistic.name != "count" and statistic.variable not in outcomes:
                remedy = "write " + " or ".join(f"{{{statistic.name}: {outcome}}}" for outcome in outcomes)
                yield ("tables", i, "statistics", j), f"a {statistic.name} is of the modelled outcome: {remedy}"
            if statistic.name == "count" and statistic.variable is not None:
                yield ("tables", i, "statistics", j), "a count has no variable: write count"


def _promises(job: Job) -> Iterator[Contradiction]:
    """What is to be promised or published can be."""
    if job.budget.adjacency == "add_remove":
        found = f"'{job.mechanism.name}' publishes stratum sizes and predictors, so add_remove cannot be promised"
        yield ("budget", "adjacency"), f"{found}: use zero_out or substitution"
    if job.model.population_weights == "proportional":
        if job.model.synthesis != "fbp":
            yield ("model", "population_weights"), "only synthesis: fbp uses population weights"
        elif job.survey.population is None:
            yield ("model", "population_weights"), "proportional needs survey.population, a public size"


def _rake(job: Job) -> Iterator[Contradiction]:
    """Raked totals are one a combination of levels, and those of several margins have one sum."""
    if job.model.synthetic_weights == "expected" and (job.model.family, job.model.synthesis) != ("lognormal", "fbs"):
        yield ("model", "synthetic_weights"), "only 'lognormal' with synthesis: fbs draws weights: leave it out"
    if job.rake and job.survey.weight is None:
        yield ("rake",), "without a weight column there are no weights to rake: leave rake out"
    for i, rake in enumerate(job.rake):
        if any(name not in job.columns or job.columns[name].levels is None for name in rake.by):
            continue
        labels = [" / ".join(map(str, levels)) for levels in product(*(job.columns[n].levels or () for n in rake.by))]
        for label in rake.totals:
            if label not in labels:
                near = get_close_matches(label, labels, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"write {labels[0]}, …"
                yield ("rake", i, "totals", label), f"'{label}' is no combination of levels of {', '.join(rake.by)}: {hint}"
        if missing := [label for label in labels if label not in rake.totals]:
            found = f"{len(missing)} of {len(labels)} combinations have no total, the first '{missing[0]}'"
            yield ("rake", i, "totals"), f"{found}: give the public total of every combination"
        first, own = (sum(each.totals.values()) for each in (job.rake[0], rake))
        if abs(own - first) > 1e-6 * first:
            found = f"the totals sum to {own:.10g}, those of {', '.join(job.rake[0].by)} to {first:.10g}"
            yield ("rake", i, "totals"), f"{found}: give totals of one population"


def _weights(job: Job) -> Iterator[Contradiction]:
    """A mechanism is given a weight rule that it has, and the rule only the constants that it has."""
    weights, name = job.mechanism.weights, job.mechanism.name
    if name in FIXED_WEIGHTS:
        if weights.rule not in ("linear", "cluster", "inverse"):
            found = f"'{name}' weights by a rule with a constant c"
            yield ("mechanism", "weights"), f"{found}: take linear or inverse, or cluster"
        if name == "weighted_e" and weights.reweight is not None:
            yield ("mechanism", "weights", "reweight"), "'weighted_e' cuts weights off before re-weighting: leave it out"
        return
    if name != "weighted" and weights.rule != "none":
        yield ("mechanism", "weights"), f"'{name}' leaves every privacy weight at 1: leave weights out"
    if weights.c is not None and weights.rule in ("none", "scalar", "fixed_point"):
        yield ("mechanism", "weights", "c"), f"'{weights.rule}' has no constant c"
    if "radius" in weights.model_fields_set and weights.rule != "cluster" and weights.radius != Weights(rule="none").radius:
        yield ("mechanism", "weights", "radius"), f"'{weights.rule}' has no radius"
    if weights.g and weights.rule not in ("linear", "cluster"):
        yield ("mechanism", "weights", "g"), f"'{weights.rule}' has no constant g"
    adjusted = weights.reweight is not None or (weights.scale, weights.shift) != (1.0, 0.0)
    if weights.rule == "none" and adjusted:
        yield ("mechanism", "weights"), "'none' leaves every weight at 1: take no reweight, scale or shift"


def _finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return isinstance(value, int | float) and isfinite(value)


def _clamp(job: Job) -> Iterator[Contradiction]:
    """A clamped likelihood has no closed form, needs a proper prior, and must be in the program."""
    name, family = job.mechanism.name, job.model.family
    if name not in CLAMPED:
        return
    if job.sampler.name == "exact":
        others = " or ".join(known for known in FAMILIES[family].samplers if known != "exact")
        yield ("sampler", "name"), f"'{name}' clamps the likelihood, and no closed form is left: take {others}"
    if family == "lognormal" and job.model.prior.name == "improper":
        found = f"'{name}' clamps the likelihood, and under an improper prior no posterior is left"
        yield ("model", "prior"), f"{found}: take model.prior: {{name: proper}}"


def _histogram(job: Job) -> Iterator[Contradiction]:
    """Noisy statistics stand in for a model: family and mechanism go together."""
    name, family = job.mechanism.name, job.model.family
    pairs = {"perturbed_histogram": "histogram", "laplace_strict": "cell_sums", "reference_tables": "reference_cells"}
    if (name in pairs or family in pairs.values()) and pairs.get(name) != family:
        remedy = " and ".join(f"{mechanism} has family: {own}" for mechanism, own in pairs.items())
        yield ("model", "family"), f"'{name}' and '{family}' do not go together: {remedy}"
    weight = job.survey.weight
    if name == "laplace_strict" and weight is not None:
        bounds = job.columns[weight].bounds if weight in job.columns else None
        if bounds is None or bounds[0] < 0:
            found = f"'{name}' needs public bounds of the weight, from 0 or above"
            yield ("columns", weight), f"{found}: add {weight}: {{bounds: [1, …], outside: clip}} to columns"
        elif job.columns[weight].outside != "clip":
            found = f"'{name}' is strict, and whether a weight lies outside its bounds depends on the records"
            yield ("columns", weight, "outside"), f"{found}: state outside: clip"
    if name == "reference_tables" and job.synthetic_sets != 1:
        yield ("synthetic_sets",), "'reference_tables' releases one table, on which the whole budget is best spent: write 1"
    for outcome in _declared(job):
        if name in ("laplace_strict", "reference_tables") and job.columns[outcome].outside != "clip":
            found = f"'{name}' is strict, and whether an outcome lies outside its bounds depends on the records"
            yield ("columns", outcome, "outside"), f"{found}: state outside: clip"
    if name != "perturbed_histogram" and job.mechanism.bins is not None:
        yield ("mechanism", "bins"), f"'{name}' has no bins: leave them out"
    if name in pairs and job.record.log_lik == "always":
        yield ("record", "log_lik"), f"'{name}' has no posterior: write never or auto"
    for outcome in _declared(job):
        if family == "histogram" and job.columns[outcome].whole:
            yield ("columns", outcome, "whole"), "a histogram is uniform within its bins: leave whole out"


def _reference(job: Job) -> Iterator[Contradiction]:
    """A reference where the mechanism needs one, and none where nothing would be fixed on it."""
    name, said, unsaid = job.mechanism.name, job.reference, Mechanism(name="centred")
    if name in REFERRING[:2] and said is None:
        why = "centres likelihoods at a fit" if name == "centred" else "clips where the records tell"
        yield ("reference",), f"'{name}' {why} of a public file: add reference: {{path: …}}"
    if said is None and any(how in job.compare for how in ("laplace_finest", "reference_only")):
        yield (
            ("compare",),
            "laplace_finest and reference_only need a reference: add reference: {path: …}, or leave them out",
        )
    if not job.mechanism.shrinkage and name != "reference_tables":
        yield ("mechanism", "shrinkage"), f"'{name}' shrinks nothing: leave it out, or take reference_tables"
    if said is not None and name not in REFERRING:
        yield ("reference",), f"'{name}' fixes nothing on a reference: leave it out, or take {' or '.join(REFERRING)}"
    elif said is not None and name == "weighted" and job.mechanism.weights.rule == "none":
        yield ("reference",), "without privacy weights nothing is fixed on a reference: leave it out"
    if said is not None and said.path is None:
        yield ("reference", "path"), "no file is named: add path, an earlier period's file that is public"
    if said is not None and said.period == job.period:
        yield ("reference", "period"), f"it is of period {said.period}, the job's own: take an earlier period's file"
    if job.mechanism.drift != unsaid.drift and name != "centred":
        yield ("mechanism", "drift"), f"'{name}' plans no drift from a reference: leave it out, or take centred"
    if job.mechanism.aim != unsaid.aim and (said is None or name != "weighted"):
        yield ("mechanism", "aim"), "only weights that are tuned on a reference aim below the target: leave it out"


def _calibration(job: Job) -> Iterator[Contradiction]:
    """A calibration is of this job's data, model, mechanism and budget, and of another period."""
    said = job.calibration
    if said is None:
        return
    for name in ("dataset", "columns", "universe", "survey", "strata", "model", "budget", "synthetic_sets"):
        if getattr(said, name) != getattr(job, name):
            yield ("calibration",), f"it was made for another {name}: calibrate this job on a reference period"
    if said.mechanism.name != job.mechanism.name or said.mechanism.weights.rule != job.mechanism.weights.rule:
        yield ("calibration",), "it was made for another mechanism or weight rule: calibrate this job on a reference period"
    if said.referring != (job.reference is not None):
        with_or_without = "with" if said.referring else "without"
        yield ("calibration",), f"it was made {with_or_without} a reference: give the job the same, or calibrate it anew"
    if said.period == job.period:
        yield ("calibration",), f"it was tuned on period {said.period}, the job's own: tune on an earlier period"


def _strict(job: Job) -> Iterator[Contradiction]:
    """What would make a strict guarantee depend on the records."""
    name = job.mechanism.name
    if not job.strict:
        return
    if job.mechanism.fallback != "refuse":
        found = f"'{name}' is strict, and whether a fallback is taken depends on the records"
        yield ("mechanism", "fallback"), f"{found}: take refuse"
    for rule in job.outcome_dependent_rules if len(_declared(job)) == len(job.model.outcomes) else ():
        found = f"'{name}' is strict, and the number of records left after '{rule}' is not public"
        yield ("columns", rule.partition(":")[0]), f"{found}: clean the file first, or take another mechanism"


def _declared(job: Job) -> tuple[str, ...]:
    """Outcomes that stand in columns."""
    return tuple(name for name in job.model.outcomes if name in job.columns)


def scheduler_contradictions(runtime: Runtime) -> Iterator[Contradiction]:
    """A running scheduler is named in full, and its links are encrypted or stay on this machine."""
    said, path = runtime.scheduler, ("runtime", "scheduler")
    if said is None:
        if runtime.tls is not None:
            yield ("runtime", "tls"), "certificates are for a running scheduler: name it in runtime.scheduler"
        return
    if runtime.executor != "dask":
        yield ("runtime", "executor"), "a running scheduler needs executor: dask"
    if said == "config":
        return
    match = re.fullmatch(r"(tls|tcp)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})", said)
    if match is None:
        yield path, "not an address: write tls://host:port, tcp://host:port, or config for what Dask's configuration says"
    elif match[1] == "tls" and runtime.tls is None:
        yield ("runtime", "tls"), "a tls:// scheduler needs certificates: name a folder with ca.crt, tls.crt and tls.key"
    elif match[1] == "tcp" and runtime.tls is not None:
        yield path, "certificates and a tcp:// address: write tls://"
    elif match[1] == "tcp" and match[2] not in LOOPBACK and not runtime.allow_plain:
        yield path, "tcp:// is open to everybody on its network: use tls://, or say runtime.allow_plain: true"

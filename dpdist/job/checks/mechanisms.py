"""The mechanism: its weights, its clamp, its noisy statistics, what a strict guarantee asks for."""

from __future__ import annotations

from collections.abc import Iterator

from dpdist.job import (
    LEAST_BUDGET,
    RULE_CONSTANTS,
    SAMPLERS,
    TOO_LITTLE,
    Job,
    Prior,
    Sampler,
    Weights,
    those,
)
from dpdist.job.checks.contradiction import Contradiction, Path, clips, declared, limits


def weight_rule(job: Job) -> Iterator[Contradiction]:
    """A mechanism is given a weight rule that it has, and the rule only the constants that it has."""
    weights, name = job.mechanism.weights, job.mechanism.name
    constants = RULE_CONSTANTS[weights.rule]
    if job.mechanism.facts.fixed_weights:
        if "c" not in constants:
            found = f"'{name}' weights by a rule with a constant c"
            others = ", ".join(sorted(rule for rule, own in RULE_CONSTANTS.items() if "c" in own))
            yield Contradiction(("mechanism", "weights"), found, f"take one of {others}")
        if name == "weighted_e" and weights.reweight is not None:
            yield Contradiction(
                ("mechanism", "weights", "reweight"), "'weighted_e' cuts weights off before re-weighting", "leave it out"
            )
        return
    if name != "weighted" and weights.rule != "none":
        yield Contradiction(("mechanism", "weights"), f"'{name}' leaves every privacy weight at 1", "leave weights out")
    if weights.c is not None and "c" not in constants:
        yield Contradiction(("mechanism", "weights", "c"), f"'{weights.rule}' has no constant c", "leave c out")
    if "radius" in weights.model_fields_set and "radius" not in constants and weights.radius != Weights(rule="none").radius:
        yield Contradiction(("mechanism", "weights", "radius"), f"'{weights.rule}' has no radius", "leave radius out")
    if weights.g and "g" not in constants:
        yield Contradiction(("mechanism", "weights", "g"), f"'{weights.rule}' has no constant g", "leave g out")
    adjusted = weights.reweight is not None or (weights.scale, weights.shift) != (1.0, 0.0)
    if weights.rule == "none" and adjusted:
        yield Contradiction(("mechanism", "weights"), "'none' leaves every weight at 1", "take no reweight, scale or shift")


def clamp(job: Job) -> Iterator[Contradiction]:
    """A clamped likelihood has no closed form, needs a proper prior, and must be in the program."""
    name, family = job.mechanism.name, job.family
    if not job.mechanism.facts.clamps:
        return
    if family == "scores":
        found = f"'{name}' clamps the likelihood, and 'scores' has a closed form alone"
        yield Contradiction(("mechanism", "name"), found, "take weighted, weighted_e or unweighted")
        return
    if job.sampler.name == "exact":
        others = " or ".join(known for known in SAMPLERS[family] if known != "exact")
        yield Contradiction(
            ("sampler", "name"), f"'{name}' clamps the likelihood, and no closed form is left", f"take {others}"
        )
    if family == "lognormal" and job.likelihood.prior.name == "improper":
        found = f"'{name}' clamps the likelihood, and under an improper prior no posterior is left"
        yield Contradiction(("model", "prior"), found, "take model.prior: {name: proper}")


def noisy_statistics(job: Job) -> Iterator[Contradiction]:
    """What noisy statistics need of weight and outcome, and what they have not."""
    name, family = job.mechanism.name, job.family
    weight = job.survey.weight
    if clips(job) and weight is not None:
        bounds = job.columns[weight].bounds if weight in job.columns else None
        if bounds is None or bounds[0] < 0:
            found = f"'{name}' needs public bounds of the weight, from 0 or above"
            yield Contradiction(("columns", weight), found, f"add {weight}: {{bounds: [1, …], outside: clip}} to columns")
        elif job.columns[weight].outside != "clip":
            found = f"'{name}' is strict, and whether a weight lies outside its bounds depends on the records"
            yield Contradiction(("columns", weight, "outside"), found, "state outside: clip")
    elif limits(job) and weight is not None and weight in job.columns and job.columns[weight].outside != "clip":
        found = f"'{name}' is strict, and whether a weight lies outside its bounds depends on the records"
        yield Contradiction(("columns", weight, "outside"), found, "state outside: clip")
    if name == "reference_tables" and job.synthetic_sets != 1:
        yield Contradiction(
            ("synthetic_sets",), "'reference_tables' releases one table, on which the whole budget is best spent", "write 1"
        )
    for outcome in declared(job):
        clipped = job.columns[outcome].outside == "clip" or job.columns[outcome].codes is not None
        if job.mechanism.facts.adds_noise and not job.local and not clipped:
            found = f"'{name}' is strict, and whether an outcome lies outside its bounds depends on the records"
            yield Contradiction(("columns", outcome, "outside"), found, "state outside: clip")
    if name != "perturbed_histogram" and job.mechanism.bins is not None:
        yield Contradiction(("mechanism", "bins"), f"'{name}' has no bins", "leave them out")
    if job.mechanism.facts.adds_noise and job.record.log_lik == "always":
        yield Contradiction(("record", "log_lik"), f"'{name}' has no posterior", "write never or auto")
    for outcome in declared(job):
        if family == "histogram" and job.columns[outcome].whole:
            yield Contradiction(("columns", outcome, "whole"), "a histogram is uniform within its bins", "leave whole out")


def sanitized(job: Job) -> Iterator[Contradiction]:
    """Sanitised statistics are those of the lognormal law, without a prior or a sampler; no outcome may be 0."""
    name, model = job.mechanism.name, job.likelihood
    if name != "sanitized_statistics":
        return
    if model.family != "lognormal":
        yield Contradiction(
            ("model", "family"), f"'{name}' releases statistics of the lognormal law", "take family: lognormal"
        )
        return
    if job.sampler != Sampler(name="exact"):
        yield Contradiction(("sampler",), f"'{name}' draws from no posterior", "leave sampler out")
    if model.prior != Prior():
        yield Contradiction(("model", "prior"), f"'{name}' has the reference in place of a prior", "leave prior out")
    for outcome in declared(job):
        if (bounds := job.columns[outcome].bounds) is not None and bounds[0] <= 0:
            found = f"'{name}' is strict, and whether an outcome is 0 depends on the records"
            yield Contradiction(
                ("columns", outcome, "bounds"), found, "give bounds from above 0, to which lower values are clipped"
            )


def least_budget(job: Job) -> Iterator[Contradiction]:
    """Every set's noise has a budget under which whole numbers stay exact."""
    most = 1 if job.privacy_unit is None else job.privacy_unit.most
    if job.mechanism.facts.adds_noise and job.epsilon_per_set / most < LEAST_BUDGET:
        found = f"{job.synthetic_sets} sets leave less than 1e-6 for each"
        where: Path = ("synthetic_sets",)
        if job.epsilon_per_set >= LEAST_BUDGET:
            found, where = f"{most} records of a unit leave less than 1e-6 for each", ("privacy_unit", "most")
        yield Contradiction(where, f"{found}, and {TOO_LITTLE}", "take fewer, or a larger epsilon")
    if job.reference is not None and 0 < job.epsilon_of_tables / most < LEAST_BUDGET:
        found = f"the histograms leave less than 1e-6 for the table, and {TOO_LITTLE}"
        yield Contradiction(("reference", "histogram", "epsilon"), found, "give the histograms less, or raise epsilon")
    histogram = job.reference.histogram if job.reference is not None else None
    if histogram is not None and histogram.epsilon / most < LEAST_BUDGET:
        found = f"{most} records of a unit leave less than 1e-6 for each, and {TOO_LITTLE}"
        yield Contradiction(("reference", "histogram", "epsilon"), found, "give the histograms more")


def added_noise(job: Job) -> Iterator[Contradiction]:
    """Gaussian noise is sanitised statistics', and needs a delta; nothing else has one to state."""
    name, gaussian = job.mechanism.name, job.mechanism.noise == "gaussian"
    if gaussian and name != "sanitized_statistics":
        found = f"'{name}' adds no Gaussian noise"
        yield Contradiction(("mechanism", "noise"), found, "leave noise out, or take sanitized_statistics")
    elif gaussian and job.budget.delta is None:
        found = "under Gaussian noise no epsilon holds alone"
        yield Contradiction(
            ("budget", "delta"), found, 'add delta, below one over the number of records, as in delta: "1e-6"'
        )
    for key in ("delta", "rho") if not gaussian else ():
        if getattr(job.budget, key) is not None:
            own = "mechanism: {name: sanitized_statistics, noise: gaussian}"
            yield Contradiction(
                ("budget", key), f"'{name}' without Gaussian noise spends no {key}", f"leave it out, or take {own}"
            )


def noisy_tables(job: Job) -> Iterator[Contradiction]:
    """Figures of whole tables under noise: what they have, and what only records or strata could."""
    name, said = job.mechanism.name, job.mechanism
    if not said.facts.whole_tables:
        known = " or ".join(those(lambda each: each.whole_tables))
        for key, own in (("sensitivity", said.sensitivity), ("consistency", said.consistency)):
            if own not in ("local", "none"):
                yield Contradiction(
                    ("mechanism", key), f"'{name}' has no {key} of its own", f"leave it out, or take {known}"
                )
        return
    if name == "laplace" and said.sensitivity == "public":
        found = "'laplace' spends all of ε in every figure, with sensitivities of the file itself, as in the literature"
        yield Contradiction(("mechanism", "sensitivity"), found, "take laplace_composed or laplace_strict")
    if job.local and job.budget.adjacency == "substitution":
        found = f"'{name}' with local sensitivities promises nothing, under no adjacency"
        yield Contradiction(("budget", "adjacency"), found, "leave it out, or take laplace_strict")
    if job.strata:
        found = f"'{name}' noises tables with their margins over the whole file"
        yield Contradiction(("strata",), found, "leave strata out")
    if job.synthetic_sets != 1:
        yield Contradiction(
            ("synthetic_sets",), f"'{name}' releases one set of tables, on which all of ε is best spent", "write 1"
        )
    if job.rake:
        yield Contradiction(("rake",), f"'{name}' releases figures, and no weights that could be raked", "leave rake out")


def strictness(job: Job) -> Iterator[Contradiction]:
    """What would make a strict guarantee depend on the records."""
    name = job.mechanism.name
    if not job.strict:
        return
    if job.mechanism.fallback != "refuse":
        found = f"'{name}' is strict, and whether a fallback is taken depends on the records"
        yield Contradiction(("mechanism", "fallback"), found, "take refuse")
    for rule in job.outcome_dependent_rules if len(declared(job)) == len(job.outcomes) else ():
        found = f"'{name}' is strict, and the number of records left after '{rule}' is not public"
        kept = "keep these records (zeros may stay, impute what is missing), or name a universe that no outcome decides"
        public = "where that number is public anyway, leave them out of the file and state that under assumed_public"
        yield Contradiction(("columns", rule.partition(":")[0]), found, f"{kept}; {public}")

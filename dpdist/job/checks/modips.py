"""MODIPS: the law that it sanitises, what the law asks of the outcome, and the form of noise that is no promise."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, floor, log

from dpdist.job import Job, Mechanism
from dpdist.job.checks.contradiction import Contradiction, declared
from dpdist.job.values import budget_text

MOST_LEVELS = 1_000
OWN = ("law", "location", "variance", "sanitization", "truncation", "nested")


def modips(job: Job) -> Iterator[Contradiction]:
    """Constants of `modips` are its own; it needs a law, and noise that costs what is promised."""
    said, name = job.mechanism, job.mechanism.name
    if "law" not in said.facts.constants:
        for key in OWN:
            if getattr(said, key) != Mechanism.model_fields[key].default:
                yield Contradiction(("mechanism", key), f"'{name}' has no {key}", "leave it out, or take modips")
        return
    if said.law is None:
        found = "'modips' sanitises the statistics of a law, and none is named"
        yield Contradiction(("mechanism", "law"), found, "add law: normal, lognormal, bernoulli or multinomial")
        return
    if said.truncation == "renormalised":
        yield Contradiction(("mechanism", "truncation"), _cost(job), "take clamped, or bounded, whose scale pays for it")
    if job.synthetic_sets % said.nested:
        found = f"{job.synthetic_sets} sets are no multiple of {said.nested}"
        yield Contradiction(("mechanism", "nested"), found, "take a divisor of synthetic_sets")
    yield from _law(job)


def _cost(job: Job) -> str:
    """The loss of a sum's renormalised noise at the scale Δ/ε, in a wide domain."""
    epsilon = float(job.epsilon_per_set * job.mechanism.nested)
    cost = epsilon + log(2.0 - exp(-epsilon))
    shown = budget_text(job.epsilon_per_set * job.mechanism.nested)
    return (
        f"noise renormalised to a domain at the scale Δ/ε costs up to {cost:.4g} of every sanitization, and not ε = {shown}"
    )


def _law(job: Job) -> Iterator[Contradiction]:
    said = job.mechanism
    counted = said.law in ("bernoulli", "multinomial")
    if said.variance is not None and said.law != "normal":
        yield Contradiction(
            ("mechanism", "variance"), f"only the normal law's variance can be public, not '{said.law}'", "leave it out"
        )
    if said.location != "cells" and counted:
        yield Contradiction(("mechanism", "location"), f"'{said.law}' has probabilities for every cell", "write cells")
    for outcome in declared(job):
        column = job.columns[outcome]
        if (bounds := column.bounds) is None:
            continue
        where = ("columns", outcome, "bounds")
        if said.law == "lognormal" and bounds[0] <= 0:
            yield Contradiction(
                where,
                "a lognormal law has values above 0 alone",
                "give bounds from above 0, to which lower values are clipped",
            )
        if counted and column.codes is None and not column.whole:
            yield Contradiction(
                ("columns", outcome, "whole"),
                f"'{said.law}' has whole numbers, or coded levels",
                "add whole: true, or codes",
            )
        if not counted and column.whole:
            yield Contradiction(
                ("columns", outcome, "whole"), f"synthetic values of a {said.law} law are not whole", "leave whole out"
            )
        levels = floor(bounds[1]) - floor(bounds[0]) + 1
        if said.law == "bernoulli" and tuple(bounds) != (0.0, 1.0):
            yield Contradiction(where, "a Bernoulli law has the values 0 and 1", "write [0, 1], or take law: multinomial")
        if said.law == "multinomial" and levels > MOST_LEVELS:
            found = f"{levels:,} levels, each with a noisy count in every cell"
            yield Contradiction(where, found, f"take at most {MOST_LEVELS:,}, or law: normal")

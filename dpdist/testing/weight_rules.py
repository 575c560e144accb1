"""Checks of a plug-in's weight rule: steps, searches on made-up fits, constants, words."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from dpdist.core.records import Floats
from dpdist.job import WEIGHT_RULES, Weights
from dpdist.privacy.weights import (
    AllOutcomes,
    Carry,
    NotReached,
    Ones,
    Step,
    applied_to,
    bounded,
    fixed,
    informed,
    needs_outcomes,
    search,
    summary_of,
    weigh,
)
from dpdist.testing.members import check_member

NO_KEYS: Mapping[str, Any] = MappingProxyType({})
RECORDS, MOST_FITS = 40, 1000
"""Records of a made-up file, and the number of fits after which a search counts as endless; a scan of c takes about 50."""
TARGETS = (0.1, 1.8, 10.0, 500.0)
LADDER = np.geomspace(0.1, 10.0, 93)
"""Multiples of a record's bounds, in steps of 5 %, along which its weight must not grow."""
ROUNDING = 1e-12
"""Allowance of a weight for rounding."""


class File(NamedTuple):
    """A made-up file: outcomes, unweighted record bounds F, and the growth of bounds as weights shrink."""

    outcomes: Floats
    unweighted: Floats
    widened: float

    def bound(self, alpha: Floats) -> Floats:
        """F(α), (record,): a fit with smaller weights is wider, and its record bounds are larger."""
        return np.asarray(self.unweighted * (1.0 + self.widened * (1.0 - alpha.mean())))


def _files() -> dict[str, File]:
    rng = np.random.default_rng(1)
    normal = rng.standard_normal(RECORDS)
    usual = File(np.exp(11.0 + 0.4 * normal), 0.5 + normal**2, 0.0)
    return {
        "a plain file": usual,
        "a file whose bounds grow as weights shrink": usual._replace(widened=0.3),
        "a file with an outlier": usual._replace(unweighted=np.append(usual.unweighted[:-1], 80.0)),
        "a file of records with one bound": usual._replace(unweighted=np.full(RECORDS, 2.0)),
        "a file without losses": usual._replace(unweighted=np.zeros(RECORDS)),
    }


class SearchFit(NamedTuple):
    """A fit of a search: step, earlier per-record values, weights, and the resulting database bound."""

    step: Step
    before: Carry
    alpha: Floats
    database_bound: float


class Endless(Exception):
    """Raised if a search continues after `MOST_FITS` fits."""


def check_weight_rule(rule: str, keys: Mapping[str, Any] = NO_KEYS) -> None:
    """Checks a weight rule by the name that a job states; its distribution must be installed.

    `keys` are constants that a job must state beside the name. A weight must lie from 0 to 1, follow from its own
    record, be 0 without a finite bound, and not grow with the bound. A search must begin with the unweighted fit. It
    must end with a bound of at most the target, or raise `NotReached`. Texts must contain no figure of a file. Raises
    `AssertionError` with every fault. Losses with newly computed weights are not checked here; `dpdist audit` measures
    them.
    """
    check_member(WEIGHT_RULES, rule, lambda: _faults(rule, keys))


def _faults(rule: str, keys: Mapping[str, Any]) -> Iterator[str]:
    try:
        weights = WEIGHT_RULES.named(rule).section.model_validate({"rule": rule, **keys})
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, fault["loc"])) for fault in error.errors())
        yield f"its section refuses {wrong}: give in keys what a job must state"
        return
    yield from _lines(weights)


def _lines(weights: Weights) -> Iterator[str]:
    words = weights.facts.exceeds
    cases = dict[str, list[str]]()
    """The cases in which each fault was found."""
    try:
        for case, line in _of_files(weights):
            cases.setdefault(line, []).append(case)
    finally:  # if the rule fails, faults that are known are told too
        for line, found in cases.items():
            several = f", one of {number} cases" if (number := len(set(found))) > 1 else ""
            yield f"{line} (on {found[0]}{several})"
    yield from _unmeasurable(weights)
    yield from _of_figures(weights)
    if weights.facts.exceeds != words:
        yield "its words change with the files that it searched on: write a text that is the same for all files"


def _of_files(weights: Weights) -> Iterator[tuple[str, str]]:
    """Faults of searches and steps, each after the case in which it was found."""
    for title, file in _files().items():
        for target in TARGETS:
            yield from ((f"{title} with the target {target:g}", line) for line in _of_search(weights, file, target))
        if "c" in weights.facts.constants:
            other_rule = weights.model_copy(update={"c": 0.7})
            fits = _fits(fixed(other_rule), file)
            yield from ((f"{title} with c = 0.7", line) for line in _of_steps(other_rule, file, fits))
        yield from ((title, line) for line in _reweighted(weights, file))


def _fits(steps: Any, file: File, reached: Callable[[float], float] = lambda bound: bound) -> list[SearchFit]:
    """All fits of a search on a file. `reached` changes the bounds reported to the search. Raises `NotReached`."""
    carry, fits, rounds = Carry(), list[SearchFit](), informed(steps)
    step = next(rounds)
    while len(fits) < MOST_FITS:
        reply: Any = file.outcomes
        if not isinstance(step, AllOutcomes):
            before = dict(carry)
            alpha = weigh(step, file.outcomes[:, None], carry)
            summary = summary_of(bounded(carry, file.bound(alpha)))
            fits.append(SearchFit(step, before, alpha, summary.database_bound))
            reply = summary._replace(database_bound=reached(summary.database_bound))
        try:
            step = rounds.send(reply)
        except StopIteration:
            return fits
    raise Endless


def _of_search(weights: Weights, file: File, target: float) -> Iterator[str]:
    """The faults of a search and its steps; a search that ends must meet its target."""
    try:
        fits = _fits(search(weights, target), file)
    except NotReached:
        if target >= file.unweighted.max():
            yield "its search gives up at a target that weights of 1 meet: scan c from its largest value"
        return
    except Endless:
        yield f"its search makes more than {MOST_FITS} fits: raise NotReached before"
        return
    if not isinstance(fits[0].step, Ones):
        yield "its search does not start with the unweighted fit: yield Ones() first"
    if not fits[-1].database_bound <= target:
        yield "its search ends with a bound over the target: go on to smaller weights, or raise NotReached"
    if file.unweighted.any() and not fits[-1].alpha.any():
        yield "all its weights are 0, so no record counts: scan c from a larger value"
    yield from _of_steps(weights, file, fits)
    again = _fits(search(weights, target), file)
    if not np.array_equal([fit.alpha for fit in again], [fit.alpha for fit in fits]):
        yield "its search differs from one time to the next: take no random numbers, and keep nothing"


def _of_steps(weights: Weights, file: File, fits: list[SearchFit]) -> Iterator[str]:
    for fit in fits[1:]:
        if needs_outcomes(fit.step) and not weights.facts.uses_outcomes:
            yield "its step takes outcomes of all records, and its class does not say so: state uses_outcomes = True"
        yield from _of_step(fit.step, file, fit.before)


def _of_step(step: Step, file: File, carry: Carry) -> Iterator[str]:
    """The faults of a step. Bounds are the file's, ten times larger and smaller ones, and infinite ones.

    A reference fixes a step for later files, whose bounds may leave the reference's range.
    """
    factors = (1.0, 0.1, 10.0, np.inf, np.nan)
    outcomes, alpha = np.tile(file.outcomes, len(factors)), np.tile(carry["alpha"], len(factors))
    with np.errstate(invalid="ignore"):
        unweighted, bound = (np.concatenate([carry[name] * k for k in factors]) for name in ("unweighted", "bound"))

    def weighed(rows: Any, by: Step = step) -> Floats:
        columns = [np.array(values[rows]) for values in (unweighted, alpha, bound)]
        new = applied_to(by, outcomes[rows][:, None])(*columns)
        if any(
            not np.array_equal(expected[rows], values, equal_nan=True)
            for expected, values in zip((unweighted, alpha, bound), columns, strict=True)
        ):
            raise TypeError("its step writes into the arrays that it gets: return a new one")
        return new

    all_rows = np.arange(len(outcomes))
    new = weighed(all_rows)
    if not isinstance(new, np.ndarray) or new.shape != all_rows.shape:
        yield "its step gives another number of weights than there are records"
        return
    if not ((new >= 0.0) & (new <= 1.0)).all():
        yield "its weights are not all from 0 to 1: limit them by np.clip, and test for bounds that are not finite"
        return
    if new[~np.isfinite(unweighted)].any():
        yield "a record without a finite bound has a weight above 0: give it 0"
    backwards = all_rows[::-1]
    parts = np.concatenate([weighed(rows) for rows in (all_rows[:7], all_rows[7:60], all_rows[60:])])
    if not (np.array_equal(parts, new) and np.array_equal(weighed(backwards)[::-1], new)):
        yield (
            "a record's weight depends on the other records of its block: take facts common to all records from the summary"
        )
    if _grows(step, file, carry):
        yield "a record with a larger bound has a larger weight: let weights fall as bounds grow"
    try:
        again = weighed(all_rows, pickle.loads(pickle.dumps(step)))
    except (pickle.PicklingError, AttributeError, TypeError):
        yield "its step cannot be sent to a worker: write it as a NamedTuple in a module"
        return
    if not np.array_equal(again, new):
        yield "its step gives other weights on a worker: keep all that it needs in its fields"


def _grows(step: Step, file: File, carry: Carry) -> bool:
    """True if a record's weight grows anywhere as its bounds grow."""
    outcomes, alpha = (np.tile(values, len(LADDER)) for values in (file.outcomes, carry["alpha"]))
    unweighted, bound = (np.concatenate([carry[name] * k for k in LADDER]) for name in ("unweighted", "bound"))
    weights = applied_to(step, outcomes[:, None])(unweighted, alpha, bound).reshape(len(LADDER), -1)
    return bool((np.diff(weights, axis=0) > ROUNDING).any())


def _unmeasurable(weights: Weights) -> Iterator[str]:
    """Bounds that are NaN must never count as met."""
    file = _files()["a plain file"]
    try:
        _fits(search(weights, 1.8), file, lambda bound: float("nan"))
    except (NotReached, Endless):
        return
    yield "its search ends where the bound is not a number: write `not bound <= target` instead of `bound > target`"


def _reweighted(weights: Weights, file: File) -> Iterator[str]:
    """Changes of all weights, which any rule may have, must be included when weights meet the target."""
    changed = weights.model_copy(update={"scale": 0.9, "reweight": 0.95})
    try:
        fits = _fits(search(changed, 1.8), file)
    except (NotReached, Endless):
        return
    if not fits[-1].database_bound <= 1.8:
        yield "with scale and reweight its search ends over the target: yield from adjusted(step, weights)"


def _of_figures(weights: Weights) -> Iterator[str]:
    """The message of `NotReached` must not depend on a file's figures."""
    texts = set[str]()
    for factor in (1.0, 1.37):
        for _, file in list(_files().items())[:3]:
            try:
                _fits(search(weights, 1.8), file._replace(unweighted=factor * file.unweighted), lambda bound: 50.0 + bound)
            except NotReached as refusal:
                texts.add(str(refusal))
            except Endless:
                return
    if len(texts) > 1:
        yield f"the text of NotReached has figures of the file ({min(texts)!r}): leave them out, because the text is shown"

"""Worst loss over claimed loss, of every mechanism that adds noise, under every option and adjacency.

Losses of sums are exact, also of sums that are drawn within a range. Those of choices are upper bounds. The variable
`DPDIST_AUDIT_OPTIONS` names a file to which the table is written. Controls: an option that no job has is named, and weights
that are not clipped when a file is read cost more than is claimed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from options import ALL, KINDS, PLAIN, Option, options, strict_specs, worst, worst_exchange

from dpdist.audit.likelihood_ratios import log_mass
from dpdist.confidential.records import Records
from dpdist.core.errors import JobError
from dpdist.job import SPECS, Job, MechanismSpec
from dpdist.mechanisms.registry import mechanism_of
from dpdist.privacy.guarantees import NoGuarantee

ROUNDING = 1e-6
"""Sums are rounded to whole units, of which a record has a million."""
REFUSED = {
    "nothing is proven about a record that moves to another stratum": "counts of crossed outcomes under secret sizes",
    "no column with sample counts is left to protect": "one table of all records, under an exchange for any other record",
    "which does not follow from noisy sample counts": "sums within a range, under secret sizes",
    "whether a fallback is used depends on the records": "a fallback",
    "leaves every privacy weight at 1": "privacy weights",
    "renormalised to a domain": "sums drawn again at the scale that does not pay for it",
    "its own sums measure secret numbers": "tables, under noisy sample counts",
    "these rules do not apply to a weight": "weights that are clipped, without bounds that noise follows",
}
"""Why a job is refused, by what its message says."""
OWN_LIMITS = ("perturbed_histogram", "tables", "sanitized_statistics")
"""Mechanisms without weights, or with limits of their own from a reference."""
LEAST = {"modips": 0.49, "marginals": 0.67, "laplace_composed": 0.74, "sanitized_statistics": 0.83, "tables": 0.25}
"""Least part of a claim that some neighbours cost, by mechanism: noise that is too large is found, too.

No record moves all sums of modips at once where each has a part of ε, and choices of marginals have bounds that few files
attain. Limits of tables are wider than the values that are tried. Sanitized statistics' own maxima are .84 of ε under
Laplace noise.
"""
SIGNAL = ("substitution",)
"""Adjacencies of `-m quick`."""
SELDOM = [("tables", "zero_out"), ("tables", "add_remove"), ("sanitized_statistics", "add_remove")]
"""Mechanisms whose options take seconds under an adjacency, where distances are half of those under substitution."""
table: dict[tuple[str, str, str], float] = {}


@pytest.fixture(scope="module", autouse=True)
def _table() -> Iterator[None]:
    yield
    lines = ["| mechanism | adjacency | options | worst loss / claim |", "|---|---|---|---|"]
    lines += [f"| {name} | {kind} | {said or 'plain'} | {ratio:.4f} |" for (name, kind, said), ratio in table.items()]
    print("\n" + "\n".join(lines))
    if target := os.environ.get("DPDIST_AUDIT_OPTIONS"):
        Path(target).write_text("\n".join(lines) + "\n", encoding="utf-8")


def reason(option: Option) -> str | None:
    """Why the job is refused; None if it is accepted."""
    try:
        assert option.job
    except JobError as error:
        return " ".join(str(error).split())
    return None


def claimed(mechanism: str, kind: str) -> list[Option]:
    """The accepted jobs that promise anything."""
    own = [option for option in ALL if (option.mechanism, option.kind) == (mechanism, kind) and reason(option) is None]
    return [option for option in own if not isinstance(mechanism_of(option.job).promise(option.job).total, NoGuarantee)]


def part_of(mechanism: str, kind: str, part: slice) -> object:
    """Some of a mechanism's options under an adjacency, with their mark."""
    others = bool(part.start)
    seldom = others + ((mechanism, kind) in SELDOM)
    marks = ([pytest.mark.quick] if kind in SIGNAL else [], [pytest.mark.long], [pytest.mark.slow])[seldom]
    return pytest.param(mechanism, kind, part, marks=marks, id=f"{mechanism}-{kind}{f'-others-{part.start}' * others}")


WHOLE, SIXTHS = (slice(None),), tuple(slice(k, None, 6) for k in range(6))
"""Options of `tables` take seconds each: five of six are `long`."""


@pytest.mark.parametrize(
    ("mechanism", "kind", "part"),
    [
        part_of(mechanism, kind, part)
        for mechanism, kind in product(PLAIN, KINDS)
        for part in (SIXTHS if mechanism == "tables" else WHOLE)
    ],
)
def test_no_option_costs_more_than_is_claimed(mechanism: str, kind: str, part: slice) -> None:
    for option in claimed(mechanism, kind)[part]:
        table[mechanism, kind, option.said] = ratio = worst(option)
        assert LEAST.get(mechanism, 0.94) <= ratio <= 1.0 + ROUNDING, option
        assert mechanism_of(option.job).promise(option.job).total.epsilon == option.job.budget.epsilon


@pytest.mark.parametrize("mechanism", PLAIN)
def test_an_exchange_costs_no_more_than_a_release_of_other_neighbours_states(mechanism: str) -> None:
    (plain, *_) = claimed(mechanism, "zero_out")
    assert 0.25 <= worst_exchange(plain) <= 1.0 + ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "kind"), list(product(PLAIN, KINDS)))
def test_nor_over_more_records_and_files(mechanism: str, kind: str) -> None:
    for option in claimed(mechanism, kind):
        table[mechanism, kind, f"{option.said} (more)"] = ratio = worst(option, all_bases=True)
        assert ratio <= 1.0 + ROUNDING, option


def test_every_mechanism_that_adds_noise_under_a_guarantee_is_here() -> None:
    assert set(PLAIN) == set(strict_specs())


def test_refused_jobs_are_refused_for_a_reason_that_is_listed() -> None:
    """A job that is written wrong would otherwise pass for one that is refused."""
    for option in ALL:
        message = reason(option)
        assert message is None or any(known in message for known in REFUSED), (option, message)


def unvisited(mechanism: str, spec: type[MechanismSpec], cases: list[Option]) -> list[str]:
    """Options of a mechanism that no job has, accepted or refused."""
    had = [option.options for option in cases]
    return [
        f"{mechanism}: {key}: {choice}"
        for key, choices in options(spec).items()
        for choice in sorted(choices)
        if not any(each.get(key) == choice for each in had)
    ]


@pytest.mark.parametrize(("mechanism", "kind"), list(product(PLAIN, KINDS)))
def test_every_option_is_audited_under_every_adjacency_or_refused(mechanism: str, kind: str) -> None:
    cases = [option for option in ALL if (option.mechanism, option.kind) == (mechanism, kind)]
    assert unvisited(mechanism, SPECS[mechanism], cases) == []


def as_in_the_file(job: Job, records: Records) -> Records:
    return records


@pytest.mark.parametrize("mechanism", [name for name in PLAIN if name not in OWN_LIMITS])
def test_control_weights_that_are_not_clipped_when_a_file_is_read_are_found(mechanism: str) -> None:
    """No mechanism clips a weight at its public bounds. Others have no weights, or limits of their own from a reference."""
    (plain, *_) = claimed(mechanism, "zero_out")
    assert worst(plain, intake=as_in_the_file) > 2.0


@pytest.mark.parametrize("law", ["normal", "multinomial"])
def test_control_a_weight_below_its_bound_costs_bounded_sums_more_than_any_epsilon(law: str) -> None:
    """The sum of 1 - v is then not in its public range. Control of the control: clipped sums stand it."""
    own = [
        option for option in claimed("modips", "zero_out") if f"law: {law}," in option.said and "conjoint" in option.said
    ]
    assert sorted("bounded" in option.said for option in own) == [False, True]
    for option in own:
        found = worst(option, all_bases=True, intake=only_light)
        assert (found == np.inf) == ("bounded" in option.said and law == "normal")


def only_light(job: Job, records: Records) -> Records:
    """Weights below their bound as in the file, and other values clipped."""
    light = np.minimum(records.weight, 200.0)
    low, high = job.outcome_column.bounds or (0.0, 1.0)
    return Records(records.record, records.row, np.clip(records.outcomes, low, high), light, records.psu)


@pytest.mark.parametrize(("low", "high"), [(0, 40), (-3, 9), (0, 0)])
def test_the_mass_of_a_range_is_that_of_a_sum_over_it(low: int, high: int) -> None:
    """And with it the loss of two sums under the truncated law is the largest log ratio over all that can be drawn."""
    scale, drawn = 3.7, np.arange(low, high + 1)
    every = np.arange(-2_000, 2_001)
    whole = np.exp(-np.abs(every) / scale).sum()
    for one, other in product(drawn, repeat=2):
        own, theirs = (np.exp(-np.abs(drawn - x) / scale) for x in (one, other))
        ends = np.array([float(low)]), np.array([float(high)])
        mass = [log_mass(np.array([float(x)]), np.array([scale]), ends)[0] for x in (one, other)]
        assert mass == pytest.approx([np.log(own.sum() / whole), np.log(theirs.sum() / whole)], abs=1e-9)
        exact = np.log(own / own.sum()) - np.log(theirs / theirs.sum())
        assert np.abs(exact).max() == pytest.approx(abs(one - other) / scale + abs(mass[0] - mass[1]), abs=1e-9)

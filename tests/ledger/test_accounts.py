"""What releases cost together: exact, classes and adjacencies apart, and never more than the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.core.errors import BudgetRefused
from dpdist.job import Limits
from dpdist.ledger.accounts import Charge, cost, largest_window, refuse_excess
from dpdist.ledger.entries import Entry, following
from dpdist.privacy.guarantees import Asymptotic, Concentrated, Guarantee, NoGuarantee, Strict

ONE = Charge("wages", "2021", "", "strict", "zero_out", Fraction(1), Fraction(0), "job")
NONE = Limits()
SMALL = Fraction(1, 10**6)


def entries(*charged: Charge, **limits: Limits) -> list[Entry]:
    """A ledger with limits by class, and these charges, each of a run of its own."""
    numbers, found = count(1), [following(None, {"kind": "begin", "ledger": "l"})]
    for cls, said in limits.items():
        own = {"kind": "policy", "dataset": "wages", "class": cls, "limits": said.model_dump(mode="json")}
        found.append(following(found[-1], own))
    for charge in charged:
        found.append(following(found[-1], {"kind": "reserve", **charge.said, "run": f"run-{next(numbers)}"}))
    return found


def fits(kept: Sequence[Entry], charge: Charge, stated: Limits = NONE) -> bool:
    try:
        refuse_excess(kept, stated, charge)
    except BudgetRefused:
        return False
    return True


def test_thirds_add_up_to_a_whole() -> None:
    """Control: in floating point .1 + .2 is more than .3."""
    third, tenth = replace(ONE, budget=Fraction(1, 3)), replace(ONE, budget=Fraction("0.1"))
    assert fits(entries(third, third), third, Limits(total="1"))
    assert fits(entries(tenth, tenth), tenth, Limits(total="0.3"))
    assert not fits(entries(third, third, third), replace(ONE, budget=Fraction(1, 10**6)), Limits(total="1"))


@pytest.mark.parametrize("where", ["job", "ledger"])
def test_limits_of_job_and_ledger_both_hold(where: str) -> None:
    strict, loose = Limits(total="2"), Limits(total="9")
    stated, kept = (strict, loose) if where == "job" else (loose, strict)
    assert fits(entries(ONE, strict=kept), ONE, stated)
    assert not fits(entries(ONE, ONE, strict=kept), ONE, stated)


def test_the_last_limits_that_were_stated_hold() -> None:
    kept = entries(ONE, ONE, strict=Limits(total="2"))
    assert not fits(kept, ONE)
    more = {"kind": "policy", "dataset": "wages", "class": "strict", "limits": {"total": "3"}}
    assert fits([*kept, following(kept[-1], more)], ONE)


def test_a_correction_is_charged_to_its_own_period() -> None:
    """Year two after a correction of year one: what a period may cost is its own, what all may cost is common."""
    limits = Limits(per_period="2", total="4")
    first, second = replace(ONE, period="2020"), ONE
    assert not fits(entries(first, first), first, limits), "a third release of the period"
    assert fits(entries(first, first), second, limits)
    assert fits(entries(first, first, second), second, limits)
    assert not fits(entries(first, first, second, second), replace(ONE, period="2022"), limits)


def test_another_dataset_has_a_budget_of_its_own() -> None:
    assert fits(entries(ONE), replace(ONE, dataset="hours"), Limits(total="1"))
    assert not fits(entries(ONE), ONE, Limits(total="1"))


def test_classes_are_never_added() -> None:
    asymptotic, concentrated = replace(ONE, cls="asymptotic", delta=None), replace(ONE, cls="zCDP")
    assert fits(entries(ONE, asymptotic), concentrated, Limits(total="1"))
    assert not fits(entries(ONE, asymptotic, concentrated), concentrated, Limits(total="1"))


def test_a_class_that_the_ledger_has_no_limits_for_is_refused() -> None:
    """A limit on strict releases would mean nothing if asymptotic ones were free."""
    kept = entries(strict=Limits(total="9"))
    assert fits(kept, ONE)
    with pytest.raises(BudgetRefused, match="none for asymptotic ones"):
        refuse_excess(kept, NONE, replace(ONE, cls="asymptotic"))


def test_costs_under_different_adjacencies_have_no_sum_and_no_common_limit() -> None:
    exchanged = replace(ONE, adjacency="substitution, same_x")
    assert fits(entries(ONE), exchanged), "without a limit nothing is compared"
    with pytest.raises(BudgetRefused, match="charged under adjacency zero_out"):
        refuse_excess(entries(ONE), Limits(total="9"), exchanged)


@pytest.mark.parametrize(
    ("guarantee", "found"),
    [
        (Strict("zero_out", Fraction(3)), ("strict", Fraction(3), Fraction(0))),
        (Strict("zero_out", Fraction(3), None), ("strict", Fraction(3), None)),
        (
            Concentrated("zero_out", Fraction(3), Fraction(1, 8), Fraction(1, 10**6)),
            ("zCDP", Fraction(1, 8), Fraction(1, 10**6)),
        ),
        (Asymptotic("zero_out", Fraction(3)), ("asymptotic", Fraction(3), None)),
    ],
)
def test_a_guarantee_costs_its_epsilon_or_rho(guarantee: Guarantee, found: tuple[object, ...]) -> None:
    assert cost(guarantee, "wages") == found


def test_no_budget_covers_a_release_that_promises_nothing() -> None:
    with pytest.raises(BudgetRefused, match="promises nothing"):
        cost(NoGuarantee(), "wages")


MONTHS = st.dictionaries(st.sampled_from([f"2021-{k:02d}" for k in range(1, 13)]), st.fractions(0, 3), min_size=1)


@given(sums=MONTHS, periods=st.integers(1, 5), at=st.integers(0, 11))
def test_the_largest_window_is_the_largest_sum_over_consecutive_periods(
    sums: dict[str, Fraction], periods: int, at: int
) -> None:
    """Oracle: every window of the calendar, looked at one by one."""
    names = sorted(sums)
    period = names[at % len(names)]
    every = [names[k : k + periods] for k in range(-periods, len(names)) if k >= 0] or [names]
    oracle = max(sum((sums[name] for name in window), Fraction(0)) for window in every if period in window)
    assert largest_window(sums, period, periods) == oracle


@pytest.mark.parametrize("other", ["March 2021", "2021", "2021-Q1", "spring"])
def test_a_period_of_another_form_is_in_every_window(other: str) -> None:
    """Where it lies in time its text does not tell."""
    sums = {"2021-01": Fraction(1), "2021-12": Fraction(1), other: Fraction(5)}
    assert largest_window(sums, "2021-12", 1) == 6
    assert largest_window(sums, other, 1) == 7


def test_periods_that_do_not_begin_with_a_year_have_no_order() -> None:
    """Control: as texts Q1 2022 comes before Q4 2021."""
    sums = {"Q1 2022": Fraction(1), "Q2 2021": Fraction(1), "Q4 2021": Fraction(1)}
    assert largest_window(sums, "Q1 2022", 1) == 3
    dated = {"2022-Q1": Fraction(1), "2021-Q2": Fraction(1), "2021-Q4": Fraction(1)}
    assert largest_window(dated, "2022-Q1", 2) == 2


def test_a_panel_may_be_charged_again_when_its_window_has_passed() -> None:
    limits = Limits(window={"periods": 2, "budget": "2"})
    years = [replace(ONE, period=str(year)) for year in range(2020, 2026)]
    kept: list[Charge] = []
    for year in years:
        assert fits(entries(*kept), year, limits)
        kept.append(year)
    assert not fits(entries(*kept), years[2], limits), "a correction of a year between two others"

"""What releases cost together: exact, classes and adjacencies apart, and never more than the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import count

import pytest
from hypothesis import given, strategies as st

from dpdist.core.errors import BudgetRefused
from dpdist.job import LedgerSettings, Limits, budget_text, epsilon_of
from dpdist.ledger.accounts import Charge, Entry, cost, following, largest_window, refuse_charge, refuse_correction
from dpdist.ledger.pages import pages
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
        run = f"run-{next(numbers)}"
        found.append(following(found[-1], {"kind": "reserve", **charge.content, "run": run}))
    return found


def named(kept: list[Entry], *ids: str, period: str = "2021") -> list[Entry]:
    """The same ledger, in which runs of the period have made releases of these ids."""
    for release in ids:
        own = {"kind": "release", "dataset": "wages", "period": period, "made_by": "run-1", "release": release * 64}
        kept = [*kept, following(kept[-1], own)]
    return kept


def fits(kept: Sequence[Entry], charge: Charge, stated: Limits = NONE) -> bool:
    try:
        refuse_charge(kept, stated, charge)
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
    with pytest.raises(BudgetRefused, match="none for asymptotic releases"):
        refuse_charge(kept, NONE, replace(ONE, cls="asymptotic"))


def test_costs_under_different_adjacencies_have_no_sum_and_no_common_limit() -> None:
    exchanged = replace(ONE, adjacency="substitution, same_x")
    assert fits(entries(ONE), exchanged), "without a limit nothing is compared"
    with pytest.raises(BudgetRefused, match="charged under adjacency zero_out"):
        refuse_charge(entries(ONE), Limits(total="9"), exchanged)


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
    with pytest.raises(BudgetRefused, match="gives no guarantee"):
        cost(NoGuarantee(), "wages")


RHO = replace(ONE, cls="zCDP", budget=Fraction(1, 8), delta=SMALL)


def test_delta_adds_up_over_strict_releases() -> None:
    """Exact. Control: without a limit on δ nothing is refused, and pure releases always fit."""
    draws = replace(ONE, delta=SMALL)
    limits = Limits(delta=str(3 * SMALL))
    assert fits(entries(draws, draws), draws, limits)
    assert fits(entries(draws, draws, draws), ONE, limits)
    assert fits(entries(draws, draws, draws), draws, Limits(total="9"))
    with pytest.raises(
        BudgetRefused, match=r"strict δ = 0.000001 would bring the sum to 0.000004\n    allowed: strict δ = 0.000003 in all"
    ):
        refuse_charge(entries(draws, draws, draws), limits, draws)


@pytest.mark.parametrize(
    ("before", "charge", "whose"),
    [
        ((), replace(ONE, delta=None), "this run's strict"),
        ((replace(ONE, delta=None),), ONE, "an earlier release's strict"),
        ((), replace(ONE, cls="asymptotic", delta=None), "this run's asymptotic"),
    ],
)
def test_a_delta_that_nobody_knows_fits_under_no_limit(before: tuple[Charge, ...], charge: Charge, whose: str) -> None:
    with pytest.raises(BudgetRefused, match=f"{whose} δ is unknown"):
        refuse_charge(entries(*before), Limits(delta="1e-3"), charge)
    assert fits(entries(*before), charge, Limits(total="9")), "control"


def test_rho_adds_up_under_zcdp_and_delta_is_the_one_that_epsilon_is_stated_at() -> None:
    limits = Limits(total="1/4", delta="1e-6")
    assert fits(entries(RHO), RHO, limits)
    with pytest.raises(
        BudgetRefused, match=r"zCDP ρ = 0.125 would bring the sum to 0.375 in all\n    allowed: zCDP ρ = 0.25 in all"
    ):
        refuse_charge(entries(RHO, RHO), limits, RHO)
    with pytest.raises(BudgetRefused, match=r"allowed: zCDP ε stated at δ = 0.000001 or less"):
        refuse_charge(entries(RHO), limits, replace(RHO, delta=2 * SMALL))


def test_limits_of_a_job_by_class_hold_for_their_class_alone() -> None:
    stated = LedgerSettings.model_validate({"limits": {"strict": {"total": "2"}, "zCDP": {"total": "1/8"}}})
    assert fits(entries(ONE), ONE, stated)
    assert not fits(entries(ONE, ONE), ONE, stated)
    assert fits(entries(ONE, ONE), RHO, stated)
    assert not fits(entries(ONE, RHO), RHO, stated)
    with pytest.raises(BudgetRefused, match="name only classes other than asymptotic"):
        refuse_charge(entries(), stated, replace(ONE, cls="asymptotic", delta=None))


def version(number: int, of: str) -> Charge:
    return replace(ONE, version=number, corrects=of * 64)


def test_versions_are_in_the_order_of_their_charges_and_no_two_corrections_have_one() -> None:
    """A correction of a correction and two corrections of one release alike; another period counts its own."""
    kept = named(entries(ONE, version(2, "a"), version(3, "a"), version(4, "b")), "a", "b")
    refuse_correction(kept, version(5, "a"))
    for number, found in ((2, "version 2 of 2021 is charged already"), (4, "already"), (6, "5 was never charged")):
        with pytest.raises(BudgetRefused, match=found):
            refuse_correction(kept, version(number, "a"))
    with pytest.raises(BudgetRefused, match="version 1 was never charged"):
        refuse_correction(kept, replace(version(2, "a"), period="2022"))
    assert [Charge.of(entry) for entry in kept[1:5]] == [
        replace(charge, run=f"run-{k}") for k, charge in enumerate((ONE, *map(version, (2, 3, 4), "aab")), start=1)
    ]


def test_a_correction_is_of_a_charged_release_of_its_period() -> None:
    """Controls: an id that nobody has, one of another period or dataset, and a release of before ids were entered."""
    kept = named(named(entries(ONE), "a", "c"), "b", period="2020")
    for known in "ac":
        refuse_correction(kept, version(2, known))
    for other, charge in (("b", version(2, "b")), ("d", version(2, "d"))):
        with pytest.raises(BudgetRefused, match=f"no charged release of 2021 has the id {other * 64}") as refused:
            refuse_correction(kept, charge)
        assert refused.value.allowed == f"one of: {'a' * 64}, {'c' * 64}"
    with pytest.raises(BudgetRefused, match="no charged release") as refused:
        refuse_correction(entries(ONE), version(2, "a"))
    assert "`dpdist publish` on its workspace enters its id" in refused.value.remedy


def test_the_page_names_every_correction_and_what_it_corrects() -> None:
    (page,) = pages(entries(ONE, version(2, "a"), version(3, "b")))
    assert page.lines[0]["versions"] == "1, 2, 3"
    assert page.facts["2021 version 2"] == "corrects aaaaaaaaaaaa…, ε = 1"
    assert [(each["version"], each["of"]) for each in page.as_json["corrections"]] == [(2, "a" * 64), (3, "b" * 64)]
    (rho,) = pages(entries(RHO, RHO, zCDP=Limits(total="1", delta="1e-6")))
    assert (
        rho.facts["amounts to"]
        == f"ε = {budget_text(epsilon_of(Fraction(1, 4), SMALL))} at δ = 0.000001 (stated at 0.000001 or less)"
    )


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

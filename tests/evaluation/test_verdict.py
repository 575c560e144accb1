"""The verdict on published intervals: right ones pass, intervals that cover less than they say do not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dpdist.core.records import TOTAL
from dpdist.evaluation.verdict import Verdict, in_words, judge


def evaluated(
    rng: np.random.Generator, cells: int, stated: float = 1.0, bias: float = 0.0, shared: float = 0.0, df: float = 200.0
) -> pd.DataFrame:
    """Direct estimates with a standard error of 1, and released ones of another sample that err by 1 as well.

    `stated` is the released error's stated size, `bias` what all released figures are off by, `shared` the share of both
    errors' variance that is one and the same, as where noise is added to the direct estimate.
    """
    common = np.sqrt(shared) * rng.standard_normal(cells)
    direct, released = (100.0 + common + np.sqrt(1.0 - shared) * rng.standard_normal(cells) for _ in range(2))
    released = released + bias
    reach = stated * stats.norm.ppf(0.95)
    return pd.DataFrame(
        {
            "region": [f"r{k}" for k in range(cells)],
            "statistic": "mean",
            "variable": "salary",
            "records": 500,
            "direct": direct,
            "direct_se": 1.0,
            "direct_df": df,
            "synthetic": released,
            "synthetic_se": stated,
            "synthetic_df": np.inf,
            "synthetic_lower": released - reach,
            "synthetic_upper": released + reach,
        }
    )


def verdict(rows: pd.DataFrame) -> Verdict:
    found = judge(rows)
    assert found is not None
    return found


@pytest.mark.parametrize(("cells", "shared"), [(4, 0.0), (24, 0.5), (400, 0.0), (400, 0.9)])
def test_intervals_that_are_right_are_seldom_called_wrong(cells: int, shared: float) -> None:
    """Two tests of 1 in 1,000 each: 60 releases give .12 alarms, and 3 or more once in 4,000 times."""
    rng = np.random.default_rng(1)
    alarms = sum(verdict(evaluated(rng, cells, shared=shared)).fails for _ in range(60))
    assert alarms <= 2


def test_without_the_direct_estimates_own_error_the_same_rule_would_cry_wolf() -> None:
    """Right intervals of an independent sample hold .755 of direct estimates: taken as truths they would be refused."""
    rng = np.random.default_rng(2)
    found = [verdict(evaluated(rng, 400)) for _ in range(30)]
    assert np.mean([each.held for each in found]) == pytest.approx(0.755, abs=0.01)
    assert np.mean([each.allowed for each in found]) == pytest.approx(0.9, abs=0.01)
    assert stats.binom.cdf(0.755 * 400, 400, 0.9) < 1e-9


@pytest.mark.parametrize(("stated", "bias"), [(0.2, 3.0), (1.0, 4.0), (0.5, -3.0)])
def test_intervals_that_cover_less_than_they_say_are_not_for_publication(stated: float, bias: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(10):
        found = verdict(evaluated(rng, 21, stated, bias))
        assert found.stops
        assert in_words("salaries", found).endswith("Do not publish.")


def test_intervals_a_little_too_narrow_in_many_cells_are_named_so_and_no_worse() -> None:
    found = verdict(evaluated(np.random.default_rng(4), 2000, stated=0.7))
    assert found.fails
    assert not found.stops
    assert 0.75 < found.allowed < 0.88
    assert "They cover less than they say. State wider ones." in in_words("salaries", found)


def test_one_cell_that_is_far_off_is_named_though_all_others_are_held() -> None:
    rows = evaluated(np.random.default_rng(5), 60)
    assert not verdict(rows).fails
    rows.loc[7, ["synthetic", "synthetic_lower", "synthetic_upper"]] += 12.0
    found = verdict(rows)
    assert found.far == "r7"
    assert found.stops
    assert not found.too_few
    few = evaluated(np.random.default_rng(5), 60, df=1.0)
    few.loc[7, ["synthetic", "synthetic_lower", "synthetic_upper"]] += 12.0
    assert not verdict(few).fails, "two records do not tell that much"


def test_margins_do_not_count_as_further_evidence_of_coverage() -> None:
    """Ten margins that all miss for one and the same reason, beside six cells that are held."""
    rows = evaluated(np.random.default_rng(6), 16, shared=0.9)
    rows.loc[6:, "region"] = TOTAL
    rows.loc[6:, "synthetic"] = rows.loc[6:, "direct"] + 2.5
    for end, sign in (("lower", -1.0), ("upper", 1.0)):
        rows[f"synthetic_{end}"] = rows["synthetic"] + sign * 1.645
    assert not verdict(rows).fails
    rows["region"] = [f"r{k}" for k in range(16)]
    assert verdict(rows).too_few


def test_what_cannot_be_judged_is_left_out() -> None:
    """Cells of less than two records, totals that a public figure fixes, direct estimates without an error; nothing."""
    rows = evaluated(np.random.default_rng(7), 30)
    far = rows.assign(synthetic=1e6, synthetic_lower=1e6, synthetic_upper=1e6)
    single = far.assign(records=1, direct_se=0.0, direct_df=0.0)
    left = [far.assign(records=0), single, far.assign(synthetic_se=0.0), far.assign(direct_se=np.nan)]
    assert verdict(pd.concat([rows, *left], ignore_index=True)) == verdict(rows)
    assert judge(pd.concat(left)) is None
    assert judge(rows.assign(synthetic_se=np.nan, synthetic_lower=np.nan, synthetic_upper=np.nan)) is None


def test_a_figure_that_the_design_fixes_is_held_to_the_published_error_alone() -> None:
    rows = evaluated(np.random.default_rng(8), 20, shared=1.0).assign(direct_se=0.0)
    assert verdict(rows).held == 1.0
    rows[["synthetic", "synthetic_lower", "synthetic_upper"]] += 3.0
    found = verdict(rows)
    assert (found.held, found.allowed) == (0.0, 0.0)
    assert found.stops

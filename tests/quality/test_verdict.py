"""The verdict on published intervals: right ones pass; those that cover less than they say, or are biased, do not."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dpdist.core.records import TOTAL, Floats, Ints
from dpdist.quality.errors import by_chance, distances, number_of_statistics, relative_to
from dpdist.quality.summary import Overall, bias_lines, bias_of, in_words, large, overall, percent, verdicts
from dpdist.quality.verdict import FALSE_ALARM, SMALL, Verdict, judge, too_small


def evaluated(
    rng: np.random.Generator,
    cells: int,
    stated: float = 1.0,
    bias: float = 0.0,
    noise: float = 0.5,
    df: float = 200.0,
    grand: float = 0.0,
) -> pd.DataFrame:
    """Direct estimates with a standard error of 1, and released ones of the same sample with noise beside them.

    `stated` is the published error's size over the right one, √(1 + noise²); `bias` what all released figures are off by,
    in direct standard errors of a cell. The last row is of all records, the mean over cells, with a bias `grand` of its own
    in published standard errors.
    """
    sample, added = rng.standard_normal(cells), noise * rng.laplace(0.0, np.sqrt(0.5), cells)
    direct, released = 100.0 + sample, 100.0 + sample + added + bias
    size = np.append(np.ones(cells), 1.0 / np.sqrt(cells))
    direct, released = (np.append(values, values.mean()) for values in (direct, released))
    error = size * np.hypot(1.0, noise)
    released[-1] += grand * error[-1]
    reach = stated * error * stats.norm.ppf(0.95)
    return pd.DataFrame(
        {
            "region": [*(f"r{k}" for k in range(cells)), TOTAL],
            "statistic": "mean",
            "variable": "salary",
            "records": 500,
            "direct": direct,
            "direct_se": size,
            "direct_df": df,
            "synthetic": released,
            "synthetic_se": stated * error,
            "synthetic_noise_se": noise * size,
            "synthetic_df": np.inf,
            "synthetic_lower": released - reach,
            "synthetic_upper": released + reach,
        }
    )


def overall_of(tables: dict[str, pd.DataFrame], clustered: bool = False) -> Overall:
    return overall(verdicts(tables, clustered, sum(map(number_of_statistics, tables.values()))))


def verdict(rows: pd.DataFrame) -> Verdict:
    found = judge(rows)
    assert isinstance(found, Verdict)
    return found


@pytest.mark.parametrize(("cells", "noise"), [(4, 0.2), pytest.param(24, 5.0, marks=pytest.mark.long), (200, 0.5)])
def test_an_unbiased_release_passes_as_often_as_the_theory_says(cells: int, noise: float) -> None:
    """At most 1 in 20 fails; of 80 releases, 10 or more failures have a probability of .01."""
    rng = np.random.default_rng(1)
    alarms = sum(verdict(evaluated(rng, cells, noise=noise)).fails for _ in range(80))
    assert alarms <= stats.binom.ppf(0.99, 80, FALSE_ALARM)


@pytest.mark.parametrize(
    ("cells", "common"), [(16, 0.5), *(pytest.param(*case, marks=pytest.mark.long) for case in ((16, 0.25), (50, 0.1)))]
)
def test_cells_with_an_error_in_common_raise_no_more_alarms(cells: int, common: float) -> None:
    """Noise that moves all cells alike, as tails of histograms do; the grand figure's published error holds it. Control:
    where that error is stated as if cells erred apart, and so is wrong, most releases with half of it in common fail."""
    rng = np.random.default_rng(12)

    def shared(known: bool) -> pd.DataFrame:
        rows = evaluated(rng, cells, noise=1.0)
        apart, together = np.sqrt(1.0 - common) * rng.standard_normal(cells), np.sqrt(common) * rng.standard_normal()
        rows["synthetic"] = rows["direct"] + np.append(apart + together, apart.mean() + together)
        noise = np.sqrt(np.append(np.ones(cells), (1.0 - common) / cells + common * known))
        error = np.hypot(rows["direct_se"], noise)
        ends = {"synthetic_lower": rows["synthetic"] - 1.645 * error, "synthetic_upper": rows["synthetic"] + 1.645 * error}
        return rows.assign(synthetic_se=error, synthetic_noise_se=noise, **ends)

    alarms, wrong = (sum(verdict(shared(known)).fails for _ in range(80)) for known in (True, False))
    assert alarms <= stats.binom.ppf(0.99, 80, FALSE_ALARM)
    assert wrong > alarms if common < 0.5 else wrong > 40


def test_a_total_that_a_public_figure_fixes_is_not_judged() -> None:
    """Its error is 0 but for rounding. Control: with the error of the others it is."""
    rows = evaluated(np.random.default_rng(13), 12)
    fixed = rows.assign(synthetic_se=rows["synthetic_se"].where(rows["region"] != TOTAL, 1e-10))
    assert verdict(fixed).grand is None
    assert verdict(rows).grand is not None


@pytest.mark.parametrize(("cells", "noise"), [pytest.param(4, 0.5, marks=pytest.mark.long), (24, 0.1)])
def test_a_bias_of_three_standard_errors_in_the_grand_figure_is_found(cells: int, noise: float) -> None:
    """In .95 of releases or more, where noise is at most half of the sample's error. Control: without it they pass."""
    rng = np.random.default_rng(2)
    found = [verdict(evaluated(rng, cells, noise=noise, grand=-3.0)) for _ in range(40)]
    assert np.mean([each.off and each.stops for each in found]) >= 0.95
    assert np.mean([verdict(evaluated(rng, cells, noise=noise)).off for _ in range(40)]) <= 0.05


def test_the_direct_errors_are_not_allowed_for_a_second_time() -> None:
    """Figures of one sample that differ by 1.3 published SE each: intervals of their sum would hold them all."""
    rows = evaluated(np.random.default_rng(3), 24, bias=2.0, noise=0.3)
    found = verdict(rows)
    sums = np.hypot(rows["synthetic_se"], rows["direct_se"]) * stats.norm.ppf(0.95)
    assert ((rows["synthetic"] - rows["direct"]).abs() <= sums)[:-1].mean() > 0.8
    assert found.coverage < 0.4
    assert found.too_few
    assert found.stops
    assert in_words("salaries", found).endswith("Do not publish.")


def test_errors_of_one_sample_fall_out_of_the_difference() -> None:
    """By simulation: a figure with noise, an efficient one; where noise is not known the errors are added in squares."""
    row = evaluated(np.random.default_rng(4), 2, noise=2.0).iloc[:1]
    assert by_chance(row)[0] == pytest.approx(np.sqrt(4.0 + 2.0 - 2.0 * 0.9))
    rng, n = np.random.default_rng(5), 20000
    sample = rng.standard_normal((n, 40))
    efficient, direct = sample.mean(axis=1), sample[:, :10].mean(axis=1)
    assert np.std(efficient - direct) == pytest.approx(np.sqrt(1 / 10 - 1 / 40), rel=0.02)
    sizes = row.assign(synthetic_se=np.sqrt(1 / 40), direct_se=np.sqrt(1 / 10), synthetic_noise_se=0.0)
    assert by_chance(sizes)[0] == pytest.approx(np.sqrt(1 / 10 - 1 / 40))
    assert by_chance(row.assign(synthetic_noise_se=np.nan))[0] == pytest.approx(np.sqrt(6.0))


def test_a_number_of_records_that_is_the_same_for_both_is_no_error_between_them() -> None:
    """Of a count whose direct error is mostly that other samples have other sizes."""
    row = evaluated(np.random.default_rng(6), 2, noise=0.1).iloc[:1].assign(direct_se_given_n=0.2)
    assert by_chance(row)[0] < 0.2
    assert by_chance(row.drop(columns="direct_se_given_n"))[0] > 0.4


def of_cells(
    statistic: str, records: Ints, direct: tuple[Floats, Floats], published: tuple[Floats, Floats, Floats]
) -> pd.DataFrame:
    """Cells with direct figures and errors, and published figures, errors and those by noise alone, (cell,) each."""
    (figure, error), (released, stated, noise) = direct, published
    return pd.DataFrame(
        {
            "region": [f"r{k}" for k in range(len(records))],
            "statistic": statistic,
            "variable": "salary",
            "records": records,
            "direct": figure,
            "direct_se": error,
            "direct_df": records - 1.0,
            "synthetic": released,
            "synthetic_se": stated,
            "synthetic_noise_se": noise,
            "synthetic_df": np.inf,
            "synthetic_lower": released - 1.645 * stated,
            "synthetic_upper": released + 1.645 * stated,
        }
    )


def of_small_cells(rng: np.random.Generator, times: float = 1.0) -> pd.DataFrame:
    """Means of a lognormal outcome in 600 cells of 4 to 20 records and 100 of 60, and more precise published figures.

    Published figures are the population's means with noise of .4 direct standard errors, stated rightly; their noise is
    `times` as large.
    """
    records = np.append(rng.integers(4, 21, 600), np.full(100, 60))
    means = rng.uniform(20.0, 60.0, len(records))
    spread, values = 1.0, rng.lognormal(-0.5, 1.0, (len(records), 60))
    inside = np.arange(60) < records[:, None]
    shares = np.where(inside, values, np.nan)
    direct, error = means * np.nanmean(shares, axis=1), means * np.nanstd(shares, axis=1, ddof=1) / np.sqrt(records)
    right = 0.4 * means * np.sqrt(np.expm1(spread)) / np.sqrt(records)
    released = means + times * right * rng.standard_normal(len(records))
    return of_cells("mean", records, (direct, error), (released, right, 0.95 * right))


def test_figures_more_precise_than_direct_ones_of_few_records_are_no_fault() -> None:
    """Few records of a skewed outcome show too small a direct error. About 1 of 18 right releases fails by coverage, so
    that more than 3 of 20 do with a probability of .02. Controls: each cell's own direct error, as if it had 30 records;
    noise four times as large as stated; a bias of 2 direct errors in small cells; published figures ten times too large.
    """
    rng = np.random.default_rng(14)
    right = [of_small_cells(rng) for _ in range(20)]
    found = list(map(verdict, right))
    assert sum(each.too_few for each in found) <= 3
    assert max(each.coverage for each in found) < 0.6
    assert "also allow for errors of direct estimates" in in_words("salaries", found[0])
    few = right[0]["records"] < 30
    own = [rows.assign(records=rows["records"].where(~few, 30)) for rows in right]
    assert np.mean([verdict(rows).too_few for rows in own]) > 0.5
    assert all(verdict(of_small_cells(rng, 4.0)).too_few for _ in range(5))
    ends = ["synthetic", "synthetic_lower", "synthetic_upper"]
    for rows in right[:5]:
        shift = (2.0 * rows["direct_se"]).where(few, 0.0)
        tenfold = np.where(rows.index == rows.index[rows["records"] == 20][0], 10.0, 1.0)
        assert verdict(rows.assign(**{name: rows[name] + shift for name in ends})).fails
        assert verdict(rows.assign(**{name: rows[name] * tenfold for name in ends})).stops


@pytest.mark.parametrize(("statistic", "of_few", "of_many"), [("proportion", 0.4, 0.03), ("difference of mean", 30.0, 1.0)])
def test_variances_of_larger_cells_excuse_no_error_of_another_kind(statistic: str, of_few: float, of_many: float) -> None:
    """Figures that are off by three direct errors, in cells whose figures and variances are not those of larger cells:
    1 − p over p is 32 times as large there. Control: figures that are as the direct ones.
    """
    rng, few = np.random.default_rng(15), np.arange(330) < 300
    figure, records = np.where(few, of_few, of_many), np.where(few, 20, 200)
    spread = np.sqrt(figure * (1.0 - figure)) if statistic == "proportion" else np.full(330, 20.0)
    error = spread / np.sqrt(records)
    direct, stated = figure + 0.3 * error * rng.standard_normal(330), 0.4 * error

    def judged(off: float) -> Verdict:
        released = figure + np.where(few, off * rng.choice([-1.0, 1.0], 330), 0.0) * error
        return verdict(of_cells(statistic, records, (direct, error), (released, stated, 0.9 * stated)))

    assert judged(3.0).too_few
    assert judged(3.0).stops
    assert not judged(0.0).fails, "control"


def test_margins_that_hold_do_not_make_up_for_base_cells_that_miss() -> None:
    """Intervals of .7 of 180 base cells hold, and those of 40 margins. Control: of .95 of base cells."""

    def judged(held: float) -> Verdict:
        rows = evaluated(np.random.default_rng(16), 220, noise=0.5).iloc[:-1].assign(sex="f")
        rows.loc[180:, "sex"] = TOTAL
        misses = (rows.index >= held * 180) & (rows.index < 180)
        rows["synthetic"] = rows["direct"] + np.where(misses, 3.0 * rows["synthetic_se"], 0.0)
        for end, sign in (("lower", -1.0), ("upper", 1.0)):
            rows[f"synthetic_{end}"] = rows["synthetic"] + sign * 1.645 * rows["synthetic_se"]
        return verdict(rows[["region", "sex", *rows.columns[1:-1]]])

    assert judged(0.7).too_few
    assert judged(0.7).stops
    assert not judged(0.95).stops, "control"


def test_a_bias_to_one_side_is_found_though_intervals_hold() -> None:
    """All cells .8 SE low: intervals hold most. Control: noise alone leaves about half on either side."""
    found = verdict(evaluated(np.random.default_rng(7), 40, bias=-1.0, noise=0.3).iloc[:-1])
    assert found.one_sided
    assert found.above < 0.1
    assert "base cells are below their direct estimates, on average by" in in_words("salaries", found)
    assert not verdict(evaluated(np.random.default_rng(7), 40, noise=0.3)).one_sided


def test_intervals_a_little_too_narrow_in_many_cells_are_named_so_and_no_worse() -> None:
    found = verdict(evaluated(np.random.default_rng(8), 2000, stated=0.7, noise=5.0))
    assert found.too_few
    assert not found.stops
    assert 0.75 < found.covered < 0.88
    assert in_words("salaries", found).endswith("Publish wider intervals, or state the bias.")


def test_one_cell_that_is_far_off_is_named_though_all_others_are_held() -> None:
    rows = evaluated(np.random.default_rng(9), 60)
    assert not verdict(rows).fails
    rows.loc[7, ["synthetic", "synthetic_lower", "synthetic_upper"]] += 12.0
    found = verdict(rows)
    assert found.far == "r7"
    assert found.stops
    assert not found.too_few
    few = evaluated(np.random.default_rng(9), 60, df=1.0)
    few.loc[7, ["synthetic", "synthetic_lower", "synthetic_upper"]] += 12.0
    assert verdict(few).far is None, "two records do not tell that much"


def test_margins_do_not_count_as_further_evidence_of_coverage() -> None:
    """Ten margins that all miss for one and the same reason, beside six cells that are held."""
    rows = evaluated(np.random.default_rng(10), 16, noise=0.9).iloc[:-1].assign(sex="f")
    rows.loc[6:, "sex"] = TOTAL
    rows.loc[6:, "synthetic"] = rows.loc[6:, "direct"] + 2.5
    for end, sign in (("lower", -1.0), ("upper", 1.0)):
        rows[f"synthetic_{end}"] = rows["synthetic"] + sign * 1.645 * rows["synthetic_se"]
    rows = rows[["region", "sex", *rows.columns[1:-1]]]
    found = verdict(rows)
    assert not found.fails
    assert found.unclear
    assert verdict(rows.assign(sex="f")).too_few


def test_what_cannot_be_judged_is_left_out() -> None:
    """Cells of less than two records, totals that a public figure fixes, direct estimates without an error; nothing."""
    rows = evaluated(np.random.default_rng(11), 30)
    far = rows.iloc[:-1].assign(synthetic=1e6, synthetic_lower=1e6, synthetic_upper=1e6)
    single = far.assign(records=1, direct_se=0.0, direct_df=0.0)
    left = [far.assign(records=0), single, far.assign(synthetic_se=0.0), far.assign(direct_se=np.nan)]
    judged, expected = verdict(pd.concat([rows, *left], ignore_index=True)), verdict(rows)
    assert judged.errors.cells == 151, "but every cell has an error"
    assert replace(judged, errors=expected.errors) == expected
    assert judge(pd.concat(left)) is None
    assert judge(rows.assign(synthetic_se=np.nan, synthetic_lower=np.nan, synthetic_upper=np.nan)) is None


def test_a_figure_that_the_design_fixes_is_held_to_the_published_error_alone() -> None:
    rows = evaluated(np.random.default_rng(12), 20).assign(direct_se=0.0)
    assert verdict(rows).coverage == 1.0
    rows[["synthetic", "synthetic_lower", "synthetic_upper"]] += 3.0
    found = verdict(rows)
    assert (found.coverage, found.covered) == (0.0, 0.0)
    assert found.stops


def test_nothing_that_could_be_judged_is_not_called_free_of_fault() -> None:
    """Control: a release that was judged, and passes."""
    rows = evaluated(np.random.default_rng(13), 20)
    unknown = rows.assign(synthetic_se=np.nan, synthetic_lower=np.nan, synthetic_upper=np.nan)
    assert overall_of({"pay": unknown}).head == "nothing could be judged"
    assert overall_of({"pay": rows}).head == "no fault found in the intervals"
    assert overall_of({"pay": rows, "more": unknown}).head == "no fault found in the figures that could be judged"


def test_fewer_held_than_stated_is_never_called_no_fault() -> None:
    """Nine of eleven, as in three of ten right releases; control: nine and more of ten pass."""
    rows = evaluated(np.random.default_rng(14), 10, noise=0.2)
    assert overall_of({"pay": rows}).head == "no fault found in the intervals"
    low = rows.copy()
    low.loc[:1, ["synthetic", "synthetic_lower", "synthetic_upper"]] += 2.2
    found = overall_of({"pay": low})
    assert not found.fails
    assert (
        found.head == "not clear: too few 90 % intervals contain the direct estimate (mean of salary in table pay: 9 of 11)"
    )
    assert "Fewer than 90 % are covered. With correct intervals this happens in 30 % of releases" in found.sentences[0]
    assert "chance" not in found.sentences[0]


def test_shares_are_percentages_without_exponents() -> None:
    """With two digits below 10 %. Control: 0.997 with two digits."""
    assert f"{100 * 0.997:.2g} %" == "1e+02 %"
    written = {0.004: "0.4 %", 0.0123: "1.2 %", 0.34: "34 %", 0.997: "100 %", 12.5: "1,250 %"}
    assert {share: percent(share) for share in written} == written
    rows = evaluated(np.random.default_rng(14), 10, noise=0.2)
    rows.loc[:1, ["synthetic", "synthetic_lower", "synthetic_upper"]] += 2.2
    for chance, text in {0.997: "more than 99 %", 0.98: "98 %", 0.0001: "less than 0.1 %"}.items():
        verdict = judge(rows)
        assert isinstance(verdict, Verdict)
        verdict = replace(verdict, chance=chance)
        assert f"With correct intervals this happens in {text} of releases" in in_words("pay, mean of salary", verdict)


def test_figures_far_from_direct_ones_are_not_called_free_of_fault() -> None:
    """Noise of 5 direct standard errors in intervals as wide, and one cell 20 off; controls: half an error of noise, and
    a release whose intervals are wrong says that first."""
    rng = np.random.default_rng(16)
    near = evaluated(rng, 30, noise=0.5)
    assert overall_of({"pay": near}).head == "no fault found in the intervals"
    wide = evaluated(rng, 30, noise=5.0)
    found = overall_of({"pay": wide})
    assert not found.fails
    assert found.head.startswith("not accurate: large errors, in direct SE (mean of salary in table pay: median ")
    assert ", largest " in found.sentences[0]
    assert "These errors are large." in found.sentences[0]
    one = near.copy()
    one.loc[3, ["synthetic", "synthetic_lower", "synthetic_upper"]] += [20.0, -10.0, 30.0]
    one.loc[3, "synthetic_se"] = 15.0
    assert overall_of({"pay": one}).head.startswith("not accurate: ")
    wrong = overall_of({"pay": evaluated(rng, 30, stated=0.2, noise=5.0)})
    assert wrong.head.startswith("do not publish: ")
    assert "; large errors, in direct SE" in wrong.head


def test_the_first_line_names_three_statistics_of_a_fault_the_worst_first() -> None:
    """Of seven tables whose figures are far off. Control: three are named without a rest."""
    rng = np.random.default_rng(18)
    tables = {f"pay-{k}": evaluated(rng, 30, noise=4.0 + k) for k in range(7)}
    head = overall_of(tables).head
    medians = [float(text) for text in re.findall(r"median ([0-9.]+)", head)]
    assert len(medians) == 3
    assert medians == sorted(medians, reverse=True)
    assert f"; and {len(tables) - 3} more)" in head
    three = overall_of({name: tables[name] for name in ("pay-4", "pay-5", "pay-6")}).head
    assert three.count("median ") == 3
    assert " more)" not in three


def test_a_cell_too_far_off_is_named_for_the_worst_statistics() -> None:
    """Of five tables with such a cell, the last has the worst."""
    tables = {}
    for k in range(5):
        rows = evaluated(np.random.default_rng(30 + k), 12)
        error = rows.loc[0, ["synthetic_se", "direct_se"]].astype(float).max()
        rows.loc[0, "synthetic"] = rows.loc[0, "direct"] + (20.0 + 10.0 * k) * error
        tables[f"pay-{k}"] = rows
    head = overall_of(tables).head
    named = re.search(r"a cell is too far off \(([^)]*)", head)
    assert named is not None
    assert re.findall(r"pay-\d", named[1])[:3] == ["pay-4", "pay-3", "pay-2"]


def test_a_grand_figure_is_held_to_the_interval_that_is_published() -> None:
    """It may be longer on one side; control: by 1.645 standard errors on both."""
    rows = evaluated(np.random.default_rng(17), 12)
    last = rows.index[-1]
    rows.loc[last, "synthetic"] = rows.loc[last, "direct"] + 2.0 * rows.loc[last, "synthetic_se"]
    for end, times in (("lower", -1.645), ("upper", 1.645)):
        rows.loc[last, f"synthetic_{end}"] = rows.loc[last, "synthetic"] + times * rows.loc[last, "synthetic_se"]
    plain = verdict(rows).grand
    rows.loc[last, "synthetic_lower"] -= rows.loc[last, "synthetic_se"]
    longer = verdict(rows).grand
    assert plain is not None
    assert longer is not None
    assert (plain.covers, longer.covers) == (False, True)
    assert plain.reach == pytest.approx(1.645)
    assert longer.reach == pytest.approx(2.645)


def test_the_grand_figure_stands_beside_the_direct_one() -> None:
    """Counts 6 % low: by how much, in published standard errors and in those of the noise alone."""
    rows = evaluated(np.random.default_rng(15), 20, noise=0.5)
    last = rows.index[-1]
    rows.loc[last, ["synthetic", "direct", "synthetic_se", "synthetic_noise_se"]] = [59.1e6, 62.8e6, 0.9e6, 0.5e6]
    grand = verdict(rows).grand
    assert grand is not None
    assert bias_of(grand) == (
        "published 59.1 M, direct 62.8 M, difference −5.9 % = 4.1 published SEs = 7.4 SEs of the noise alone"
    )
    other = grand._replace(published=59.4e6)
    tables = {"homes, count": grand, "region, count": other, "rooms, count": grand, "rooms, mean of rent": grand}
    judged = verdict(rows)
    lines = bias_lines({name: replace(judged, grand=figure) for name, figure in tables.items()})
    assert [line.split(":")[0] for line in lines] == [
        "count for all records (2 tables)",
        "count for all records (table region)",
        "mean of rent for all records (table rooms)",
    ], "one figure of a package of tables stands once"
    assert [large(each) for each in (3.21e9, 84321.4, 0.4123)] == ["3.21 bn", "84,321", "0.412"]


def test_a_statistic_with_few_figures_is_a_fault() -> None:
    """Pay in thousands under bounds in units: every mean is withheld, or most. Control: direct figures that say nothing."""
    rows = evaluated(np.random.default_rng(16), 20)
    nothing = rows.assign(synthetic=np.nan, synthetic_se=np.nan, synthetic_df=np.nan, synthetic_lower=0.0)
    found = overall_of({"pay": nothing, "homes": rows})
    assert found.stops
    assert found.head == (
        "do not publish: most figures are withheld, because standard errors are larger than figures (mean of salary in "
        "table pay: 21 of 21, whose intervals all reach 0, an end of the public range: compare the outcome's unit with "
        "its bounds)"
    )
    upper = large(float(rows["synthetic_upper"].iloc[-1]))
    direct = large(float(rows["direct"].iloc[-1]))
    assert found.bias[0] == (
        f"mean of salary for all records (table pay): withheld, 90 % interval 0 to {upper}, direct {direct}"
    )
    assert "21 of 21 figures are withheld" in found.sentences[0]
    some = nothing.assign(synthetic=rows["synthetic"].where(rows.index < 9))
    assert overall_of({"pay": some}).stops
    apart = overall_of({"pay": nothing.assign(synthetic_lower=rows["synthetic_lower"])})
    assert apart.stops
    assert "an end of the range" not in apart.head
    assert overall_of({"pay": nothing.assign(direct_se=200.0)}).head == "nothing could be judged"
    assert not overall_of({"pay": nothing.assign(synthetic_lower=np.nan, synthetic_upper=np.nan)}).fails


def test_a_bias_by_clipping_has_its_cause_in_the_first_line() -> None:
    """Bounds cut off a fifth of the figure of all records. Control: the same bias where bounds cut off nothing."""
    rows = evaluated(np.random.default_rng(16), 20, noise=0.05, grand=-40.0)
    last = rows.index[-1]
    found = []
    for clipped in (rows.loc[last, "synthetic"], rows.loc[last, "direct"]):
        rows["direct_clipped"] = rows["direct"].where(rows.index != last, clipped)
        found.append(overall_of({"pay": rows}))
    shares = [text.head.split("biased (")[1] for text in found]
    gap = rows.loc[last, "synthetic"] / rows.loc[last, "direct"] - 1.0
    assert shares[0].startswith(f"mean of salary in table pay: −{-100 * gap:.1f} % by clipping to public bounds)")
    assert shares[1].startswith("mean of salary in table pay)")
    assert (
        f"= 40.0 published SEs = over 100 SEs of the noise alone (−{-100 * gap:.1f} % by clipping to bounds)"
        in found[0].bias[0]
    )
    assert "clipping" not in found[1].bias[0]


def test_a_cell_whose_direct_error_is_near_0_by_chance_makes_no_release_inaccurate() -> None:
    """Nearly all records of a cell have the value 0. Control: the same error in a cell of a usual standard error."""
    rows = evaluated(np.random.default_rng(3), 20, noise=0.05)
    rows.loc[4, ["synthetic", "synthetic_lower", "synthetic_upper"]] = [148.0, 60.0, 240.0]
    rows.loc[4, "synthetic_se"] = 60.0
    assert overall_of({"pay": rows}).head.startswith("not accurate")
    rows.loc[4, "direct_se"] = 0.01
    assert not overall_of({"pay": rows}).head.startswith("not accurate")


def test_counts_without_a_margin_are_summed_and_means_are_not() -> None:
    rows = evaluated(np.random.default_rng(16), 20).iloc[:-1]
    assert verdict(rows).grand is None
    grand = verdict(rows.assign(statistic="count", variable=None)).grand
    assert grand is not None
    assert grand.direct == pytest.approx(rows["direct"].sum())
    gap = rows["synthetic"].sum() - rows["direct"].sum()
    assert grand.in_published == pytest.approx(gap / (np.sqrt(20) * np.hypot(1.0, 0.5)))


def test_errors_that_leave_out_the_design_are_a_fault() -> None:
    """Published errors of .41 of the direct ones, over figures of one sample, which the other tests pass. Controls: errors
    of 1 and of .7 pass, and so does .41 where no clusters are stated, or where two replicates tell too little."""
    rows = evaluated(np.random.default_rng(18), 40, noise=0.05)

    def scaled(times: float, df: float = 60.0) -> pd.DataFrame:
        small = rows.assign(direct_se=rows["synthetic_se"] / times, direct_df=df)
        gap = rows["synthetic"] - rows["direct"]
        return small.assign(direct=rows["synthetic"] - 0.1 * gap)

    found = overall_of({"bills": scaled(0.41)}, clustered=True)
    assert found.fails
    assert found.head == (
        "errors too small: the median ratio of published to direct standard errors under the survey's design is below "
        "0.63 (bills, mean of salary: 0.41)"
    )
    assert "survey.design_effect" in found.sentences[0]
    for times in (0.7, 1.0):
        assert overall_of({"bills": scaled(times)}, clustered=True).head == "no fault found in the intervals"
    assert overall_of({"bills": scaled(0.41)}).head == "no fault found in the intervals"
    assert not overall_of({"bills": scaled(0.41, df=1.0)}, clustered=True).fails


def test_a_ratio_of_errors_counts_cells_with_a_direct_error_alone() -> None:
    """Cells whose direct error is 0, or 0 but for rounding, do not lift the median over the limit."""
    rows = evaluated(np.random.default_rng(19), 30, noise=0.0).assign(direct_df=60.0)
    rows["direct_se"] = 2.5 * rows["synthetic_se"]
    rows.loc[:19, "direct_se"] = [0.0] * 10 + [1e-9] * 10
    found = judge(rows, clustered=True)
    assert found is not None
    assert found.small
    assert found.width == pytest.approx(0.4)


@pytest.mark.parametrize("df", [2.0, 10.0, 60.0])
def test_right_errors_are_seldom_called_too_small(df: float) -> None:
    """All cells share one χ² draw, the worst case. 150 releases: with a rate of .0025, 5 alarms or more have a chance of
    .00005. Control: errors of .3 are found in most releases with 10 and 60 df. The whole verdict agrees on some."""
    rng = np.random.default_rng(20)
    rows = evaluated(rng, 12, noise=0.0).assign(direct_df=df)
    base = rows.iloc[:-1]

    def alarms(times: float) -> int:
        ratios = np.sqrt(rng.chisquare(df, 150) / df) / times
        small = [too_small(base.assign(direct_se=ratio * base["synthetic_se"]), FALSE_ALARM * SMALL) for ratio in ratios]
        whole = [verdict_clustered(rows.assign(direct_se=ratio * rows["synthetic_se"])).small for ratio in ratios[:8]]
        assert whole == small[:8]
        return sum(small)

    assert alarms(1.0) <= 4
    assert alarms(0.3) > 131 or df < 10


def verdict_clustered(rows: pd.DataFrame) -> Verdict:
    found = judge(rows, clustered=True)
    assert isinstance(found, Verdict)
    return found


def counts(rows: pd.DataFrame, reach: float = 0.02) -> pd.DataFrame:
    """The rows as counts that calibrated replicate weights fix, with published intervals of ± `reach`."""
    ends = {"synthetic_lower": rows["synthetic"] * (1 - reach), "synthetic_upper": rows["synthetic"] * (1 + reach)}
    error = reach * rows["synthetic"] / 1.645
    return rows.assign(
        statistic="count", variable=None, direct_se=0.0, synthetic_se=error, synthetic_noise_se=error, **ends
    )


@pytest.mark.parametrize("dust", [0.0, 1e-8])
def test_counts_that_the_design_fixes_are_judged_by_their_relative_error(dust: float) -> None:
    """Off by 15 %, or with intervals of ±30 %; also where the direct error is rounding. Control: near and narrow ones are
    no fault, and the verdict still names the reason and the remedy."""
    rows = counts(evaluated(np.random.default_rng(21), 20)).assign(direct_se=dust)
    near = overall_of({"homes": rows})
    assert near.head == "no fault found in the intervals"
    assert "21 counts have no direct standard error, because the design fixes them." in near.sentences[0]
    assert "job key rake" in near.sentences[0]
    wide = overall_of({"homes": counts(rows, 0.3)})
    assert not wide.fails
    assert wide.head.startswith("not accurate: counts that the design fixes have large errors (homes, count: off by up to ")
    assert "intervals up to ±3" in wide.head
    far = counts(rows, 0.09)
    far.loc[3, ["synthetic", "synthetic_lower", "synthetic_upper"]] = [115.0, 99.0, 132.0]
    assert "not accurate: " in overall_of({"homes": far}).head
    assert "not accurate" not in overall_of({"homes": far.assign(records=9)}).head, "cells of less than ten records"
    assert "rake" not in overall_of({"homes": evaluated(np.random.default_rng(21), 20)}).sentences[0]


def test_a_margin_that_alone_is_far_off_is_named_in_the_verdict() -> None:
    """Six direct errors, in the figure of all records alone. Controls: right figures name nothing, and a base cell is
    named as one."""
    rows = evaluated(np.random.default_rng(5), 20, noise=0.1)
    assert verdict(rows).beyond == ()
    assert "direct standard errors off" not in in_words("mean", verdict(rows))
    off = rows.copy()
    off.loc[20, "synthetic"] = off.loc[20, "direct"] + 6.0 * off.loc[20, "direct_se"]
    assert verdict(off).beyond == ((TOTAL,),)
    assert "More than 4 direct standard errors off: 1 margin (Total)." in in_words("mean", verdict(off))
    off.loc[3, "synthetic"] = off.loc[3, "direct"] + 9.0
    assert "off: 1 margin and 1 base cell (Total; r3)." in in_words("mean", verdict(off))


@pytest.mark.parametrize("weight", [1.0, 37.3, 1 / 3])
def test_a_standard_error_of_rounding_dust_is_none(weight: float) -> None:
    """A variance of 0 as a difference of sums of squares: an error over its root is no figure. Control: a real one is."""
    count, n = weight * 1000.0, 1000
    dust = count * np.sqrt(np.finfo(float).eps)
    errors = np.array([0.0, dust, 3.0 * dust, count / np.sqrt(n)])
    in_errors, given, relative = relative_to(np.full(4, 0.28 * count), np.full(4, count), errors, errors)
    assert np.isnan(in_errors).tolist() == np.isnan(given).tolist() == [True, True, True, False]
    np.testing.assert_allclose(relative, 0.28)


def test_ratios_to_nothing_have_no_distance_and_no_warning() -> None:
    rows = pd.DataFrame({"direct": [np.inf, 2.0], "direct_se": [np.nan, 0.5], "synthetic": [np.inf, 3.0]})
    np.testing.assert_array_equal(distances(rows).in_errors, [np.nan, 2.0])

"""The score model: its density against SciPy's, its closed form against a regression written out, its expectations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpdist.confidential.records import Records
from dpdist.core.keys import Key, uniforms_of
from dpdist.core.records import Crosstab
from dpdist.job import Job
from dpdist.models.copula import shapes
from dpdist.models.copula.marginal import BASIS, WORTH, Marginal, SplinePrior, basis
from dpdist.models.copula.model import PRIOR, Scores, shifts
from dpdist.models.copula.reference_summary import Facts, facts_from_table, facts_table
from dpdist.models.protocol import Draws

LEVELS = {"field": ("arts", "law", "medicine"), "sex": ("f", "m")}
KEY = Key(b"places")
KINDS = {"positive": "drop", "hurdle": "error", "binary": "error"}


def job_of(kind: str = "hurdle") -> Job:
    bounds = {"bounds": [0, 1], "whole": True} if kind == "binary" else {"bounds": [0, 150_000], "zeros": KINDS[kind]}
    return Job.model_validate(
        {
            "dataset": "test",
            "period": "1",
            "columns": {**{name: {"levels": list(levels)} for name, levels in LEVELS.items()}, "y": bounds},
            "survey": {"weight": "w"},
            "outcome": "y",
            "model": {"family": "scores", "predictors": list(LEVELS)},
            "mechanism": {"name": "weighted", "weights": "inverse"},
            "budget": {"epsilon": "3.6"},
            "reference": {"path": "before.parquet"},
            "tables": [{"name": "t", "by": list(LEVELS), "statistics": ["count"]}],
        }
    )


def crosstab_of(size: int) -> Crosstab:
    codes = np.array([(f, s) for f in range(3) for s in range(2)], dtype=np.int32)
    return Crosstab({"field": codes[:, 0], "sex": codes[:, 1]}, LEVELS, np.full(6, size), (), ())


def records_of(crosstab: Crosstab, kind: str, seed: int) -> Records:
    """Skewed weights, and outcomes that fall with the weight: rounded, top-coded, some of them 0."""
    rng, row = np.random.default_rng(seed), crosstab.expand()
    z, size = rng.standard_normal(len(row)), len(row)
    outcome = np.exp(10.8 + 0.1 * row - 0.3 * z + 0.4 * rng.standard_normal(size))
    outcome = np.minimum(np.round(outcome, -3), 150_000.0)
    outcome *= 1.0 if kind == "positive" else rng.random(size) < 0.85
    if kind == "binary":
        outcome = (rng.random(size) < 0.3 + 0.3 * (z > 0)).astype(float)
    weight = np.exp(4.0 + 0.1 * row + 1.2 * z)
    return Records.of_outcomes(outcome, weight, row)


def model_of(kind: str = "hurdle", size: int = 800, seed: int = 1) -> tuple[Scores, Records]:
    """A model that stands on one file, and records of another."""
    crosstab = crosstab_of(size)
    model = Scores.build(job_of(kind), crosstab, slice(0, 6))
    return model.within(model.summarise(records_of(crosstab, kind, seed), KEY)), records_of(crosstab, kind, seed + 1)


def parameters_of(model: Scores, draws: int) -> Draws:
    """From all over the space, not from a posterior."""
    rng, sizes = np.random.default_rng(3), {p.name: (draws, *p.shape) for p in model.parameters}
    made = {
        "share": lambda size: rng.uniform(0.05, 0.95, size),
        "weight_mean": lambda size: rng.normal(0, 1, size),
        "weight_sd": lambda size: np.exp(rng.normal(0, 0.5, size)),
        "slopes": lambda size: rng.normal(0, 1, size),
        "residual_sd": lambda size: np.exp(rng.normal(0, 0.5, size)),
    }
    return Draws({name: made[name](size) for name, size in sizes.items()})


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_likelihood_is_the_density_over_that_under_the_references_fit(kind: str) -> None:
    model, records = model_of(kind)
    theta = parameters_of(model, 20)
    scored = model.scored(records)
    cell, part, z_w, z_y = scored
    expected = np.zeros((20, len(records)))
    where = np.arange(20)[:, None]
    column = 0 if kind == "positive" else part[None]
    mean, sd = (theta[name][where, cell[None], column] for name in ("weight_mean", "weight_sd"))
    told = model.reference_facts
    own = told.weight.location[cell, part, 0], np.sqrt(told.weight.variance[cell, part])
    expected += stats.norm.logpdf(z_w, mean, sd) - stats.norm.logpdf(z_w, *own)
    if kind != "binary":
        located = np.einsum("sib,ib->si", theta["slopes"][:, cell], basis(z_w))
        relative = stats.norm.logpdf(z_y, located, theta["residual_sd"][:, cell])
        own = (basis(z_w) * told.outcome.location[cell]).sum(axis=1), np.sqrt(told.outcome.variance[cell])
        relative -= stats.norm.logpdf(z_y, *own)
        expected += np.where(part == 1, relative, 0.0)
    if kind != "positive":
        share, known = theta["share"][:, cell], model.reference_facts.share[cell]
        expected += np.where(part == 1, np.log(share / known), np.log((1 - share) / (1 - known)))
    np.testing.assert_allclose(model.log_lik(theta, records), expected, rtol=1e-9, atol=1e-9)
    found = model.extremes(theta, records)
    assert (found.highest >= expected.max(axis=0)).all()
    assert (found.lowest <= expected.min(axis=0)).all()
    np.testing.assert_allclose(found.highest, expected.max(axis=0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.lowest, expected.min(axis=0), rtol=1e-9, atol=1e-9)


def test_on_the_reference_itself_scores_are_standard_normal_and_f_is_small() -> None:
    crosstab = crosstab_of(800)
    own = records_of(crosstab, "hurdle", 1)
    model = Scores.build(job_of(), crosstab, slice(0, 6))
    model = model.within(model.summarise(own, KEY))
    scored = model.scored(own)
    for cell in range(6):
        for part in range(2):
            z = scored.weight[(scored.cell == cell) & (scored.part == part)]
            assert abs(z.mean()) < (0.02 if part else 0.2)
    positive = scored.outcome[scored.part == 1]
    assert (abs(positive.mean()), positive.std()) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))
    statistics = model.statistics(own, np.ones(len(own)))
    centre = model.centre(statistics[None])
    np.testing.assert_allclose(centre["weight_mean"][0, :, 1], 0.0, atol=0.01)
    np.testing.assert_allclose(centre["weight_sd"][0, :, 1], 1.0, atol=0.03)


def written_out(
    z: np.ndarray, a: np.ndarray, alpha: np.ndarray, prior: SplinePrior
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """K, β̂, SS and ν as METHODS §5b has them, residuals formed."""
    d = np.diag([WORTH] + [2 * WORTH] * (a.shape[1] - 1))
    k = a.T @ (alpha[:, None] * a) + d
    b = np.linalg.solve(k, a.T @ (alpha * z) + d @ prior.location)
    away = b - prior.location
    ss = (alpha * (z - a @ b) ** 2).sum() + away @ d @ away + WORTH * prior.variance
    return k, b, float(ss), float(alpha.sum() + WORTH)


@pytest.mark.parametrize("kind", ["positive", "hurdle"])
def test_exact_draws_have_the_closed_forms_law(kind: str) -> None:
    """20,000 draws: β̂ and E σ² within 5 standard errors of the regression that is written out with residuals, in every
    unit (false alarm 1e-4 in all); α of another file is a control that must miss."""
    model, records = model_of(kind)
    rng = np.random.default_rng(5)
    alpha = rng.uniform(0.1, 1.0, len(records)) * (rng.random(len(records)) > 0.05)
    draws = model.draw(model.statistics(records, alpha), 20_000, np.random.default_rng(6))
    scored, facts = model.scored(records), model.reference_facts
    assert len(np.unique(model.units[0])) == 6
    assert len(np.unique(model.units[1])) == 6
    for cell in range(6):
        own = (scored.cell == cell) & (scored.part == 1)
        prior = SplinePrior(facts.outcome.location[cell], facts.outcome.variance[cell])
        k, b, ss, nu = written_out(scored.outcome[own], basis(scored.weight[own]), alpha[own], prior)
        sigma2 = draws["residual_sd"][:, cell] ** 2
        assert abs(sigma2.mean() - ss / (nu - 2)) < 5 * sigma2.std() / np.sqrt(20_000)
        scaled = (draws["slopes"][:, cell] - b) @ np.linalg.cholesky(k) / np.sqrt(sigma2)[:, None]
        assert np.abs(scaled.mean(axis=0)).max() < 5 / np.sqrt(20_000)
        assert np.abs(np.cov(scaled.T) - np.eye(BASIS)).max() < 5 * np.sqrt(2 / 20_000)
        _, other, _, _ = written_out(scored.outcome[own], basis(scored.weight[own]), np.ones(own.sum()), prior)
        missed = (draws["slopes"][:, cell] - other) @ np.linalg.cholesky(k) / np.sqrt(sigma2)[:, None]
        assert np.abs(missed.mean(axis=0)).max() > 5 / np.sqrt(20_000), "control: other weights"
        mean = SplinePrior(facts.weight.location[cell, 1], facts.weight.variance[cell, 1])
        own = scored.cell == cell  # 120 zeros are too few for a law of their own
        k, b, ss, nu = written_out(scored.weight[own], np.ones((own.sum(), 1)), alpha[own], mean)
        part = -1
        tau2 = draws["weight_sd"][:, cell, part] ** 2
        assert abs(tau2.mean() - ss / (nu - 2)) < 5 * tau2.std() / np.sqrt(20_000)
        scaled = (draws["weight_mean"][:, cell, part] - b[0]) / np.sqrt(tau2 / k[0, 0])
        assert abs(scaled.mean()) < 5 / np.sqrt(20_000)
        if kind == "hurdle":
            here = scored.cell == cell
            shares = np.array([1 - facts.share[cell], facts.share[cell]])
            totals = [alpha[here & (scored.part == p)].sum() for p in (0, 1)]
            b_, a = totals + WORTH * shares / shares.min()
            assert stats.kstest(draws["share"][:, cell], stats.beta(a, b_).cdf).pvalue > 1e-5


def test_statistics_add_over_blocks_and_records_without_weight_leave_no_trace() -> None:
    model, records = model_of()
    alpha = np.random.default_rng(7).uniform(0, 1, len(records))
    whole = model.statistics(records, alpha)
    parts = sum(model.statistics(records.part(k, k + 300), alpha[k : k + 300]) for k in range(0, len(records), 300))
    np.testing.assert_allclose(parts, whole, rtol=1e-12, atol=1e-9)
    alpha[:50] = 0.0
    odd = replace(records, weight=np.where(np.arange(len(records)) < 50, 1e9, records.weight))
    np.testing.assert_array_equal(model.statistics(odd, alpha), model.statistics(records, alpha))


def test_a_records_places_at_atoms_depend_on_its_number_alone() -> None:
    """Whatever block a record stands in; another key places it elsewhere."""
    model, records = model_of()
    some = np.random.default_rng(8).permutation(len(records))[:200]
    whole, part = model.scored(records), model.scored(records.take(some))
    np.testing.assert_array_equal(whole.outcome[some], part.outcome)
    other = model.within(replace(model.reference_facts, key=Key(b"other places"))).scored(records)
    assert (other.outcome != whole.outcome).mean() > 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_expectations_are_means_of_synthetic_records(kind: str) -> None:
    """Under drawn and drifted parameters, within 5 standard errors of 400,000 records and the bins' error of 3 in 1,000."""
    model, records = model_of(kind)
    drawn = model.draw(model.statistics(records, np.ones(len(records))), 1, np.random.default_rng(9))
    drifted = Draws({**drawn.values, "weight_mean": drawn["weight_mean"] + 0.1})
    for theta in (drawn, drifted):
        weight, product = (values[0] for values in model.expect(theta))
        row = np.repeat(np.arange(6, dtype=np.int32), 400_000 // 6)
        y, w = model.simulate(theta, row, np.random.default_rng(10))
        for k in range(6):
            for expected, values in ((weight[k], w[row == k]), (product[k], (w * y)[row == k])):
                error = values.std() / np.sqrt(len(values))
                assert abs(values.mean() - expected) < 5 * error + 3e-3 * expected


def means_of(model: Scores, records: Records, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted means of cells: under a fit of the records, which count by α, and of records."""
    fit = model.centre(model.statistics(records, alpha)[None])
    weight, product = (values[0] for values in model.expect(fit))
    sums = [
        np.bincount(records.row, weights=each, minlength=6) for each in (records.weight, records.weight * records.outcome)
    ]
    return product / weight, sums[1] / sums[0]


@pytest.mark.parametrize("share", [1.0, 0.25, 4.0])
@pytest.mark.parametrize("kind", KINDS)
def test_fits_of_files_like_the_reference_have_its_weighted_means(kind: str, share: float) -> None:
    """Spreads that grow with the weight fit no spline with one residual variance, and the prior draws fits of any size to
    independence: levelled for a current file with `share` times the records, in one cell with as many, means are the
    records' all the same where nothing is held to be known of a shift; and so are weights and means under privacy weights,
    undone. Controls: as told, a mean of money is
    off by more than half a percent; in files of another size, by more than the rounding."""
    crosstab = crosstab_of(800)
    own = records_of(crosstab, kind, 1)
    if kind != "binary":
        wider = np.where(own.weight > 100, own.outcome**1.3 / 20.0, own.outcome)
        own = replace(own, outcomes=np.minimum(wider, 150_000.0))
    count = np.where(np.arange(6) == 2, 800, round(800 * share))
    model, standing = Scores.build(job_of(kind), replace(crosstab, count=count), slice(0, 6)), (count / 800)[own.row]
    model = model.within(model.summarise(own, KEY))
    found, wanted = means_of(model, own, standing)
    assert (np.abs(found / wanted - 1.0).max() > 5e-3) == (kind != "binary"), "control"
    levelled = model.within(model.bias_corrected(own, np.inf))
    found, wanted = means_of(levelled, own, standing)
    np.testing.assert_allclose(found, wanted, rtol=2e-3 if kind == "binary" else 1e-6)
    if kind != "binary":
        other, _ = means_of(levelled, own, 0.1 * standing)
        assert np.abs(other / wanted - 1.0).max() > 1e-4, "control"
    alpha = np.where(own.weight > 300, 0.5, 1.0)
    undone = levelled.within(levelled.weights_corrected(own, alpha))
    weighted = undone.centre(undone.statistics(own, standing * alpha)[None])
    plain = levelled.centre(levelled.statistics(own, standing)[None])
    for found, wanted in zip(undone.expect(weighted), levelled.expect(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9)


@pytest.mark.parametrize("kind", ["positive", "hurdle"])
def test_shifts_are_shrunk_by_what_the_jackknife_says_of_them(kind: str) -> None:
    """Refits without a twentieth of the records at a time, each moved until it has the means of its own records: their
    spread, but for what is not linear in it, is what a shift is shrunk by, towards the shift that all have in common.
    Control: it is not shrunk by half as much."""
    crosstab = crosstab_of(1_500)
    own = records_of(crosstab, kind, 1)
    model = Scores.build(job_of(kind), crosstab, slice(0, 6))
    model = model.within(model.summarise(own, KEY))
    whole = model.bias_corrected(own, np.inf).undone.slopes[0, :, 0]
    group = (20 * uniforms_of(KEY, "level", own.record)).astype(int)
    found = []
    for k in range(20):
        left = own.take(group != k)
        law = model._law(model.centre(model.statistics(left, np.ones(len(left)))[None]))
        sums = [np.bincount(left.row, weights=each) for each in (left.weight, left.weight * left.outcome)]
        found.append(shifts(model.reference_facts, law, model.kind, model.outcome_bounds, sums[1] / sums[0], np.arange(6)))
    variance = 19.0 * np.var(found, axis=0)
    for prior in (0.01, 0.03):
        share = 1.0 / (prior**2 + variance) / (1.0 / (prior**2 + variance)).sum()
        common, error = share @ whole, 19.0 * np.var(np.array(found) @ share)
        common *= max(0.0, 1.0 - error / common**2)
        shrunk = model.bias_corrected(own, prior).undone.slopes[0, :, 0] - common
        kept = prior**2 / (prior**2 + variance)
        np.testing.assert_allclose(shrunk, kept * (whole - common), atol=0.02 * np.abs(whole).max())
        halved = prior**2 / (prior**2 + variance / 2.0) * (whole - common)
        assert np.abs(shrunk - halved).max() > 0.04 * np.abs(whole).max(), "control"


def test_a_shift_that_one_record_makes_is_hardly_believed() -> None:
    """The reference has a record with a tenth of a cell's weight and the highest outcome; other samples of the population
    have none. Levelled in full their means are off by most of what it makes of its own; shrunk, by less than a third.
    Control: what many records make, of a law that is no spline's, is kept."""
    crosstab = crosstab_of(800)
    own, current = (records_of(crosstab, "positive", seed) for seed in (1, 2))
    first = int(np.flatnonzero(own.row == 2)[own.weight[own.row == 2].argmax()])
    mark = own.record == first
    heavy = replace(
        own,
        weight=np.where(mark, 0.1 * own.weight[own.row == 2].sum(), own.weight),
        outcomes=np.where(mark, 150_000.0, own.outcome),
    )
    model = Scores.build(job_of("positive"), crosstab, slice(0, 6))
    model = model.within(model.summarise(heavy, KEY))
    off = []
    for prior in (np.inf, PRIOR):
        levelled = model.within(model.bias_corrected(heavy, prior))
        found, wanted = means_of(levelled, current, np.ones(len(current)))
        off.append((found / wanted - 1.0)[2])
    assert off[0] > 0.05
    assert abs(off[1]) < off[0] / 3.0
    many = records_of(crosstab_of(15_000), "positive", 1)
    every = replace(
        many, outcomes=np.minimum(np.where(many.weight > 100, many.outcome**1.3 / 20.0, many.outcome), 150_000.0)
    )
    model = model.within(model.summarise(every, KEY))
    kept = [model.bias_corrected(every, prior).undone.slopes[0, :, 0] for prior in (PRIOR, np.inf)]
    assert (kept[0] / kept[1]).min() > 0.8, "control"


def test_cells_that_share_a_distribution_are_levelled_as_one_and_constant_ones_are_left() -> None:
    crosstab = replace(crosstab_of(200), count=np.array([900, 40, 320, 320, 700, 20]))
    own = records_of(crosstab, "hurdle", 3)
    law = crosstab.codes["field"][own.row] == 1
    own = replace(own, outcomes=np.where(law & (own.outcome > 0), 5e4, own.outcome * (own.row != 2)))
    model = Scores.build(job_of(), crosstab, slice(0, 6))
    model = model.within(model.summarise(own, KEY))
    facts = model.bias_corrected(own)
    moved = facts.undone.slopes[0, :, 0]
    assert facts.of_outcome[4] != facts.of_outcome[5]
    assert (moved[[2, 3]] == 0.0).all(), "one value but for zeros"
    assert (moved[[1, 5]] == 0.0).all(), "too few records to tell"
    assert (moved[[0, 4]] != 0.0).all()
    assert np.abs(moved).max() < 0.2
    of_outcome = model.reference_facts.of_outcome
    together = replace(model.reference_facts, of_outcome=np.where(np.arange(6)[:, None] == 1, of_outcome[0], of_outcome))
    moved = model.within(together).bias_corrected(own).undone.slopes[0, :, 0]
    assert moved[0] == moved[1] != 0.0
    assert (facts.undone.slopes[0, :, 1:] == 0.0).all()


def test_small_cells_share_a_fit_and_borrow_a_distribution_in_part() -> None:
    """40 and 20 records borrow from the field's others: all of them are alike. 320 are alone."""
    crosstab = crosstab_of(200)
    crosstab = replace(crosstab, count=np.array([900, 40, 320, 320, 700, 20]))
    model = Scores.build(job_of(), crosstab, slice(0, 6))
    records = records_of(crosstab, "hurdle", 3)
    facts = model.summarise(records, KEY)
    assert model.within(facts).units[0].tolist() == [0, 0, 2, 2, 1, 1]
    assert model.within(facts).units[1].tolist() == [[0, 0], [0, 0], [2, 2], [2, 2], [1, 1], [1, 1]]
    assert (facts.own_share[[0, 2, 3, 4], 1:] == 1.0).all()
    assert (facts.own_share[[1, 5], 1:] < 1.0).all()
    assert (facts.effective[[0, 2, 3, 4]] == facts.records[[0, 2, 3, 4]]).all()
    assert (facts.effective[[1, 5]] > facts.records[[1, 5]]).all()
    some = [facts.marginals[k] for k in facts.of_outcome[:, 0]]
    assert some[1].value.max() == max(each.value.max() for each in some[:2]), "control: others' values are in it"
    assert shapes.grouped(np.zeros((3, 1), dtype=np.int32), np.array([5, 6, 7]), 500).tolist() == [0, 0, 0]


def test_facts_survive_the_round_trip_through_a_table() -> None:
    model, records = model_of()
    back = facts_from_table(facts_table({"one": model.reference_facts, "two": model.reference_facts}))
    assert list(back) == ["one", "two"]
    for facts in back.values():
        assert isinstance(facts, Facts)
        again = model.within(facts)
        np.testing.assert_array_equal(again.scored(records).outcome, model.scored(records).outcome)
        np.testing.assert_array_equal(again.statistics(records, np.ones(len(records))),
                                      model.statistics(records, np.ones(len(records))))  # fmt: skip
        np.testing.assert_array_equal(facts.outcome.location, model.reference_facts.outcome.location)
    assert all(isinstance(each, Marginal) for each in back["two"].marginals)

"""Exact samplers of outcome models: their draws have the conjugate posteriors' laws."""

from __future__ import annotations

import numpy as np
import pytest
from cases import model_of, some_alpha, some_records
from scipy import stats

from dpdist.core.keys import Key

KEY = Key(b"tests/models/test_closed_forms")
DRAWS = 40_000


def posterior(family, total, sum_y, power=1.0):
    """The conjugate posterior by SciPy; `power` multiplies the information of the records."""
    total, sum_y = total * power, sum_y * power
    if family == "poisson":
        return stats.gamma(0.01 + sum_y, scale=1.0 / (0.01 + total))
    return stats.beta(1.0 + sum_y, 1.0 + total - sum_y)


NAMES = {"poisson": "rate", "bernoulli": "probability"}
each_family = pytest.mark.parametrize("family", NAMES)


@each_family
def test_draws_have_the_posteriors_law(family):
    """Kolmogorov–Smirnov, p > 1e-6; controls: an outcome more in total, 10 % more records, and α left out."""
    model, records = model_of(family), some_records(family)
    alpha = some_alpha(len(records))
    drawn = model.draw(model.statistics(records, alpha), DRAWS, KEY.generator("law"))[NAMES[family]]
    total, sum_y = alpha.sum(), (alpha * records.outcome).sum()
    assert stats.kstest(drawn, posterior(family, total, sum_y).cdf).pvalue > 1e-6
    wrong = [(total, sum_y + (1 if family == "bernoulli" else 3)), (40.0, records.outcome.sum())]
    assert all(stats.kstest(drawn, posterior(family, *known).cdf).pvalue < 1e-6 for known in wrong)
    assert stats.kstest(drawn, posterior(family, total, sum_y, power=1.1).cdf).pvalue < 1e-6


@each_family
def test_draws_move_continuously_with_the_weights_under_common_random_numbers(family):
    model, records = model_of(family), some_records(family)
    alpha = some_alpha(len(records))
    one, near, other = (
        model.draw(model.statistics(records, a), 200, KEY.generator(stage))[NAMES[family]]
        for a, stage in ((alpha, "common"), (alpha * (1 + 1e-9), "common"), (alpha, "other"))
    )
    np.testing.assert_allclose(one, near, rtol=1e-7)
    assert not np.any(one == other)


@each_family
@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("alpha", [1.0, 1e-6, 0.0])
def test_constant_outcomes_and_vanishing_weights_give_finite_bounds(family, value, alpha):
    model, records = model_of(family), some_records(family)
    records = type(records)(records.record, records.row, np.full(40, value), records.weight, records.psu)
    draws = model.draw(model.statistics(records, np.full(40, alpha)), 1000, KEY.generator("constant"))
    assert np.isfinite(model.extremes(draws, some_records(family)).bound).all()

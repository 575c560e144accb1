"""The simulated survey is a probability sample of a population whose truth is known, the same for the same seed."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy import stats

from dpdist.core.records import Floats
from dpdist.job import Simulate
from dpdist.survey import simulate
from dpdist.survey.simulate import FIELDS, LOG_GAP, SCHEMA, SEXES, SHARE, TOP_CODE, Doctorates

FALSE_ALARM_Z = 5.0
"""Every comparison with the population below rejects a correct simulator for one seed in 1.7 million (two-sided normal)."""


def doctorates(population: int = 20_000, sample: int = 2_000, seed: int = 7, **more: float | str) -> Doctorates:
    return Doctorates(
        Simulate.model_validate({"kind": "doctorates", "population": population, "sample": sample, "seed": seed} | more)
    )


def sample_of(survey: Doctorates) -> pd.DataFrame:
    table = pa.Table.from_batches(survey.batches(), schema=SCHEMA)
    return table.to_pandas()


def population_of(survey: Doctorates) -> pd.DataFrame:
    field, sex, salary, size = (np.concatenate(parts) for parts in zip(*survey.population(), strict=True))
    return pd.DataFrame({"field": np.array(FIELDS)[field], "sex": np.array(SEXES)[sex], "salary": salary, "size": size})


SURVEY = doctorates()
SAMPLE, POPULATION = sample_of(SURVEY), population_of(SURVEY)


def test_the_same_seed_gives_the_same_survey_and_another_seed_another_one() -> None:
    again, other = doctorates(), doctorates(seed=8)
    assert sample_of(again).equals(SAMPLE)
    assert population_of(again).equals(POPULATION)
    np.testing.assert_array_equal(again.truth.totals["salary"], SURVEY.truth.totals["salary"])
    assert not np.isin(sample_of(other)["salary"], SAMPLE["salary"]).any()


def test_a_survey_can_be_streamed_again() -> None:
    assert sample_of(SURVEY).equals(SAMPLE)


def test_the_population_has_the_size_asked_for_and_every_group() -> None:
    assert len(POPULATION) == 20_000
    assert len(POPULATION.groupby(["field", "sex"])) == 16
    assert (POPULATION["salary"] > 0).all()


def test_fields_have_their_shares_of_the_population() -> None:
    share = POPULATION["field"].value_counts(normalize=True).reindex(list(FIELDS)).to_numpy()
    error = np.sqrt(SHARE * (1 - SHARE) / len(POPULATION))
    assert np.abs(share - SHARE).max() < (FALSE_ALARM_Z * error).max()
    assert np.abs(share - np.roll(SHARE, 1)).max() > (FALSE_ALARM_Z * error).max(), "the check must see wrong shares"


@pytest.mark.parametrize("sd", [0.2, 0.4])
def test_log_salary_has_the_stated_spread_within_a_group(sd: float) -> None:
    group = population_of(doctorates(sd=sd)).query("field == 'biology' and sex == 'male'")
    spread = np.log(group["salary"]).std()
    error = sd / np.sqrt(2 * len(group))
    assert abs(spread - sd) < FALSE_ALARM_Z * error
    assert abs(spread - 1.1 * sd) > FALSE_ALARM_Z * error, "the check must see a wrong spread"


def test_the_truth_can_go_to_workers() -> None:
    """Evaluations of several tables are tasks, which take it along."""
    again = pickle.loads(pickle.dumps(SURVEY.truth))
    np.testing.assert_array_equal(again.totals["hours"], SURVEY.truth.totals["hours"])


def test_the_truth_is_a_direct_count_of_the_population() -> None:
    groups = POPULATION.groupby(["field", "sex"])["salary"]
    for f, field in enumerate(FIELDS):
        for s, sex in enumerate(SEXES):
            assert SURVEY.truth.count[f, s] == groups.count()[field, sex]
            assert SURVEY.truth.totals["salary"][f, s] == pytest.approx(groups.sum()[field, sex], rel=1e-12)


SIZES = [(1, 1), (8, 3), (50, 1), (1_000, 999), (1_000, 1_000), (3_000, 2_500), (20_000, 2_000)]


@pytest.mark.parametrize(("population", "sample"), SIZES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_sample_has_exactly_the_size_asked_for_and_weights_of_at_least_one(
    population: int, sample: int, seed: int
) -> None:
    survey = doctorates(population, sample, seed)
    drawn = sample_of(survey)
    assert len(drawn) == sample
    assert (drawn["weight"] >= 1.0).all()
    per_field = drawn["field"].value_counts().reindex(list(FIELDS), fill_value=0)
    assert per_field.tolist() == survey.allocation.tolist()


@settings(max_examples=25, deadline=None)
@given(population=st.integers(1, 400), part=st.floats(0.0, 1.0), seed=st.integers(0, 10_000), chunk=st.integers(1, 90))
def test_the_size_is_exact_however_the_population_is_cut_into_chunks(
    population: int, part: float, seed: int, chunk: int
) -> None:
    sample = max(1, round(part * population))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate, "CHUNK", max(chunk, population // 12))
        survey = doctorates(population, sample, seed)
        drawn = sample_of(survey)
        assert survey.truth.count.sum() == population
    assert len(drawn) == sample == survey.allocation.sum()
    assert (drawn["weight"] >= 1.0).all()


def test_the_sample_is_allocated_in_proportion_to_the_population() -> None:
    share = SURVEY.truth.count.sum(axis=1) * 2_000 / 20_000
    assert SURVEY.allocation.sum() == 2_000
    assert (np.abs(SURVEY.allocation - share) < 1.0).all()


def test_a_weight_is_one_over_an_inclusion_probability_proportional_to_size() -> None:
    """π = n_f size / Σ size where no unit is certain: 1/w over size is the same for all records of a field."""
    drawn = SAMPLE.merge(POPULATION, on=["field", "sex", "salary"], validate="one_to_one")
    total = POPULATION.groupby("field")["size"].sum()
    taken = dict(zip(FIELDS, SURVEY.allocation, strict=True))
    expected = drawn["field"].map(total) / (drawn["field"].map(taken) * drawn["size"])
    np.testing.assert_allclose(drawn["weight"], np.maximum(1.0, expected), rtol=1e-9)


def test_a_census_takes_everybody_with_weight_one() -> None:
    survey = doctorates(1_000, 1_000)
    drawn = sample_of(survey)
    assert (drawn["weight"] == 1.0).all()
    assert drawn["salary"].tolist() == population_of(survey)["salary"].tolist()


def test_large_units_are_certain_and_the_rest_keep_proportional_chances() -> None:
    survey = doctorates(2_000, 1_200, noise_sd=1.0)
    drawn, everybody = sample_of(survey), population_of(survey)
    certain = drawn["weight"] == 1.0
    assert 100 < certain.sum() < len(drawn)
    merged = drawn.merge(everybody, on=["field", "sex", "salary"], validate="one_to_one")
    for _, units in merged.groupby("field"):
        rest = units[units["weight"] > 1.0]
        rate = 1.0 / (rest["weight"] * rest["size"])
        np.testing.assert_allclose(rate, rate.iloc[0], rtol=1e-9)
        assert units.loc[units["weight"] == 1.0, "size"].min() >= rest["size"].max()


def _z(weights: Floats, values: Floats, fields: NDArray[np.str_], truth: float) -> float:
    """(Σ w v − truth) in standard errors, by the with-replacement formula within fields (conservative here)."""
    variance = sum((fields == f).sum() * np.var((weights * values)[fields == f], ddof=1) for f in np.unique(fields))
    return float(abs((weights * values).sum() - truth) / np.sqrt(variance))


def test_weights_sum_to_the_population() -> None:
    weight, field = SAMPLE["weight"].to_numpy(), SAMPLE["field"].to_numpy()
    assert _z(weight, np.ones(2_000), field, 20_000) < FALSE_ALARM_Z
    assert _z(1.1 * weight, np.ones(2_000), field, 20_000) > FALSE_ALARM_Z, "the check must see a wrong scale"


def test_weighted_salaries_sum_to_the_truth_and_unweighted_ones_do_not() -> None:
    weight, field, salary = (SAMPLE[name].to_numpy() for name in ("weight", "field", "salary"))
    truth = float(SURVEY.truth.totals["salary"].sum())
    assert _z(weight, salary, field, truth) < FALSE_ALARM_Z
    assert _z(np.full(2_000, 10.0), salary, field, truth) > FALSE_ALARM_Z, "selection depends on salary, so weights matter"


def test_weights_sum_to_the_population_over_many_seeds() -> None:
    """Mean over 40 surveys in standard errors of that mean; false alarm one in 1.7 million."""
    sums = np.array([sample_of(doctorates(2_000, 300, seed))["weight"].sum() for seed in range(40)])
    error = sums.std(ddof=1) / np.sqrt(40)
    assert abs(sums.mean() - 2_000) < FALSE_ALARM_Z * error
    assert abs(1.1 * sums.mean() - 2_000) > FALSE_ALARM_Z * error, "the check must see a wrong scale"
    assert error < 0.02 * 2_000


def test_the_literal_noise_of_the_slides_is_lognormal() -> None:
    """log(size / salary) is N(0, .4) or, literally, its exponential: its log is N(0, .4). Kolmogorov–Smirnov at 1e-6."""
    literal = population_of(doctorates(noise="lognormal"))
    noise = np.log(literal["size"] / literal["salary"])
    assert stats.kstest(np.log(noise) / 0.4, "norm").pvalue > 1e-6
    normal = np.log(POPULATION["size"] / POPULATION["salary"])
    assert stats.kstest(normal / 0.4, "norm").pvalue > 1e-6
    assert stats.kstest(noise / 0.4, "norm").pvalue < 1e-6


def test_salaries_grow_and_gaps_close_as_said() -> None:
    """The same population otherwise: growth multiplies salaries; without a gap women earn by the men's figure."""
    grown, equal = population_of(doctorates(growth=0.1)), population_of(doctorates(gap=0.0))
    assert grown["salary"].to_numpy() == pytest.approx(1.1 * POPULATION["salary"].to_numpy())
    gap = LOG_GAP[POPULATION["field"].map(list(FIELDS).index)] * (POPULATION["sex"] == "female")
    assert equal["salary"].to_numpy() == pytest.approx((POPULATION["salary"] * np.exp(gap)).to_numpy())


def test_top_coded_salaries_are_whole_thousands_skewed_to_the_left_and_the_truth_is_theirs() -> None:
    survey = doctorates(law="top_coded")
    found = population_of(survey)
    assert (found["salary"] % 1000 == 0).all()
    assert found["salary"].max() == TOP_CODE
    below = found[(found["salary"] < TOP_CODE) & (found["field"] == "biology")]
    assert stats.skew(np.log(below["salary"])) < -0.5
    assert survey.truth.totals["salary"].sum() == pytest.approx(found["salary"].sum())

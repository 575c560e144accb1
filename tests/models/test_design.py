"""Design matrices: treatment coding, aliased columns, and that only public combinations decide what is kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st

from dpdist.core.records import Crosstab
from dpdist.models.public_model import INTERCEPT, design, predictor_names

fixed = settings(derandomize=True, deadline=None)
LEVELS = {"field": ("maths", "physics", "health"), "sex": ("male", "female"), "age": (30, 40)}
combinations = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 1)), min_size=1)


def crosstab_of(combinations, strata=()):
    codes = np.array(sorted(combinations), dtype=np.int32).reshape(-1, 3)
    columns = {name: codes[:, k] for k, name in enumerate(LEVELS)}
    return Crosstab(columns, LEVELS, np.ones(len(codes), dtype=np.int64), strata, ())


def full_coding(crosstab, predictors, rows):
    """Intercept and indicators of every level but the first, by definition, one row a frame row."""
    columns = [np.ones(rows.stop - rows.start)]
    for name in predictors:
        columns += [crosstab.codes[name][rows] == level for level in range(1, len(LEVELS[name]))]
    return np.column_stack(columns).astype(float)


def test_names_are_the_intercept_and_every_level_but_the_first():
    crosstab = crosstab_of({(0, 0, 0)})
    assert predictor_names(crosstab, ("field", "age")) == (INTERCEPT, "field[physics]", "field[health]", "age[40]")
    assert predictor_names(crosstab, ()) == (INTERCEPT,)


@fixed
@given(combinations)
def test_every_frame_row_has_the_treatment_coding_of_its_levels(inside):
    crosstab = crosstab_of(inside)
    rows = slice(0, len(crosstab))
    found = design(crosstab, ("field", "sex"), rows)
    np.testing.assert_array_equal(
        found.matrix[found.pattern], full_coding(crosstab, ("field", "sex"), rows)[:, found.columns]
    )
    assert found.names == predictor_names(crosstab, ("field", "sex"))


@fixed
@given(combinations)
def test_patterns_are_distinct(inside):
    crosstab = crosstab_of(inside)
    found = design(crosstab, ("field", "sex"), slice(0, len(crosstab)))
    pairs = set(zip(crosstab.codes["field"].tolist(), crosstab.codes["sex"].tolist(), strict=True))
    assert len(found.matrix) == len(pairs) == len(set(found.pattern.tolist()))
    assert len({tuple(row) for row in found.matrix}) <= len(pairs)


@fixed
@given(combinations)
def test_a_column_is_kept_if_and_only_if_it_is_not_in_the_span_of_those_before_it(inside):
    """R's lm rule: a column is kept exactly where it raises the rank."""
    crosstab = crosstab_of(inside)
    rows = slice(0, len(crosstab))
    full = full_coding(crosstab, ("field", "sex", "age"), rows)
    ranks = [0, *(np.linalg.matrix_rank(full[:, : k + 1]) for k in range(full.shape[1]))]
    assert design(crosstab, ("field", "sex", "age"), rows).columns == tuple(np.flatnonzero(np.diff(ranks)))


def test_a_stratums_design_sees_its_own_frame_rows_only():
    crosstab = crosstab_of({(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 0, 1)}, strata=("field",))
    second = design(crosstab, ("sex", "age"), crosstab.rows_of(1))
    assert (second.first, second.columns) == (2, (0, 2))
    np.testing.assert_array_equal(second.matrix[second.pattern], [[1.0, 0.0], [1.0, 1.0]])


def test_the_design_does_not_depend_on_how_many_records_a_combination_has():
    few = crosstab_of({(0, 0, 0), (1, 1, 0), (2, 0, 1)})
    many = Crosstab(few.codes, few.levels, few.count * 1000, (), ())
    one, other = (design(crosstab, tuple(LEVELS), slice(0, 3)) for crosstab in (few, many))
    assert (one.names, one.columns, one.first) == (other.names, other.columns, other.first)
    np.testing.assert_array_equal(one.matrix, other.matrix)
    np.testing.assert_array_equal(one.pattern, other.pattern)

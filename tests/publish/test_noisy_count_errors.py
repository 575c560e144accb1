"""Noise of protected sample counts is in standard errors: what the same sums say under other counts, and how much it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from noisy_count_surveys import Kind, coverage
from scipy.stats import binom

from dpdist.core.keys import Key
from dpdist.core.records import Floats, Frame
from dpdist.core.table_cells import cross
from dpdist.job import Job
from dpdist.mechanisms.modips.post import Sanitized
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.reference_tables.cells import ReferenceSummary, summary_of
from dpdist.mechanisms.reference_tables.post import ReferenceCells
from dpdist.mechanisms.sanitized_lognormal.post import SanitizedLognormal
from dpdist.models.protocol import Draws, expected_of
from dpdist.privacy.noisy_counts import counted_again, levels
from dpdist.publish.public_bounds import expectations
from dpdist.publish.released import ReleasedObject
from dpdist.publish.standard_errors import RECOUNTS, Countable, about, laws, recounts, spreads_under
from dpdist.publish.tables import from_parameters

PLAIN = {
    "Laplace cells": Kind("laplace_strict", "1/4"),
    "histogram": Kind("perturbed_histogram", "1/4", settings=(("bins", 8),)),
    "reference tables": Kind("reference_tables", "1/4"),
    "statistics": Kind("sanitized_statistics", "1/4"),
    "statistics, Gaussian": Kind("sanitized_statistics", "1/4", settings=(("noise", "gaussian"),)),
    "modips, normal": Kind("modips", "1/4", settings=(("law", "normal"),)),
    "modips, lognormal": Kind("modips", "1/4", settings=(("law", "lognormal"),)),
    "modips, regression": Kind("modips", "1/4", settings=(("law", "normal"), ("location", "main_effects"))),
    "marginals": Kind("marginals", "1/4"),
}
TABLES = Kind("laplace_composed", "1/4", settings=(("sensitivity", "public"),))
KEY = Key(bytes(31) + b"c")
MORE = 1.06
"""Of a cell's records, in the second file of counts."""


def made_again(kind: Kind, release: ReleasedObject, frame: Frame) -> tuple[Draws, Any]:
    """The oracle: the mechanism's own post-processing of the same noisy sums, under the counts of another frame."""
    job, rows = kind.job, frame.rows_of(0)
    model, theta = builder_of(job).build(job, frame, rows), release.theta(release.model(0), 0, 0)
    if isinstance(model, Sanitized):
        sums = np.repeat(theta["sums"], 4000, axis=0)
        drawn = model._all(sums, np.random.default_rng(1))
        return Draws({name: values.mean(axis=0, keepdims=True) for name, values in drawn.values.items()}), model
    if isinstance(model, ReferenceCells):
        plain = release.model(0)
        assert isinstance(plain, ReferenceCells)
        known = learned(kind, plain)
        model = model.within(known.limits, plain.units(known.cells))
        first = np.unique(theta["unit"][0], return_index=True)[1]
        return model.clipping_inverted(theta["sums"][0][first], known.cells), model
    if isinstance(model, SanitizedLognormal):
        plain = release.model(0)
        assert isinstance(plain, SanitizedLognormal)
        whitened = plain.learned(kind.survey(KEY.generator("earlier"))[1])
        sums = np.concatenate([theta["sums"][0].reshape(-1), theta["scatter"][0]])
        return model.within(whitened).draw(sums, 1, np.random.default_rng(1)), model
    return theta, model


def learned(kind: Kind, model: ReferenceCells) -> ReferenceSummary:
    return summary_of(model, [kind.survey(KEY.generator("earlier"))[1]])


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_sums_under_other_counts_are_what_the_mechanism_makes_of_them(name: str) -> None:
    """Counts and totals of rows, against the mechanism's own post-processing. Control: without `recounted` they are not."""
    kind = PLAIN[name]
    release = kind.release(KEY)
    frame, rows = release.frame, release.frame.rows_of(0)
    more = np.where(np.arange(len(frame)) % 3 == 0, np.rint(MORE * frame.count), frame.count).astype(np.int64)
    model, theta = release.model(0), release.theta(release.model(0), 0, 0)
    assert isinstance(model, Countable)
    if isinstance(model, Sanitized):
        theta = made_again(kind, release, frame)[0]
    here, there = more[rows].astype(float), frame.count[rows].astype(float)
    again = [there * each[0] for each in expected_of(model, theta, 0)]
    recounted = [here * each[0] for each in expected_of(model, model.recounted(theta, here[None]), 0)]
    other, under = made_again(kind, release, replace(frame, count=more))
    exact = [here * each[0] for each in expected_of(under, other, 0)]
    ignored = [here * each[0] for each in expected_of(model, theta, 0)]
    near = 1e-9 if name in ("Laplace cells", "histogram", "marginals") else 0.2
    for one, oracle, before, without in zip(recounted, exact, again, ignored, strict=True):
        moved = np.abs(oracle - before).sum()
        assert np.abs(one - oracle).sum() <= near * moved + 1e-9 * np.abs(oracle).sum()
        if name != "histogram":
            assert np.abs(one - oracle).sum() < 0.5 * np.abs(without - oracle).sum(), "control"


def of_counts(kind: Kind, release: ReleasedObject) -> tuple[list[Floats], list[Floats], Floats]:
    """Squared standard errors of counts and means, with the counts' noise and as if they were exact; their recounts."""
    cells = cross(release.frame, kind.job.tables[0].by, True)
    expected, known = expectations(release), spreads_under(release, laws(release, lambda _: None))
    again = recounts(release)
    assert expected is not None
    assert known is not None
    assert again is not None
    found = []
    for spread in (known[0], replace(known[0], recounts=None, parts={})):
        found.append([each.standard_error**2 for each in from_parameters(release, cells, expected, spread)[:2]])
    return found[0], found[1], (cells.membership @ again.T).T


def test_a_histograms_counts_err_by_the_counts_noise_to_the_digit() -> None:
    """Its counts are the noisy sample counts themselves, and its means do not follow from them within a stratum."""
    kind = PLAIN["histogram"]
    release = kind.release(KEY)
    having, without, again = of_counts(kind, release)
    cells = cross(release.frame, ["field"], True)
    np.testing.assert_allclose(having[0] - without[0], about(again, cells.membership @ release.frame.count), rtol=1e-9)
    np.testing.assert_allclose(having[1][:-1], without[1][:-1], rtol=1e-12)
    assert having[1][-1] > without[1][-1], "the mean of all fields does"


def test_recounts_have_the_law_of_the_counts_noise() -> None:
    """Far from 0 all of it is linear. Oracle: least squares of all levels by their precisions, of covariance (X'PX)^-1."""
    kind = PLAIN["Laplace cells"]
    job, frame = kind.job, replace(kind.crossed(np.ones(24)), count=np.full(24, 5000))
    known = levels(job)
    rows, precision = list[Floats](), list[float]()
    parts = 24
    for level in known:
        assert level.scale is not None
        size = int(np.prod([len(frame.levels[name]) for name in level.columns]))
        rows.append(np.kron(np.eye(size), np.ones((1, parts // size))))
        precision += [float(np.cosh(1.0 / float(level.scale)) - 1.0)] * size
    design = np.vstack(rows)
    covariance = np.linalg.inv(design.T @ (np.array(precision)[:, None] * design))
    drawn = counted_again(job, frame, 1500, np.random.default_rng(1))
    total, finest = drawn.sum(axis=1).var(), drawn.var(axis=0).mean()
    assert total == pytest.approx(covariance.sum(), rel=0.2)
    assert finest == pytest.approx(np.diag(covariance).mean() + 1.0 / 12.0, rel=0.05)
    less = counted_again(replace(kind, part="1/2").job, frame, 1500, np.random.default_rng(1))
    assert less.var(axis=0).mean() < 0.5 * finest, "control: counts with twice the budget"


def test_recounts_are_whole_and_follow_the_seed() -> None:
    release = PLAIN["Laplace cells"].release(KEY)
    one, again = recounts(release), recounts(release)
    assert one is not None
    assert one.shape == (RECOUNTS, len(release.frame))
    assert (one >= 0).all()
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(one, np.rint(one))
    exact: Job = release.job.model_copy(update={"predictors": None})
    assert recounts(replace(release, job=exact)) is None


def test_tables_under_noise_of_their_own_know_no_cell_to_be_empty() -> None:
    """A noisy count of 0 is no fact: the cell keeps its noisy figure, which errs by its own noise alone."""
    release = TABLES.release(KEY)
    none = replace(release.frame, count=np.where(np.arange(len(release.frame)) < 3, 0, release.frame.count))
    model = builder_of(TABLES.job).build(TABLES.job, none, slice(0, len(none)))
    assert all((table.occupied == 1.0).all() for table in model.tables)  # type: ignore[attr-defined]
    exact = TABLES.job.model_copy(update={"predictors": None})
    control = builder_of(exact).build(exact, none, slice(0, len(none)))
    assert not all((table.occupied == 1.0).all() for table in control.tables)  # type: ignore[attr-defined]


SLOW = {name: kind for name, kind in PLAIN.items() if name not in ("modips, regression", "marginals")}


@pytest.mark.slow
@pytest.mark.parametrize("part", ["1/4", "1/10"])
@pytest.mark.parametrize("name", SLOW)
def test_intervals_of_counts_hold_what_they_say(name: str, part: str) -> None:
    """Nominal .90: 60 files of 15 (histograms: 5) cells and margins. Cells of a file err together, so that the rule is of
    a design effect of 4; its false alarms are less than 1 in 1,000 at a true .90."""
    kind = replace(SLOW[name], part=part)
    held = coverage(kind, 60, 11)
    print(f"| {name} | {part} | {held[0, 0]:.3f} | {held[0, 1]:.3f} | {held[1, 0]:.3f} | {held[1, 1]:.3f} |")
    free = 60 * len(kind.truth()[0]) // 4
    assert held[0, 0] >= binom.ppf(1e-3, free, 0.9) / free

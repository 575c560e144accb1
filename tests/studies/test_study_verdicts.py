"""What a page claims is computed from its own rows: reproduces, does not, too few replicates to tell."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import yaml

from dpdist.studies.figures import StudyMaterial
from dpdist.studies.kinds import load_study, parse_study
from dpdist.studies.settings import ComparisonTable, Limit
from dpdist.studies.verdicts import (
    ANSWERS,
    ClaimVerdict,
    ReplicateMean,
    estimate_of,
    findings,
    mean_interval,
    reproduces,
    verdict,
)

SHIPPED = [
    path for path in sorted((Path(__file__).parents[2] / "jobs" / "studies").glob("*.yaml")) if path.stem != "papers"
]
STUDY = """
study: small
title: Small
seed: 7
replicates: 4
cases: [{name: beta, generator: {name: beta, parameters: {a: 0.5, b: 3}}, n: 120, family: beta}]
epsilons: ["5"]
draws: 100
mechanisms: [{name: unweighted}, {name: censor_uw}]
measures: [max_ecdf, median]
"""


def rows(values: dict[str, list[float]], measure: str = "max_ecdf") -> pd.DataFrame:
    """Results of mechanisms, replicate by replicate."""
    return pd.DataFrame(
        [
            {"case": "beta", "mechanism": name, "epsilon": "5", "replicate": k, "measure": measure, "value": value}
            for name, own in values.items()
            for k, value in enumerate(own, start=1)
        ]
    )


def beside(
    published: float | str, replicates: int = 100, statistic: str = "mean", measure: str = "max_ecdf"
) -> ComparisonTable:
    said = {"title": "T", "measure": measure, "statistic": statistic, "columns": {"paper": "P"}}
    said |= {"rows": [{"mechanism": "censor_uw", "epsilon": "5", "values": {"paper": published}}]}
    return ComparisonTable.model_validate(said | {"published": {"column": "paper", "replicates": replicates}})


def claim(table: ComparisonTable, results: pd.DataFrame) -> str:
    material = StudyMaterial(parse_study(STUDY), results, pd.DataFrame())
    return verdict(table, table.rows[0], material, "beta", "censor_uw", "5")[0]


def test_a_difference_is_told_in_its_standard_error() -> None:
    material = StudyMaterial(parse_study(STUDY), rows({"censor_uw": [1.0, 2.0, 3.0, 6.0]}), pd.DataFrame())
    table = beside(2.0, replicates=8)
    variance = np.var([1, 2, 3, 6], ddof=1)
    expected = (3.0 - 2.0) / np.sqrt(variance / 4 + variance / 8)
    assert verdict(table, table.rows[0], material, "beta", "censor_uw", "5")[1] == f"{expected:+.1f}"


def test_the_interval_is_students() -> None:
    values = np.array([1.0, 2.0, 4.0, 9.0])
    expected = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = mean_interval(values)
    assert (found.lower, found.upper) == pytest.approx((expected.low, expected.high))
    assert np.isinf(mean_interval(values[:1]).upper), "one replicate has no spread"


def test_the_interval_of_a_difference_is_welchs() -> None:
    """The verdict turns just where the interval of SciPy's unequal-variance test meets the margin."""
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0.0, 1.0, 60), rng.normal(0.0, 2.0, 90)
    theirs -= theirs.mean()
    margin = 0.5 * np.sqrt((ours.std(ddof=1) ** 2 + theirs.std(ddof=1) ** 2) / 2)
    half = np.diff(scipy.stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95))[0] / 2
    for shift, expected in (
        (margin - half - 1e-9, ClaimVerdict.YES),
        (margin - half + 1e-9, ClaimVerdict.TOO_FEW),
        (margin + half - 1e-9, ClaimVerdict.TOO_FEW),
        (margin + half + 1e-9, ClaimVerdict.NO),
    ):
        moved = ours - ours.mean() + shift
        assert reproduces(estimate_of(moved), estimate_of(theirs)) is expected


@pytest.mark.parametrize(
    ("published", "spread", "replicates", "answer"),
    [
        (0.50, 0.1, 100, "reproduces"),
        (0.70, 0.1, 100, "does not reproduce"),
        (0.50, 0.1, 4, "too few replicates to tell"),
        (0.54, 0.1, 30, "too few replicates to tell"),
    ],
)
def test_a_claim_follows_the_rows_of_the_run(published: float, spread: float, replicates: int, answer: str) -> None:
    values = 0.5 + spread * np.linspace(-1.7, 1.7, replicates)
    assert claim(beside(published), rows({"censor_uw": values.tolist()})) == answer


def test_the_same_table_says_otherwise_of_other_rows() -> None:
    """Negative control: no figure of the file decides the answer alone."""
    values = 0.5 + 0.1 * np.linspace(-1.7, 1.7, 100)
    table = beside(0.5)
    answers = {claim(table, rows({"censor_uw": (values + shift).tolist()})) for shift in (0.0, 0.06, 0.4)}
    assert answers == set(ANSWERS.values())


def test_one_published_file_can_contradict_but_never_confirm() -> None:
    values = 0.5 + 0.1 * np.linspace(-1.7, 1.7, 1000)
    assert claim(beside(0.5, replicates=1), rows({"censor_uw": values.tolist()})) == ANSWERS[ClaimVerdict.TOO_FEW]
    assert claim(beside(1.5, replicates=1), rows({"censor_uw": values.tolist()})) == ANSWERS[ClaimVerdict.NO]


def test_ends_of_intervals_are_compared_both() -> None:
    spread = 0.1 * np.linspace(-1.7, 1.7, 100)
    ends = [rows({"censor_uw": (end + spread).tolist()}, f"median_{name}") for end, name in ((1, "lower"), (2, "upper"))]
    both = pd.concat(ends)
    assert claim(beside("1.0 – 2.0", 100, "interval", "median"), both) == ANSWERS[ClaimVerdict.YES]
    assert claim(beside("1.0 – 2.2", 100, "interval", "median"), both) == ANSWERS[ClaimVerdict.NO]


@pytest.mark.parametrize("words", ["near 1.5, longer upper tail", "", "≤ 2.5"])
def test_what_is_no_number_is_not_compared(words: str) -> None:
    assert claim(beside(words), rows({"censor_uw": [1.0, 2.0, 3.0]})) == ""


def test_figures_without_spread_are_compared_with_one_published_draw() -> None:
    """No replicate shows a spread, so the interval is normal, with the published standard deviation."""
    published = ReplicateMean(1.0, 0.1, 1)
    assert reproduces(ReplicateMean(1.0, 0.0, 4), published) is ClaimVerdict.TOO_FEW
    assert reproduces(ReplicateMean(2.0, 0.0, 4), published) is ClaimVerdict.NO


def test_exact_figures_are_compared_exactly() -> None:
    assert reproduces(ReplicateMean(2.0 + 1e-12, 0.0, 5), ReplicateMean(2.0, 0.0, 1)) is ClaimVerdict.YES
    assert reproduces(ReplicateMean(2.001, 0.0, 5), ReplicateMean(2.0, 0.0, 1)) is ClaimVerdict.NO


def test_an_order_of_mechanisms_is_held_against_pairs_of_replicates() -> None:
    """Common replicates: a difference of .01 shows under a spread of 1 that both share. Control: shuffled it does not."""
    shared = np.random.default_rng(3).normal(0.0, 1.0, 40)
    small, large = (shared + 0.001 * np.cos(np.arange(40))).tolist(), (shared + 0.01).tolist()
    limit = Limit(title="Order", measures=("max_ecdf",), mechanisms=("censor_uw",), below="unweighted")
    (kept,) = findings((limit,), rows({"censor_uw": small, "unweighted": large}))
    assert "less than unweighted, replicate by replicate" in kept.text
    assert "Met in 1 of 1 results." in kept.text
    (reversed_,) = findings((limit,), rows({"censor_uw": large, "unweighted": small}))
    assert "Met in 0 of 1 results. Not met in: beta censor_uw max_ecdf" in reversed_.text
    (shuffled,) = findings((limit,), rows({"censor_uw": small[::-1], "unweighted": large}))
    assert "Too few replicates to tell in 1." in shuffled.text


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_no_text_of_a_shipped_study_quotes_a_run(path: Path) -> None:
    """Measured figures have decimals without a leading zero, or "R = " beside them; both stand in tables and rows alone."""
    study = load_study(path)
    texts = [f"{note.title} {note.text}" for note in study.notes] + [figure.reading for figure in study.figures]
    texts += [table.reading for table in study.beside]
    for text in texts:
        assert not re.search(r"R = \d", text), text
        assert not re.search(r"(?<![\d(])\.\d", text.replace("Beta(.5, 3)", "").replace("c1 = .8", "")), text


def test_every_shipped_study_answers_from_its_rows() -> None:
    """Each has limits, or published figures that are compared, or both; the file itself answers nothing."""
    for path in SHIPPED:
        study = load_study(path)
        assert study.limits or any(table.published for table in study.beside), path.stem
        said = yaml.safe_load(path.read_text("utf-8"))
        text = str(said.get("notes", "")) + str([each.get("title", "") for each in said.get("beside", [])])
        assert "reproduce" not in text.lower(), path.stem

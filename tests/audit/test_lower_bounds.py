"""What an attacker who knows all but one record can show of posteriors and of finished releases: `dpdist audit --draws`.

This attacker scores figures by their means and spreads. Noisy sums have likelihood ratios (test_likelihood_ratios).
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import invoke, succeed
from edited_text import edited
from options import halved
from public_files import public_files
from small_release import JOB, survey

import dpdist
from dpdist.audit import auditing
from dpdist.audit.auditing import (
    bound_from_outside,
    claim_of_record,
    draws_to_exceed,
    lower_bound,
    most_shown,
    of_parameters,
    releases,
)
from dpdist.confidential.records import Records
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab, Floats
from dpdist.job import epsilon_of
from dpdist.job.loading import parse_job
from dpdist.mechanisms.parts import builder_of
from dpdist.mechanisms.pseudo_posterior import query as presets
from dpdist.models.protocol import Improper
from dpdist.privacy.guarantees import Concentrated
from dpdist.runtime.tasks import JobFit
from dpdist.sampling import sampler_of

MODELS = """
dataset: audit
period: "2021"
columns: {share: {bounds: [0, 1], outside: clip}, pay: {bounds: [1, 1000000], outside: clip}}
outcome: share
model: {family: beta}
mechanism: {name: censor_uw}
budget: {epsilon: "1"}
sampler: {draws: 100}
tables:
  - {name: t, statistics: [count]}
"""


def posterior(edits: dict[str, str], outcome: Floats, extreme: float, runs: int) -> float:
    """The same of draws from a posterior: a file with and without one extreme record."""
    text = edited(MODELS, *edits.items())
    job = parse_job(text)
    values = np.append(outcome, extreme)
    crosstab = Crosstab({}, {}, np.array([len(values)]), (), ())
    weight = np.exp(np.random.default_rng(7).normal(3.0, 0.4, len(values)))
    near = Records.of_outcomes(values, weight)
    model = builder_of(job).build(job, crosstab, slice(0, 1))
    sampler = sampler_of(job, None)  # type: ignore[arg-type]
    files = (near, near.take(np.arange(len(outcome))))
    released = (releases(job, model, None, sampler, file, runs, Key.from_os()) for file in files)
    return lower_bound(*(of_parameters(model, list(sets)) for sets in released))


SHARES = np.random.default_rng(5).beta(8.0, 2.0, 8)
PAY = np.exp(np.random.default_rng(6).normal(11.0, 0.4, 60))


@pytest.mark.slow
def test_a_clamped_posterior_shows_no_more_and_a_wider_clamp_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clamp of ε = 1, and eight times that."""
    assert posterior({}, SHARES, 1e-4, 300) <= 1.0
    real = presets.target_of
    monkeypatch.setattr(presets, "target_of", lambda job: 8.0 * real(job))
    assert posterior({}, SHARES, 1e-4, 300) > 1.0, "control"


LOGNORMAL = {
    "outcome: share": "survey: {weight: weight}\noutcome: pay",
    "{family: beta}": "{family: lognormal}",
    '{epsilon: "1"}': '{epsilon: "2.2"}',
}


@pytest.mark.slow
def test_weights_bring_an_outlier_under_the_target_and_without_them_it_is_shown() -> None:
    """α not applied: the same draws from the posterior without weights."""
    assert posterior(LOGNORMAL | {"censor_uw": "weighted"}, PAY, 9e5, 400) <= 2.2
    assert posterior(LOGNORMAL | {"censor_uw": "unweighted"}, PAY, 9e5, 400) > 2.2, "control"


def test_a_bound_of_a_known_law_is_below_and_near_the_truth() -> None:
    """Oracle: Laplace noise of scale 1/ε on 0 and on 1, at ε = 2, rounded. Control: two samples of one law show nothing."""
    rng = np.random.default_rng(1)
    raw = rng.laplace(1.0, 0.5, (20_000, 1)), rng.laplace(0.0, 0.5, (20_000, 1))
    near, far = (np.rint(1000.0 * side) for side in raw)
    assert 1.7 < lower_bound(near, far) <= 2.0
    assert lower_bound(near[:10_000], near[10_000:]) < 0.1
    assert lower_bound(near, far, delta=0.2) < lower_bound(near, far)
    assert lower_bound(*raw) > 2.0, "noise in floating point leaks by its last bits (Mironov 2012): this attacker sees it"


SUMS = JOB.replace("{name: tables}", "{name: modips, law: lognormal}").replace("bounds: [0,", "bounds: [1,")
"""The small job under a mechanism whose releases take milliseconds to draw."""


def test_the_audit_of_a_finished_release_stays_in_its_confidential_folder(tmp_path: Path) -> None:
    """The command, on a small release: a row a stratum, under what is claimed; nothing public changes."""
    frame = survey(120)
    for field in ("arts", "law"):
        frame.loc[frame.index[frame["field"] == field][0], ["salary", "weight"]] = [200000.0, 60.0]
    dpdist.run(dpdist.parse_job(SUMS), tmp_path / "ws", frame)
    before = public_files(tmp_path / "ws")
    text = succeed("audit", f"{tmp_path}/ws", "--draws", "200", "--confidential")
    assert "Lower bounds (confidential)" in text
    assert public_files(tmp_path / "ws") == before
    rows = pd.read_parquet(tmp_path / "ws" / "confidential" / "evaluation" / "audit-lower-bounds.parquet")
    assert list(rows["stratum"]) == ["arts", "law"]
    assert (rows["claimed"] == 3.0).all()
    assert not rows["exceeds"].any()
    assert (rows["at_least"] > 0.3).all(), "no power"
    assert (rows["from_sums"] > 1.5).all(), "no power"
    assert not rows["left_out"].any()
    assert (rows["most_that_can_be_shown"] == most_shown(200)).all()


UNIT, PART = "privacy_unit: {column: household, most: 4}\n", Fraction(3, 4)


def households(folder: Path) -> Path:
    """A small release of households of four, whose budget of 3 leaves each record 3/4, with an outlier in each stratum."""
    frame = survey(120).assign(household=[f"h{row // 4}" for row in range(120)])
    for field in ("arts", "law"):
        frame.loc[frame.index[frame["field"] == field][0], ["salary", "weight"]] = [200000.0, 60.0]
    dpdist.run(dpdist.parse_job(SUMS + UNIT), folder / "ws", frame)
    return folder / "ws"


@pytest.mark.long
def test_what_a_record_shows_is_compared_with_its_part_of_a_units_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: under half the noise records exceed their part, though not the unit's, and the command fails."""
    space = households(tmp_path)
    as_claimed = bound_from_outside(space, 200).disclose_to_custodian()
    assert (as_claimed["claimed"] == float(PART)).all()
    assert not as_claimed["exceeds"].any()
    halved(monkeypatch)
    failed = invoke("audit", space, "--draws", "600", "--quiet")
    assert failed.exit_code == 1
    assert "records lose more than the claimed ε" in " ".join(failed.output.split())
    assert not re.search(r"\d", "".join(failed.output.split()).replace(str(space), "")), "no figures"
    rows = pd.read_parquet(space / "confidential" / "evaluation" / "audit-lower-bounds.parquet")
    assert rows["exceeds"].any()
    assert (rows["at_least"] < 3.0).all()


def test_a_records_part_of_a_concentrated_budget_is_a_square() -> None:
    """ρ/k², told at the same δ; a unit of one record loses what is stated."""
    of_file = Concentrated("zero_out", epsilon_of(Fraction(1, 2), DELTA), Fraction(1, 2), DELTA)
    for most, rho in ((1, Fraction(1, 2)), (4, Fraction(1, 32))):
        job = parse_job(JOB + UNIT.replace("4", str(most)))
        assert claim_of_record(job, of_file) == float(epsilon_of(rho, DELTA))


DELTA = Fraction(1, 10**6)


@pytest.mark.parametrize("delta", [0.0, 0.01])
@pytest.mark.parametrize("claimed", [0.5, 3.0, 8.0])
def test_so_few_draws_are_refused_as_cannot_exceed_the_claim(claimed: float, delta: float) -> None:
    """The fewest that can, and no fewer. Oracle: the bound of two files that nobody could mistake."""
    fewest = draws_to_exceed(claimed, delta)
    assert most_shown(fewest, delta) > claimed >= most_shown(fewest - 1, delta)
    if fewest > 10:
        near, far = np.ones((fewest, 1)), np.zeros((fewest, 1))
        assert lower_bound(near, far, delta) == pytest.approx(most_shown(fewest, delta), rel=1e-9)


def test_the_command_says_how_many_draws_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is drawn."""
    dpdist.run(dpdist.parse_job(JOB.replace('"3"', '"5"')), tmp_path / "ws", survey(120))
    monkeypatch.setattr(auditing, "releases", None)
    refused = invoke("audit", f"{tmp_path}/ws", "--draws", "200")
    assert refused.exit_code == 1
    assert f"at least {draws_to_exceed(5.0)} draws are needed" in " ".join(refused.output.split())
    assert not (tmp_path / "ws" / "confidential" / "evaluation" / "audit-lower-bounds.parquet").exists()


def test_strata_that_are_left_out_are_counted_and_an_empty_audit_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dpdist.run(dpdist.parse_job(SUMS), tmp_path / "ws", survey(120))
    real, command = auditing._both, ["audit", f"{tmp_path}/ws", "--draws", "200", "--confidential"]

    def improper(fit: JobFit, stratum: int, *given: Any) -> tuple[Floats, Floats]:
        if stratum in missing:
            raise Improper("no posterior", "none")
        return real(fit, stratum, *given)

    monkeypatch.setattr(auditing, "_both", improper)
    missing = {0}
    some = succeed(*command)
    assert "left out: 1 of 2 strata" in " ".join(some.split())
    missing = {0, 1}
    none = invoke(*command)
    assert none.exit_code == 1
    assert "nothing was audited" in " ".join(none.output.split())


def test_the_file_with_another_record_in_place_keeps_the_other_outcomes() -> None:
    job = parse_job(JOB.replace('{epsilon: "3"}', '{epsilon: "3", adjacency: substitution}'))
    whole, three = np.full(3, -1, dtype=np.int32), np.arange(3)
    outcomes = np.array([[1e4, 1.0], [2e4, 2.0], [3e4, 3.0]])
    file = Records(three, np.zeros(3, dtype=np.int32), outcomes, np.ones(3), whole)
    other = auditing.neighbour(job, file, 1)
    assert (other.outcomes != file.outcomes).tolist() == [[False, False], [True, False], [False, False]]


def test_runs_that_release_other_tables_are_compared_all_the_same() -> None:
    """Rows of different lengths, as where pairs are chosen: what is missing is 0. Control: the same two lengths tell
    nothing by themselves."""
    rng = np.random.default_rng(2)
    near, far = rng.laplace(1.0, 0.5, (2_000, 2)), rng.laplace(0.0, 0.5, (2_000, 1))
    assert lower_bound(np.rint(near), np.rint(far)) > 0.5
    alike = np.zeros((2_000, 2)), np.zeros((2_000, 1))
    assert lower_bound(*alike) == 0.0

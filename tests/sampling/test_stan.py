"""Sampler `stan`: the posterior it is asked for, the same draws for the same seed, and nothing left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from dpdist.core.errors import StanError
from dpdist.job import Diagnostics, Sampler
from dpdist.sampling import Unconverged, markov, stan
from dpdist.sampling.stan import StanSettings, fit, generate, log_density, message

QUICK = StanSettings(chains=2, warmup=100, draws=50)


def errors_of_mean_and_sd(draws, mean, sd):
    """Distance of the draws' mean and sd from given ones, in Monte Carlo standard errors."""
    squares = (draws - draws.mean()) ** 2
    import arviz as az  # takes long, for few tests

    mcse = [np.sqrt(x.var() / az.ess(x)) for x in (draws, squares)]
    return abs(draws.mean() - mean) / mcse[0], abs(squares.mean() - sd**2) / mcse[1]


def test_draws_follow_the_exact_posterior(chains, gaussian):
    assert max(errors_of_mean_and_sd(chains.draws["mu"], gaussian.mean, gaussian.sd)) < 4


@pytest.mark.parametrize(("shift", "scale"), [(0.1, 1.0), (0.0, 1.1)])
def test_a_posterior_a_tenth_off_is_told_apart(chains, gaussian, shift, scale):
    wrong = errors_of_mean_and_sd(chains.draws["mu"], gaussian.mean + shift * gaussian.sd, gaussian.sd * scale)
    assert max(wrong) > 4


def test_variables_keep_their_shape_and_order(chains, gaussian):
    assert {name: values.shape for name, values in chains.draws.items()} == {
        "mu": (4, 1000), "z": (4, 1000, 2, 3), "R": (4, 1000, 2, 2), "log_lik": (4, 1000, 50), "noise": (4, 1000),
    }  # fmt: skip
    assert np.allclose(chains.draws["z"].mean(axis=(0, 1)), gaussian.data["place"], atol=0.2)
    assert (chains.draws["R"][..., 1, 1] == 1).all()
    for statistic in (chains.lp, chains.energy, chains.divergent, chains.treedepth):
        assert statistic.shape == (4, 1000)


def test_draws_come_back_with_every_bit(chains, gaussian):
    y, mu = gaussian.data["y"], chains.draws["mu"][..., None]
    exact = -0.5 * ((y - mu) / 2) ** 2 - np.log(2) - 0.5 * np.log(2 * np.pi)
    assert np.allclose(chains.draws["log_lik"], exact, rtol=1e-14, atol=0)


def test_the_seed_fixes_the_draws(program, gaussian, tmp_path):
    once, again, other = (fit(program, gaussian.data, QUICK, seed, tmp_path) for seed in (7, 7, 8))
    assert np.array_equal(once.draws["z"], again.draws["z"])
    assert not np.array_equal(once.draws["z"], other.draws["z"])


def test_generated_quantities_at_given_draws(program, gaussian, chains, tmp_path):
    given = {name: chains.draws[name][:, :20] for name in ("z", "mu")}
    made = generate(program, gaussian.data, given, 1, tmp_path)
    assert np.allclose(made["log_lik"], chains.draws["log_lik"][:, :20], rtol=1e-12)
    block = {**gaussian.data, "n": 3, "y": gaussian.data["y"][10:13]}
    assert np.allclose(generate(program, block, given, 1, tmp_path)["log_lik"], made["log_lik"][..., 10:13], rtol=1e-12)


def test_the_log_density_at_given_points(program, gaussian, tmp_path):
    rng = np.random.default_rng(0)
    mu, z = rng.normal(size=5), rng.normal(size=(5, 2, 3))

    def normal(x, mean, sd):
        return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)

    exact = normal(mu, 0, 10) + normal(gaussian.data["y"], mu[:, None], 2).sum(axis=1)
    exact += normal(z, gaussian.data["place"], 1).sum(axis=(1, 2))
    assert np.allclose(log_density(program, gaussian.data, {"mu": mu, "z": z}, tmp_path), exact, rtol=1e-13)


def test_a_run_leaves_nothing_in_folder_environment_or_log(program, gaussian, tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("STAN_NUM_THREADS", raising=False)
    fit(program, gaussian.data, QUICK, 1, tmp_path)
    with pytest.raises(StanError):
        fit(program, {**gaussian.data, "sigma": -1.0}, QUICK, 1, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "STAN_NUM_THREADS" not in os.environ
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("cmdstanpy").disabled


def test_the_folder_of_a_run_is_private(program, gaussian, tmp_path, monkeypatch):
    modes, write = [], stan._write_data
    monkeypatch.setattr(stan, "_write_data", lambda own, data: modes.append(own.stat().st_mode & 0o777) or write(own, data))
    fit(program, gaussian.data, QUICK, 1, tmp_path)
    assert modes == [0o700]


def test_a_failure_tells_stans_message_without_a_value(program, gaussian, tmp_path):
    spoilt = {**gaussian.data, "sigma": -271.828}
    with pytest.raises(StanError) as caught:
        fit(program, spoilt, QUICK, 1, tmp_path)
    assert "sigma is …, but must be greater than or equal to" in str(caught.value)
    assert "line 5" in str(caught.value)
    assert "271" not in str(caught.value)
    with pytest.raises(StanError, match="sigma is …"):
        generate(program, spoilt, {"mu": np.zeros((1, 1)), "z": np.zeros((1, 1, 2, 3))}, 1, tmp_path)


def test_the_message_keeps_places_and_drops_numbers_and_folders():
    said = (
        "Chain [1] Iteration: 1 / 9\nException: f: y[31] is 12.5, but must be <= -3e4 (in '/a/b/m.stan', line 4, column 2)"
    )
    assert message(said) == "Exception: f: y[31] is …, but must be <= … (in 'm.stan', line 4, column 2)"
    assert (
        message("Error: n[2, 3] is 1e+05 of 7.5 or 2e5\nError: sample did not finish (code 70)")
        == "Error: n[2, 3] is … of … or …"
    )
    assert message("Rejecting: sum of weight[12] is 1234.5e-3, m2 = -inf") == "Rejecting: sum of weight[12] is …, m… = -inf"
    assert message("salary52000") == "salary…"
    assert "killed" in message("Chain [1] Iteration: 1 / 9")


def test_attempts_are_counted_and_have_seeds_of_their_own(program, gaussian, tmp_path, monkeypatch):
    seeds = []

    def fails_first(executable, data, settings, seed, folder, first_id):
        seeds.append(seed)
        if len(seeds) % 5 in (1, 2, 3, 4):
            raise StanError("p", "no", "none")
        return fit(executable, data, settings, seed, folder, first_id)

    monkeypatch.setattr(markov, "fit", fails_first)
    monkeypatch.setattr(markov, "data_of", lambda model, posterior: gaussian.data)
    monkeypatch.setattr(markov.StanSampler, "program", lambda sampler, model: program)
    two, three = (
        markov.StanSampler(Sampler(name="stan", draws=100, warmup=100, attempts=number), Diagnostics(), tmp_path)
        for number in (2, 3)
    )
    with pytest.raises(Unconverged, match="in 2 attempts"):
        two._sampled(None, np.empty(0), 2, 5, 1)
    chains, figures = three._sampled(None, np.empty(0), 2, 5, 1)
    assert (chains.lp.shape, figures["attempt"]) == ((2, 100), 2.0)
    assert seeds[:2] == seeds[2:4]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3


def test_a_program_that_cannot_be_run_is_a_stan_error(program, gaussian, tmp_path):
    broken = program._replace(path=tmp_path / "broken")
    broken.path.write_text("#!/bin/sh\nkill -9 $$\n")
    broken.path.chmod(0o755)
    with pytest.raises(StanError, match="killed"):
        fit(broken, gaussian.data, QUICK, 1, tmp_path / "fits")


@pytest.mark.skipif(sys.platform != "linux", reason="a process ends with its parent on Linux only")
def test_a_worker_killed_during_a_fit_leaves_no_process_and_only_the_folder_given(program, tmp_path):
    script = """
import sys
from pathlib import Path
import numpy as np
from dpdist.sampling.stan import StanSettings, fit
from dpdist.sampling.toolchain import Executable
data = {"n": 1, "y": np.zeros(1), "sigma": 1.0, "place": np.zeros((2, 3))}
fit(Executable(Path(sys.argv[1]), "gaussian"), data, StanSettings(draws=10**8), 1, Path(sys.argv[2]))
"""
    parent = tmp_path / "fits"
    worker = subprocess.Popen([sys.executable, "-c", script, str(program.path), str(parent)])
    try:
        running = until(lambda: [child for child in children(worker) if child.name().startswith("gaussian")])
        until(lambda: list(parent.glob("*/*_1.csv")))
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    until(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in running))
    assert [path.name for path in tmp_path.iterdir()] == ["fits"]


def children(process):
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_a_fit_runs_where_its_program_is_named_by_a_relative_folder(program, gaussian, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert fit(program, gaussian.data, QUICK, 1, Path("fits")).lp.shape == (2, 50)

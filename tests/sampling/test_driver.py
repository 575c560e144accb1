"""The driver under unmodified cmdstanpy: every setting it passes, every file it reads back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cmdstanpy
import numpy as np
import pytest

from dpdist.sampling.toolchain import find_toolchain

QUICK = {"chains": 2, "iter_warmup": 100, "iter_sampling": 100, "show_progress": False, "seed": 1}


@pytest.fixture(scope="module")
def model(program):
    return cmdstanpy.CmdStanModel(exe_file=program.path)


@pytest.fixture(scope="module")
def data(gaussian, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.json"
    cmdstanpy.write_stan_json(str(path), gaussian.data)
    return str(path)


def test_info_names_stan_and_threads(model):
    info, version = model.exe_info(), find_toolchain("embedded").version
    assert ".".join(info[f"stan_version_{part}"] for part in ("major", "minor", "patch")) == version
    assert info["STAN_THREADS"] == "true"


@pytest.mark.parametrize("metric", ["diag_e", "dense_e", "unit_e"])
@pytest.mark.parametrize("adapt", [True, False])
def test_metrics_with_and_without_adaptation(model, data, tmp_path, metric, adapt):
    settings = QUICK if adapt else {**QUICK, "step_size": 0.25}
    run = model.sample(data, metric=metric, adapt_engaged=adapt, output_dir=tmp_path, **settings)
    assert run.draws().shape[:2] == (100, 2)
    assert run.metric_type == metric
    assert (np.asarray(run.step_size) == 0.25).all() != adapt


def test_a_metric_and_starts_are_taken_from_files_one_a_chain(model, data, tmp_path):
    scales = np.linspace(0.1, 0.7, 7)
    starts = [{"mu": 1.5, "z": np.zeros((2, 3)).tolist()}, {"mu": 2.5, "z": np.ones((2, 3)).tolist()}]
    settings = {**QUICK, "iter_warmup": 0, "iter_sampling": 1}
    run = model.sample(
        data, metric="diag", inv_metric={"inv_metric": scales}, inits=starts, adapt_engaged=False, step_size=1e-9,
        max_treedepth=1, output_dir=tmp_path, **settings,
    )  # fmt: skip
    assert np.allclose(run.inv_metric, scales)
    assert np.allclose(run.draws_pd()["mu"], [1.5, 2.5])


def test_a_start_at_radius_zero_is_the_origin(model, data, tmp_path):
    settings = {**QUICK, "iter_warmup": 0, "iter_sampling": 1, "step_size": 1e-9, "max_treedepth": 1}
    run = model.sample(data, inits=0, adapt_engaged=False, output_dir=tmp_path, **settings)
    assert np.allclose(run.draws_pd()["mu"], 0, atol=1e-6)


def test_warmup_can_be_kept_and_draws_thinned(model, data, tmp_path):
    run = model.sample(data, save_warmup=True, thin=5, output_dir=tmp_path, **QUICK)
    assert run.draws().shape[0] == 20
    assert run.draws(inc_warmup=True).shape[0] == 40


def test_chains_of_one_process_are_those_of_one_process_each(model, data, tmp_path):
    together = model.sample(data, output_dir=tmp_path / "one", **QUICK)
    apart = model.sample(data, output_dir=tmp_path / "two", force_one_process_per_chain=True, **QUICK)
    assert sorted(path.name[-6:] for path in (tmp_path / "one").glob("*.csv")) == ["_1.csv", "_2.csv"]
    assert np.array_equal(together.draws(), apart.draws())
    assert not np.array_equal(together.draws()[:, 0], together.draws()[:, 1])


def test_significant_figures(model, data, tmp_path):
    short, long = (model.sample(data, sig_figs=figures, output_dir=tmp_path, **QUICK).draws() for figures in (6, 17))
    assert not np.array_equal(short, long)
    assert np.allclose(short, long, rtol=1e-5)


def test_fixed_parameters(model, data, tmp_path):
    run = model.sample(data, fixed_param=True, force_one_process_per_chain=True, output_dir=tmp_path, **QUICK)
    assert np.ptp(run.draws_pd()["mu"].to_numpy()[:100]) == 0
    assert np.ptp(run.draws_pd()["noise"].to_numpy()) > 0


def test_latent_dynamics_are_written_beside(model, data, tmp_path):
    run = model.sample(data, save_latent_dynamics=True, output_dir=tmp_path, **QUICK)
    lines = Path(run.runset.diagnostic_files[1]).read_text().splitlines()
    assert any(line.startswith("lp__,accept_stat__") and "p_mu" in line for line in lines)


def test_generated_quantities_of_a_fit_come_back(model, data, tmp_path):
    run = model.sample(data, sig_figs=17, output_dir=tmp_path / "fit", **QUICK)
    made = model.generate_quantities(data, previous_fit=run, seed=1, sig_figs=17, gq_output_dir=tmp_path / "gq")
    assert np.allclose(made.stan_variable("log_lik"), run.stan_variable("log_lik"), rtol=1e-12)


def test_the_optimum_is_the_mode(model, data, gaussian, tmp_path):
    found = model.optimize(data, seed=1, sig_figs=10, output_dir=tmp_path)
    assert found.converged
    assert found.stan_variable("mu") == pytest.approx(gaussian.mean, rel=1e-5)
    assert np.allclose(found.stan_variable("z"), gaussian.data["place"], atol=1e-4)


def test_the_log_density_and_its_gradient(model, data, gaussian):
    at = {"mu": 1.0, "z": gaussian.data["place"].tolist()}
    row = model.log_prob(at, data, sig_figs=17).iloc[0]
    assert row["g_mu"] == pytest.approx(((gaussian.data["y"] - 1) / 4).sum() - 1 / 100, rel=1e-12)
    assert np.allclose(row.filter(like="g_z"), 0)


def test_unconstrained_points(program, data, tmp_path):
    (tmp_path / "p.json").write_text('{"params_r": [[1, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0]]}')
    arguments = ["log_prob", f"unconstrained_params={tmp_path / 'p.json'}", "data", f"file={data}"]
    done = run_directly(program, *arguments, "output", f"file={tmp_path / 'o.csv'}")
    assert done.returncode == 0, done.stderr
    rows = [line for line in (tmp_path / "o.csv").read_text().splitlines() if not line.startswith("#")]
    assert len(rows) == 3
    assert rows[1] != rows[2]


def run_directly(program, *arguments):
    return subprocess.run([program.path, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no method given"),
        (("variational",), "neither a method"),
        (("method=sample", "num_sample=3"), "unknown argument num_sample"),
        (("method=sample", "num_samples=many"), "num_samples=many"),
        (("method=sample", "thin=0"), "thin=0"),
        (("method=sample", "num_chains=-1"), "num_chains=-1"),
        (("method=sample", "algorithm=rwm"), "allowed: hmc, fixed_param"),
        (("method=sample", "num_warmup=0"), "adapt engaged=0"),
        (("method=sample", "init=nowhere.json"), "cannot read nowhere.json"),
        (("method=sample", "random", "seed=-1"), "seed=-1"),
        (("method=optimize", "algorithm=newton"), "allowed: lbfgs"),
        (("method=generate_quantities", "fitted_params=nowhere.csv"), "cannot read nowhere.csv"),
        (("method=log_prob",), "either constrained_params or unconstrained_params"),
        (("method=sample", "output", "file=/nowhere/o.csv"), "cannot write /nowhere/o.csv"),
    ],
)
def test_a_mistake_is_an_error_that_says_what(program, data, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    done = run_directly(program, "data", f"file={data}", *arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert said in done.stderr


def test_a_full_disk_is_an_error(program, data):
    done = run_directly(program, "data", f"file={data}", "output", "file=/dev/full", "method=sample", "num_samples=5000")
    assert done.returncode == 1
    assert "Error: cannot write /dev/full" in done.stderr

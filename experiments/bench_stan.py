"""A Stan fit and its bounds beside the papers' way on the same Stan, and fits on two workers beside two lone processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

from dpdist.confidential.records import Records
from dpdist.core.records import Crosstab
from dpdist.job import MODELS, Diagnostics, Job, Runtime, Sampler
from dpdist.runtime.executors import executor
from dpdist.sampling.markov import StanSampler
from dpdist.sampling.stan import StanSettings, fit
from dpdist.sampling.toolchain import executable

N, FITS = 2000, 24
NAIVE = Path(__file__).with_name("naive_beta.stan")


def beta(folder: Path) -> tuple[StanSampler, object, Records]:
    """A sampler with Stan's own defaults (4 × (1000 + 1000)), the beta model, n = 2000 records of Beta(.5, 3)."""
    job = Job.model_validate(
        {
            "dataset": "bench",
            "period": "1",
            "columns": {"y": {"bounds": [0, 1]}},
            "outcome": "y",
            "model": {"family": "beta"},
            "mechanism": {"name": "weighted"},
            "budget": {"epsilon": "5"},
            "tables": [{"name": "t", "statistics": ["count"]}],
        }
    )
    crosstab = Crosstab({}, {}, np.array([N]), (), ())
    zeros = np.zeros(N, dtype=np.int32)
    y = np.random.default_rng(1).beta(0.5, 3, N)
    records = Records(np.arange(N), zeros, y, np.ones(N), zeros)
    sampler = StanSampler(Sampler(name="stan"), Diagnostics(), folder)
    return sampler, MODELS["beta"].build(job, crosstab, slice(0, 1)), records


class Fits(NamedTuple):
    """Task: one fit with the seed given."""

    folder: Path

    def __call__(self, seed: int) -> float:
        sampler, model, records = beta(self.folder)
        statistics = model.statistics(records, np.ones(N))
        return float(sampler.sample(model, statistics, np.random.default_rng(seed))["mean"].mean())


def test_times_as_fast_as_the_papers_workflow(ratio, tmp_path, stan_cache):
    """Fit and record bounds of one stratum: ours from sums; theirs by a loop, generated quantities and their CSV file."""
    sampler, model, records = beta(tmp_path)
    naive, alpha = executable(NAIVE), np.ones(N)

    def ours():
        draws = sampler.sample(model, model.statistics(records, alpha), np.random.default_rng(1))
        return (alpha * model.extremes(draws, records).bound).max()

    def theirs():
        data = {"n": N, "y": records.outcome, "alpha": alpha}
        log_lik = fit(naive, data, StanSettings(adapt_delta=0.9), 1, tmp_path).draws["log_lik"]
        return np.abs(alpha * log_lik.reshape(-1, N)).max()

    assert ours() == pytest.approx(theirs(), rel=0.2)
    assert ratio("times as fast as a loop with log_lik in generated quantities", ours, theirs, pairs=3) >= 80.0


def test_share_of_two_lone_processes_that_two_workers_reach(tmp_path, stan_cache):
    """Fits per second of two workers, over those of one worker; both as shares of what lone processes reach."""
    Fits(tmp_path)(0)

    def with_workers(workers):
        with executor(Runtime(executor="dask", workers=workers)) as started:
            list(started.map(Fits(tmp_path), range(workers)))  # imports
            begin = perf_counter()
            list(started.map(Fits(tmp_path), range(FITS)))
            return FITS / (perf_counter() - begin)

    def alone(processes):
        each = FITS // processes
        command = [sys.executable, __file__, str(tmp_path), str(each)]
        started = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
        ]
        for process in started:
            process.stdout.readline()
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        return FITS / max(float(process.communicate()[0]) for process in started)

    found = [(with_workers(2), alone(2), with_workers(1), alone(1)) for _ in range(3)]
    two, two_alone, one, one_alone = np.median(found, axis=0)
    print(f"\nfits per second: workers {one:.1f}, {two:.1f} (1, 2), processes {one_alone:.1f}, {two_alone:.1f}")
    share = np.median([a / b for a, b, _, _ in found])
    print(f"share of two lone processes: {share:.3g}")
    print(f"speed-up: two workers {two / one:.3g}, two lone processes {two_alone / one_alone:.3g}")
    assert share >= 0.85


if __name__ == "__main__":  # a lone process: ready, go, seconds
    fits = Fits(Path(sys.argv[1]))
    fits(0)
    print("ready", flush=True)
    sys.stdin.readline()
    begin = perf_counter()
    for seed in range(int(sys.argv[2])):
        fits(seed)
    print(perf_counter() - begin)

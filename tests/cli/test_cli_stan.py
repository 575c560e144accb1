"""`dpdist stan`: what is found is shown, programs are built ahead, errors have a remedy and an exit code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import invoke
from edited_text import edited
from public_files import statement_of

from dpdist.job.loading import find_job
from dpdist.sampling.toolchain import shipped_programs

SOURCE = Path(__file__).parents[1] / "sampling" / "gaussian.stan"


def dpdist(*arguments):
    return invoke("stan", *arguments)


def test_build_compiles_what_it_is_given_and_doctor_sees_it(stan_cache):
    done = dpdist("build", SOURCE, "--toolchain", "embedded")
    assert done.exit_code == 0, done.output
    name, _, path = done.stdout.strip().partition(": ")
    assert name == "gaussian"
    assert Path(path).parent == stan_cache / "stan"


def test_doctor_shows_toolchain_versions_compiler_and_cache(stan_cache):
    done = dpdist("doctor", "--toolchain", "embedded")
    assert done.exit_code == 0, done.output
    for said in ("cmdstanpy", "httpstan", "Stan 2.35.0", "g++", str(stan_cache), f"{'toolchain':<32}embedded"):
        assert said in done.stdout
    for name in shipped_programs():
        assert re.search(rf"^{name}\.stan +(not built|built)", done.stdout, re.MULTILINE)


def test_doctor_compiles_nothing_unless_asked(stan_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("DPDIST_CACHE", str(tmp_path))
    assert dpdist("doctor", "--toolchain", "embedded").exit_code == 0
    assert list((tmp_path / "stan").iterdir()) == []


@pytest.mark.long
def test_doctor_draws_from_a_small_program_when_asked(stan_cache):
    done = dpdist("doctor", "--check", "--toolchain", "embedded")
    assert done.exit_code == 0, done.output
    assert "4,000 draws in" in done.stdout


SMALL = {
    "population: 100000": "population: 3000",
    "sample: 10000": "sample: 400",
    "strata: [field]": "strata: []",
    "by: [field, sex]": "by: [sex]",
    "executor: dask": "executor: serial",
    "warmup: 500, draws: 250": "warmup: 200, draws: 100",
}


def without_a_compiler(folder, *arguments):
    """The command as in the image: a PATH that has no compiler, and the cache."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CXX", "CMDSTAN")}
    environment |= {"PATH": str(folder), "HOME": str(folder)}
    command = [sys.executable, "-m", "dpdist", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.long
def test_a_stan_job_runs_without_a_compiler_by_programs_built_before(stan_cache, tmp_path):
    assert dpdist("build", "lognormal", "--toolchain", "embedded").exit_code == 0
    text = find_job("doctorates_stan").read_text()
    text = edited(text, *SMALL.items())
    (tmp_path / "job.yaml").write_text(text)
    done = without_a_compiler(tmp_path, "run", tmp_path / "job.yaml", "-w", tmp_path / "work", "-q")
    assert done.returncode == 0, done.stderr
    said = statement_of(tmp_path / "work")
    assert said["sampler"]["toolchain"] == "embedded"
    told = without_a_compiler(tmp_path, "stan", "doctor")
    assert told.returncode == 0, told.stderr
    assert re.search(r"embedded .*no C\+\+ compiler: only programs that g\+\+ .* built", told.stdout)
    assert re.search(r"lognormal.stan +built", told.stdout)


def test_doctor_shows_what_it_can_where_nothing_works(stan_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DPDIST_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CMDSTAN", raising=False)
    done = dpdist("doctor")
    assert done.exit_code == 2
    assert "no C++ compiler" in done.stdout
    assert "apt-get install g++" in done.stderr


@pytest.mark.parametrize("arguments", [("build", "nowhere"), ("build", SOURCE, "--toolchain", "gcc")])
def test_mistakes_are_exit_2_with_a_remedy(stan_cache, arguments):
    done = dpdist(*arguments)
    assert done.exit_code == 2
    assert "remedy:" in done.stderr

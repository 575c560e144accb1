"""`dpdist stan`: what is found is shown, programs are built ahead, errors have a remedy and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpdist.cli import app

SOURCE = Path(__file__).parent / "sampling" / "gaussian.stan"


def dpdist(*arguments):
    return CliRunner().invoke(app, ["stan", *map(str, arguments)])


def test_build_compiles_what_it_is_given_and_doctor_sees_it(stan_cache):
    done = dpdist("build", SOURCE, "--toolchain", "embedded")
    assert done.exit_code == 0, done.output
    name, _, path = done.stdout.strip().partition(": ")
    assert name == "gaussian"
    assert Path(path).parent == stan_cache / "stan"


def test_doctor_shows_toolchain_versions_compiler_and_cache(stan_cache):
    done = dpdist("doctor", "--toolchain", "embedded")
    assert done.exit_code == 0, done.output
    for said in ("cmdstanpy", "httpstan", "Stan 2.35.0", "g++", str(stan_cache), "toolchain         embedded"):
        assert said in done.stdout


def test_doctor_compiles_nothing_unless_asked(stan_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("DPDIST_CACHE", str(tmp_path))
    assert dpdist("doctor", "--toolchain", "embedded").exit_code == 0
    assert list((tmp_path / "stan").iterdir()) == []


def test_doctor_draws_from_a_small_program_when_asked(stan_cache):
    done = dpdist("doctor", "--check", "--toolchain", "embedded")
    assert done.exit_code == 0, done.output
    assert "4,000 draws in" in done.stdout


def test_doctor_shows_what_it_can_where_nothing_works(stan_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
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

"""The toolchain: compiled once, made again when anything changed or is damaged, and errors that say what is missing."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from importlib import util
from pathlib import Path

import pytest
from filelock import FileLock

from dpdist.core.errors import ProgramError, ToolchainError
from dpdist.sampling import toolchain
from dpdist.sampling.toolchain import cached_build, executable, find_program, find_toolchain

SOURCE = Path(__file__).with_name("gaussian.stan")


@pytest.fixture
def compiler(program, tmp_path, monkeypatch):
    """A compiler that writes down what it is asked for and delivers a program made before; a cache of its own."""
    log, script = tmp_path / "compiled", tmp_path / "cxx"
    log.touch()
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && {{ echo recording 1; exit; }}\necho "$@" >> {log}\n'
        f'while [ "$1" != -o ]; do shift; done\nsleep 0.2; cp {program.path} "$2"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("DPDIST_CACHE", str(tmp_path / "cache"))
    toolchain.first_line.cache_clear()
    yield lambda: sum("-x c++" in line for line in log.read_text().splitlines())
    toolchain.first_line.cache_clear()


@pytest.fixture
def source(tmp_path):
    return Path(shutil.copy(SOURCE, tmp_path / "gaussian.stan"))


def test_a_program_is_compiled_once_and_says_so(compiler, source):
    notes = []
    made = executable(source, "embedded", lambda event: notes.append(event.note))
    assert executable(source, "embedded", lambda event: notes.append(event.note)) == made
    assert compiler() == 1
    assert notes == ["compiling gaussian.stan, once, about 20 s", "compiling the Stan driver, once, about 30 s"]
    assert (made.program, find_toolchain("embedded").version) == ("gaussian", "2.35.0")
    assert sorted(p.suffix for p in made.path.parent.iterdir() if ".part" in p.name) == []


def test_the_driver_is_shared_by_programs(compiler, source, tmp_path):
    executable(source, "embedded")
    other = Path(shutil.copy(source, tmp_path / "other.stan"))
    notes = []
    executable(other, "embedded", lambda event: notes.append(event.note))
    assert notes == ["compiling other.stan, once, about 20 s"]


def test_a_changed_program_is_another(compiler, source):
    before = executable(source, "embedded")
    source.write_text(SOURCE.read_text() + "\n// changed\n")
    assert executable(source, "embedded").path != before.path
    assert compiler() == 2


def test_an_included_file_counts_as_part_of_the_program(compiler, tmp_path):
    source, part = tmp_path / "p.stan", tmp_path / "part.stan"
    source.write_text("#include part.stan\nparameters { real x; }\nmodel { target += f(x); }\n")
    part.write_text("functions { real f(real x) { return -x^2; } }\n")
    executable(source, "embedded")
    part.write_text("functions { real f(real x) { return -2 * x^2; } }\n")
    executable(source, "embedded")
    assert compiler() == 2


def test_a_damaged_executable_is_made_again(compiler, source):
    made = executable(source, "embedded").path
    whole = made.read_bytes()
    made.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    assert executable(source, "embedded").path == made
    assert made.read_bytes() == whole
    made.unlink()
    executable(source, "embedded")
    assert compiler() == 3


def test_a_moved_package_is_noticed(compiler, source, tmp_path, monkeypatch):
    before = executable(source, "embedded")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    (moved / "httpstan").symlink_to(Path(util.find_spec("httpstan").origin).parent)
    monkeypatch.syspath_prepend(moved)
    assert executable(source, "embedded").path != before.path
    assert compiler() == 2


def test_another_compiler_is_noticed(compiler, source, tmp_path):
    executable(source, "embedded")
    script = tmp_path / "cxx"
    script.write_text(script.read_text().replace("recording 1", "recording 2"))
    toolchain.first_line.cache_clear()
    executable(source, "embedded")
    assert compiler() == 2


def _make(source):
    return str(executable(source, "embedded").path)


def test_processes_that_want_the_same_program_compile_it_once(compiler, source):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert len(set(pool.map(_make, [source] * 3))) == 1
    assert compiler() == 1


def test_what_a_killed_process_left_is_cleared(compiler, source):
    path = toolchain.cached_path(source, find_toolchain("embedded"))
    stale = path.with_name(path.name + ".part")
    stale.mkdir(parents=True)
    (stale / "model.o").write_text("half")
    executable(source, "embedded")
    assert not stale.exists()


def test_a_failed_build_leaves_nothing(tmp_path):
    def build(folder):
        (folder / "x").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cached_build(tmp_path / "made", build)
    assert [path.name for path in tmp_path.iterdir()] == ["made.lock"]


def test_compiles_wait_for_memory(compiler, source, monkeypatch):
    monkeypatch.setattr(toolchain, "available_memory", lambda: 4 * 2**30)
    assert toolchain.compiles_at_once() == 1
    waited = []
    with FileLock(toolchain.cache_folder() / "turn-0.lock") as lock:
        monkeypatch.setattr(time, "sleep", lambda seconds: (waited.append(seconds), lock.release()))
        executable(source, "embedded")
    assert waited


def test_memory_is_known():
    assert 2**20 < toolchain.available_memory() < 2**63


def test_a_program_that_does_not_compile_tells_stans_message_and_line(compiler, tmp_path):
    bad = tmp_path / "bad.stan"
    bad.write_text("parameters {\n  real x;\n}\nmodel {\n  x ~ normal(0, y);\n}\n")
    with pytest.raises(ProgramError) as caught:
        executable(bad, "embedded")
    assert "'bad.stan', line 5, column 16" in str(caught.value)
    assert "Identifier 'y' not in scope" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert compiler() == 0


def test_a_missing_include_is_told_by_stan(compiler, tmp_path):
    bad = tmp_path / "bad.stan"
    bad.write_text("#include nowhere.stan\nparameters { real x; }\n")
    with pytest.raises(ProgramError, match=r"(?s)'bad\.stan', line 1.*nowhere\.stan"):
        executable(bad, "embedded")


def test_a_compiler_that_fails_is_quoted(compiler, source, tmp_path):
    (tmp_path / "cxx").write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "no room for templates" >&2; exit 1; }\n')
    with pytest.raises(ToolchainError, match="no room for templates"):
        executable(source, "embedded")
    (tmp_path / "cxx").write_text('#!/bin/sh\n[ "$1" = --version ] || kill -9 $$\n')
    with pytest.raises(ToolchainError, match="3 GB of free memory"):
        executable(source, "embedded")


@pytest.fixture
def taken_away(compiler, monkeypatch, tmp_path):
    """Called, there is no compiler any more."""
    (tmp_path / "bin").mkdir()

    def take() -> None:
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        monkeypatch.delenv("CXX")

    return take


def test_no_compiler(taken_away):
    taken_away()
    with pytest.raises(ToolchainError, match="apt-get install g\\+\\+"):
        find_toolchain("embedded")


def test_programs_built_before_need_no_compiler(compiler, source, taken_away):
    made = executable(source, "embedded")
    taken_away()
    notes = []
    assert executable(source, "embedded", lambda event: notes.append(event.note)) == made
    assert toolchain.check_program(source, "embedded")["parameters"]
    assert notes == []
    assert "no C++ compiler: only programs that recording 1 has built" in find_toolchain("embedded").description


@pytest.mark.parametrize("ask", [executable, toolchain.check_program])
def test_other_programs_are_refused_without_one_and_leave_nothing(compiler, source, taken_away, ask):
    executable(source, "embedded")
    taken_away()
    before = sorted(os.listdir(toolchain.cache_folder()))
    source.write_text(SOURCE.read_text() + "\n// changed\n")
    with pytest.raises(ToolchainError, match=r"(?s)no C\+\+ compiler.*gaussian\.stan.*dpdist stan build"):
        ask(source, "embedded")
    assert sorted(os.listdir(toolchain.cache_folder())) == before
    source.write_text("parameters { real x }\n")
    with pytest.raises(ProgramError, match="line 1"):
        ask(source, "embedded")


def test_a_damaged_program_is_not_run_without_one(compiler, source, taken_away):
    made = executable(source, "embedded").path
    taken_away()
    made.write_bytes(made.read_bytes()[:-1])
    with pytest.raises(ToolchainError, match=r"no C\+\+ compiler"):
        executable(source, "embedded")


def test_the_last_compiler_is_the_one_that_is_recorded(compiler, source, taken_away, tmp_path):
    executable(source, "embedded")
    script = tmp_path / "cxx"
    script.write_text(script.read_text().replace("recording 1", "recording 2"))
    toolchain.first_line.cache_clear()
    second = executable(source, "embedded")
    taken_away()
    assert executable(source, "embedded") == second


@pytest.mark.parametrize(
    ("system", "machine", "remedy"),
    [("Linux", "x86_64", "pip install 'dpdist\\[stan\\]'"), ("Linux", "aarch64", "install_cmdstan\\(\\)")],
)
def test_no_httpstan(monkeypatch, system, machine, remedy):
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    monkeypatch.setattr(toolchain.platform, "system", lambda: system)
    monkeypatch.setattr(toolchain.platform, "machine", lambda: machine)
    with pytest.raises(ToolchainError, match=remedy):
        find_toolchain("embedded")


def test_without_the_extra_everything_else_still_imports():
    hidden = "import sys; sys.modules.update(dict.fromkeys(['cmdstanpy', 'stanio', 'httpstan', 'arviz', 'platformdirs']))\n"
    script = hidden + "import dpdist.cli.main\nfrom dpdist.sampling.toolchain import executable\nexecutable(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", script, str(SOURCE)], capture_output=True, text=True, check=False)
    assert "ToolchainError: stan: cmdstanpy is not installed" in done.stderr
    assert "pip install 'dpdist[stan]'" in done.stderr


def test_unknown_names_are_refused_with_what_is_known(tmp_path):
    with pytest.raises(ToolchainError, match="auto, cmdstan, embedded"):
        find_toolchain("cmdstn")
    for name in (tmp_path / "nowhere.stan", "nowhere", tmp_path):
        with pytest.raises(ProgramError, match="no such Stan program"):
            find_program(name)


def test_a_cache_that_cannot_be_made_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DPDIST_CACHE", str(tmp_path / "file"))
    with pytest.raises(ToolchainError, match="DPDIST_CACHE"):
        toolchain.cache_folder()


@pytest.fixture
def cmdstan(program, tmp_path, monkeypatch):
    """A CmdStan whose make writes down what it is asked for and delivers a program made before."""
    folder = tmp_path / "cmdstan-2.35.0"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "stanc").symlink_to(find_toolchain("embedded").stanc)
    (folder / "makefile").write_text("CMDSTAN_VERSION := 2.35.0\n")
    make = folder / "make.sh"
    make.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\nfor last; do :; done\ncp {program.path} "$last"\n')
    make.chmod(0o755)
    monkeypatch.setenv("CMDSTAN", str(folder))
    monkeypatch.setenv("MAKE", str(make))
    monkeypatch.setenv("DPDIST_CACHE", str(tmp_path / "cache"))
    return folder


def test_the_users_cmdstan_goes_first_and_nothing_is_written_beside_the_program(cmdstan, source):
    before = sorted(os.listdir(source.parent))
    made = executable(source)
    assert (find_toolchain("cmdstan").name, find_toolchain("cmdstan").version) == ("cmdstan", "2.35.0")
    assert executable(source, "cmdstan") == made
    (asked,) = (cmdstan / "asked").read_text().splitlines()
    assert "STAN_THREADS=TRUE" in asked
    assert "guard.hpp" in asked
    assert set(os.listdir(source.parent)) - set(before) <= {"cache"}
    assert find_toolchain("embedded").name == "embedded"


def test_a_program_that_the_users_cmdstan_refuses(cmdstan, tmp_path):
    bad = tmp_path / "bad.stan"
    bad.write_text("parameters { real x }\n")
    with pytest.raises(ProgramError, match=r"'bad\.stan', line 1"):
        executable(bad)


def test_no_cmdstan(monkeypatch, tmp_path):
    monkeypatch.delenv("CMDSTAN", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ToolchainError, match="install_cmdstan"):
        find_toolchain("cmdstan")


@pytest.mark.system
def test_without_cmdstan_the_embedded_toolchain_is_taken(monkeypatch, tmp_path):
    """It needs a C++ compiler."""
    monkeypatch.delenv("CMDSTAN", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_toolchain("auto").name == "embedded"

"""Shared by all tests: where real survey files are, a small survey that tests vary, and compiled Stan programs."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fractions import Fraction
from functools import cache
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from object_server import ObjectServer
from typer import testing

from dpdist.approval import holding
from dpdist.core.this_process import single_threaded
from dpdist.job import NoiseName
from dpdist.privacy.noise import simulated_noise

hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fixed")
"""Every test of a property sees the same examples each time, however slow the machine."""


SYSTEM = "system"
"""The mark of tests that need a program which no Python package brings."""
COMPILED = "stan_cache"
"""The fixture that compiles Stan programs, for which a test needs a C++ compiler."""


gc.disable()


def pytest_collection_finish() -> None:
    """Collects garbage from here on: modules and tests that were imported stay, and no pass over them finds anything."""
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under `-m quick` a file that does not have the word is not read: a signal comes before all tests are collected."""
    if config.option.markexpr != "quick" or collection_path.suffix != ".py":
        return None
    return None if "quick" in collection_path.read_text(encoding="utf-8") else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what compiles, and leaves out what this machine cannot run.

    Tests on real files run where DPDIST_DATA points to them, those on namespaces where those may be made, those on other
    users where one can become another. Elsewhere they are deselected, and counted as such.
    """
    for item in items:
        if COMPILED in getattr(item, "fixturenames", ()) or item.get_closest_marker("namespaces"):
            item.add_marker(SYSTEM)
    out = {"real_data"} if not os.environ.get("DPDIST_DATA") else set()
    out |= {"namespaces"} if os.geteuid() != 0 or not shutil.which("ip") else set()
    out |= {"other_users"} if os.geteuid() != 0 else set()
    left = [item for item in items if any(item.get_closest_marker(name) for name in out)]
    items[:] = [item for item in items if item not in left]
    if left:
        config.hook.pytest_deselected(items=left)


LEFT_OUT = pytest.StashKey[dict[str, int]]()
"""How many tests were deselected, by mark."""


@pytest.hookimpl(trylast=True)
def pytest_deselected(items: list[pytest.Item]) -> None:
    """Counts what is left out, so that nothing is left out silently. A process of `-n` hands its counts to the first."""
    for config in {item.config for item in items}:
        counts = config.stash.setdefault(LEFT_OUT, dict.fromkeys((SYSTEM, "long", "slow", "real_data"), 0))
        for item in items:
            marks = getattr(item, "iter_markers", tuple)()  # what pytest-testmon leaves out unread has none
            for mark in counts.keys() & {marker.name for marker in marks}:
                counts[mark] += 1
        if hasattr(config, "workeroutput"):
            config.workeroutput["left_out"] = counts


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Takes the counts of a process of `-n`; every process collects the same tests."""
    counts = getattr(node, "workeroutput", {}).get("left_out")
    if counts is not None:
        node.config.stash[LEFT_OUT] = counts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = {mark: count for mark, count in config.stash.get(LEFT_OUT, {}).items() if count}
    if counts:
        listed = ", ".join(f"{count} {mark}" for mark, count in counts.items())
        terminalreporter.write_line(f"left out by their marks: {listed} (a test can have several; docs/architecture.md)")


os.environ.pop("DPDIST_LEDGER", None)  # what tests release is counted where they say so, not in anybody's own ledger


@contextmanager
def _keys_of(name: str) -> Iterator[None]:
    """Root keys follow from the name instead of the operating system's entropy: a test sees the same draws every day."""
    numbers = itertools.count()

    def token_bytes(size: int) -> bytes:
        return hashlib.blake2b(f"{name} {next(numbers)}".encode(), digest_size=size).digest()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpdist.core.keys.secrets.token_bytes", token_bytes)
        yield


@pytest.fixture(scope="session")
def keys_of() -> Callable[[str], AbstractContextManager[None]]:
    """`with keys_of(name)`: the same root keys for what is released twice."""
    return _keys_of


@contextmanager
def _noise_of(name: str) -> Iterator[None]:
    """OpenDP's draws, which cannot be seeded, follow from the name instead, by the laws that studies simulate.

    All else is as in a release: its scale, its size, that it is kept (tests/privacy/test_noise.py).
    """
    numbers = itertools.count()

    def maker_of(law: NoiseName) -> Callable[..., Callable[[list[int]], list[int]]]:
        def make(*_: object, scale: float) -> Callable[[list[int]], list[int]]:
            def measurement(values: list[int]) -> list[int]:
                digest = hashlib.blake2b(f"{name} {next(numbers)}".encode(), digest_size=16).digest()
                rng = np.random.default_rng(int.from_bytes(digest, "little"))
                noise = simulated_noise(law, Fraction(scale), len(values), rng)
                return (np.array(values, dtype=np.int64) + noise.astype(np.int64)).tolist()

            return measurement

        return make

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("opendp.measurements.make_laplace", maker_of("laplace"))
        patch.setattr("opendp.measurements.make_gaussian", maker_of("gaussian"))
        yield


@pytest.fixture(scope="session")
def noise_of() -> Callable[[str], AbstractContextManager[None]]:
    """`with noise_of(name)`: the same noise every day, for limits on what a release errs by: no chance is left in them."""
    return _noise_of


@pytest.fixture(scope="module", autouse=True)
def no_release_is_held_by_chance(request: pytest.FixtureRequest) -> Iterator[None]:
    """A verdict holds some releases by chance, and a test that reads a release needs one.

    It is made in modules that say JUDGED = True, and decides in those that say HOLDING = True. Other processes are as they
    are.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "HOLDING", False):
            made = holding.verdict_refuses if getattr(request.module, "JUDGED", False) else lambda _: False
            patch.setattr(holding, "verdict_refuses", lambda space: made(space) and False)
        yield


@pytest.fixture(scope="module", autouse=True)
def few_records_are_released(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs in modules that say FEW_RECORDS = True: they read no figure, or ask what holds under any noise."""
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request.module, "FEW_RECORDS", False):
            patch.setattr("dpdist.planning.making.FEWEST_OVER_SCALE", 0.0)
        yield


@contextmanager
def _same_draws(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that passes today passes tomorrow. Modules that test OpenDP's own noise say OWN_NOISE = True."""
    own = getattr(request.module, "OWN_NOISE", False)
    with _keys_of(request.node.nodeid), nullcontext() if own else _noise_of(request.node.nodeid):
        yield


@pytest.fixture(scope="module", autouse=True)
def _draws_of_the_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """For what fixtures of a module release."""
    with _same_draws(request):
        yield


@pytest.fixture(autouse=True)
def _draws_of_the_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """For what a test releases itself, whichever tests ran before it."""
    with _same_draws(request):
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_command_line() -> Iterator[None]:
    """Commands and their options are made once, as in a process of the command line, and not at every invocation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", cache(testing._get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Linear algebra of tests has one thread: threads of small matrices wait for each other, and for tests beside them.

    Tests of what a run does to threads give themselves two. Programs that tests start have as many as anybody's.
    """
    with single_threaded():
        yield


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of real survey files; a file that is missing there is a failure, not a skip."""
    return Path(os.environ["DPDIST_DATA"])


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the files that small jobs name; tests change none of them."""
    from small_runs import write_inputs  # few tests need it

    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """An S3 server of this session."""
    server = ObjectServer(tmp_path_factory.mktemp("s3"))
    yield server
    server.close()


@pytest.fixture(scope="session", autouse=True)
def _disk_that_does_not_wait() -> Iterator[None]:
    """No test cuts the power, and what a killed process wrote is with the kernel: a release would wait 50 times for a disk.

    What must be synced, and when, is held by tests/publish/test_public_folder.py, which counts the calls.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _stan_built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """Compiles the shipped programs beside the first tests, if any test needs one; whoever needs a program waits for it."""
    if not any("stan_cache" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    session = tmp_path_factory.getbasetemp()  # of one process of several, under -n: they share what they compile
    session = session.parent if "PYTEST_XDIST_WORKER" in os.environ else session
    folder = Path(os.environ.get("DPDIST_CACHE") or session / "stan-cache")
    command = ["nice", "-n", "10", sys.executable, "-m", "dpdist", "stan", "build"]
    environment = {**os.environ, "DPDIST_CACHE": str(folder)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, start_new_session=True, **quiet) as building:
        yield folder
        if building.poll() is None:
            os.killpg(building.pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def stan_cache(_stan_built: Path) -> Iterator[Path]:
    """Cache folder of compiled Stan programs, of this session unless DPDIST_CACHE names one; never the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPDIST_CACHE", str(_stan_built))
        yield _stan_built

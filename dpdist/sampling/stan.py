"""Compiled Stan programs, run through cmdstanpy: NUTS, generated quantities, log densities.

Draws depend on program, data, settings and seed, but not on threads. Each run has a folder of its own in the given
folder, which is removed after its results are read. If this process is killed, its Stan processes end too. Its folder
then remains until the given folder is cleared.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpdist.core.errors import StanError
from dpdist.core.records import Floats
from dpdist.sampling.toolchain import Executable, cmdstanpy, variables

_EXACT = 17
"""Number of significant digits from which every double can be restored exactly."""
_THREADS = "STAN_NUM_THREADS"
MAX_TREEDEPTH, INIT_RADIUS = 10, 2.0
"""Stan's defaults: the largest depth of a trajectory's tree, and the range of starts on the unconstrained scale."""


@dataclass(frozen=True)
class StanSettings:
    """Settings of a fit; `warmup` and `draws` are for each chain."""

    chains: int = 4
    warmup: int = 1000
    draws: int = 1000
    adapt_delta: float = 0.8


@dataclass(frozen=True)
class Chains:
    """The results of a fit. `draws[name]` is (chain, draw, …); sampler statistics are (chain, draw).

    Names are in the program's order: parameters, transformed parameters, generated quantities.
    """

    draws: Mapping[str, Floats]
    lp: Floats
    energy: Floats
    divergent: np.ndarray[Any, np.dtype[np.bool_]]
    treedepth: np.ndarray[Any, np.dtype[np.int64]]


def fit(
    executable: Executable,
    data: Mapping[str, Any],
    settings: StanSettings,
    seed: int,
    folder: Path,
    first_id: int = 1,
) -> Chains:
    """Posterior draws of a program, given its data. Raises `StanError` if Stan fails.

    `seed` is in [0, 2³²). `first_id`, in [1, 2³¹), is the first chain's number. A chain's random numbers depend on its seed
    and number.
    """
    model = cmdstanpy().CmdStanModel(exe_file=executable.path)
    with _private(folder, executable) as private, _environment_kept():
        run = model.sample(
            data=str(_write_data(private, data)),
            chains=settings.chains,
            chain_ids=first_id,
            parallel_chains=1,
            threads_per_chain=1,
            seed=seed,
            inits=INIT_RADIUS,
            iter_warmup=settings.warmup,
            iter_sampling=settings.draws,
            metric="diag_e",
            adapt_delta=settings.adapt_delta,
            max_treedepth=MAX_TREEDEPTH,
            output_dir=private,
            sig_figs=_EXACT,
            refresh=settings.warmup + settings.draws,
            show_progress=False,
        )
        rows = np.ascontiguousarray(run.draws().transpose(1, 0, 2))
        columns = run.metadata.method_vars

        def statistic(name: str) -> Any:
            return columns[name].extract_reshape(rows) if name in columns else np.zeros(rows.shape[:2])

        return Chains(
            {name: variable.extract_reshape(rows) for name, variable in run.metadata.stan_vars.items()},
            statistic("lp__"),
            statistic("energy__"),
            statistic("divergent__") > 0,
            statistic("treedepth__").astype(np.int64),
        )


def generate(
    executable: Executable, data: Mapping[str, Any], draws: Mapping[str, Floats], seed: int, folder: Path
) -> dict[str, Floats]:
    """Generated quantities at given draws of all parameters, `draws[name]` (chain, draw, …); results have the same form."""
    with _private(folder, executable) as private:
        shape = next(iter(draws.values())).shape[:2]
        flat = {name: np.asarray(values).reshape(-1, *np.shape(values)[2:]) for name, values in draws.items()}
        _write_draws(private / "draws.csv", flat)
        generated = _method(
            executable, private, data, seed, "generate_quantities", f"fitted_params={private / 'draws.csv'}"
        )
        return {name: values.reshape(*shape, *values.shape[1:]) for name, values in generated.items()}


def log_density(
    executable: Executable,
    data: Mapping[str, Any],
    draws: Mapping[str, Floats],
    folder: Path,
    jacobian: bool = False,
) -> Floats:
    """Stan's log density at parameters `draws[name]` (point, …): (point,).

    As in sampling, `~` statements drop constants and `target +=` keeps them. With `jacobian` it is the density of the
    unconstrained parameters.
    """
    with _private(folder, executable) as private:
        _write_draws(private / "points.csv", draws)
        points = f"constrained_params={private / 'points.csv'}"
        return _method(executable, private, data, 1, "log_prob", points, f"jacobian={int(jacobian)}")["lp__"]


def seed_of(seed: int, attempt: int) -> int:
    """The seed of an attempt, from 0. The first attempt has the seed itself."""
    return seed if attempt == 0 else int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0])


def _method(
    executable: Executable, folder: Path, data: Mapping[str, Any], seed: int, method: str, *arguments: str
) -> dict[str, Floats]:
    """Runs a method that writes one file, and returns its columns by variable, (row, …)."""
    output = folder / "output.csv"
    command = [str(executable.path), f"method={method}", *arguments, "random", f"seed={seed}"]
    command += ["data", f"file={_write_data(folder, data)}", "output", f"file={output}", f"sig_figs={_EXACT}"]
    with (folder / "console-stdout.txt").open("w") as console:
        environment = {**os.environ, _THREADS: "1"}
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=environment, check=True)
    lines = [line for line in output.read_text().splitlines() if line and not line.startswith("#")]
    rows = np.loadtxt(lines[1:], delimiter=",", ndmin=2)
    return {name: variable.extract_reshape(rows) for name, variable in variables(lines[0]).items()}


@contextmanager
def _private(folder: Path, executable: Executable) -> Iterator[Path]:
    """A private folder for one run. An error in the block becomes a `StanError` with Stan's message."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    private = Path(tempfile.mkdtemp(prefix="stan-", dir=folder))
    try:
        yield private
    except (RuntimeError, ValueError, subprocess.CalledProcessError):
        if not any(private.glob("*.txt")):  # no run has begun
            raise
        remedy = "check the program and its data; a bad start is repeated up to `attempts` times"
        console = "\n".join(path.read_text(errors="replace") for path in sorted(private.glob("*.txt")))
        raise StanError(executable.program, message(console), remedy) from None
    finally:
        shutil.rmtree(private, ignore_errors=True)


@contextmanager
def _environment_kept() -> Iterator[None]:
    """Restores this process's environment, in which cmdstanpy sets the number of threads for its child processes."""
    before = os.environ.get(_THREADS)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_THREADS, None)
        else:
            os.environ[_THREADS] = before


def message(console: str) -> str:
    """The end of Stan's message, without numbers that may come from data.

    Numbers of lines, columns and indices stay.
    """
    lines = [line.strip() for line in console.splitlines()]
    lines = [
        line for line in lines if line and not line.startswith(("Iteration", "Chain [")) and "did not finish" not in line
    ]
    if not lines:
        return "its process ended without a message (killed, or out of memory)"
    text = re.sub(r"'[^'\n]*/([^'/\n]+)'|\S*/(\S+)", r"'\1\2'", "\n".join(dict.fromkeys(lines[-8:])))
    place, word = r"(?:line|column) \d+|\w+\[\d+(?:, ?\d+)*\]|'[^'\n]*\.stan'", r"[^\W\d]+(?!\w)"
    number = r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?"
    return re.sub(rf"({place}|{word})|{number}", lambda match: match[1] or "…", text)


def _write_data(folder: Path, data: Mapping[str, Any]) -> Path:
    path = folder / "data.json"
    cmdstanpy().write_stan_json(str(path), dict(data))
    return path


def _write_draws(path: Path, draws: Mapping[str, Floats]) -> None:
    """Writes draws, (draw, …) each, as a Stan CSV file, with the first index fastest among columns."""
    names, columns = list[str](), list[Floats]()
    for name, values in draws.items():
        values = np.asarray(values, dtype=np.float64)
        shape = values.shape[1:]
        names += [".".join((name, *(str(i + 1) for i in reversed(index)))) for index in np.ndindex(*reversed(shape))]
        columns.append(values.reshape(len(values), -1, order="F"))
    np.savetxt(path, np.hstack(columns), fmt=f"%.{_EXACT}g", delimiter=",", header=",".join(names), comments="")

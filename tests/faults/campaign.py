"""Releases to disturb, and the means: kill, starve, watch. Run as a program it is the fork server at the end."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

PATIENCE = 120.0
"""Seconds after which a condition that was waited for counts as never coming: a hang, not a speed."""

JOB = """
dataset: units
period: "2020"
input: {{path: {path}}}
columns:
  unit: {{levels: [{units}]}}
  sex: {{levels: [male, female]}}
  salary: {{bounds: [0, 1000000]}}
survey: {{weight: weight, design_strata: [unit]}}
strata: [unit]
outcome: salary
model: {{family: lognormal, predictors: [sex]}}
mechanism: {{name: weighted, fallback: {fallback}}}
budget: {{epsilon: "{epsilon}"}}
sampler: {{draws: {draws}}}
tables:
  - {{name: salaries, by: [sex], statistics: [count, {{mean: salary}}]}}
compare: [laplace]
publish: {publish}
record: {{log_lik: {log_lik}}}
runtime: {{{runtime}}}
"""


@dataclass(frozen=True)
class Survey:
    """A file of units (strata) of given sizes, and jobs that release it."""

    folder: Path
    sizes: tuple[int, ...]
    draws: int
    log_lik: str = "always"
    epsilon: str = "10.8"
    fallback: str = "refuse"
    publish: str = "always"
    """A replay, which most campaigns compare with, is never held on a verdict."""

    def input(self, seed: int = 1) -> Path:
        path = self.folder / f"units-{seed}.parquet"
        if not path.exists():
            rng, n = np.random.default_rng(seed), sum(self.sizes)
            weight = np.exp(rng.normal(3.0, 0.3, n))
            sex = rng.integers(0, 2, n)
            outcome = np.exp(10.8 - 0.1 * sex + 0.4 * rng.normal(size=n))
            unit = np.repeat(np.array(self.units, dtype=object), self.sizes)
            columns = {"unit": unit, "sex": np.where(sex == 0, "male", "female"), "salary": outcome, "weight": weight}
            pq.write_table(pa.table(columns), path)
        return path

    @property
    def units(self) -> list[str]:
        return [f"u{k:03d}" for k in range(len(self.sizes))]

    def job(self, executor: str = "serial", **runtime: object) -> Path:
        """A job file; the runtime is no part of what a job is."""
        said = ", ".join(f"{name}: {value}" for name, value in {"executor": executor, **runtime}.items())
        shown = {name: getattr(self, name) for name in ("draws", "log_lik", "epsilon", "fallback", "publish")}
        text = JOB.format(path=self.input(), units=", ".join(self.units), runtime=said, **shown)
        path = self.folder / f"job-{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"
        path.write_text(text)
        return path


class Ended(NamedTuple):
    """How a command ended: its exit code (−9 for SIGKILL) and all that it printed."""

    code: int
    text: str

    @property
    def clear(self) -> bool:
        """True unless the command lost its head: a traceback, an internal error, silence, or death by a fault."""
        lost = ("Traceback", "internal error", "Logging error", "Error:")
        return self.code >= 0 and bool(self.text.strip()) and not any(word in self.text for word in lost)


def arguments(job: Path, workspace: Path, *more: object) -> list[str]:
    return ["run", str(job), "--workspace", str(workspace), "--quiet", *map(str, more)]


class Run:
    """`python -m dpdist run …` as a process group of its own."""

    def __init__(self, job: Path, workspace: Path, *more: object, env: Mapping[str, str] | None = None) -> None:
        self.workspace = workspace
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        line = [sys.executable, "-m", "dpdist", *arguments(job, workspace, *more)]
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until the condition holds; False if the run ended before."""
        wait_until(lambda: condition() or self.process.poll() is not None)
        return self.process.poll() is None

    def family(self) -> list[psutil.Process]:
        """Every process that the run has started and that still lives."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        return workers_among(self.family())

    def kill(self) -> list[psutil.Process]:
        """SIGKILL the driver alone; returns those of its children that outlive it."""
        family = self.family()
        self.process.kill()
        self.end()
        return survivors(family)

    def end(self, patience: float = PATIENCE) -> Ended:
        code = self.process.wait(timeout=patience)
        with self._said:
            self._said.seek(0)
            return Ended(code, self._said.read().decode())


def survivors(family: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those of a family that do not end, given ample time."""
    return list(psutil.wait_procs(family, timeout=30)[1])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("what was waited for never came")
        time.sleep(0.002)


def run(
    job: Path, workspace: Path, *more: object, env: Mapping[str, str] | None = None, patience: float = PATIENCE
) -> Ended:
    return Run(job, workspace, *more, env=env).end(patience)


class Stamp(NamedTuple):
    """Tells whether a file was written again: whole-file writes make a new inode."""

    inode: int
    modified: int


def stamps(folder: Path, pattern: str) -> dict[str, Stamp]:
    """Stamps of the files that match, by path within the folder; a file that vanishes meanwhile is left out."""
    found: dict[str, Stamp] = {}
    try:
        for path in folder.glob(pattern):
            said = path.stat()
            found[path.relative_to(folder).as_posix()] = Stamp(said.st_ino, said.st_mtime_ns)
    except FileNotFoundError:
        return stamps(folder, pattern)
    return found


def strata_done(workspace: Path) -> int:
    """Completion marks of strata."""
    try:
        names = os.listdir(workspace / "confidential" / "marks")
    except FileNotFoundError:
        return 0
    return sum(name.startswith("strata-") for name in names)


def finished_strata(workspace: Path) -> dict[str, Stamp]:
    """Completion marks of strata, and what they vouch for."""
    confidential = workspace / "confidential"
    marks = stamps(confidential, "marks/strata-*.json")
    names = {Path(mark).stem for mark in marks}
    parts = stamps(confidential, "parts/strata-*/*")
    return marks | {name: stamp for name, stamp in parts.items() if name.split("/")[1] in names}


class Kept:
    """What finished strata hold, from one look to the next.

    Two workers may be given the same stratum, as when a driver is lost and the next one submits its task again. Each looks
    for the completion record before every write. If the other finishes between this look and the write, a finished file is
    written again. It has the same bytes, because these follow from the key. So stamps may change, and bytes may not.
    """

    def __init__(self, workspace: Path) -> None:
        self.workspace, self.changed, self.again = workspace, set[str](), set[str]()
        self._stamps: dict[str, Stamp] = {}
        self._held: dict[str, str] = {}

    def look(self) -> None:
        """Notes finished files that came to hold other bytes or are gone, and those that were written again."""
        found = finished_strata(self.workspace)
        self.changed |= self._stamps.keys() - found.keys()
        for name, stamp in found.items():
            if (before := self._stamps.get(name)) == stamp:
                continue
            held = hashlib.sha256((self.workspace / "confidential" / name).read_bytes()).hexdigest()
            if before is not None:
                (self.again if held == self._held[name] else self.changed).add(name)
            self._held[name] = held
        self._stamps = found


def begun_strata(workspace: Path) -> set[str]:
    """Strata that have left something but no mark: what a kill makes a run do again."""
    confidential = workspace / "confidential"
    drawn = (confidential / "posterior.zarr" / "unweighted" / "coefficients").glob("c.*")
    begun = {f"strata-{int(path.name.split('.')[3]):06d}" for path in drawn}
    begun |= {path.name for path in confidential.glob("parts/strata-*")}
    return begun - {path.stem for path in confidential.glob("marks/strata-*.json")}


OF_A_REPLAY = {"public/NOT_FOR_PUBLICATION.txt", "confidential/replay"}
"""What a replay leaves beside the files of the run that it repeats."""


def public_bytes(workspace: Path) -> dict[str, str]:
    """Checksums of what the manifest names, and of the manifest."""
    public = workspace / "public"
    files = sorted(path for path in public.rglob("*") if path.is_file() and f"public/{path.name}" not in OF_A_REPLAY)
    return {path.relative_to(public).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def inventory(workspace: Path) -> set[str]:
    """Every path of a workspace, the marks of a replay aside."""
    return {path.relative_to(workspace).as_posix() for path in workspace.rglob("*")} - OF_A_REPLAY


def workers_among(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that are workers of Dask: of a cluster on this machine, or of `dpdist cluster worker`."""
    programs = ("worker_process", "spawn_main")
    return [process for process in processes if any(program in " ".join(command(process)) for program in programs)]


def command(process: psutil.Process) -> list[str]:
    """How a process was called; nothing once it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


# A process that has dpdist imported and forks for every command: a command costs no import, and whatever is done to it
# (death at a chosen file operation, a file size limit, small blocks) is done to a process of its own.


class Server:
    """Runs commands in forks of one process, one at a time."""

    def __init__(self) -> None:
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._folder = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **one_thread},
        )

    def __call__(
        self,
        *command: object,
        die_at: int | str | None = None,
        file_limit: int | None = None,
        constants: Mapping[str, int] | None = None,
        same_keys: bool = False,
    ) -> Ended:
        """`dpdist COMMAND`; dies by SIGKILL before its `die_at`-th change to the file system, or the first to a path that
        contains `die_at`. With `same_keys` the numbers 1, 2, … stand for the entropy of the operating system: how many
        rounds a stratum takes, and whether it reaches its target, does not change with the day."""
        order = {
            "argv": list(map(str, command)),
            "changes": f"{self._folder.name}/changes",
            "die_at": die_at,
            "file_limit": file_limit,
            "constants": dict(constants or {}),
            "same_keys": same_keys,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return Ended(*json.loads(self._process.stdout.readline()))

    @property
    def changes(self) -> int:
        """Changes to the file system that the last command made, if it lived to tell."""
        return int(Path(f"{self._folder.name}/changes").read_text())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()


CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _serve() -> None:
    import dpdist.cli.main  # imported once, before any fork, with what its verbs import
    import dpdist.cli.report
    import dpdist.release  # noqa: F401
    from dpdist.models.numerics import tiles

    tiles.extremes(np.ones((6, 1)), np.ones((6, 1)))

    for line in sys.stdin:
        heard, said = os.pipe()
        child = os.fork()
        if child == 0:
            _obey(json.loads(line), said)
        os.close(said)
        with os.fdopen(heard) as ear:
            text = ear.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([code, text]), flush=True)


def _obey(order: dict[str, Any], said: int) -> None:
    from dpdist.cli import observing
    from dpdist.cli.main import main
    from dpdist.planning import blocks
    from dpdist.runtime import driver_memory

    os.dup2(said, 1)
    os.dup2(said, 2)
    for name, value in order["constants"].items():
        assert hasattr(blocks, name)
        setattr(blocks, name, value)
    if order["same_keys"]:
        numbers = itertools.count(1)
        secrets.token_bytes = lambda size=None: next(numbers).to_bytes(size or 32, "little")
    for module, name in ((observing, "STATUS_INTERVAL"), (driver_memory, "_INTERVAL")):
        assert hasattr(module, name)
        setattr(module, name, 3600.0)  # what is written again as time goes by: a change has the same number in every run
    changes = 0

    def watch(event: str, told: tuple[Any, ...]) -> None:
        nonlocal changes
        if event in CHANGES or (event == "open" and isinstance(told[0], str | Path) and told[2] & WRITING):
            changes += 1
            fatal = order["die_at"]
            if changes == fatal or (isinstance(fatal, str) and fatal in str(told[0])):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    if order["file_limit"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"], resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    sys.argv = ["dpdist", *order["argv"]]
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    total = changes
    sys.stdout.flush()
    sys.stderr.flush()
    if order["file_limit"] is None:
        Path(order["changes"]).write_text(str(total))
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve()

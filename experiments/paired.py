"""Pairs that a shared machine does not spoil: arms take turns, several times, and ratios are taken within each turn.

    python experiments/paired.py --out FOLDER [--repeats 5] [--strata 384]

Two tables and a picture, written as paired.md and profile.svg:

1. The time of a stratum: in a process alone, beside an unrelated process, on one worker, on two workers. Every process does
   as much; its first task is left out. Processor time stands beside it; the rest is waiting.
2. Where that time goes, by profile, alone and beside an unrelated process.
"""

from __future__ import annotations

import argparse
import cProfile
import multiprocessing
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

import psutil
from crowd import spread
from matplotlib.figure import Figure
from scaling import DRAWS, RECORDS, Protected, Survey, Watch

import dpdist
from dpdist.core.progress import Event
from dpdist.job.loading import load_job

KINDS = {
    "storage": (
        "fsync",
        "open",
        "rename",
        "replace",
        "link",
        "stat",
        "unlink",
        "mkdir",
        "scandir",
        "write",
        "close",
        "read",
    ),
    "checksums": ("sha256", "update", "hexdigest", "openssl"),
    "Parquet and Arrow": ("pyarrow", "_parquet", "parquet"),
    "JSON": ("json",),
    "NumPy and SciPy": ("numpy", "scipy", "linalg", "random"),
}
"""Words in the names of a profile's functions, by kind; the first kind that has one is taken."""


class Spent(NamedTuple):
    """By a process on a stratum, in the mean: milliseconds, and milliseconds of processor time."""

    each: float
    processor: float


class Timed(Watch):
    """Times the tasks after each process's first, which holds its start-up, and what processor time they take."""

    def __init__(self, processes: int, processor: Callable[[], float]) -> None:
        super().__init__()
        self._processes, self._processor, self._before, self._spent = processes, processor, 0.0, 0.0

    def __call__(self, event: Event) -> None:
        if event.kind == "end" and event.stage == "protect":
            self._spent = self._processor() - self._before
        if event.kind == "task" and len(self.tasks) == self._processes - 1:
            self._before = self._processor()
        super().__call__(event)

    @property
    def spent(self) -> Spent:
        warm = self.tasks[self._processes :]
        strata = sum(number for number, _ in warm)
        return Spent(1e3 * sum(seconds for _, seconds in warm) / strata, 1e3 * self._spent / strata)


def lone(folder: Path, strata: int, processes: int, profiled: bool = False) -> list[Any]:
    """So many processes that know nothing of each other and begin together: what each spent, or its profile."""
    survey = Survey(folder, (RECORDS,) * strata, draws=DRAWS, log_lik="never")
    survey.job()
    context = multiprocessing.get_context("spawn")
    together, told = context.Barrier(processes), context.Queue()
    running = [context.Process(target=_lone, args=(survey, k, together, told, profiled)) for k in range(processes)]
    for process in running:
        process.start()
    found = [told.get(timeout=900) for _ in running]
    for process in running:
        process.join()
    return found


def _lone(survey: Survey, number: int, together: Any, told: Any, profiled: bool) -> None:
    watch, profile = Timed(1, time.process_time), cProfile.Profile()

    def listener(event: Event) -> None:
        if (event.kind, event.stage) == ("begin", "protect"):
            together.wait()
            if profiled:
                profile.enable()
        elif (event.kind, event.stage) == ("end", "protect"):
            profile.disable()
            together.wait()
        watch(event)

    with suppress(Protected):
        dpdist.run(load_job(survey.job()), workspace=survey.folder / f"alone-{number}", listener=listener)
    told.put(_kinds(profile) if profiled else watch.spent)


def _kinds(profile: cProfile.Profile) -> dict[str, float]:
    """Own seconds of functions, by kind."""
    found = dict.fromkeys([*KINDS, "other Python"], 0.0)
    stats: Mapping[tuple[str, int, str], tuple[int, int, float, float, Any]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, name), (_, _, own, _, _) in stats.items():
        said = f"{'' if file == '~' else file} {name}"
        built_in = file == "~"
        kind = next((k for k, words in KINDS.items() if any(w in (name if k == "storage" else said) for w in words)
                     and (built_in or k != "storage")), "other Python")  # fmt: skip
        found[kind] += own
    return found


def on_workers(folder: Path, strata: int, workers: int) -> Spent:
    """What workers of a cluster on this machine spent, with so many strata for each."""
    survey = Survey(folder, (RECORDS,) * (strata * workers), draws=DRAWS, log_lik="never")
    watch = Timed(workers, _workers)
    with suppress(Protected):
        dpdist.run(load_job(survey.job("dask", workers=workers)), workspace=folder / "work", listener=watch)
    return watch.spent


def _workers() -> float:
    """Processor seconds of this process's workers so far."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "worker_process" in " ".join(process.cmdline()):
                total += sum(process.cpu_times()[:2])
    return total


ARMS: Mapping[str, Callable[[Path, int], Spent]] = {
    "one process alone": lambda folder, strata: lone(folder, strata, 1)[0],
    "two unrelated processes": lambda folder, strata: _mean(lone(folder, strata, 2)),
    "one worker": lambda folder, strata: on_workers(folder, strata, 1),
    "two workers": lambda folder, strata: on_workers(folder, strata, 2),
}


def _mean(found: Sequence[Spent]) -> Spent:
    return Spent(*(sum(column) / len(found) for column in zip(*found, strict=True)))


def turns(folder: Path, strata: int, repeats: int) -> list[dict[str, Spent]]:
    """Every arm once a turn; each turn begins with another arm."""
    found, names = [], list(ARMS)
    for k in range(repeats):
        order, turn = names[k % len(names) :] + names[: k % len(names)], dict[str, Spent]()
        for name in order:
            place = folder / f"turn-{k}-{names.index(name)}"
            place.mkdir()
            turn[name] = ARMS[name](place, strata)
            print(k, name, f"{turn[name].each:.1f} ms a stratum, processor {turn[name].processor:.1f} ms", flush=True)
        found.append(turn)
    return found


def turns_table(found: Sequence[Mapping[str, Spent]]) -> str:
    lines = [
        "| arm | ms a stratum | over alone | processor, ms | over alone | waiting |",
        "|---|---|---|---|---|---|",
    ]
    first = next(iter(ARMS))
    for name in ARMS:
        own, base = [turn[name] for turn in found], [turn[first] for turn in found]
        cells = [spread([one.each for one in own], ".1f")]
        cells += [spread([a.each / b.each for a, b in zip(own, base, strict=True)])]
        cells += [spread([one.processor for one in own], ".1f")]
        cells += [spread([a.processor / b.processor for a, b in zip(own, base, strict=True)])]
        cells += [f"{statistics.median(1 - one.processor / one.each for one in own):.0%}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def profiles(folder: Path, strata: int, out: Path) -> str:
    """Own seconds of a lone process's tasks by kind, alone and beside another, as a table and as a picture."""
    found = {}
    for name, processes in (("alone", 1), ("beside another", 2)):
        (folder / name).mkdir()
        each = lone(folder / name, strata, processes, profiled=True)
        found[name] = {kind: sum(one[kind] for one in each) / processes for kind in each[0]}
    canvas = Figure(figsize=(8, 2.4), layout="constrained")
    axes = canvas.subplots()
    left = dict.fromkeys(found, 0.0)
    for kind in found["alone"]:
        axes.barh(list(found), [found[name][kind] for name in found], left=list(left.values()), label=kind)
        left = {name: left[name] + found[name][kind] for name in found}
    axes.set(xlabel=f"own seconds under a profile, {strata} strata")
    axes.legend(frameon=False, fontsize="small", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.35))
    canvas.savefig(out / "profile.svg", metadata={"Date": None})
    lines = ["| kind | alone, s | beside another, s | over alone |", "|---|---|---|---|"]
    for kind, own in [*found["alone"].items(), ("all", sum(found["alone"].values()))]:
        other = found["beside another"].get(kind, sum(found["beside another"].values()))
        lines.append(f"| {kind} | {own:.2f} | {other:.2f} | {other / own if own else float('nan'):.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--strata", type=int, default=384)
    said = asked.parse_args()
    said.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder, parts = Path(name), list[str]()
        parts.append(turns_table(turns(folder, said.strata, said.repeats)))
        parts.append(profiles(folder, said.strata, said.out))
    note = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, medians of {said.repeats} with least and most\n"
    (said.out / "paired.md").write_text("\n".join([note, *parts]))
    print((said.out / "paired.md").read_text())


if __name__ == "__main__":
    main()

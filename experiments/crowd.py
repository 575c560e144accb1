"""Tasks a second and efficiency of one scheduler with many workers that sleep, before and after the planner cut tasks:

    python experiments/crowd.py --out FOLDER [--repeats 5] [--workers 64 256]

Tasks of 32 strata each and the planner's take turns on the same workers. The projection (deploy/capacity/simulate.py)
stands beside what was seen. It is given the cost of an empty task, which was measured just before with the same workers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

from scaling import many_workers

from dpdist.planning.blocks import STRATUM_SECONDS, cut

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy" / "capacity"))
import simulate

GROUP = 32
"""Strata of a task before the planner cut tasks for the number of workers."""
IDEAL = 20.0
"""Seconds that each sleeping worker has work for."""
A_HOST = 64
"""Sleeping workers of one process."""


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Median, least and most."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def rest(key: int) -> None:
    """A task that sleeps for the milliseconds in the last six digits of its key."""
    time.sleep(key % 1_000_000 / 1000)


class Seen(NamedTuple):
    tasks: int
    work: float
    """Seconds of sleep."""
    cost: float
    """Seconds that an empty task took just before."""
    seconds: float
    projected: float


def slept(made: Any, workers: int, tasks: Sequence[float]) -> Seen:
    """Tasks of these seconds, seen and projected."""
    began, empty = time.perf_counter(), 4 * workers
    list(made.map(rest, range(0, empty * 1_000_000, 1_000_000)))
    cost, began = (time.perf_counter() - began) / empty, time.perf_counter()
    list(made.map(rest, [k * 1_000_000 + round(1000 * seconds) for k, seconds in enumerate(tasks)]))
    seconds = time.perf_counter() - began
    cluster = simulate.Cluster(workers, scheduler=cost)
    return Seen(
        len(tasks), sum(tasks), cost, seconds, simulate.simulate([simulate.Task(s) for s in tasks], cluster).seconds
    )


def before_and_after(folder: Path, counts: Sequence[int], repeats: int) -> str:
    heads = "workers | tasks | strata a task | seconds | efficient | tasks a second | empty task, ms | projected over seen"
    lines = [f"| {heads} |", "|" + "---|" * (heads.count("|") + 1)]
    for workers in counts:
        times = [STRATUM_SECONDS] * round(IDEAL * workers / STRATUM_SECONDS)
        ways = {
            f"{GROUP} each": [range(k, min(k + GROUP, len(times))) for k in range(0, len(times), GROUP)],
            "the planner's": cut(times, workers),
        }
        found: dict[str, list[Seen]] = {name: [] for name in ways}
        with many_workers(folder / f"sleepers-{workers}", workers, A_HOST) as (made, _):
            list(made.map(rest, range(0, 2 * workers * 1_000_000, 1_000_000)))
            for k in range(repeats):
                for name in list(ways)[:: 1 if k % 2 else -1]:
                    found[name].append(slept(made, workers, [sum(times[j] for j in task) for task in ways[name]]))
                    print(workers, name, found[name][-1], flush=True)
        for name, seen in found.items():
            cells = [str(workers), name, f"{len(times) / seen[0].tasks:.0f}", spread([one.seconds for one in seen], ".1f")]
            cells += [spread([one.work / workers / one.seconds for one in seen], ".0%")]
            cells += [
                spread([one.tasks / one.seconds for one in seen], ".0f"),
                spread([1e3 * one.cost for one in seen], ".1f"),
            ]
            cells += [spread([one.projected / one.seconds for one in seen])]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--workers", type=int, nargs="+", default=[64, 256])
    said = asked.parse_args()
    said.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        text = before_and_after(Path(name), said.workers, said.repeats)
    note = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, medians of {said.repeats} with least and most"
    (said.out / "crowd.md").write_text(f"{note}\n\n{text}")
    print((said.out / "crowd.md").read_text())


if __name__ == "__main__":
    main()

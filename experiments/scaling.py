"""How a release scales, in one command; prints ratios and keeps what deploy/capacity projects from:

    python experiments/scaling.py --out FOLDER [--strata 5000] [--workers 1 2 4]

The same release on each number of workers, one after the other in one process: time of the stage that protects, against the
sum of its task times shared among the workers. Then empty tasks through a scheduler on encrypted links: processor time of
driver and scheduler per task, by number of workers and of tasks. Ratios are within one run; a quiet machine is quieter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package of this checkout

import dask
import distributed
import psutil

import dpdist
from dpdist.core.progress import Event
from dpdist.job import Runtime
from dpdist.job.loading import load_job
from dpdist.runtime.executors import executor
from dpdist.runtime.scheduler import settings
from dpdist.runtime.tls import Credentials

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
from campaign import Survey, strata_done
from cluster import Cluster

RECORDS, DRAWS = 30, 100
FILES_ALONE = 9.0
"""Files of a stratum that shares none."""
ALONE = 256
"""Strata of a release that shows how unrelated processes slow each other."""
EMPTY = ((1, 500), (1, 2000), (4, 2000), (16, 2000), (64, 2000), (64, 6000), (256, 6000))
"""Numbers of workers and of empty tasks."""


class Measured(NamedTuple):
    """The stage that protects, on a number of workers."""

    workers: int
    cores: int
    seconds: float
    tasks: list[tuple[int, float]]
    """Strata and seconds of each task, as they ended."""
    tail: float
    """Seconds that workers were idle for want of tasks at the end, added up."""
    load: float

    @property
    def spent(self) -> float:
        return sum(seconds for _, seconds in self.tasks)

    @property
    def overhead(self) -> float:
        """Of the wall time over the tasks' times shared among the workers."""
        return self.workers * self.seconds / self.spent - 1

    @property
    def without_tail(self) -> float:
        return (self.workers * self.seconds - self.tail) / self.spent - 1


class Protected(Exception):
    """All strata are protected: what comes after is not measured."""


class Watch:
    """A listener that times a run's tasks of protection, and ends it there."""

    def __init__(self) -> None:
        self.began = self.ended = 0.0
        self.tasks: list[tuple[int, float]] = []
        self.ends: list[float] = []

    def __call__(self, event: Event) -> None:
        now = time.perf_counter()
        if (event.kind, event.stage) == ("begin", "protect"):
            self.began = now
        elif event.kind == "task":
            self.tasks.append((int(event.unit["strata"]), event.seconds))
            self.ends.append(now)
        elif (event.kind, event.stage) == ("end", "protect"):
            self.ended = now
            raise Protected

    def measured(self, workers: int) -> Measured:
        tail = sum(self.ended - end for end in self.ends[-workers:])
        seconds, load = self.ended - self.began, os.getloadavg()[0]
        return Measured(workers, os.cpu_count() or 1, seconds, self.tasks, tail, load)


def release(folder: Path, survey: Survey, workers: int) -> Measured:
    """The release on so many workers until all is protected, from the first one's key; it has to store the same bytes."""
    watch, first, own = Watch(), next(folder.glob("on-*"), None), folder / f"on-{workers}"
    job = load_job(survey.job("dask", workers=workers))
    with suppress(Protected):
        dpdist.run(job, workspace=own, replay=first / "confidential" if first else None, listener=watch)
    assert strata_done(own) == len(survey.sizes)
    assert first is None or checksums(own) == checksums(first)
    return watch.measured(workers)


def checksums(workspace: Path) -> dict[str, str]:
    """Of all that the strata left, by their completion marks."""
    return {path.name: path.read_text() for path in (workspace / "confidential" / "marks").glob("strata-*.json")}


def slowness(folder: Path, processes: int) -> float:
    """Seconds of tasks in so many processes that know nothing of each other and begin together."""
    folder.mkdir()
    survey = Survey(folder, (RECORDS,) * ALONE, draws=DRAWS, log_lik="never")
    survey.job()
    context = multiprocessing.get_context("spawn")
    together, told = context.Barrier(processes), context.Queue()
    running = [context.Process(target=_alone, args=(survey, k, together, told)) for k in range(processes)]
    for process in running:
        process.start()
    spent = sum(told.get(timeout=600) for _ in running)
    for process in running:
        process.join()
    return float(spent) / processes


def _alone(survey: Survey, number: int, together: Any, told: Any) -> None:
    watch = Watch()

    def listener(event: Event) -> None:
        if (event.kind, event.stage) in (("begin", "protect"), ("end", "protect")):
            together.wait()
        watch(event)

    with suppress(Protected):
        dpdist.run(load_job(survey.job()), workspace=survey.folder / f"alone-{number}", listener=listener)
    told.put(sum(seconds for _, seconds in watch.tasks))


def host(address: str, tls: Path, number: int) -> None:
    """Many workers in one process: they cost the scheduler what workers of their own cost it."""

    async def run() -> None:
        how = {"nthreads": 1, "security": Credentials(tls).security(), "protocol": "tls://", "host": "127.0.0.1"}
        how |= {"memory_limit": 0, "dashboard": False, "resources": {"stan": 1.0}}
        workers = [distributed.Worker(address, **how) for _ in range(number)]
        await asyncio.gather(*workers)
        await asyncio.gather(*(worker.finished() for worker in workers))

    with dask.config.set(settings(60.0)):
        asyncio.run(run())


@contextmanager
def many_workers(folder: Path, workers: int, in_process: int) -> Iterator[tuple[Any, Cluster]]:
    """An executor on a scheduler of its own, on encrypted links, with so many workers, and its cluster."""
    folder.mkdir()
    cluster, context = Cluster(folder), multiprocessing.get_context("spawn")
    cluster.start_scheduler()
    with ExitStack() as kept:
        kept.callback(cluster.close)
        for first in range(0, workers, in_process):
            of_host = cluster.address, cluster.tls("worker"), min(in_process, workers - first)
            process = context.Process(target=host, args=of_host)
            process.start()
            kept.callback(process.join)
            kept.callback(process.terminate)
        place = {"executor": "dask", "scheduler": cluster.address, "tls": str(cluster.tls("driver"))}
        made = kept.enter_context(executor(Runtime.model_validate(place)))
        made.client.wait_for_workers(workers, timeout=300)
        yield made, cluster


def empty_tasks(folder: Path, workers: int, tasks: int) -> dict[str, float]:
    """Processor and wall seconds per empty task, of driver and scheduler."""
    with many_workers(folder, workers, in_process=workers) as (made, cluster):
        scheduler = psutil.Process(cluster.processes["scheduler"].pid)
        list(made.map(abs, range(5 * workers)))
        began, own, others = time.perf_counter(), time.process_time(), _processor(scheduler)
        assert sorted(made.map(abs, range(tasks))) == list(range(tasks))
        wall, own, others = time.perf_counter() - began, time.process_time() - own, _processor(scheduler) - others
        began, idle = time.perf_counter(), _processor(scheduler)
        time.sleep(5)
        idle = (_processor(scheduler) - idle) / (time.perf_counter() - began)
    costs = {"driver": own / tasks, "scheduler": others / tasks, "wall": wall / tasks, "idle": idle}
    return {"workers": workers, "tasks": tasks, **costs}


def _processor(process: psutil.Process) -> float:
    said = process.cpu_times()
    return float(said.user + said.system)


def table(runs: Sequence[Measured]) -> str:
    heads = "workers | strata | tasks | s a task | wall, s | of first | over sum of task times | without the tail | load"
    lines = [heads, " | ".join(["---"] * (heads.count("|") + 1))]
    for run in runs:
        counts = f"{run.workers} on {run.cores} cores | {sum(strata for strata, _ in run.tasks)} | {len(run.tasks)}"
        times = f"{run.spent / len(run.tasks):.2f} | {run.seconds:.1f} | {run.seconds / runs[0].seconds:.3f}"
        lines.append(f"{counts} | {times} | {run.overhead:+.2%} | {run.without_tail:+.2%} | {run.load:.1f}")
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def costs_table(costs: Sequence[dict[str, float]]) -> str:
    lines = ["| workers | tasks | driver, ms | scheduler, ms | wall, ms | idle scheduler |", "|---|---|---|---|---|---|"]
    for c in costs:
        figures = " | ".join(f"{1e3 * c[name]:.2f}" for name in ("driver", "scheduler", "wall"))
        lines.append(f"| {c['workers']} | {c['tasks']} | {figures} | {c['idle']:.1%} |")
    return "\n".join(lines) + "\n"


def kept(
    runs: Sequence[Measured], costs: Sequence[dict[str, float]], files: float, slow: Mapping[int, float]
) -> dict[str, Any]:
    """What deploy/capacity/measured.json holds: costs at the largest number of workers, latency as one worker sees it."""
    most, alone = max(costs, key=lambda c: (c["workers"], c["tasks"])), [c["wall"] for c in costs if c["workers"] == 1]
    return {
        "note": f"python experiments/scaling.py; {os.cpu_count()} cores, Python {platform.python_version()}",
        "driver": most["driver"],
        "scheduler": most["scheduler"],
        "latency": min(alone),
        "files_per_stratum": files,
        "files_alone": FILES_ALONE,
        "costs": [{name: round(value, 6) for name, value in c.items()} for c in costs],
        "runs": [
            {
                "workers": run.workers,
                "cores": run.cores,
                "slowness": round(slow[run.workers], 3),
                "seconds": round(run.seconds, 3),
                "tasks": [[strata, round(seconds, 4)] for strata, seconds in run.tasks],
            }
            for run in runs
        ],
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--strata", type=int, default=5000)
    asked.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    said = asked.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        survey = Survey(folder, (RECORDS,) * said.strata, draws=DRAWS, log_lik="never")
        runs = []
        for workers in said.workers:
            runs.append(release(folder, survey, workers))
            print(table(runs), flush=True)
        times = {k: slowness(folder / f"together-{k}", k) for k in said.workers}
        slow = {k: times[k] / times[said.workers[0]] for k in times}
        print("unrelated processes:", {k: round(value, 2) for k, value in slow.items()}, flush=True)
        files = round(sum(path.is_file() for path in (folder / f"on-{said.workers[0]}").rglob("*")) / said.strata, 2)
        costs = []
        for workers, tasks in EMPTY:
            costs.append(empty_tasks(folder / f"empty-{workers}-{tasks}", workers, tasks))
            print(costs_table(costs[-1:]).splitlines()[-1], flush=True)
        text = "\n".join([table(runs), costs_table(costs)])
        said.out.mkdir(parents=True, exist_ok=True)
        (said.out / "scaling.md").write_text(text)
        (said.out / "measured.json").write_text(json.dumps(kept(runs, costs, files, slow)) + "\n")
        print(text)


if __name__ == "__main__":
    main()

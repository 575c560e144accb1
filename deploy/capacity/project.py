"""Projects a release to a cluster that is not there yet: how long, how busy, what saturates first, what to do.

    pip install simpy
    python deploy/capacity/project.py --strata 100000 --workers 500 --out FOLDER

Writes index.html (self-contained) and projection.md. Task times and costs are measured.json's, which
`python experiments/scaling.py --out FOLDER` makes anew on a machine of yours; `--stratum-seconds` states another mean
time of a stratum (a Stan fit takes longer), with the measured spread.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from measured import GROUPS, MEASURED, Measured, Projected, Validated, planned, project, validation
from simulate import BUSY, EDGES, Outcome

SWEPT = (10, 20, 50, 100, 200, 500, 1000, 2000)
STORAGE = (2_000, 10_000, 50_000)
"""New files per second that a shared storage takes: assumptions, not measured here."""
LONG = 0.5
"""Seconds of a stratum that counts as a long fit."""
HEADS = (
    *("strata a task", "s a task", "tasks", "tasks a worker", "time, s", "ideal, s", "efficiency", "scheduler busy"),
    *("start and end", "tasks/s", "at most", "at its limit"),
)
ASSUMPTIONS = (
    "A stratum takes what it took in the measured run on one worker, whose first task is left out (it holds the start-up); "
    "every worker has a core of its own, and memory that others do not slow.",
    "Driver and scheduler are each busy with a task for the processor time that was measured with empty tasks through a "
    "real scheduler on encrypted links, one task at a time, each on a core of its own. So the most tasks a second is a "
    "projection: where they shared the cores with each other and the workers, fewer were seen (the column wall below).",
    "What a task costs at the largest number of workers that was measured (64 in measured.json), it costs at every number: "
    "how a scheduler's cost per task grows beyond was not measured.",
    "Idle workers take the next task at once (Dask's stealing is taken as perfect); three tasks per worker are in flight.",
    "Storage costs what it cost on the measured machine's disk; the last table adds a shared one that takes so many new "
    "files a second, which is an assumption: measure yours.",
    "Nothing fails; start-up, reading the input, gathering and publishing are left out.",
    f"At its limit is what is busy for {BUSY:.0%} of the time; few tasks, where workers wait before their first or after "
    f"their last task for {EDGES:.0%} of theirs (the column start and end). Several may hold.",
)
ADVICE = (
    "The planner cuts tasks by itself: up to 20 s on many workers, shorter towards the end. State runtime.workers where an "
    "autoscaler begins with few. Beyond the workers that one scheduler keeps busy, more workers do nothing.",
    "Where tasks stay shorter (very small strata on very many workers), use fewer workers: the release is short anyway.",
    "A second scheduler serves a second release, with a workspace and a driver of its own; a release has one of each.",
    "Groups that are too large leave workers idle at the start and the end: keep ten or more tasks per worker.",
    "Look at the storage where every stratum is a task: at thousands of them a second new files are the limit.",
)


class Table(NamedTuple):
    title: str
    heads: Sequence[str]
    lines: list[list[str]]


def tables(measured: Measured, strata: int, workers: int, stratum_seconds: float | None) -> Iterator[Table]:
    mean = stratum_seconds or measured.stratum_seconds
    yield from _measured(measured)
    grouped = [
        planned(measured, strata, workers, stratum_seconds),
        *project(measured, strata, workers, GROUPS, stratum_seconds),
    ]
    title = f"{strata:,} strata of {mean:.3g} s on {workers} workers"
    yield Table(title, HEADS, [_line(row, mean) for row in grouped])
    cost = max(measured.driver, measured.scheduler)
    heads = ("strata a task", "s a task", f"workers at {mean:.3g} s a stratum", f"workers at {LONG} s a stratum")
    lines = [[str(g), f"{g * mean:.2f}", f"{g * mean / cost:,.0f}", f"{g * LONG / cost:,.0f}"] for g in GROUPS]
    yield Table("Workers that one driver and one scheduler keep busy", heads, lines)
    long = project(measured, strata, workers, (1, 4), LONG)
    yield Table(f"The same with fits of {LONG} s a stratum", HEADS, [_line(row, LONG) for row in long])
    shared = project(measured, strata, workers, (1, 4), stratum_seconds, schedulers=4)
    yield Table("The same with four schedulers and one driver", HEADS, [_line(row, mean) for row in shared])
    yield _stored(measured, strata, workers, stratum_seconds)


def _measured(measured: Measured) -> Iterator[Table]:
    names = ("driver", "scheduler", "wall")
    costs = ("workers", "tasks", *names, "tasks/s seen")
    lines = [
        [
            *(f"{c['workers']:.0f}", f"{c['tasks']:,.0f}"),
            *(f"{1e3 * c[name]:.2f}" for name in names),
            f"{1 / c['wall']:.0f}",
        ]
        for c in measured.costs
    ]
    yield Table("Measured cost of an empty task, milliseconds (processor; wall)", costs, lines)
    heads = ("workers", "cores", "slowness", "measured, s", "predicted, s", "predicted/measured", "from its own task times")

    def shown(v: Validated) -> list[str]:
        return [f"{v.measured:.1f}", f"{v.predicted:.1f}", f"{v.ratio:.3f}", f"{v.own / v.measured:.3f}"]

    lines = [[str(v.workers), str(v.cores), f"{v.slowness:.2f}", *shown(v)] for v in validation(measured)]
    yield Table(
        "Predicted, from the run on one worker and the slowness of as many unrelated processes, beside measured",
        heads,
        lines,
    )


def _stored(measured: Measured, strata: int, workers: int, stratum_seconds: float | None) -> Table:
    heads = ("new files a second", "time, s", "efficiency", "at its limit")
    lines = []
    for rate in STORAGE:
        (short,) = project(measured, strata, workers, (32,), stratum_seconds, storage=measured.files / rate)
        (long,) = project(measured, strata, workers, (1,), LONG, storage=measured.files_alone / rate)
        lines.append([f"{rate:,}", *_brief(short.outcome), *_brief(long.outcome)])
    shared, alone = f"{measured.files:g} files a stratum, 32 strata a task", f"{measured.files_alone:g}, 1 of {LONG} s"
    title = f"Shared storage: {shared}; {alone}"
    return Table(title, (*heads, *(f"{head} ({LONG} s)" for head in heads[1:])), lines)


def _line(row: Projected, mean: float) -> list[str]:
    said, ideal = row.outcome, row.strata * mean / row.cluster.workers
    group = row.strata / row.tasks
    return [
        str(row.group or f"planner's, {group:,.0f} in the mean"),
        f"{group * mean:.2f}",
        f"{row.tasks:,}",
        f"{row.tasks / row.cluster.workers:,.1f}",
        f"{said.seconds:,.1f}",
        f"{ideal:,.1f}",
        f"{said.efficiency:.0%}",
        f"{said.scheduler_busy:.0%}",
        f"{said.edges:.0%}",
        f"{row.tasks / said.seconds:,.0f}",
        f"{row.limit:,.0f}",
        ", ".join(said.limits),
    ]


def _brief(said: Outcome) -> list[str]:
    return [f"{said.seconds:,.1f}", f"{said.efficiency:.0%}", ", ".join(said.limits)]


def markdown(shown: Sequence[Table]) -> str:
    parts = ["# Projection", "", "## Assumed", "", *(f"- {said}" for said in ASSUMPTIONS)]
    for title, heads, lines in shown:
        rows = [list(heads), ["---"] * len(heads), *lines]
        parts += [f"\n## {title}\n", *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join([*parts, "\n## What to do\n", *(f"- {said}" for said in ADVICE), ""])


def plot(measured: Measured, strata: int, stratum_seconds: float | None = None) -> str:
    """Time over workers for groups of strata, as SVG."""
    canvas = Figure(figsize=(8, 4.5), layout="constrained")
    axes, mean = canvas.subplots(), stratum_seconds or measured.stratum_seconds
    axes.plot(SWEPT, [strata * mean / n for n in SWEPT], color="0.6", linestyle="--", label="ideal")
    for group in (4, 8, 32):
        rows = [project(measured, strata, n, (group,), stratum_seconds)[0] for n in SWEPT]
        axes.plot(SWEPT, [row.outcome.seconds for row in rows], marker="o", label=f"{group} strata a task")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="seconds", title=f"{strata:,} strata of {mean:.3g} s")
    axes.legend(frameon=False)
    written = io.StringIO()
    canvas.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()[written.getvalue().index("<svg") :]


def page(shown: Sequence[Table], svg: str) -> str:
    """One self-contained page."""
    parts = ["<h1>Projection of a release to a cluster</h1>", "<h2>Assumed</h2>", _items(ASSUMPTIONS)]
    parts.append(svg)
    for title, heads, lines in shown:
        head = "".join(f"<th>{escape(one)}</th>" for one in heads)
        body = "".join("<tr>" + "".join(f"<td>{escape(one)}</td>" for one in line) + "</tr>" for line in lines)
        parts.append(f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>")
    parts += ["<h2>What to do</h2>", _items(ADVICE)]
    style = "body{font-family:sans-serif;max-width:60rem;margin:2rem auto}td,th{padding:.2rem .8rem;text-align:right}"
    return f"<!doctype html><meta charset=utf-8><title>Projection</title><style>{style}</style>" + "\n".join(parts)


def _items(said: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in said) + "</ul>"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--strata", type=int, default=100_000)
    asked.add_argument("--workers", type=int, default=500)
    asked.add_argument("--stratum-seconds", type=float)
    asked.add_argument("--measured", type=Path, default=MEASURED)
    asked.add_argument("--out", type=Path, required=True)
    said = asked.parse_args()
    measured = Measured.read(said.measured)
    shown = list(tables(measured, said.strata, said.workers, said.stratum_seconds))
    svg = plot(measured, said.strata, said.stratum_seconds)
    said.out.mkdir(parents=True, exist_ok=True)
    (said.out / "index.html").write_text(page(shown, svg), encoding="utf-8")
    (said.out / "projection.md").write_text(markdown(shown), encoding="utf-8")
    print(markdown(shown))


if __name__ == "__main__":
    main()

"""The projection of a cluster, held to what is known exactly: one worker, ideal scheduling, saturation, monotonicity."""

from __future__ import annotations

import heapq
import json
import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as some
from rendering import DEPLOY

sys.path.insert(0, str(DEPLOY / "capacity"))
from measured import MEASURED, Measured, Projected, planned, project, tasks_of, validation
from project import page, plot, tables
from simulate import Cluster, Task, simulate


@cache
def projected(strata: int, workers: int, group: int) -> Projected:
    (found,) = project(Measured.read(MEASURED), strata, workers, groups=(group,))
    return found


SECONDS = np.random.default_rng(8).gamma(4.0, 0.25, 200).round(3).tolist()
TASKS = [Task(seconds) for seconds in SECONDS]


def greedy(seconds: list[float], workers: int) -> float:
    """Each task in order to the worker that is idle first."""
    idle = [0.0] * workers
    for one in seconds:
        heapq.heapreplace(idle, idle[0] + one)
    return max(idle)


def test_one_worker_takes_the_sum_of_all_times() -> None:
    assert simulate(TASKS, Cluster(1)).seconds == pytest.approx(sum(SECONDS))
    assert simulate(TASKS, Cluster(1)).efficiency == pytest.approx(1.0)
    latency = simulate(TASKS, Cluster(1, latency=0.01)).seconds
    assert latency == pytest.approx(sum(SECONDS) + 0.01 * len(TASKS))


@pytest.mark.parametrize("workers", [2, 7, 40, 300])
def test_a_scheduler_without_cost_is_greedy_list_scheduling(workers: int) -> None:
    assert simulate(TASKS, Cluster(workers)).seconds == pytest.approx(greedy(SECONDS, workers))


@pytest.mark.parametrize("server", ["driver", "scheduler", "storage"])
def test_a_saturated_server_lets_one_task_through_per_cost(server: str) -> None:
    cost, empty = 0.002, [Task(0.0)] * 3000
    cluster = replace(Cluster(100), **{server: cost})
    said = simulate(empty, cluster)
    assert len(empty) / said.seconds == pytest.approx(1 / cost, rel=1e-6)
    assert said.limits == (server,)
    short = simulate([Task(0.05)] * 3000, cluster)  # 100 workers could do 2,000 a second
    assert 3000 / short.seconds == pytest.approx(1 / cost, rel=0.02)
    assert simulate([Task(0.5)] * 3000, cluster).limits == ("workers",)


def test_all_that_holds_a_release_up_is_named() -> None:
    few = simulate([Task(1.0)] * 10, Cluster(4))
    assert few.edges == pytest.approx(2 / 12), "two of four workers are idle in the last of three seconds"
    assert few.limits == ("workers", "few tasks")
    assert simulate([Task(1.0)] * 3, Cluster(4)).edges == pytest.approx(1 / 4)
    assert projected(100_000, 2000, 16).outcome.limits == ("scheduler", "few tasks")
    assert projected(1_000_000, 2000, 32).outcome.limits == ("scheduler",), "more tasks, and the scheduler is what is left"
    said = simulate([Task(0.5)] * 4000, Cluster(100, scheduler=0.0049, driver=0.0045))
    assert said.limits == ("workers", "driver", "scheduler")
    assert simulate([Task(0.5)] * 2000, Cluster(100, scheduler=0.0064)).limits == ("scheduler",)


def test_two_schedulers_let_twice_as_much_through_and_slow_cores_half() -> None:
    said = simulate([Task(0.0)] * 3000, Cluster(100, scheduler=0.002, schedulers=2))
    assert 3000 / said.seconds == pytest.approx(1000, rel=1e-3)
    assert simulate(TASKS, Cluster(4, slowness=2)).seconds == pytest.approx(2 * greedy(SECONDS, 4))


times = some.lists(some.floats(0.0, 2.0), min_size=1, max_size=30)


@given(times, some.integers(1, 6), some.floats(0, 0.5), some.floats(0, 0.5), some.floats(0, 0.5), some.integers(0, 3))
def test_more_cost_is_never_faster_and_more_workers_or_window_never_slower(
    seconds: list[float], workers: int, driver: float, scheduler: float, more: float, which: int
) -> None:
    tasks = [Task(one) for one in seconds]
    cluster = Cluster(workers, driver=driver, scheduler=scheduler, latency=0.01)
    base = simulate(tasks, cluster).seconds
    dearer = [
        replace(cluster, driver=driver + more),
        replace(cluster, scheduler=scheduler + more),
        replace(cluster, latency=0.01 + more),
        replace(cluster, slowness=1 + more),
    ][which]
    assert simulate(tasks, dearer).seconds >= base - 1e-9
    assert simulate(tasks, replace(cluster, workers=workers + 1)).seconds <= base + 1e-9
    assert simulate(tasks, replace(cluster, window=4)).seconds <= base + 1e-9
    longer = [Task(one + more) for one in seconds]
    assert simulate(longer, cluster).seconds >= base - 1e-9
    lower = max(sum(seconds) / workers, max(seconds), len(seconds) * max(driver, scheduler))
    assert base >= lower - 1e-9
    assert base <= sum(seconds) + len(seconds) * (driver + scheduler + 0.01) + 1e-9, "one after the other"


def test_the_projection_from_the_figures_that_were_measured_saturates_where_its_cost_says() -> None:
    measured = Measured.read(MEASURED)
    rows = project(measured, 20_000, 500, groups=(1, 8, 32))
    rates = [row.outcome.driver_busy for row in rows]
    assert all(more > fewer for more, fewer in pairwise(rates)), "bigger groups take load off driver and scheduler"
    assert rows[0].limit == pytest.approx(1 / max(measured.driver, measured.scheduler))
    for row in rows:
        assert row.tasks / row.outcome.seconds <= row.limit * (1 + 1e-9)


def test_the_planner_s_tasks_keep_many_workers_busy_where_32_strata_a_task_saturate_the_scheduler() -> None:
    measured = Measured.read(MEASURED)
    assert planned(measured, 1_000_000, 500).outcome.efficiency > 0.95
    own, fixed = planned(measured, 1_000_000, 2000).outcome, projected(1_000_000, 2000, 32)
    assert own.efficiency > 0.85
    assert own.scheduler_busy < 0.6
    assert fixed.outcome.efficiency < 0.5
    assert "scheduler" in fixed.outcome.limits
    short = planned(measured, 100_000, 500)
    assert short.outcome.efficiency > projected(100_000, 500, 32).outcome.efficiency + 0.05
    assert planned(measured, 2_000, 2).outcome.efficiency > projected(2_000, 2, 32).outcome.efficiency - 0.01, (
        "no worse on one machine"
    )


def test_tasks_are_drawn_from_the_measured_ones_and_keep_their_mean() -> None:
    measured = Measured.read(MEASURED)
    tasks = tasks_of(measured, 100_000, group=32)
    assert sum(task.strata for task in tasks) == 100_000
    per_stratum = sum(task.seconds for task in tasks) / 100_000
    assert per_stratum == pytest.approx(measured.stratum_seconds, rel=0.02)
    assert tasks == tasks_of(measured, 100_000, group=32)


def test_start_up_is_not_drawn() -> None:
    measured = Measured.read(MEASURED)
    alone = measured.alone
    assert alone.warm == alone.tasks[1:]
    assert [len(run.tasks) - len(run.warm) for run in measured.runs] == [run.workers for run in measured.runs]
    slowest = max(task.seconds for task in alone.warm)
    assert alone.tasks[0].seconds > 2 * slowest, "the first task held the start-up"
    assert max(task.seconds for task in tasks_of(measured, 100_000, group=32)) == pytest.approx(slowest)


def test_the_measured_runs_are_predicted_and_the_page_stands_alone() -> None:
    measured = Measured.read(MEASURED)
    rows = validation(measured)
    assert [row.workers for row in rows] == [1, 2, 4]
    assert all(0.8 < row.ratio < 1.2 for row in rows), "from the run on one worker"
    assert all(0.97 < row.own / row.measured < 1.03 for row in rows), "from its own task times: driver, scheduler and queue"
    text = page(list(tables(measured, 2_000, 50, None)), plot(measured, 2_000))
    assert "<svg" in text
    assert "http-equiv" not in text
    assert "src=" not in text
    assert json.loads(MEASURED.read_text())["note"]

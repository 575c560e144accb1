"""Every alert fires under Prometheus' own rules where it is provoked, is silent elsewhere, and asks for what is there."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from canaries import survey
from rendering import DEPLOY, render

OF_KUBE_STATE_METRICS = {
    "kube_job_status_failed": {"namespace", "job_name", "reason"},
    "kube_job_status_active": {"namespace", "job_name"},
    "kube_job_status_succeeded": {"namespace", "job_name"},
    "kube_cronjob_next_schedule_time": {"namespace", "cronjob"},
    "kube_cronjob_status_last_schedule_time": {"namespace", "cronjob"},
    "kube_cronjob_status_last_successful_time": {"namespace", "cronjob"},
    "kube_cronjob_spec_suspend": {"namespace", "cronjob"},
    "kube_namespace_created": {"namespace"},
}
"""Stable figures of kube-state-metrics 2, with their labels, as its pages docs/metrics list them."""
IN_POD, BY_HAND = 'namespace="dpdist",pod="dpdist-release-x"', 'instance="host:9100"'
JOB, CRON = 'namespace="dpdist",job_name="dpdist-release"', 'namespace="dpdist",cronjob="dpdist-release"'
WATCHED = {'kube_namespace_created{namespace="dpdist"}': "1x2000"}
RAN = {f"kube_job_status_failed{{{JOB}}}": "0x2000", f"kube_job_status_succeeded{{{JOB}}}": "1x2000"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "operations" / "alerts.yaml").read_text())["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def figures(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:kube|dpdist|dask)_\w+", expression))


def run_state(state: str, labels: str, values: str = "1x2000") -> dict[str, str]:
    return {f'dpdist_run_state{{state="{state}",{labels}}}': values}


PROVOKED: dict[str, tuple[str, str, dict[str, str]]] = {
    "a Job whose pod has failed for good": ("DpdistRunFailed", "3m", {f'kube_job_status_failed{{{JOB},reason=""}}': "1x9"}),
    "a Job at the end of its tries": (
        "DpdistRunFailed",
        "3m",
        {
            f'kube_job_status_failed{{{JOB},reason="BackoffLimitExceeded"}}': "1x9",
            f"kube_job_status_active{{{JOB}}}": "0x9",
        },
    ),
    "a Job of the schedule, which released nothing": (
        "DpdistRunFailed",
        "3m",
        {'kube_job_status_failed{namespace="dpdist",job_name="dpdist-release-29713110"}': "1x9", **RAN},
    ),
    "a run outside Kubernetes that was asked once as it ended": (
        "DpdistRunFailed",
        "10m",
        run_state("failed", BY_HAND, "0 0 0 1 _x20"),
    ),
    "a release held in a pod that is gone": ("DpdistReleaseHeld", "5h", run_state("held", IN_POD, "0 0 0 1 _x400")),
    "a release held elsewhere": ("DpdistReleaseHeld", "5m", run_state("held", BY_HAND, "0 0 0 1 _x400")),
    "a time that the controller did not start": (
        "DpdistScheduleMissed",
        "4h",
        {f"kube_cronjob_next_schedule_time{{{CRON}}}": "7200x2000"},
    ),
    "a time whose Job never ended well": (
        "DpdistScheduleStale",
        "27h",
        {
            f"kube_cronjob_status_last_schedule_time{{{CRON}}}": "3600x2000",
            f"kube_cronjob_status_last_successful_time{{{CRON}}}": "60x2000",
        },
    ),
    "a schedule that never made a release": (
        "DpdistScheduleStale",
        "27h",
        {f"kube_cronjob_status_last_schedule_time{{{CRON}}}": "3600x2000"},
    ),
    "a schedule that is suspended": ("DpdistScheduleSuspended", "25h", {f"kube_cronjob_spec_suspend{{{CRON}}}": "1x2000"}),
    "no kube-state-metrics": ("DpdistNotWatched", "16m", {'up{job="dpdist"}': "1x2000"}),
    "a run that goes on with nothing": (
        "DpdistRunStalled",
        "90m",
        {f'dpdist_stage_done{{stage="protect",{IN_POD}}}': "7x2000", **run_state("running", IN_POD)},
    ),
    "a run without workers": (
        "DpdistNoWorkers",
        "15m",
        {'dask_scheduler_workers{namespace="dpdist",pod="s"}': "0x2000", **run_state("running", IN_POD)},
    ),
    "workers that die in tasks": (
        "DpdistWorkersDie",
        "20m",
        {f"dpdist_worker_losses_total{{{IN_POD}}}": "0x5 1x2 2x2 4x40"},
    ),
    "a link that was lost": ("DpdistSchedulerLost", "10m", {f"dpdist_task_retries_total{{{IN_POD}}}": "0x5 8x40"}),
    "many workers lost": (
        "DpdistWorkersLost",
        "20m",
        {'dask_scheduler_workers_removed_total{namespace="dpdist",pod="s"}': "0+3x40"},
    ),
    "tasks of half an hour": (
        "DpdistTasksTooLong",
        "90m",
        {
            f'dpdist_task_seconds_bucket{{le="1000",{IN_POD}}}': "0x200",
            f'dpdist_task_seconds_bucket{{le="3000",{IN_POD}}}': "0+1x200",
            f'dpdist_task_seconds_bucket{{le="+Inf",{IN_POD}}}': "0+1x200",
        },
    ),
}
"""What goes wrong: the alert that has to fire, when, and the figures by the minute from 1970 on."""
WELL: dict[str, tuple[str, dict[str, str]]] = {
    "a quarter's release on time": (
        "30h",
        {
            **RAN,
            f"kube_cronjob_next_schedule_time{{{CRON}}}": "7776000x2000",
            f"kube_cronjob_status_last_schedule_time{{{CRON}}}": "3600x2000",
            f"kube_cronjob_status_last_successful_time{{{CRON}}}": "3900x2000",
            f"kube_cronjob_spec_suspend{{{CRON}}}": "0x2000",
            **run_state("held", IN_POD, "0x2000"),
            **run_state("failed", BY_HAND, "0x2000"),
        },
    ),
    "a pod that failed, while the next one tries": (
        "1h",
        {f"kube_job_status_failed{{{JOB}}}": "2x2000", f"kube_job_status_active{{{JOB}}}": "1x2000"},
    ),
    "a Job that failed twice and then released": (
        "1h",
        {f"kube_job_status_failed{{{JOB}}}": "2x2000", f"kube_job_status_succeeded{{{JOB}}}": "1x2000"},
    ),
    "another application's Job that failed": ("1h", {'kube_job_status_failed{namespace="x",job_name="backup"}': "1x2000"}),
    "a run that goes on, with workers": (
        "2h",
        {
            f'dpdist_stage_done{{stage="protect",{IN_POD}}}': "0+1x2000",
            **run_state("running", IN_POD),
            'dask_scheduler_workers{namespace="dpdist",pod="s"}': "4x2000",
            f"dpdist_worker_losses_total{{{IN_POD}}}": "0x2000",
            f"dpdist_task_retries_total{{{IN_POD}}}": "0x2000",
        },
    ),
}


def fired(folder: Path, series: dict[str, str], at: str) -> set[str]:
    """The alerts that promtool sees fire: it is told that none does, and names each that does."""
    groups = yaml.safe_load((DEPLOY / "operations" / "alerts.yaml").read_text())["spec"]["groups"]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    names = sorted({rule["alert"] for rule in rules()})
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": []} for name in names],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))
    done = subprocess.run(
        ["promtool", "test", "rules", folder / "test.yaml"], capture_output=True, text=True, check=False, timeout=120
    )
    found = set(re.findall(r"alertname: ?(\w+)", done.stdout + done.stderr))
    assert bool(found) == bool(done.returncode), done.stdout + done.stderr
    return found


@pytest.mark.system
@pytest.mark.parametrize("case", PROVOKED)
def test_each_alert_fires_where_it_is_provoked(case: str, tmp_path: Path) -> None:
    alert, at, series = PROVOKED[case]
    watched = {} if alert == "DpdistNotWatched" else WATCHED
    assert fired(tmp_path, watched | series, at) == {alert}


@pytest.mark.system
@pytest.mark.parametrize("case", WELL)
def test_no_alert_fires_where_all_is_well(case: str, tmp_path: Path) -> None:
    at, series = WELL[case]
    assert fired(tmp_path, WATCHED | series, at) == set()


def test_every_alert_is_provoked_and_asks_kubernetes_for_what_it_has() -> None:
    assert {rule["alert"] for rule in rules()} == {alert for alert, _, _ in PROVOKED.values()}
    for rule in rules():
        for name in figures(rule["expr"]):
            assert name.startswith(("dpdist_", "dask_")) or name in OF_KUBE_STATE_METRICS
        for name, labels in re.findall(r"\b(kube_\w+)\{([^}]*)\}", rule["expr"]):
            assert set(re.findall(r"(\w+)=", labels)) <= OF_KUBE_STATE_METRICS[name]


def test_alerts_ask_for_the_jobs_that_the_overlays_make() -> None:
    """`dpdist-release`, and for a CronJob that name with the time of the schedule behind it."""
    patterns = {p for rule in rules() for p in re.findall(r'(?:job_name|cronjob)=~"([^"]+)"', rule["expr"])}
    for overlay in ("release", "periodic", "bucket"):
        names = [o["metadata"]["name"] for o in render(DEPLOY / "overlays" / overlay) if o["kind"] in ("Job", "CronJob")]
        assert names == ["dpdist-release"]
        assert all(re.fullmatch(pattern, name) for pattern in patterns for name in (*names, f"{names[0]}-29713110"))


@pytest.mark.system
def test_a_failed_run_is_seen_by_a_prometheus_that_asks_every_five_seconds(tmp_path: Path) -> None:
    """The whole way: a run that fails within seconds, its port, Prometheus with the shipped rules, the alert."""
    places = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            places.append(f"127.0.0.1:{free.getsockname()[1]}")
    shown, asked = places
    groups = yaml.safe_load((DEPLOY / "operations" / "alerts.yaml").read_text())["spec"]["groups"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    scraped = {"job_name": "dpdist", "static_configs": [{"targets": [shown]}]}
    config = {
        "global": {"scrape_interval": "5s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [scraped],
    }
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    line = [f"--config.file={tmp_path / 'prometheus.yaml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with subprocess.Popen(
        [str(shutil.which("prometheus")), *line, f"--web.listen-address={asked}", "--log.level=error"]
    ) as server:
        try:
            until(lambda: get(f"http://{asked}/-/ready") is not None)
            assert alerts(asked) == set()
            run = [sys.executable, "-m", "dpdist", "run", str(survey(tmp_path, bad=True)), "-w", str(tmp_path / "work")]
            assert subprocess.run([*run, "-q", "--metrics", shown], check=False, timeout=120).returncode == 2
            until(lambda: "DpdistRunFailed" in alerts(asked))
        finally:
            server.terminate()


def get(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=30) as page:
            return bytes(page.read())
    except OSError:
        return None


def alerts(place: str) -> set[str]:
    said = json.loads(get(f"http://{place}/api/v1/alerts") or b'{"data": {"alerts": []}}')
    return {one["labels"]["alertname"] for one in said["data"]["alerts"] if one["state"] == "firing"}


def until(true: Any, patience: float = 180.0) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end
        time.sleep(0.5)

"""Dashboard and alerts ask for figures that are exported, with their labels; copies of a workspace bring it back."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from rendering import DEPLOY, render
from small_release import LAPLACE_JOB as JOB, survey

import dpdist
from dpdist.cli.observing import Metrics
from dpdist.core.errors import WorkspaceError
from dpdist.core.progress import Event
from dpdist.runtime import services

sys.path.insert(0, str(DEPLOY / "operations"))
from workspace_copy import drill, files_of, restore, take

OPERATIONS = DEPLOY / "operations"
OF_PROMETHEUS = {"namespace", "pod", "instance", "le", "job_name", "cronjob"}
"""Labels that Prometheus adds to a pod's figures, that of a bucket, and those of Kubernetes' objects (test_alerts.py)."""


def exported() -> dict[str, set[str]]:
    """Names of all figures of driver, scheduler and worker, with their labels."""
    figures = Metrics()
    for event in (Event("begin", "protect", total=2), Event("task", "", seconds=1.0), Event("retry", "", done=1)):
        figures.hear(event)
    pages = [generate_latest(figures.registry).decode(), *asyncio.run(_served())]
    found: dict[str, set[str]] = defaultdict(set)
    for line in "\n".join(pages).splitlines():
        if (match := re.match(r"(\w+)(?:\{(.*)\})? ", line)) and not line.startswith("#"):
            found[match[1]] |= set(re.findall(r"(\w+)=", match[2] or ""))
    return found


async def _served() -> list[str]:
    import dask
    import distributed

    pages, place = [], {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with dask.config.set(services._HTTP_ROUTES):
        async with (
            distributed.Scheduler(port=0, **place) as scheduler,
            distributed.Worker(scheduler.address, nthreads=1, **place) as worker,
        ):
            for server in (scheduler, worker):
                url = f"http://127.0.0.1:{server.http_server.port}/metrics"
                pages.append(
                    await asyncio.to_thread(lambda url=url: urllib.request.urlopen(url, timeout=60).read().decode())
                )
    return pages


def asked() -> Iterator[tuple[str, str]]:
    """Where a figure is asked for, and the expression."""
    for rule in yaml.safe_load((OPERATIONS / "alerts.yaml").read_text())["spec"]["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"]
    for panel in json.loads((OPERATIONS / "dashboard.json").read_text())["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])


def unknown(expression: str, figures: dict[str, set[str]]) -> set[str]:
    """Figures and labels of an expression that nobody exports."""
    found: set[str] = set()
    for name, _, labels in re.findall(r"\b((?:dpdist|dask)_\w+)(\{([^}]*)\})?", expression):
        matched = set(re.findall(r"(\w+)\s*=", labels))
        found |= (
            {name} if name not in figures else {f"{name}: {label}" for label in matched - figures[name] - OF_PROMETHEUS}
        )
    grouped = {label for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for label in group.split(", ")}
    return found | (grouped - set().union(*figures.values()) - OF_PROMETHEUS)


@pytest.fixture(scope="module")
def figures() -> dict[str, set[str]]:
    return exported()


def test_every_figure_of_dashboard_and_alerts_is_exported(figures: dict[str, set[str]]) -> None:
    expressions = dict(asked())
    assert len(expressions) >= 12
    assert {where: wrong for where, one in asked() if (wrong := unknown(one, figures))} == {}
    used = set(re.findall(r"\bdpdist_\w+", " ".join(one for _, one in asked())))
    own = {name.removesuffix("_created") for name in figures if name.startswith("dpdist_")}
    families = {re.sub(r"_(count|sum|bucket|created)$", "", name) for name in own}
    assert {name for name in families if not any(one.startswith(name.removesuffix("_total")) for one in used)} == set()
    assert unknown("sum by (node) (dask_workers_idle)", figures) == {"node", "dask_workers_idle"}, "control"


def test_alerts_say_what_to_do_and_brackets_close() -> None:
    for rule in yaml.safe_load((OPERATIONS / "alerts.yaml").read_text())["spec"]["groups"][0]["rules"]:
        assert {"summary", "description"} <= rule["annotations"].keys()
        assert rule["labels"]["severity"] in ("page", "ticket")
    assert all(one.count(a) == one.count(b) for _, one in asked() for a, b in ("()", "[]", "{}"))


def test_the_pods_that_are_asked_are_ours_at_the_port_that_they_have() -> None:
    (monitor,) = [o for o in render(OPERATIONS) if o["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for o in render(DEPLOY / "overlays" / "release"):
        if o["kind"] in ("Deployment", "Job"):
            template = o["spec"]["template"]
            assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
            assert endpoint["port"] in [port.get("name") for port in template["spec"]["containers"][0]["ports"]]


class Stopped(Exception):
    """A run was ended before it drew noise."""


def before_noise(event: Event) -> None:
    if (event.kind, event.stage) == ("begin", "protect"):
        raise Stopped


def public(workspace: Path) -> dict[str, bytes]:
    return {name: (workspace / "public" / name).read_bytes() for name in files_of(workspace / "public")}


def noise(workspace: Path) -> list[str]:
    return [name for name in files_of(workspace) if name.startswith("confidential/noise/")]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, copied before its noise is drawn, and at the end: `early`, `late`, beside `work`."""
    folder = tmp_path_factory.mktemp("copies")
    with pytest.raises(Stopped):
        dpdist.run(JOB, input=survey(), workspace=folder / "work", listener=before_noise)
    take(folder / "work", folder / "early")
    dpdist.run(JOB, input=survey(), workspace=folder / "work")
    take(folder / "work", folder / "late")
    return folder


def test_a_drill_restores_a_copy_and_makes_its_tables_again_byte_for_byte(places: Path) -> None:
    restored, whole, made = drill(places / "late")
    assert restored.endswith("each with its checksum")
    assert "whole" in whole
    assert made == f"{len(public(places / 'work'))} public files made again, byte for byte"
    assert sorted(path.name for path in places.iterdir()) == ["early", "late", "work"], "nothing of the drill is left"
    assert "nothing was published yet" in drill(places / "early")[-1]


def test_a_workspace_comes_back_from_its_copy(places: Path, tmp_path: Path) -> None:
    restore([places / "late"], tmp_path / "back")
    assert files_of(tmp_path / "back") == [name for name in files_of(places / "work") if "lock" not in name]
    assert (tmp_path / "back" / "confidential").stat().st_mode & 0o777 == 0o700
    dpdist.run(JOB, input=survey(), workspace=tmp_path / "back")
    assert public(tmp_path / "back") == public(places / "work")


def test_an_early_copy_with_the_noise_of_the_latest_ends_with_the_same_bytes(places: Path, tmp_path: Path) -> None:
    restore([places / "early", places / "late"], tmp_path / "back")
    assert noise(tmp_path / "back") == noise(places / "work")
    assert noise(places / "early") == []
    dpdist.run(JOB, input=survey(), workspace=tmp_path / "back")
    assert public(tmp_path / "back") == public(places / "work")


def test_control_an_early_copy_alone_draws_other_noise(places: Path, tmp_path: Path) -> None:
    restore([places / "early"], tmp_path / "back")
    dpdist.run(JOB, input=survey(), workspace=tmp_path / "back")
    assert public(tmp_path / "back") != public(places / "work")
    take(tmp_path / "back", tmp_path / "second")
    with pytest.raises(WorkspaceError, match="two draws for the same data"):
        restore([places / "late", tmp_path / "second"], tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()


def test_what_would_not_serve_is_refused_by_name(places: Path, tmp_path: Path) -> None:
    shutil.copytree(places / "late", tmp_path / "bad")
    name = noise(tmp_path / "bad")[0]
    (tmp_path / "bad" / name).write_bytes(b"spoilt")
    dpdist.run(JOB, input=survey(), workspace=tmp_path / "other")
    take(tmp_path / "other", tmp_path / "of-another")
    refusals: list[tuple[str, Any]] = [
        (f"{name} is missing, or not what was copied", lambda: drill(tmp_path / "bad")),
        ("it is of another run", lambda: restore([places / "late", tmp_path / "of-another"], tmp_path / "x")),
        ("it exists already", lambda: restore([places / "late"], places / "work")),
        ("it exists already", lambda: take(places / "work", places / "late")),
        ("no run has begun", lambda: take(tmp_path, tmp_path / "y")),
        ("it has no checksums.json", lambda: restore([places / "work"], tmp_path / "x")),
    ]
    for found, act in refusals:
        with pytest.raises(WorkspaceError, match=found):
            act()


def test_a_workspace_that_a_run_is_at_work_on_is_not_copied(places: Path, tmp_path: Path) -> None:
    from filelock import FileLock

    with (
        FileLock(places / "work" / "confidential" / "lock"),
        pytest.raises(WorkspaceError, match="another run is using it"),
    ):
        take(places / "work", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []

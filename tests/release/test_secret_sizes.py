"""Under add_remove the number of records, in all or in a cell, stands nowhere outside the confidential folder."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import succeed

from dpdist.cli.observing import observed
from dpdist.core.progress import Event
from dpdist.job.loading import load_job
from dpdist.release import run

SIZES = 4_203, 2_714
N = sum(SIZES)
JOB = """
dataset: sizes
publish: always
period: "2021"
input: {{path: {folder}/now.parquet}}
columns:
  unit: {{levels: [a, b]}}
  salary: {{bounds: [0, 150000], outside: clip}}
survey: {{weight: weight}}
outcome: salary
mechanism: {{name: {mechanism}}}
budget: {{epsilon: "1/10", adjacency: {adjacency}}}
reference: {{path: {folder}/before.parquet, period: "2020", provenance: public-use file of 2020}}
tables:
  - {{name: salaries, by: [unit], statistics: [count, {{mean: salary}}]}}
runtime: {{executor: serial}}
"""
Named = Callable[[str], AbstractContextManager[None]]


def job(folder: Path, adjacency: str = "add_remove", mechanism: str = "tables") -> Path:
    rng = np.random.default_rng(1)
    for name, sizes in (("now", SIZES), ("before", (1500, 1500))):
        salary, weight = rng.uniform(1e4, 1e5, sum(sizes)), rng.uniform(1.0, 3.0, sum(sizes))
        rows = {"unit": np.repeat(["a", "b"], sizes), "salary": salary, "weight": weight}
        pd.DataFrame(rows).to_parquet(folder / f"{name}.parquet")
    (folder / "job.yaml").write_text(JOB.format(folder=folder, adjacency=adjacency, mechanism=mechanism))
    return folder / "job.yaml"


def told(text: str) -> set[int]:
    """Sizes that stand in a text as numbers of their own, also with a comma or as decimals."""
    numbers = re.findall(r"(?<![\d.,])\d[\d,]*(?:\.0+)?(?![\d.])", text)
    return {*SIZES, N} & {int(float(number.replace(",", ""))) for number in numbers}


def stands_in(path: Path) -> set[int]:
    if path.suffix != ".parquet":
        return told(path.read_bytes().decode("utf-8", "replace"))
    rows = pd.read_parquet(path)
    return told(rows.to_csv(index=False)) | ({*SIZES, N} & {len(rows)})


def outside(work: Path) -> list[Path]:
    return [path for path in work.rglob("*") if path.is_file() and work / "confidential" not in path.parents]


@pytest.mark.parametrize(("mechanism", "noise"), [("tables", "sizes of tables")])
def test_no_file_no_line_and_no_screen_of_a_run_tells_a_secret_size(
    mechanism: str, noise: str, tmp_path: Path, noise_of: Named
) -> None:
    """Under noise by which no error margin happens to be such a number."""
    file, work, log = str(job(tmp_path, mechanism=mechanism)), tmp_path / "work", tmp_path / "log"
    with noise_of(noise):
        screens = [succeed("run", file, "-w", str(work), "--log", str(log), "--json")]
    screens += [succeed("status", str(work)), succeed("status", str(work), "--json"), succeed("report", str(work))]
    screens += [succeed("validate", file), succeed("plan", file), succeed("cluster", "size", file)]
    assert [told(screen) for screen in [*screens, log.read_text()]] == [set()] * 8
    assert {path.name: found for path in outside(work) if (found := stands_in(path))} == {}
    assert "protect" in log.read_text(), "the stages are told"
    assert all("not shown: the job keeps sizes confidential" in screen for screen in screens[4:6])
    inside = pd.read_feather(work / "confidential" / "records" / "records.arrow")
    assert len(inside) == N, "control: inside, it is there"


def test_figures_of_a_run_do_not_tell_a_secret_size(tmp_path: Path, noise_of: Named) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    pages: list[str] = []

    def ask(event: Event) -> None:
        with urllib.request.urlopen(f"http://{place}/metrics", timeout=10) as page:
            pages.append(page.read().decode())

    with noise_of("sizes"), observed(tmp_path / "work", None, place, ask) as listener:
        run(load_job(str(job(tmp_path))), tmp_path / "work", listener=listener)
    assert 'dpdist_stage_done{stage="protect"} 1.0' in pages[-1]
    assert "dpdist_task_seconds_count 0.0" in pages[-1], "tasks are cut by records"
    assert set().union(*map(told, pages)) == set()


def test_control_where_sizes_are_public_the_same_search_finds_them(tmp_path: Path, noise_of: Named) -> None:
    file, work, log = str(job(tmp_path, "zero_out")), tmp_path / "work", tmp_path / "log"
    with noise_of("sizes"):
        said = succeed("run", file, "-w", str(work), "--log", str(log), "--json")
    for text in (said, log.read_text(), succeed("status", str(work)), succeed("plan", file), succeed("validate", file)):
        assert N in told(text)
    assert {path.name for path in outside(work) if N in stands_in(path)} >= {"status.json", "set-1.parquet"}


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out"])
def test_only_the_owner_may_read_the_status(tmp_path: Path, adjacency: str) -> None:
    work = tmp_path / "work"
    succeed("run", str(job(tmp_path, adjacency)), "-w", str(work), "-q")
    assert (work / "status.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((work / "status.json").read_text())["state"] == "finished"

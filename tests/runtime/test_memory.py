"""Projected memory of tasks and drivers, and time, against what runs took: within [.8, 1.5], and a task never below."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpdist
from dpdist.cli.manifests import driver_memory, worker_memory
from dpdist.confidential.records import Records
from dpdist.core.files import sha256
from dpdist.core.keys import Key
from dpdist.core.progress import silent
from dpdist.core.records import Codes, Crosstab
from dpdist.job import Runtime
from dpdist.planning import plan as planning
from dpdist.planning.blocks import PROCESS_BYTES
from dpdist.planning.making import make_plan
from dpdist.publish.released import ReleasedObject, read_released
from dpdist.publish.synthesis import synthesize
from dpdist.runtime.dask_executor import Dask
from dpdist.runtime.executors import executor
from dpdist.runtime.reference import store_records
from dpdist.runtime.services import NANNY_BYTES
from dpdist.runtime.strata import create_stores, protect_all
from dpdist.runtime.tasks import open_fit
from dpdist.storage.ownership import owned
from dpdist.storage.tables import MAPPED, write_records
from dpdist.storage.workspace import Identity, Workspace

JOB = """
dataset: memory
period: "1"
input: {{simulate: {{kind: doctorates, population: {population}, sample: {n}, seed: 1}}}}
columns:
  field: {{levels: [biology, computing, mathematics, physical_sciences, psychology, social_sciences, engineering, health]}}
  sex: {{levels: [male, female]}}
  salary: {{bounds: [0, 10000000]}}
survey: {{weight: weight, design_strata: [field]}}
outcome: salary
model: {{family: lognormal, predictors: {predictors}}}
mechanism: {{name: weighted}}
budget: {{epsilon: "3.6"}}
sampler: {{name: {sampler}, draws: {draws}}}
tables: [{{name: t, statistics: [count]}}]
record: {{log_lik: {log_lik}}}
"""
GRID = [(300, "[]", 1000, "always"), (20_000, "[field, sex]", 1000, "always"), (3000, "[field, sex]", 10_000, "always")]
LARGE = [
    (200_000, "[sex]", 1000, "never"),
    (200_000, "[sex]", 1000, "always"),
    (600_000, "[field, sex]", 1000, "never"),
    (2_000_000, "[sex]", 100, "never"),
    (20_000, "[sex]", 20_000, "always"),
    (1000, "[field, sex]", 100_000, "never"),
]


def peak() -> int:
    """Peak resident memory of this process, bytes (`ru_maxrss` would count the parent's, at the fork)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def measured_and_projected(
    folder: Path, n: int, predictors: str, draws: int, log_lik: str, sampler: str = "exact"
) -> tuple[int, int]:
    said = {"n": n, "predictors": predictors, "draws": draws, "log_lik": log_lik, "sampler": sampler}
    job = dpdist.parse_job(JOB.format(population=3 * n, **said))
    plan, space = make_plan(job, None, silent), Workspace(folder)
    identity = Identity(job.identity, plan.source.fingerprint())
    with owned(space, identity, None), executor(Runtime(executor="dask", workers=1)) as workers:
        assert isinstance(workers, Dask)
        store_records(space, plan, identity, silent)
        fit = open_fit(space, Key.from_hex(space.key.read_text()), "strata")
        create_stores(fit)
        assert not protect_all(fit, workers, silent)
        (measured,) = workers.client.run(peak).values()
    return measured, fit.layout.largest_task_bytes


@pytest.mark.parametrize("case", [*GRID, *(pytest.param(*[case], marks=pytest.mark.slow) for case in LARGE)], ids=str)
@pytest.mark.long
def test_a_task_never_needs_more_than_projected_nor_much_less(case: tuple[int, str, int, str], tmp_path: Path) -> None:
    measured, projected = measured_and_projected(tmp_path, *case)
    print(f"n, p, S, tensors {case}: measured {measured / 2**20:.0f} MiB, projected {projected / 2**20:.0f} MiB")
    assert measured <= projected <= 1.5 * measured


@pytest.mark.long
def test_nor_does_a_task_under_stan(tmp_path: Path, stan_cache: Path) -> None:
    measured, projected = measured_and_projected(tmp_path, 3000, "[sex]", 500, "always", "stan")
    print(f"under Stan: measured {measured / 2**20:.0f} MiB, projected {projected / 2**20:.0f} MiB")
    assert measured <= projected <= 2 * measured


def test_the_plan_refuses_what_cannot_fit_and_says_what_would() -> None:
    text = JOB.format(population=9000, n=3000, predictors="[sex]", draws=1000, log_lik="always", sampler="exact")
    job = dpdist.parse_job(text + "runtime: {memory_per_worker: 256MiB}\n")
    with pytest.raises(dpdist.JobError) as refused:
        dpdist.validate(job)
    assert "memory_per_worker" in str(refused.value)
    assert "at least that" in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> ReleasedObject:
    said = {"n": 3000, "predictors": "[sex]", "draws": 100, "log_lik": "never", "sampler": "exact"}
    dpdist.run(dpdist.parse_job(JOB.format(population=9000, **said)), folder := tmp_path_factory.mktemp("memory") / "ws")
    return read_released(folder / "public" / "released")


def synthesizing(release: ReleasedObject, times: int, folder: Path) -> int:
    """The most memory, bytes, while synthetic records are written, `times` as many as the release has."""
    crosstab = replace(release.crosstab, count=release.crosstab.count * times)
    tracemalloc.start()
    try:
        synthesize(replace(release, crosstab=crosstab), folder, lambda _: None)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def expanded_at_once(self: Crosstab, rows: slice, size: int) -> Iterator[Codes]:
    whole = np.repeat(np.arange(rows.start, rows.stop, dtype=np.int32), self.count[rows])
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


def test_memory_does_not_grow_with_the_number_of_synthetic_records(
    release: ReleasedObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 0.3 to 1.2 million records, by less than a byte a record. Control: the rows of all records at once, which hold
    four bytes for each, and which the files do not show."""
    more = 900_000
    grown = synthesizing(release, 400, tmp_path / "many") - synthesizing(release, 100, tmp_path / "few")
    monkeypatch.setattr(Crosstab, "expanded", expanded_at_once)
    control = synthesizing(release, 400, tmp_path / "control") - synthesizing(release, 100, tmp_path / "control few")
    print(f"grown by {grown / more:.2f} bytes a record, control by {control / more:.2f}")
    assert grown < more
    assert control > 3 * more
    assert sha256(tmp_path / "many" / "set-1.parquet") == sha256(tmp_path / "control" / "set-1.parquet")


STRICT = """
dataset: memory
period: "2"
input: {{path: {folder}/now.parquet}}
columns:
  field: {{levels: [arts, health, law]}}
  salary: {{bounds: [0, 150000], outside: clip}}
survey: {{weight: weight}}
outcome: salary
mechanism: {{name: tables}}
budget: {{epsilon: "1", adjacency: substitution}}
reference: {{path: {folder}/before.parquet}}
tables: [{{name: salaries, by: [field], statistics: [count, {{mean: salary}}]}}]
compare: [laplace, laplace_composed, laplace_finest, reference_only, fbs, fbp]
runtime: {{executor: serial}}
"""
RUN = """
import sys
from pathlib import Path
import dpdist
dpdist.run(dpdist.parse_job(Path(sys.argv[1], "job.yaml").read_text(encoding="utf-8")), Path(sys.argv[1], "ws"))
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")).split()[1])
"""


WHOLE = """
import json, sys, threading, time
from pathlib import Path
import psutil
import dpdist

def peak(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)

workers = {}
def look():
    while True:
        for child in psutil.Process().children(recursive=True):
            try:
                workers[child.pid] = max(peak(child.pid), workers.get(child.pid, 0))  # one that has ended has none
            except OSError:
                pass
        time.sleep(0.2)

threading.Thread(target=look, daemon=True).start()
folder = Path(sys.argv[1])
dpdist.run(str(folder / "job.json"), folder / "ws")
times = psutil.Process().cpu_times()
seconds = times.user + times.system + times.children_user + times.children_system
print(json.dumps({"driver": peak("self"), "worker": max(workers.values(), default=0), "seconds": seconds}))
"""


class Took(NamedTuple):
    """Peak memory of the driver and of the largest worker, in bytes, and processor seconds of both."""

    driver: int
    worker: int
    seconds: float


def units(folder: Path, strata: int, records: int, draws: int, executor: str, tables: int = 1) -> Path:
    """A job over so many strata of so many records each, in closed form."""
    folder.mkdir(exist_ok=True)
    rng, n, names = np.random.default_rng(1), strata * records, [f"u{k:06d}" for k in range(strata)]
    columns = {"unit": np.repeat(np.array(names), records), "sex": rng.choice(np.array(["f", "m"]), n)}
    columns |= {"pay": np.round(np.exp(rng.normal(10.8, 0.6, n))), "w": np.exp(rng.normal(3.0, 0.5, n))}
    pq.write_table(pa.table(columns), folder / "now.parquet")
    job = {
        "dataset": "memory",
        "period": "3",
        "input": {"path": str(folder / "now.parquet")},
        "columns": {"unit": {"levels": names}, "sex": {"levels": ["f", "m"]}, "pay": {"bounds": [0, 10_000_000]}},
        "survey": {"weight": "w", "design_strata": ["unit"]},
        "strata": ["unit"],
        "outcome": "pay",
        "model": {"family": "lognormal", "predictors": ["sex"]},
        "mechanism": {"name": "weighted"},
        "budget": {"epsilon": "10.8"},
        "sampler": {"name": "exact", "draws": draws},
        "tables": [
            {"name": "_".join(by), "by": by, "margins": True, "statistics": ["count", {"mean": "pay"}]}
            for by in (["unit"], ["unit", "sex"])[:tables]
        ],
        "runtime": {"executor": executor},
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    return folder / "job.json"


def taken(folder: Path) -> Took:
    """What a run takes, in a process of its own."""
    line = [sys.executable, "-c", WHOLE, str(folder)]
    ended = subprocess.run(line, check=True, capture_output=True, text=True)
    return Took(**json.loads(ended.stdout.splitlines()[-1]))


def slow(*case: object) -> object:
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from Linux's /proc")
@pytest.mark.long
@pytest.mark.parametrize("executor", ["serial", "dask"])
@pytest.mark.parametrize(
    ("strata", "records", "draws", "tables"),
    [
        (25, 100, 200, 1),
        (100, 100, 1000, 1),
        (1, 500_000, 200, 1),
        *(slow(*case) for case in [(1, 60_000, 200, 1), (1000, 100, 1000, 1), (1, 2_000_000, 200, 1)]),
        *(slow(*case) for case in [(3000, 100, 200, 1), (3000, 30, 100, 2), (10_000, 30, 100, 1)]),
    ],
)
def test_what_a_run_takes_is_what_its_plan_says(
    strata: int, records: int, draws: int, tables: int, executor: str, tmp_path: Path
) -> None:
    """Memory of driver and worker within [.8, 1.5] of the measured peak, containers of a cluster above it, time within
    [.5, 2] of the plan's, in units of what a run of 2,500 records takes beside it: machines differ in speed, and one
    machine does from hour to hour. Control: a process that was planned for no strata would be planned for too little.
    """
    plan = dpdist.validate(str(units(tmp_path / "units", strata, records, draws, executor, tables)))
    took = taken(tmp_path / "units")
    assert plan.cost is not None
    shown = [f"{value / 2**20:,.0f}" for value in (plan.largest_task_bytes, took.worker, plan.driver_bytes, took.driver)]
    print(f"{strata} strata of {records}, {tables} tables, {executor}: worker {shown[0]} ({shown[1]}),", end=" ")
    print(f"driver {shown[2]} ({shown[3]}) MiB")
    print(f"    seconds {plan.cost.seconds:.1f} ({took.seconds:.1f})")
    assert 0.8 * took.driver <= plan.driver_bytes <= 1.5 * took.driver
    if executor == "dask":
        assert took.worker <= plan.largest_task_bytes <= 1.5 * took.worker
        assert took.driver <= driver_memory(plan)
        assert took.worker + NANNY_BYTES <= worker_memory(plan) <= 1.5 * (took.worker + NANNY_BYTES)
    if strata * records >= 10_000:
        small = dpdist.validate(str(units(tmp_path / "small", 25, 100, 200, executor)))
        assert small.cost is not None
        planned = plan.cost.seconds * taken(tmp_path / "small").seconds / small.cost.seconds
        assert 0.5 * took.seconds <= planned <= 2 * took.seconds
    if strata * tables >= 6000:
        assert 0.8 * took.driver > PROCESS_BYTES, "control"


def write_survey(path: Path, seed: int, n: int) -> None:
    """In parts: a file of any size."""
    rng, writer = np.random.default_rng(seed), None
    for _ in range(0, n, 100_000):
        size = min(n, 100_000)
        columns = {"field": np.array(["arts", "health", "law"])[rng.choice(3, size)]}
        columns["salary"] = np.minimum(np.round(np.exp(rng.normal(10.8, 0.6, size))), 150_000.0)
        columns["weight"] = np.exp(rng.normal(5.0, 0.8, size))
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from Linux's /proc")
def test_a_strict_run_with_all_comparators_grows_by_less_than_half_of_the_records_it_reads(tmp_path: Path) -> None:
    """Peaks of whole runs (read, released, evaluated) in processes of their own. Control: the records that they look at
    grow by twice what they may grow by."""
    peaks, sizes = [], []
    for n in (600_000, 6_000_000):
        folder = tmp_path / str(n)
        folder.mkdir()
        write_survey(folder / "now.parquet", 1, n)
        write_survey(folder / "before.parquet", 2, 30_000)
        (folder / "job.yaml").write_text(STRICT.format(folder=folder), encoding="utf-8")
        said = subprocess.run([sys.executable, "-c", RUN, str(folder)], check=True, capture_output=True, text=True)
        peaks.append(int(said.stdout) * 1024)
        sizes.append(Workspace(folder / "ws").records.stat().st_size)
    grown, read = peaks[1] - peaks[0], sizes[1] - sizes[0]
    print(f"peaks {[f'{each / 2**20:.0f} MiB' for each in peaks]}, files of records grow by {read / 2**20:.0f} MiB")
    assert grown < read / 2
    assert read > 160 * 2**20, "control"


def test_a_model_that_knows_its_cost_is_planned_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost has the draws of its tables, of however many bytes. Control: counted again, they would take more."""
    monkeypatch.setattr(planning, "NUMBER", 2**30)
    for seed, name in enumerate(("now", "before")):
        write_survey(tmp_path / f"{name}.parquet", seed, 3000)
    job = STRICT.replace("tables: [", "tables: [{{name: all, statistics: [count]}}, ").format(folder=tmp_path)
    plan = dpdist.validate(dpdist.parse_job(job))
    assert plan.cost is not None
    assert plan.largest_task_bytes == max(plan.cost.bytes, plan.layout.largest_task_bytes)
    assert plan.publishing_bytes == plan.cost.bytes
    assert planning.drawn_bytes(plan.job, plan.crosstab, plan.model) > plan.cost.bytes, "control"


SIZES = """
import sys
from pathlib import Path
from dpdist.storage import tables

def peak():
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)

tables.MAPPED, before = int(sys.argv[2]), peak()
_, edges = tables._batches(Path(sys.argv[1]))
print(len(edges) - 1, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from Linux's /proc")
def test_sizes_of_batches_are_found_without_mapping_the_whole_file(tmp_path: Path) -> None:
    """800 batches, by less than 16 MiB. Control: all in one map, where the system maps 64 KiB and more around each."""
    each, batches = 4096, 800
    number, none = np.arange(each * batches), np.zeros(each * batches)
    codes = np.zeros(each * batches, dtype=np.int32)
    path = tmp_path / "records.arrow"
    write_records(path, Records(number, codes, none, none, codes), range(0, len(number) + 1, each))
    grown = {}
    for mapped in (MAPPED, batches):
        line = [sys.executable, "-c", SIZES, str(path), str(mapped)]
        found, grown[mapped] = map(int, subprocess.run(line, check=True, capture_output=True, text=True).stdout.split())
        assert found == batches
    print(f"grown by {grown} KiB")
    assert grown[MAPPED] < 16 * 1024
    assert grown[batches] > 32 * 1024, "control"

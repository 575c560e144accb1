"""What a release of many records costs, in one command: processor time and memory by number of records.

    python experiments/census.py strict 1e6 1e7 1e8 --folder FOLDER
    python experiments/census.py weighted 1e5 1e6 1e7 --folder FOLDER

The records are made in pieces of 10⁶, each from its own seed: 51 areas, 6 age groups, 2 sexes, an income in whole
dollars, a weight and four more columns that no job names. Each size is one `dpdist run` in a process of its own. Processor
seconds are what it and its children used. Memory is the largest resident set of all of them together. Beside it stands the
processor time to read the same columns with PyArrow, on one thread, batch by batch. Other work on the machine lengthens
time far more than processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

PIECE, AREAS, AGES = 1_000_000, 51, ("0-17", "18-29", "30-44", "45-59", "60-74", "75+")
ACS = 3_500_000
"""People in a year's file of the American Community Survey, about."""
COMMON = """
dataset: census
period: "2020"
input: {{path: {path}}}
columns:
  area: {{levels: [{areas}]}}
  sex: {{levels: [f, m]}}
  income: {{bounds: [0, 1000000], outside: clip}}
survey: {{weight: weight{design}}}
outcome: income
{rest}
tables: [{{name: incomes, by: [area, sex], statistics: [count, {{mean: income}}]}}]
"""
KINDS = {
    "strict": """mechanism: {{name: tables}}
budget: {{epsilon: "1", adjacency: substitution}}
reference: {{path: {reference}}}
runtime: {{executor: serial}}""",
    "weighted": """strata: [area]
model: {{family: lognormal, predictors: [sex]}}
mechanism: {{name: weighted, fallback: refuse}}
budget: {{epsilon: "10.8"}}
sampler: {{draws: {draws}}}
record: {{log_lik: never}}
runtime: {{executor: serial}}""",
}


class Cost(NamedTuple):
    """One release: records, processor seconds of it and of reading alone, seconds, bytes at the most."""

    records: int
    processor: float
    reading: float
    seconds: float
    memory: int


def areas() -> list[str]:
    return [f"a{k:02d}" for k in range(AREAS)]


def survey(path: Path, n: int, seed: int) -> Path:
    """A Parquet file, made in pieces; kept for the next call."""
    if path.exists():
        return path
    part = path.with_suffix(".part")
    labels = {"area": areas(), "sex": ["f", "m"], "age": list(AGES)}
    with pq.ParquetWriter(part, piece(labels, 1, 0, 0).schema) as writer:
        for k, start in enumerate(range(0, n, PIECE)):
            writer.write_table(piece(labels, min(PIECE, n - start), seed, k), row_group_size=131_072)
    part.rename(path)
    return path


def piece(labels: dict[str, list[str]], n: int, seed: int, k: int) -> pa.Table:
    rng = np.random.default_rng([seed, k])
    columns = {
        name: pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, len(said), n).astype(np.int32)), pa.array(said))
        for name, said in labels.items()
    }
    columns["income"] = pa.array(np.clip(np.round(np.exp(rng.normal(10.6, 0.7, n))), 1, 999_999))
    columns["weight"] = pa.array(np.exp(rng.normal(3.0, 0.3, n)))
    columns |= {f"other{j}": pa.array(rng.integers(0, 1000, n).astype(np.int32)) for j in range(4)}
    return pa.table(columns)


def reading(path: Path) -> float:
    """Processor seconds of reading the columns that a job names."""
    began = time.process_time()
    for batch in pq.ParquetFile(path).iter_batches(columns=["area", "sex", "income", "weight"], use_threads=False):
        len(batch)
    return time.process_time() - began


def largest(process: psutil.Process, found: list[int], ended: threading.Event) -> None:
    """The most that the process and its children hold, looked at ten times a second."""
    while not ended.wait(0.1):
        total = 0
        try:
            for one in (process, *process.children(recursive=True)):
                total += one.memory_info().rss
        except psutil.Error:
            continue
        found[0] = max(found[0], total)


def release(kind: str, path: Path, folder: Path, draws: int) -> Cost:
    n = pq.ParquetFile(path).metadata.num_rows
    reference = survey(folder / "reference.parquet", 35_000, 99)
    design = ", design_strata: [area]" if kind == "weighted" else ""
    rest = KINDS[kind].format(reference=reference, draws=draws)
    job, workspace = folder / f"{kind}-{n}.yaml", folder / f"{kind}-{n}-workspace"
    job.write_text(COMMON.format(path=path, areas=", ".join(areas()), rest=rest, design=design))
    before, began, found, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), [0], threading.Event()
    line = [sys.executable, "-m", "dpdist", "run", str(job), "--workspace", str(workspace), "--quiet"]
    process = subprocess.Popen(line, env={**os.environ, "OMP_NUM_THREADS": "1"})
    watch = threading.Thread(target=largest, args=(psutil.Process(process.pid), found, ended))
    watch.start()
    code = process.wait()
    ended.set()
    watch.join()
    if code:
        sys.exit(f"the release of {n:,} records ended with {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(n, used, reading(path), time.monotonic() - began, found[0])


def said(found: list[Cost]) -> str:
    """A table, and what a record costs beyond the smaller size: the slope, without what every release costs."""
    lines = [
        f"{'records':>12} {'processor s':>12} {'µs a record':>12} {'reading it':>11} {'seconds':>8} {'MB at most':>11}"
    ]
    for one in found:
        each, read = 1e6 * one.processor / one.records, 1e6 * one.reading / one.records
        rates = f"{one.records:>12,} {one.processor:>12.1f} {each:>12.2f} {read:>11.3f}"
        lines.append(f"{rates} {one.seconds:>8.1f} {one.memory / 1e6:>11,.0f}")
    for small, large in pairwise(found):
        each = (large.processor - small.processor) / (large.records - small.records)
        whole = max(0.0, small.processor - each * small.records) + each * ACS
        read = large.reading / large.records / each
        lines.append(
            f"from {small.records:,} to {large.records:,}: {1e6 * each:.2f} µs a record more, {read:.1%} of it reading"
        )
        lines.append(
            f"  {large.memory / small.memory:.2f} times the memory; {ACS:,} records: {whole / 3600:.3f} core-hours"
        )
    return "\n".join(lines)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("kind", choices=list(KINDS))
    asked.add_argument("sizes", nargs="+", type=float)
    asked.add_argument("--folder", type=Path, required=True)
    asked.add_argument("--draws", type=int, default=1000)
    asked.add_argument("--json", type=Path)
    given = asked.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    found: list[Cost] = []
    for n in map(int, given.sizes):
        path = survey(given.folder / f"survey-{n}.parquet", n, 1)
        found.append(release(given.kind, path, given.folder, given.draws))
        print(said(found[-1:]), flush=True)
    print(said(found))
    if given.json is not None:
        given.json.write_text(json.dumps([one._asdict() for one in found], indent=1))


if __name__ == "__main__":
    main()

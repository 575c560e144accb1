"""The fault campaign in pods: one strict release of many strata, disturbed to its end, beside its serial twin.

python tests/deploy/kubernetes/pod_campaign.py --programs FOLDER --image dpdist.tar --out FOLDER [--strata 600]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the package of this checkout
sys.path.insert(0, str(Path(__file__).parents[2] / "faults"))

from campaign import Kept, Survey
from node_images import Stock
from nodes import running
from pod_faults import schedule
from pods import Release

STRICT = """
dataset: units
period: "2020"
input: {{path: {path}}}
columns:
  unit: {{levels: [{units}]}}
  sex: {{levels: [male, female]}}
  salary: {{bounds: [1000, 1000000], outside: clip}}
  weight: {{bounds: [1, 100], outside: clip}}
survey: {{weight: weight}}
strata: [unit]
outcome: salary
mechanism: {{name: modips, law: lognormal}}
budget: {{epsilon: "12"}}
synthetic_sets: 2
tables:
  - {{name: salaries, by: [sex], statistics: [count, {{mean: salary}}]}}
runtime: {{executor: dask}}
"""
RECORDS = 500
SHARE_OF_RUN = 0.75
"""The plan is done when this much of the release is."""
BETWEEN = 12.0
"""Seconds to the next fault at most; it comes earlier where as much of the release is done as of the plan."""


def strict_job(folder: Path, strata: int, records: int = RECORDS) -> Path:
    """A strict release of units, whose noise is drawn stratum by stratum and kept."""
    folder.mkdir(parents=True, exist_ok=True)
    survey = Survey(folder, (records,) * strata, draws=1)
    (folder / "job.yaml").write_text(STRICT.format(path=survey.input(), units=", ".join(survey.units)))
    return folder / "job.yaml"


def strata_done(release: Release) -> int:
    """Strata with their own mark; kept noise has marks too."""
    marks = release.workspace / "confidential" / "marks"
    return sum(bool(re.fullmatch(r"strata-\d+\.json", name)) for name in (os.listdir(marks) if marks.exists() else ()))


class Watch(threading.Thread):
    """Looks at the noise that a release keeps: how often a file came to hold other noise than before, or was gone."""

    def __init__(self, workspace: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.seen, self.redrawn, self.over = workspace / "confidential" / "noise", {}, 0, threading.Event()
        self.stamps: dict[str, tuple[int, int]] = {}

    def look(self) -> None:
        for path in self.folder.glob("*.npz"):
            try:
                said = path.stat()
                stamp = (said.st_ino, said.st_mtime_ns)
                if self.stamps.get(path.name) == stamp:
                    continue
                held = hashlib.sha256(path.read_bytes()).hexdigest()
            except FileNotFoundError:
                continue
            self.redrawn += self.seen.get(path.name, held) != held
            self.seen[path.name], self.stamps[path.name] = held, stamp

    def run(self) -> None:
        while not self.over.wait(1.0):
            self.look()

    def end(self) -> int:
        """Noise that was drawn again, or is no longer there."""
        self.over.set()
        self.join()
        self.look()
        return self.redrawn + sum(not (self.folder / name).exists() for name in self.seen)


def campaign(release: Release, job: Path, strata: int, say=print) -> dict[str, object]:
    """A release under every fault of the plan, and what became of it."""
    rng, began, done = random.Random(1), time.monotonic(), list[str]()
    objects = release.manifests(job, "--workers", "4")
    release.apply(objects)
    release.cluster.until(lambda: strata_done(release) >= 20, "the first strata", 600)
    watch, kept = Watch(release.workspace), Kept(release.workspace)
    watch.start()
    left = schedule(rng)
    total = len(left)
    while left and not release.job_state():
        due, last = SHARE_OF_RUN * strata * len(done) / total, time.monotonic() + BETWEEN
        while strata_done(release) < due and time.monotonic() < last:
            time.sleep(0.5)
        fault = left.pop(0)
        if hit := fault(release, rng):
            done.append(fault.__name__)
            say(f"{time.monotonic() - began:6.0f} s  {hit}; {strata_done(release)} strata done")
        else:
            left.append(fault)  # there was nothing to hit: later
            time.sleep(0.5)
        kept.look()
    ended = release.until_ended(patience=1800)
    kept.look()
    seconds, redrawn = time.monotonic() - began, watch.end()
    status = json.loads((release.workspace / "status.json").read_text())
    said = {"ended": ended, "faults": len(done), **Counter(done), "strata": strata, "lost": release.lost(strata)}
    said |= {"noise files": len(watch.seen), "redrawn": redrawn, "finished files changed": len(kept.changed)}
    said |= {"finished files written again with their own bytes": sorted(kept.again)}
    said |= {"driver starts": status["starts"], "retries": status["retries"], "seconds": round(seconds)}
    began = time.monotonic()
    said["serial bytes"] = release.same_bytes(objects)
    return said | {"serial seconds": round(time.monotonic() - began)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--programs", type=Path, required=True, help="what build.sh made")
    asked.add_argument("--image", type=Path, required=True, help="what deploy/build.sh made")
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--strata", type=int, default=600)
    said = asked.parse_args()
    stock = Stock(said.out / "images", said.programs / "bin")
    stock.load(said.image)
    with running(said.out / "cluster", said.programs / "bin", stock) as cluster:
        found = campaign(Release(cluster), strict_job(said.out / "job", said.strata), said.strata)
    (said.out / "campaign.json").write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))
    if not (found["serial bytes"] and found["lost"] == found["redrawn"] == found["finished files changed"] == 0):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

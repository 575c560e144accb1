"""The campaign on a cluster of network namespaces, in one command (root on Linux, iproute2 and util-linux):

    python tests/faults/cluster_campaign.py --out FOLDER [--strata 1000] [--workers 4] [killed_workers cut_link …]

One release in one process, the same undisturbed on the cluster, then once under every kind of fault: each has to end with
the bytes of the first. Prints a table; writes it as campaign.md, and as campaign.json with what was run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this checkout

from campaign import Server, Survey, public_bytes, strata_done, wait_until
from deployed import Release, deployed, opened, serial_release
from disturbances import DISTURBANCES, Disturbance, nothing

RECORDS, DRAWS = 60, 200
BEGUN = 20
"""Strata that are done before the first fault."""
PATIENCE = 900.0
STORAGE = "400m"
"""Size of the shared folder's file system: small, that it can be filled."""


class Row(NamedTuple):
    """What became of a release under one kind of fault."""

    scenario: str
    injected: int
    survived: int
    """Faults after which the release ended with the serial run's bytes: all or none."""
    lost: int
    """Strata that are not there, whole, at the end."""
    tasks: int
    twice: int
    """Executions of tasks beyond one each, by the workers' logs."""
    strata_twice: int
    """Strata that were made to their end more than once: the work lost is that and the strata cut short."""
    starts: int
    """Of the driver."""
    seconds: float
    """From the driver's first start to its last end."""
    over_undisturbed: float
    """Those seconds over the undisturbed release's on the same cluster, less 1."""
    over_serial: float
    """Those seconds over the serial release's."""
    identical: bool


HEADS = {
    "scenario": "fault",
    "injected": "injected",
    "survived": "survived",
    "lost": "strata lost",
    "tasks": "tasks",
    "twice": "tasks run twice",
    "strata_twice": "strata made twice",
    "starts": "driver starts",
    "seconds": "seconds",
    "over_undisturbed": "over undisturbed",
    "over_serial": "of serial",
    "identical": "serial bytes",
}


class Times(NamedTuple):
    serial: float
    undisturbed: float | None


def disturbed(release: Release, name: str, disturbance: Disturbance, serial: Path, times: Times) -> Row:
    """Runs a deployed release to its end under a disturbance that begins when some strata are done."""
    rng, began = random.Random(name), time.monotonic()
    release.start_all()
    wait_until(lambda: strata_done(release.workspace) >= BEGUN or not release.running("driver"))
    assert release.running("driver"), release.containers.log("driver")[-2000:]
    assert strata_done(release.workspace) < len(release.survey.sizes), "control: there was work left"
    steps, next_step = disturbance(release, rng), 0.0
    for _ in release.tended(PATIENCE):
        if time.monotonic() >= next_step and (left := next(steps, None)) is not None:
            next_step = time.monotonic() + left
    seconds = time.monotonic() - began
    for machine in release.workers:
        release.machines.join(machine)
    same, executions = public_bytes(release.workspace) == public_bytes(serial), release.executions()
    return Row(
        scenario=name,
        injected=release.injected,
        survived=release.injected if same else 0,
        lost=release.lost(),
        tasks=len(executions),
        twice=executions.total() - len(executions),
        strata_twice=release.strata_made().total() - len(release.strata_made()),
        starts=release.drivers,
        seconds=round(seconds, 1),
        over_undisturbed=round(seconds / (times.undisturbed or seconds) - 1, 3),
        over_serial=round(seconds / times.serial, 3),
        identical=same,
    )


def run_campaign(folder: Path, strata: int, workers: int, names: Sequence[str], say=print) -> list[Row]:
    """The undisturbed release and one under each kind of fault, each on a cluster of its own."""
    survey = Survey(opened(folder / "survey"), (RECORDS,) * strata, draws=DRAWS, log_lik="never")
    dpdist, rows = Server(), list[Row]()
    try:
        serial, seconds = serial_release(survey, dpdist, folder / "serial")
    finally:
        dpdist.close()
    say(f"serial: {seconds:.0f} s")
    times = Times(seconds, None)
    for name, disturbance in {"nothing": nothing, **{name: DISTURBANCES[name] for name in names}}.items():
        with deployed(opened(folder / name), survey, workers, serial=serial, size=STORAGE) as release:
            rows.append(disturbed(release, name, disturbance, serial, times))
        if name == "nothing":
            times = Times(seconds, rows[0].seconds)
        say(" ".join(f"{field}={value}" for field, value in rows[-1]._asdict().items()))
    return rows


def table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    lines = [list(HEADS.values()), ["---"] * len(HEADS)]
    lines += [[_shown(name, value) for name, value in row._asdict().items()] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _shown(name: str, value: object) -> str:
    if name == "over_undisturbed":
        return f"{value:+.0%}"
    if name == "over_serial":
        return f"{value:.2f}×"
    return {True: "yes", False: "NO"}[value] if isinstance(value, bool) else str(value)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("names", nargs="*", metavar="fault", choices=[*DISTURBANCES, []], help=", ".join(DISTURBANCES))
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--strata", type=int, default=1000)
    asked.add_argument("--workers", type=int, default=4)
    said = asked.parse_args()
    said.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        rows = run_campaign(Path(folder), said.strata, said.workers, said.names or list(DISTURBANCES))
    facts = {"strata": said.strata, "records": RECORDS, "draws": DRAWS, "workers": said.workers, "cores": os.cpu_count()}
    facts |= {"python": platform.python_version(), "load": os.getloadavg()[0]}
    (said.out / "campaign.json").write_text(json.dumps({**facts, "rows": [row._asdict() for row in rows]}, indent=2) + "\n")
    (said.out / "campaign.md").write_text(table(rows))
    print(table(rows))
    if not all(row.identical and row.lost == 0 for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

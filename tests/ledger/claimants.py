"""Many processes that claim budget of one ledger at once, and are killed while they do. Run as a program.

Until enough of them were killed, a process that ends is begun again too: a repeated command is charged no second time.

Prints which runs were told that they are charged, and which that the budget is spent.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this checkout

from dpdist.core.errors import BudgetRefused
from dpdist.job import Limits
from dpdist.ledger.accounts import Charge
from dpdist.ledger.book import Ledger


def claim(place: str, run: int, told: int) -> None:
    """Reserve and settle one run, as it would: what it is told is written down before it goes on."""
    charge = Charge("wages", "2021", f"run-{run}", "strict", "zero_out", Fraction(1, 3), Fraction(0), "job")
    ledger = Ledger(place)
    try:
        ledger.reserve(charge, Limits())
    except BudgetRefused:
        os.write(told, f"refused {run}\n".encode())
        return
    os.write(told, f"charged {run}\n".encode())
    ledger.settle(charge, "noise")


def begun(place: str, run: int, told: int, gate: tuple[int, int] | None = None) -> int:
    """A process that claims, once the gate is open if there is one."""
    child = os.fork()
    if child == 0:
        if gate is not None:
            os.close(gate[1])
            os.read(gate[0], 1)  # ends when nobody holds the other side any more
        claim(place, run, told)
        os._exit(0)
    return child


def main(place: str, number: int, kills: int) -> None:
    Ledger(place).entries()  # what is imported for it is imported before the forks
    heard, told = os.pipe()
    gate = os.pipe()
    rng = random.Random(number)
    running = {begun(place, run, told, gate): run for run in range(number)}
    os.close(gate[1])  # all of them begin at once
    killed = 0
    while running:
        if killed < kills:
            time.sleep(rng.uniform(0, 0.03))
            victim = rng.choice(list(running))
            os.kill(victim, signal.SIGKILL)
        child, status = os.wait()
        run = running.pop(child)
        was_killed = os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        killed += was_killed
        if was_killed or killed < kills:
            running[begun(place, run, told)] = run  # the same command again, also of one that had ended
    os.close(told)
    with os.fdopen(heard) as ear:
        lines = [line.split() for line in ear]
    said = {word: sorted({int(run) for own, run in lines if own == word}) for word in ("charged", "refused")}
    print(json.dumps({**said, "killed": killed}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

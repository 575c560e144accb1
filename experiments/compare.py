"""Times the hot paths of two checkouts in turn, so that a change that makes one slower is seen:

    python experiments/compare.py BEFORE NOW [--pairs 7] [--only NAME ...]

BEFORE and NOW are checkouts; each has its own interpreter in `.venv` and its own `experiments/hot_paths.py`. One
process of each checkout prepares a path and then times it when it is told to: before, now, before, now. Time is that of the
processor. A row has the median of the ratios now/before of all pairs, the smallest and the largest.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path
from statistics import median

WORKER = """
import sys, tempfile, time
from pathlib import Path
from threadpoolctl import threadpool_limits
sys.path.insert(0, str(Path("experiments").resolve()))
from hot_paths import PATHS
print("answer", *PATHS, flush=True)
with threadpool_limits(1):
    for line in sys.stdin:
        if name := line.strip():
            timed = PATHS[name](Path(tempfile.mkdtemp(dir=sys.argv[1])))
            timed()
        start = time.process_time()
        timed()
        print("answer", time.process_time() - start, flush=True)
"""


class Worker:
    """A process of one checkout, in which paths are prepared and timed."""

    def __init__(self, checkout: Path, folder: str) -> None:
        command = [checkout.resolve() / ".venv/bin/python", "-W", "ignore", "-c", WORKER, folder]
        self.process = subprocess.Popen(
            command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self.names = self._answer()

    def _answer(self) -> list[str]:
        for line in self.process.stdout:
            if line.startswith("answer"):
                return line.split()[1:]
        raise SystemExit(f"{self.process.args[0]} ended")

    def seconds(self, prepared: str = "") -> float:
        """Processor seconds of the path; `prepared` names another path to prepare first."""
        self.process.stdin.write(prepared + "\n")
        self.process.stdin.flush()
        return float(self._answer()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("now", type=Path)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--only", nargs="+")
    said = parser.parse_args()
    print("| path | before, s | now, s | now/before | smallest | largest |\n|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        workers = [Worker(checkout, folder) for checkout in (said.before, said.now)]
        for name in said.only or workers[1].names:
            for worker in workers:
                worker.seconds(name)
            pairs = [[worker.seconds() for worker in workers] for _ in range(said.pairs)]
            ratios = [now / before for before, now in pairs]
            seconds = " | ".join(f"{median(side):.3f}" for side in zip(*pairs, strict=True))
            print(f"| {name} | {seconds} | {median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} |", flush=True)
        for worker in workers:
            worker.process.communicate()


if __name__ == "__main__":
    main()

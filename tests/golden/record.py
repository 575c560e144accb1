"""Records what the jobs of small_jobs release, or compares with what is recorded.

python tests/golden/record.py [NAME …]                  record these, or all; what no job has any more is deleted
python tests/golden/record.py --compare [NAME …]        compare in this environment: by bytes if it is plain.py's
python tests/golden/record.py --keep FOLDER [NAME …]    leave the workspaces there, to look into what differs

Records are made under the plain instruction set, whatever the environment says: the program starts itself anew there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what tests share
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the package of this checkout

import plain
from golden_runs import (
    GOLDENS,
    differences,
    other_libraries,
    precision,
    read_golden,
    released,
    write_golden,
    write_libraries,
)
from golden_studies import STUDIES, studied
from small_jobs import cases, reach
from small_runs import write_inputs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--keep", type=Path)
    said = parser.parse_args()
    jobs = cases()
    if unknown := set(said.names) - jobs.keys() - STUDIES.keys():
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if not said.compare and not plain.in_force():
        plain.rerun(sys.argv)
    if not said.compare and said.names and (others := other_libraries()):
        parser.error(f"the other records are of {', '.join(others)}: install these, or record all")
    failed = False
    folder = said.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    write_inputs(folder)
    for name in said.names or [*jobs, *STUDIES]:
        began = time.process_time()
        work = folder / name
        found = released(name, jobs[name], folder, work) if name in jobs else studied(name, folder, work)
        if said.compare:
            lines = differences(read_golden(name), found, precision(name))
            failed |= bool(lines)
            print(name, "the same" if not lines else "", *lines, sep="\n  " if lines else " ")
        else:
            write_golden(name, found)
            print(f"{name} {time.process_time() - began:.1f} s", flush=True)
    if not said.compare and not said.names:
        write_libraries()
        (GOLDENS.parent / "reach.json").write_text(json.dumps(reach(), indent=0) + "\n", encoding="utf-8")
        for path in GOLDENS.glob("*.json"):
            if path.stem not in jobs.keys() | STUDIES.keys():
                path.unlink()
    if said.keep is None:
        shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

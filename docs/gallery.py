"""Makes the releases of the gallery: shipped jobs, run on the embedded example and on public files, with their pages.

Files are those of `DPDIST_DATA`. A release whose file is not there has a page that says so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

Parts = Callable[[pd.DataFrame], tuple[pd.DataFrame, pd.DataFrame | None]]


def whole(rows: pd.DataFrame) -> tuple[pd.DataFrame, None]:
    return rows, None


def halves(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two halves at random: the second stands for an earlier file. Their weights are doubled."""
    first = np.random.default_rng(1).random(len(rows)) < 0.5
    rows = rows.assign(weight=2.0 * rows["weight"])
    return rows[first], rows[~first]


def elections(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The election of 2024, and that of 2022 as reference, of people who answered."""
    answered = rows[rows["voted"].notna()]
    return answered[answered["year"] == 2024], answered[answered["year"] == 2022]


class Example(NamedTuple):
    """A shipped job of the page `gallery.md`, its file, and how that becomes input and reference."""

    job: str
    file: str | None = None
    parts: Parts = whole


EXAMPLES: Sequence[Example] = (
    Example("doctorates"),
    Example("doctorates_tables"),
    Example("nhanes_bmi", "nhanes2015.parquet"),
    Example("vote_strict", "cps_vote.parquet", elections),
    Example("nscg_strict", "nscg2013.parquet", halves),
    Example("tax_wages_strict", "cps_taxunits.parquet", halves),
)
NOT_HERE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{0}</title>
<main><h1>{0}</h1><p>This build had no file {1}.
<a href="../../gallery.html">Gallery</a></p></main>
"""


def is_current(manifest: Path, job: str, file: Path | None) -> bool:
    """True if a release was made after the last change of the package, its job and its file."""
    if not manifest.exists():
        return False
    root = Path(__file__).resolve().parents[1]
    sources = [*(root / "dpdist").rglob("*.py"), *(root / "dpdist").rglob("templates/*"), root / "jobs" / f"{job}.yaml"]
    if file is not None and file.is_file():
        sources.append(file)
    return max(source.stat().st_mtime for source in sources) < manifest.stat().st_mtime


def make(folder: Path) -> None:
    """Writes the public folder of each example that is missing or older than what it is made from.

    A release whose file is missing has a page that names the file.
    """
    from dpdist import load_job, run

    data = Path(os.environ.get("DPDIST_DATA") or "/nowhere")
    for example in EXAMPLES:
        shown = folder / example.job
        file = None if example.file is None else data / example.file
        if is_current(shown / "manifest.json", example.job, file):
            continue
        shutil.rmtree(shown, ignore_errors=True)
        if file is not None and not file.is_file():
            shown.mkdir(parents=True, exist_ok=True)
            (shown / "index.html").write_text(NOT_HERE.format(example.job, file.name), encoding="utf-8")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            # An example on part of a file is shown with whatever its verdict says: that is what its page is for.
            settings, records = ["runtime.executor=serial", "publish=always"], None
            if file is not None:
                records, reference = example.parts(pd.read_parquet(file))
                if reference is not None:
                    reference.to_parquet(Path(scratch) / "reference.parquet")
                    settings.append(f"reference.path={scratch}/reference.parquet")
            run(load_job(example.job, settings), Path(scratch) / "workspace", input=records)
            shutil.copytree(Path(scratch) / "workspace" / "public", shown, dirs_exist_ok=True)

"""Makes the releases of the gallery: shipped jobs, run on the embedded example and on public files, with their pages.

Files are those of `DPDIST_DATA`. Without that folder the gallery has the embedded examples alone, and says so.
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
    """A shipped job, a sentence on its release, its file, and how that becomes input and reference."""

    job: str
    sentence: str
    file: str | None = None
    parts: Parts = whole


EXAMPLES: Sequence[Example] = (
    Example("doctorates", "Salaries of a simulated survey by field and sex: tables and records by a model."),
    Example("doctorates_package", "Four tables of the same survey from one strict budget."),
    Example("nhanes_bmi", "A health survey with strata and clusters: body mass by sex and age.", "nhanes2015.parquet"),
    Example("vote_strict", "Turnout by state, with the election before as reference.", "cps_vote.parquet", elections),
    Example("nscg_strict", "Salaries of graduates by degree. Half of a file is the reference.", "nscg2013.parquet", halves),
    Example("tax_wages_strict", "Wages of tax units by state and status, likewise.", "cps_taxunits.parquet", halves),
)


def make(folder: Path) -> None:
    """Writes `list.md`, and public folders under `pages/gallery`; what is there already is kept."""
    from dpdist import load_job, run

    data = Path(os.environ.get("DPDIST_DATA") or "/nowhere")
    lines, left_out = [], []
    for example in EXAMPLES:
        shown = folder / "pages" / "gallery" / example.job
        file = None if example.file is None else data / example.file
        if not shown.exists() and file is not None and not file.is_file():
            left_out.append(f"`{example.job}`")
            continue
        if not shown.exists():
            with tempfile.TemporaryDirectory() as scratch:
                settings, records = ["runtime.executor=serial"], None
                if file is not None:
                    records, reference = example.parts(pd.read_parquet(file))
                    if reference is not None:
                        reference.to_parquet(Path(scratch) / "reference.parquet")
                        settings.append(f"reference.path={scratch}/reference.parquet")
                run(load_job(example.job, settings), Path(scratch) / "workspace", input=records)
                shutil.copytree(Path(scratch) / "workspace" / "public", shown)
        lines.append(f'- <a href="gallery/{example.job}/index.html">{example.job}</a>: {example.sentence}')
    if left_out:
        lines.append(f"\nThis build had no public files, and so leaves out {', '.join(left_out)}.")
    (folder / "list.md").write_text("\n".join(lines) + "\n", encoding="utf-8")

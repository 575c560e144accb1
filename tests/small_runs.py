"""Runs of small jobs under named keys and noise, and the files that they name."""

from __future__ import annotations

from datetime import datetime, tzinfo
from pathlib import Path

import pytest
from named_draws import Drawn, named
from shipped_surveys import simulated_survey
from small_jobs import CURRENT, DESIGN_WEIGHTS, DESIGNED, EARLIER, RELEASED, Said, parsed, rooted, said, shipped

import dpdist
from dpdist.testing import losses
from dpdist.testing.mechanisms import survey

PUBLIC = {"publish": "always"}
"""Releases of a few records are recorded whatever their verdicts say."""


class OneDay(datetime):
    """The day of the earlier release, whose manifest's checksum stands in later ones."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> OneDay:
        return cls(2026, 11, 21, tzinfo=tz)


def write_inputs(folder: Path) -> None:
    """The files that the jobs name."""
    survey(1).to_parquet(folder / CURRENT)
    survey(2).to_parquet(folder / EARLIER)
    survey(1).assign(weight=lambda rows: rows["field"].map(DESIGN_WEIGHTS)).to_parquet(folder / DESIGNED)
    for job in shipped().values():
        for seed, path in enumerate([job["input"].get("path"), (job.get("reference") or {}).get("path")], 3):
            if path is not None:
                simulated_survey(job, seed).to_parquet(folder / path)
    survey(9).to_parquet(folder / "before_all.parquet")
    first = said("tables", "substitution", "residuals") | {"period": "2018", "input": {"path": EARLIER}}
    first |= {"reference": {"path": "before_all.parquet", "period": "2016", "provenance": "simulated"}}
    work = folder / "earlier_work"
    with named(RELEASED), pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpdist.storage.ownership.datetime", OneDay)
        dpdist.run(parsed(rooted(first | PUBLIC, folder)), work)
    (work / "public").rename(folder / RELEASED)


def run(name: str, job: Said, inputs: Path, workspace: Path, drawn: list[Drawn] | None = None) -> None:
    """Release a small job in this process; `drawn` is told of its noise."""
    with named(name, drawn):
        dpdist.run(parsed(rooted(PUBLIC | job, inputs)), workspace)


def captured(name: str, job: Said, inputs: Path, workspace: Path) -> losses.CapturedStratum:
    """A stratum of a small job, before it is protected."""
    with named(name):
        return losses.capture(parsed(rooted(job, inputs)), workspace)

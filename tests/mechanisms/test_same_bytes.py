"""A release of every kind: published again without records or reference, and replayed, it has the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from public_files import public_files
from small_jobs import cases, parsed, rooted
from small_runs import PUBLIC
from test_contract import NOISY, SILENT

import dpdist

CASES = [*NOISY, *SILENT, "weighted-zero_out-scores", "weighted-two-outcomes", "weighted-fbp", "censor_w-reference"]
OFTEN = {"laplace_composed-public", "sanitized-gaussian", "modips-nested", "weighted_marginals-chosen", *SILENT}
"""The others are `long`."""


@pytest.mark.parametrize("case", [pytest.param(case, marks=[] if case in OFTEN else [pytest.mark.long]) for case in CASES])
def test_a_release_published_again_or_replayed_has_the_same_bytes(case: str, inputs: Path, tmp_path: Path) -> None:
    """Control: another run has other bytes, because its draws are its own."""
    job = parsed(rooted(PUBLIC | cases()[case], inputs))
    dpdist.run(job, tmp_path / "work")
    released = public_files(tmp_path / "work")
    shutil.copytree(tmp_path / "work" / "public", tmp_path / "alone" / "public")
    dpdist.publish(tmp_path / "alone")
    assert public_files(tmp_path / "alone") == released
    dpdist.run(job, tmp_path / "again", replay=tmp_path / "work" / "confidential")
    assert public_files(tmp_path / "again") == released
    if case in SILENT:
        dpdist.run(job, tmp_path / "other")
        assert public_files(tmp_path / "other") != released

"""Shared by all tests: where real survey files are, and a small survey that tests vary."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests on real files run where DPDIST_DATA points to them; elsewhere they are deselected, and counted as such."""
    if os.environ.get("DPDIST_DATA"):
        return
    real = [item for item in items if item.get_closest_marker("real_data")]
    items[:] = [item for item in items if item not in real]
    config.hook.pytest_deselected(items=real)


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of real survey files; a file that is missing there is a failure, not a skip."""
    return Path(os.environ["DPDIST_DATA"])

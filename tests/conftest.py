"""Shared by all tests: where real survey files are, a small survey that tests vary, and compiled Stan programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def stan_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Cache folder of compiled Stan programs, of this session unless DPDIST_CACHE names one; never the user's own."""
    folder = Path(os.environ.get("DPDIST_CACHE") or tmp_path_factory.mktemp("stan-cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPDIST_CACHE", str(folder))
        yield folder

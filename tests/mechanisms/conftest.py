"""Files that tests of several mechanisms release from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from dpdist.mechanisms.tables.cells import PLANS

Survey = Callable[..., pd.DataFrame]


@pytest.fixture(scope="session")
def two_periods(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Survey, float], Path]:
    """A folder with `before.parquet`, and `now.parquet` of the same survey after a drift."""

    def written(survey: Survey, drift: float) -> Path:
        folder = tmp_path_factory.mktemp("periods")
        survey(1, drift=drift).to_parquet(folder / "now.parquet")
        survey(2).to_parquet(folder / "before.parquet")
        return folder

    return written


@pytest.fixture(autouse=True)
def _few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few plans are kept as of large files: controls change what plans follow from."""
    monkeypatch.setattr(PLANS, "most", 0)

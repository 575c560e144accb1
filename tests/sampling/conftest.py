"""One program with a known posterior, compiled once a session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dpdist.sampling.stan import Chains, StanSettings, fit
from dpdist.sampling.toolchain import Executable, executable

SOURCE = Path(__file__).with_name("gaussian.stan")


class Gaussian(NamedTuple):
    """Data of the program and the exact posterior of its mean."""

    data: Mapping[str, Any]
    mean: float
    sd: float


@pytest.fixture(scope="session")
def program(stan_cache: Path) -> Executable:
    return executable(SOURCE, "embedded")


@pytest.fixture(scope="session")
def gaussian() -> Gaussian:
    y, sigma = np.random.default_rng(1).normal(3, 2, 50), 2.0
    precision = 1 / 10**2 + len(y) / sigma**2
    data = {"n": len(y), "y": y, "sigma": sigma, "place": np.arange(6.0).reshape(2, 3)}
    return Gaussian(data, float(y.sum() / sigma**2 / precision), precision**-0.5)


@pytest.fixture(scope="session")
def chains(program: Executable, gaussian: Gaussian, tmp_path_factory: pytest.TempPathFactory) -> Chains:
    return fit(program, gaussian.data, StanSettings(), 2017, tmp_path_factory.mktemp("fit"))

"""Keyed noise has the law that a mechanism asks for."""

from fractions import Fraction

import numpy as np
import pytest

from dpdist.core.keys import Key
from dpdist.engine.in_memory import noise_of
from dpdist.engine.protocol import Noise

SIZE = 40_000


@pytest.mark.parametrize(("law", "variance", "kurtosis"), [("laplace", 2 * 8.0**2, 6.0), ("gaussian", 8.0**2, 3.0)])
def test_noise_has_the_law_of_its_request(law: str, variance: float, kurtosis: float) -> None:
    """Variance and kurtosis within six standard errors: false alarms below 1e-8. The other law is outside (control)."""
    drawn = noise_of(Key(b"\x05" * 32))(Noise(Fraction(8), SIZE, 1, law))  # type: ignore[arg-type]
    assert np.array_equal(drawn, np.rint(drawn))
    spread = drawn.var()
    fourth = ((drawn - drawn.mean()) ** 4).mean() / spread**2
    assert spread == pytest.approx(variance, rel=6 * np.sqrt((kurtosis - 1) / SIZE) + 0.01)
    assert abs(fourth - kurtosis) < 1.0
    assert abs(fourth - (9.0 - kurtosis)) > 2.0, "control"

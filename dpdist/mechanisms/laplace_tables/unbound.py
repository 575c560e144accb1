"""Noise that is bound to no sums: the mechanism scales it and adds it itself. No guarantee is stated of such a release."""

from __future__ import annotations

from typing import NamedTuple

from dpdist.core.records import Floats
from dpdist.engine.protocol import Noise


class Unbound(NamedTuple):
    """Request for noise alone. An audit cannot compare the sums of two files, because the query has none."""

    noise: Noise
    stated: None = None

    def under(self, noise: Floats) -> Floats:
        return noise

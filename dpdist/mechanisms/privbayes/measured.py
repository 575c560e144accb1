"""Lists the noisy weighted counts of the network for `measurements.parquet`."""

from __future__ import annotations

from dpdist.mechanisms.coded_tables.figures import DEFINITIONS, figures

__all__ = ["DEFINITIONS", "figures"]

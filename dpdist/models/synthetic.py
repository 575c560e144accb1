"""Synthetic records in the form of `Records`, so that public code can fit models."""

from __future__ import annotations

from dpdist.confidential.records import Records


class SyntheticRecords(Records):
    """Records that a released model simulated. They are public, unlike all other records."""

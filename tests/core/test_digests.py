"""Checksums that were stored stay valid when a field is renamed."""

from __future__ import annotations

from dataclasses import field, make_dataclass

from dpdist.core.digests import WRITTEN, digest
from dpdist.mechanisms.sanitized_lognormal.post import SanitizedLognormal


def test_a_renamed_field_keeps_the_name_that_stored_checksums_have():
    earlier = make_dataclass("Model", [("told", float)])(0.5)
    renamed = make_dataclass("Model", [("whitened", float, field(metadata={WRITTEN: "told"}))])(0.5)
    unmapped = make_dataclass("Model", [("whitened", float)])(0.5)
    assert digest(renamed) == digest(earlier) != digest(unmapped)


def test_noise_of_sanitized_statistics_is_found_under_the_written_name():
    assert SanitizedLognormal.__dataclass_fields__["whitened"].metadata[WRITTEN] == "told"

"""A checksum of a value sees every bit of it, and nothing but the value."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, make_dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpdist.core.keys import WRITTEN, digest
from dpdist.mechanisms.sanitized_lognormal.post import SanitizedLognormal


class Pair(NamedTuple):
    one: object
    other: object


@dataclass(frozen=True)
class Model:
    limits: np.ndarray
    scale: Fraction = Fraction(10, 3)
    bounds: tuple[float, float] = (0.0, 1.0)
    told: Pair | None = None


MODEL = Model(np.array([1.0, 2.0]))
DIFFERENT = [
    MODEL,
    replace(MODEL, limits=np.array([1.0, np.nextafter(2.0, 3.0)])),
    replace(MODEL, limits=np.array([[1.0, 2.0]])),
    replace(MODEL, limits=np.array([1, 2])),
    replace(MODEL, limits=np.array([1.0, -0.0])),
    replace(MODEL, limits=np.array([1.0, 0.0])),
    replace(MODEL, scale=Fraction(10, 3) + Fraction(1, 10**30)),
    replace(MODEL, bounds=(0.0, 2.0)),
    replace(MODEL, told=Pair(None, None)),
    replace(MODEL, told=Pair("ab", "c")),
    replace(MODEL, told=Pair("a", "bc")),
    replace(MODEL, told=Pair(1, 1.0)),
    replace(MODEL, told=Pair([[1], 2], {"a": 1})),
    replace(MODEL, told=Pair([1, [2]], {"a": 1})),
    replace(MODEL, told=Pair(True, csr_array(np.eye(2)))),
    replace(MODEL, told=Pair(True, csr_array(np.eye(3)))),
]


def test_values_that_differ_anywhere_have_other_checksums() -> None:
    assert len({digest(one) for one in DIFFERENT}) == len(DIFFERENT)


def test_equal_values_have_equal_checksums_however_they_were_made() -> None:
    shared = np.arange(6.0)
    assert digest(Pair(shared, shared)) == digest(Pair(shared.copy(), np.arange(6.0)))
    assert digest(shared[::2]) == digest(np.array([0.0, 2.0, 4.0]))
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_another_process_finds_the_same_checksum() -> None:
    """Hashes of Python itself change with the process."""
    line = "from dpdist.core.keys import digest; print(digest({'b': 1.5, 'a': ('x', None)}))"
    said = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == digest({"a": ("x", None), "b": 1.5})


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), [lambda: None]])
def test_what_has_no_content_to_check_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="checksum"):
        digest(value)


def test_a_renamed_field_keeps_the_name_that_stored_checksums_have():
    earlier = make_dataclass("Model", [("told", float)])(0.5)
    renamed = make_dataclass("Model", [("whitened", float, field(metadata={WRITTEN: "told"}))])(0.5)
    unmapped = make_dataclass("Model", [("whitened", float)])(0.5)
    assert digest(renamed) == digest(earlier) != digest(unmapped)


def test_noise_of_sanitized_statistics_is_found_under_the_written_name():
    assert SanitizedLognormal.__dataclass_fields__["whitened"].metadata[WRITTEN] == "told"

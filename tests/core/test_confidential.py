"""Confidential values: nothing reads them by accident, and a release does not take them."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpdist.core.confidential import Confidential
from dpdist.core.files import write_json
from dpdist.core.keys import Key
from dpdist.core.records import Crosstab
from dpdist.job import Job
from dpdist.publish.released import ReleasedObject, write_released

pytestmark = pytest.mark.quick

SECRET = 31415.9265


def held(value=SECRET):
    return Confidential(value)


def in_a_pattern(value):
    match value:
        case Confidential(content):
            return content
        case _:
            raise TypeError("no pattern reads it")


READS = {
    "iteration": list,
    "next": next,
    "unpacking": lambda c: (lambda *a: a)(*c),
    "tuple": tuple,
    "dict": dict,
    "array": np.asarray,
    "array with dtype": lambda c: np.asarray(c, dtype=float),
    "array of it": lambda c: np.array([c], dtype=float),
    "ufunc": np.sqrt,
    "sum": lambda c: np.sum([c]),
    "float": float,
    "int": int,
    "complex": complex,
    "index": lambda c: range(c),
    "bool": bool,
    "len": len,
    "subscript": lambda c: c[0],
    "membership": lambda c: SECRET in c,
    "addition": lambda c: c + 1.0,
    "right addition": lambda c: 1.0 + c,
    "order": lambda c: c < 1.0,
    "maximum": max,
    "bytes": bytes,
    "call": lambda c: c(),
    "format with a number's code": lambda c: f"{c:.2f}",
    "percent format": "%.2f".__mod__,
    "json": json.dumps,
    "series": pd.Series,
    "arrow": lambda c: pa.array([c]),
    "dataclass fields": dataclasses.asdict,
    "dataclass tuple": dataclasses.astuple,
    "pattern": in_a_pattern,
}


@pytest.mark.parametrize("content", [SECRET, np.array([SECRET]), {"bound": SECRET}], ids=["number", "array", "mapping"])
@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_every_way_to_read_it_but_one_is_refused(read, content):
    with pytest.raises((TypeError, pa.ArrowInvalid)) as error:
        read(held(content))
    assert "31415" not in str(error.value)


@pytest.mark.parametrize("text", [repr, str, ascii, "{}".format, "{!r}".format, "%s".__mod__, "%r".__mod__])
def test_no_text_shows_the_value(text):
    assert "31415" not in text(held())
    assert "Confidential" in text(held())
    assert "31415" not in repr([{"bound": held()}])


def test_comparison_tells_nothing_of_the_value():
    assert held() != SECRET
    assert held() != held()


def test_it_cannot_be_changed():
    with pytest.raises((AttributeError, TypeError)):
        held()._value = 1.0


def test_the_custodian_gets_the_very_object():
    content = np.array([SECRET])
    assert held(content).disclose_to_custodian() is content


def test_copies_and_pickles_stay_confidential():
    for twin in (copy.copy(held()), copy.deepcopy(held()), pickle.loads(pickle.dumps(held()))):
        assert type(twin) is Confidential
        assert twin.disclose_to_custodian() == SECRET


JOB = Job.model_validate(
    {
        "dataset": "test",
        "period": "1",
        "columns": {"sex": {"levels": ["male", "female"]}, "salary": {"bounds": [0, 1e6]}},
        "survey": {"weight": "weight"},
        "outcome": "salary",
        "model": {"family": "lognormal"},
        "mechanism": {"name": "weighted"},
        "budget": {"epsilon": "3.6"},
        "tables": [{"name": "t", "by": ["sex"], "statistics": ["count"]}],
    }
)
FRAME = Crosstab({"sex": np.array([0], dtype=np.int32)}, {"sex": ("male", "female")}, np.array([9]), (), ())


def theta(value):
    return {"coefficients": {"values": [[value]]}, "covariance": {"values": [[1.0]]}}


def release(promise=None, sets=None):
    return ReleasedObject(JOB, promise or {"guarantee": "none"}, FRAME, sets or ({"all": theta(1.0)},), Key(b"publish"))


def test_a_release_of_plain_values_is_taken():
    assert release().sets[0]["all"] == theta(1.0)


LEAKS = {
    "promise": {"promise": held({})},
    "value in the promise": {"promise": {"guarantee": "none", "bound": held()}},
    "deep in the promise": {"promise": {"guarantee": "none", "bounds": [[held()]]}},
    "set": {"sets": (held({}),)},
    "theta": {"sets": ({"all": held(theta(1.0))},)},
    "second set": {"sets": ({"all": theta(1.0)}, {"all": held(theta(1.0))})},
    "part of theta": {"sets": ({"all": {"coefficients": held(), "covariance": {}}},)},
    "coefficient": {"sets": ({"all": theta(held())},)},
}


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS.keys())
def test_a_release_refuses_a_confidential_value_at_any_depth(leak):
    with pytest.raises(TypeError, match="Confidential"):
        release(**leak)


def test_no_writer_of_the_public_folder_writes_one(tmp_path):
    """Even where it got past the type, and without leaving its value in a file."""
    good = release()
    object.__setattr__(good, "sets", ({"all": theta(held())},))
    with pytest.raises(TypeError):
        write_released(tmp_path / "released", good)
    with pytest.raises(TypeError):
        write_json(tmp_path / "statement.json", {"epsilon_local": held()})
    assert all(b"31415" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

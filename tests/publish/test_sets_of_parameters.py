"""Files of released parameters: what is written stratum by stratum is read stratum by stratum."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpdist.publish.released import LONG, Parameters, _read_set, _write_set

STRATA = {
    'quoted "x", y: {z}': {"prior": "proper", "means": {"cell": ["a", "b"], "values": [[1.5, None], [2.0, 0.1]]}},
    "größe": {"prior": "proper", "noisy": [0.1] * LONG, "size": [3, 4]},
    "empty": {},
}


@pytest.mark.parametrize("strata", [STRATA, {}], ids=["some", "none"])
def test_a_set_is_read_as_it_was_written(tmp_path: Path, strata: dict[str, dict[str, object]]) -> None:
    """Control: a file that ends early, or has a number that JSON lacks, is no set."""
    path, again = tmp_path / "set-1.json", tmp_path / "again.json"
    _write_set(path, {"set": 1, "family": "lognormal"}, Parameters.of(strata).texts)
    read = _read_set(path)
    assert {label: json.loads(text) for label, text in read.texts.items()} == strata
    assert json.loads(path.read_text(encoding="utf-8")) == {"set": 1, "family": "lognormal", "strata": strata}
    _write_set(again, {"set": 1, "family": "lognormal"}, read.texts)
    assert again.read_bytes() == path.read_bytes()
    text = path.read_text(encoding="utf-8")
    for damaged in {text[:-6], text[:-2], text + "{}", text.replace("1.5", "NaN"), text.replace("},\n", "}\n")} - {text}:
        again.write_text(damaged, encoding="utf-8")
        with pytest.raises((ValueError, LookupError)):
            _read_set(again)


def test_a_stratum_that_appears_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set-1.json"
    path.write_text('{"set": 1, "strata": {"a": {"prior": "proper"}, "a": {"prior": "flat"}}}', encoding="utf-8")
    with pytest.raises(ValueError, match="strata"):
        _read_set(path)


def test_long_lists_of_numbers_are_arrays() -> None:
    """Control: short ones, and those with an unknown number, are not."""
    theta: dict[str, list[object]] = {"noisy": [[0.1, 0.2]] * LONG, "short": [0.1], "unknown": [0.1, None] * LONG}
    theta |= {"label": ["a"] * LONG, "numbers": [0, 0.5] * LONG}
    kept = Parameters.of({"all": theta})["all"]
    assert isinstance(kept["noisy"], np.ndarray)
    assert kept["noisy"].tolist() == theta["noisy"]
    assert all(kept[name] == theta[name] for name in theta if name != "noisy")

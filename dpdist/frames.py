"""The public frame as an Arrow table and back: levels as text, order kept in the schema's metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dpdist.records import Frame, Level


def frame_table(frame: Frame) -> pa.Table:
    """One row per combination: its levels, and `count`."""
    columns: dict[str, pa.Array] = {}
    for name, codes in frame.codes.items():
        levels = frame.levels[name]
        columns[name] = pa.array([levels[code] for code in codes], type=pa.infer_type(list(levels)))
    columns["count"] = pa.array(frame.count)
    said = {
        "levels": {name: list(levels) for name, levels in frame.levels.items()},
        "strata": frame.strata,
        "design_strata": frame.design_strata,
    }
    return pa.table(columns).replace_schema_metadata({"dpdist.frame": json.dumps(said)})


def frame_from_table(table: pa.Table) -> Frame:
    said = json.loads(table.schema.metadata[b"dpdist.frame"])
    levels: dict[str, tuple[Level, ...]] = {name: tuple(values) for name, values in said["levels"].items()}
    codes = {name: _codes(table.column(name).to_pylist(), known) for name, known in levels.items()}
    count = table.column("count").to_numpy().astype(np.int64)
    return Frame(codes, levels, count, tuple(said["strata"]), tuple(said["design_strata"]))


def _codes(values: Sequence[Level], levels: Sequence[Level]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    position = {level: code for code, level in enumerate(levels)}
    return np.array([position[value] for value in values], dtype=np.int32)

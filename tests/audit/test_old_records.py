"""An audit of a workspace whose records were stored before weights were clipped to both bounds at intake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import invoke

import dpdist
from dpdist.storage.tables import each_block, write_records
from dpdist.storage.workspace import Workspace

JOB = """
dataset: audit
period: "2021"
columns:
  field: {{levels: [arts, law]}}
  y: {{bounds: [1, 2], outside: clip}}
  weight: {{bounds: [100, 200], outside: clip}}
survey: {{weight: weight}}
strata: [field]
outcome: y
mechanism: {mechanism}
budget: {{epsilon: "1", adjacency: zero_out}}
tables: [{{name: t, by: [field], statistics: [count]}}]
runtime: {{executor: serial}}
"""
MECHANISMS = (
    pytest.param("{name: modips, law: normal, truncation: bounded}", marks=pytest.mark.long),
    "{name: modips, law: normal}",
)


def released(job: str, folder: Path) -> Workspace:
    rows = {"field": np.repeat(["arts", "law"], 50), "y": np.linspace(1.0, 2.0, 100), "weight": np.full(100, 100.0)}
    dpdist.run(job, folder, pd.DataFrame(rows), counted=False)
    return Workspace.of_place(folder)


def stored_unclipped(space: Workspace) -> None:
    """Stores the records as an earlier version did: the first weight is below its public bound."""
    blocks = list(each_block(space.records))
    light = [block.weight.copy() for block in blocks]
    light[0][0] = 0.001
    edges = np.cumsum([0, *map(len, blocks)]).tolist()
    columns = {
        name: np.concatenate([getattr(block, name) for block in blocks]) for name in ("record", "row", "outcomes", "psu")
    }
    records = replace(blocks[0], **columns, weight=np.concatenate(light))
    write_records(space.records, records, edges)
    space.mark("records", [space.records])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_unclipped_weights_are_a_named_fault_of_the_file(mechanism: str, tmp_path: Path) -> None:
    """Control: records of this version are audited."""
    space = released(JOB.format(mechanism=mechanism), tmp_path / "ws")
    command = ["audit", str(tmp_path / "ws"), "--draws", "200"]
    audited = invoke(*command)
    assert "beyond the bounds" not in audited.output
    assert "Audited" in audited.output
    stored_unclipped(space)
    refused = invoke(*command)
    assert refused.exit_code == 2, refused.output
    text = " ".join(refused.output.split())
    assert "records.arrow has weights beyond the bounds of weight" in text, text
    assert "`dpdist verify" in text
    assert "0.001" not in text

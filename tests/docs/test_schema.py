"""The schema of a job file says of every key what it is for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpdist.job import Job


def undescribed(schema: dict[str, Any]) -> Iterator[str]:
    """Keys of a schema and of its definitions that no description stands at."""
    for name, part in [("job", schema), *schema.get("$defs", {}).items()]:
        for key, said in part.get("properties", {}).items():
            if not str(said.get("description", "")).strip():
                yield f"{name}.{key}"


def test_every_key_of_a_job_has_a_description() -> None:
    """Control: a key whose description is taken away is named."""
    schema = Job.model_json_schema()
    assert list(undescribed(schema)) == []
    del schema["$defs"]["Survey"]["properties"]["psu"]["description"]
    assert list(undescribed(schema)) == ["Survey.psu"]

"""The parts of the image as CycloneDX 1.5, written by its own Python from what is installed: `python - < parts.py`."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from uuid import uuid4


def python_parts() -> list[dict[str, object]]:
    """Every distribution, with the licence that it states."""
    parts = []
    for found in metadata.distributions():
        name, version = found.metadata["Name"], found.version
        said = found.metadata.get("License-Expression")
        one: dict[str, object] = {"type": "library", "name": name, "version": version}
        one["purl"] = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
        if said:
            one["licenses"] = [{"expression": said}]
        parts.append(one)
    return parts


def debian_parts(status: Path = Path("/var/lib/dpkg/status")) -> list[dict[str, object]]:
    """Every installed package of the base, from dpkg's own list; none where the base is not Debian's."""
    parts = []
    for block in status.read_text().split("\n\n") if status.exists() else ():
        said = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(" "))
        if said.get("Status") == "install ok installed":
            purl = f"pkg:deb/debian/{said['Package']}@{said['Version']}?arch={said['Architecture']}"
            parts.append({"type": "library", "name": said["Package"], "version": said["Version"], "purl": purl})
    return parts


if __name__ == "__main__":
    parts = sorted([*python_parts(), *debian_parts()], key=lambda one: str(one["purl"]))
    described = {"type": "container", "name": "dpdist", "version": metadata.version("dpdist")}
    about = {"timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "component": described}
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{uuid4()}", "version": 1}
    json.dump({**bill, "metadata": about, "components": parts}, sys.stdout, indent=1)

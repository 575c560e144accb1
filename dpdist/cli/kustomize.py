"""What kustomize makes of an overlay, for as much of kustomize as deploy/ uses; anything else is refused."""

from __future__ import annotations

import copy
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from dpdist.job.yaml_lines import documents

KEYS = {"apiVersion", "kind", "namespace", "resources", "patches", "images", "configMapGenerator", "generatorOptions"}
CLUSTERED = {"Namespace"}
LISTS = {"containers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
"""Lists that are merged by the key of their entries."""
Objects: TypeAlias = list[dict[str, Any]]


def shipped() -> Path:
    """The manifests as they come with dpdist; in a source checkout they lie beside the package."""
    inside = Path(str(resources.files("dpdist") / "deploy"))
    return inside if inside.is_dir() else Path(__file__).parents[2] / "deploy"


def render(folder: Path) -> Objects:
    """The objects of a kustomization. Raises `ValueError` for a key of kustomize that is not known here."""
    (said,) = documents((folder / "kustomization.yaml").read_text())
    if unknown := said.keys() - KEYS:
        raise ValueError(f"{folder}: this renderer does not know {sorted(unknown)}")
    objects: Objects = []
    for name in said.get("resources", []):
        path = folder / name
        objects += render(path) if path.is_dir() else documents(path.read_text())
    for one in said.get("configMapGenerator", []):
        assert said["generatorOptions"] == {"disableNameSuffixHash": True}
        data = {name: (folder / name).read_text() for name in one["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": one["name"]}, "data": data})
    for one in said.get("patches", []):
        for patch in documents((folder / one["path"]).read_text()):
            apply(patch, objects)
    for image in said.get("images", []):
        _name_images(objects, image)
    for found in objects:
        if "namespace" in said and found["kind"] not in CLUSTERED:
            found["metadata"]["namespace"] = said["namespace"]
    return objects


def pick(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def _identity(found: dict[str, Any]) -> tuple[str, str, str]:
    return found["apiVersion"], found["kind"], found["metadata"]["name"]


def apply(patch: dict[str, Any], objects: Objects) -> None:
    """Merge a patch into the object that it names, or delete that one."""
    (target,) = [k for k, found in enumerate(objects) if _identity(found) == _identity(patch)]
    if patch.get("$patch") == "delete":
        del objects[target]
    else:
        objects[target] = _merged(objects[target], patch)


def _merged(old: Any, new: Any, name: str = "") -> Any:
    """A strategic merge: mappings by key, null deletes, known lists by their entries' key."""
    if isinstance(old, dict) and isinstance(new, dict):
        merged = {k: v for k, v in old.items() if k not in new}
        merged |= {k: _merged(old.get(k), v, k) for k, v in new.items() if v is not None}
        return merged
    if isinstance(old, list) and isinstance(new, list) and name in LISTS:
        key, left = LISTS[name], {entry[LISTS[name]]: entry for entry in old}
        for entry in new:
            left[entry[key]] = _merged(left.get(entry[key], {}), entry)
        return list(left.values())
    return copy.deepcopy(new)


def _name_images(value: Any, image: dict[str, str]) -> None:
    if isinstance(value, list):
        for entry in value:
            _name_images(entry, image)
    elif isinstance(value, dict):
        if isinstance(said := value.get("image"), str) and said.partition(":")[0] == image["name"]:
            value["image"] = f"{image['newName']}:{image['newTag']}"
        for entry in value.values():
            _name_images(entry, image)

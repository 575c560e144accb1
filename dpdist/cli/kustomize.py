"""Renders Kubernetes manifests from a kustomize folder, for the features that deploy/ uses; refuses all other features."""

from __future__ import annotations

import copy
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from dpdist.job.yaml_lines import documents

KEYS = {"apiVersion", "kind", "namespace", "resources", "patches", "images", "configMapGenerator", "generatorOptions"}
CLUSTERED = {"Namespace"}
LISTS = {"containers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath", "ports": "containerPort"}
"""Lists in manifests, each with the key that identifies its entries."""
Objects: TypeAlias = list[dict[str, Any]]


def shipped() -> Path:
    """Returns the folder of manifests shipped with dpdist. In a source checkout the folder is next to the package."""
    inside = Path(str(resources.files("dpdist") / "deploy"))
    return inside if inside.is_dir() else Path(__file__).parents[2] / "deploy"


def render(folder: Path) -> Objects:
    """Renders the objects of a kustomization. Raises `ValueError` for an unknown key of kustomize."""
    (kustomization,) = documents((folder / "kustomization.yaml").read_text())
    if unknown := kustomization.keys() - KEYS:
        raise ValueError(f"{folder}: this renderer does not know {sorted(unknown)}")
    objects: Objects = []
    for name in kustomization.get("resources", []):
        path = folder / name
        objects += render(path) if path.is_dir() else documents(path.read_text())
    for one in kustomization.get("configMapGenerator", []):
        assert kustomization["generatorOptions"] == {"disableNameSuffixHash": True}
        data = {name: (folder / name).read_text() for name in one["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": one["name"]}, "data": data})
    for one in kustomization.get("patches", []):
        for patch in documents((folder / one["path"]).read_text()):
            apply(patch, objects)
    for image in kustomization.get("images", []):
        _name_images(objects, image)
    for one in objects:
        if "namespace" in kustomization and one["kind"] not in CLUSTERED:
            one["metadata"]["namespace"] = kustomization["namespace"]
    return objects


def pick(objects: Objects, kind: str, name: str) -> dict[str, Any]:
    (one,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    return one


def _identity(one: dict[str, Any]) -> tuple[str, str, str]:
    return one["apiVersion"], one["kind"], one["metadata"]["name"]


def apply(patch: dict[str, Any], objects: Objects) -> None:
    """Merges a patch into the object that it names, or deletes that object."""
    (target,) = [k for k, one in enumerate(objects) if _identity(one) == _identity(patch)]
    if patch.get("$patch") == "delete":
        del objects[target]
    else:
        objects[target] = _patched(objects[target], patch)


def _patched(old: Any, new: Any, name: str = "") -> Any:
    """Merges a patch by kustomize's rules: mappings by key, null deletes, known lists by the key of their entries."""
    if isinstance(old, dict) and isinstance(new, dict):
        result = {k: v for k, v in old.items() if k not in new}
        result |= {k: _patched(old.get(k), v, k) for k, v in new.items() if v is not None}
        return result
    if isinstance(old, list) and isinstance(new, list) and name in LISTS:
        key, left = LISTS[name], {entry[LISTS[name]]: entry for entry in old}
        for entry in new:
            left[entry[key]] = _patched(left.get(entry[key], {}), entry)
        return list(left.values())
    return copy.deepcopy(new)


def _name_images(value: Any, image: dict[str, str]) -> None:
    if isinstance(value, list):
        for entry in value:
            _name_images(entry, image)
    elif isinstance(value, dict):
        if isinstance(image_name := value.get("image"), str) and image_name.partition(":")[0] == image["name"]:
            value["image"] = f"{image['newName']}:{image['newTag']}"
        for entry in value.values():
            _name_images(entry, image)

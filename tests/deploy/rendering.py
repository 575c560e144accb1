"""Where the shipped manifests are, and what of them is rendered."""

from __future__ import annotations

from pathlib import Path

from dpdist.cli.manifests import Objects, render

__all__ = ["DEPLOY", "OVERLAYS", "Objects", "render"]

DEPLOY = Path(__file__).parents[2] / "deploy"
OVERLAYS = ("release", "bucket", "hpa", "periodic", "operator")

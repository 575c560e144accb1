"""A cluster for the tests of this folder: its programs and the image are built once, or named by variables."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_images import Stock
from nodes import Cluster, running
from real_store import CACHE

BUILD, IMAGE = Path(__file__).with_name("build.sh"), Path(__file__).parents[3] / "deploy" / "build.sh"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes. DPDIST_KUBERNETES: folder of programs and of all that is unpacked; DPDIST_IMAGE: an image's archive."""
    folder = Path(os.environ.get("DPDIST_KUBERNETES", CACHE / "kubernetes"))
    subprocess.run([BUILD, folder], check=True, timeout=5400)
    image = Path(os.environ.get("DPDIST_IMAGE", folder / "dpdist.tar"))
    if not image.exists():
        subprocess.run([IMAGE, "registry.example/dpdist:0.3.0", folder], check=True, timeout=5400)
    stock = Stock(folder / "images", folder / "bin")
    stock.load(image)
    with running(folder / "cluster", folder / "bin", stock) as made:
        yield made

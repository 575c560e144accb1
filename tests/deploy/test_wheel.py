"""What is distributed: a wheel that works alone, the same bytes at every build, and an sdist that builds the same wheel."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMIT_TIME = "1700000000"


def built(source: Path, target: str, into: Path, **environment: str) -> Path:
    """The one file that hatchling builds of `target` ("wheel" or "sdist") from the tree `source`."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)]
    changed = {"SOURCE_DATE_EPOCH": COMMIT_TIME} | environment
    subprocess.run(command, cwd=source, env=os.environ | changed, check=True, capture_output=True)
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return built(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return built(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist, tmp_path_factory) -> Path:
    """The tree of the sdist in another place, with other times and another mask of permissions."""
    folder = tmp_path_factory.mktemp("unpacked")
    before = os.umask(0o077)
    try:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (tree,) = folder.iterdir()
        for path in tree.rglob("*.py"):
            os.utime(path, (1e9, 1e9))
    finally:
        os.umask(before)
    return tree


def test_the_wheel_has_what_commands_read(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    assert "dpdist/py.typed" in inside, "type checkers would take the package for untyped (PEP 561)"
    read = [path for folder in ("dpdist", "jobs", "stan") for path in (ROOT / folder).rglob("*") if path.is_file()]
    read = [path.relative_to(ROOT) for path in read if "__pycache__" not in path.parts]
    assert not {str(path) if path.parts[0] == "dpdist" else f"dpdist/{path}" for path in read} - inside


@pytest.mark.long
def test_every_build_has_the_same_bytes(wheel, sdist, unpacked, tmp_path):
    again = built(unpacked, "wheel", tmp_path / "wheel", TZ="Asia/Tokyo", LC_ALL="C")
    assert again.read_bytes() == wheel.read_bytes()
    assert built(unpacked, "sdist", tmp_path / "sdist", TZ="Asia/Tokyo").read_bytes() == sdist.read_bytes()
    later = built(ROOT, "wheel", tmp_path / "later", SOURCE_DATE_EPOCH="1800000000")
    assert later.read_bytes() != wheel.read_bytes(), "the bytes say nothing about the time that was given"


@pytest.mark.long
def test_the_wheel_works_without_the_repository(wheel, tmp_path):
    """In an environment with dependencies and the wheel alone, from an empty folder: the main example and shipped files."""
    place, empty = tmp_path / "venv", tmp_path / "empty"
    venv.create(place, symlinks=True)
    folder = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    install = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*install, "--no-index", "--no-deps", str(wheel)], check=True)
    # Dependencies come from this environment. A line of a .pth file adds a folder, but none of the .pth files in it.
    dependencies = [path for path in sys.path if path.endswith("site-packages")]
    (folder / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    empty.mkdir()

    def dpdist(*words: str) -> str:
        command = [str(place / "bin" / "dpdist"), *words]
        done = subprocess.run(command, cwd=empty, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = [str(place / "bin" / "python"), "-c", "import dpdist; print(dpdist.__file__)"]
    origin = subprocess.run(where, cwd=empty, capture_output=True, text=True, check=True).stdout
    assert origin.startswith(str(place)), "it would test the repository's code"
    dpdist("run", "doctorates", "--workspace", "release")
    assert "complete" in dpdist("verify", "release")
    assert (empty / "release" / "public" / "index.html").is_file()
    dpdist("validate", "doctorates_stan")  # its Stan program lies beside the job
    assert "lognormal.stan" in dpdist("stan", "doctor")
    assert "kind: Job" in dpdist("cluster", "manifests", "doctorates", "--namespace", "wages", "--image", "dpdist:1")


@pytest.mark.long
def test_a_file_that_is_left_out_is_noticed(sdist, unpacked, tmp_path):
    """The control: a wheel without shipped jobs does not pass for whole."""
    tree = Path(shutil.copytree(unpacked, tmp_path / "tree"))
    text = (tree / "pyproject.toml").read_text(encoding="utf-8")
    (tree / "pyproject.toml").write_text(text.replace('jobs = "dpdist/jobs"\n', ""), encoding="utf-8")
    with pytest.raises(AssertionError):
        test_the_wheel_has_what_commands_read(built(tree, "wheel", tmp_path / "out"))


def test_every_place_that_states_the_version_states_the_same() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    stated = {
        "CHANGELOG.md": rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)$",
        "CITATION.cff": rf"^version: {re.escape(version)}\ndate-released: (\d{{4}}-\d\d-\d\d)$",
    }
    dates = [re.search(line, (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE) for name, line in stated.items()]
    assert dates[0] is not None
    assert dates[1] is not None
    assert dates[0][1] == dates[1][1]
    assert f"\nVersion: {version}\n" in (ROOT / "r" / "DESCRIPTION").read_text(encoding="utf-8")
    pages = [
        path for folder in ("deploy", "docs") for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".yaml")
    ]
    images = {tag for path in pages for tag in re.findall(r"/?dpdist:(\d[\w.]*)", path.read_text(encoding="utf-8"))}
    assert images == {version}

"""The image: a lock that covers every dependency by hash and names no index; a Dockerfile whose sources exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rendering import DEPLOY

TOP = DEPLOY.parent
PINNED = re.compile(r"([A-Za-z0-9._-]+)==(\S+?)(?: ; (.+?))? \\")


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package."""
    found: dict[str, tuple[str, int]] = {}
    last = ""
    for line in (DEPLOY / name).read_text().splitlines():
        if (match := PINNED.match(line)) is not None:
            last = canonicalize_name(match[1])
            found[last] = (match[2], 0)
        elif re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?", line):
            found[last] = (found[last][0], found[last][1] + 1)
        elif line.strip() and not line.startswith("#"):
            raise AssertionError(f"{name}: {line}")
    return found


@pytest.mark.parametrize("name", ["requirements.lock", "build.lock"])
def test_the_lock_pins_every_package_by_hash_and_names_no_index(name: str) -> None:
    assert all(hashes for _, hashes in locked(name).values())
    assert "://" not in (DEPLOY / name).read_text()
    assert len(locked("requirements.lock")) > 40


OF_THE_IMAGE = re.findall(r"--extra (\w+)", (DEPLOY / "lock.sh").read_text())
"""Extras that the image has."""


def required(extras: Collection[str]) -> list[Requirement]:
    """What dpdist and these extras require of other packages, on the image's platform."""
    said = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    environment = {"python_version": "3.11", "sys_platform": "linux", "platform_machine": "x86_64"}
    each = [Requirement(text) for name in extras for text in said["optional-dependencies"][name]]
    each += [Requirement(text) for text in said["dependencies"]]
    return [one for one in each if one.name != "dpdist" and (one.marker is None or one.marker.evaluate(environment))]


def every_extra() -> list[str]:
    return list(tomllib.loads((TOP / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def outside(pins: Mapping[str, str], requirements: Collection[Requirement]) -> list[str]:
    """Pins that a requirement does not allow."""
    return [
        f"{one}, and {pin} is locked"
        for one in requirements
        if (pin := pins.get(canonicalize_name(one.name))) is not None and not one.specifier.contains(pin, prereleases=True)
    ]


def test_every_dependency_is_locked() -> None:
    assert {"postgres", "stan", "stores"} <= set(OF_THE_IMAGE), "a cluster needs them"
    pinned = locked("requirements.lock")
    assert [str(one) for one in required(OF_THE_IMAGE) if canonicalize_name(one.name) not in pinned] == []


@pytest.mark.parametrize("name", ["requirements.lock", "build.lock"])
def test_every_pin_satisfies_every_extra(name: str) -> None:
    """Of the tests' extra, too, which runs with the image: python-dateutil was locked at 4.0.0, and `test` has `<3`."""
    pins = {package: version for package, (version, _) in locked(name).items()}
    assert outside(pins, required(every_extra())) == []


def test_a_pin_beyond_an_extra_is_named() -> None:
    """Control."""
    pins = {package: version for package, (version, _) in locked("requirements.lock").items()} | {
        "python-dateutil": "4.0.0"
    }
    assert outside(pins, required(every_extra())) == ["python-dateutil<3, and 4.0.0 is locked"]


def instructions() -> list[tuple[str, list[str]]]:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], shlex.split(line)[1:]) for line in lines]


def test_what_is_copied_exists_and_is_let_through() -> None:
    ignored = (TOP / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    for verb, said in instructions():
        if verb == "COPY" and not said[0].startswith("--from"):
            for source in said[:-1]:
                assert (TOP / source).exists(), source
                assert any(Path(source).match(pattern) for pattern in allowed), source


def test_the_image_runs_as_its_own_user_with_no_compiler_and_prebuilt_programs() -> None:
    stages = [k for k, (verb, _) in enumerate(instructions()) if verb == "FROM"]
    assert len(stages) == 2
    build, final = instructions()[stages[0] : stages[1]], instructions()[stages[1] :]
    assert ("USER", ["10001:10001"]) in final
    assert "g++" in str(build)
    assert "g++" not in str(final)
    assert any(verb == "RUN" and said[:3] == ["dpdist", "stan", "build"] for verb, said in build)
    caches = [entry for _, said in (*build, *final) for entry in said if entry.startswith("DPDIST_CACHE=")]
    assert len(caches) == 2
    assert len(set(caches)) == 1
    assert all("latest" not in said[0] for verb, said in instructions() if verb == "FROM")
    assert [said for verb, said in final if verb == "ENTRYPOINT"] == [["[dpdist]"]]


def test_the_source_distribution_holds_deploy() -> None:
    said = tomllib.loads((TOP / "pyproject.toml").read_text())
    assert "deploy" in said["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


def test_slimming_keeps_the_sources_that_built_programs_are_known_by(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    shutil.copytree(TOP / "stan", packages / "dpdist" / "stan")
    for name in ("httpstan/include/stan/version.hpp", "httpstan/include/stan/model.hpp", "other/a.cpp", "other/a.py"):
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text("")
    subprocess.run(["sh", DEPLOY / "slim.sh", tmp_path], check=True)
    left = {str(path.relative_to(packages)) for path in packages.rglob("*") if path.is_file()}
    shipped = {f"dpdist/stan/{path.relative_to(TOP / 'stan')}" for path in (TOP / "stan").rglob("*") if path.is_file()}
    assert left == shipped | {"httpstan/include/stan/version.hpp", "other/a.py"}

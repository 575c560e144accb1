#!/usr/bin/env bash
# Makes requirements.lock and build.lock anew: every dependency with version and SHA-256 of its files, and no package index's name
# (it is given at installation). Run it with the Python version of the image, on Linux.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'pip-tools>=7.4'
extras=(--extra compiled --extra posterior --extra postgres --extra stan --extra stores --extra studies --extra tracing --extra trees)
options=(--quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate --no-emit-index-url --no-emit-trusted-host
  --no-emit-find-links --no-emit-options)
# What other extras require of a package that the image has, too: the tests run with the versions of the image.
"$work/venv/bin/python" - ../pyproject.toml > "$work/extras.txt" <<'END'
import sys, tomllib
from pip._vendor.packaging.requirements import Requirement
with open(sys.argv[1], "rb") as file:
    said = tomllib.load(file)["project"]["optional-dependencies"]
each = [Requirement(text) for extra in said.values() for text in extra]
print(*(f"{one.name}{one.specifier}" for one in each if one.specifier and one.marker is None), sep="\n")
END
"$work/venv/bin/pip-compile" "${options[@]}" "${extras[@]}" --constraint "$work/extras.txt" --output-file requirements.lock ../pyproject.toml
echo 'hatchling>=1.25' > "$work/build.in"
"$work/venv/bin/pip-compile" "${options[@]}" --output-file build.lock "$work/build.in"

#!/usr/bin/env bash
# Builds the image with podman or docker: deploy/build.sh TAG [FOLDER]. It goes to the tool's own store and, with its list of parts
# (CycloneDX), into FOLDER as dpdist.tar and dpdist.cdx.json.
# TOOL names the tool. What podman needs to know of the machine (its runtime) stands in the file that CONTAINERS_CONF names.
# BASE names the base image. Without it, and where mmdebstrap is there, the base is made of Debian's packages and no registry is asked.
# PIP_CERT: the file of an authority that the package index's certificate is checked with. Podman alone takes it.
set -euo pipefail
tag=${1:?deploy/build.sh TAG [FOLDER]} out=$(realpath -m "${2:-.}")
cd "$(dirname "$0")/.."
tool=${TOOL:-$(command -v podman || command -v docker || true)}
[ -n "$tool" ] || { echo "neither podman nor docker is installed; TOOL names another" >&2; exit 1; }
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

if [ -z "${BASE:-}" ] && command -v mmdebstrap > /dev/null; then
  BASE=localhost/dpdist-base:bookworm
  mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='ln -s python3 "$1/usr/bin/python"' --customize-hook='rm -rf "$1"/var/cache/apt "$1"/var/lib/apt/lists' \
    bookworm "$work/base.tar"
  "$tool" import "$work/base.tar" "$BASE" > /dev/null
fi
options=(--file deploy/Dockerfile --tag "$tag" ${BASE:+--build-arg "BASE=$BASE"} --network host)
if [ -n "${PIP_CERT:-}" ]; then
  printf '[global]\ncert = /etc/pip-cert.pem\n' > "$work/pip.conf"
  options+=(--volume "$work/pip.conf:/etc/pip.conf:ro" --volume "$(realpath "$PIP_CERT"):/etc/pip-cert.pem:ro")
fi
"$tool" build "${options[@]}" .
limits=(--ulimit nofile=1024:1024 --ulimit nproc=4096:4096)  # the tool's own may be more than a machine allows
"$tool" run --rm --interactive --network none --read-only "${limits[@]}" --entrypoint python "$tag" - \
  < deploy/parts.py > "$out/dpdist.cdx.json"
rm -f "$out/dpdist.tar" && "$tool" save --output "$out/dpdist.tar" "$tag"
printf '%s: %s MB, %s parts\n' "$tag" "$(($("$tool" image inspect --format '{{.Size}}' "$tag") / 1000000))" \
  "$(grep -c '"purl"' "$out/dpdist.cdx.json")"

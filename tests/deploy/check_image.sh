#!/usr/bin/env bash
# What an image made by deploy/build.sh has to be: check_image.sh TAG. TOOL as there. Fails at the first thing that is not so: its
# size, the shipped programs built, what traces and a ledger need, no compiler, and the main job as its own user on a root that
# cannot be written, with no capability and no network.
set -euo pipefail
tag=${1:?check_image.sh TAG} most=1200000000
tool=${TOOL:-$(command -v podman || command -v docker)}
confined=(run --rm --read-only --network none --cap-drop all --security-opt no-new-privileges --tmpfs /tmp
  --ulimit nofile=1024:1024 --ulimit nproc=4096:4096)

size=$("$tool" image inspect --format '{{.Size}}' "$tag")
echo "size: $((size / 1000000)) MB"
[ "$size" -lt "$most" ] || { echo "more than $((most / 1000000)) MB"; exit 1; }
"$tool" "${confined[@]}" --entrypoint sh "$tag" -euc '
  [ "$(id -u)" = 10001 ] || { echo "runs as $(id -u)"; exit 1; }
  grep -q "^CapEff:\s*0000000000000000$" /proc/self/status || { echo "it has capabilities"; exit 1; }
  ! touch /opt/dpdist/x 2> /dev/null || { echo "its root can be written"; exit 1; }
  for name in cc gcc g++ clang; do ! command -v "$name" > /dev/null || { echo "it holds $name"; exit 1; }; done
  [ ! -e /opt/dpdist/bin/pip ] || { echo "its environment holds pip"; exit 1; }
  python -c "import opentelemetry.exporter.otlp.proto.http.trace_exporter, psycopg" || { echo "it cannot trace or charge"; exit 1; }
  said=$(dpdist stan doctor) || { echo "its Stan programs cannot be found: $said"; exit 1; }
  case $said in *"not built"*) echo "$said"; exit 1 ;; esac'
began=$SECONDS
"$tool" "${confined[@]}" "$tag" run doctorates --workspace /tmp/release --quiet --set runtime.executor=serial > /dev/null
echo "the main job, confined: $((SECONDS - began)) s"

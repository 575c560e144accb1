#!/usr/bin/env bash
# Builds a real S3 server, MinIO, from Go's module proxy into the folder that is named: build_store.sh FOLDER. It takes seven
# minutes of processor time and 2 GB of Go's caches. tests/faults/test_real_store.py runs against it (pytest -m slow).
set -euo pipefail
mkdir -p "$1"
GOBIN=$(realpath "$1") CGO_ENABLED=0 go install -trimpath -ldflags '-s -w' \
  github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c

#!/usr/bin/env bash
# Builds Calico's plugin and its agent from the Go module proxy: build_calico.sh FOLDER API, after build.sh. They go to FOLDER/bin, and
# what they keep in the API server to FOLDER/calico-definitions. The nodes of the tests use them where they are, and then they enforce
# network policies. API is a checkout of github.com/projectcalico/api, branch release-v3.28, which Calico's module leaves out.
# At run time Debian's ipset is needed.
set -euo pipefail
version=v1.11.0-cni-plugin.0.20250813170300-a0db560f0520  # how the proxy calls 3.28.5
out=$(realpath -m "$1") api=$(realpath "$2")
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=mod -trimpath" GOTOOLCHAIN=local
[ -f "$api/pkg/apis/projectcalico/v3/networkpolicy.go" ] || { echo "$api: not a checkout of github.com/projectcalico/api" >&2; exit 1; }

source=$(cd / && go mod download -json "github.com/projectcalico/calico@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
rm -rf "$out/calico-source" && mkdir -p "$out/bin" && cp -r "$source" "$out/calico-source" && chmod -R u+w "$out/calico-source"
cd "$out/calico-source" && cp -r "$api" api
go build -ldflags '-s -w' -o "$out/bin/calico-felix" ./felix/cmd/calico-felix
go build -ldflags '-s -w' -o "$out/bin/calico" ./cni-plugin/cmd/calico
rm -rf "$out/calico-definitions" && cp -r libcalico-go/config/crd "$out/calico-definitions"
rm -rf "$out/calico-source"

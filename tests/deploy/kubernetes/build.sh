#!/usr/bin/env bash
# Builds the programs of a Kubernetes cluster from the Go module proxy: build.sh FOLDER. They go to FOLDER/bin; nothing of it is
# committed. What is there is not built again. With the modules downloaded it took ten minutes on two cores, and 9 GB of Go's caches.
# Kubernetes publishes its module with its parts replaced by folders; here they are the published modules of the same release.
set -euo pipefail
release=1.34.4 coredns=v1.12.4 metrics=v0.9.0
out=$(realpath -m "$1") && mkdir -p "$out/bin" "$out/source" && cd "$out/source"
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=mod -trimpath" GOBIN="$out/bin" GOTOOLCHAIN=local
programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)

missing=()
for name in "${programs[@]}"; do [ -x "$out/bin/$name" ] || missing+=("$name"); done
if [ ${#missing[@]} -gt 0 ]; then
  own=$(go mod download -json "k8s.io/kubernetes@v$release" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
  {
    printf 'module cluster\ngo 1.24.0\nrequire k8s.io/kubernetes v%s\nreplace (\n' "$release"
    sed -n "s#^\s*\(k8s.io/[a-z-]*\) => ./staging/.*#\1 => \1 v0.${release#1.}#p" "$own"
    echo ')'
  } > go.mod
fi
version=k8s.io/component-base/version
stamp="-s -w -X $version.gitVersion=v$release -X $version.gitMajor=1 -X $version.gitMinor=34"
for name in "${missing[@]}"; do
  go build -ldflags "$stamp" -o "$out/bin/$name" "k8s.io/kubernetes/cmd/$name"
  echo "built $name"
done
[ -x "$out/bin/coredns" ] || go install -ldflags '-s -w' "github.com/coredns/coredns@$coredns"
[ -x "$out/bin/metrics-server" ] || go install -ldflags '-s -w' "sigs.k8s.io/metrics-server/cmd/metrics-server@$metrics"

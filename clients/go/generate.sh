#!/bin/sh
# Makes offsetspb/ of proto/offsets.proto and proto/lag.proto: with the protoc that grpcio-tools brings, and the plugins that go.mod pins.
# OUT=DIR makes it below another directory. `make interop` checks that it is current.
set -eu
cd "$(dirname "$0")"
PYTHON="${PYTHON:-../../.venv/bin/python}"
plugins=$(mktemp -d)
trap 'rm -rf "$plugins"' EXIT
for tool in protoc-gen-go protoc-gen-go-grpc; do
  go build -buildvcs=false -o "$plugins/$tool" "$(go list tool | grep "/$tool\$")"
done
"$PYTHON" -m grpc_tools.protoc -I../../proto \
  --plugin=protoc-gen-go="$plugins/protoc-gen-go" --plugin=protoc-gen-go-grpc="$plugins/protoc-gen-go-grpc" \
  --go_out="${OUT:-.}" --go_opt=module=offset-adapter/clients/go \
  --go-grpc_out="${OUT:-.}" --go-grpc_opt=module=offset-adapter/clients/go offsets.proto lag.proto

#!/bin/sh
# What `make interop` uses of KEDA: its own external scalers, with keda/main.go around them, built into a store directory. KEDA's
# package of scalers has those of every cloud; all but the external ones are left out of a copy of its module, whose go.sum pins the
# rest. May run again at any time. Go is not installed here: if it is missing, that is said, and that is the end of it.
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/offset-adapter-interop"
PATH="$PATH:/usr/local/go/bin"
VERSION=v2.21.0
SUM="h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="

command -v go >/dev/null 2>&1 || {
  echo "not installed: Go (1.26 or newer)"
  exit 1
}
mkdir -p "$CACHE/keda"
cd "$CACHE/keda"
go mod download -json "github.com/kedacore/keda/v2@$VERSION" >module.json 2>log || {
  tail -n 20 module.json log
  echo "not downloaded: KEDA $VERSION"
  exit 1
}
value() { # of a name in module.json
  sed -n "s/^[[:space:]]*\"$1\": \"\(.*\)\",*$/\1/p" module.json
}
[ "$(value Sum)" = "$SUM" ] || {
  echo "KEDA $VERSION has the sum $(value Sum), and not $SUM"
  exit 1
}

rm -rf module
cp -r "$(value Dir)" module
chmod -R u+w module
find module/pkg/scalers -maxdepth 1 -name '*.go' ! -name external_scaler.go ! -name scaler.go -delete
cp "$HERE/keda/types.go" module/pkg/scalers/
mkdir -p module/cmd/offset-adapter
cp "$HERE/keda/main.go" module/cmd/offset-adapter/
cd module
go build -mod=readonly -buildvcs=false -o "$CACHE/keda/client" ./cmd/offset-adapter >"$CACHE/keda/log" 2>&1 || {
  tail -n 20 "$CACHE/keda/log"
  echo "not built: KEDA's external scaler"
  exit 1
}
cd ..
rm -rf module

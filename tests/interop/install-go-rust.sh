#!/bin/sh
# What `make interop` uses of Go and Rust: h2spec, the clients of clients.md and the programs of clients/go and clients/rust, built into a store
# directory from what go.sum and Cargo.lock pin. May run again at any time. Neither Go nor Cargo is installed here: what is missing is named, and that is the end of it.
# rustup's cargo looks for toolchains below $HOME. With another one (env -i, sudo) they are beside the .cargo that it is in itself.
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/offset-adapter-interop"
PATH="$PATH:/usr/local/go/bin:$HOME/.cargo/bin"

missing=""
command -v go >/dev/null 2>&1 || missing="$missing Go (1.26 or newer)"
if ! cargo=$(command -v cargo); then
  missing="$missing${missing:+,} Cargo (1.88 or newer)"
elif ! cargo --version >/dev/null 2>&1; then
  toolchains="${cargo%/.cargo/bin/cargo}/.rustup"
  [ -n "${RUSTUP_HOME:-}" ] || [ ! -d "$toolchains/toolchains" ] || export RUSTUP_HOME="$toolchains"
  cargo --version >/dev/null 2>&1 \
    || missing="$missing${missing:+,} a Rust toolchain (1.88 or newer) for $cargo; name the directory of rustup's toolchains by RUSTUP_HOME"
fi
if [ -n "$missing" ]; then
  echo "not installed:$missing"
  exit 1
fi
mkdir -p "$CACHE/go" "$CACHE/go-client" "$CACHE/rust"

quietly() { # what is built, and the command: its output is shown only when it fails
  what=$1
  shift
  "$@" >"$CACHE/log" 2>&1 || {
    tail -n 20 "$CACHE/log"
    echo "not built: $what"
    exit 1
  }
}

cd "$HERE/go"
quietly "h2spec" go build -mod=readonly -buildvcs=false -o "$CACHE/go/h2spec" github.com/summerwind/h2spec/cmd/h2spec
quietly "the Go client" go build -mod=readonly -buildvcs=false -o "$CACHE/go/client" .

cd "$HERE/../../clients/go"
quietly "clients/go" go build -mod=readonly -buildvcs=false -o "$CACHE/go-client/" ./internal/conformance ./internal/benchmark ./examples/first

cd "$HERE/rust"
quietly "the Rust client" cargo build --quiet --release --locked --target-dir "$CACHE/rust/target"
ln -sf target/release/client "$CACHE/rust/client"

cd "$HERE/../../clients/rust"
quietly "clients/rust" cargo build --quiet --examples --locked --target-dir "$CACHE/rust-client"
quietly "the benchmark of clients/rust" cargo build --quiet --release --example benchmark --locked --target-dir "$CACHE/rust-client"

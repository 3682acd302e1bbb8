#!/bin/sh
# Makes sure that there is an etcd: the one on PATH, else Debian's, unpacked into .venv/tools. Nothing is installed into the system:
# Debian's package would start a service on port 2379. May run again at any time, as any user.
set -eu
cd "$(dirname "$0")/.."
TOOLS=.venv/tools

! command -v etcd >/dev/null 2>&1 || exit 0
[ ! -x "$TOOLS/usr/bin/etcd" ] || exit 0

explain() {
  echo "no etcd: it is not on PATH, and $1." >&2
  echo "Install etcd 3.4.23 or newer and put it on PATH; on Debian: apt-get install etcd-server" >&2
  exit 1
}

command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || explain "this is no Debian from whose packages it could be taken"
mkdir -p "$TOOLS/apt/lists/partial" "$TOOLS/apt/cache/archives/partial"
apt="$PWD/$TOOLS/apt"

download() { # into the current directory
  apt-get -qq download etcd-server "$@" >>"$apt/log" 2>&1
}

(
  cd "$apt"
  : >log
  # The machine's own package lists may be missing or old. Ours are then fetched aside, for which nobody needs root.
  own="-o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt/cache -o APT::Sandbox::User="
  # shellcheck disable=SC2086 - a list of options
  download || { apt-get -qq $own update >>log 2>&1 && download $own; }
) || explain "Debian's package etcd-server could not be downloaded ($(tail -n 1 "$apt/log"))"
for package in "$apt"/etcd-server_*.deb; do
  dpkg -x "$package" "$TOOLS" || explain "$package could not be unpacked"
done
rm -rf "$apt"
"$TOOLS/usr/bin/etcd" --version >/dev/null 2>&1 || explain "$TOOLS/usr/bin/etcd, from Debian's package, does not run here"

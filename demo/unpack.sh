#!/bin/sh
# `unpack.sh PACKAGE PROGRAM`: makes sure that there is a PROGRAM: the machine's own, else the one of Debian's PACKAGE, unpacked into
# .venv/tools. Nothing is installed into the system: Debian's package would start a service. May run again at any time, as any user.
set -eu
package=$1 program=$2
cd "$(dirname "$0")/.."
TOOLS=.venv/tools

! PATH="$PATH:/usr/sbin" command -v "$program" >/dev/null 2>&1 || exit 0
for directory in bin sbin; do
  [ ! -x "$TOOLS/usr/$directory/$program" ] || exit 0
done

explain() {
  echo "no $program: it is not on PATH, and $1." >&2
  echo "Install it and put it on PATH; on Debian: apt-get install $package" >&2
  exit 1
}

command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || explain "this is no Debian from whose packages it could be taken"
mkdir -p "$TOOLS/apt-$package/lists/partial" "$TOOLS/apt-$package/cache/archives/partial"
apt="$PWD/$TOOLS/apt-$package"

download() { # into the current directory
  apt-get -qq download "$package" "$@" >>"$apt/log" 2>&1
}

(
  cd "$apt"
  : >log
  # The machine's own package lists may be missing or old. Ours are then fetched aside, for which nobody needs root.
  own="-o Dir::State::Lists=$apt/lists -o Dir::Cache=$apt/cache -o APT::Sandbox::User="
  # shellcheck disable=SC2086 - a list of options
  download || { apt-get -qq $own update >>log 2>&1 && download $own; }
) || explain "Debian's package $package could not be downloaded ($(tail -n 1 "$apt/log"))"
for file in "$apt/${package}"_*.deb; do
  dpkg -x "$file" "$TOOLS" || explain "$file could not be unpacked"
done
rm -rf "$apt"
for directory in bin sbin; do
  ! "$TOOLS/usr/$directory/$program" --version >/dev/null 2>&1 || exit 0
done
explain "$program, from Debian's package $package, does not run here"

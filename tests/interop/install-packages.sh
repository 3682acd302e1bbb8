#!/bin/sh
# Debian packages for commands that are missing, as COMMAND:PACKAGE. Without root, or elsewhere, what is missing is named, and that is
# the end of it.
set -eu
missing=""
for pair in "$@"; do
  command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "not installed:$missing (needs root and apt-get)"
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 - a list of packages
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null || {
  echo "could not be installed:$missing (apt-get says why above)"
  exit 1
}

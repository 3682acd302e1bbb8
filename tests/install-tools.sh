#!/bin/sh
# What the fault tests and the test of the report's page use, from Debian's packages. Without root, or elsewhere, those tests say by name
# that they did not run.
set -eu
demo="$(dirname "$0")/../demo"
sh "$demo/install-etcd.sh" || echo "no etcd; the tests that use it will say so"
sh "$demo/unpack.sh" nats-server nats-server || echo "no nats-server; the test of the example will say so"
# Unpacked, not installed: Debian's packages would start services.
sh "$demo/unpack.sh" prometheus prometheus || echo "no prometheus and promtool; the tests of deploy/monitoring will say so"
sh "$demo/unpack.sh" prometheus-alertmanager amtool || echo "no amtool; the test of its example will say so"
# Either renders the pages; the one without windows is lighter.
browser=chromium-headless-shell:chromium-headless-shell
command -v chromium >/dev/null 2>&1 && browser=chromium:chromium
missing=""
for pair in strace:strace faketime:faketime mkfs.ext4:e2fsprogs mount:mount losetup:mount $browser etcdctl:etcd-client h2load:nghttp2-client systemd-analyze:systemd promtool:prometheus tmux:tmux; do
  command -v "${pair%%:*}" >/dev/null 2>&1 || PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "not installed:$missing (needs root and apt-get); the tests that use them will say so"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 - a list of packages
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null; then
  echo "could not be installed:$missing; the tests that use them will say so"
fi

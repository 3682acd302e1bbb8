#!/bin/sh
# What the tests of the plugin use: brokers, name server and tools of RocketMQ from the Maven registry in a store directory, and the
# plugin, built with its own tests. May run again at any time.
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)

sh "$HERE/install-rocketmq.sh" 5.3.3 5.2.0 5.4.0 4.9.7

log=$(mktemp)
if ! mvn -q -B -f "$HERE/../../integrations/rocketmq/pom.xml" package >"$log" 2>&1; then
  grep -m 20 -E "ERROR|FAIL" "$log" || true
  rm -f "$log"
  echo "not built: the plugin (mvn says why above)"
  exit 1
fi
rm -f "$log"

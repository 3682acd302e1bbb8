#!/bin/sh
# What the tests of the plugin use: brokers, name server and tools of RocketMQ from the Maven registry in a store directory, and the
# plugin, built with its own tests. May run again at any time.
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/offset-adapter-interop"

sh "$HERE/install-packages.sh" javac:openjdk-17-jdk-headless mvn:maven

fetch() { # a version of RocketMQ, with all that its brokers and tools depend on
  [ ! -e "$CACHE/rocketmq-cluster-$1/complete" ] || return 0
  work=$(mktemp -d)
  cat >"$work/pom.xml" <<POM
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>interop</groupId><artifactId>interop</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-broker</artifactId><version>$1</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-namesrv</artifactId><version>$1</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-tools</artifactId><version>$1</version></dependency>
  </dependencies>
</project>
POM
  rm -rf "$CACHE/rocketmq-cluster-$1" && mkdir -p "$CACHE/rocketmq-cluster-$1"
  # Maven prints its errors to stdout.
  if (cd "$work" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$CACHE/rocketmq-cluster-$1" >"$work/log" 2>&1); then
    touch "$CACHE/rocketmq-cluster-$1/complete"
    rm -rf "$work"
  else
    grep -m 3 ERROR "$work/log" || true
    rm -rf "$work"
    echo "not fetched: RocketMQ $1 (mvn says why above)"
    exit 1
  fi
}

for version in 5.3.3 5.2.0 5.4.0 4.9.7; do fetch "$version"; done

log=$(mktemp)
if ! mvn -q -B -f "$HERE/../../integrations/rocketmq/pom.xml" package >"$log" 2>&1; then
  grep -m 20 -E "ERROR|FAIL" "$log" || true
  rm -f "$log"
  echo "not built: the plugin (mvn says why above)"
  exit 1
fi
rm -f "$log"

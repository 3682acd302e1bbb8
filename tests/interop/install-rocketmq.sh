#!/bin/sh
# What `make interop` uses: a JDK and Maven from Debian's packages, and RocketMQ's jars from the Maven registry in a cache directory.
# May run again at any time. Without root, or elsewhere, what is missing is named, and that is the end of it.
set -eu
CACHE="${HOME}/.cache/offset-adapter-interop"

missing=""
for pair in javac:openjdk-17-jdk-headless mvn:maven; do
  command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
if [ -n "$missing" ]; then
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
fi

fetch() { # a version of RocketMQ, with all that it depends on
  [ ! -e "$CACHE/rocketmq-$1/complete" ] || return 0
  work=$(mktemp -d)
  cat >"$work/pom.xml" <<POM
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>interop</groupId><artifactId>interop</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-broker</artifactId><version>$1</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-client</artifactId><version>$1</version></dependency>
  </dependencies>
</project>
POM
  rm -rf "$CACHE/rocketmq-$1" && mkdir -p "$CACHE/rocketmq-$1"
  # Maven prints its errors to stdout.
  if (cd "$work" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$CACHE/rocketmq-$1" >"$work/log" 2>&1); then
    touch "$CACHE/rocketmq-$1/complete"
    rm -rf "$work"
  else
    grep -m 3 ERROR "$work/log" || true
    rm -rf "$work"
    echo "not fetched: RocketMQ $1 (mvn says why above)"
    exit 1
  fi
}

fetch 5.3.3
fetch 4.9.7

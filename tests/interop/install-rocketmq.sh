#!/bin/sh
# install-rocketmq.sh [VERSION...]: a JDK and Maven from Debian's packages, and the jars of these versions of RocketMQ (5.3.3 and
# 4.9.7 if none is named) from the Maven registry in a store directory. May run again at any time.
set -eu
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/offset-adapter-interop"

sh "$(dirname "$0")/install-packages.sh" javac:openjdk-17-jdk-headless mvn:maven

fetch() { # a version of RocketMQ, with all that it depends on
  [ ! -e "$CACHE/rocketmq-$1/complete-with-tools" ] || return 0
  work=$(mktemp -d)
  cat >"$work/pom.xml" <<POM
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>interop</groupId><artifactId>interop</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-broker</artifactId><version>$1</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-client</artifactId><version>$1</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-namesrv</artifactId><version>$1</version></dependency>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-tools</artifactId><version>$1</version></dependency>
  </dependencies>
</project>
POM
  rm -rf "$CACHE/rocketmq-$1" && mkdir -p "$CACHE/rocketmq-$1"
  # Maven prints its errors to stdout.
  if (cd "$work" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$CACHE/rocketmq-$1" >"$work/log" 2>&1); then
    touch "$CACHE/rocketmq-$1/complete-with-tools"
    rm -rf "$work"
  else
    grep -m 3 ERROR "$work/log" || true
    rm -rf "$work"
    echo "not fetched: RocketMQ $1 (mvn says why above)"
    exit 1
  fi
}

[ $# -gt 0 ] || set -- 5.3.3 4.9.7
for version in "$@"; do fetch "$version"; done

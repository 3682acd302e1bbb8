#!/bin/sh
# clients/java with its own tests (in its target/), and two of the gRPC clients of `make interop`: grpc-java's jars from the Maven
# registry, with our program compiled against them, and @grpc/grpc-js by `npm ci`, in a store directory. May run again at any time.
set -eu
GRPC_JAVA=1.85.1
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/offset-adapter-interop"

sh "$(dirname "$0")/install-packages.sh" javac:openjdk-17-jdk-headless mvn:maven node:nodejs npm:npm

mvn -q -B -f "$HERE/../../clients/java/pom.xml" package || {
  echo "not built: clients/java (mvn says why above)"
  exit 1
}

java="$CACHE/java-grpc"
if [ ! -e "$java/complete-$GRPC_JAVA" ]; then
  rm -rf "$java" && mkdir -p "$java"
  # Maven prints its errors to stdout.
  mvn -q -B -f "$HERE/java-grpc/pom.xml" dependency:copy-dependencies -Dgrpc.version="$GRPC_JAVA" \
    -DincludeScope=runtime -DoutputDirectory="$java/jars" >"$java/log" 2>&1 || {
    grep -m 3 ERROR "$java/log" || true
    echo "not fetched: grpc-java $GRPC_JAVA (mvn says why above)"
    exit 1
  }
  touch "$java/complete-$GRPC_JAVA"
fi
rm -rf "$java/classes"
javac -nowarn -cp "$java/jars/*" -d "$java/classes" "$HERE"/java-grpc/*.java

node="$CACHE/node"
if ! cmp -s "$HERE/node/package-lock.json" "$node/complete"; then
  rm -rf "$node" && mkdir -p "$node"
  cp "$HERE/node/package.json" "$HERE/node/package-lock.json" "$node"
  (cd "$node" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null) || {
    echo "not fetched: @grpc/grpc-js (npm says why above)"
    exit 1
  }
  cp "$HERE/node/package-lock.json" "$node/complete"
fi

#!/bin/sh
# What the comparison of `make bench` uses: servers from Debian's packages, and Kafka's jars from the Maven registry in a cache
# directory. May run again at any time. Without root, or elsewhere, what is missing is named, and its rows say "not installed".
# Debian starts some of these servers when it installs them: that is refused here, and the machine's configuration stays as it is.
set -eu
KAFKA_VERSION=4.3.0
CACHE="${HOME}/.cache/offset-adapter-bench/kafka-${KAFKA_VERSION}"

have() { # a program, also in a directory that is not on everybody's PATH
  PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/"$1" >/dev/null 2>&1
}

missing=""
for pair in redis-server:redis-server etcd:etcd-server rabbitmq-server:rabbitmq-server nats-server:nats-server \
  initdb:postgresql java:openjdk-17-jre-headless mvn:maven h2load:nghttp2-client setpriv:util-linux; do
  have "${pair%%:*}" || missing="$missing ${pair#*:}"
done

install_packages() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "not installed:$missing (needs root and apt-get); the comparison leaves these out by name"
    return
  fi
  policy=/usr/sbin/policy-rc.d # Debian's own switch: 101 forbids the start of services
  ours=""
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy" && ours=yes
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    trap 'exit 130' INT TERM
  fi
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086 - a list of packages
  if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null; then
    echo "could not be installed:$missing (apt-get says why above); the comparison leaves these out by name"
  fi
  [ -z "$ours" ] || { rm -f "$policy" && trap - EXIT INT TERM; }
}

fetch_kafka() {
  if ! have mvn || ! have java; then
    echo "not fetched: Kafka ${KAFKA_VERSION} (needs mvn and java); the comparison leaves it out by name"
    return
  fi
  work=$(mktemp -d)
  cat >"$work/pom.xml" <<POM
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>${KAFKA_VERSION}</version></dependency>
  </dependencies>
</project>
POM
  rm -rf "$CACHE" && mkdir -p "$CACHE"
  # Maven prints its errors to stdout.
  if (cd "$work" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$CACHE" >"$work/log" 2>&1); then
    touch "$CACHE/complete"
  else
    grep -m 3 ERROR "$work/log" || true
    echo "not fetched: Kafka ${KAFKA_VERSION} (mvn says why above); the comparison leaves it out by name"
  fi
  rm -rf "$work"
}

[ -z "$missing" ] || install_packages
[ -e "$CACHE/complete" ] || fetch_kafka

# Sourced by each script: a temp folder, processes that end with it, and the comparison of what was stated with what was seen.
HERE=$(cd "$(dirname "$0")" && pwd)
export TMPDIR="${TMPDIR:-/tmp}" LC_ALL=C.UTF-8 TZ=UTC
WORK=$(mktemp -d "$TMPDIR/finding-XXXXXX")
SEEN="$WORK/seen"
PIDS=""

finish() {
  code=$?
  trap - EXIT
  for pid in $PIDS; do kill -9 "$pid" 2>/dev/null || true; done
  wait
  [ "$code" = 0 ] || [ "$code" = 1 ] || tail -n 20 "$WORK"/*.log >&2 || true
  rm -rf "$WORK"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

broken() { # WHAT: it could not be tried, which says nothing about the finding
  echo "NOT TRIED: $*" >&2
  exit 2
}

need() { # COMMAND:DEBIAN_PACKAGE...
  for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || broken "${pair%%:*} is missing (Debian: ${pair#*:})"
  done
}

maven() { # GROUP:ARTIFACT:VERSION...: the jars with all that they need, in $WORK/jars
  need javac:openjdk-17-jdk-headless mvn:maven
  mkdir -p "$WORK/maven"
  {
    echo "<project><modelVersion>4.0.0</modelVersion><groupId>finding</groupId><artifactId>finding</artifactId><version>1</version><dependencies>"
    for each in "$@"; do
      rest=${each#*:}
      echo "<dependency><groupId>${each%%:*}</groupId><artifactId>${rest%%:*}</artifactId><version>${rest#*:}</version></dependency>"
    done
    echo "</dependencies></project>"
  } >"$WORK/maven/pom.xml"
  (cd "$WORK/maven" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$WORK/jars") >"$WORK/maven.log" 2>&1 \
    || broken "mvn did not fetch $*"
}

wait_for() { # TEXT FILE PID: until a process has written it
  tries=0
  until grep -q "$1" "$2" 2>/dev/null; do
    kill -0 "$3" 2>/dev/null || broken "a process ended before it wrote '$1'"
    tries=$((tries + 1))
    [ "$tries" -lt 1200 ] || broken "no '$1' in two minutes"
    sleep 0.1
  done
}

free_port() { # one whose neighbours are free as well: a broker listens on the second one below, too
  python3 - <<'PY'
import random, socket
while True:
    port = random.randrange(20_000, 32_000)
    probes = [socket.socket() for _ in range(4)]
    try:
        for each, probe in enumerate(probes):
            probe.bind(("127.0.0.1", port - 2 + each))
    except OSError:
        continue
    finally:
        for probe in probes:
            probe.close()
    print(port)
    break
PY
}

statement() { # standard input: what this is about
  cat
  echo
  echo "Seen:"
}

verdict() { # standard input: what is stated; what was seen is in $SEEN
  cat >"$WORK/stated"
  cat "$SEEN"
  echo
  if diff "$WORK/stated" "$SEEN" >"$WORK/difference"; then
    echo "as stated"
  else
    echo "< stated, > seen"
    grep '^[<>]' "$WORK/difference"
    echo "CHANGED"
    exit 1
  fi
}

pypi() { # PACKAGE==VERSION...: in a virtual environment, $WORK/venv
  need python3:python3-venv
  python3 -m venv "$WORK/venv" && "$WORK/venv/bin/pip" install --quiet --disable-pip-version-check "$@" >"$WORK/pip.log" 2>&1 || broken "pip did not install $*"
}

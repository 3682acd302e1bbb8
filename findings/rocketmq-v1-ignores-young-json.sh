#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ: a broker that is switched to storeType=defaultRocksDB may ignore its consumerOffset.json.

Most expect: the first start with RocksDB takes over the offsets of the JSON file, since RocksDB has none.
What happens: it takes them over only if dataVersion.counter in the file is larger than RocksDB's, which is 0 at first. The counter
  grows once in 500 commits, so a broker with fewer than 500 commits since its file was begun starts without any offset.
  With 500 commits the file is taken over.
Why it matters: a young broker loses all its offsets in this upgrade, and every group starts as a new one. Who writes such a
  file for a broker has to write a counter above 0.
TEXT

try() { # NAME COMMITS
  start_broker "$1"
  {
    echo "topic T 1"
    echo "group g"
    for offset in $(seq "$2"); do echo "commit g T 0 $offset"; done
  } | ask >"$WORK/commits"
  grep -c "commit .* SUCCESS" "$WORK/commits" | sed 's/$/ commits acknowledged/'
  echo table | ask
  stop_broker
  python3 -c 'import re, sys; print("  in the file:", *re.findall(r"\"counter\":\d+", sys.stdin.read()))' <"$WORK/$1/config/consumerOffset.json"
  echo "started with storeType=defaultRocksDB:"
  start_broker "$1" storeType=defaultRocksDB
  echo table | ask
  stop_broker
}
{
  try few 499
  try more 500
} >"$SEEN"

verdict <<'STATED'
499 commits acknowledged
  table -> {T@g={0:499}}
  in the file: "counter":0
started with storeType=defaultRocksDB:
  table -> {}
500 commits acknowledged
  table -> {T@g={0:500}}
  in the file: "counter":1
started with storeType=defaultRocksDB:
  table -> {T@g={0:500}}
STATED

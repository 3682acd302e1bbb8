#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ: a broker that is switched from JSON files to RocksDB may not take over its consumerOffset.json.

Most expect: the first start with RocksDB takes over the offsets of the JSON file, since RocksDB has none.
What happens: storeType=defaultRocksDB takes them over only if dataVersion.counter in the file is larger than RocksDB's, which is
  0 at first. The counter grows once in 500 commits, so a broker that had fewer than 500 commits starts
  without any offset. configManagerVersion=v2 never takes them over.
Why it matters: the broker starts as usual, and every group starts as a new one. Who writes such a file for a broker has to write
  a counter above 0, and for v2 has to commit the offsets to the broker that runs.
TEXT

try() { # NAME COMMITS SETTING
  start_broker "$1"
  {
    echo "topic T 1"
    echo "group g"
    for offset in $(seq "$2"); do echo "commit g T 0 $offset"; done
  } | ask >"$WORK/commits"
  grep -c "commit .* SUCCESS" "$WORK/commits" | sed 's/$/ commits acknowledged/'
  echo table | ask
  stop_broker
  grep -o '"counter":[0-9]*' "$WORK/$1/config/consumerOffset.json" | sed 's/^/  in the file: /'
  echo "started with $3:"
  start_broker "$1" "$3"
  echo table | ask
  stop_broker
}
{
  try few 499 storeType=defaultRocksDB
  try more 500 storeType=defaultRocksDB
  try v2 500 configManagerVersion=v2
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
500 commits acknowledged
  table -> {T@g={0:500}}
  in the file: "counter":1
started with configManagerVersion=v2:
  table -> {}
STATED

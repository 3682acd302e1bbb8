#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ: a broker with useSingleRocksDBForAllConfigs=true loses its last commits at an orderly stop.

Most expect: a broker that is stopped by SIGTERM stores all offsets that it has acknowledged, as it does with each other form.
What happens: with storeType=defaultRocksDB and useSingleRocksDBForAllConfigs=true what was committed since the offsets were stored
  last (flushConsumerOffsetInterval, 5 s by default) is gone after the next start. With RocksDB stores of their own it is there.
Why it matters: an orderly restart makes consumers read messages again. Who moves offsets out of such a broker has to wait until
  they are stored before it is stopped.
TEXT

try() { # NAME SETTING...
  name=$1
  shift
  start_broker "$name" storeType=defaultRocksDB flushConsumerOffsetInterval=600000 "$@"
  printf '%s\n' "topic T 1" "group g" "commit g T 0 7" table | ask
  stop_broker
  echo "stopped and started:"
  start_broker "$name" storeType=defaultRocksDB flushConsumerOffsetInterval=600000 "$@"
  echo table | ask
  stop_broker
}
{
  echo "a store for each kind"
  try own
  echo "one store for all"
  try single useSingleRocksDBForAllConfigs=true
} >"$SEEN"

verdict <<'STATED'
a store for each kind
  topic T 1 -> SUCCESS
  group g -> SUCCESS
  commit g T 0 7 -> SUCCESS
  table -> {T@g={0:7}}
stopped and started:
  table -> {T@g={0:7}}
one store for all
  topic T 1 -> SUCCESS
  group g -> SUCCESS
  commit g T 0 7 -> SUCCESS
  table -> {T@g={0:7}}
stopped and started:
  table -> {}
STATED

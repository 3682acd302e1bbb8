#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ, storeType=defaultRocksDB, persistConsumerOffsetIncrementally=true: a reset or a clone is not stored.

Most expect: a broker that is stopped cleanly stores its table of offsets, and comes back with it.
What happens: with this setting only queues that were committed since the last time are written. A reset at the server and a clone
  change the table in memory, but not the list of what to write. After a clean stop and a start the reset is undone and
  the clone is gone. With the default (false) both are there.
Why it matters: the offset goes back to the value before the reset in an orderly restart. Who keeps offsets beside the broker has to
  tell such a return from commits, and give the reset back.
TEXT

try() { # NAME [SETTING]
  start_broker "$@" storeType=defaultRocksDB
  ask <<REQUESTS
topic T 1
group g
group copy
send T 0 9
end T 0 9
commit g T 0 9
REQUESTS
  stop_broker
  start_broker "$@" storeType=defaultRocksDB
  ask <<REQUESTS
reset g T 0 2
clone g copy T
table
REQUESTS
  stop_broker
  echo "after a clean stop and a start:"
  start_broker "$@" storeType=defaultRocksDB
  echo table | ask
  stop_broker
}
{
  echo "the default:"
  try all
  echo "persistConsumerOffsetIncrementally=true:"
  try incremental persistConsumerOffsetIncrementally=true
} >"$SEEN"

verdict <<'STATED'
the default:
  topic T 1 -> SUCCESS
  group g -> SUCCESS
  group copy -> SUCCESS
  send T 0 9 -> SUCCESS
  end T 0 9 -> 9
  commit g T 0 9 -> SUCCESS
  reset g T 0 2 -> SUCCESS
  clone g copy T -> SUCCESS
  table -> {T@copy={0:2}, T@g={0:2}}
after a clean stop and a start:
  table -> {T@copy={0:2}, T@g={0:2}}
persistConsumerOffsetIncrementally=true:
  topic T 1 -> SUCCESS
  group g -> SUCCESS
  group copy -> SUCCESS
  send T 0 9 -> SUCCESS
  end T 0 9 -> 9
  commit g T 0 9 -> SUCCESS
  reset g T 0 2 -> SUCCESS
  clone g copy T -> SUCCESS
  table -> {T@copy={0:2}, T@g={0:2}}
after a clean stop and a start:
  table -> {T@g={0:9}}
STATED

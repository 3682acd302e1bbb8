#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ, configManagerVersion=v2: a reset at the server is stored under swapped names.

Most expect: a reset by INVOKE_BROKER_TO_RESET_OFFSET (what mqadmin resetOffsetByTime -g GROUP -t TOPIC sends) that was answered
  with success holds over a restart, and touches the group in question alone.
What happens: the broker's RocksDB gets the offset with group and topic exchanged. Until the next restart the right offset is in
  memory; the table also has a group that does not exist, named as the topic, with a topic named as the group. After a clean stop
  and a start the old offset is back, and the phantom stays. With the default JSON file the reset holds.
Why it matters: a consumer that comes after the restart does not repeat what the reset was made for. Who copies the table keeps
  a group that nobody has, and sees the reset go back to the old offset, which looks like an ordinary commit.
TEXT

try() { # NAME [SETTING]: the reset, and a clean stop and a start
  start_broker "$@"
  ask <<REQUESTS
topic T 1
group g
send T 0 9
end T 0 9
commit g T 0 9
reset g T 0 2
query g T 0
table
REQUESTS
  stop_broker
  echo "after a clean stop and a start:"
  start_broker "$@"
  ask <<REQUESTS
query g T 0
table
REQUESTS
  stop_broker
}
{
  echo "the default, a JSON file:"
  try json
  echo "configManagerVersion=v2:"
  try v2 configManagerVersion=v2
} >"$SEEN"

verdict <<'STATED'
the default, a JSON file:
  topic T 1 -> SUCCESS
  group g -> SUCCESS
  send T 0 9 -> SUCCESS
  end T 0 9 -> 9
  commit g T 0 9 -> SUCCESS
  reset g T 0 2 -> SUCCESS
  query g T 0 -> 2
  table -> {T@g={0:2}}
after a clean stop and a start:
  query g T 0 -> 2
  table -> {T@g={0:2}}
configManagerVersion=v2:
  topic T 1 -> SUCCESS
  group g -> SUCCESS
  send T 0 9 -> SUCCESS
  end T 0 9 -> 9
  commit g T 0 9 -> SUCCESS
  reset g T 0 2 -> SUCCESS
  query g T 0 -> 2
  table -> {T@g={0:2}, g@T={0:2}}
after a clean stop and a start:
  query g T 0 -> 9
  table -> {T@g={0:9}, g@T={0:2}}
STATED

#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ, light queues (topics %LMQ%..., enableLmq=true): what GET_ALL_CONSUMER_OFFSET leaves out.

Most expect: GET_ALL_CONSUMER_OFFSET, with which slaves copy their master's offsets, tells every offset that
  QUERY_CONSUMER_OFFSET answers, however the broker keeps them.
What happens: a broker with configManagerVersion=v2 keeps the offsets of light topics in its RocksDB alone and leaves them out
  of the table. A broker with the default JSON file tells them.
Why it matters: who copies or compares tables takes absence for a loss or a delete, and gives back an older offset or removes
  its own. The offset of each light queue has to be asked for.
TEXT

try() {
  ask <<REQUESTS
topic T 1
group g
send T 0 3 %LMQ%light
commit g T 0 2
commit g %LMQ%light 0 3
query g T 0
query g %LMQ%light 0
table
REQUESTS
}
{
  start_broker json enableLmq=true enableMultiDispatch=true
  echo "the default, a JSON file:"
  try
  stop_broker
  start_broker v2 enableLmq=true enableMultiDispatch=true configManagerVersion=v2
  echo "configManagerVersion=v2:"
  try
  stop_broker
} >"$SEEN"

verdict <<'STATED'
the default, a JSON file:
  topic T 1 -> SUCCESS
  group g -> SUCCESS
  send T 0 3 %LMQ%light -> SUCCESS
  commit g T 0 2 -> SUCCESS
  commit g %LMQ%light 0 3 -> SUCCESS
  query g T 0 -> 2
  query g %LMQ%light 0 -> 3
  table -> {%LMQ%light@g={0:3}, T@g={0:2}}
configManagerVersion=v2:
  topic T 1 -> SUCCESS
  group g -> SUCCESS
  send T 0 3 %LMQ%light -> SUCCESS
  commit g T 0 2 -> SUCCESS
  commit g %LMQ%light 0 3 -> SUCCESS
  query g T 0 -> 2
  query g %LMQ%light 0 -> 3
  table -> {T@g={0:2}}
STATED

#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ: CLONE_GROUP_OFFSET without a topic, for all topics of a group, copies nothing (apache/rocketmq #11111).

Most expect: the request without its optional topic clones the offsets of all topics that the group has, or is refused.
What happens: the broker finds the group's topics, but looks each one up under the empty name of the request. It answers
  success and copies nothing. With a topic it copies that one.
Why it matters: consumers of the new group start as new ones, though the clone was acknowledged. List the topics, clone one
  after the other, and read the result.
TEXT

{
  start_broker broker
  ask <<REQUESTS
topic T 1
topic U 1
group g
group copy
commit g T 0 5
commit g U 0 7
clone g copy
table
clone g copy U
table
REQUESTS
  stop_broker
} >"$SEEN"

verdict <<'STATED'
  topic T 1 -> SUCCESS
  topic U 1 -> SUCCESS
  group g -> SUCCESS
  group copy -> SUCCESS
  commit g T 0 5 -> SUCCESS
  commit g U 0 7 -> SUCCESS
  clone g copy -> SUCCESS
  table -> {T@g={0:5}, U@g={0:7}}
  clone g copy U -> SUCCESS
  table -> {T@g={0:5}, U@copy={0:7}, U@g={0:7}}
STATED

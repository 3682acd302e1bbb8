#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ: QUERY_CORRECTION_OFFSET with filterGroups deletes what it filters (apache/rocketmq #10987).

Most expect: a query that is told to leave out some groups leaves them out of its answer.
What happens: the broker removes these groups' offsets from its table, of all topics and not only of the topic asked for. They are
  still gone after a clean stop and a start.
Why it matters: a consumer of such a group starts as a new one, and skips or repeats its whole backlog. Whoever keeps offsets
  beside the broker sees a delete that nobody asked for, and cannot tell it from a real one.
TEXT

{
  start_broker broker
  ask <<REQUESTS
topic T 1
topic U 1
group a
group b
commit a T 0 5
commit b T 0 3
commit b U 0 4
table
correction T a b
table
query b T 0
query b U 0
REQUESTS
  stop_broker
  echo "after a clean stop and a start:"
  start_broker broker
  echo table | ask
  stop_broker
} >"$SEEN"

verdict <<'STATED'
  topic T 1 -> SUCCESS
  topic U 1 -> SUCCESS
  group a -> SUCCESS
  group b -> SUCCESS
  commit a T 0 5 -> SUCCESS
  commit b T 0 3 -> SUCCESS
  commit b U 0 4 -> SUCCESS
  table -> {T@a={0:5}, T@b={0:3}, U@b={0:4}}
  correction T a b -> {"correctionOffsets":{0:5}}
  table -> {T@a={0:5}}
  query b T 0 -> code 22 (Not found, do not set to zero, maybe this group boot first)
  query b U 0 -> code 22 (Not found, do not set to zero, maybe this group boot first)
after a clean stop and a start:
  table -> {T@a={0:5}}
STATED

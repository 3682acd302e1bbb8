#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ, master and slave: a group that is deleted with its offsets at the master keeps them at the slave.

Most expect: the slave, which copies its master's table of offsets every few seconds, ends up with the same table.
What happens: the slave adds and overwrites what the master has, and removes nothing. Later commits of others arrive; the deleted
  group stays, also after a clean stop and a start of the slave.
Why it matters: after a change of roles a group that was deleted on purpose is back with old offsets, and starts there if its
  name is used again. Who merges the tables of a master and its slave brings every deleted group back.
TEXT

{
  start_namesrv
  start_broker master brokerName=broker brokerId=0 brokerRole=ASYNC_MASTER
  MASTER=$BROKER
  set -- brokerName=broker brokerId=1 brokerRole=SLAVE
  start_broker slave "$@"
  SLAVE=$BROKER
  echo "at the master:"
  BROKER=$MASTER
  ask <<REQUESTS
topic T 1
group g
group other
commit g T 0 5
commit other T 0 6
REQUESTS
  echo "at the slave, when it has both:"
  BROKER=$SLAVE
  echo "until T@g={0:5}, T@other={0:6}" | ask
  echo "at the master:"
  BROKER=$MASTER
  ask <<REQUESTS
delete g
commit other T 0 7
table
REQUESTS
  echo "at the slave, when it has the later commit:"
  BROKER=$SLAVE
  echo "until T@other={0:7}" | ask
  echo "after a clean stop and a start of the slave:"
  stop_broker
  start_broker slave "$@"
  echo "until T@other={0:7}" | ask
} >"$SEEN"

verdict <<'STATED'
at the master:
  topic T 1 -> SUCCESS
  group g -> SUCCESS
  group other -> SUCCESS
  commit g T 0 5 -> SUCCESS
  commit other T 0 6 -> SUCCESS
at the slave, when it has both:
  until T@g={0:5}, T@other={0:6} -> {T@g={0:5}, T@other={0:6}}
at the master:
  delete g -> SUCCESS
  commit other T 0 7 -> SUCCESS
  table -> {T@other={0:7}}
at the slave, when it has the later commit:
  until T@other={0:7} -> {T@g={0:5}, T@other={0:7}}
after a clean stop and a start of the slave:
  until T@other={0:7} -> {T@g={0:5}, T@other={0:7}}
STATED

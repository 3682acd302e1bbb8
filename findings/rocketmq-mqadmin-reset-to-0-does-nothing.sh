#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ: mqadmin resetOffsetByTime of one queue to offset 0 sends nothing, and says that it did.

Most expect: resetOffsetByTime -b BROKER -q QUEUE with -o 0, or with a time before the first message of a log that begins at 0,
  moves the queue to its beginning.
What happens: it prints "reset consumer offset to 0", exits with 0 and asks the broker for nothing. -o 1 works.
Why it matters: the most usual rewind, to the beginning, is not done, and a script cannot see it. Nothing of it comes to who keeps
  offsets beside the broker. Reset the whole topic by time, or read the offset again.
TEXT

reset() { # OPTION...
  echo "mqadmin resetOffsetByTime -g g -t T -b BROKER -q 0 $*"
  code=0
  mqadmin resetOffsetByTime -g g -t T -b "$BROKER" -q 0 "$@" >"$WORK/reset.log" || code=$?
  grep "^reset consumer" "$WORK/reset.log" | sed 's/^/  /' || true
  echo "  exit code $code"
  echo "query g T 0" | ask
}
{
  start_namesrv
  start_broker broker
  ask <<REQUESTS
topic T 1
group g
send T 0 9
end T 0 9
commit g T 0 5
REQUESTS
  reset -s now -o 0
  reset -s 1000
  reset -s now -o 1
  stop_broker
} >"$SEEN"

verdict <<'STATED'
  topic T 1 -> SUCCESS
  group g -> SUCCESS
  send T 0 9 -> SUCCESS
  end T 0 9 -> 9
  commit g T 0 5 -> SUCCESS
mqadmin resetOffsetByTime -g g -t T -b BROKER -q 0 -s now -o 0
  reset consumer offset to 0
  exit code 0
  query g T 0 -> 5
mqadmin resetOffsetByTime -g g -t T -b BROKER -q 0 -s 1000
  reset consumer offset to 0
  exit code 0
  query g T 0 -> 5
mqadmin resetOffsetByTime -g g -t T -b BROKER -q 0 -s now -o 1
  reset consumer offset to 1
  exit code 0
  query g T 0 -> 1
STATED

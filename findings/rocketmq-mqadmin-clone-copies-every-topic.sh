#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ: mqadmin cloneGroupOffset -t TOPIC copies the offsets of all topics, and 0 where there is none.

Most expect: cloneGroupOffset -s SOURCE -d TARGET -t T gives the target the source's offsets of T, and touches nothing else.
What happens: it commits to the target the offsets of every topic that the source has. What the target had of another topic is
  overwritten, backward as well. A queue that the source never committed gets 0.
Why it matters: the target repeats messages of topics that nobody named, and starts at the beginning of queues where the source
  would start as its consumers say (often at the end). Who follows the broker sees ordinary commits that go back.
TEXT

{
  start_namesrv
  start_broker broker
  ask <<REQUESTS
topic T 2
topic U 1
group copy
consumer g T U
send T 0 9
send U 0 9
end T 0 9
end U 0 9
commit g T 0 5
commit g U 0 1
commit copy U 0 8
table
REQUESTS
  tries=0 # the name server hears of the topics a moment later
  until mqadmin cloneGroupOffset -s g -d copy -t T -o true >"$WORK/clone.log" 2>&1 && grep -q "clone group offset success" "$WORK/clone.log"; do
    tries=$((tries + 1))
    [ "$tries" -lt 30 ] || { cat "$WORK/clone.log" >&2 && broken "mqadmin did not clone"; }
    sleep 1
  done
  echo "mqadmin cloneGroupOffset -s g -d copy -t T -o true"
  grep -o "clone group offset success.*" "$WORK/clone.log" | sed 's/^/  /'
  echo table | ask
  stop_broker
} >"$SEEN"

verdict <<'STATED'
  topic T 2 -> SUCCESS
  topic U 1 -> SUCCESS
  group copy -> SUCCESS
  consumer g T U -> SUCCESS
  send T 0 9 -> SUCCESS
  send U 0 9 -> SUCCESS
  end T 0 9 -> 9
  end U 0 9 -> 9
  commit g T 0 5 -> SUCCESS
  commit g U 0 1 -> SUCCESS
  commit copy U 0 8 -> SUCCESS
  table -> {T@g={0:5}, U@copy={0:8}, U@g={0:1}}
mqadmin cloneGroupOffset -s g -d copy -t T -o true
  clone group offset success. srcGroup[g], destGroup=[copy], topic[T]
  table -> {T@copy={0:5,1:0}, T@g={0:5}, U@copy={0:1}, U@g={0:1}}
STATED

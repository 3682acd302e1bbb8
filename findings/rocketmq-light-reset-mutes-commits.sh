#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/rocketmq.sh"
rocketmq

statement <<TEXT
Apache RocketMQ $ROCKETMQ, enableLmq=true: the reset of a light queue that has no offset yet sets nothing, and mutes the group.

Most expect: a reset that was answered with success sets the offset, also where none was committed before; or it is refused.
What happens: for a light topic of a light group (both named %LMQ%...) the broker notes a pending reset, but sets an offset only
  where there is one already. Queries find none. All commits from then on are answered with success and dropped, until a
  consumer pulls from this queue at this broker. A light queue that had an offset takes the reset.
Why it matters: "success" is no proof that an offset is set, nor that a commit was stored. Read it again after a reset and after a
  commit, or what is kept beside the broker differs from what the broker has.
TEXT

{
  start_broker json enableLmq=true enableMultiDispatch=true
  ask <<REQUESTS
topic T 1
group %LMQ%g
send T 0 9 %LMQ%new
send T 0 9 %LMQ%old
end %LMQ%new 0 9
end %LMQ%old 0 9
commit %LMQ%g %LMQ%old 0 5
reset %LMQ%g %LMQ%old 0 2
query %LMQ%g %LMQ%old 0
reset %LMQ%g %LMQ%new 0 2
query %LMQ%g %LMQ%new 0
commit %LMQ%g %LMQ%new 0 3
query %LMQ%g %LMQ%new 0
table
consumer %LMQ%g %LMQ%new
pull %LMQ%g %LMQ%new 0 3
commit %LMQ%g %LMQ%new 0 3
query %LMQ%g %LMQ%new 0
REQUESTS
  stop_broker
} >"$SEEN"

verdict <<'STATED'
  topic T 1 -> SUCCESS
  group %LMQ%g -> SUCCESS
  send T 0 9 %LMQ%new -> SUCCESS
  send T 0 9 %LMQ%old -> SUCCESS
  end %LMQ%new 0 9 -> 9
  end %LMQ%old 0 9 -> 9
  commit %LMQ%g %LMQ%old 0 5 -> SUCCESS
  reset %LMQ%g %LMQ%old 0 2 -> SUCCESS
  query %LMQ%g %LMQ%old 0 -> 2
  reset %LMQ%g %LMQ%new 0 2 -> SUCCESS
  query %LMQ%g %LMQ%new 0 -> code 22 (Not found, do not set to zero, maybe this group boot first)
  commit %LMQ%g %LMQ%new 0 3 -> SUCCESS (Offset has been previously reset)
  query %LMQ%g %LMQ%new 0 -> code 22 (Not found, do not set to zero, maybe this group boot first)
  table -> {%LMQ%old@%LMQ%g=2}
  consumer %LMQ%g %LMQ%new -> SUCCESS
  pull %LMQ%g %LMQ%new 0 3 -> code 21 (OFFSET_RESET), next 2
  commit %LMQ%g %LMQ%new 0 3 -> SUCCESS
  query %LMQ%g %LMQ%new 0 -> 3
STATED

#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/kafka.sh"

statement <<TEXT
Apache Kafka $KAFKA: kafka-consumer-groups --reset-offsets of a group with running members changes nothing and exits with 0
(asked for in KAFKA-6357).

Most expect: a reset that was refused is told by the exit code, and on standard error.
What happens: the error is printed on standard output, also into the file that --export makes; the exit code is 0.
Why it matters: a script that stops consumers, resets and starts them goes on as if the reset were done when one consumer was
  still there. A CSV that was exported then is not what --from-file, or another importer, reads.
TEXT

start_kafka
make_topic T 5
kafka_of consumer.log org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server "$KAFKA_ADDRESS" --topic T --group g --from-beginning
CONSUMER=$!
wait_for '^5$' "$WORK/consumer.log" "$CONSUMER"
{
  echo "--reset-offsets --to-earliest --execute, while a consumer runs:"
  code=0
  consumer_groups --reset-offsets --group g --topic T --to-earliest --execute >"$WORK/stdout" || code=$?
  echo "exit code $code, standard output:"
  grep -v '^ *$' "$WORK/stdout" | sed 's/  */ /g; s/ $//; s/^/  /'
  echo "--reset-offsets --to-earliest --dry-run --export >offsets.csv, while a consumer runs:"
  code=0
  consumer_groups --reset-offsets --group g --topic T --to-earliest --dry-run --export >"$WORK/offsets.csv" || code=$?
  echo "exit code $code, offsets.csv:"
  grep -v '^ *$' "$WORK/offsets.csv" | sed 's/^/  /'
  kill "$CONSUMER"
  wait "$CONSUMER" || true
  echo "the same export when the consumer has ended:"
  code=0
  consumer_groups --reset-offsets --group g --topic T --to-current --dry-run --export >"$WORK/offsets.csv" || code=$?
  echo "exit code $code, offsets.csv:"
  grep -v '^ *$' "$WORK/offsets.csv" | sed 's/^/  /'
} >"$SEEN"

verdict <<'STATED'
--reset-offsets --to-earliest --execute, while a consumer runs:
exit code 0, standard output:
  Error: Assignments can only be reset if the group 'g' is inactive, but the current state is Stable.
  GROUP TOPIC PARTITION NEW-OFFSET
--reset-offsets --to-earliest --dry-run --export >offsets.csv, while a consumer runs:
exit code 0, offsets.csv:
  Error: Assignments can only be reset if the group 'g' is inactive, but the current state is Stable.
the same export when the consumer has ended:
exit code 0, offsets.csv:
  T,0,5
STATED

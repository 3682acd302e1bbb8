#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
. "$HERE/lib/kafka.sh"

statement <<TEXT
Apache Kafka $KAFKA: the CSV of kafka-consumer-groups --reset-offsets --export quotes names over 24 characters.

Most expect: names of Kafka's topics and most groups (letters, digits, dot, dash, underscore) stand in the CSV as they are, since
  nothing in them needs a quote.
What happens: a name of 24 characters stands bare, one of 25 in double quotes, whatever is in it.
Why it matters: an importer that splits lines at commas takes the quotes as a part of the name, for long names alone. It makes
  groups and topics that nobody has, and tests with short names do not show it. Read it with a CSV parser.
TEXT

start_kafka
T24=topic-of-24-characters-x
T25=topic-of-25-characters-xx
make_topic "$T24" 3
make_topic "$T25" 3
{
  for group in group-of-24-characters-x group-of-25-characters-xx; do
    consumer_groups --reset-offsets --group "$group" --topic "$T24" --topic "$T25" --to-latest --execute >"$WORK/reset.log" || broken "no reset"
  done
  echo "of one group:"
  consumer_groups --reset-offsets --group group-of-24-characters-x --topic "$T24" --topic "$T25" --to-current --dry-run --export >"$WORK/one.csv"
  grep -v '^ *$' "$WORK/one.csv" | sort | sed 's/^/  /'
  echo "of all groups:"
  consumer_groups --reset-offsets --all-groups --topic "$T24" --topic "$T25" --to-current --dry-run --export >"$WORK/all.csv"
  grep -v '^ *$' "$WORK/all.csv" | sort | sed 's/^/  /'
} >"$SEEN"

verdict <<'STATED'
of one group:
  "topic-of-25-characters-xx",0,3
  topic-of-24-characters-x,0,3
of all groups:
  "group-of-25-characters-xx","topic-of-25-characters-xx",0,3
  "group-of-25-characters-xx",topic-of-24-characters-x,0,3
  group-of-24-characters-x,"topic-of-25-characters-xx",0,3
  group-of-24-characters-x,topic-of-24-characters-x,0,3
STATED

# Sourced after common.sh: a Kafka broker (KRaft, one node) and its command-line tools from Kafka's jars, on loopback.
KAFKA=4.3.1
JVM="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx384m -Duser.home=$WORK"

run_kafka() { # MAIN ARGUMENT...
  # shellcheck disable=SC2086 - options
  java $JVM -cp "$WORK/jars/*" "$@"
}

kafka_of() { # LOG MAIN ARGUMENT...: in the background; its process is $!
  log=$1 && shift
  # shellcheck disable=SC2086 - options
  java $JVM -cp "$WORK/jars/*" "$@" >"$WORK/$log" 2>&1 &
  PIDS="$PIDS $!"
}

start_kafka() { # fetch the jars, and start a broker
  need python3:python3
  maven "org.apache.kafka:kafka_2.13:$KAFKA" "org.apache.kafka:kafka-tools:$KAFKA"
  port=$(free_port)
  KAFKA_ADDRESS="127.0.0.1:$port"
  cat >"$WORK/kafka.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
controller.listener.names=CONTROLLER
log.dirs=$WORK/kafka
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
log.segment.bytes=1048576
log.cleaner.dedupe.buffer.size=2097152
PROPERTIES
  run_kafka kafka.tools.StorageTool format --cluster-id 0000000000000000000000 --config "$WORK/kafka.properties" >"$WORK/format.log" 2>&1 \
    || broken "the store is not formatted"
  kafka_of kafka.log kafka.Kafka "$WORK/kafka.properties"
  tries=0
  until run_kafka org.apache.kafka.tools.TopicCommand --bootstrap-server "$KAFKA_ADDRESS" --list >"$WORK/list.log" 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 20 ] || broken "the broker does not answer"
  done
}

make_topic() { # NAME COUNT: with one partition and messages
  run_kafka org.apache.kafka.tools.TopicCommand --bootstrap-server "$KAFKA_ADDRESS" --create --topic "$1" --partitions 1 >"$WORK/topic.log" 2>&1 \
    || broken "the topic is not made"
  seq "$2" | run_kafka org.apache.kafka.tools.ConsoleProducer --bootstrap-server "$KAFKA_ADDRESS" --topic "$1" >"$WORK/produce.log" 2>&1 \
    || broken "messages are not sent"
}

consumer_groups() { # ARGUMENT...: Kafka's own command; its errors are in $WORK/stderr
  run_kafka org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --bootstrap-server "$KAFKA_ADDRESS" "$@" 2>"$WORK/stderr"
}

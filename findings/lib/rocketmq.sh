# Sourced after common.sh: RocketMQ's own name server, broker and tools from its jars, on loopback.
ROCKETMQ=5.5.0
JVM="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx448m -Drocketmq.client.logLevel=ERROR -Duser.home=$WORK"

rocketmq() { # fetch the jars, and compile the helper
  need python3:python3
  maven "org.apache.rocketmq:rocketmq-broker:$ROCKETMQ" "org.apache.rocketmq:rocketmq-client:$ROCKETMQ" \
    "org.apache.rocketmq:rocketmq-namesrv:$ROCKETMQ" "org.apache.rocketmq:rocketmq-tools:$ROCKETMQ"
  mkdir -p "$WORK/classes" "$WORK/home/conf"
  javac -nowarn -cp "$WORK/jars/*" -d "$WORK/classes" "$HERE/lib/AskBroker.java" || broken "the helper does not compile"
  for name in rmq.logback-test.xml logback-test.xml rmq.client.logback.xml; do
    echo '<configuration><root level="OFF"/></configuration>' >"$WORK/classes/$name"
  done
  export ROCKETMQ_HOME="$WORK/home"
}

java_of() { # LOG MAIN ARGUMENT...: in the background; its process is $!
  log=$1 && shift
  # shellcheck disable=SC2086 - options
  java $JVM -XX:MaxDirectMemorySize=384m -cp "$WORK/classes:$WORK/jars/*" "$@" >"$WORK/$log" 2>&1 &
  PIDS="$PIDS $!"
}

start_namesrv() {
  NAMESRV_PORT=$(free_port)
  printf 'listenPort=%s\nbindAddress=127.0.0.1\nkvConfigPath=%s/kv.json\n' "$NAMESRV_PORT" "$WORK" >"$WORK/namesrv.conf"
  java_of namesrv.log org.apache.rocketmq.namesrv.NamesrvStartup -c "$WORK/namesrv.conf"
  wait_for "boot success" "$WORK/namesrv.log" $!
  export NAMESRV_ADDR="127.0.0.1:$NAMESRV_PORT"
}

start_broker() { # NAME [LINE_OF_BROKER_CONF...]: a broker whose store is $WORK/NAME; starts again on what is there
  NAME=$1 && shift
  port=$(free_port)
  BROKER="127.0.0.1:$port"
  {
    echo "brokerName=$NAME"
    echo "brokerClusterName=findings"
    echo "brokerIP1=127.0.0.1"
    echo "bindAddress=127.0.0.1"
    echo "listenPort=$port"
    echo "haListenPort=$((port + 1))"
    echo "storePathRootDir=$WORK/$NAME"
    echo "storePathCommitLog=$WORK/$NAME/commitlog"
    echo "mappedFileSizeCommitLog=16777216"
    echo "mappedFileSizeConsumeQueue=60000"
    echo "mappedFileSizeTimerLog=1048576"
    echo "maxHashSlotNum=5000"
    echo "maxIndexNum=20000"
    echo "timerWheelEnable=false"
    echo "namesrvAddr=${NAMESRV_ADDR:-}"
    echo "diskMaxUsedSpaceRatio=99"
    for line in "$@"; do echo "$line"; done
  } >"$WORK/$NAME.conf"
  : >"$WORK/$NAME.log"
  java_of "$NAME.log" org.apache.rocketmq.broker.BrokerStartup -c "$WORK/$NAME.conf"
  BROKER_PID=$!
  wait_for "boot success" "$WORK/$NAME.log" "$BROKER_PID"
}

stop_broker() { # as an operator stops it: SIGTERM
  kill "$BROKER_PID"
  wait "$BROKER_PID" || true
}

ask() { # standard input: requests, see AskBroker.java
  # shellcheck disable=SC2086 - options
  java $JVM -cp "$WORK/classes:$WORK/jars/*" AskBroker "$BROKER" 2>>"$WORK/ask.log" || broken "the helper failed"
}

mqadmin() { # RocketMQ's own command
  # shellcheck disable=SC2086 - options
  java $JVM -cp "$WORK/classes:$WORK/jars/*" org.apache.rocketmq.tools.command.MQAdminStartup "$@" 2>&1
}

#!/bin/sh
# A JDK and Maven from Debian's packages, and from the Maven registry, in a store directory: libraries that users of Spark put on
# its class path (Delta, Iceberg, OpenLineage, the connector to Kafka), a Kafka broker, and HDFS in one process; and from PyPI the
# Spark that Delta and Iceberg have in common: neither has a release yet that loads in the one of requirements/spark.lock; and an
# emulator of Google Cloud Storage. May run again at any time.
set -eu
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/offset-adapter-interop"

sh "$(dirname "$0")/install-packages.sh" javac:openjdk-17-jdk-headless mvn:maven

fetch() { # a name, a library as GROUP:ARTIFACT:VERSION with what it depends on, what to leave out, and other libraries
  target="$CACHE/spark-$1"
  [ "$(cat "$target/complete" 2>/dev/null)" != "$2" ] || return 0
  work=$(mktemp -d)
  group=${2%%:*} version=${2##*:} artifact=${2#*:}
  artifact=${artifact%:*}
  cat >"$work/pom.xml" <<POM
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>interop</groupId><artifactId>interop</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>$group</groupId><artifactId>$artifact</artifactId><version>$version</version>
      <exclusions>
        <exclusion><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-runtime</artifactId></exclusion>
        <exclusion><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-api</artifactId></exclusion>
        $3
      </exclusions>
    </dependency>
    ${4:-}
  </dependencies>
</project>
POM
  rm -rf "$target" && mkdir -p "$target"
  # Maven prints its errors to stdout.
  if (cd "$work" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$target" >"$work/log" 2>&1); then
    echo "$2" >"$target/complete"
    rm -rf "$work"
  else
    grep -m 3 ERROR "$work/log" || true
    rm -rf "$work"
    echo "not fetched: $2 (mvn says why above)"
    exit 1
  fi
}

spark="<exclusion><groupId>org.apache.spark</groupId><artifactId>*</artifactId></exclusion>
  <exclusion><groupId>org.scala-lang</groupId><artifactId>*</artifactId></exclusion>"
fetch delta io.delta:delta-spark_4.1_2.13:4.4.0 "$spark"
fetch iceberg org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 "$spark"
fetch openlineage io.openlineage:openlineage-spark_2.13:1.53.0 "$spark"
# With Spark's token provider, which comes with the connector.
fetch kafka org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 "
  <exclusion><groupId>org.scala-lang</groupId><artifactId>*</artifactId></exclusion>"
# Kafka's own commands, and a broker.
fetch kafka-broker org.apache.kafka:kafka-tools:4.3.0 "" \
  "<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.3.0</version></dependency>"
# With the log that Hadoop's own Maven file leaves to others.
fetch hdfs org.apache.hadoop:hadoop-client-minicluster:3.5.0 "" \
  "<dependency><groupId>commons-logging</groupId><artifactId>commons-logging</artifactId><version>1.3.5</version></dependency>"

python() { # a name, and a package as PACKAGE==VERSION: a virtual environment of its own
  target="$CACHE/$1"
  [ "$(cat "$target/complete" 2>/dev/null)" != "$2" ] || return 0
  rm -rf "$target"
  "${PYTHON:-python3}" -m venv "$target"
  "$target/bin/pip" install --quiet --disable-pip-version-check "$2"
  echo "$2" >"$target/complete"
}

python spark-4.1 pyspark==4.1.3
python gcs gcp-storage-emulator==2026.7.19

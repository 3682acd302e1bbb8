"""Creates Spark sessions: with a Java, the same Python in the workers, times in UTC, and the data sources registered."""

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from adapter.pipeline.java import java_home
from adapter.pipeline.journal.source import JournalDataSource, SegmentsDataSource
from adapter.pipeline.offsets.source import OffsetsDataSource

LOCAL = "local[*]"

SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The data source `offsets` accepts filters; Spark refuses such a reader unless this is on.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.ui.showConsoleProgress": "true",
}
_LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "2g",
}


def spark_session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session, or that of spark-submit. `master` None: the master of spark-submit, otherwise `local[*]`.

    Raises ConfigError if there is no Java.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started the JVM and set the master
    if master or not submitted:
        builder = builder.master(master or LOCAL)
    if not submitted:
        os.environ["JAVA_HOME"] = str(java_home(os.environ))
    values = dict(SETTINGS)
    if not submitted and (master or LOCAL).startswith("local"):
        values |= _LOCAL_SETTINGS
    for key, value in {**values, **(settings or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    for source in (OffsetsDataSource, JournalDataSource, SegmentsDataSource):
        session.dataSource.register(source)
    return session

"""Creates Spark sessions: with a Java, the same Python in the workers, times in UTC, and the data sources.

What the user has set wins over the defaults here: `spark-submit --conf`, spark-defaults.conf, and environment variables.
"""

import os
import sys
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from adapter.pipeline.java import java_ends_if_not_started, java_home
from adapter.pipeline.journal.source import JournalDataSource, SegmentsDataSource
from adapter.pipeline.offsets.source import OffsetsDataSource

LOCAL = "local[*]"  # Spark's own default
# How Spark calls an application without a name: by its shell, or by the file that it was given.
_UNNAMED = {"pyspark-shell", "__main__.py"}

DEFAULTS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The data source `offsets` accepts filters; Spark refuses such a reader unless this is on.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Plans and the event log have the options of a view in SQL: this hides the credentials in a URL.
    "spark.redaction.string.regex": r"(?<=://)[^@\s/]*:[^@\s]*(?=@)",
}
LOCAL_DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}
DRIVER_MEMORY = "2g"
# Without Java's second compiler, which takes a quarter of the CPU of a short job (benchmarks/pipeline_start.py).
SHORT = "-XX:TieredStopAtLevel=1"


def spark_session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None, *, short: bool = False
) -> SparkSession:
    """A session, or that of spark-submit. `settings` win over everything else. `short`: Java has little to do in it.

    `master` None: spark.master of the settings, of spark-submit or of spark-defaults.conf, otherwise `local[*]`. Raises
    ConfigError if there is no Java.
    """
    # Spark runs data sources in the workers by the Python that it looks them up with on the driver.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ.setdefault("PYSPARK_PYTHON", sys.executable))
    given = dict(settings or {})
    if master:
        given["spark.master"] = master
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit has started the JVM
        os.environ["JAVA_HOME"] = str(java_home(os.environ))
        os.environ.setdefault("SPARK_DRIVER_MEMORY", DRIVER_MEMORY)  # spark.driver.memory wins over it
        if short:  # what the user has set comes later, and wins
            os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()
    # Starts the JVM, which alone knows what spark-submit and spark-defaults.conf say.
    with java_ends_if_not_started():
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(given.items())))  # noqa: SLF001
    conf = SparkConf().setAll(list(given.items()))
    if conf.get("spark.app.name") in _UNNAMED:
        conf.setAppName(name)
    local = conf.get("spark.master", LOCAL).startswith("local")
    executors = {"spark.executor.extraJavaOptions": SHORT} if short else {}
    for key, value in {**DEFAULTS, **executors, **(LOCAL_DEFAULTS if local else {})}.items():
        conf.setIfMissing(key, value)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    _register_sources(session)
    return session


def _register_sources(session: SparkSession) -> None:
    """Register the data sources that Spark has not found by itself, as in a Python that only the driver has."""
    known = session._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - Spark warns of a second registration
    for source in (OffsetsDataSource, JournalDataSource, SegmentsDataSource):
        if not known.dataSourceExists(source.name()):
            session.dataSource.register(source)

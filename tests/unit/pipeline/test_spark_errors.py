"""What is told of Spark's errors: one line that says what to do."""

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from adapter.pipeline.jobs import JobError, own_errors

OURS = """
An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "source.py", line 1, in partitions
adapter.errors.RefusedError: an earlier one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
adapter.errors.MetaUnavailableError: 127.0.0.1:9530: did not answer: is it running?

\tat org.apache.spark.sql.errors.QueryCompilationErrors$.pythonDataSourceError
"""
WORKER = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times: org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "worker.py", line 1, in main
{}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
"""
JAVA = """An error occurred while calling o77.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.jobAbortedError(QueryExecutionErrors.scala:1)
Caused by: java.io.IOException: {}
\tat org.apache.parquet.hadoop.util.HadoopOutputFile.create(HadoopOutputFile.java:74)
"""


class Thrown:
    """A Java exception."""

    def toString(self) -> str:
        """As Java has it."""
        return "org.apache.spark.SparkException: Job aborted."


class JavaError(Py4JJavaError):  # type: ignore[misc]
    """As py4j raises it, without a JVM."""

    java_exception = Thrown()

    def __init__(self, text: str) -> None:
        """With all that its text has."""
        self.text = text

    def __str__(self) -> str:
        """The message, and the stack trace."""
        return self.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (PySparkException(OURS), "127.0.0.1:9530: did not answer: is it running?"),
        (
            PySparkException(WORKER.format("ModuleNotFoundError: No module named 'adapter'")),
            "the Python of Spark's workers has no module adapter: ship the environment to them, or install it; see ",
        ),
        (PySparkException(WORKER.format("pyarrow.lib.ArrowInvalid: x\nValueError: too small")), "ValueError: too small"),
        (
            AnalysisException("[UNABLE_TO_INFER_SCHEMA] Unable to infer schema for Parquet. SQLSTATE: 42KD9"),
            "Spark does not find the files that its own workers wrote: name a directory that every machine shares, or a URL",
        ),
        (AnalysisException("[UNRESOLVED_COLUMN] no such column\nmore"), "[UNRESOLVED_COLUMN] no such column"),
        (
            JavaError(JAVA.format("Mkdirs failed to create file:/out/_temporary/0 (exists=false, cwd=file:/work/0)")),
            "/out/_temporary/0: a machine of the cluster cannot make this directory: name a directory that every machine shares",
        ),
        (
            JavaError(JAVA.format("/out/a.parquet (Permission denied)")),
            "/out/a.parquet: permission denied to the user of Spark's",
        ),
        (JavaError(JAVA.format("no space left")), "IOException: no space left"),
        (JavaError("called o1.x\n: unheard of"), "org.apache.spark.SparkException: Job aborted."),
        (
            PermissionError(13, "Permission denied", "/root/x"),
            "/root/x: Permission denied: run as a user who may, or name another",
        ),
        (OSError("AWS Error ACCESS_DENIED"), "AWS Error ACCESS_DENIED"),
    ],
)
def test_an_error_is_told_in_one_line(error: Exception, told: str) -> None:
    """Without stack traces; those are logged at level debug."""
    with pytest.raises(JobError) as raised, own_errors():
        raise error
    assert str(raised.value).startswith(told)
    assert "\n" not in str(raised.value)


def test_a_bug_keeps_its_trace() -> None:
    """Only what Spark, its workers or a file system say is put into other words."""
    with pytest.raises(TypeError), own_errors():
        raise TypeError

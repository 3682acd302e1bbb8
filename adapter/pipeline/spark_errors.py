"""What a person is told of an error that Spark raised: one line that says what to do, instead of two stack traces."""

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

SPARK_ERRORS = (PySparkException, Py4JJavaError)

# Our errors in the last line of a traceback that a Python worker of Spark sent.
_OURS = re.compile(r"^\s*(?:\S+: )?adapter\.(?:\w+\.)+\w*Error: (.+)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^[\w.]+: .+$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+: .+)$", re.MULTILINE)

_SHARED = "name a directory that every machine shares, or a URL"
_ENVIRONMENT = 'see "Run on a cluster" in docs/pipeline.md'
# What Spark, Hadoop or Java says -> what to do. The groups of the pattern are the fields of the text.
_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (
            r"ModuleNotFoundError: No module named '(\w+)",
            f"the Python of Spark's workers has no module {{0}}: ship the environment to them, or install it; {_ENVIRONMENT}",
        ),
        (
            r'Cannot run program "([^"]+)"',
            f"a machine of the cluster has no Python {{0}}: PYSPARK_PYTHON names the one of the workers; {_ENVIRONMENT}",
        ),
        (
            r"\[PYTHON_VERSION_MISMATCH\] (.+?)\. *(?:PySpark|$)",
            f"{{0}}: PYSPARK_PYTHON names the Python of the workers; {_ENVIRONMENT}",
        ),
        (r"UNABLE_TO_INFER_SCHEMA", f"Spark does not find the files that its own workers wrote: {_SHARED}"),
        (
            r"FAILED_READ_FILE\.FILE_NOT_EXIST\]\D*? file (\S+)\. ",
            f"{{0}}: a machine of the cluster does not have this file, or it was deleted meanwhile: {_SHARED}",
        ),
        (r"AccessDeniedException: ([^\s:]+)", "{0}: permission denied to the user of Spark's workers"),
        (r"(\S+) \(Permission denied\)", "{0}: permission denied to the user of Spark's workers"),
        (
            r"Mkdirs failed to create (?:file:)?([^\s(]+)",
            f"{{0}}: a machine of the cluster cannot make this directory: {_SHARED}",
        ),
        (
            r'No FileSystem for scheme "(\w+)"|Class (org\.apache\.hadoop\.fs\.\S+) not found',
            "Spark has no file system for {0}: give it one, as by --conf spark.jars.packages=org.apache.hadoop:hadoop-aws",
        ),
        (
            r"All masters are unresponsive",
            "no master of the cluster answers: --master, or spark.master, is spark://HOST:PORT of a running one",
        ),
        (
            r"Could not parse Master URL: '?([^'\s]+)",
            "--master: {0} is no URL of a master; there are local[4], spark://HOST:7077, yarn",
        ),
    )
)


def in_one_line(error: Exception) -> str:
    """What to tell of an error of SPARK_ERRORS, of an OSError, or of one of ours."""
    if isinstance(error, OSError):
        return _of_file(error)
    text = str(error)
    if ours := _OURS.findall(text):
        return str(ours[-1])
    for pattern, told in _KNOWN:
        if found := pattern.search(text):
            return told.format(*(group for group in found.groups() if group))
    raised = _RAISED.findall(text.rpartition(_TRACEBACK)[2].partition("\n\tat ")[0]) if _TRACEBACK in text else []
    causes = raised or _JAVA_CAUSE.findall(text)
    return str(causes[-1]) if causes else _first_line(error)


def _of_file(error: OSError) -> str:
    problem = error.strerror or str(error)
    advice = ": run as a user who may, or name another place" if isinstance(error, PermissionError) else ""
    return f"{error.filename}: {problem}{advice}" if error.filename else problem


def _first_line(error: Exception) -> str:
    told = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return next((line.strip() for line in told.splitlines() if line.strip()), type(error).__name__)

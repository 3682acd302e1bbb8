"""The options of the tests' JVMs, which live for seconds."""

from pathlib import Path

# Two fifths of a short job are the compiler's second stage, and the verification of Spark's classes.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


def killed_in(directory: Path) -> dict[str, str]:
    """The environment of a driver that is killed: what it leaves behind is in a directory of its test."""
    return {"JDK_JAVA_OPTIONS": f"{SHORT_LIVED} -Djava.io.tmpdir={directory}", "SPARK_LOCAL_DIRS": str(directory)}

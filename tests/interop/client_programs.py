"""The programs of the clients in clients/, as `make interop` builds them (install-go-rust.sh, install-java-node.sh)."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop"
RUST_TARGET = CACHE / "rust-client"
JAVA = ROOT / "clients/java/target"


@dataclass(frozen=True)
class Programs:
    """Commands without arguments."""

    driver: Sequence[str]
    benchmark: Sequence[str]
    built: Path  # is there when they are

    @property
    def exist(self) -> bool:
        """True if they are built."""
        return self.built.exists()


def _java(name: str) -> Sequence[str]:
    path = ":".join(str(JAVA / part) for part in ("test-classes", "classes", "jars/*"))
    return ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path, name)


PROGRAMS = {
    "go": Programs((str(CACHE / "go-client/conformance"),), (str(CACHE / "go-client/benchmark"),), CACHE / "go-client/benchmark"),
    "java": Programs(
        _java("offsetadapter.conformance.Driver"),
        [part for part in _java("offsetadapter.benchmark.Benchmark") if part != "-XX:TieredStopAtLevel=1"],
        JAVA / "test-classes/offsetadapter/benchmark/Benchmark.class",
    ),
    "rust": Programs(
        (str(RUST_TARGET / "debug/examples/conformance"),),
        (str(RUST_TARGET / "release/examples/benchmark"),),
        RUST_TARGET / "release/examples/benchmark",
    ),
}

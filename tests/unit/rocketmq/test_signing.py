"""Signatures for a broker's ACL."""

from pathlib import Path

import pytest

from adapter.errors import ConfigError
from adapter.rocketmq.config import RocketmqAcl, RocketmqSection, signer_of
from adapter.rocketmq.signing import Signer


def test_a_request_is_signed_as_rocketmq_signs_it() -> None:
    """AclClientRPCHook of 5.3.3 with the same account made this signature."""
    fields = {"topic": "T", "consumerGroup": "gr\u00fc\u00dfe", "queueId": "3", "commitOffset": "42"}
    signed = Signer("admin", "12345678").signed(fields, b"body")
    assert signed == {**fields, "AccessKey": "admin", "Signature": "KAPPYUk9mVRnstK5OTTudDu/bqM="}


def test_a_secret_is_never_shown() -> None:
    """Not in a trace or a log."""
    assert "12345678" not in repr(Signer("admin", "12345678"))


def test_the_secret_comes_from_a_file_of_its_own(tmp_path: Path) -> None:
    """One line, closed to others."""
    file = tmp_path / "secret"
    file.write_text("12345678\n")
    file.chmod(0o600)
    section = RocketmqSection(acl=RocketmqAcl(access_key="admin", secret_key_file=file))
    assert signer_of(section) == Signer("admin", "12345678")
    assert signer_of(RocketmqSection()) is None


@pytest.mark.parametrize(("content", "mode", "problem"), [("", 0o600, "is empty"), ("12345678", 0o644, "chmod 600")])
def test_an_unusable_secret_is_named(tmp_path: Path, content: str, mode: int, problem: str) -> None:
    """By its setting and file."""
    file = tmp_path / "secret"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"rocketmq.acl.secret_key_file: .*secret: .*{problem}"):
        signer_of(RocketmqSection(acl=RocketmqAcl(access_key="admin", secret_key_file=file)))

"""Certificates are checked before they are used, from what was read, and exchanged as a whole."""

import os
import resource
import subprocess
from pathlib import Path

import pytest

from adapter.errors import ConfigError
from adapter.runtime.settings.certificates import ServerCertificate, read_client_files, read_server_files
from adapter.runtime.settings.config import ClientTls, ServerTls
from adapter.runtime.settings.live import NOTHING_NEW
from tests.integration.certificates import Authority


def test_a_pair_is_read_and_leaves_no_file_open(tmp_path: Path) -> None:
    """What is returned is what was checked; the check needs no disk."""
    authority = Authority(tmp_path)
    server = authority.issue("server")
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = read_server_files(ServerTls(cert=server.cert, key=server.key, client_ca=authority.cert), "server.tls")
    assert (found.cert, found.key, found.ca) == (server.cert.read_bytes(), server.key.read_bytes(), authority.cert.read_bytes())
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # a collection may close what others left


def test_unusable_files_are_named_with_the_reason(tmp_path: Path) -> None:
    """A key of another certificate, no PEM, no file, an encrypted key: none of them gets to gRPC."""
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    garbage, locked = tmp_path / "garbage", tmp_path / "locked.key"
    garbage.write_text("no certificate")
    subprocess.run(
        ["openssl", "ec", "-in", one.key, "-aes256", "-passout", "pass:x", "-out", locked], check=True, capture_output=True
    )
    for key, why in (
        (other.key, "KEY_VALUES_MISMATCH"),
        (garbage, "not PEM files that belong together"),
        (tmp_path / "no", f"{tmp_path / 'no'}: No such file"),
        (locked, "the key is encrypted"),
    ):
        with pytest.raises(ConfigError, match=rf"^server\.tls: .*{why}"):
            read_server_files(ServerTls(cert=one.cert, key=key), "server.tls")
    with pytest.raises(ConfigError, match=r"^meta\.tls: .*garbage"):
        read_client_files(ClientTls(ca=garbage), "meta.tls")
    for file in (one.cert, authority.cert):
        file.write_text("")
    with pytest.raises(ConfigError, match=r"^server\.tls"):
        read_server_files(ServerTls(cert=one.cert, key=one.key), "server.tls")
    with pytest.raises(ConfigError, match=r"^meta\.tls"):
        read_client_files(ClientTls(ca=authority.cert), "meta.tls")


@pytest.mark.parametrize("spare", [1, 2])
def test_without_file_descriptors_they_cannot_be_checked(tmp_path: Path, spare: int) -> None:
    """A process that runs looks at its files every 5 seconds: it must not end because of that."""
    authority = Authority(tmp_path)
    tls, limits = ClientTls(ca=authority.cert), resource.getrlimit(resource.RLIMIT_NOFILE)
    assert read_client_files(tls, "meta.tls").ca
    free = [os.open(tmp_path, os.O_RDONLY) for _ in range(spare)]  # the lowest ones; others between them may be in use
    for file in free:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, limits[1]))
    try:
        if spare == 1:
            with pytest.raises(ConfigError, match=r"^meta\.tls: cannot be checked: Too many open files"):
                read_client_files(tls, "meta.tls")
        else:
            assert read_client_files(tls, "meta.tls").ca
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_handshakes_get_new_files_only_whole(tmp_path: Path) -> None:
    """A certificate without its key changes nothing: the pair of before stays until both are there."""
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    tls = ServerTls(cert=tmp_path / "cert", key=tmp_path / "key")
    tls.cert.write_bytes(one.cert.read_bytes())
    tls.key.write_bytes(one.key.read_bytes())
    certificate = ServerCertificate(tls)
    before = certificate.context
    assert certificate.prepare(tls) is NOTHING_NEW
    tls.cert.write_bytes(other.cert.read_bytes())
    with pytest.raises(ConfigError, match="KEY_VALUES_MISMATCH"):
        certificate.prepare(tls)
    tls.key.write_bytes(other.key.read_bytes())
    prepared = certificate.prepare(tls)
    assert prepared.replaced == ["server.tls"]
    assert certificate.context is before
    prepared.apply()
    assert certificate.context is not before
    assert certificate.prepare(tls) is NOTHING_NEW

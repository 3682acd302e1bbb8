"""What the doctor sees of certificates and files with secrets."""

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest

from adapter.cli.doctor import secrets
from adapter.cli.doctor.findings import FAIL, OK, WARN
from adapter.console.config import ConsoleConfig
from adapter.metaservice.config import MetaConfig
from adapter.runtime.settings.config import ClientTls, Section, ServerTls, parse
from adapter.sidecar.config import AdapterConfig
from tests.integration.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A CA."""
    return Authority(tmp_path_factory.mktemp("ca"))


def self_signed(path: Path, days: int) -> Path:
    """A certificate that is valid for so many days from now."""
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=x"]
    key = path.with_suffix(".key")
    subprocess.run([*made, "-keyout", str(key), "-out", str(path), "-days", str(days)], check=True, capture_output=True)
    return path


def said(cert: Path) -> list[datetime]:
    """The times of a certificate as openssl tells them."""
    command = ["openssl", "x509", "-in", str(cert), "-noout", "-dates"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return [datetime.strptime(line.partition("=")[2], "%b %d %H:%M:%S %Y %Z").replace(tzinfo=UTC) for line in lines]


@pytest.mark.parametrize("days", [2, 20_000], ids=["two digits of the year", "four digits of the year"])
def test_the_times_are_those_that_openssl_tells(tmp_path: Path, authority: Authority, days: int) -> None:
    """Years from 2050 on have another form."""
    for path in (self_signed(tmp_path / "c.pem", days), authority.cert):
        assert list(secrets.validity(ssl.PEM_cert_to_DER_cert(path.read_text()))) == said(path)


@pytest.mark.parametrize(
    ("left", "state", "text"),
    [
        (timedelta(days=40), OK, "40 days"),
        (timedelta(days=30), WARN, "30 days are left"),
        (timedelta(seconds=1), WARN, "0 days are left"),
        (timedelta(0), FAIL, "EXPIRED"),
        (timedelta(days=50_000), FAIL, "not valid YET"),
    ],
)
def test_a_certificate_by_the_days_that_are_left(tmp_path: Path, left: timedelta, state: str, text: str) -> None:
    """The clock is given."""
    cert = self_signed(tmp_path / "c.pem", 60)
    _, end = said(cert)
    (row,) = secrets.certificate("server.tls", cert, now=end - left)
    assert (row.check, row.state, text in row.seen) == ("server.tls", state, True)


def test_of_several_certificates_in_a_file_the_first_to_end_counts(tmp_path: Path, authority: Authority) -> None:
    """A bundle of CAs, with text between them."""
    _, end = said(authority.cert)
    old = self_signed(tmp_path / "old.pem", 1)
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"the old one\n{old.read_text()}the new one\n{authority.cert.read_text()}")
    for path, state in ((bundle, FAIL), (authority.cert, WARN)):
        (row,) = secrets.certificate("meta.tls", path, now=end - timedelta(hours=12))
        assert row.state == state


def test_a_key_that_is_not_its_certificates(authority: Authority) -> None:
    """A pair is needed; files that cannot be read are named."""
    one, other = authority.issue("one"), authority.issue("other")
    good = [*secrets.server_tls("server.tls", ServerTls(cert=one.cert, key=one.key, client_ca=authority.cert))]
    assert [row.state for row in good] == [WARN, OK, WARN]  # they are valid for two days
    bad = [*secrets.client_tls("meta.tls", ClientTls(ca=authority.cert, cert=one.cert, key=other.key))]
    assert bad[-1].state == FAIL
    assert f"{one.cert} and {other.key} do not belong together" in bad[-1].seen
    one.key.chmod(0o644)
    *_, row = secrets.server_tls("server.tls", ServerTls(cert=one.cert, key=one.key))
    assert (row.state, row.advice) == (WARN, f"chmod o= {one.key}")
    missing = one.key.with_name("none.key")
    *_, row = secrets.server_tls("server.tls", ServerTls(cert=one.cert, key=missing))
    assert (row.state, row.seen) == (FAIL, f"{missing}: No such file or directory")


def test_a_key_with_a_password_asks_nobody(tmp_path: Path, authority: Authority) -> None:
    """OpenSSL would ask at the terminal, and the doctor would hang."""
    one = authority.issue("locked")
    locked = tmp_path / "locked.key"
    encrypt = ["openssl", "pkey", "-in", str(one.key), "-aes128", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(encrypt, check=True, capture_output=True)
    *_, row = secrets.server_tls("server.tls", ServerTls(cert=one.cert, key=locked))
    assert (row.state, "is encrypted" in row.seen) == (FAIL, True)


@pytest.mark.parametrize(
    "content",
    ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "-----BEGIN CERTIFICATE-----"],
)
def test_what_is_no_certificate(tmp_path: Path, content: str) -> None:
    """Said as that, whatever is in it."""
    path = tmp_path / "c.pem"
    path.write_text(content)
    (row,) = secrets.certificate("meta.tls", path)
    assert (row.state, row.advice) == (FAIL, "a file in PEM is needed")


def test_a_torn_certificate_is_none(authority: Authority) -> None:
    """Wherever it was cut."""
    whole = ssl.PEM_cert_to_DER_cert(authority.cert.read_text())
    for length in range(len(whole)):
        with pytest.raises(ValueError, match=r"DER|match"):
            secrets.validity(whole[:length])


def test_a_token_that_the_process_would_refuse(tmp_path: Path) -> None:
    """Open to others, too short, absent: as the process says it."""
    path = tmp_path / "token"
    path.write_text("x" * 32)
    path.chmod(0o644)
    (row,) = secrets.token("admin.token_file", path)
    assert row.state == FAIL
    assert row.seen.startswith(f"{path}: others than its owner have access to it: chmod 600")
    path.chmod(0o600)
    assert [row.state for row in secrets.token("admin.token_file", path)] == [OK]
    assert [row.state for row in secrets.password("etcd.password_file", path)] == [OK]
    path.write_text("short")
    assert [row.state for row in secrets.token("admin.token_file", path)] == [FAIL]
    path.unlink()
    assert [row.state for row in secrets.token("admin.token_file", path)] == [FAIL]


def test_a_credential_of_a_unit_that_does_not_run_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systemd makes it at the start of the unit. One that is there is read, as any other file."""
    monkeypatch.setattr(secrets, "CREDENTIALS", tmp_path)
    path = tmp_path / "offset-adapter.service" / "admin-token"
    (row,) = secrets.token("admin.token_file", path)
    assert (row.state, "LoadCredential=" in row.advice) == (WARN, True)
    path.parent.mkdir()
    path.write_text("x")
    path.chmod(0o600)
    (row,) = secrets.token("admin.token_file", path)
    assert (row.state, "at least 16" in row.seen) == (FAIL, True)


CLIENT = {"ca": "ca"}
SERVER = {"cert": "c", "key": "k"}


@pytest.mark.parametrize(
    ("kind", "values", "names"),
    [
        (AdapterConfig, {}, []),
        (
            AdapterConfig,
            {
                "server": {"tls": SERVER},
                "meta": {"tls": CLIENT},
                "admin": {"token_file": "t"},
                "rocketmq": {"broker": "b:1", "tls": CLIENT, "acl": {"access_key": "a", "secret_key_file": "s"}},
                "telemetry": {"endpoint": "https://c:1", "tls": CLIENT, "headers_file": "h"},
            },
            [
                "admin.token_file",
                "meta.tls",
                "rocketmq.acl.secret_key_file",
                "rocketmq.tls",
                "server.tls",
                "telemetry.headers_file",
                "telemetry.tls",
            ],
        ),
        (MetaConfig, {"engine": "rocksdb", "etcd": {"tls": CLIENT}}, []),
        (
            MetaConfig,
            {
                "engine": "etcd",
                "etcd": {
                    "metadata": {"endpoints": ["e:1"]},
                    "offsets": [{"name": "o", "endpoints": ["e:2"]}],
                    "tls": CLIENT,
                    "user": "u",
                    "password_file": "p",
                },
            },
            ["etcd.password_file", "etcd.tls"],
        ),
        (MetaConfig, {"fleet": {"token_file": "t"}}, []),
        (
            ConsoleConfig,
            {
                "server": {"tls": SERVER},
                "fleet": {"adapters": ["unix:a"], "token_file": "t", "tls": CLIENT},
                "access": {"changes": True, "view_token_file": "v", "admin_token_file": "a", "session_key_file": "s"},
            },
            [
                "access.admin_token_file",
                "access.session_key_file",
                "access.view_token_file",
                "fleet.tls",
                "fleet.token_file",
                "server.tls",
            ],
        ),
    ],
)
def test_every_file_that_a_process_reads_is_looked_at(kind: type[Section], values: dict[str, object], names: list[str]) -> None:
    """And none that it leaves alone. A setting that is called a file and has no check is a mistake."""
    config = parse(values, kind, source="test")
    checks = secrets.files_of(config)
    assert sorted(checks) == names
    for name, check in checks.items():
        assert {row.state for row in check() if row.check == name} == {FAIL}


@pytest.mark.parametrize("kind", [AdapterConfig, MetaConfig, ConsoleConfig])
def test_every_setting_that_names_a_file_with_a_secret_is_known(kind: type[Section]) -> None:
    """By its name."""
    unknown = [name for name in _settings(kind) if name.endswith("_file") and name not in secrets.READ]
    assert unknown == []


def _settings(kind: type[Section]) -> list[str]:
    found = []
    for name, field in kind.model_fields.items():
        found.append(name)
        for one in (field.annotation, *get_args(field.annotation)):
            if isinstance(one, type) and issubclass(one, Section):
                found += _settings(one)
    return found

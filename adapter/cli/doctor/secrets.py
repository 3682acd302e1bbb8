"""Certificates, their keys, and files with secrets: whether they can be used, for how long, and who can read them."""

import os
import ssl
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from adapter.cli.doctor.findings import FAIL, OK, WARN, Check, Finding
from adapter.console.access.tokens import Tokens
from adapter.errors import ConfigError
from adapter.fleet.section import FleetSection
from adapter.metaservice.config import EtcdSection, MetaConfig
from adapter.runtime.settings.config import ClientTls, Section, ServerTls
from adapter.runtime.settings.secret_files import read_secret, read_token
from adapter.runtime.telemetry.spans import TelemetrySection, read_headers

SOON = timedelta(days=30)
CREDENTIALS = Path("/run/credentials")  # of systemd's units that run
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18  # tags of DER


def files_of(config: Section) -> dict[str, Check]:
    """A check for each TLS table, and each file with a secret, that a process with these settings reads, by the setting."""
    return dict(_files_of(config, ""))


def _files_of(section: Section, within: str) -> Iterator[tuple[str, Check]]:
    for field, value in section:
        name = f"{within}{field}"
        if isinstance(value, ServerTls):
            yield name, partial(server_tls, name, value)
        elif isinstance(value, ClientTls):
            yield name, partial(client_tls, name, value)
        elif isinstance(value, TelemetrySection) and value.headers_file and value.endpoint:
            yield f"{name}.headers_file", partial(headers, value, value.headers_file)
        elif field in _READERS and isinstance(value, Path):
            yield name, partial(_READERS[field], name, value)
        if isinstance(value, Section) and not _unused(section, value):
            yield from _files_of(value, f"{name}.")


def _unused(config: Section, section: Section) -> bool:
    """Whether the process does not look at a section, whatever it says."""
    if isinstance(section, FleetSection):
        return not section.adapters
    if isinstance(section, TelemetrySection):
        return not section.endpoint
    return isinstance(section, EtcdSection) and isinstance(config, MetaConfig) and config.engine != "etcd"


def server_tls(name: str, tls: ServerTls) -> Iterator[Finding]:
    """The certificate of a server, and the CA of its clients."""
    yield from _pair(name, tls.cert, tls.key)
    if tls.client_ca:
        yield from certificate(name, tls.client_ca)


def client_tls(name: str, tls: ClientTls) -> Iterator[Finding]:
    """The CA of the servers that are called, and the certificate of this client."""
    yield from certificate(name, tls.ca)
    if tls.cert and tls.key:
        yield from _pair(name, tls.cert, tls.key)


def token(name: str, path: Path) -> Iterator[Finding]:
    """A file with a token, as the process reads it."""
    yield from _secret(name, path, lambda: read_token(path, name))


def headers(section: TelemetrySection, path: Path) -> Iterator[Finding]:
    """The file with the headers that a collector wants, as the process reads it."""
    yield from _secret("telemetry.headers_file", path, lambda: read_headers(section))


def password(name: str, path: Path) -> Iterator[Finding]:
    """A file with a password, as the process reads it."""
    yield from _secret(name, path, lambda: read_secret(path, name))


def tokens(name: str, path: Path) -> Iterator[Finding]:
    """A file with people's tokens, as the console reads it."""
    yield from _secret(name, path, lambda: Tokens.read(*((path, None) if name.endswith("view_token_file") else (None, path))))


# By the name of the setting: who reads such a file.
_READERS: dict[str, Callable[[str, Path], Iterator[Finding]]] = {
    "token_file": token,
    "adapter_token_file": token,
    "password_file": password,
    "secret_key_file": password,
    "session_key_file": password,
    "view_token_file": tokens,
    "admin_token_file": tokens,
}


READ = frozenset({*_READERS, "headers_file"})


def _secret(name: str, path: Path, read: Callable[[], object]) -> Iterator[Finding]:
    if path.is_relative_to(CREDENTIALS) and not path.exists():
        seen = f"{path} is not there: systemd makes it when the unit starts"
        yield Finding(name, WARN, seen, "look at the file that LoadCredential= of the unit names")
        return
    try:
        read()
    except ConfigError as error:
        yield Finding(name, FAIL, str(error).removeprefix(f"{name}: "), "the process does not start with it")
    else:
        yield Finding(name, OK, f"{path} ({_mode(path)})")


def certificate(name: str, path: Path, *, now: datetime | None = None) -> Iterator[Finding]:
    """When the certificates of a PEM file begin and end to be valid: of several, the one that ends first."""
    now = now or datetime.now(UTC)
    try:
        text = path.read_text(encoding="ascii", errors="replace")
        times = [validity(ssl.PEM_cert_to_DER_cert(block)) for block in blocks(text)]
    except OSError as error:
        yield Finding(name, FAIL, f"{path}: {error.strerror}", "look at its rights, and at the setting that names it")
        return
    except ValueError as error:
        yield Finding(name, FAIL, f"{path}: not a certificate: {error}", "a file in PEM is needed")
        return
    if not times:
        yield Finding(name, FAIL, f"{path}: holds no certificate", "a file in PEM is needed")
        return
    begin, end = max(begin for begin, _ in times), min(end for _, end in times)
    seen = f"{path}: valid from {begin:%Y-%m-%d} to {end:%Y-%m-%d %H:%M} UTC"
    if end <= now:
        yield Finding(name, FAIL, f"{seen}: it has EXPIRED", "replace it: no new connection is accepted with it")
    elif begin > now:
        yield Finding(name, FAIL, f"{seen}: it is not valid YET", "look at this machine's clock, and at the certificate")
    elif end - now <= SOON:
        yield Finding(name, WARN, f"{seen}: {(end - now).days} days are left", "replace it before")
    else:
        yield Finding(name, OK, f"{seen}, {(end - now).days} days")


def _pair(name: str, cert: Path, key: Path) -> Iterator[Finding]:
    """A certificate with its key."""
    yield from certificate(name, cert)
    try:
        status = key.stat()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        yield Finding(name, FAIL, f"{cert} and {key} do not belong together: {error.reason or error}", "name a pair")
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        yield Finding(name, FAIL, f"{key}: {text}", "look at its rights, and at the setting that names it")
    else:
        if status.st_mode & stat.S_IRWXO:
            yield Finding(name, WARN, f"{key} ({_mode(key)}): everybody on this machine may use it", f"chmod o= {key}")
        else:
            yield Finding(name, OK, f"{key} ({_mode(key)}) is its key")


def _no_password() -> str:
    """Instead of a question at the terminal."""
    raise ValueError("is encrypted; the process has no password for it")


def blocks(pem: str) -> Iterator[str]:
    """The certificates in a PEM text."""
    for part in pem.split(_BEGIN)[1:]:
        yield f"{_BEGIN}{part.partition(_END)[0]}{_END}"


def validity(der: bytes) -> tuple[datetime, datetime]:
    """The times notBefore and notAfter of a certificate (RFC 5280, 4.1). Raises ValueError if it is none.

    Python's ssl tells them only of a peer's certificate that was verified, so not of one that has expired.
    """
    whole = _content(der, 0, _SEQUENCE)[0]
    signed = _content(whole, 0, _SEQUENCE)[0]
    at = _content(signed, 0, _VERSION)[1] if signed[:1] == bytes([_VERSION]) else 0
    for _ in range(3):  # serialNumber, signature, issuer
        at = _content(signed, at, None)[1]
    times = _content(signed, at, _SEQUENCE)[0]
    _, next_at = _content(times, 0, None)
    return _time(times, 0), _time(times, next_at)


def _content(data: bytes, at: int, tag: int | None) -> tuple[bytes, int]:
    """The content of the element of DER at a place, and where the next one begins."""
    head = data[at : at + 2]
    if len(head) < 2 or (tag is not None and head[0] != tag):  # noqa: PLR2004 - tag and length
        raise ValueError("its DER is not that of a certificate")
    start, length = at + 2, head[1]
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[at + 2 : start], "big")
    if start + length > len(data):
        raise ValueError("its DER is torn")
    return data[start : start + length], start + length


def _time(data: bytes, at: int) -> datetime:
    text = _content(data, at, None)[0].decode("ascii")
    if data[at] == _UTC_TIME:  # two digits of the year: 50 to 99 are of the last century
        text = ("19" if text >= "5" else "20") + text
    elif data[at] != _GENERALIZED_TIME:
        raise ValueError("its DER has no times of validity")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _mode(path: Path) -> str:
    return f"{stat.S_IMODE(os.stat(path).st_mode):04o}"  # noqa: PTH116 - follows links, as the process does

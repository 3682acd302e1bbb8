"""Certificates, keys and CAs: read, checked before they are used, and exchanged while a server runs.

What is checked is exactly what is used: files are read once, and nothing depends on what stands in them a moment later.
"""

import ipaddress
import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from adapter.errors import ConfigError
from adapter.runtime.settings.reading import read_file

if TYPE_CHECKING:  # pydantic takes time to import, and a command without TLS does not need it
    from adapter.runtime.settings.config import ClientTls, ServerTls
    from adapter.runtime.settings.live import Prepared


# Of HTTP/2 over TLS 1.2 (RFC 9113, 9.2.2): those with forward secrecy and authenticated encryption. TLS 1.3 has no others.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

# The short names of a subject's parts (RFC 4514, 3; OpenSSL), of those that `ssl` calls otherwise.
_SHORT = {
    "commonName": "CN", "countryName": "C", "domainComponent": "DC", "givenName": "GN", "localityName": "L",
    "organizationName": "O", "organizationalUnitName": "OU", "stateOrProvinceName": "ST", "streetAddress": "street",
    "surname": "SN", "userId": "UID",
}  # fmt: skip


class PemFiles(NamedTuple):
    """The content of PEM files. None: no such file is configured."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Credentials for the channels of a client."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


def read_client_files(tls: "ClientTls", name: str) -> PemFiles:
    """Read the CA, and the client's certificate if there is one. Raises ConfigError, with `name`, for unusable files."""
    return _read(PemFilePaths(tls.ca, tls.cert, tls.key), name, ssl.PROTOCOL_TLS_CLIENT)


def read_server_files(tls: "ServerTls", name: str) -> PemFiles:
    """Read a server's certificate and key, and the CA of its clients. Raises ConfigError, with `name`, for unusable files."""
    return _read(PemFilePaths(tls.client_ca, tls.cert, tls.key), name, ssl.PROTOCOL_TLS_SERVER)


class PemFilePaths(NamedTuple):
    """Where the files are."""

    ca: Path | None
    cert: Path | None
    key: Path | None


class ServerCertificate:
    """The certificate of a server that runs, with the CA of its clients. Connections that are open keep theirs."""

    def __init__(self, tls: "ServerTls", name: str = "server.tls") -> None:
        """Raise ConfigError, with `name`, for files that cannot be used."""
        self.name = name
        self._files = read_server_files(tls, self.name)
        self.context = http2_context(self._files)  # for handshakes from now on

    def prepare(self, tls: "ServerTls") -> "Prepared":
        """Read the files again, for new connections. Raises ConfigError. Whether clients need a certificate stays as it is."""
        from adapter.runtime.settings.live import NOTHING_NEW, Prepared  # noqa: PLC0415 - anyio, which a short command does not need

        files = read_server_files(tls, self.name)
        if files == self._files:
            return NOTHING_NEW

        # A new one: a context that is in use cannot forget a CA, and would resume the sessions of its clients.
        context = http2_context(files)

        def apply() -> None:
            self._files, self.context = files, context

        return Prepared(apply, [self.name])


def server_context(files: PemFiles) -> ssl.SSLContext:
    """Return the context of a server that is not gRPC's, TLS 1.2 and later; with a CA, clients must show a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=files.ca.decode("ascii"))
    load_chain(context, files)
    return context


def http2_context(files: PemFiles) -> ssl.SSLContext:
    """Return the context of a gRPC server. Each connection shows and checks certificates: there are no tickets to go on with."""
    context = server_context(files)
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["h2"])
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return context


def http2_client_context(files: PemFiles) -> ssl.SSLContext:
    """Return the context of a client of gRPC servers, which checks their names and shows its certificate if there is one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=(files.ca or b"").decode("ascii"))
    if files.cert:
        load_chain(context, files)
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["h2"])
    return context


def names_shown(connection: ssl.SSLObject) -> dict[str, list[bytes]]:
    """The names in the certificate that a peer has shown and that was verified, as grpc.aio's `auth_context`."""
    shown: Any = connection.getpeercert()
    if not shown:
        return {}
    subject = ",".join("+".join(_part(*part) for part in parts) for parts in reversed(shown.get("subject", ())))
    others = [_alternative(kind, name) for kind, name in shown.get("subjectAltName", ()) if kind in _ALTERNATIVES]
    return {"x509_subject": [subject.encode()], "x509_subject_alternative_name": [name.encode() for name in others]}


_ALTERNATIVES = frozenset({"DNS", "URI", "email", "IP Address"})


def _alternative(kind: str, name: str) -> str:
    return str(ipaddress.ip_address(name.strip())) if kind == "IP Address" else name


def _part(name: str, value: str) -> str:
    """A part of a subject, as RFC 4514 writes it."""
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if escaped[:1] in {" ", "#"}:
        escaped = f"\\{escaped}"
    if len(value) > 1 and value[-1] == " ":
        escaped = f"{escaped[:-1]}\\ "
    return f"{_SHORT.get(name, name)}={escaped}"


def load_chain(context: ssl.SSLContext, files: PemFiles) -> None:
    """Give a context the certificate and key for new connections; it may be in use."""
    with _as_file(files.cert or b"") as cert, _as_file(files.key or b"") as key:
        context.load_cert_chain(cert, key, password=_no_password)


def _read(paths: PemFilePaths, name: str, protocol: int) -> PemFiles:
    try:
        files = PemFiles(*(read_file(path)[0] if path else None for path in paths))
    except OSError as error:
        raise ConfigError(f"{name}: {error.filename}: {error.strerror}") from error
    try:
        _check(files, protocol)
    except (ssl.SSLError, ValueError) as error:
        shown = ", ".join(str(path) for path in (paths.cert, paths.key, paths.ca) if path)
        why = error.reason if isinstance(error, ssl.SSLError) else error
        raise ConfigError(f"{name}: {shown}: not PEM files that belong together: {why}") from error
    except OSError as error:  # no file descriptor is left
        raise ConfigError(f"{name}: cannot be checked: {error.strerror}") from error
    return files


def _check(files: PemFiles, protocol: int) -> None:
    """Raise SSLError or ValueError as the standard library does: gRPC reports nothing useful about a bad file."""
    context = ssl.SSLContext(protocol)
    if files.ca is not None:
        with _as_file(files.ca) as ca:
            context.load_verify_locations(ca)
    if files.cert is not None and files.key is not None:
        with _as_file(files.cert) as cert, _as_file(files.key) as key:
            # Without `password`, OpenSSL would ask for it at the terminal.
            context.load_cert_chain(cert, key, password=_no_password)


def _no_password() -> str:
    raise ValueError("the key is encrypted; a process that starts by itself needs one that is not")


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path under which `ssl` can read this, in memory: a key is never written to a disk."""
    number = os.memfd_create("pem")
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)

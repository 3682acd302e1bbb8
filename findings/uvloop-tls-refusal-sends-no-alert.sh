#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
UVLOOP=0.23.0
pypi "uvloop==$UVLOOP" trustme==1.2.1

statement <<TEXT
A TLS server on asyncio, or on uvloop $UVLOOP from PyPI, that asks for client certificates: who shows none is not told why.

Most expect: the client gets the alert that TLS has for it (certificate_required in TLS 1.3, handshake_failure in 1.2), as from a
  server that uses Python's ssl on a plain socket, and its error names the certificate.
What happens: OpenSSL makes the alert, and the event loop drops it: the connection ends without a word, after the handshake as the
  client sees it in TLS 1.3. So it is on both event loops.
Why it matters: the clients of a broker or a sidecar behind mutual TLS see a server that hangs up, and look at the network. The
  server has to log why, since nobody else can tell; a client without a certificate has to be looked for there.
TEXT

cat >"$WORK/servers.py" <<'PY'
import asyncio
import socket
import ssl
import threading

import trustme
import uvloop

CA = trustme.CA()
CERTIFICATE = CA.issue_cert("localhost")


def context(version: ssl.TLSVersion) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CERTIFICATE.configure_cert(made)
    CA.configure_trust(made)
    made.verify_mode = ssl.CERT_REQUIRED
    made.minimum_version = made.maximum_version = version
    return made


def without_certificate(port: int) -> str:
    trusting = ssl.create_default_context()
    CA.configure_trust(trusting)
    try:
        with socket.create_connection(("localhost", port), timeout=30) as raw, trusting.wrap_socket(raw, server_hostname="localhost") as tls:
            return "data" if tls.recv(1) else "the connection ends"
    except ssl.SSLEOFError:
        return "the connection ends"
    except ssl.SSLError as error:
        return f"alert {error.reason}"


def plain_socket(version: ssl.TLSVersion) -> str:
    def serve() -> None:
        accepted, _ = listener.accept()
        with accepted:
            try:
                context(version).wrap_socket(accepted, server_side=True)
            except ssl.SSLError:
                pass

    with socket.create_server(("localhost", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        seen = without_certificate(listener.getsockname()[1])
        thread.join()
    return seen


def event_loop(make, version: ssl.TLSVersion) -> str:
    async def serve() -> str:
        server = await asyncio.start_server(lambda reader, writer: None, "localhost", 0, ssl=context(version))
        seen = await asyncio.to_thread(without_certificate, server.sockets[0].getsockname()[1])
        server.close()
        return seen

    with asyncio.Runner(loop_factory=make) as runner:
        runner.get_loop().set_exception_handler(lambda *_: None)
        return runner.run(serve())


for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    print(f"  {version.name}: ssl on a plain socket: {plain_socket(version)}")
    print(f"  {version.name}: asyncio: {event_loop(asyncio.new_event_loop, version)}; uvloop: {event_loop(uvloop.new_event_loop, version)}")
PY
"$WORK/venv/bin/python" "$WORK/servers.py" >"$SEEN" 2>"$WORK/python.log" || broken "Python failed"

verdict <<'STATED'
  TLSv1_2: ssl on a plain socket: alert SSLV3_ALERT_HANDSHAKE_FAILURE
  TLSv1_2: asyncio: the connection ends; uvloop: the connection ends
  TLSv1_3: ssl on a plain socket: alert TLSV13_ALERT_CERTIFICATE_REQUIRED
  TLSv1_3: asyncio: the connection ends; uvloop: the connection ends
STATED

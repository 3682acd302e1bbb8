"""The broker of the example: a nats-server with one stream, and a query for the progress of its own consumers."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from adapter.client import MessageQueue
from adapter.errors import AdapterError
from adapter.testing.processes import free_port
from benchmarks.peers.server import Server
from examples.acks import durable_of
from examples.consumer import subject_of
from examples.flights import TOPIC

# The place where demo/unpack.sh puts a nats-server if the machine has none.
UNPACKED = Path(sys.prefix) / "tools" / "usr" / "sbin" / "nats-server"
PUBLISHED_S = 30.0
# With a size limit, a stream is stored in files of 4 MB. nats-server 2.9 (Debian's; 2.10 no longer) counts the pending messages
# again for each message of a reader that began in the first half of the last file: 2 ms each, if all were in one file.
MAX_BYTES = 8 * 2**20


class NatsMissingError(AdapterError):
    """No nats-server is installed. The message says how to get one."""


def nats_binary() -> str:
    """The path of the machine's nats-server, otherwise of the unpacked one. Raises NatsMissingError."""
    found = shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None and UNPACKED.exists():
        found = str(UNPACKED)
    if found is None:
        raise NatsMissingError(
            f"there is no nats-server, also not at {UNPACKED}: run `sh demo/unpack.sh nats-server nats-server`"
        )
    return found


class Broker:
    """The server's process and a connection to it. The server ends when this process ends, even if it is killed."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        settings = directory / "nats.conf"  # its format reads JSON, too
        settings.write_text(json.dumps({"host": "127.0.0.1", "port": port, "jetstream": {"store_dir": str(directory)}}))
        self.address = f"nats://127.0.0.1:{port}"
        self._port = port
        self._server = Server(directory, [nats_binary(), "--config", str(settings)])
        self._client = Client()

    async def __aenter__(self) -> Self:
        """Start the server and connect to it."""
        self._server.wait_listening(self._port)
        self._client = await nats.connect(self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect and stop the server."""
        await self._client.close()
        self._server.stop()

    @property
    def stream(self) -> JetStreamContext:
        """JetStream, over this connection."""
        return self._client.jetstream()

    async def publish(self, messages: Sequence[tuple[MessageQueue, bytes]]) -> None:
        """Create the stream and publish messages, numbered from 1. Raises RuntimeError if one did not arrive."""
        stream = self.stream
        await stream.add_stream(name=TOPIC, subjects=[f"{TOPIC}.*"], max_bytes=MAX_BYTES)
        *others, (queue, data) = messages
        for other, content in others:
            await self._client.publish(subject_of(other), content)  # without an acknowledgement, but in order
        last = await stream.publish(subject_of(queue), data, timeout=PUBLISHED_S)
        if last.seq != len(messages):
            raise RuntimeError(f"{len(messages)} messages were published, {last.seq} are in the stream")

    async def acknowledged(self, group: str, queues: Sequence[MessageQueue]) -> bool:
        """True if all messages of these queues are acknowledged, as the server counts."""
        try:
            found = [await self.stream.consumer_info(TOPIC, durable_of(group, queue)) for queue in queues]
        except NotFoundError:
            return False
        return not any(info.num_pending or info.num_ack_pending for info in found)

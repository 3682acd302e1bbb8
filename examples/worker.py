"""A consumer process of the example, which may be killed at any time: `python -m examples.worker adapter|acks ...`.

It has no shutdown code: its successor needs nothing from it.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import grpc.aio
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from adapter.client import OffsetClient
from examples import acks, consumer
from examples.flights import QUEUES, flight_of
from examples.ledger import Ledger

GROUP = "delays"
# Errors that end a consumer, which is then started again.
MOVED = (consumer.MovedError, consumer.MissedError, consumer.BeyondEndError)
EXPECTED = (grpc.aio.AioRpcError, nats.errors.Error, *MOVED, OSError)
TIMEOUT_S = 30.0  # of a commit; longer than a restart of the adapter on a busy machine


class Handler:
    """Processes a flight: waits for a while, then writes it to the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def __call__(self, data: bytes, sequence: int) -> None:
        """Wait 1 ms for every 100 miles of the flight, that is 1 to 50 ms, so that messages finish out of order."""
        flight = flight_of(data)
        await asyncio.sleep(flight.miles / 100_000)
        self._ledger.write(sequence, flight)


class CountedOffsets(OffsetClient):
    """An OffsetClient that counts answered commits."""

    ledger: Ledger

    async def commit(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - passed through
        """Commit and count the answer."""
        superseded = await super().commit(*arguments, **options)
        self.ledger.count_kept()
        return superseded


class CountedNats(Client):
    """A NATS client that counts answered acknowledgements."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    async def request(self, subject: str, *arguments: Any, **options: Any) -> Msg:  # noqa: ANN401 - passed through
        """Send a request and count the answer."""
        answer = await super().request(subject, *arguments, **options)
        if subject.startswith("$JS.ACK."):
            self._ledger.count_kept()
        return answer


async def run(keeper: str, shards: Sequence[int], directory: Path, broker: str, adapter: str, ack_wait_s: float) -> None:
    """Consume these shards until killed. Raises the errors of `consume`."""
    ledger = Ledger.open(directory)
    handle = Handler(ledger)
    queues = [QUEUES[shard] for shard in shards]
    server = CountedNats(ledger)
    await server.connect(broker, allow_reconnect=False)  # messages in flight are lost with a connection: start again instead
    stream = server.jetstream()
    if keeper == "acks":
        await asyncio.gather(*(acks.consume(stream, GROUP, queue, handle, ack_wait_s) for queue in queues))
        return
    async with CountedOffsets.connect(adapter, TIMEOUT_S) as offsets:
        offsets.ledger = ledger
        await asyncio.gather(*(consumer.consume(stream, offsets, GROUP, queue, handle) for queue in queues))


@click.command()
@click.argument("keeper", type=click.Choice(["adapter", "acks"]))
@click.argument("shards", type=click.IntRange(0, len(QUEUES) - 1), nargs=-1, required=True)
@click.option("--directory", type=click.Path(path_type=Path, file_okay=False), required=True, help="Where the ledger is.")
@click.option("--broker", required=True, help="The NATS server's address.")
@click.option("--adapter", default="", help="The adapter's address.")
@click.option("--ack-wait", type=float, default=30.0, help="Seconds after which the server delivers again.")
def main(keeper: str, shards: Sequence[int], directory: Path, broker: str, adapter: str, ack_wait: float) -> None:
    """Run from the command line."""
    why = ""
    try:
        asyncio.run(run(keeper, shards, directory, broker, adapter, ack_wait))
    except* EXPECTED as group:
        why = _words(group)
    sys.exit(why)


def _words(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _words(error.exceptions[0])
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {(error.details() or '').partition(';')[0]}"
    return str(error) or type(error).__name__


if __name__ == "__main__":
    main()

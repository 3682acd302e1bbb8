"""What is left of a lone commit in the built-in server: its stages, one by one, in this process, without sockets.

A read holds 64 commits of 64 keys that rise. CPU time of this thread, per commit; what a server's process took beyond it is the
rest.
"""

import asyncio
import time
from pathlib import Path

from rocksdict import WriteBatch

from adapter.client.client import OffsetClient
from adapter.errors import AdapterError
from adapter.model.codec import encode_plain, pack_names
from adapter.rpc import offsets_pb
from adapter.runtime.durable import rocks
from adapter.runtime.serving.http2.connection import Connection
from adapter.sidecar.api.offset_service import OffsetService
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar
from benchmarks.http2_load import GROUP, KEYS, Lone, calls, opening, rising
from benchmarks.report import Cell, Table

TITLE = "CPU of a rising lone commit in the built-in server, 64 in each read"
COLUMNS = ("stage", "us per commit", "share")
RECEIVE, TAKE, WRITE, ANSWER = (
    "frames, header blocks, streams",
    "protobuf, and into the turn",
    "decide, write, mark dirty",
    "answers",
)
PROTOBUF, BATCH = "of these: protobuf alone", "of these: WriteBatch alone"
IN_FLIGHT = 64
PARTS = (PROTOBUF, BATCH)
REST = "the rest: sockets, event loop, syncs, flushes"


class Stages:
    """CPU seconds of this thread by name."""

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = {}
        self._since = 0.0

    def begin(self) -> None:
        """From now on."""
        self._since = time.thread_time()

    def end(self, name: str) -> None:
        """What passed since the last beginning or end."""
        now = time.thread_time()
        self.spent_s[name] = self.spent_s.get(name, 0.0) + now - self._since
        self._since = now


async def table(directory: Path, spent_us: float, reads: int) -> Table:
    """The stages of so many reads, and what they leave of the `spent_us` that the server's process took for a commit."""
    ready = calls(rising(Lone("", reads * IN_FLIGHT, first=2)))
    stages = Stages()
    async with running_sidecar(adapter_config(directory), FakeMeta()) as sidecar:
        async with OffsetClient.connect(f"unix:{directory / 'a.sock'}") as client:
            await client.commit(GROUP, {f"queue-{number}": 1 for number in range(KEYS)})
        connection = Connection(0.0)
        connection.receive(opening(), 0.0)
        for at in range(0, len(ready), IN_FLIGHT):
            await _pass(b"".join(ready[at : at + IN_FLIGHT]), connection, sidecar.offsets, stages)
    _write(directory / "bare", reads, stages)
    each = {name: seconds / len(ready) * 1e6 for name, seconds in stages.spent_s.items()}
    rest = spent_us - sum(us for name, us in each.items() if name not in PARTS)
    rows: list[list[Cell]] = [[name, us, us / spent_us] for name, us in each.items()]
    rows += [[REST, rest, rest / spent_us], ["all, by the server's process", spent_us, 1.0]]
    return Table(TITLE, COLUMNS, rows)


async def _pass(read: bytes, connection: Connection, service: OffsetService, stages: Stages) -> None:
    """What the server does with one read. Raises RuntimeError when a commit did not go by the fast path."""
    counts: list[int] = []
    done = asyncio.Event()

    def answered(count: int, error: AdapterError | None) -> None:
        counts.append(0 if error else count)
        if len(counts) == IN_FLIGHT:
            done.set()

    stages.begin()
    events = connection.receive(read, 0.0)
    stages.end(RECEIVE)
    messages = [(event[1], event[2]) for event in events if len(event) == 3]  # (MESSAGE, stream, message)
    stages.begin()
    for _, message in messages:
        service.take.offer((offsets_pb.CommitOffsetsRequest.FromString(message),), answered)
    stages.end(TAKE)
    await done.wait()
    stages.end(WRITE)
    if not all(counts):
        raise RuntimeError("a commit was not taken as a lone one: what was timed is something else")
    for stream, _ in messages:
        connection.answer(stream, b"")
    connection.take_output()
    stages.end(ANSWER)
    for _, message in messages:
        offsets_pb.CommitOffsetsRequest.FromString(message)
    stages.end(PROTOBUF)


def _write(directory: Path, reads: int, stages: Stages) -> None:
    """The same writes in a loop."""
    store = rocks.open_store(directory, ("default",), "")
    keys = [pack_names("default", GROUP, f"queue-{number}") for number in range(KEYS)]
    for offset in range(reads):
        stages.begin()
        batch = WriteBatch(raw_mode=True)
        for key in keys:
            batch.put(key, encode_plain(offset, 1, offset, 0))
        store.db.write(batch)
        stages.end(BATCH)
    store.close()

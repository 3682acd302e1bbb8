"""The Meta Service killed with SIGKILL in the middle of merges: what it acknowledged is there, and nothing went back (1, 2)."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import grpc
import grpc.aio

from adapter.metaservice.config import DEFAULT_CLUSTER
from adapter.model.codec import decode_key, decode_record, encode_key, encode_record
from adapter.model.records import DEFAULT_NAMESPACE, OffsetKey, OffsetRecord
from adapter.rpc import meta_grpc, meta_pb
from adapter.testing.history import META, History
from adapter.testing.processes import ServiceProcess, ended, meta_process
from adapter.testing.waiting import eventually
from tests.durability.load import CALL_S, CHANNEL_OPTIONS, LIMIT_S, NOT_ACKNOWLEDGED, RETRY_S, Positions, random_instants
from tests.unit.helpers import packed_rows

if TYPE_CHECKING:
    from adapter.rpc.meta_service_pb2_grpc import MetaServiceServiceAsyncStub as Stub  # only in the stub file

KILLS = 4
MERGERS = 3
OWN, SHARED = 1_000, 600  # keys of a request: of the merger alone, and of all of them. Together several slices
NEW = 600  # keys of a request that no other has, at its end in key order; they are written without being looked up
AS_COLUMNS = 0.5  # of the requests
LATE = 0.2  # of the entries carry a lower offset than was sent before
PAGE = 10_000

_offsets = count(1)  # of all mergers


class Mergers:
    """Clients that merge many offsets at once, and send again what was not answered."""

    def __init__(self, stub: "Stub", history: History, rng: random.Random) -> None:
        self.merges = 0  # answered
        self.repeated = 0  # of them, after a call without an answer
        self.groups = 0  # of new keys
        self._stub = stub
        self._history = history
        self._rng = rng
        self._open = asyncio.Event()
        self._open.set()
        self._busy = 0

    async def pause(self) -> None:
        """Return when no call is under way: the next ones must not hide a loss."""
        self._open.clear()
        await eventually(lambda: self._busy == 0, LIMIT_S)

    def resume(self) -> None:
        """Go on."""
        self._open.set()

    async def progress(self, merges: int = 4) -> None:
        """Return when so many more merges are answered."""
        goal = self.merges + merges
        await eventually(lambda: self.merges >= goal, LIMIT_S)

    async def run(self, name: str) -> None:
        """Merge until cancelled."""
        while True:
            entries = self._entries(name)
            keys, records = [encode_key(key) for key, _ in entries], [encode_record(record) for _, record in entries]
            if self._rng.random() < AS_COLUMNS:
                request = meta_pb.MergeOffsetDataRequest(packed=packed_rows(DEFAULT_CLUSTER, keys, records))
            else:
                request = meta_pb.MergeOffsetDataRequest(keys=keys, records=records)
            tries = 0
            while not await self._answered(entries, request):
                tries += 1
                await anyio.sleep(RETRY_S)
            self.merges += 1
            self.repeated += tries > 0

    def _entries(self, name: str) -> Sequence[tuple[OffsetKey, OffsetRecord]]:
        """In any order, the shared ones in another order for each merger; then new ones in key order."""
        keys = [OffsetKey(DEFAULT_NAMESPACE, name, f"s{at}") for at in range(OWN)]
        keys += [OffsetKey(DEFAULT_NAMESPACE, "shared", f"s{at}") for at in range(SHARED)]
        self._rng.shuffle(keys)
        newest = next(_offsets)
        lower = max(1, newest - 5)
        keys += [OffsetKey(DEFAULT_NAMESPACE, f"new-{newest:06}", f"s{at:05}") for at in range(NEW)]
        self.groups += 1
        return [(key, OffsetRecord(1, lower if self._rng.random() < LATE else newest, committed_at_ms=1)) for key in keys]

    async def _answered(self, entries: Sequence[tuple[OffsetKey, OffsetRecord]], request: meta_pb.MergeOffsetDataRequest) -> bool:
        await self._open.wait()
        self._busy += 1
        writes = [self._history.begin(key, record.position, places=(META,)) for key, record in entries]
        try:
            reply = await self._stub.MergeOffsetData(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in NOT_ACKNOWLEDGED:
                raise
            return False
        finally:
            self._busy -= 1
        assert reply.applied + reply.superseded == len(entries)
        for write in writes:
            write.acknowledged()
        return True


@asynccontextmanager
async def merging(stub: "Stub", history: History, rng: random.Random) -> AsyncIterator[Mergers]:
    """Meanwhile they merge. An error of one of them ends the test."""
    mergers = Mergers(stub, history, rng)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(mergers.run(f"merger-{at}")) for at in range(MERGERS)]
        yield mergers
        for task in running:
            task.cancel()


async def scanned(stub: "Stub", history: History) -> Positions:
    """Everything that the Meta Service has, in pages; the history takes note."""
    reading = history.reading(META)
    found: Positions = {}
    request = meta_pb.ScanOffsetDataRequest(page_size=PAGE)
    while not found or request.page_token:
        page = await stub.ScanOffsetData(request, timeout=CALL_S, wait_for_ready=True)
        for key, record in zip(page.keys, page.records, strict=True):
            found[decode_key(key)] = decode_record(record).position
        request.page_token = page.next_page_token
    reading.found(found)
    return found


async def watch(stub: "Stub", history: History) -> None:
    """Scan again and again: what was seen once must not be gone after a kill."""
    while True:
        with suppress(grpc.aio.AioRpcError):
            await scanned(stub, history)
        await anyio.sleep(RETRY_S)


async def test_acknowledged_merges_survive_kills(tmp_path: Path) -> None:
    """After each kill -9 all that was acknowledged, or was seen by a scan, is there; what was not answered is merged again."""
    rng, history = random_instants(), History()
    meta = meta_process(tmp_path)
    with ended(meta):
        await start(meta)
        async with grpc.aio.insecure_channel(meta.address, CHANNEL_OPTIONS) as channel:
            stub: Stub = meta_grpc.MetaServiceServiceStub(channel)
            async with merging(stub, history, rng) as mergers:
                await mergers.progress()
                assert await scanned(stub, history)
                watching = asyncio.create_task(watch(stub, history), name="watch")
                for _ in range(KILLS):
                    await mergers.progress()
                    await anyio.sleep(rng.uniform(0.0, 0.1))
                    meta.kill()
                    await mergers.pause()
                    await start(meta)
                    await scanned(stub, history)
                    assert history.check() == []
                    mergers.resume()
                await mergers.progress()
                watching.cancel()
            found = await scanned(stub, history)
            assert history.check() == []
    left = MERGERS * OWN + SHARED + mergers.groups * NEW - len(found)
    assert 0 <= left <= MERGERS * NEW  # of the merges that were under way at the end
    assert mergers.repeated > 0


async def start(meta: ServiceProcess) -> None:
    """Start it and wait, while the mergers go on."""
    await anyio.to_thread.run_sync(meta.start)

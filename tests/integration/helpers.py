"""What the integration tests share: short ways to requests, a sidecar with a client, and waiting for what has no event."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import grpc
import grpc.aio

from adapter.client.broker_log import BrokerLog
from adapter.client.client import OffsetClient
from adapter.meta.client import MetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.rpc import meta_grpc, meta_pb, offsets_grpc, offsets_pb
from adapter.sidecar.process import Sidecar
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import ServiceProcess
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import eventually

PATIENCE_S = 60.0  # for what takes milliseconds on an idle machine
# Of an adapter's [meta] and [recovery]: by default a group has half a second to be loaded in, and a recovery ten.
PATIENT_META = "timeout_ms = 60000\nload_timeout_ms = 60000\n[recovery]\ntimeout_ms = 60000\n"


class Rpc(NamedTuple):
    """A blocking way into one adapter."""

    store: offsets_grpc.OffsetStoreStub
    admin: offsets_grpc.OffsetAdminStub
    channel: grpc.Channel


@contextmanager
def rpc(address: str, ca: bytes | None = None) -> Iterator[Rpc]:
    """Blocking stubs of the adapter at `address`; over TLS if there is a CA, in PEM."""
    opened = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca)) if ca else grpc.insecure_channel(address)
    with opened as channel:
        yield Rpc(offsets_grpc.OffsetStoreStub(channel), offsets_grpc.OffsetAdminStub(channel), channel)


@contextmanager
def meta_rpc(address: str) -> Iterator[meta_grpc.MetaServiceServiceStub]:
    """A blocking stub of the Meta Service at `address`."""
    with grpc.insecure_channel(address) as channel:
        yield meta_grpc.MetaServiceServiceStub(channel)


@asynccontextmanager
async def serving(
    directory: Path, meta: MetaClient | None = None, *, broker_log: BrokerLog | None = None, **sections: Any
) -> AsyncIterator[tuple[Sidecar, OffsetClient]]:
    """A sidecar in this process with a client on its Unix socket."""
    async with (
        running_sidecar(adapter_config(directory, **sections), meta or FakeMeta(), broker_log) as sidecar,
        OffsetClient.connect(sidecar.addresses[-1], PATIENCE_S) as client,
    ):
        yield sidecar, client


def commits(
    offsets: Mapping[str, int], group: str = "g", *, namespace: str = "", overwrite: bool = False, metadata: str = ""
) -> offsets_pb.CommitOffsetsRequest:
    """A commit of one group."""
    shards = [offsets_pb.ShardCommit(shard=shard, offset=offset, metadata=metadata) for shard, offset in offsets.items()]
    return offsets_pb.CommitOffsetsRequest(
        groups=[offsets_pb.GroupCommits(namespace=namespace, group=group, shards=shards)],
        mode=offsets_pb.OVERWRITE if overwrite else offsets_pb.INCREASE_ONLY,
    )


class UntilRefused:
    """Commits of some shards, many at a time without a wait between them, until the first one is refused."""

    def __init__(self, shards: str) -> None:
        self.acknowledged = dict.fromkeys(shards, 0)
        self.refused = set[grpc.StatusCode]()

    async def run(self, channel: grpc.aio.Channel, shard: str) -> None:
        """Commit over a channel, which ends with this."""
        async with channel:
            store = OffsetClient(channel, PATIENCE_S).store
            for offset in count(1, 20):
                if self.refused:
                    return
                async with anyio.create_task_group() as tasks:
                    for at in range(20):
                        tasks.start_soon(self._commit, store, shard, offset + at)

    async def reach(self, offset: int) -> None:
        """Wait until more than this is acknowledged of each shard."""
        await eventually(lambda: min(self.acknowledged.values()) > offset, PATIENCE_S)

    async def _commit(self, store: "offsets_grpc.OffsetStoreAsyncStub", shard: str, offset: int) -> None:
        try:
            await store.CommitOffsets(commits({shard: offset}), timeout=PATIENCE_S)
            self.acknowledged[shard] = max(self.acknowledged[shard], offset)
        except grpc.aio.AioRpcError as error:
            self.refused.add(error.code())


def each(replies: Iterable[offsets_pb.StreamCommitsReply]) -> list[offsets_pb.StreamCommitsReply]:
    """One reply for each request of a stream whose ids rise by one: those that cover many are taken apart."""
    return [
        offsets_pb.StreamCommitsReply(id=number, code=reply.code, message=reply.message, superseded=reply.superseded, covers=1)
        for reply in replies
        for number in range(reply.id + 1 - reply.covers, reply.id + 1)
    ]


def key(shard: str = "s", group: str = "g", namespace: str = "default") -> OffsetKey:
    """A key of which mostly the shard matters."""
    return OffsetKey(namespace, group, shard)


def record(offset: int, epoch: int = 1, **fields: Any) -> OffsetRecord:
    """A live record."""
    return OffsetRecord(epoch, offset, **fields)


def meta_section(*endpoints: str, **values: Any) -> MetaSection:
    """How a client sees Meta Services at these endpoints."""
    return MetaSection.model_validate({"endpoints": endpoints, **values})


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something in another process."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"still not so after {PATIENCE_S:g} s: {what}"
        time.sleep(0.01)


async def until_clean(client: OffsetClient) -> offsets_pb.StatusReply:
    """Wait until nothing is dirty; returns the status then."""
    with anyio.fail_after(PATIENCE_S):
        while (status := await client.status()).dirty_keys:  # noqa: ASYNC110 - the adapter has no event to wait for
            await anyio.sleep(0.02)
    return status


def status_of(service: ServiceProcess) -> offsets_pb.StatusReply:
    """The status of an adapter process."""
    with rpc(service.address) as stubs:
        return stubs.admin.Status(offsets_pb.StatusRequest(), timeout=PATIENCE_S)


def stored_in(meta: ServiceProcess, cluster: str = "") -> dict[OffsetKey, tuple[int, int]]:
    """All that a Meta Service process holds: key -> (epoch, offset)."""
    found: dict[OffsetKey, tuple[int, int]] = {}
    request = meta_pb.ListOffsetDataRequest(cluster_name=cluster, page_size=10_000)
    with meta_rpc(meta.address) as stub:
        while True:
            reply = stub.ListOffsetData(request, timeout=PATIENCE_S)
            for entry in reply.entries:
                row = entry.offset
                found[OffsetKey(row.namespace, entry.group, row.shard_name)] = (row.epoch, row.offset)
            if not reply.next_page_token:
                return found
            request.page_token = reply.next_page_token

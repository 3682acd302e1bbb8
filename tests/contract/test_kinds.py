"""What is said of the two kinds of Meta Service, asked of a server of each: our process, and RobustMQ's in tests/dialect.py."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import NamedTuple

import grpc.aio
import pytest

from adapter.errors import RefusedError, UnknownCallError
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.meta.kinds import OFFSETS_ONLY, WITH_EPOCHS, ServerKind
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry
from adapter.rpc import meta_grpc, meta_pb, metadata_grpc, metadata_pb
from adapter.runtime.clocks import wall_ms
from adapter.testing.processes import ended, meta_process
from adapter.testing.waiting import PATIENCE_S
from tests.dialect import robust_meta
from tests.unit.helpers import key, record, tombstone

NUMBERS = count()
KINDS = {"epochs": WITH_EPOCHS, "offsets": OFFSETS_ONLY}


class Server(NamedTuple):
    """A running server, and what is said of its kind."""

    address: str
    kind: ServerKind


class Asked(NamedTuple):
    """A client that knows which kind of server it asks, the server's address, and a key for a test alone."""

    client: GrpcMetaClient
    address: str
    key: OffsetKey

    async def standing(self, *records: OffsetRecord) -> OffsetRecord | None:
        """What stands when these were saved one after the other, as they are."""
        for one in records:
            await self.client.save([SaveEntry(self.key, one)])
        return (await self.client.get([self.key])).get(self.key)


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of each kind."""
    kind = KINDS[request.param]
    if kind is OFFSETS_ONLY:
        with robust_meta() as robust:
            yield Server(robust.address, kind)
        return
    process = meta_process(tmp_path_factory.mktemp("meta"))
    with ended(process):
        process.start()
        yield Server(process.address, kind)


@pytest.fixture
async def asked(server: Server) -> AsyncIterator[Asked]:
    """A client of the server."""
    async with GrpcMetaClient.open(MetaSection(endpoints=(server.address,))) as client:
        await client.get([])
        yield Asked(client, server.address, key(group=f"g{next(NUMBERS)}"))


async def answers(call: Awaitable[object]) -> bool:
    """False if the server does not know the call."""
    try:
        await call
    except UnknownCallError:
        return False
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise
        return False
    return True


async def knows_epochs(asked: Asked) -> bool:
    """The epoch of a record is there again."""
    found = await asked.standing(record(5, 3))
    return found is not None and found.epoch == 3


async def merges(asked: Asked) -> bool:
    """A smaller offset of the same epoch changes nothing."""
    found = await asked.standing(record(9), record(5))
    return found is not None and found.offset == 9


async def tells_rewinds(asked: Asked) -> bool:
    """What was committed before a rewind and arrives after it is not taken for what came after."""
    found = await asked.standing(record(5, 2), record(9))
    return found is not None and found.offset == 5


async def reads_pages(asked: Asked) -> bool:
    """By a call for many groups."""
    async with grpc.aio.insecure_channel(asked.address) as channel:
        stub = meta_grpc.MetaServiceServiceStub(channel)
        return await answers(stub.BatchGetOffsetData(meta_pb.BatchGetOffsetDataRequest(), timeout=PATIENCE_S))


async def lists_offsets(asked: Asked) -> bool:
    """By a call for all of them."""
    return await answers(asked.client.list_page("", "", 10, b""))


async def tells_changes(asked: Asked) -> bool:
    """By a call for them."""
    return await answers(asked.client.changed_groups(()))


async def expires_unasked(asked: Asked) -> bool:
    """It lacks the call by which the other kind is asked to."""
    return not await answers(asked.client.expire(asked.key.group_key, 1, wall_ms()))


async def keeps_metadata(asked: Asked) -> bool:
    """By the service beside the one for offsets."""
    async with grpc.aio.insecure_channel(asked.address) as channel:
        stub = metadata_grpc.MetadataStoreStub(channel)
        return await answers(stub.Get(metadata_pb.GetRequest(cluster_name="default", key="/k"), timeout=PATIENCE_S))


async def keeps(asked: Asked) -> bool:
    """A tombstone is there again; else the client does not send it, since it would be stored as the offset 0."""
    try:
        found = await asked.standing(tombstone(2**32))
    except RefusedError:
        return False
    return found is not None and not found.live


FACTS: list[Callable[[Asked], Awaitable[bool]]] = [
    knows_epochs,
    merges,
    tells_rewinds,
    reads_pages,
    lists_offsets,
    tells_changes,
    expires_unasked,
    keeps_metadata,
]


async def test_the_client_learns_the_kind(server: Server, asked: Asked) -> None:
    """From the answers of the server."""
    assert asked.client.kind is server.kind


@pytest.mark.parametrize("fact", FACTS)
async def test_what_is_said_of_a_kind_is_so(server: Server, asked: Asked, fact: Callable[[Asked], Awaitable[bool]]) -> None:
    """As the server shows when it is asked."""
    assert getattr(server.kind, fact.__name__) == await fact(asked)


async def test_the_records_that_a_kind_keeps_are_there_again(server: Server, asked: Asked) -> None:
    """Every kind keeps what is live."""
    assert server.kind.keeps(tombstone(2**32)) == await keeps(asked)
    assert server.kind.keeps(record(5))
    assert await asked._replace(key=key(group=f"g{next(NUMBERS)}")).standing(record(5))


def test_each_fact_is_asked_for() -> None:
    """Those that are true or false. That names are joined, only RobustMQ's own server shows: tests/interop/robustmq.py."""
    for kind in KINDS.values():
        assert {*(fact.__name__ for fact in FACTS), "joins_names"} == {
            name for name, value in vars(type(kind)).items() if isinstance(value, bool)
        }

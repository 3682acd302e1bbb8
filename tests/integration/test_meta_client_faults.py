"""Faults of a call to the Meta Service that gRPC itself does not tell: a deadline of ours, and bytes that are no reply."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import grpc
import grpc.aio
import pytest

from adapter.errors import MetaUnavailableError, RefusedError
from adapter.meta.blocking import MetaCalls
from adapter.meta.client import GrpcMetaClient
from adapter.model.records import STORE_ID_BYTES, GroupKey, SaveEntry, StoreReport
from adapter.rpc import meta_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from tests.integration.helpers import PATIENCE_S, commits, key, meta_section, record, rpc, serving, stored_in

GARBAGE = b"\xff\xff\xff\xff"
ENTRY = SaveEntry(key(), record(7))


@asynccontextmanager
async def answering(answer: Any) -> AsyncIterator[str]:
    """The address of a server that answers each call of the Meta Service by this function."""
    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    names = (
        "SaveOffsetData",
        "GetOffsetData",
        "BatchGetOffsetData",
        "ListOffsetData",
        "ExpireOffsetData",
        "DeleteOffsetData",
        "SplitOffsetData",
        "ReportStore",
        "ListChangedGroups",
    )
    service = grpc.method_handlers_generic_handler("meta.service.common.MetaServiceService", dict.fromkeys(names, handler))
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def garbage(*_: Any) -> bytes:
    """Bytes that are no message."""
    return GARBAGE


async def denial(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """As a proxy that lets nobody in."""
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "RBAC: access denied")


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.save([ENTRY]),
        lambda client: client.get([key()]),
        lambda client: client.get([]),
        lambda client: client.groups_page([GroupKey("default", "g")]),
        lambda client: client.list_page("", "", 10, b""),
        lambda client: client.expire(GroupKey("default", "g"), 1, 2),
        lambda client: client.delete(GroupKey("default", "g"), ["s"]),
        lambda client: client.changed_groups([]),
    ],
    ids=["save", "get", "look", "groups_page", "list_page", "expire", "delete", "changed_groups"],
)
async def test_a_reply_that_is_no_message_is_no_answer(call: Any) -> None:
    """GRPC gives None for it; the endpoint is named, and whoever called tries again as after an outage."""
    async with answering(garbage) as address, GrpcMetaClient.open(meta_section(address)) as client:
        with pytest.raises(MetaUnavailableError, match="no message of a Meta Service") as caught:
            await call(client)
        assert str(caught.value).startswith(address)
        assert client.available is False


async def test_changed_groups_under_names_that_no_adapter_takes_are_left_out() -> None:
    """Whoever stored them: this adapter has nothing of them."""
    Group = meta_pb.ListChangedGroupsReply.Group  # noqa: N806 - a class

    async def hostile(*_: Any) -> bytes:
        names = ("", "g" * 256, "a\nb", "g")
        groups = [Group(namespace="default", group=name) for name in names]
        return meta_pb.ListChangedGroupsReply(groups=groups, unanswered="a\nb").SerializeToString()

    async with answering(hostile) as address, GrpcMetaClient.open(meta_section(address)) as client:
        found = await client.changed_groups([])
    assert found.groups == [GroupKey("default", "g")]
    assert "\n" not in found.unanswered


async def test_another_endpoint_is_tried_after_a_reply_that_is_no_message(meta: ServiceProcess) -> None:
    """In the same call, as after every other failure."""
    async with answering(garbage) as address, GrpcMetaClient.open(meta_section(address, meta.address)) as client:
        await client.save([ENTRY])
        assert (client.endpoint, client.available) == (meta.address, True)
    assert stored_in(meta) == {key(): (1, 7)}


async def test_another_endpoint_is_tried_where_one_lets_nobody_in(meta: ServiceProcess) -> None:
    """In the same call, by both clients; the next calls go to the one that answered."""
    async with answering(denial) as address:
        section = meta_section(address, meta.address)
        async with GrpcMetaClient.open(section) as client:
            await client.save([ENTRY])
            assert (client.endpoint, client.available) == (meta.address, True)
        with closing(MetaCalls(section)) as calls:
            assert (await anyio.to_thread.run_sync(calls.split, "", "", 1)).records == 1
    assert stored_in(meta) == {key(): (1, 7)}


@asynccontextmanager
async def nothing() -> AsyncIterator[str]:
    """The address of a gRPC server without offsets: as a Meta Service process that serves only metadata, or a proxy's 404."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_another_endpoint_is_tried_where_one_has_no_offsets(meta: ServiceProcess) -> None:
    """It is not taken for a server without epochs, which would get all calls from then on."""
    kinds: list[Callable[[GrpcMetaClient], Awaitable[object]]] = [
        lambda client: client.save([ENTRY]),
        lambda client: client.get([key()]),
        lambda client: client.get([]),
        lambda client: client.list_page("", "", 10, b""),
        lambda client: client.report_store(StoreReport("b", "/p", bytes(STORE_ID_BYTES), 0)),
    ]
    async with nothing() as address:
        section = meta_section(address, meta.address)
        for call in kinds:
            async with GrpcMetaClient.open(section) as client:
                await call(client)
                assert (client.endpoint, client.available, client.kind.knows_epochs) == (meta.address, True, True)
        with closing(MetaCalls(section)) as calls:
            assert (await anyio.to_thread.run_sync(calls.split, "", "", 1)).records == 1
    assert stored_in(meta) == {key(): (1, 7)}


async def test_a_call_to_endpoints_without_offsets_is_refused() -> None:
    """The error says what they may be."""
    async with nothing() as address, GrpcMetaClient.open(meta_section(address)) as client:
        with pytest.raises(RefusedError, match=rf"^{address}: this server has no offsets"):
            await client.save([ENTRY])
        assert client.kind.knows_epochs


async def test_a_call_that_no_endpoint_lets_in_is_refused(meta: ServiceProcess) -> None:
    """It is not tried again and again, and the endpoint is named; where one is only away, it is. The status says so."""
    async with answering(denial) as address:
        async with GrpcMetaClient.open(meta_section(address)) as client:
            with pytest.raises(RefusedError, match=rf"^{address}: PERMISSION_DENIED: RBAC: access denied$"):
                await client.save([ENTRY])
            assert not client.available
            with pytest.raises(RefusedError, match="PERMISSION_DENIED"):
                await client.report_store(StoreReport("b", "/p", bytes(STORE_ID_BYTES), 0))
            assert not client.available
        async with GrpcMetaClient.open(meta_section(address)) as client:
            with pytest.raises(RefusedError, match="PERMISSION_DENIED"):
                await client.report_store(StoreReport("b", "/p", bytes(STORE_ID_BYTES), 0))
            assert client.available  # for all that is known, what an adapter needs is let in
        meta.stop()
        async with GrpcMetaClient.open(meta_section(address, meta.address)) as client:
            with pytest.raises(MetaUnavailableError, match="PERMISSION_DENIED"):
                await client.save([ENTRY])


async def test_an_adapter_lives_on_beside_a_meta_service_that_talks_nonsense(directory: Path) -> None:
    """Commits are taken and stay dirty; the flusher goes on trying and says why (4)."""
    async with (
        answering(garbage) as address,
        GrpcMetaClient.open(meta_section(address)) as meta,
        serving(directory, meta, recovery={"timeout_ms": 0}, flush={"interval_ms": 10}, stop={"drain_timeout_ms": 0}) as (
            _,
            client,
        ),
    ):
        await client.commit("g", {"s": 1})
        with anyio.fail_after(PATIENCE_S):
            while "no message" not in (status := await client.status()).last_flush_error:  # noqa: ASYNC110 - no event tells it
                await anyio.sleep(0.01)
        tried = status.save_calls
        with anyio.fail_after(PATIENCE_S):
            while (status := await client.status()).save_calls <= tried:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert (status.dirty_keys, status.meta_available) == (1, False)


async def test_a_scope_of_ours_that_ends_in_a_call_catches_its_own_cancellation(meta: ServiceProcess) -> None:
    """GRPC passes the cancellation on without its mark; the scope would let it through, and end whoever holds it."""
    meta.freeze()
    async with GrpcMetaClient.open(meta_section(meta.address, timeout_ms=120_000)) as client:
        with anyio.move_on_after(0.1) as scope:
            await client.save([ENTRY])
        assert scope.cancelled_caught


def test_the_drain_deadline_in_the_middle_of_a_save_is_an_orderly_stop(directory: Path, meta: ServiceProcess) -> None:
    """The Meta Service hangs; the only save is the drain's own. What stays is told, exit code 1, no traceback (8)."""
    settings = "[flush]\ninterval_ms = 60000\n[stop]\ndrain_timeout_ms = 300"
    adapter = adapter_process(directory, meta.address, extra=settings)
    with ended(adapter):
        adapter.start()
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(commits({"s": 1}), timeout=PATIENCE_S)
            meta.freeze()
            stubs.store.CommitOffsets(commits({"s": 2}), timeout=PATIENCE_S)
        assert adapter.stop(PATIENCE_S) == 1
    assert "sidecar.drained" in adapter.log
    assert "left=1" in adapter.log
    assert "Traceback" not in adapter.log

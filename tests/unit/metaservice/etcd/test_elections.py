"""Calls to etcd whose leader is gone: resent as soon as another leader is known, and only then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from adapter.errors import MetaUnavailableError
from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.elections import Elections
from adapter.rpc import etcd_pb
from adapter.testing.waiting import eventually

LONG_MS = 30_000  # the deadline of a call; nothing here takes that long


class _Member:
    """Answers transactions unless it is silent, and reports the term of the leader it knows."""

    def __init__(self) -> None:
        self.term = 1
        self.silent = False
        self.txns = 0
        self.looks = 0

    async def Txn(self, *_: object) -> etcd_pb.TxnResponse:
        self.txns += 1
        if self.silent:
            await asyncio.Event().wait()
        return etcd_pb.TxnResponse(header=etcd_pb.ResponseHeader(raft_term=self.term))

    async def Status(self, *_: object) -> etcd_pb.StatusResponse:
        self.looks += 1
        return etcd_pb.StatusResponse(leader=1, raftTerm=self.term)


def _handler(method: Any, request: type[Message]) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_unary_rpc_method_handler(method, request.FromString, lambda reply: reply.SerializeToString())


@asynccontextmanager
async def _group() -> AsyncIterator[tuple[EtcdCluster, _Member, _Member]]:
    """A client of two members, with the first as the current one, which has stopped answering transactions."""
    async with AsyncExitStack() as stack:
        members = _Member(), _Member()
        endpoints = []
        for member in members:
            server = grpc.aio.server()
            methods = {
                "etcdserverpb.KV": {"Txn": _handler(member.Txn, etcd_pb.TxnRequest)},
                "etcdserverpb.Maintenance": {"Status": _handler(member.Status, etcd_pb.StatusRequest)},
            }
            server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(*service) for service in methods.items()])
            endpoints.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            await server.start()
            stack.push_async_callback(server.stop, None)
        section = EtcdSection(timeout_ms=LONG_MS)
        cluster = await stack.enter_async_context(EtcdCluster.open("group", MembersSection(endpoints=tuple(endpoints)), section))
        for endpoint in reversed(endpoints):
            cluster.current = endpoint
            await cluster.txn(etcd_pb.TxnRequest())
        members[0].silent = True
        yield cluster, *members


async def test_a_call_that_waits_is_sent_again_when_another_leader_is_known() -> None:
    """Well before its deadline, and to the next member."""
    async with _group() as (cluster, first, second):
        call = asyncio.create_task(cluster.txn(etcd_pb.TxnRequest()))
        await eventually(lambda: first.looks > 0)
        assert (first.txns, second.txns) == (2, 1)
        second.term = 2
        assert (await call).header.raft_term == 2
        assert (first.txns, second.txns) == (2, 2)


async def test_a_slow_call_is_left_alone_while_the_leader_is_the_same() -> None:
    """An overload must not be answered with more load."""
    async with _group() as (cluster, first, second):
        call = asyncio.create_task(cluster.txn(etcd_pb.TxnRequest()))
        await eventually(lambda: min(first.looks, second.looks) > 2)
        assert (first.txns, second.txns) == (2, 1)
        await _end(call)


async def test_a_call_that_must_not_be_sent_twice_waits_for_its_answer() -> None:
    """Only its deadline ends it; members are not polled."""
    async with _group() as (cluster, first, second):
        call = asyncio.create_task(cluster.txn(etcd_pb.TxnRequest(), resend=False))
        other = asyncio.create_task(cluster.txn(etcd_pb.TxnRequest()))
        await eventually(lambda: first.looks > 0)
        second.term = 2
        await other
        await asyncio.sleep(0)
        assert not call.done()
        await _end(call)


async def test_members_are_asked_only_while_somebody_waits() -> None:
    """By one task for all waiting calls, which ends with the last of them."""
    terms: list[int] = []

    async def look() -> None:
        terms.append(len(terms))
        elections.observe(terms[-1])

    elections = Elections(look)
    await asyncio.gather(*(elections.wait_newer(1) for _ in range(3)))
    assert (terms, elections.term) == ([0, 1, 2], 2)
    await asyncio.sleep(0)
    assert "etcd.elections" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_when_nobody_answers_the_call_ends_with_the_last_problem() -> None:
    """Unreachable members are no election."""
    section = EtcdSection(timeout_ms=LONG_MS)
    async with EtcdCluster.open("group", MembersSection(endpoints=("127.0.0.1:1",)), section) as cluster:
        with anyio.fail_after(LONG_MS / 1000), pytest.raises(MetaUnavailableError, match=r"127\.0\.0\.1:1"):
            await cluster.call(lambda stubs, timeout, _: stubs.kv.Txn(etcd_pb.TxnRequest(), timeout=timeout), resend=False)


async def _end(call: "asyncio.Task[Any]") -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

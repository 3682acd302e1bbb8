"""Of which groups a RobustMQ broker is told, and that none is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from adapter.model.records import GroupKey, OffsetKey
from adapter.rpc import robustmq_grpc, robustmq_pb
from adapter.sidecar.engine.core import Core
from adapter.sidecar.front import notices
from adapter.sidecar.front.counts import FrontCounts
from adapter.sidecar.front.notices import Notices
from adapter.testing.waiting import eventually
from tests.robustmq_broker import group_of

GROUP, OTHER = GroupKey("n", "g"), GroupKey("n", "h")
A, B = OffsetKey(*GROUP, "a"), OffsetKey(*GROUP, "b")


class Broker(robustmq_grpc.BrokerServiceServicer):
    """Notes of which groups it is told; refuses the first calls."""

    def __init__(self, refused: int = 0) -> None:
        self.told: list[str] = []
        self.left = refused

    async def UpdateCache(self, request: robustmq_pb.UpdateCacheRequest, context: Any) -> robustmq_pb.UpdateCacheReply:
        if self.left:
            self.left -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "by the test")
        self.told += [group_of(record.data) for record in request.records]
        return robustmq_pb.UpdateCacheReply()


def core(groups: Sequence[GroupKey]) -> Core:
    """As much of one as is asked; its store has these groups."""

    async def live(*, deleted: bool) -> AsyncIterator[GroupKey]:
        assert deleted
        for group in groups:
            yield group

    settled = asyncio.Event()
    settled.set()
    recovered, watches = SimpleNamespace(settled=settled), SimpleNamespace(telling=lambda _: nullcontext())
    made = SimpleNamespace(ledger=SimpleNamespace(recovered=recovered, watches=watches), groups=SimpleNamespace(live=live))
    return cast("Core", made)


async def told(given: Notices, counts: FrontCounts, broker: Broker, groups: Sequence[GroupKey] = ()) -> list[str]:
    """What the broker is told until nothing waits."""
    server = grpc.aio.server()
    robustmq_grpc.add_BrokerServiceServicer_to_server(broker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    running = asyncio.create_task(given.run(core(groups), f"127.0.0.1:{port}"))
    await eventually(lambda: bool(broker.told) and not counts.untold)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await server.stop(0)
    return broker.told


def test_the_broker_s_own_changes_are_no_news() -> None:
    """Of a save, what it saved; of a read or a delete, whatever changes in the group meanwhile."""
    counts = FrontCounts()
    given = Notices(counts)
    with given.known([GROUP], {A}):
        given.note([A])
    with given.known([GROUP]):
        given.note([A, B])
    assert not counts.untold


def test_what_another_changes_during_a_save_is_told() -> None:
    """Also in another group, and when two of the broker's calls are under way."""
    for changed, keys in ((B, {A}), (OffsetKey(*OTHER, "a"), {A})):
        counts = FrontCounts()
        given = Notices(counts)
        with given.known([GROUP], set()), given.known([GROUP], keys):
            given.note([changed])
        assert counts.untold == 1


async def test_a_notice_is_repeated_until_it_is_taken() -> None:
    """A broker that refuses it keeps offsets that are no more."""
    counts = FrontCounts()
    given = Notices(counts)
    given.note([A])
    broker = Broker(refused=2)
    assert await told(given, counts, broker) == ["g"]
    assert (broker.left, counts.told, counts.broker_error) == (0, 1, "")


async def test_with_too_many_that_wait_all_groups_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those whose change came before."""
    monkeypatch.setattr(notices, "GROUPS_MAX", 2)
    counts = FrontCounts()
    given = Notices(counts)
    names = [f"g{at}" for at in range(notices.AT_ONCE + 3)]
    for name in names[:4]:
        given.add(GroupKey("n", name))
    assert set(await told(given, counts, Broker(), [GroupKey("n", name) for name in names])) == set(names)

"""A fleet, Meta Service instances and single adapters that say what a test wants; and a client of the pages over them."""

# ruff: noqa: ARG002 - the signatures are those of what they stand for

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any

import grpc
import httpx
from starlette.applications import Starlette

from adapter.client.client import OffsetClient
from adapter.console.app import make_app
from adapter.console.config import ConsoleConfig, MetaInstancesSection
from adapter.console.sources.admin_calls import AdminCalls, NotToldError
from adapter.console.sources.meta_instances import MetaInstance, MetaInstances, RaftSituation
from adapter.fleet.views import AdapterView, Change, GroupPage, GroupShards, GroupView, Health, Key, ShardRow
from adapter.rpc import lag_pb, meta_pb, offsets_pb

BASE = "http://127.0.0.1:9540"
NOW_MS = 1_790_000_000_000
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a/b/../c",
    "%2F%00",
    "\u202eright to left",
    "tab\u0085control\u200b",
    "  two  spaces ",
    "{{ 7 * 7 }}",
    "x" * 255,
    "\u0645\u062c\u0645\u0648\u0639\u0629",
)


def group_lag(group: str, namespace: str = "default", **values: Any) -> lag_pb.GroupLag:
    """A group with lag; `values` replace what it has."""
    found: dict[str, Any] = {
        "shards": 2, "known": 2, "lag": 12, "lag_seconds": 1.5, "commit_rate": 10.0, "produce_rate": 11.0, "trend": 1.0,
        "last_commit_at_ms": NOW_MS, "status": lag_pb.OK, "burrow": lag_pb.OK, "status_since_ms": NOW_MS - 5_000,
    }  # fmt: skip
    return lag_pb.GroupLag(namespace=namespace, group=group, **{**found, **values})


def group_view(group: str, namespace: str = "default", adapters: Sequence[str] = ("a:1",), **values: Any) -> GroupView:
    """The same over adapters."""
    return GroupView(group_lag(group, namespace, **values), adapters, history=(1, None, 3, 12))


def shard_row(shard: str, adapter: str = "a:1", **values: Any) -> ShardRow:
    """A shard at offset 90 of 100."""
    found: dict[str, Any] = {
        "epoch": 1, "offset": 90, "low_watermark": 0, "high_watermark": 100, "lag": 10, "lag_seconds": 2.0,
        "committed_at_ms": NOW_MS, "status": lag_pb.OK,
    }  # fmt: skip
    return ShardRow(lag_pb.ShardLag(shard=shard, **{**found, **values}), adapter)


def adapter_view(address: str = "a:1", health: Health = Health.SERVING, **values: Any) -> AdapterView:
    """An adapter that is well; `values` are those of its status."""
    status = offsets_pb.StatusReply(
        **{"state": offsets_pb.StatusReply.SERVING, "version": "0.1.0", "meta_available": True, "dirty_keys": 3, **values}
    )
    return AdapterView(
        address,
        address,
        health,
        broker=f"broker-{address}",
        version=status.version,
        status=status,
        lag_known=True,
        groups=1,
        shards=2,
    )


class FakeFleet:
    """A fleet of which a test sets everything. `tell` is a change."""

    def __init__(self, adapters: Sequence[AdapterView] = (), groups: Iterable[GroupView] = ()) -> None:
        self.adapters = list(adapters)
        self.problems: Sequence[str] = ()
        self.views = {view.key: view for view in groups}
        self.shards: dict[Key, GroupShards] = {}
        self.asked: list[tuple[lag_pb.LagFilter, int, int, int, str]] = []
        self._changed = asyncio.Event()

    async def groups(
        self,
        filter: lag_pb.LagFilter | None = None,  # noqa: A002 - as of the fleet
        order: lag_pb.LagOrder.ValueType = lag_pb.WORST,
        page_size: int = 50,
        offset: int = 0,
        *,
        text: str = "",
    ) -> GroupPage:
        self.asked.append((filter or lag_pb.LagFilter(), order, page_size, offset, text))
        matching = [view for view in self.views.values() if text.lower() in "/".join(view.key).lower()]
        statuses: dict[int, int] = {}
        for view in matching:
            statuses[view.lag.status] = statuses.get(view.lag.status, 0) + 1
        lag = sum(view.lag.lag for view in matching)
        return GroupPage(matching[offset : offset + page_size], len(matching), len(self.views), 0, lag, statuses)

    async def group(self, namespace: str, group: str) -> GroupShards | None:
        view = self.views.get((namespace, group))
        if view is None:
            return None
        return self.shards.get(view.key, GroupShards(view, [shard_row("t/0"), shard_row("t/1", offset=100, lag=0)]))

    async def changes(self, pause_s: float = 0.5) -> AsyncGenerator[Change, None]:
        yield Change(adapters=True, groups=frozenset(), many=True)
        while True:
            await self._changed.wait()
            self._changed.clear()
            yield Change(adapters=True, groups=frozenset(self.views))

    def tell(self) -> None:
        """Something changed."""
        self._changed.set()


class FakeCalls(AdminCalls):
    """Single adapters: their answers by address; an absent one does not answer."""

    def __init__(self) -> None:
        super().__init__(ConsoleConfig().fleet, tuple)
        self.described: dict[str, offsets_pb.DescribeGroupReply] = {}
        self.changed: dict[str, offsets_pb.ListChangesReply] = {}
        self.asked: list[tuple[str, str]] = []

    def client(self, address: str) -> OffsetClient:
        raise AssertionError(address)

    async def describe(self, address: str, namespace: str, group: str) -> offsets_pb.DescribeGroupReply:
        self.asked.append(("describe", address))
        if address not in self.described:
            raise NotToldError(f"{grpc.StatusCode.UNAVAILABLE.name}: nobody there")
        return self.described[address]

    async def changes(self, address: str, namespace: str, group: str) -> offsets_pb.ListChangesReply:
        self.asked.append(("changes", address))
        if address not in self.changed:
            raise NotToldError("UNIMPLEMENTED: no such call")
        return self.changed[address]


class FakeMeta(MetaInstances):
    """Instances that a test sets."""

    def __init__(self, instances: Sequence[MetaInstance] = (), raft: RaftSituation | None = None) -> None:
        super().__init__(MetaInstancesSection(), None)
        self.given = list(instances)
        self.raft = raft

    @property
    def instances(self) -> Sequence[MetaInstance]:
        return self.given


def instance(address: str = "m:1", **values: Any) -> MetaInstance:
    """An instance that answers."""
    mark = meta_pb.StoreMark(name="", store_id=b"\1" * 16, incarnation=1, revision=9)
    reply = meta_pb.GetStoreStatusReply(**{"engine": "rocksdb", "version": "0.1.0", "marks": [mark], **values})
    return MetaInstance(address, reply, "", NOW_MS, NOW_MS, 0)


def application(
    fleet: FakeFleet, meta: FakeMeta | None = None, calls: FakeCalls | None = None, settings: ConsoleConfig | None = None
) -> Starlette:
    """The pages over fakes, without persons and changes."""
    return make_app(settings or ConsoleConfig(), fleet, meta or FakeMeta(), calls or FakeCalls())


@asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application in memory."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        yield client


class Parsed(HTMLParser):
    """A page taken apart: its elements with their attributes, and the text in each cell."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        """All text."""
        return " ".join(" ".join(self.texts).split())

    def having(self, attribute: str) -> list[dict[str, str]]:
        """The attributes of all elements that have this one."""
        return [attributes for _, attributes in self.elements if attribute in attributes]

    def tags(self, name: str) -> list[dict[str, str]]:
        """The attributes of all elements of a kind."""
        return [attributes for tag, attributes in self.elements if tag == name]

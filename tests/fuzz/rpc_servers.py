"""Our servers in this process, without a network: the real servicers, over a store in memory or the embedded one.

Each begins with the content that the calls of `rpc_seeds.CONTENT` have made.
"""

import asyncio
import copy
import inspect
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from adapter.errors import AdapterError
from adapter.fleet.scaler import ExternalScaler
from adapter.meta.client import MetaClient
from adapter.metaservice import offset_service
from adapter.metaservice.backup_service import MetaBackup
from adapter.metaservice.config import LimitsSection
from adapter.metaservice.limits import Limits
from adapter.metaservice.metadata_service import MetadataMetrics, MetadataService
from adapter.metaservice.metrics import MetaMetrics
from adapter.metaservice.offset_service import MetaService
from adapter.metaservice.rocksdb.metadata import RocksDbMetadata
from adapter.model.bounds import Bounds
from adapter.model.codec import decode_record, encode_record, unpack_names
from adapter.model.names import METADATA_MAX_BYTES, name_problem
from adapter.model.records import EPOCH_MAX, OffsetRecord
from adapter.runtime.clocks import Clocks
from adapter.runtime.durable import rocks
from adapter.runtime.settings.reloading import Reloading
from adapter.sidecar.api.access import Access
from adapter.sidecar.api.offset_admin import OffsetAdmin
from adapter.sidecar.api.offset_service import OffsetService
from adapter.sidecar.api.state import SidecarState, State
from adapter.sidecar.api.status import SidecarStatus
from adapter.sidecar.config import LIVE
from adapter.sidecar.engine import broadcast
from adapter.sidecar.engine.core import Core, running_core
from adapter.sidecar.engine.history import History
from adapter.sidecar.journal.journal import NO_JOURNAL
from adapter.sidecar.lag.live import LiveLag
from adapter.sidecar.lag.metrics import LagMetrics
from adapter.sidecar.lag.scaler_source import LiveLagSource
from adapter.sidecar.lag.service import OffsetLag, Serving
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config
from adapter.testing.waiting import eventually
from tests.embedded_engine import opened
from tests.fuzz.rpc_seeds import CONTENT, META, METADATA, OFFSET_ADMIN, OFFSET_LAG, OFFSET_STORE, SCALER, STORE_BACKUP
from tests.fuzz.running import NOW_MS, directory
from tests.model.disk import Platter, SimDisk
from tests.unit.calls import UNIX, FakeContext, arrived
from tests.unit.helpers import recover

ANSWER_S = 20.0  # for what takes milliseconds
HOUR_S = 3_600.0
LAG_MS = 100  # between two evaluations of the lag
ENDLESS = frozenset({"WatchOffsets", "WatchGroupLag", "StreamIsActive", "StreamMetricSpec"})  # the first reply is the answer


class Served(NamedTuple):
    """A server that runs.

    `servicers`: by the names of their services. `content`: what is stored, to be compared. `check`: fails unless all of that can
    be read again, and has no name or number that must not be there.
    """

    servicers: Mapping[str, object]
    content: Callable[[], object]
    check: Callable[[], None]


async def call(servicer: object, method: MethodDescriptor, request: Message) -> list[Any]:
    """The replies, as if it were NOW_MS. Raises AbortedError with the status of a call that was refused."""
    context = _Context()
    found: list[Any] = context.written
    with patch.object(offset_service, "wall_ms", lambda: NOW_MS):
        async with asyncio.timeout(ANSWER_S):
            answer = getattr(servicer, method.name)(arrived(request) if method.client_streaming else request, context)
            if not inspect.isasyncgen(answer):
                reply = await answer
                return found if reply is None else [reply]
            async with aclosing(answer) as replies:
                async for reply in replies:
                    found.append(reply)
                    if method.name in ENDLESS:
                        break
    return found


class Adapters:
    """Adapters over a store in memory, each with the same content at its begin."""

    def __init__(self) -> None:
        self._metrics = AdapterMetrics()
        self._begin: tuple[Platter, FakeMeta] | None = None

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Served]:
        """OffsetStore and OffsetAdmin of a new one."""
        if self._begin is None:
            self._begin = Platter(), FakeMeta()
            async with self._filled(*self._begin):
                pass
        platter, meta = copy.deepcopy(self._begin[0]), FakeMeta(self._begin[1].records)
        async with self.running(platter, meta) as (core, servicers):

            def check() -> None:
                check_rows((found.key, found.record) for found in core.ledger.store.scan())
                check_rows(meta.records.items())

            yield Served(servicers, lambda: (dict(platter.contents), dict(meta.records)), check)

    @asynccontextmanager
    async def lag_served(self) -> AsyncIterator[Served]:
        """OffsetLag and the external scaler of a new one, of which all lag is known."""
        platter = Platter()
        async with self._filled(platter, FakeMeta()) as core:
            section = adapter_config(directory(), lag={"interval_ms": LAG_MS}).lag
            live = LiveLag(
                section, core.ledger.store, core.bounds, core.broker_log, core.clocks, LagMetrics(section, CollectorRegistry())
            )
            core.tasks.start_soon(live.run)
            await eventually(lambda: live.complete)

            def serving() -> Serving:
                return Serving(core, live)

            servicers = {OFFSET_LAG: OffsetLag(serving), SCALER: ExternalScaler(LiveLagSource(serving))}
            yield Served(servicers, lambda: dict(platter.contents), lambda: None)

    @asynccontextmanager
    async def running(self, platter: Platter, meta: MetaClient) -> AsyncIterator[tuple[Core, Mapping[str, object]]]:
        """An adapter beside any Meta Service, and its servicers."""
        config = adapter_config(directory())
        store = LocalStore.over(SimDisk(platter, lambda: None), "interval")
        history = History(NO_JOURNAL, lambda: NOW_MS)
        clocks = Clocks(now_ms=lambda: NOW_MS)
        state = SidecarState()
        async with AsyncExitStack() as stack:
            with patch.object(broadcast, "KEEP_S", HOUR_S):  # nothing is stored that nobody asks for
                parts = (config, store, meta, self._metrics, _BrokerLog(), clocks, history)
                core = await stack.enter_async_context(running_core(*parts))
                state.attach(core)
                try:
                    await recover(core)
                except AdapterError as error:
                    await core.flusher.mark_unflushed()
                    state.enter(State.DEGRADED, str(error))
                else:
                    state.enter(State.SERVING)
            reloading = Reloading(config, LIVE)
            status = SidecarStatus(reloading, meta, self._metrics, state)
            servicers = {
                OFFSET_STORE: OffsetService(state.serving, state.committing_core, self._metrics),
                OFFSET_ADMIN: OffsetAdmin(reloading, status, state.serving, Access.of(config), history),
            }
            yield core, servicers

    @asynccontextmanager
    async def _filled(self, platter: Platter, meta: FakeMeta) -> AsyncIterator[Core]:
        async with self.running(platter, meta) as (core, servicers):
            await _fill(servicers)
            yield core


class MetaServices:
    """Meta Services over the embedded store, each with the same content at its begin."""

    def __init__(self) -> None:
        self._metrics = MetaMetrics()
        self._metadata_metrics = MetadataMetrics(self._metrics.registry)
        self._begin: Path | None = None

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Served]:
        """A new one."""
        if self._begin is None:
            self._begin = directory() / "meta-begin"
            async with self._running(self._begin) as served:
                await _fill(served.servicers)
        path = directory() / "meta"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self._begin, path)
        async with self._running(path) as served:
            yield served

    @asynccontextmanager
    async def _running(self, path: Path) -> AsyncIterator[Served]:
        async with opened(path) as engine:
            limits = Limits(LimitsSection(), self._metrics)
            metadata = MetadataService(RocksDbMetadata(engine), limits.metadata, self._metadata_metrics)

            def check() -> None:
                rows = rocks.scan(engine._data, b"\1", b"")
                check_rows((tuple(unpack_names(key)), decode_record(value)) for key, value in rows)

            servicers = {
                META: MetaService(engine, limits, self._metrics),
                METADATA: metadata,
                STORE_BACKUP: MetaBackup(engine, self._metrics),
            }
            yield Served(servicers, lambda: engine._state, check)


class _BrokerLog:
    """The log of a broker that has each shard."""

    configured = True

    async def bounds(self, namespace: str, shards: Iterable[str]) -> dict[str, Bounds]:  # noqa: ARG002 - as the Protocol says
        return dict.fromkeys(shards, Bounds(1, 100, NOW_MS))

    async def offsets_for_time(
        self,
        namespace: str,  # noqa: ARG002 - as the Protocol says
        shards: Iterable[str],
        timestamp_ms: int,
    ) -> dict[str, int | None]:
        return dict.fromkeys(shards, timestamp_ms % 100 or None)


class _Context(FakeContext):
    """Keeps the replies of a method that writes them."""

    def __init__(self) -> None:
        super().__init__(UNIX, {}, {})
        self.written: list[Any] = []

    async def write(self, reply: Message) -> None:
        self.written.append(reply)


async def _fill(servicers: Mapping[str, object]) -> None:
    """Make the calls that a server begins with."""
    for service, servicer in servicers.items():
        methods = descriptor_pool.Default().FindServiceByName(service).methods_by_name
        for method, request in CONTENT.get(service, ()):
            await call(servicer, methods[method], request)


def check_rows(rows: Iterable[tuple[tuple[str, ...], OffsetRecord]]) -> None:
    """Fail for a key or record that no store may have."""
    for names, record in rows:
        assert not any(map(name_problem, names)), names
        assert 0 < record.epoch <= EPOCH_MAX, record
        assert not (record.topic and name_problem(record.topic)), record
        assert len(record.metadata.encode()) <= METADATA_MAX_BYTES, record
        assert decode_record(encode_record(record)) == record

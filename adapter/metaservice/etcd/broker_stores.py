"""The reported local stores of brokers, in etcd, and how far each Raft group is.

A report reads from every Raft group, so that also an adapter without commits learns of one that lost data; the report itself is
written to one of them, under the fence of the layout. So a process without other calls learns of a layout change, too. While the
layout changes, what is not there yet is in the Raft group where it was; `rebalancing` moves those that nobody reports meanwhile.

Values sort, byte by byte, by their time, which moves on with each report, even where clocks differ: of two copies the greater
value is the later report, and etcd itself can compare them.
"""

import asyncio
import contextlib
import struct
from collections.abc import Iterable, Mapping

from adapter.errors import AdapterError, MetaUnavailableError
from adapter.metaservice.engine import decide_report
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.fences import LayoutChangedError
from adapter.metaservice.etcd.keys import Keys, foreign
from adapter.metaservice.etcd.reads import Row
from adapter.model.codec import prefix_end
from adapter.model.records import STORE_ID_BYTES, KnownStore, StoreReport
from adapter.rpc import etcd_pb

ROUNDS = 5  # attempts while another adapter reports the same broker and path
PAGE = 1_000
REFRESH_MS = 3_600_000  # an unchanged report is written again after this, for its time
_VALUE = struct.Struct(f">Q{STORE_ID_BYTES}sQ")  # told_at_ms, store_id, flushed_seq

_EQUAL, _TARGET_VALUE, _VERSION = etcd_pb.Compare.EQUAL, etcd_pb.Compare.VALUE, etcd_pb.Compare.VERSION


class EtcdStores:
    """Records which local store each broker and path has."""

    def __init__(self, groups: Mapping[str, EtcdCluster], keys: Keys) -> None:
        self._groups = groups
        self._keys = keys

    async def report(
        self,
        home: str,
        guards: Mapping[str, etcd_pb.Compare],
        cluster: str,
        reported: StoreReport,
        replaces: bytes,
        now_ms: int,
        answered: set[str],
    ) -> KnownStore | None:
        """Implements `Engine.report_store`. The report is stored in the Raft group `home`.

        `guards`: the fences of `home`, and of the Raft group from which a move under way may bring the report.

        Adds the names of the Raft groups that answered to `answered`. Raises the client's errors if `home` does not take the
        report, or has none and the other one does not answer; LayoutChangedError; StoreDamagedError for what no Meta Service has
        written.
        """
        where = self._keys.store(cluster, reported.broker, reported.path)
        for _ in range(ROUNDS):
            found = await asyncio.gather(*(self._read(name, where, answered, guards.get(name)) for name in self._groups))
            read = dict(zip(self._groups, found, strict=True))
            standing = _value(read[home])
            if not standing:
                for name in guards:
                    _value(read[name])
            # A Raft group that an earlier version moved everything else away from may still have the report.
            values = [value for value in found if isinstance(value, bytes) and value]
            known = max((decode_report(reported, where, value) for value in values), key=_pack, default=None)
            kept = decide_report(reported, known, replaces, max(now_ms, known.reported_at_ms + 1) if known else now_ms)
            # It has to be at home, too: the Raft group where it was before a change of the layout may not answer later.
            at_home = decode_report(reported, where, standing) if standing else None
            if kept is None or _is_known(kept, at_home) or await self._put(home, guards[home], where, standing, kept):
                return known
        raise MetaUnavailableError(f"{home}: the store of {reported.broker} is reported by several adapters at once")

    async def forget(self, before_ms: int) -> int:
        """Remove reports from before `before_ms`. Raft groups that do not answer are skipped until the next call."""
        return sum(await asyncio.gather(*(self._forget(group, before_ms) for group in self._groups.values())))

    async def _read(self, name: str, where: bytes, answered: set[str], guard: etcd_pb.Compare | None) -> bytes | AdapterError:
        """Read a report: empty if there is none; the error if there is no answer. Raises LayoutChangedError."""
        request = etcd_pb.TxnRequest(compare=[guard] if guard else [])
        request.success.add().request_range.key = where
        try:
            reply = await self._groups[name].txn(request)
        except AdapterError as error:
            return error
        if not reply.succeeded:
            raise LayoutChangedError(f"{name}: the layout of the offsets has changed")
        answered.add(name)
        kvs = reply.responses[0].response_range.kvs
        return kvs[0].value if kvs else b""

    async def _put(self, name: str, guard: etcd_pb.Compare, where: bytes, standing: bytes, kept: KnownStore) -> bool:
        request = etcd_pb.TxnRequest(compare=[guard])
        if standing:
            request.compare.add(result=_EQUAL, target=_TARGET_VALUE, key=where, value=standing)
        else:
            request.compare.add(result=_EQUAL, target=_VERSION, key=where, version=0)
        put = request.success.add().request_put
        put.key, put.value = where, _pack(kept)
        return (await self._groups[name].txn(request, resend=False)).succeeded

    async def _forget(self, group: EtcdCluster, before_ms: int) -> int:
        start, end = self._keys.stores, prefix_end(self._keys.stores)
        forgotten = 0
        with contextlib.suppress(AdapterError):
            while True:
                found = await group.range(etcd_pb.RangeRequest(key=start, range_end=end, limit=PAGE))
                for kv in found.kvs:
                    if len(kv.value) == _VALUE.size and _VALUE.unpack(kv.value)[0] < before_ms:
                        request = etcd_pb.TxnRequest()
                        request.compare.add(result=_EQUAL, target=_TARGET_VALUE, key=kv.key, value=kv.value)
                        request.success.add().request_delete_range.key = kv.key
                        forgotten += (await group.txn(request)).succeeded
                if not found.more:
                    break
                start = found.kvs[-1].key + b"\0"
        return forgotten


def add_copies(request: etcd_pb.TxnRequest, reports: Iterable[Row]) -> None:
    """Add to a transaction that these reports are written, each unless a later one stands."""
    for report in reports:
        inner = request.success.add().request_txn
        inner.compare.add(result=etcd_pb.Compare.GREATER, target=_TARGET_VALUE, key=report.where, value=report.value)
        put = inner.failure.add().request_put
        put.key, put.value = report.where, report.value


def _value(read: bytes | AdapterError) -> bytes:
    """What was read. Raises the error instead."""
    if isinstance(read, AdapterError):
        raise read
    return read


def _is_known(kept: KnownStore, known: KnownStore | None) -> bool:
    """Whether nothing but the time would change, and not by much: an adapter without commits reports all the time."""
    return known is not None and kept.store == known.store and kept.reported_at_ms < known.reported_at_ms + REFRESH_MS


def decode_report(reported: StoreReport, where: bytes, value: bytes) -> KnownStore:
    """The report of a store that is stored under the key `where`. Raises StoreDamagedError."""
    if len(value) != _VALUE.size:
        raise foreign(where)
    reported_at_ms, store_id, flushed_seq = _VALUE.unpack(value)
    return KnownStore(reported._replace(store_id=store_id, flushed_seq=flushed_seq), reported_at_ms)


def _pack(known: KnownStore) -> bytes:
    return _VALUE.pack(known.reported_at_ms, known.store.store_id, known.store.flushed_seq)

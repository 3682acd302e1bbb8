"""The layout that all Meta Service processes share: stored in the metadata Raft group, and as a fence in each other one.

Every transaction on offsets, reads included, compares the fence (a fencing token with the layout's version). So etcd refuses a
process that has missed a layout change: it can neither write where offsets have been moved away, nor read outdated ones. This
needs no clock or lease.
"""

from collections.abc import Mapping
from typing import NamedTuple

import anyio
import structlog

from adapter.errors import (
    AdapterError,
    ConfigError,
    ContendedError,
    MetaUnavailableError,
    StoreDamagedError,
    StoreVersionError,
)
from adapter.metaservice.etcd import format_key
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.etcd.sharding import Layout, first_layout
from adapter.model.codec import pack_names, prefix_end
from adapter.rpc import etcd_pb

log = structlog.get_logger(__name__)

VERSION_DIGITS = 20  # fixed width, so that fences sort by version
_CHANGES = 5  # attempts while the layout keeps changing


class LayoutChangedError(AdapterError):
    """A Raft group has another layout than the call was made for. Nothing was done there."""


class _Fence(NamedTuple):
    """The decoded fence of a Raft group."""

    owner: bytes
    version: int
    layout: bytes


class Fences:
    """Reads and changes the layout, and raises the fences after a change."""

    def __init__(self, metadata: EtcdCluster, offsets: Mapping[str, EtcdCluster], keys: Keys) -> None:
        self._metadata = metadata
        self._offsets = offsets
        self._keys = keys
        self._reading = anyio.Lock()
        self._reads = 0  # number of reads begun
        self._layout: Layout | None = None
        self._guards: dict[str, etcd_pb.Compare] = {}

    @property
    def layout(self) -> Layout:
        """The layout as read last. Raises MetaUnavailableError before the first read."""
        if self._layout is None:
            raise MetaUnavailableError("the layout of the offsets is not known yet: etcd has not answered")
        return self._layout

    @property
    def known(self) -> Layout | None:
        """The layout as read last; None before the first read."""
        return self._layout

    def guard(self, layout: Layout, name: str) -> etcd_pb.Compare:
        """The comparison that makes a transaction in a Raft group apply only under this layout.

        Raises LayoutChangedError if `layout` is known to be outdated.
        """
        if layout is not self._layout:
            raise LayoutChangedError("the layout of the offsets has changed")
        found = self._guards.get(name)
        if found is None:
            found = self._guards[name] = _compare(self._keys.fence, fence(layout, name))
        return found

    def stands(self, layout: Layout) -> etcd_pb.Compare:
        """The comparison that makes a transaction in the metadata Raft group apply only under this layout."""
        return _compare(self._keys.layout, layout.encode())

    async def open(self) -> Layout:
        """Read the layout; the first process of a new installation creates it.

        Raises MetaUnavailableError; ConfigError if the layout names a Raft group that is not configured, or the endpoints of one
        lead to another; StoreVersionError if a Raft group has a later version. Nothing is written then.
        """
        async with self._reading:
            await format_key.establish(self._metadata, self._offsets.values(), self._keys.format)
            await self._reload()
            return self.layout

    async def reload(self, refused: Layout) -> Layout:
        """Read the layout again after `refused` was refused, and raise outdated fences. Raises MetaUnavailableError.

        Where `open` would raise a ConfigError, too: other processes may have the new configuration, or version, already.
        """
        reads = self._reads
        async with self._reading:
            # If many calls were refused together, only the first reads.
            if self._layout == refused and self._reads == reads:
                try:
                    await self._reload()
                except (ConfigError, StoreVersionError) as error:
                    log.error("layout.unusable", error=str(error))
                    raise MetaUnavailableError(str(error)) from error
            return self.layout

    async def change(self, before: Layout, after: Layout) -> None:
        """Replace the layout `before` by `after` and raise every fence.

        Raises ContendedError if another layout is stored, MetaUnavailableError if a Raft group does not answer, ConfigError.
        """
        async with self._reading:
            self._check_configured(after)
            for name in after.fenced:
                await self._read_fence(name)
            request = etcd_pb.TxnRequest(compare=[self.stands(before)])
            _put(request, self._keys.layout, after.encode())
            _delete_positions(request, self._keys)
            # A resent transaction may meet its own write; so compare what is stored.
            if not (await self._metadata.txn(request)).succeeded and await self._read_layout_key() != after:
                raise ContendedError("another process changed the layout of the offsets; check it and try again")
            log.info("layout.changed", version=after.version, groups=after.groups, moving_from=after.moving_from)
            self._adopt(after)
            for name in after.fenced:
                await self._raise_fence(name, after)

    async def _reload(self) -> None:
        self._reads += 1
        layout = await self._read()
        # Keep the same object for an unchanged layout, so that calls in progress go on.
        if layout != self._layout:
            self._check_configured(layout)
            self._adopt(layout)

    def _adopt(self, layout: Layout) -> None:
        self._layout = layout
        self._guards = {}

    def _check_configured(self, layout: Layout) -> None:
        missing = {*layout.fenced} - {*self._offsets}
        if missing:
            raise ConfigError(
                f"etcd.offsets: offsets are also in {', '.join(sorted(missing))}, which is not configured here; add it again; "
                "before a Raft group is taken away, its offsets are moved: offset-adapter meta rebalance --without NAME"
            )

    async def _read(self) -> Layout:
        """Read the layout, and repeat until no answering Raft group has a newer or an older fence."""
        for _ in range(_CHANGES):
            layout = await self._read_layout_key() or await self._create()
            newer = None
            # In this order: fence the groups that lose offsets before those that receive them.
            for name in layout.fenced:
                if name in self._offsets:
                    newer = newer or await self._raise_fence(name, layout)
            if newer is None:
                return layout
            await self._restore(layout, newer)
        raise MetaUnavailableError("the layout of the offsets keeps changing")

    async def _read_layout_key(self) -> Layout | None:
        reply = await self._metadata.range(etcd_pb.RangeRequest(key=self._keys.layout))
        # Behind the layout: a later version writes its mark before it changes the layout.
        await format_key.is_marked(self._metadata, self._keys.format)
        return Layout.decode(reply.kvs[0].value) if reply.kvs else None

    async def _create(self) -> Layout:
        """Create the first layout; the newest one in the fences if there is any (metadata was lost). Returns the stored one.

        Every Raft group has to answer, since the one that does not may have the newest fence.
        """
        standing = [await self._read_fence(name) for name in sorted(self._offsets)]
        newest = max((found for found in standing if found), key=lambda found: found.version, default=None)
        first = Layout.decode(newest.layout) if newest else first_layout(self._offsets)
        request = etcd_pb.TxnRequest(compare=[_absent(self._keys.layout)])
        _put(request, self._keys.layout, first.encode())
        if (await self._metadata.txn(request)).succeeded:
            log.info("layout.created", version=first.version, groups=first.groups)
        return await self._read_layout_key() or first

    async def _restore(self, kept: Layout, newer: Layout) -> None:
        """Write the newer layout from the fences to the metadata Raft group, which was restored from an old snapshot."""
        request = etcd_pb.TxnRequest(compare=[self.stands(kept)])
        _put(request, self._keys.layout, newer.encode())
        if (await self._metadata.txn(request)).succeeded:
            log.warning("layout.restored", kept=kept.version, version=newer.version, help="was an old snapshot restored?")

    async def _read_fence(self, name: str) -> _Fence | None:
        """Read the fence of a Raft group. Raises ConfigError if it belongs to another one; MetaUnavailableError."""
        reply = await self._offsets[name].range(etcd_pb.RangeRequest(key=self._keys.fence))
        return _decode_fence(name, reply.kvs[0].value) if reply.kvs else None

    async def _raise_fence(self, name: str, layout: Layout) -> Layout | None:
        """Raise a Raft group's fence to this layout; returns the layout of a newer fence instead, if there is one.

        A Raft group that does not answer is skipped: the first process refused there raises its fence.
        """
        wanted = fence(layout, name)
        raising = etcd_pb.TxnRequest(compare=[_older(self._keys.fence, layout, name), _owned_by(self._keys.fence, name)])
        _put(raising, self._keys.fence, wanted)
        making = etcd_pb.TxnRequest(compare=[_absent(self._keys.fence)])
        _put(making, self._keys.fence, wanted)
        making.failure.add().request_txn.CopyFrom(raising)
        request = etcd_pb.TxnRequest()
        request.success.add().request_txn.CopyFrom(making)
        request.success.add().request_range.key = self._keys.fence
        try:
            reply = await self._offsets[name].txn(request)
        except MetaUnavailableError as error:
            log.warning("fence.unknown", raft_group=name, error=str(error))
            return None
        found = reply.responses[1].response_range.kvs[0].value
        if found == wanted:
            return None
        standing = _decode_fence(name, found)
        if standing.version == layout.version:
            raise StoreDamagedError(
                f"{name}: two layouts have the version {layout.version}: are two fleets using the same etcd.prefix?"
            )
        return Layout.decode(standing.layout)


def fence(layout: Layout, name: str) -> bytes:
    """The fence of a layout in a Raft group: the group's name, the version, and the layout itself."""
    return _up_to_version(layout, name) + b" " + layout.encode()


def _up_to_version(layout: Layout, name: str) -> bytes:
    return b"%s%0*d" % (pack_names(name), VERSION_DIGITS, layout.version)


def _decode_fence(name: str, found: bytes) -> _Fence:
    """Decode a fence. Raises ConfigError if it belongs to another Raft group."""
    size = found[0]
    version, _, layout = found[1 + size :].partition(b" ")
    standing = _Fence(found[1 : 1 + size], int(version), layout)
    if standing.owner != name.encode():
        raise ConfigError(
            f"etcd.offsets: the endpoints of {name} are those of the Raft group {standing.owner.decode(errors='replace')}"
        )
    return standing


def _compare(key: bytes, value: bytes) -> etcd_pb.Compare:
    return etcd_pb.Compare(result=etcd_pb.Compare.EQUAL, target=etcd_pb.Compare.VALUE, key=key, value=value)


def _owned_by(key: bytes, name: str) -> etcd_pb.Compare:
    """With `_older`: the fence belongs to this Raft group. Exactly its fences sort directly after its packed name."""
    return etcd_pb.Compare(result=etcd_pb.Compare.GREATER, target=etcd_pb.Compare.VALUE, key=key, value=pack_names(name))


def _older(key: bytes, layout: Layout, name: str) -> etcd_pb.Compare:
    value = _up_to_version(layout, name)
    return etcd_pb.Compare(result=etcd_pb.Compare.LESS, target=etcd_pb.Compare.VALUE, key=key, value=value)


def _absent(key: bytes) -> etcd_pb.Compare:
    return etcd_pb.Compare(result=etcd_pb.Compare.EQUAL, target=etcd_pb.Compare.VERSION, key=key, version=0)


def _delete_positions(request: etcd_pb.TxnRequest, keys: Keys) -> None:
    """Delete the positions of the rebalance step that ends with this layout."""
    deletion = request.success.add().request_delete_range
    deletion.key, deletion.range_end = keys.moving, prefix_end(keys.moving)


def _put(request: etcd_pb.TxnRequest, key: bytes, value: bytes) -> None:
    put = request.success.add().request_put
    put.key, put.value = key, value

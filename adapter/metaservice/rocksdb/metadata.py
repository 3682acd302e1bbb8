"""Metadata in the embedded RocksDB: entries in the column family `meta`, next to the engine's own keys.

A write is one WriteBatch together with the revision counter, synced before the reply. It shares its sync with those of offsets.
"""

import struct

from adapter.metaservice.metadata import Entry, Page, PageBuilder, conflict
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.model.codec import pack_names, prefix_end

_ENTRIES = b"m/"
LAST_REVISION = b"revision"  # key of the revision counter; no entry's key starts like it
REVISION_FORM = struct.Struct(">Q")


class RocksDbMetadata:
    """Works on an engine whose `run` is running. There is no await between a decision and its write, so it needs no lock.

    Every reply, also a conflict, waits for the sync of what it shows.
    """

    def __init__(self, engine: RocksDbEngine) -> None:
        self._engine = engine

    async def put(self, cluster: str, key: str, value: bytes, expected: int | None = None) -> int:
        """Write a value in one WriteBatch, synced; returns its revision."""
        try:
            return self._put(_where(cluster), key, value, expected)
        finally:
            await self._engine.syncs.wait()

    async def get(self, cluster: str, key: str) -> Entry | None:
        """Read an entry; it is synced before this returns."""
        found = self._get(_where(cluster), key)
        await self._engine.syncs.wait()
        return found

    async def delete(self, cluster: str, key: str, expected: int | None = None) -> bool:
        """Delete in one WriteBatch, synced. The revision counter stays, so that no revision is given twice."""
        try:
            return self._delete(_where(cluster), key, expected)
        finally:
            await self._engine.syncs.wait()

    async def list_page(self, cluster: str, prefix: str, size: int, after: str) -> Page:
        """Read a page by a bounded scan; its entries are synced before this returns."""
        page = self._page(_where(cluster), prefix, size, after)
        await self._engine.syncs.wait()
        return page

    def _page(self, where: bytes, prefix: str, size: int, after: str) -> Page:
        start = where + (after.encode() + b"\0" if after else prefix.encode())
        builder = PageBuilder(size)
        for key, value in self._engine.scan_meta(start, prefix_end(where + prefix.encode())):
            if not builder.remaining:
                return builder.page(more=True)
            builder.add(_entry(key[len(where) :].decode(), value))
        return builder.page(more=False)

    def _put(self, where: bytes, key: str, value: bytes, expected: int | None) -> int:
        self._expect(where, key, expected)
        last = self._engine.get_meta(LAST_REVISION)
        revision: int = 1 + (REVISION_FORM.unpack(last)[0] if last else 0)
        stamp = REVISION_FORM.pack(revision)
        self._engine.write_meta({where + key.encode(): stamp + value, LAST_REVISION: stamp})
        return revision

    def _delete(self, where: bytes, key: str, expected: int | None) -> bool:
        self._expect(where, key, expected)
        found = self._get(where, key) is not None
        if found:
            self._engine.write_meta({where + key.encode(): None})
        return found

    def _get(self, where: bytes, key: str) -> Entry | None:
        value = self._engine.get_meta(where + key.encode())
        return None if value is None else _entry(key, value)

    def _expect(self, where: bytes, key: str, expected: int | None) -> None:
        if expected is None:
            return
        found = self._get(where, key)
        standing = found.revision if found else 0
        if standing != expected:
            raise conflict(key, expected, standing)


def _where(cluster: str) -> bytes:
    return _ENTRIES + pack_names(cluster)


def _entry(key: str, value: bytes) -> Entry:
    return Entry(key, value[REVISION_FORM.size :], REVISION_FORM.unpack_from(value)[0])

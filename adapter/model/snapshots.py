"""The manifest of a snapshot of a cluster's offsets, a directory of Parquet files. It is there if the snapshot is whole."""

import json
from typing import NamedTuple, Self

from adapter.errors import StoreDamagedError, StoreVersionError

MANIFEST = "_snapshot.json"  # readers of Parquet leave out names with an underscore
VERSION = 1


class Manifest(NamedTuple):
    """What is in a snapshot. `records` includes the tombstones; `files` are in key order."""

    cluster: str
    taken_at_ms: int  # Unix time, by the Meta Service's clock
    records: int
    tombstones: int
    files: tuple[str, ...]

    def encode(self) -> bytes:
        """The content of the manifest."""
        return json.dumps({"version": VERSION, **self._asdict()}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, where: str) -> Self:
        """Decode; the inverse of `encode`. Raises StoreDamagedError, or StoreVersionError for a later version."""
        try:
            found = json.loads(data)
            version = int(found["version"])
            if version == VERSION:
                taken_at_ms, records, tombstones = (int(found[name]) for name in ("taken_at_ms", "records", "tombstones"))
                first, *more = map(str, found["files"])
                return cls(str(found["cluster"]), taken_at_ms, records, tombstones, (first, *more))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamagedError(f"{where}: is no manifest of a snapshot: {error!r}") from error
        raise StoreVersionError(f"{where}: the snapshot has version {version}; this program reads version {VERSION}: upgrade it")

"""Shared by the tests of the flusher: commits of four keys, and what the Meta Service received."""

from adapter.errors import MetaUnavailableError
from adapter.model.records import OffsetKey
from adapter.sidecar.engine.core import Core
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit_of, key, send

A, B, C, D = (key(shard) for shard in "abcd")
DOWN = MetaUnavailableError("down by the test")


def shards_of(meta: FakeMeta) -> list[list[str]]:
    """The shards in each save."""
    return [[entry.key.shard for entry in save] for save in meta.saves]


def offsets_in(meta: FakeMeta) -> dict[OffsetKey, int]:
    """The offsets that the Meta Service holds."""
    return {found: standing.offset for found, standing in meta.records.items()}


async def commit_all(core: Core, offset: int, shards: str = "abcd") -> None:
    """Commit the same offset for some shards."""
    await send(core, commit_of({key(shard): offset for shard in shards}))

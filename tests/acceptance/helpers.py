"""What the tests of offsets share: commits as a broker sends them, and what stands afterwards."""

from collections.abc import Mapping

from adapter.rpc import offsets_pb
from tests.acceptance.conftest import Pair
from tests.integration.helpers import rpc


def send(address: str, group: str, offsets: Mapping[str, int], low: int | None = None, high: int | None = None) -> None:
    """A commit as a broker sends it, with the bounds of the shards."""
    shards = [
        offsets_pb.ShardCommit(shard=shard, offset=offset, low_watermark=low, high_watermark=high)
        for shard, offset in offsets.items()
    ]
    with rpc(address) as stubs:
        groups = [offsets_pb.GroupCommits(group=group, shards=shards)]
        stubs.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=30)


def offsets_of(address: str, group: str) -> dict[str, int]:
    """Shard -> offset, as an adapter knows it."""
    request = offsets_pb.ReadOffsetsRequest(groups=[offsets_pb.GroupShards(group=group)], mode=offsets_pb.MEMORY)
    with rpc(address) as stubs:
        return {row.shard: row.offset for row in stubs.store.ReadOffsets(request, timeout=30).offsets}


def commit(pair: Pair, group: str, offsets: Mapping[str, int], low: int | None = None, high: int | None = None) -> None:
    """The same to the adapter of a pair."""
    send(pair.adapter.address, group, offsets, low, high)


def standing(pair: Pair, group: str) -> dict[str, int]:
    """Shard -> offset, in the adapter and, after a flush, in the Meta Service alike."""
    assert pair("flush").code == 0
    local = offsets_of(pair.adapter.address, group)
    rows = pair("list", "--meta", pair.meta.address, "--json").json
    remote = {row["shard"]: row["offset"] for row in rows if row["group"] == group and row["namespace"] == "default"}
    assert local == remote
    return local

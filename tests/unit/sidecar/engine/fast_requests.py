"""Requests that the fast path accepts."""

from typing import Any

from adapter.rpc import offsets_pb

Request = offsets_pb.CommitOffsetsRequest


def request(shard: str = "s", mode: int = 0, group: dict[str, Any] | None = None, **fields: Any) -> Request:
    """A commit of one shard."""
    item = offsets_pb.ShardCommit(shard=shard, **fields)
    made = Request(groups=[offsets_pb.GroupCommits(**{"group": "g", "shards": [item], **(group or {})})])
    made.mode = mode  # type: ignore[assignment]  # also one that there is not
    return made


def columns(*groups: dict[str, Any], mode: int = 0) -> Request:
    """A commit in columns; a group that names none is `g`."""
    made = Request(groups=[offsets_pb.GroupCommits(**{"group": "g", **fields}) for fields in groups])
    made.mode = mode  # type: ignore[assignment]
    return made

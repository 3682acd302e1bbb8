"""Requests of the local API -> model. A bad entry refuses its whole request, by the name of the field (invariant 10)."""

import time
from collections.abc import Iterable, Sequence

from adapter.codec import unpack_names
from adapter.committer import Commit, Standing
from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.model import (
    DEFAULT_NAMESPACE,
    FIRST_EPOCH,
    U64_MAX,
    CommitMode,
    GroupKey,
    OffsetKey,
    OffsetRecord,
    check_metadata,
    check_name,
    check_topic,
)
from adapter.reads import ReadMode, Wanted
from adapter.rpc import offsets_pb

MAX_PAGE = 10_000
DEFAULT_PAGE = 1_000


def parse_commit(request: offsets_pb.CommitOffsetsRequest) -> Commit:
    """A commit. Raises InvalidInputError."""
    try:
        mode = CommitMode(request.mode)
    except ValueError:
        raise InvalidInputError(f"mode: {request.mode} is unknown; 0 is INCREASE_ONLY, 1 is OVERWRITE") from None
    now_ms = time.time_ns() // 1_000_000
    entries: dict[OffsetKey, OffsetRecord] = {}
    for at, group in enumerate(request.groups):
        _parse_group(group, f"groups[{at}]", entries, now_ms)
    if not entries:
        raise InvalidInputError("groups: no offset is in the request; at least one is needed")
    return Commit(list(entries.items()), mode)


def _parse_group(group: offsets_pb.GroupCommits, where: str, entries: dict[OffsetKey, OffsetRecord], now_ms: int) -> None:
    namespace = check_name(group.namespace or DEFAULT_NAMESPACE, f"{where}.namespace")
    name = check_name(group.group, f"{where}.group")
    for at, item in enumerate(group.shards):
        if not item.HasField("offset"):
            raise InvalidInputError(f"{where}.shards[{at}].offset is missing; absent does not mean 0")
        key = OffsetKey(namespace, name, check_name(item.shard, f"{where}.shards[{at}].shard"))
        if key in entries:
            raise InvalidInputError(f"{where}.shards[{at}].shard: {'/'.join(key)} is in the request twice")
        entries[key] = OffsetRecord(
            FIRST_EPOCH,
            item.offset,
            committed_at_ms=item.committed_at_ms or now_ms,
            metadata=check_metadata(item.metadata, f"{where}.shards[{at}].metadata"),
            topic=check_topic(item.topic, f"{where}.shards[{at}].topic"),
            partition=item.partition,
        )


def parse_read_mode(mode: int) -> ReadMode:
    """A read mode. Raises InvalidInputError."""
    try:
        return ReadMode(mode)
    except ValueError:
        raise InvalidInputError(f"mode: {mode} is unknown; 0 is MEMORY_FIRST_THEN_STORE, 1 is MEMORY, 2 is STORE") from None


def parse_wanted(groups: Sequence[offsets_pb.GroupShards]) -> list[Wanted]:
    """Groups and shards. Raises InvalidInputError."""
    if not groups:
        raise InvalidInputError("groups: is empty; at least one group is needed")
    wanted = []
    for at, item in enumerate(groups):
        where = f"groups[{at}]"
        group = GroupKey(
            check_name(item.namespace or DEFAULT_NAMESPACE, f"{where}.namespace"), check_name(item.group, f"{where}.group")
        )
        shards = [check_name(shard, f"{where}.shards[{index}]") for index, shard in enumerate(item.shards)]
        wanted.append(Wanted(group, shards))
    return wanted


def parse_page(namespace: str, group: str, page_size: int) -> tuple[str, ...]:
    """The names to list below: none, a namespace, or a namespace and a group. Raises InvalidInputError."""
    if page_size > MAX_PAGE:
        raise InvalidInputError(f"page_size: {page_size} is over {MAX_PAGE}")
    if group and not namespace:
        raise InvalidInputError("namespace: is empty, but a group is named; name both")
    names = (("namespace", namespace), ("group", group))
    return tuple(check_name(name, field) for field, name in names if name)


def parse_page_token(token: bytes, prefix: bytes, fields: int) -> bytes:
    """The token of a former page of the list below `prefix`: a key of so many fields. Raises InvalidInputError."""
    try:
        names = unpack_names(token)
    except (StoreDamagedError, UnicodeDecodeError):
        names = []
    if token and (len(names) != fields or not token.startswith(prefix)):
        raise InvalidInputError("page_token: is not the next_page_token of a page of this list")
    return token


def superseded_rows(commit: Commit, standing: Iterable[Standing]) -> list[offsets_pb.Superseded]:
    """The rows of a reply: entries above which a larger (epoch, offset) stands, be its offset lower or not."""
    offered = dict(commit.entries)
    return [
        offsets_pb.Superseded(
            namespace=key.namespace,
            group=key.group,
            shard=key.shard,
            epoch=record.epoch,
            offset=record.offset,
            deleted=not record.live,
        )
        for key, record in standing
        if record is not None and (record.offset != offered[key].offset or not record.live)
    ]


def shard_offset(key: OffsetKey, record: OffsetRecord, *, dirty: bool) -> offsets_pb.ShardOffset:
    """A row of a read or list reply."""
    return offsets_pb.ShardOffset(
        namespace=key.namespace,
        group=key.group,
        shard=key.shard,
        epoch=record.epoch,
        offset=record.offset,
        metadata=record.metadata,
        committed_at_ms=record.committed_at_ms,
        topic=record.topic,
        partition=record.partition,
        dirty=dirty,
    )


def parse_offset(text: str, field: str) -> int:
    """An offset that a person typed. Raises InvalidInputError."""
    if not (text.isascii() and text.isdecimal()) or int(text) > U64_MAX:
        raise InvalidInputError(f"{field}: {text!r} is not a whole number from 0 to {U64_MAX}")
    return int(text)

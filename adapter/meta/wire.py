"""Protobuf messages of the Meta Service to and from model values; used by its clients and its server.

Older RobustMQ uses the field `namespace`, newer `tenant`: both are written, either is read.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from adapter.errors import MetaUnavailableError
from adapter.model.names import METADATA_MAX_BYTES, NAME_MAX_BYTES, name_problem
from adapter.model.records import (
    DEFAULT_NAMESPACE,
    EPOCH_MAX,
    GroupKey,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    Status,
    as_seen,
)
from adapter.rpc import meta_pb
from adapter.runtime.slices import in_slices

_PLAIN_NAME, _PLAIN_METADATA = NAME_MAX_BYTES // 4, METADATA_MAX_BYTES // 4  # characters that fit whatever they are


def namespace_of(namespace: str, tenant: str) -> str:
    """The namespace of a request, from its old or its new field; `default` if both are empty."""
    return namespace or tenant or DEFAULT_NAMESPACE


async def save_request(cluster: str, entries: Sequence[SaveEntry]) -> meta_pb.SaveOffsetDataRequest:
    """Build a save request, with one message per run of entries of a group. Yields to the event loop."""
    request = meta_pb.SaveOffsetDataRequest(cluster_name=cluster)
    group: meta_pb.SaveOffsetData | None = None
    last: tuple[str, str] | None = None
    async for entry_slice in in_slices(entries):
        for key, record, expected in entry_slice:
            if group is None or last != key[:2]:
                last = key[:2]
                group = request.offsets.add(group=key.group, tenant=key.namespace)
            group.offsets.add(
                namespace=key.namespace,
                shard_name=key.shard,
                offset=record.offset,
                # Newer RobustMQ requires a topic; without one it refuses the entry, as it should a tombstone.
                topic=record.topic or (key.shard if record.live else ""),
                partition=record.partition,
                expected_offset=expected,
                epoch=record.epoch,
                metadata=record.metadata,
                committed_at_ms=record.committed_at_ms,
                tombstone=not record.live,
            )
    return request


def save_entries(request: meta_pb.SaveOffsetDataRequest, now_ms: int, bare: type[SaveEntry] = SaveEntry) -> Iterable[SaveEntry]:
    """The entries of a save request, unchecked. One without a commit time gets `now_ms`.

    `bare`: what an entry becomes that has neither an epoch nor a commit time, as RobustMQ's brokers send.
    """
    for group in request.offsets:
        for item in group.offsets:
            is_bare = not (item.epoch or item.committed_at_ms or item.tombstone)
            yield (bare if is_bare else SaveEntry)(
                OffsetKey(namespace_of(item.namespace, group.tenant), group.group, item.shard_name),
                OffsetRecord(
                    item.epoch,
                    item.offset,
                    not item.tombstone,
                    item.committed_at_ms or now_ms,
                    item.metadata,
                    "" if item.topic == item.shard_name else item.topic,
                    item.partition,
                ),
                item.expected_offset if item.HasField("expected_offset") else None,
            )


def add_result(reply: meta_pb.SaveOffsetDataReply, entry: SaveEntry, outcome: SaveOutcome) -> meta_pb.SaveOffsetResult:
    """Append the result of one entry to a reply. The stored record is included only if it is not the entry itself."""
    standing = outcome.standing
    namespace, group, shard = entry.key
    row = reply.results.add()
    row.group, row.namespace, row.shard_name = group, namespace, shard
    row.status = meta_pb.SaveOffsetResult.Status.ValueType(outcome.status.value)
    if outcome.message:
        row.message = outcome.message
    if standing is None:
        return row
    row.epoch, row.offset = standing[:2]
    if standing is not entry.record and standing != entry.record:
        row.metadata, row.committed_at_ms, row.tombstone = standing.metadata, standing.committed_at_ms, not standing.live
        row.topic, row.partition = standing.topic, standing.partition
    return row


def save_outcome(entry: SaveEntry, row: meta_pb.SaveOffsetResult) -> SaveOutcome:
    """The outcome in one row of a reply. Raises ValueError for an unknown status, MetaUnavailableError as `check_record`."""
    if row.status == meta_pb.SaveOffsetResult.APPLIED:
        # Only the epoch can differ from the entry sent: epoch 0 became the stored one.
        record, epoch = entry.record, row.epoch
        if record.epoch == epoch:
            return SaveOutcome(Status.APPLIED, record)
        standing = record._replace(epoch=epoch)
        check_record(entry.key, standing)
        return SaveOutcome(Status.APPLIED, standing)
    status = Status(row.status)
    standing = OffsetRecord(row.epoch, row.offset, not row.tombstone, row.committed_at_ms, row.metadata, row.topic, row.partition)
    check_record(entry.key, standing)
    return SaveOutcome(status, standing if row.epoch else None, row.message)


async def outcomes_of(entries: Sequence[SaveEntry], reply: meta_pb.SaveOffsetDataReply) -> list[SaveOutcome]:
    """The outcomes in a reply, one for each entry. Raises MetaUnavailableError for a reply that does not fit the request.

    A server without epochs replies with `committed` alone: True if every expected offset was met.
    """
    if not reply.results:
        return [_outcome_without_row(entry, committed=reply.committed) for entry in entries]
    if len(reply.results) != len(entries):
        raise MetaUnavailableError(f"answered {len(reply.results)} results to {len(entries)} entries")
    outcomes: list[SaveOutcome] = []
    async for entry_slice in in_slices(entries):
        rows = reply.results[len(outcomes) : len(outcomes) + len(entry_slice)]
        outcomes += [_outcome_in_row(entry, row) for entry, row in zip(entry_slice, rows, strict=True)]
    return outcomes


def _outcome_without_row(entry: SaveEntry, *, committed: bool) -> SaveOutcome:
    if entry.expected_offset is None or committed:
        return SaveOutcome(Status.APPLIED, as_seen(entry.record, None))
    return SaveOutcome(Status.CONFLICT, None, "this one, or another of the same save, was not as expected")


def _outcome_in_row(entry: SaveEntry, row: meta_pb.SaveOffsetResult) -> SaveOutcome:
    try:
        return save_outcome(entry, row)
    except ValueError:
        return SaveOutcome(Status.INVALID, None, f"the Meta Service answered with the unknown status {row.status}")


def reply_offset(key: OffsetKey, record: OffsetRecord) -> meta_pb.GetOffsetDataReplyOffset:
    """A stored offset as the get and list replies carry it."""
    return meta_pb.GetOffsetDataReplyOffset(
        namespace=key.namespace,
        shard_name=key.shard,
        offset=record.offset,
        topic=record.topic or key.shard,
        partition=record.partition,
        epoch=record.epoch,
        metadata=record.metadata,
        committed_at_ms=record.committed_at_ms,
        tombstone=not record.live,
    )


def row_of(key: OffsetKey, item: meta_pb.GetOffsetDataReplyOffset) -> tuple[OffsetKey, OffsetRecord] | None:
    """A row of a get or list reply; None under a name that no adapter takes. RobustMQ takes any; such a topic is left out.

    A server without epochs sends epoch 0; see `as_seen`. Raises MetaUnavailableError for a record that cannot be right.
    """
    namespace, group, shard = key
    if not (_is_name(shard) and _are_names(namespace, group)):
        return None
    epoch, metadata, topic = item.epoch, item.metadata, item.topic
    if topic == item.shard_name or not _is_name(topic):
        topic = ""
    if epoch > EPOCH_MAX or len(metadata) > _PLAIN_METADATA:
        _check(key, epoch, metadata)
    return key, OffsetRecord(epoch, item.offset, not item.tombstone, item.committed_at_ms, metadata, topic, item.partition)


def group_of(namespace: str, group: str) -> GroupKey | None:
    """A group that a reply names; None under a name that no adapter takes."""
    return GroupKey(namespace, group) if _are_names(namespace, group) else None


def check_record(key: OffsetKey, record: OffsetRecord) -> None:
    """Raise MetaUnavailableError for a record that no Meta Service stores."""
    _check(key, record.epoch, record.metadata)
    if record.topic and not _is_name(record.topic):
        raise _impossible(key, "a topic that is no name")


def _check(key: OffsetKey, epoch: int, metadata: str) -> None:
    if epoch > EPOCH_MAX:
        raise _impossible(key, f"the epoch {epoch}")
    if len(metadata) > _PLAIN_METADATA and len(metadata.encode()) > METADATA_MAX_BYTES:
        raise _impossible(key, f"{len(metadata.encode())} bytes of metadata")


def _impossible(key: OffsetKey, what: str) -> MetaUnavailableError:
    return MetaUnavailableError(f"answered for {'/'.join(key)} with {what}, which no Meta Service stores")


@lru_cache(maxsize=8)  # a reply has the rows of a group one after the other
def _are_names(namespace: str, group: str) -> bool:
    return _is_name(namespace) and _is_name(group)


def _is_name(text: str) -> bool:
    """Whether an adapter takes this name. Most are short and printable, which is seen at once."""
    return (0 < len(text) <= _PLAIN_NAME and text.isprintable()) or not name_problem(text)

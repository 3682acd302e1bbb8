"""The Meta Service's wire form <-> model, for both of its ends.

Older RobustMQ knows `namespace`, newer `tenant`: both are written, either is read.
"""

from collections.abc import Iterable, Sequence

from adapter.model.records import DEFAULT_NAMESPACE, OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status
from adapter.rpc import meta_pb
from adapter.runtime.slices import in_slices


def namespace_of(namespace: str, tenant: str) -> str:
    """The namespace that a request names, by its old or its new field."""
    return namespace or tenant or DEFAULT_NAMESPACE


async def save_request(cluster: str, entries: Sequence[SaveEntry]) -> meta_pb.SaveOffsetDataRequest:
    """A save, with one message per run of entries of a group."""
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
                # Newer RobustMQ requires a topic. So it refuses a tombstone, should one ever get there.
                topic=record.topic or (key.shard if record.live else ""),
                partition=record.partition,
                expected_offset=expected,
                epoch=record.epoch,
                metadata=record.metadata,
                committed_at_ms=record.committed_at_ms,
                tombstone=not record.live,
            )
    return request


def save_entries(request: meta_pb.SaveOffsetDataRequest, now_ms: int) -> Iterable[SaveEntry]:
    """The entries of a save, unchecked. One that does not say when it was committed was so now."""
    for group in request.offsets:
        for item in group.offsets:
            yield SaveEntry(
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


def add_result(reply: meta_pb.SaveOffsetDataReply, entry: SaveEntry, outcome: SaveOutcome) -> None:
    """Append the row of one entry."""
    standing = outcome.standing
    namespace, group, shard = entry.key
    row = reply.results.add()
    row.group, row.namespace, row.shard_name = group, namespace, shard
    row.status = meta_pb.SaveOffsetResult.Status.ValueType(outcome.status.value)
    if outcome.message:
        row.message = outcome.message
    if standing is None:
        return
    row.epoch, row.offset = standing[:2]
    if standing is not entry.record and standing != entry.record:
        row.metadata, row.committed_at_ms, row.tombstone = standing.metadata, standing.committed_at_ms, not standing.live
        row.topic, row.partition = standing.topic, standing.partition


def save_outcome(entry: SaveEntry, row: meta_pb.SaveOffsetResult) -> SaveOutcome:
    """The outcome in one row of a reply."""
    if row.status == meta_pb.SaveOffsetResult.APPLIED:
        # Only the epoch can differ from what was sent: epoch 0 took the stored one.
        record, epoch = entry.record, row.epoch
        return SaveOutcome(Status.APPLIED, record if record.epoch == epoch else record._replace(epoch=epoch))
    status = Status(row.status)
    standing = OffsetRecord(row.epoch, row.offset, not row.tombstone, row.committed_at_ms, row.metadata, row.topic, row.partition)
    return SaveOutcome(status, standing if row.epoch else None, row.message)


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


def record_of(item: meta_pb.GetOffsetDataReplyOffset) -> OffsetRecord:
    """The record in a get or list reply. A server without epochs sends epoch 0: see `model.as_seen`."""
    return OffsetRecord(
        item.epoch,
        item.offset,
        not item.tombstone,
        item.committed_at_ms,
        item.metadata,
        "" if item.topic == item.shard_name else item.topic,
        item.partition,
    )

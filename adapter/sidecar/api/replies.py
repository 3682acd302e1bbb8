"""Model -> rows of the local API's replies."""

from collections.abc import Sequence
from functools import reduce

from adapter.model.bounds import Bounds
from adapter.model.records import OffsetKey, OffsetRecord, as_seen, epoch_warning, meet
from adapter.rpc import offsets_pb
from adapter.runtime.slices import in_slices
from adapter.sidecar.engine.history import Noted, Place
from adapter.sidecar.engine.reset_plans import OffsetChange
from adapter.sidecar.engine.resets import Outcome
from adapter.sidecar.ledger.operations import Commit, Standing
from adapter.sidecar.ledger.rules import Holds


def superseded_rows(commit: Commit, standing: Sequence[Standing], holds: Holds) -> list[offsets_pb.Superseded]:
    """The rows of a reply: entries below a larger (epoch, offset) that stands; its offset may be lower."""
    offered = dict(commit.offered()) if standing else {}
    return [
        offsets_pb.Superseded(
            namespace=key.namespace,
            group=key.group,
            shard=key.shard,
            epoch=record.epoch,
            offset=record.offset,
            deleted=not record.live,
            held=holds.stops(record),
        )
        for key, record, _ in standing
        if record is not None and _superseded(offered[key], record)
    ]


def raised_rows(standing: Sequence[Standing]) -> list[offsets_pb.Raised]:
    """The rows of a reply: entries that were applied in a new epoch."""
    return [
        offsets_pb.Raised(namespace=key.namespace, group=key.group, shard=key.shard, epoch=record.epoch)
        for key, record, raised in standing
        if raised and record
    ]


def _superseded(offered: OffsetRecord, stands: OffsetRecord) -> bool:
    if stands.offset != offered.offset or not stands.live:
        return True
    # At the same offset: in an epoch that the consumer has not seen, and not by its own commit.
    return 0 < offered.epoch < stands.epoch and stands.committed_at_ms != offered.committed_at_ms


def shard_offset(key: OffsetKey, record: OffsetRecord, *, dirty: bool, held: bool = False) -> offsets_pb.ShardOffset:
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
        deleted=not record.live,
        held=held,
    )


def describe_row(
    key: OffsetKey,
    local: OffsetRecord | None,
    remote: OffsetRecord | None,
    bounds: Bounds | None,
    holds: Holds,
    *,
    dirty: bool,
) -> offsets_pb.DescribeGroupReply.Shard:
    """A row of a described group; labels and lag are those of the larger of both records.

    An offset of a server without epochs is shown in the epoch in which it is compared.
    """
    if remote:
        remote = as_seen(remote, local)
    newest = reduce(meet, [record for record in (local, remote) if record])
    row = offsets_pb.DescribeGroupReply.Shard(
        shard=key.shard,
        local=_position(local),
        remote=_position(remote),
        dirty=dirty,
        metadata=newest.metadata,
        committed_at_ms=newest.committed_at_ms,
        topic=newest.topic,
        partition=newest.partition,
        warning=epoch_warning(newest.epoch),
        held_until_ms=holds.until_ms(newest) or None,
    )
    if bounds:
        row.low_watermark, row.high_watermark = bounds.low, bounds.high
        if newest.live and bounds.end_before(newest.offset, newest.committed_at_ms):
            row.warning = row.warning or (
                f"is beyond the end of its log, {bounds.high}: the log was made anew, or has lost its end. Commits below "
                f"{newest.offset} change nothing; a reset moves it back"
            )
        elif newest.live:
            row.lag = bounds.lag(newest.offset)
    return row


async def change_reply(outcome: Outcome) -> offsets_pb.ChangeReply:
    """The rows of a change, made in slices."""
    reply = offsets_pb.ChangeReply(
        executed=outcome.executed, warnings=outcome.warnings, change_id=outcome.change_id, planned_at_ms=outcome.planned_ms
    )
    async for changes in in_slices(outcome.changes):
        reply.rows.extend(map(change_row, changes))
    return reply


def change_row(change: OffsetChange) -> offsets_pb.ChangeReply.Row:
    """The row of one shard of a change."""
    return offsets_pb.ChangeReply.Row(
        namespace=change.key.namespace,
        group=change.key.group,
        shard=change.key.shard,
        before=_position(change.before),
        after=_position(change.after),
        changed=change.changes,
        warning=change.warning,
    )


def noted_change(noted: Noted) -> offsets_pb.ListChangesReply.Change:
    """A change of the history."""
    change = offsets_pb.ListChangesReply.Change(
        at_ms=noted.at_ms, kind=noted.kind, namespace=noted.group.namespace, group=noted.group.group, shards=noted.shards
    )
    if noted.caller:
        change.who, change.claimed, change.peer = noted.caller
    for shard, (before, after) in noted.rows.items():
        row = change.rows.add(namespace=noted.group.namespace, group=noted.group.group, shard=shard, changed=True)
        if before:
            row.before.CopyFrom(_place(before))
        if after:
            row.after.CopyFrom(_place(after))
    return change


def _place(place: Place) -> offsets_pb.Position:
    return offsets_pb.Position(epoch=place.epoch, offset=place.offset, deleted=not place.live)


def _position(record: OffsetRecord | None) -> offsets_pb.Position | None:
    return offsets_pb.Position(epoch=record.epoch, offset=record.offset, deleted=not record.live) if record else None

"""The command `status`: an adapter's state as a table of sentences, or as JSON."""

from collections.abc import Iterator

import click

from adapter.cli import options, watch
from adapter.cli.connection import Target, connected, run
from adapter.cli.output import Form, as_dict, enum_name, show_object, when
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted


@click.command(cls=watch.WatchCommand)
@watch.option
@options.target
@options.form
def status(target: Target, form: Form, every_s: float | None) -> None:
    """Show the adapter's state, and which offsets a crash could lose. Exit code 1 unless it is serving."""
    watch.look(lambda: run(_status, target, form), every_s)


async def _status(target: Target, form: Form) -> bool:
    """Print the status; True if the adapter is serving."""
    async with connected(target) as client:
        reply = await client.status()
    show_object(form, as_dict(reply), status_rows(reply))
    return reply.state == offsets_pb.StatusReply.SERVING


def status_rows(reply: offsets_pb.StatusReply) -> Iterator[tuple[str, str]]:
    """The reply as rows of (what, value)."""
    state = enum_name(offsets_pb.StatusReply.State.DESCRIPTOR, reply.state).lower()
    yield "state", f"{state}: {reply.reason}" if reply.reason else state
    yield "version, up for", f"{reply.version}, {reply.uptime_seconds:,.0f} s"
    yield "mode", ", ".join([reply.mode, *reply.policies])
    yield "local store", f"{reply.store_path}, about {counted(reply.stored_keys, 'key')}"
    yield "commits, save calls", f"{reply.commits:,}, {reply.save_calls:,}"
    dirty = counted(reply.dirty_keys, "key")
    yield "dirty", f"{dirty}, oldest {reply.oldest_dirty_seconds:.1f} s, refused {reply.refused_keys:,}"
    yield "wal_sync", f"{reply.wal_sync}: {reply.at_risk}; now {counted(reply.unsynced_writes, 'write')}"
    yield "Meta Service", f"{reply.meta_endpoint} ({'answers' if reply.meta_available else 'does not answer'})"
    flush = f"{when(reply.last_flush_at_ms)}, {reply.last_flush_seconds * 1000:.1f} ms" if reply.last_flush_at_ms else "none yet"
    yield "last flush", "; ".join(filter(None, [flush, reply.last_flush_error, reply.flush_pace]))
    yield "clock", _clock_text(reply)
    if reply.HasField("changes_elsewhere"):
        yield "changes elsewhere", _elsewhere_text(reply.changes_elsewhere)
    recovery = reply.recovery
    counts = ", ".join(f"{name} {getattr(recovery, name):,}" for name in ("compared", "pushed", "adopted", "equal", "failed"))
    done = "done" if recovery.done else f"not done (of {counted(recovery.of, 'key')})"
    yield "recovery", f"{done} in {recovery.seconds:.1f} s: {counts}"
    yield from _part_rows(reply)
    if reply.HasField("store"):
        store = reply.store
        yield "store", f"{store.id} of broker {store.broker}, newest write {store.seq:,}, flushed up to {store.flushed_seq:,}"
        if store.disk_full:
            yield "DISK FULL", "commits are refused: free some space on the local store's file system"
    if reply.HasField("loss"):
        writes = counted(reply.loss.writes, "acknowledged write")
        yield "LOSS", f"up to {writes} missing, found {when(reply.loss.found_at_ms)}: {reply.loss.why}"
    for sentence in reply.weaker:
        yield "weaker here", sentence
    if reply.meta_losses:
        times = f"{counted(reply.meta_losses, 'time')} since the start, last {when(reply.meta_loss_at_ms)}"
        yield "META LOSS", f"the Meta Service held less than it had acknowledged, {times}: {reply.meta_loss}"


def _part_rows(reply: offsets_pb.StatusReply) -> Iterator[tuple[str, str]]:
    """The rows of what not every adapter has."""
    if reply.HasField("config"):
        yield "configuration", _config_text(reply.config)
    if reply.HasField("journal"):
        yield "journal", _journal_text(reply.journal)
    if reply.HasField("rocketmq"):
        yield "RocketMQ broker", _rocketmq_text(reply.rocketmq)
    if reply.HasField("robustmq"):
        yield "RobustMQ broker", _robustmq_text(reply.robustmq)


def _clock_text(reply: offsets_pb.StatusReply) -> str:
    seconds = reply.clock_skew_seconds
    text = f"{abs(seconds):,.1f} s {'ahead of' if seconds > 0 else 'behind'} the Meta Service's"
    return f"WRONG here or there: {text}; nothing expires through this adapter" if reply.clock_is_off else text


def _elsewhere_text(told: offsets_pb.ChangesElsewhereStatus) -> str:
    until = f"known up to {when(told.told_at_ms)}" if told.told_at_ms else "none known yet"
    parts = [f"{until}, of {counted(told.groups, 'group')}"]
    if told.comparing:
        parts.append("all local keys are being compared")
    if told.problem:
        parts.append(f"NOT TOLD now: {told.problem}")
    return "; ".join(parts)


def _rocketmq_text(broker: offsets_pb.RocketmqStatus) -> str:
    name = " ".join(filter(None, [broker.broker, broker.version, f"at {broker.address}"]))
    if not broker.connected:
        if broker.slave:
            return f"{name}: is a slave, and the adapter of its master commits"
        return f"{name}: NOT CONNECTED: {broker.last_error or 'it was not reached yet'}"
    return f"{name}: {counted(broker.offsets, 'offset')}, read every {broker.poll_interval_seconds:.2f} s"


def _robustmq_text(front: offsets_pb.RobustmqStatus) -> str:
    calls = f"{front.saves:,} saves, {front.reads:,} reads, {front.deletes:,} deletes, {front.forwarded:,} other calls passed on"
    parts = [f"calls {front.listen}: {calls}"]
    if front.problem:
        parts.append(f"CANNOT WORK: {front.problem}")
    if front.unreachable:
        parts.append(f"NOT REACHED: {', '.join(front.unreachable)}")
    if not front.broker:
        parts.append("is not told of resets: robustmq.broker is empty")
    elif front.untold_groups:
        groups = counted(front.untold_groups, "group")
        parts.append(f"NOT TOLD of {groups} that changed: {front.broker_error or 'it is being told'}")
    return "; ".join(parts)


def _config_text(config: offsets_pb.ConfigStatus) -> str:
    parts = [f"{config.path}, read {when(config.read_at_ms)}, sha256 {config.sha256[:12]}"]
    if config.differs:
        parts.append("THE FILE ON DISK DIFFERS: `offset-adapter reload` takes it")
    if config.needs_restart:
        parts.append(f"needs a restart: {', '.join(config.needs_restart)}")
    if config.last_error:
        parts.append(f"the last reload was REFUSED: {config.last_error}")
    if config.files_error:
        parts.append(f"replaced files are NOT TAKEN: {config.files_error}")
    return "; ".join(parts)


def _journal_text(journal: offsets_pb.JournalStatus) -> str:
    size = f"{counted(journal.segments, 'segment')} of {journal.bytes / 2**20:,.1f} MiB"
    text = f"{journal.path}, {counted(journal.rows, 'row')} since the start, {size}"
    if journal.deleted_segments:
        text += f", {journal.deleted_segments:,} old ones deleted"
    if journal.dropped_rows:
        text += f", {counted(journal.dropped_rows, 'row')} dropped"
    return f"{text}; {journal.last_error}" if journal.last_error else text

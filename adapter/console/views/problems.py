"""What is wrong, as sentences with what to do next. Pure: no clock, no I/O. The worst comes first."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from adapter.console.sources.meta_instances import MetaInstance, RaftSituation
from adapter.fleet.views import AdapterView, Health
from adapter.look.shown import name, seconds, when
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import CLOCK_LIMIT_MS
from adapter.runtime.wording import counted

Level = Literal["bad", "poor", "note"]
LEVELS: Sequence[Level] = ("bad", "poor", "note")

DIRTY_OLD_S = 60.0  # far above any flush interval and backoff: something holds flushes up
NAMED = 5  # adapters that one sentence names


class Problem(NamedTuple):
    """`kind`: a stable word for scripts. `subject`: the adapter, instance or Raft group; empty: the whole fleet."""

    level: Level
    kind: str
    subject: str
    text: str
    todo: str


def problems(
    adapters: Sequence[AdapterView],
    unresolved: Sequence[str],
    meta: Sequence[MetaInstance],
    raft: RaftSituation | None,
    groups: Mapping[str, int] = MappingProxyType({}),
) -> list[Problem]:
    """All problems, the worst first, in the order of their subjects otherwise.

    `unresolved`: entries of the fleet's settings that lead to no adapter, and why. `groups`: how many have each status.
    """
    found = [
        *(
            Problem("bad", "not-found", "", f"{text}.", "Look at fleet.adapters in the console's settings, and at the DNS.")
            for text in unresolved
        ),
        *(problem for adapter in adapters for problem in _of_adapter(adapter)),
        *_of_fleet(adapters),
        *(problem for instance in meta for problem in _of_instance(instance)),
        *_of_meta(meta),
        *(_of_raft(raft) if raft else ()),
        *_of_groups(groups),
    ]
    return sorted(found, key=lambda problem: LEVELS.index(problem.level))


def _of_groups(groups: Mapping[str, int]) -> Iterator[Problem]:
    if beyond := groups.get("beyond", 0):
        yield Problem(
            "bad",
            "groups-beyond",
            "",
            f"{counted(beyond, 'group')} with an offset beyond the end of its log: what its consumers commit changes nothing.",
            "The log was made anew, or has lost its end. Reset these shards to where they should begin in the log as it is now; "
            "the page of groups has them first.",
        )
    stuck = {word: groups.get(word, 0) for word in ("stop", "stall")}
    if any(stuck.values()):
        counts = ", ".join(f"{number} {word.upper()}" for word, number in stuck.items() if number)
        yield Problem(
            "poor",
            "groups-stuck",
            "",
            f"{counted(sum(stuck.values()), 'group')} with messages to read and no progress: {counts}.",
            "Look at their consumers: STOP commits no more, STALL commits the same offset. The page of groups has them first.",
        )


def _of_adapter(adapter: AdapterView) -> Iterator[Problem]:
    who = adapter.name
    yield from _of_health(adapter)
    if adapter.health is Health.AWAY:
        return  # what it said before is not news
    if adapter.status is None:
        if adapter.status_error:
            yield Problem(
                "poor",
                "status-unknown",
                who,
                f"Its state cannot be read: {adapter.status_error}",
                "Give the console the adapter's admin token: fleet.token_file, with fleet.tls.",
            )
    else:
        for check in (_of_recovery, _of_disk, _of_losses, _of_flushes, _of_config, _of_parts):
            yield from check(who, adapter.status)
    if not adapter.lag_known and adapter.lag_error:
        yield Problem(
            "poor",
            "lag-unknown",
            who,
            f"Its lag is not known: {adapter.lag_error}",
            "Groups that only it has are missing or old on these pages. "
            "An adapter of an earlier version, or with lag.shards = 0, tells none.",
        )
    if adapter.bounds_error:
        yield Problem(
            "poor",
            "bounds-unknown",
            who,
            f"Its broker does not tell where its logs end: {adapter.bounds_error}",
            "Lag is unknown or too small meanwhile. Look at the broker, and at [broker_log] of the adapter.",
        )
    if adapter.forgotten_shards:
        yield Problem(
            "note",
            "shards-forgotten",
            who,
            f"It keeps no lag of {counted(adapter.forgotten_shards, 'shard')} for lack of room.",
            "Raise lag.shards in its settings if these matter.",
        )


def _of_health(adapter: AdapterView) -> Iterator[Problem]:
    who, status = adapter.name, adapter.status
    reason = f" {status.reason}" if status and status.reason else ""
    dirty = f" {counted(status.dirty_keys, 'offset')} wait on its disk." if status and status.dirty_keys else ""
    match adapter.health:
        case Health.AWAY:
            since = f" since {when(adapter.away_since_ms)}" if adapter.away_since_ms else ""
            seen = f" It was seen last {when(adapter.seen_at_ms)}." if adapter.seen_at_ms else " It was never seen."
            yield Problem(
                "bad",
                "adapter-away",
                who,
                f"It does not answer{since}: {adapter.error or 'no reason is known'}.{seen}",
                f"Look whether the process runs beside its broker, and whether {adapter.address} can be reached from here. "
                "What it acknowledged is on its disk, and is sent when it starts again.",
            )
        case Health.FAILED:
            yield Problem(
                "bad",
                "adapter-failed",
                who,
                f"Its local store failed; commits are refused.{reason}",
                "Look at its disk and its log. It opens the store again by itself; "
                "if it cannot, `offset-adapter repair` on that machine.",
            )
        case Health.DEGRADED:
            yield Problem(
                "bad",
                "adapter-degraded",
                who,
                f"It does not reach the Meta Service: commits are taken, reads of the store are refused.{dirty}{reason}",
                "Look at the Meta Service below, and at the network between the two. The adapter goes on by itself.",
            )
        case Health.RECOVERING | Health.STARTING:
            yield Problem(
                "poor",
                "adapter-recovering",
                who,
                f"It is {adapter.health.value}.{dirty}{reason}",
                "Wait; if the count does not move, look at its log and at the Meta Service.",
            )
        case Health.STOPPING:
            yield Problem("poor", "adapter-stopping", who, f"It is stopping.{dirty}", "Wait, or see why it was stopped.")
        case Health.SERVING:
            return


def _of_recovery(who: str, status: offsets_pb.StatusReply) -> Iterator[Problem]:
    if status.state == offsets_pb.StatusReply.SERVING and status.HasField("recovery") and not status.recovery.done:
        compared = f"{status.recovery.compared:,} of {counted(status.recovery.of, 'offset')}"
        yield Problem(
            "note",
            "adapter-comparing",
            who,
            f"It has compared {compared} with the Meta Service, and goes on. A read has its own group compared first.",
            "Wait; if the count does not move, look at its log and at the Meta Service.",
        )


def _of_disk(who: str, status: offsets_pb.StatusReply) -> Iterator[Problem]:
    if status.store.disk_full:
        yield Problem(
            "bad",
            "disk-full",
            who,
            "The file system of its local store is full: commits are refused.",
            f"Free some space at {status.store_path}, or give it more. The adapter goes on by itself then.",
        )


def _of_losses(who: str, status: offsets_pb.StatusReply) -> Iterator[Problem]:
    if status.HasField("loss"):
        writes = counted(status.loss.writes, "acknowledged write")
        yield Problem(
            "bad",
            "adapter-loss",
            who,
            f"Up to {writes} were missing when its store was opened {when(status.loss.found_at_ms)}: {status.loss.why}",
            "Its groups may read messages again. See which disk or copy that store was on.",
        )
    if status.meta_losses:
        yield Problem(
            "bad",
            "meta-lost",
            who,
            f"It found the Meta Service with less than that had acknowledged, last {when(status.meta_loss_at_ms)}: "
            f"{status.meta_loss}",
            "The adapters have sent again what they hold. See whether an old copy of its store was restored.",
        )
    told = status.changes_elsewhere
    if told.problem and status.meta_available and not status.weaker:
        yield Problem(
            "poor" if told.told_at_ms else "note",
            "changes-not-told",
            who,
            f"It does not learn now which groups others reset or delete: {told.problem}.",
            "Its rows may be as they were before; `groups describe` shows what the Meta Service holds.",
        )
    if status.clock_is_off:
        ahead = "ahead of" if status.clock_skew_seconds > 0 else "behind"
        yield Problem(
            "bad",
            "clock-off",
            who,
            f"Its clock is {seconds(abs(status.clock_skew_seconds))} {ahead} the Meta Service's; it expires nothing.",
            "Set both clocks by NTP.",
        )


def _of_flushes(who: str, status: offsets_pb.StatusReply) -> Iterator[Problem]:
    if status.state == offsets_pb.StatusReply.DEGRADED:
        return  # said already
    if status.last_flush_error:
        yield Problem(
            "bad",
            "flush-failing",
            who,
            f"Its last flush failed: {status.last_flush_error}",
            f"{counted(status.dirty_keys, 'offset')} wait on its disk. Look at the Meta Service below.",
        )
    if status.dirty_keys and status.oldest_dirty_seconds > DIRTY_OLD_S:
        pace = f" {status.flush_pace}" if status.flush_pace else ""
        yield Problem(
            "bad",
            "dirty-old",
            who,
            f"Its oldest offset that is not in the Meta Service is {seconds(status.oldest_dirty_seconds)} old.{pace}",
            "If the Meta Service answers, `offset-adapter groups describe` names the shards and why they are refused.",
        )
    if status.refused_keys:
        yield Problem(
            "poor",
            "keys-refused",
            who,
            f"The Meta Service refuses {counted(status.refused_keys, 'offset')} of it.",
            "Its log names them (flush.refused) with the reason.",
        )


def _of_config(who: str, status: offsets_pb.StatusReply) -> Iterator[Problem]:
    config = status.config
    if config.last_error:
        yield Problem(
            "poor",
            "reload-refused",
            who,
            f"Its last reload was refused: {config.last_error}",
            "Correct the file and reload again.",
        )
    if config.files_error:
        yield Problem(
            "poor",
            "files-refused",
            who,
            f"Replaced certificates or tokens are not taken: {config.files_error}",
            "Correct the files.",
        )
    if config.differs:
        yield Problem(
            "poor",
            "config-differs",
            who,
            f"The file {name(config.path)} has other content than what is in force.",
            "`offset-adapter reload` takes it, or put the old file back.",
        )
    if config.needs_restart:
        yield Problem(
            "poor",
            "needs-restart",
            who,
            f"Settings wait for a restart: {', '.join(config.needs_restart)}.",
            "Restart it when its broker can bear it; commits survive.",
        )


def _of_parts(who: str, status: offsets_pb.StatusReply) -> Iterator[Problem]:
    journal, rocketmq = status.journal, status.rocketmq
    if journal.dropped_rows or journal.last_error:
        why = f": {journal.last_error}" if journal.last_error else ""
        yield Problem(
            "poor",
            "journal-dropped",
            who,
            f"Its journal lost {counted(journal.dropped_rows, 'row')} since the start{why}.",
            "Offsets are not concerned; statistics have a gap. Look at the journal's disk.",
        )
    if status.HasField("rocketmq") and not rocketmq.connected and not rocketmq.slave:
        yield Problem(
            "bad",
            "broker-away",
            who,
            f"It does not reach its RocketMQ broker {rocketmq.address}: {rocketmq.last_error or 'not reached yet'}",
            "Offsets of that broker are not kept meanwhile. Look at the broker.",
        )
    yield from _of_front(who, status.robustmq)
    for sentence in status.weaker:
        yield Problem("note", "weaker", who, sentence, "This is so with this Meta Service; docs/robustmq.md says what it means.")


def _of_front(who: str, front: offsets_pb.RobustmqStatus) -> Iterator[Problem]:
    """What the adapter does for a RobustMQ broker; nothing, for one that does nothing for any."""
    if front.problem:
        yield Problem("bad", "robustmq-missing", who, f"It stands before no RobustMQ: {front.problem}.", "Correct its settings.")
    if front.unreachable:
        yield Problem(
            "poor",
            "robustmq-nodes-away",
            who,
            f"It does not reach nodes of RobustMQ's Meta Service: {', '.join(front.unreachable)}.",
            "The broker's other calls go to the next node. Look at these, and at the network between.",
        )
    if front.untold_groups and front.broker_error:
        yield Problem(
            "poor",
            "robustmq-broker-away",
            who,
            f"Its RobustMQ broker {front.broker} is not told of {counted(front.untold_groups, 'group')} that others changed: "
            f"{front.broker_error}",
            "It answers with the offsets from before meanwhile. Look at the broker, and at robustmq.broker.",
        )


def _of_fleet(adapters: Sequence[AdapterView]) -> Iterator[Problem]:
    if not adapters:
        yield Problem(
            "bad",
            "no-adapters",
            "",
            "No adapter is known.",
            "Name them in fleet.adapters, or see whether the DNS name there has addresses.",
        )
        return
    here = [adapter for adapter in adapters if adapter.health is not Health.AWAY]
    yield from _split(here, "versions-differ", "versions", lambda adapter: adapter.version, lonely=True)
    yield from _split(
        here,
        "configs-differ",
        "configuration files",
        lambda adapter: adapter.status.config.sha256[:12] if adapter.status else "",
        lonely=False,
    )


def _split(
    adapters: Sequence[AdapterView], kind: str, what: str, of: Callable[[AdapterView], str], *, lonely: bool
) -> Iterator[Problem]:
    """Adapters that differ from most. Without `lonely`, only if some agree: settings with a name of the adapter always differ."""
    by_value: dict[str, list[str]] = defaultdict(list)
    for adapter in adapters:
        if value := of(adapter):
            by_value[value].append(adapter.name)
    counts = Counter({value: len(who) for value, who in by_value.items()})
    ranked = counts.most_common()
    if len(ranked) < 2 or (not lonely and ranked[0][1] < 2):  # noqa: PLR2004 - they differ
        return
    others = "; ".join(f"{value}: {_named(by_value[value])}" for value, _ in ranked[1 : NAMED + 1])
    yield Problem(
        "poor",
        kind,
        "",
        f"Adapters run with {len(ranked)} different {what}. Most have {ranked[0][0]}; others: {others}.",
        "Finish the roll-out, or see why these were left out.",
    )


def _named(who: Sequence[str]) -> str:
    more = f" and {len(who) - NAMED:,} more" if len(who) > NAMED else ""
    return ", ".join(name(one) for one in sorted(who)[:NAMED]) + more


def _of_instance(instance: MetaInstance) -> Iterator[Problem]:
    who, status = instance.address, instance.status
    if instance.error:
        seen = f" It answered last {when(instance.answered_at_ms)}." if instance.answered_at_ms else ""
        yield Problem(
            "bad",
            "meta-away",
            who,
            f"This Meta Service does not answer: {instance.error}.{seen}",
            "Look whether it runs. Adapters go on with another instance, or keep offsets on their disks until one is back.",
        )
        return
    if status is None:
        return
    if status.HasField("loss"):
        yield Problem(
            "bad",
            "meta-loss",
            who,
            f"About {counted(status.loss.writes, 'acknowledged write')} of its store were missing, "
            f"found {when(status.loss.found_at_ms)}.",
            "The adapters have sent again what they hold. `offset-adapter meta status` has the details.",
        )
    if abs(instance.ahead_ms) > CLOCK_LIMIT_MS:
        ahead = "ahead of" if instance.ahead_ms > 0 else "behind"
        yield Problem(
            "poor",
            "meta-clock",
            who,
            f"Its clock is {seconds(abs(instance.ahead_ms) / 1000)} {ahead} that of the console's machine.",
            "Set both clocks by NTP.",
        )


def _of_meta(instances: Sequence[MetaInstance]) -> Iterator[Problem]:
    answering = [instance for instance in instances if instance.available and instance.status]
    versions = sorted({instance.status.version for instance in answering if instance.status})
    if len(versions) > 1:
        yield Problem(
            "poor",
            "meta-versions-differ",
            "",
            f"The Meta Service's instances run different versions: {', '.join(versions)}.",
            "Finish the roll-out.",
        )
    stores: dict[str, set[bytes]] = defaultdict(set)
    for instance in answering:
        for mark in instance.status.marks if instance.status else ():
            stores[mark.name].add(mark.store_id)
    if any(len(ids) > 1 for ids in stores.values()):
        yield Problem(
            "bad",
            "meta-stores-differ",
            "",
            "The Meta Service's instances have different stores, so each has other offsets.",
            "Name only instances of one Meta Service in meta.endpoints; adapters must not change between these.",
        )


def _of_raft(raft: RaftSituation) -> Iterator[Problem]:
    if raft.error:
        yield Problem(
            "bad",
            "raft-unknown",
            "",
            f"The Raft groups of etcd cannot be read: {raft.error}",
            "Look at etcd and at meta.raft_config.",
        )
        return
    for text in raft.problems:
        group, _, what = text.partition(": ")
        leaderless = "no leader" in text
        yield Problem(
            "bad" if leaderless else "poor",
            "raft-leaderless" if leaderless else "raft-misplaced",
            group,
            f"{what[:1].upper()}{what[1:]}.",
            "Look at the members below; `offset-adapter meta placement balance` moves leaders.",
        )
    for one in raft.groups:
        for member in one["members"]:
            if member["state"] == "unreachable":
                yield Problem(
                    "poor",
                    "raft-member-away",
                    one["name"],
                    f"Its member {member['endpoint']} does not answer: {member['problem']}",
                    "Bring that member back before another one of this group fails.",
                )
            elif member["problem"]:
                yield Problem(
                    "bad",
                    "raft-alarm",
                    one["name"],
                    f"Its member {member['endpoint']} has an alarm: {member['problem']}",
                    "With NOSPACE etcd takes no more writes: compact and defragment it, then disarm the alarm; docs/etcd.md.",
                )

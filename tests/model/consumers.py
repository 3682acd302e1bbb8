"""Many consumers that commit one offset at a time through the built-in server: unary calls of some connections, or streams.

What they are told is checked against the broker's disk in that moment, and is owed from then on.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import grpc

from adapter.model.records import ERA_BITS, OffsetKey, OffsetRecord, is_held
from adapter.rpc import offsets_pb
from tests.model.broker import Running, Setup
from tests.model.http2_client import COMMIT, GONE, STREAM, Client, Ended, Told
from tests.model.machines import NOTHING, Held, Machines, held_by
from tests.model.model import known

Codes = grpc.StatusCode
# How a commit may be refused here; anything else is a bug, wherever.
REFUSALS = {code.value[0] for code in (Codes.UNAVAILABLE, Codes.RESOURCE_EXHAUSTED, Codes.FAILED_PRECONDITION, Codes.ABORTED)} | {
    GONE
}

CONNECTIONS = 3


class Way(Enum):
    """How commits come that are there at once."""

    CALLS = "calls of a connection"
    CONNECTIONS = "a call of each of some connections"
    STREAM = "a stream"
    OPEN_STREAM = "a stream that stays open"


class Offer(NamedTuple):
    """What a consumer commits: how much further than what it knows of the key (-1: back); with the epoch that it read, or not."""

    key: OffsetKey
    further: int
    knowing: bool
    overwrite: bool


class Plain(NamedTuple):
    """A commit on its way: what stood when it was sent, and how often the broker had forgotten anything by then."""

    key: OffsetKey
    offset: int
    request: offsets_pb.CommitOffsetsRequest
    before: OffsetRecord | None
    sent_ms: int
    forgets: int


class Consumers(Machines):
    """The machines, with such consumers."""

    def __init__(self, seed: int, setups: Sequence[Setup]) -> None:
        super().__init__(seed, setups)
        self.unanswered = 0  # commits of theirs
        self._epochs: dict[OffsetKey, int] = {}
        self._held: dict[str, Held] = {}

    def commit_together(self, at: int, offers: Sequence[Offer], way: Way, *, apart: bool) -> None:
        """Commits come in one turn of a broker's event loop; `apart`: in two, one right after the other."""
        running = self._running(at)
        if not running or running.dead or not running.grpc_server:
            return
        sent = self._plain(running, offers)
        cut = len(sent) // 2 if apart else len(sent)
        parts = [part for part in (sent[:cut], sent[cut:]) if part]
        self.unanswered += len(sent)

        def come() -> None:
            part = parts.pop(0)
            for client in dict.fromkeys(self._begin(running, part, way)):
                client.send()
            if parts:
                running.read(come)

        running.read(come)

    def _plain(self, running: Running, offers: Sequence[Offer]) -> list[Plain]:
        stored = self._stored(running)
        knows = {key: found.offset for key, found in stored.items()}
        sent = []
        for key, further, knowing, overwrite in offers:
            knows[key] = offset = max(knows.get(key, 0) + further, 0)
            epoch = self._epochs.get(key, 0) if knowing else 0
            self.model.carried(key, epoch)
            group = offsets_pb.GroupCommits(
                namespace=key.namespace,
                group=key.group,
                shards=[offsets_pb.ShardCommit(shard=key.shard, offset=offset, epoch=epoch)],
            )
            mode = offsets_pb.OVERWRITE if overwrite else offsets_pb.INCREASE_ONLY
            request = offsets_pb.CommitOffsetsRequest(groups=[group], mode=mode)
            sent.append(Plain(key, offset, request, stored.get(key), self.now_ms(), running.forgets))
        return sent

    def _begin(self, running: Running, sent: Sequence[Plain], way: Way) -> list[Client]:
        """Begin the calls; returns their connections."""
        if way in {Way.STREAM, Way.OPEN_STREAM}:
            messages = [
                offsets_pb.StreamCommitsRequest(id=number, commit=one.request).SerializeToString()
                for number, one in enumerate(sent)
            ]
            return _called(running, 0, STREAM, messages, self._streaming(running, sent), ends=way is Way.STREAM)
        used = []
        for at, one in enumerate(sent):
            number = at % CONNECTIONS if way is Way.CONNECTIONS else 0
            used += _called(running, number, COMMIT, [one.request.SerializeToString()], self._calling(running, one))
        return used

    def _calling(self, running: Running, one: Plain) -> Told:
        replies: list[offsets_pb.CommitOffsetsReply] = []

        def told(what: bytes | Ended) -> None:
            if not isinstance(what, Ended):
                replies.append(offsets_pb.CommitOffsetsReply.FromString(what))
                return
            self.unanswered -= 1
            if running.dead:
                return
            self._ended(running, what, {0} | REFUSALS)
            if what.status == 0:
                self._acknowledged(running, one, replies.pop().superseded)

        return told

    def _streaming(self, running: Running, sent: Sequence[Plain]) -> Told:
        waiting = deque(enumerate(sent))

        def told(what: bytes | Ended) -> None:
            if isinstance(what, Ended):
                self.unanswered -= len(waiting)
                if not running.dead:
                    self._ended(running, what, REFUSALS if waiting else REFUSALS | {0})
                return
            reply = offsets_pb.StreamCommitsReply.FromString(what)
            answered = [waiting.popleft() for _ in range(min(reply.covers, len(waiting)))]
            self.unanswered -= len(answered)
            if running.dead:
                return
            if not answered or answered[-1][0] != reply.id or (len(answered) > 1 and (reply.code or reply.superseded)):
                self._violation(f"stream: {running.broker.name} answered {reply} to {answered}")
            for _, one in answered if not reply.code else ():
                self._acknowledged(running, one, reply.superseded)
            self._ended(running, Ended(reply.code, reply.message), {0} | REFUSALS)

        return told

    def _ended(self, running: Running, end: Ended, allowed: set[int]) -> None:
        if end.status not in allowed:
            self._violation(f"commit: {running.broker.name} answered a plain commit with {end}")

    def _acknowledged(self, running: Running, one: Plain, rows: Sequence[offsets_pb.Superseded]) -> None:
        """Invariant 1, at this moment: at least this stands on the disk. Of its epoch no more is known than what stood before."""
        if running.forgets != one.forgets:
            return  # what was handed over or expired meanwhile is elsewhere, or began anew
        broker, stands = running.broker, self._stored(running).get(one.key)
        epoch = min(one.before.epoch if one.before else 0, stands.epoch if stands else 0)
        owed = OffsetRecord(epoch, one.offset, committed_at_ms=one.sent_ms)
        for row in rows:
            owed = OffsetRecord(row.epoch, row.offset, live=not row.deleted)
        if stands is None or known(stands) < known(owed):
            self._violation(f"1: {broker.name} acknowledged {one.key} as {owed}; {stands} is stored")
        elif not rows and self._undoes(one, stands):
            self._violation(f"7: {broker.name} took {one.key} without an epoch: {stands} over {one.before}, which is held")
        elif not rows and not self._repeats(one, stands):
            self.model.committed(broker.name, one.key, owed, self.loop.now, through=broker.writes_through(one.key))

    def _repeats(self, one: Plain, stands: OffsetRecord) -> bool:
        """True for a commit without an epoch of the offset that is held: it changes nothing, not even the time."""
        return not one.request.groups[0].shards[0].epoch and is_held(stands.epoch) and one.offset == stands.offset

    def _undoes(self, one: Plain, stands: OffsetRecord) -> bool:
        """True for a commit without an epoch that moved what is held."""
        before, sent = one.before, one.request.groups[0].shards[0]
        if before is None or sent.epoch or not is_held(before.epoch) or one.offset == before.offset:
            return False
        mine = stands.epoch >> ERA_BITS == before.epoch >> ERA_BITS and stands.offset == one.offset
        return mine and self.model.is_held(one.key, before, self.now_ms())

    def _stored(self, running: Running) -> dict[OffsetKey, OffsetRecord]:
        broker = running.broker
        held = self._held[broker.name] = held_by(broker, self._held.get(broker.name, NOTHING))
        return {key: found.record for key, found in held.stored.items()}


def _called(
    running: Running, number: int, path: str, messages: Sequence[bytes], told: Told, *, ends: bool = True
) -> list[Client]:
    client = running.client(number)
    if client is None:
        told(Ended(GONE))
        return []
    client.call(path, messages, told, ends=ends)
    return [client]

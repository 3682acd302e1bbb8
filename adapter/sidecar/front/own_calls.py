"""The three calls of offsets that are answered here, as RobustMQ's Meta Service has them.

A save is committed (OVERWRITE, with topic and partition) and answered after the local write; a read is one with STORE; a delete
removes, here first and then in the Meta Service.

What is refused decides by its text whether the broker calls its next address, RobustMQ's own. With a save it does: the group is
not marked again, and the larger offset stands in the end. With a read or a delete it does not: RobustMQ has less than was
acknowledged, and a delete there alone would be undone from here. They are tried for PATIENCE_S, and then refused for good.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar, cast

import grpc
import structlog
from google.protobuf.message import DecodeError

from adapter.errors import AdapterError, InvalidInputError, NotReadyError, TransientError
from adapter.meta.labels import ShardLabels
from adapter.model.names import name_problem
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, ReadMode, SaveEntry
from adapter.rpc import meta_pb, offsets_pb
from adapter.runtime.backoff import pause_s
from adapter.runtime.serving.http2.call import Call, Method
from adapter.runtime.serving.http2.relay import UNAVAILABLE
from adapter.runtime.slices import in_slices, others
from adapter.sidecar.api.commits import Commits
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.front.counts import FrontCounts
from adapter.sidecar.front.notices import Notices
from adapter.sidecar.front.save_parts import SavePiece, check, is_kept_here, parts, pieces
from adapter.sidecar.ledger.operations import Forget

log = structlog.get_logger(__name__)

SERVICE = "/meta.service.common.MetaServiceService"
SAVE_MAX_BYTES = 32 * 2**20  # of a flush: some half a million offsets
LEFT_MAX = 10_000  # groups of which it is remembered that they have shards that are not kept here

# Of a read or a delete, in all. A broker gives a call up after five seconds, and calls its next address then.
PATIENCE_S = 3.0
AGAIN_S, AGAIN_MAX_S = 0.05, 0.5  # pauses between two attempts

DELETES = 3  # rounds of a delete, while saves come in between
FLUSH_S = 0.03  # the broker sends what was committed 20 ms behind the answer to its last flush
SAVING_S = 1.0  # that a delete waits for a save

R = TypeVar("R")
M = TypeVar("M", meta_pb.GetOffsetDataRequest, meta_pb.DeleteOffsetDataRequest)

# By these words a client of RobustMQ calls a leader in place of the address that it has, and remembers it, or its next address
# (`retry_call`). They may stand in a reason of ours, which is of gRPC or of RobustMQ itself.
_WORDS = {
    "forward request to": "another node has to take it",
    "rpc_addr": "its address",
    "tcp connect error": "cannot connect",
    "Connection refused": "the connection was refused",
    "ConnectError": "cannot connect",
    "The service is currently unavailable": "it is away",
    "meta-service node is not currently the raft leader": "the node does not lead",
}
REFUSED = (
    "try again, and see `offset-adapter status`; RobustMQ's own nodes may have less, and the broker asks them only while the "
    "adapter is stopped"
)


class LeftToRobustmqError(NotReadyError):
    """A group whose names are not kept here: the broker's next address has it."""


class OwnCalls:
    """Answers the three calls. `core` gives the store, `committing` does for commits; both raise NotReadyError."""

    def __init__(
        self,
        core: Callable[[], Awaitable[Core]],
        committing: Callable[[], Core],
        commits: Commits,
        labels: ShardLabels,
        notices: Notices,
        counts: FrontCounts,
    ) -> None:
        self._core = core
        self._committing = committing
        self._commits = commits
        self._labels = labels
        self._notices = notices
        self._counts = counts
        self._left: dict[GroupKey, None] = {}  # groups that have shards which are not kept here
        self._saving: set[asyncio.Task[bytes]] = set()

    @property
    def methods(self) -> Mapping[str, Method]:
        """For the server. Requests come as bytes: a large one is parsed in parts."""
        calls = {"SaveOffsetData": self.save, "GetOffsetData": self.read, "DeleteOffsetData": self.delete}
        return {
            f"{SERVICE}/{name}": Method(
                _answering(call, self._counts, final=call != self.save),
                _as_it_is,
                _as_it_is,
                takes_stream=False,
                gives_stream=False,
                call=Call,
            )
            for name, call in calls.items()
        }

    async def save(self, data: bytes) -> bytes:
        """Commit a flush, in pieces. A piece that fails leaves those before it committed: the flush may be sent again.

        Raises AdapterError.
        """
        saving = cast("asyncio.Task[bytes]", asyncio.current_task())
        self._saving.add(saving)
        try:
            return await self._save(data)
        finally:
            self._saving.discard(saving)

    async def end_saves(self, grace_s: float) -> None:
        """Give saves that are being committed `grace_s` seconds, once `committing` gives no store to others.

        The last flush comes behind this.
        """
        if self._saving:
            _, late = await asyncio.wait(self._saving.copy(), timeout=grace_s)
            for saving in late:
                saving.cancel()
            if late:
                await asyncio.wait(late)

    async def _save(self, data: bytes) -> bytes:
        committed = True
        for part in parts(data):
            check(part)
            for piece in pieces(part):
                committed &= await self._save_piece(piece)
            await others()
        self._counts.saves += 1
        return meta_pb.SaveOffsetDataReply(committed=committed).SerializeToString()

    async def _save_piece(self, piece: SavePiece) -> bool:
        """Save a piece; False if an entry was not what the sender expected."""
        left = {group: rows for group, rows in piece.items() if not is_kept_here(group, rows)}
        if left:
            await self._leave(left)
        kept = {group: rows for group, rows in piece.items() if group not in left}
        met = await self._expected(kept)
        request = offsets_pb.CommitOffsetsRequest(mode=offsets_pb.OVERWRITE)
        for group, rows in kept.items():
            entries = [
                offsets_pb.ShardCommit(shard=shard, offset=row.offset, topic=row.topic, partition=row.partition)
                for shard, row in rows.items()
                if not row.HasField("expected_offset") or met[OffsetKey(*group, shard)]
            ]
            if entries:
                request.groups.add(namespace=group.namespace, group=group.group, shards=entries)
        if request.groups:
            own: set[OffsetKey] = set()
            with self._notices.known([GroupKey(group.namespace, group.group) for group in request.groups], own):
                reply = await self._commits.commit(request)
                own.update(OffsetKey(row.namespace, row.group, row.shard) for row in reply.raised)
            for group in {GroupKey(row.namespace, row.group) for row in reply.superseded}:
                self._notices.add(group)  # a reset is held against what the broker has in its map
            self._counts.offsets += sum(len(group.shards) for group in request.groups)
        return all(met.values())

    async def _expected(self, piece: SavePiece) -> dict[OffsetKey, bool]:
        """Whether what stands is what the sender expects, where it expects anything; an absent offset is 0, as RobustMQ has it.

        Nothing is awaited after the look, so that no commit comes between it and the write.
        """
        wanted = {
            OffsetKey(*group, shard): row.expected_offset
            for group, rows in piece.items()
            for shard, row in rows.items()
            if row.HasField("expected_offset")
        }
        if not wanted:
            return {}
        core = await self._core()
        await core.reader.ask([Wanted(group, ()) for group in {key.group_key for key in wanted}], ReadMode.STORE)
        found = {key: core.ledger.store.get(key) for key in wanted}
        return {key: _offset_of(found[key]) == expected for key, expected in wanted.items()}

    async def _leave(self, piece: SavePiece) -> None:
        """Save rows of names that are not kept here by RobustMQ's Meta Service, as the broker would."""
        core = self._committing()
        entries = [
            SaveEntry(OffsetKey(*group, shard), OffsetRecord(1, row.offset, topic=row.topic, partition=row.partition), None)
            for group, rows in piece.items()
            for shard, row in rows.items()
        ]
        for group in piece:
            if group not in self._left:
                log.warning("robustmq.left", group="/".join(group), help="its names are not kept here: RobustMQ's own has it")
                self._left[group] = None
        while len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]
        for entry, outcome in zip(entries, await core.meta.save(entries), strict=True):
            if not outcome.status.acknowledged:
                raise NotReadyError(f"{'/'.join(entry.key)}: was not saved: {outcome.message}")
        self._counts.left_to_robustmq += len(entries)

    async def read(self, data: bytes) -> bytes:
        """The offsets of a group: the larger of what is here and in the Meta Service. Raises AdapterError."""
        request = _parsed(meta_pb.GetOffsetDataRequest, data)
        for field in ("tenant", "group"):
            if not getattr(request, field):
                raise InvalidInputError(f"GetOffsetDataRequest.{field}: is empty")
        group = GroupKey(request.tenant, request.group)
        if not is_kept_here(group):
            raise LeftToRobustmqError(f"{'/'.join(group)}: has names that are not kept here")
        rows = await _patiently(lambda: self._read(group))
        self._counts.reads += 1
        return meta_pb.GetOffsetDataReply(offsets=rows).SerializeToString()

    async def _read(self, group: GroupKey) -> list[meta_pb.GetOffsetDataReplyOffset]:
        core, wanted = await self._core(), [Wanted(group, ())]
        if group in self._left:
            await core.handover.persist(wanted)  # the shards that are kept here: they are asked for there as well
            raise LeftToRobustmqError(f"{'/'.join(group)}: has shards that are not kept here")
        with self._notices.known([group]):
            await core.reader.begin(wanted, ReadMode.STORE)
        return await core.reader.answer(wanted, self._row, meta_pb.GetOffsetDataReplyOffset.ByteSize)

    def _row(self, key: OffsetKey, record: OffsetRecord) -> meta_pb.GetOffsetDataReplyOffset:
        topic, partition = (record.topic, record.partition) if record.topic else self._labels.of(key.shard)
        return meta_pb.GetOffsetDataReplyOffset(
            shard_name=key.shard, offset=record.offset, topic=topic or key.shard, partition=partition
        )

    async def delete(self, data: bytes) -> bytes:
        """Delete shards: flushed and removed here, so that they are not sent again, then deleted in the Meta Service.

        Raises AdapterError; what was removed here is then still in the Meta Service, and the call may be made again.
        """
        request = _parsed(meta_pb.DeleteOffsetDataRequest, data)
        for field in ("tenant", "group", "shard_names"):
            if not getattr(request, field):
                raise InvalidInputError(f"DeleteOffsetDataRequest.{field}: is empty")
        group, shards = GroupKey(request.tenant, request.group), list(dict.fromkeys(request.shard_names))
        await _patiently(lambda: self._delete(group, shards))
        self._counts.deletes += 1
        return meta_pb.DeleteOffsetDataReply().SerializeToString()

    async def _delete(self, group: GroupKey, shards: list[str]) -> None:
        core = await self._core()
        kept: list[str] = []
        async for some in in_slices(shards if is_kept_here(group) else []):
            kept += [shard for shard in some if not name_problem(shard)]
        with self._notices.known([group]):
            for _ in range(DELETES):
                if kept:
                    await core.handover.remove([Wanted(group, kept)])
                await core.meta.delete(group, shards)
                await self._flushed()
                if not await _forget(core, group, kept):
                    break

    async def _flushed(self) -> None:
        """Wait for what the broker committed before a delete: its save under way, and the one behind that.

        It is deleted as well: the broker empties its map only when the delete is answered.
        """
        await self._saved()
        await asyncio.sleep(FLUSH_S)
        await self._saved()

    async def _saved(self) -> None:
        if self._saving:
            await asyncio.wait(self._saving.copy(), timeout=SAVING_S)


async def _forget(core: Core, group: GroupKey, shards: list[str]) -> bool:
    """Forget what of these shards was saved or read since they were removed; True if anything was.

    What is dirty stays for the next round, which makes sure that the Meta Service has it before it is removed.
    """
    found = False
    async for some in in_slices(shards):
        again = [key for shard in some if core.ledger.store.get(key := OffsetKey(*group, shard))]
        core.ledger.apply(Forget([key for key in again if key not in core.ledger.dirty]))
        found = found or bool(again)
    return found


async def _patiently(work: Callable[[], Awaitable[R]]) -> R:
    """Call `work` until it succeeds, for PATIENCE_S. Raises what it raised last."""
    reason = "it takes longer"
    failures = 0
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await work()
                except LeftToRobustmqError:
                    raise
                except TransientError as error:
                    reason, failures = str(error), failures + 1
                await asyncio.sleep(pause_s(failures, AGAIN_S, AGAIN_MAX_S))
    except TimeoutError:
        raise NotReadyError(f"not done within {PATIENCE_S:g} s: {reason}") from None


def _answering(
    call: Callable[[bytes], Awaitable[bytes]], counts: FrontCounts, *, final: bool
) -> Callable[[bytes, Call], Awaitable[bytes]]:
    """Turn errors into statuses at which the broker does the right thing. `final`: it does not call its next address."""

    async def answer(data: bytes, context: Call) -> bytes:
        goes_on, text = not final, "the adapter failed, see its log"
        code = grpc.StatusCode.ABORTED
        try:
            return await call(data)
        except InvalidInputError as error:
            goes_on, code, text = False, grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except LeftToRobustmqError as error:
            goes_on, text = True, str(error)
        except AdapterError as error:
            text = str(error)
        except Exception:
            log.exception("robustmq.failed", call=call.__name__)
        counts.refused += 1
        text = _harmless(text)
        if goes_on:
            code, text = grpc.StatusCode.UNAVAILABLE, f"{UNAVAILABLE}: {text}"
        elif code is grpc.StatusCode.ABORTED:
            counts.refused_for_good += 1
            text = f"{text}; {REFUSED}"
        await context.abort(code, text)
        raise AssertionError  # `abort` raises

    return answer


def _harmless(text: str) -> str:
    for words, others_ in _WORDS.items():
        text = text.replace(words, others_)
    return text


def _as_it_is(data: bytes) -> bytes:
    return data


def _offset_of(record: OffsetRecord | None) -> int:
    return record.offset if record and record.live else 0


def _parsed(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidInputError(f"{kind.DESCRIPTOR.name}: cannot be parsed") from error

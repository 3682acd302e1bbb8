"""Resets that can be repeated: what was planned under an ID is kept in the Meta Service before anything is changed.

A plan has absolute records, and merging them again changes nothing. So whoever repeats the reset finishes what was planned,
however far it came and whoever died meanwhile. Plans are among the metadata of the Meta Service: durable there, on either engine,
and found by every adapter. An ID is taken for TAKEN_MS after it was made, by its own time, and remembered for twice as long, so
that one that is forgotten is not taken for a new one.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from google.protobuf.message import DecodeError

from adapter.errors import AdapterError, InvalidInputError, MetaUnavailableError, RefusedError, TooLargeError, UnknownCallError
from adapter.meta.client import MetaClient
from adapter.meta.metadata import MetadataClient
from adapter.model.codec import decode_record, encode_record
from adapter.model.records import ERA_BITS, GroupKey, OffsetKey, OffsetRecord
from adapter.rpc import offsets_pb
from adapter.runtime.slices import in_slices
from adapter.sidecar.engine.reset_plans import OffsetChange

PREFIX = "offset-adapter/changes/"
TAKEN_MS = 24 * 3_600_000
PLAN_BYTES = 2**20  # the largest value of the metadata
SWEEP_MS = 60_000
SINCE = "was reset, deleted or cloned since: stays as it is"

_RowOf = offsets_pb.PlannedReset.Row


class ChangeId(NamedTuple):
    """The ID of a change, the time in it (Unix ms), and the digest of its request."""

    id: str
    made_ms: int
    request: bytes


class Planned(NamedTuple):
    """A plan that is remembered. `planned_ms`: when it was made, as Unix time."""

    group: GroupKey
    changes: list[OffsetChange]
    planned_ms: int


class ChangeMemory:
    """Keeps plans, and finds them. Every method raises MetaUnavailableError, and RefusedError where nothing can be remembered."""

    def __init__(self, meta: MetaClient, now_ms: Callable[[], int]) -> None:
        self._meta = meta
        self._now_ms = now_ms
        self._swept_ms = 0

    async def recall(self, change: ChangeId) -> Planned | None:
        """What was planned under an ID; None if nothing was. Raises InvalidInputError for one of another request, or too old."""
        try:
            value = await self._metadata().get(PREFIX + change.id)
        except UnknownCallError as error:
            raise _cannot(self._meta.endpoint) from error
        if value is not None:
            return await _decoded(value, change)
        age_ms = self._now_ms() - change.made_ms
        if abs(age_ms) > TAKEN_MS:
            when = f"{abs(age_ms) / 3_600_000:.0f} h {'ago' if age_ms > 0 else 'ahead of this adapter'}"
            raise InvalidInputError(
                f"change_id: was made {when}, and is taken for {TAKEN_MS // 3_600_000} h: what was done under it may be "
                "forgotten; look at the offsets, and make a new one"
            )
        return None

    async def keep(self, change: ChangeId, group: GroupKey, changes: Sequence[OffsetChange]) -> Planned | None:
        """Keep a plan, unless there is one: then that one, which may be this one from an attempt without an answer.

        Raises TooLargeError.
        """
        now_ms = self._now_ms()
        value = await _encoded(Planned(group, list(changes), now_ms), change)
        if len(value) > PLAN_BYTES:
            raise TooLargeError(
                f"change_id: the plan of {len(changes):,} shards is over {PLAN_BYTES:,} bytes; name fewer of them in each call"
            )
        metadata = self._metadata()
        await self._forget_old(metadata, now_ms)
        if await metadata.put_new(PREFIX + change.id, value):
            return None
        found = await metadata.get(PREFIX + change.id)
        if found is None:
            raise MetaUnavailableError("change_id: the plan was removed from the metadata meanwhile; nothing was changed")
        return await _decoded(found, change)

    def _metadata(self) -> MetadataClient:
        metadata = self._meta.metadata
        if metadata is None:
            raise _cannot(self._meta.endpoint)
        return metadata

    async def _forget_old(self, metadata: MetadataClient, now_ms: int) -> None:
        if now_ms - self._swept_ms < SWEEP_MS:
            return
        self._swept_ms = now_ms
        with suppress(AdapterError):
            for key in await metadata.first_keys(PREFIX):
                if made_ms(key.removeprefix(PREFIX)) < now_ms - 2 * TAKEN_MS:
                    await metadata.delete(key)


def made_ms(change_id: str) -> int:
    """The time in an ID (Unix ms); 0 for what is none."""
    time, _, _ = change_id.partition("-")
    return int(time) if time.isascii() and time.isdecimal() else 0


def is_since(change: OffsetChange, standing: OffsetRecord | None) -> bool:
    """True if somebody reset, deleted or cloned a key since this change of it was planned, and the change was not made."""
    if change.after is None or standing is None or standing >= change.after:
        return False
    return standing.epoch >> ERA_BITS >= change.after.epoch >> ERA_BITS


async def _encoded(planned: Planned, change: ChangeId) -> bytes:
    message = offsets_pb.PlannedReset(request=change.request, planned_at_ms=planned.planned_ms, **planned.group._asdict())
    async for some in in_slices(planned.changes):
        for key, before, after, warning in some:
            # Of what stood, the place is shown again; of what will stand, all is written again.
            place = OffsetRecord(before.epoch, before.offset, before.live) if before else None
            message.rows.add(shard=key.shard, before=_packed(place), after=_packed(after), warning=warning)
    return message.SerializeToString()


async def _decoded(value: bytes, change: ChangeId) -> Planned:
    rows: list[tuple[str, OffsetRecord | None, OffsetRecord | None, str]] = []
    try:
        message = offsets_pb.PlannedReset.FromString(value)
        async for some in in_slices(message.rows):
            rows += [(row.shard, _unpacked(row.before), _unpacked(row.after), row.warning) for row in some]
    except (DecodeError, struct.error, UnicodeDecodeError) as error:
        raise RefusedError(
            f"change_id: what the Meta Service remembers under {PREFIX}{change.id} is damaged, and nothing was changed now; look "
            f"at the offsets, and make a new one ({error})"
        ) from error
    if message.request != change.request:
        raise InvalidInputError(
            "change_id: is that of another request; a repeat has to ask for the same, and another change for its own"
        )
    group = GroupKey(message.namespace, message.group)
    return Planned(group, [OffsetChange(OffsetKey(*group, row[0]), *row[1:]) for row in rows], message.planned_at_ms)


def _packed(record: OffsetRecord | None) -> bytes:
    return encode_record(record) if record else b""


def _unpacked(data: bytes) -> OffsetRecord | None:
    return decode_record(data) if data else None


def _cannot(endpoint: str) -> RefusedError:
    return RefusedError(
        f"change_id: {endpoint} remembers no changes: it is RobustMQ's Meta Service, or serves no metadata (serve in meta.toml). "
        "Leave it out; look at the offsets before a reset is repeated whose answer was lost"
    )

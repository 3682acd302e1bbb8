"""Requests of the local API -> model. A bad entry refuses its whole request, by the name of the field (invariant 10)."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

from adapter.errors import InvalidInputError
from adapter.meta.requests import NAMES_SLICE, parse_names
from adapter.model.broadcast_names import OF_CLIENT, OF_LOWEST
from adapter.model.names import NAME_MAX_BYTES, check_name
from adapter.model.records import DEFAULT_NAMESPACE, GroupKey, ReadMode
from adapter.rpc import offsets_pb
from adapter.runtime.serving.large_calls import MAX_CHANGES, MAX_NAMED
from adapter.runtime.slices import others
from adapter.sidecar.api.commit_requests import MAX_OFFSETS
from adapter.sidecar.engine.broadcast import BroadcastQuery, group_of_client, group_of_lowest
from adapter.sidecar.engine.change_memory import ChangeId, made_ms
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To

MAX_TOPICS = 1_000  # of a reset, delete or clone
_CHANGE_ID = re.compile("[0-9]{13}-[0-9a-f]{16}")


def parse_read_mode(mode: int) -> ReadMode:
    """A read mode. Raises InvalidInputError."""
    try:
        return ReadMode(mode)
    except ValueError:
        raise InvalidInputError(f"mode: {mode} is unknown; 0 is MEMORY_FIRST_THEN_STORE, 1 is MEMORY, 2 is STORE") from None


async def parse_wanted(groups: Sequence[offsets_pb.GroupShards]) -> list[Wanted]:
    """Groups and shards, each group and each of its shards once, in the order in which they are named first.

    A group that is named without shards, and again with some, is wanted as a whole. Raises InvalidInputError.
    """
    if not groups:
        raise InvalidInputError("groups: is empty; at least one group is needed")
    if len(groups) > MAX_NAMED:
        raise InvalidInputError(f"groups: are {len(groups)}, over {MAX_NAMED}; ask in several calls")
    found: dict[GroupKey, dict[str, None] | None] = {}
    named = 0
    for at, item in enumerate(groups):
        if at and at % NAMES_SLICE == 0:
            await others()
        named += 1 + len(item.shards)
        if named > MAX_NAMED:
            raise InvalidInputError(f"groups[{at}].shards: over {MAX_NAMED} groups and shards are named; ask in several calls")
        where = f"groups[{at}]"
        group = GroupKey(
            check_name(item.namespace or DEFAULT_NAMESPACE, f"{where}.namespace"), check_name(item.group, f"{where}.group")
        )
        shards = await parse_names(item.shards, f"{where}.shards")
        known = found.setdefault(group, {} if shards else None)
        if not shards:
            found[group] = None
        elif known is not None:
            known.update(shards)
    return [Wanted(group, list(shards or ())) for group, shards in found.items()]


def parse_group(namespace: str, group: str, field: str = "group") -> GroupKey:
    """The key of a group; an empty namespace means the default one. Raises InvalidInputError for a bad name."""
    return GroupKey(check_name(namespace or DEFAULT_NAMESPACE, "namespace"), check_name(group, field))


async def parse_shards(shards: Sequence[str], field: str = "shards", *, required: bool = False) -> list[str]:
    """Names of shards, without repetition. Raises InvalidInputError."""
    if required and not shards:
        raise InvalidInputError(f"{field}: is empty; name the shards, or a group")
    if len(shards) > MAX_CHANGES:
        raise InvalidInputError(f"{field}: are {len(shards)}, over {MAX_CHANGES}; send several requests")
    found = await parse_names(shards, field)
    if len(found) < len(shards):
        twice = next(shard for shard, times in Counter(shards).items() if times > 1)
        raise InvalidInputError(f"{field}: {twice} is named twice")
    return list(found)


def parse_topics(topics: Sequence[str]) -> list[str]:
    """Names of topics. Raises InvalidInputError."""
    if len(topics) > MAX_TOPICS:
        raise InvalidInputError(f"topics: are {len(topics)}, over {MAX_TOPICS}; send several requests")
    return [check_name(topic, f"topics[{at}]") for at, topic in enumerate(topics)]


async def parse_reset(request: offsets_pb.ResetOffsetsRequest) -> tuple[Wanted, Reset]:
    """The shards of a reset, and its target. Raises InvalidInputError."""
    group = parse_group(request.namespace, request.group)
    shards, topics = await parse_shards(request.shards), parse_topics(request.topics)
    kind = request.WhichOneof("to")
    if kind is None:
        raise InvalidInputError(f"to: is missing; give one of {', '.join(to.value for to in To)}")
    to = To(kind)
    if to is To.TARGETS:
        if shards or topics:
            raise InvalidInputError("shards, topics: must be empty beside to_targets, which names the shards")
        return await _parse_targets(group, request)
    value: int = getattr(request, kind)
    if value is False:
        raise InvalidInputError(f"{kind}: is false; leave it out, or set it to true")
    return Wanted(group, shards, topics), Reset(to, 0 if value is True else value, create=request.create)


def parse_change_id(request: offsets_pb.ResetOffsetsRequest) -> ChangeId | None:
    """The ID of a reset, if it has one. Raises InvalidInputError."""
    if not request.change_id:
        return None
    if not _CHANGE_ID.fullmatch(request.change_id):
        raise InvalidInputError(
            f"change_id: {request.change_id[:50]!r} is not a time in Unix milliseconds (13 digits), a hyphen, and 16 random "
            "hexadecimal digits"
        )
    same = offsets_pb.ResetOffsetsRequest()
    same.CopyFrom(request)
    same.ClearField("execute")
    digest = hashlib.sha256(same.SerializeToString(deterministic=True)).digest()
    return ChangeId(request.change_id, made_ms(request.change_id), digest)


async def _parse_targets(group: GroupKey, request: offsets_pb.ResetOffsetsRequest) -> tuple[Wanted, Reset]:
    targets = request.to_targets.targets
    if len(targets) > MAX_CHANGES:
        raise InvalidInputError(f"to_targets.targets: are {len(targets)}, over {MAX_CHANGES}; send several requests")
    for at, target in enumerate(targets):
        if not target.HasField("offset"):
            raise InvalidInputError(f"to_targets.targets[{at}].offset is missing; absent does not mean 0")
    shards = await parse_shards([target.shard for target in targets], "to_targets.targets", required=True)
    to = {target.shard: target.offset for target in targets}
    return Wanted(group, shards), Reset(To.TARGETS, targets=to, create=request.create)


def parse_commit_broadcast(request: offsets_pb.CommitBroadcastRequest) -> offsets_pb.CommitOffsetsRequest:
    """The commit to the client's own group; shards are validated as in any commit. Raises InvalidInputError."""
    group = _checked_group(request.namespace, request.group)
    inner = _checked_client(group, request.client_id)
    if not request.shards:
        raise InvalidInputError("shards: is empty; at least one offset is needed")
    if len(request.shards) > MAX_OFFSETS:  # before they are copied
        raise InvalidInputError(f"shards: are {len(request.shards)}, over {MAX_OFFSETS}; send several requests")
    return offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(**inner._asdict(), shards=request.shards)])


async def parse_read_broadcast(request: offsets_pb.ReadBroadcastRequest) -> BroadcastQuery:
    """The offsets of a broadcasting group that a request asks for. Raises InvalidInputError."""
    group = _checked_group(request.namespace, request.group)
    if request.client_id:
        _checked_client(group, request.client_id)
    return BroadcastQuery(group, request.client_id, await parse_shards(request.shards))


def _checked_group(namespace: str, group: str) -> GroupKey:
    check_name(namespace or DEFAULT_NAMESPACE, "namespace")
    check_name(group, "group")
    if OF_CLIENT in group or group.endswith(OF_LOWEST):
        raise InvalidInputError(f"group: {group} is what a broadcasting group's offsets are kept as; name the group itself")
    found = GroupKey(namespace or DEFAULT_NAMESPACE, group)
    size = len(group_of_lowest(found).group.encode())
    if size > NAME_MAX_BYTES:
        raise InvalidInputError(
            f"group: is too long for a broadcasting group: GROUP{OF_LOWEST} is {size} bytes; at most {NAME_MAX_BYTES} are allowed"
        )
    return found


def _checked_client(group: GroupKey, client_id: str) -> GroupKey:
    check_name(client_id, "client_id")
    inner = group_of_client(group, client_id)
    size = len(inner.group.encode())
    if size > NAME_MAX_BYTES:
        raise InvalidInputError(
            f"client_id: is too long for this group: GROUP{OF_CLIENT}CLIENT is {size} bytes; at most {NAME_MAX_BYTES} are allowed"
        )
    return inner

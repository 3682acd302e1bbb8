"""Requests of the local API -> model. A bad entry refuses its whole request, by the name of the field (invariant 10)."""

from collections import Counter
from collections.abc import Sequence

from adapter.codec import unpack_names
from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.model import DEFAULT_NAMESPACE, GroupKey, ReadMode, check_name
from adapter.plans import Reset, To
from adapter.reads import Wanted
from adapter.rpc import offsets_pb

MAX_PAGE = 10_000
DEFAULT_PAGE = 1_000
MAX_SCAN_PAGE = 20_000
DEFAULT_SCAN_PAGE = 10_000
MAX_PARTS = 1_000  # of a split


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


def parse_page(namespace: str, group: str, page_size: int, max_page: int = MAX_PAGE) -> tuple[str, ...]:
    """The names to list below: none, a namespace, or a namespace and a group. Raises InvalidInputError."""
    if page_size > max_page:
        raise InvalidInputError(f"page_size: {page_size} is over {max_page}")
    return parse_listed(namespace, group)


def parse_parts(parts: int) -> int:
    """The number of parts of a split. Raises InvalidInputError."""
    if not 0 < parts <= MAX_PARTS:
        raise InvalidInputError(f"parts: {parts} is not between 1 and {MAX_PARTS}")
    return parts


def parse_listed(namespace: str, group: str) -> tuple[str, ...]:
    """The names to list below: none, a namespace, or a namespace and a group. Raises InvalidInputError."""
    if group and not namespace:
        raise InvalidInputError("namespace: is empty, but a group is named; name both")
    names = (("namespace", namespace), ("group", group))
    return tuple(check_name(name, field) for field, name in names if name)


def parse_page_token(token: bytes, prefix: bytes, fields: int, field: str = "page_token") -> bytes:
    """The token of a former page of the list below `prefix`: a key of so many fields. Raises InvalidInputError."""
    try:
        names = unpack_names(token)
    except (StoreDamagedError, UnicodeDecodeError):
        names = []
    if token and (len(names) != fields or not token.startswith(prefix)):
        raise InvalidInputError(f"{field}: is not the next_page_token of a page of this list")
    return token


def parse_group(namespace: str, group: str, field: str = "group") -> GroupKey:
    """A group. Raises InvalidInputError."""
    return GroupKey(check_name(namespace or DEFAULT_NAMESPACE, "namespace"), check_name(group, field))


def parse_shards(shards: Sequence[str], field: str = "shards", *, required: bool = False) -> list[str]:
    """Names of shards, none twice. Raises InvalidInputError."""
    if required and not shards:
        raise InvalidInputError(f"{field}: is empty; name the shards, or a group")
    for at, shard in enumerate(shards):
        check_name(shard, f"{field}[{at}]")
    twice = next((shard for shard, times in Counter(shards).items() if times > 1), None)
    if twice:
        raise InvalidInputError(f"{field}: {twice} is named twice")
    return list(shards)


def parse_topics(topics: Sequence[str]) -> list[str]:
    """Names of topics. Raises InvalidInputError."""
    return [check_name(topic, f"topics[{at}]") for at, topic in enumerate(topics)]


def parse_reset(request: offsets_pb.ResetOffsetsRequest) -> tuple[Wanted, Reset]:
    """A reset. Raises InvalidInputError."""
    group = parse_group(request.namespace, request.group)
    shards, topics = parse_shards(request.shards), parse_topics(request.topics)
    kind = request.WhichOneof("to")
    if kind is None:
        raise InvalidInputError(f"to: is missing; give one of {', '.join(to.value for to in To)}")
    to = To(kind)
    if to is To.TARGETS:
        if shards or topics:
            raise InvalidInputError("shards, topics: must be empty beside to_targets, which names the shards")
        return _parse_targets(group, request)
    value: int = getattr(request, kind)
    if value is False:
        raise InvalidInputError(f"{kind}: is false; leave it out, or set it to true")
    return Wanted(group, shards, topics), Reset(to, 0 if value is True else value, create=request.create)


def _parse_targets(group: GroupKey, request: offsets_pb.ResetOffsetsRequest) -> tuple[Wanted, Reset]:
    targets = request.to_targets.targets
    for at, target in enumerate(targets):
        if not target.HasField("offset"):
            raise InvalidInputError(f"to_targets.targets[{at}].offset is missing; absent does not mean 0")
    shards = parse_shards([target.shard for target in targets], "to_targets.targets", required=True)
    to = {target.shard: target.offset for target in targets}
    return Wanted(group, shards), Reset(To.TARGETS, targets=to, create=request.create)

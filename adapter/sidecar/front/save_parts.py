"""Cuts a flush of a RobustMQ broker into commits. A request has every marked group of the broker, without a limit of its own."""

from collections.abc import Iterator

from google.protobuf.message import DecodeError

from adapter.errors import InvalidInputError
from adapter.meta import slash_names
from adapter.model.names import NAME_MAX_BYTES, name_problem
from adapter.model.records import GroupKey
from adapter.rpc import meta_pb
from adapter.sidecar.api.commits import SMALL

PART_BYTES = 16_384  # of a request that are parsed in one go, or a group; some hundred offsets
PIECE = SMALL - 10  # offsets and groups of a commit: one of SMALL is decided at once, in a millisecond or two

_MORE = 0x80  # the bit of a byte after which a number goes on
_VARINT, _BYTES = 0, 2  # wire types (protobuf.dev/programming-guides/encoding)
_FIXED = {1: 8, 5: 4}

GroupRows = dict[str, meta_pb.SaveOffsetDataRequestOffset]  # by shard
SavePiece = dict[GroupKey, GroupRows]


def parts(data: bytes) -> Iterator[meta_pb.SaveOffsetDataRequest]:
    """Parse a request in parts, each of some groups, in their order. Raises InvalidInputError.

    Each part that is yielded may be applied before the next one is found to be broken.
    """
    begin = at = 0
    try:
        while at < len(data):
            at = _after_field(data, at)
            if at - begin >= PART_BYTES:
                yield meta_pb.SaveOffsetDataRequest.FromString(data[begin:at])
                begin = at
        if begin < at or not data:
            yield meta_pb.SaveOffsetDataRequest.FromString(data[begin:at])
    except (IndexError, ValueError, DecodeError) as error:
        raise InvalidInputError("SaveOffsetDataRequest: cannot be parsed") from error


def pieces(request: meta_pb.SaveOffsetDataRequest) -> Iterator[SavePiece]:
    """The rows of a part in pieces of PIECE groups and offsets, in order. Of a shard that is named twice the last row counts."""
    piece: SavePiece = {}
    size = 0
    for group in request.offsets:
        key = GroupKey(group.tenant, group.group)
        for row in group.offsets:
            if size >= PIECE:
                yield piece
                piece, size = {}, 0
            size += 1 + (key not in piece)
            piece.setdefault(key, {})[row.shard_name] = row
    if piece:
        yield piece


def check(request: meta_pb.SaveOffsetDataRequest) -> None:
    """Refuse what RobustMQ's Meta Service refuses, but for a group without offsets. Raises InvalidInputError.

    The broker sends such a group when its offsets were deleted after a commit; RobustMQ refuses the whole flush, and the broker
    does not send the other groups again.
    """
    if not request.offsets:
        raise InvalidInputError("SaveOffsetDataRequest.offsets: is empty")
    for group in request.offsets:
        for field in ("tenant", "group"):
            if not getattr(group, field):
                raise InvalidInputError(f"SaveOffsetData.{field}: is empty")
        for row in group.offsets:
            for field in ("shard_name", "topic"):
                if not getattr(row, field):
                    raise InvalidInputError(f"SaveOffsetDataRequestOffset.{field}: is empty")


def is_kept_here(group: GroupKey, rows: GroupRows = {}) -> bool:  # noqa: B006 - never changed
    """Whether the adapter can hold these rows: names that RobustMQ takes, and the adapter does not, stay with RobustMQ."""
    if slash_names.name_problem(group) or any(name_problem(name) for name in group):
        return False
    return not any(name_problem(shard) or name_problem(row.topic, NAME_MAX_BYTES) for shard, row in rows.items())


def _after_field(data: bytes, at: int) -> int:
    """Where the field ends that begins here. Raises IndexError or ValueError."""
    tag, at = _number(data, at)
    kind = tag & 7
    if kind == _BYTES:
        size, at = _number(data, at)
        return _within(data, at + size)
    if kind == _VARINT:
        return _number(data, at)[1]
    if kind in _FIXED:
        return _within(data, at + _FIXED[kind])
    raise ValueError(kind)


def _within(data: bytes, at: int) -> int:
    if at > len(data):
        raise IndexError
    return at


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return value, at
    raise ValueError

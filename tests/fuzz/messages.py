"""Changes of a message field by field: what parses again, with values that may not be there."""

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from adapter.model.codec import encode_key, encode_plain, encode_record, pack_names
from adapter.model.records import OffsetKey, OffsetRecord

CHANGES_MAX = 4  # of one message
COPIES_MAX = 4
KNOWN = ("s", "g", "h", "n", "default", "topic/3", "topic", "t", "a/b", "\u8bdd", "all", "all@broadcast", "all@broadcast@c", "m")
TEXTS = (
    *KNOWN,
    # At and beyond the limits of names, prefixes and metadata.
    *("", "x" * 245, "x" * 255, "x" * 256, "\u8bdd" * 85, "\u8bdd" * 86, "x" * 1_024, "x" * 4_097),
    # What is refused in names, or means something in a pattern or a path.
    *(
        "\0",
        "a\nb",
        "\x7f",
        "\x85",
        "\ufeff",
        "\U0010ffff",
        " ",
        "/",
        "*",
        "[!a]",
        "[",
        "\\",
        "@broadcast@",
        "%",
        "g/s",
        "..",
        "-",
    ),
    # Numbers, as the metadata of a scaler has them.
    *(
        "0",
        "-1",
        "00",
        "1e400",
        "nan",
        "inf",
        "\u0665",
        "1_0",
        "0" * 5_000,
        "9" * 5_000,
        "9007199254740993",
        "true",
        "all",
        "a,,b",
    ),
)
KEY = OffsetKey("n", "g", "s")
BYTES = (
    *(b"", b"\0", b"\xff", bytes(16), bytes(15), b"s", b"a/b", b"topic/3", b"\xe8\xaf", b"x" * 256),
    *(pack_names(*names) for names in (("",), ("n", "g"), KEY, ("default", *KEY), ("default", *KEY, "t"), ("", "", "", ""))),
    *(pack_names(*names)[:-1] for names in (KEY, ("default", *KEY))),
    encode_key(KEY) + b"\0",
    *(b"\0" + count * 32 + pack_names("default", "g", "s") for count in (b"\0", b"\xff")),
    *(encode_plain(*numbers) for numbers in ((0, 0, 0, 0), (1, 2, 3, 4), (2**64 - 1, 2**63, 2**64 - 1, 2**64 - 1))),
    *(encode_record(OffsetRecord(1, 0, live, 0, "m" * 3, "t" * 2)) for live in (True, False)),
    encode_record(OffsetRecord(2**62, 0, committed_at_ms=2**63, metadata="m" * 4_097, topic="t" * 255)),
)
EDGES = (
    0,
    1,
    2,
    3,
    5,
    100,
    2**15,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -1,
    -(2**31),
    -(2**63),
)
FLOATS = (0.0, -1.0, 0.5, 1e300, float("inf"), float("nan"))
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}


def changed(message: Message, rng: random.Random) -> bytes:
    """The message with a few changes."""
    for _ in range(rng.randint(1, CHANGES_MAX)):
        change(message, rng)
    return message.SerializeToString(deterministic=True)


def change(message: Message, rng: random.Random) -> None:
    """Change one field, of the message or of one in it."""
    fields: Sequence[Any] = message.DESCRIPTOR.fields
    if not fields:
        return
    field: FieldDescriptor = rng.choice(fields)
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    if is_map:
        _change_map(getattr(message, field.name), rng)
    elif field.is_repeated:
        _change_repeated(getattr(message, field.name), field, rng)
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type:
        below = getattr(message, field.name)
        below.SetInParent()
        change(below, rng)
    else:
        setattr(message, field.name, _value(field, getattr(message, field.name), rng))


def _change_map(values: Any, rng: random.Random) -> None:
    names = [*values]
    if names and rng.random() < 0.3:
        del values[rng.choice(names)]
    else:
        values[rng.choice([*names, rng.choice(TEXTS)])] = rng.choice(TEXTS)


def _change_repeated(values: Any, field: FieldDescriptor, rng: random.Random) -> None:
    at = rng.randrange(len(values)) if values else 0
    choice = rng.random()
    if values and choice < 0.2:
        del values[at]
    elif choice < 0.4:
        values.extend([values[at]] * rng.randint(1, COPIES_MAX) if values else [])
    elif field.message_type:
        change(values[at] if values and choice < 0.9 else values.add(), rng)
    elif values and choice < 0.8:
        values[at] = _value(field, values[at], rng)
    else:
        values.append(_value(field, None, rng))


def _value(field: FieldDescriptor, old: Any, rng: random.Random) -> Any:
    """Another value; sometimes near the old one."""
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.choice([*BYTES, old[:-1], old + b"\1", old + old] if old else BYTES)
        return rng.choice([*TEXTS, old + "x", old[:-1]] if old else TEXTS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        return rng.choice(FLOATS)
    low, high = _RANGES[kind]
    near = (old - 1, old + 1) if old else ()
    return rng.choice([number for number in (*EDGES, *near, *range(8)) if low <= number <= high])

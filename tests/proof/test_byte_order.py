"""The bytes of a record sort as records do: in etcd, which compares values itself, and in the bulk calls of the Meta Service."""

from itertools import product
from random import Random

import z3

from adapter.metaservice.bulk import ORDERED
from adapter.metaservice.etcd.keys import decode_value, encode_value
from adapter.model.codec import encode_record
from adapter.model.records import U64_MAX, OffsetRecord

# The end of a text, what may be escaped, and the smallest and largest of one to four bytes in UTF-8.
LETTERS = ("\0", "\1", "a", "\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff")
TEXTS = [""] + ["".join(letters) for size in (1, 2) for letters in product(LETTERS, repeat=size)]
U32_MAX = 2**32 - 1
EDGES = (0, 1, 0xFF, 0x100, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, U64_MAX - 1, U64_MAX)


def in_one(*numbers: z3.BitVecRef) -> z3.BitVecRef:
    """Numbers of a fixed width, most significant byte first, as `struct` packs them with `>`."""
    return z3.Concat(*numbers)


def lexicographic(a: list[z3.BitVecRef], b: list[z3.BitVecRef]) -> z3.BoolRef:
    """Whether `a` is before `b`, compared as tuples."""
    before: z3.BoolRef = z3.BoolVal(val=False)
    for one, other in reversed(list(zip(a, b, strict=True))):
        before = z3.Or(z3.ULT(one, other), z3.And(one == other, before))
    return before


def bytes_of(number: z3.BitVecRef) -> list[z3.BitVecRef]:
    """The bytes of a number, most significant first."""
    return [z3.Extract(at + 7, at, number) for at in range(number.size() - 8, -1, -8)]


def test_fixed_numbers_sort_as_their_bytes_for_all_values() -> None:
    """Epoch, offset, live and time, each of any value: bytes compared from the left are the tuple compared."""
    fields = [[z3.BitVec(f"{side}{name}", bits) for name, bits in (("e", 64), ("o", 64), ("l", 8), ("t", 64))] for side in "ab"]
    packed = [bytes_of(in_one(*side)) for side in fields]
    solver = z3.Solver()
    solver.add(lexicographic(packed[0], packed[1]) != lexicographic(fields[0], fields[1]))
    assert solver.check() == z3.unsat


def test_the_head_of_a_value_is_those_bytes() -> None:
    """At all boundaries and 100,000 random values: `struct` packs what the proof is about."""
    random = Random(7)
    rows = list(product(EDGES, EDGES, (False, True), EDGES))
    rows += [
        (random.getrandbits(64), random.getrandbits(64), random.random() < 0.5, random.getrandbits(64)) for _ in range(100_000)
    ]
    for epoch, offset, live, time in rows:
        head = b"".join((epoch.to_bytes(8, "big"), offset.to_bytes(8, "big"), bytes((live,)), time.to_bytes(8, "big")))
        record = OffsetRecord(epoch, offset, live, time)
        assert encode_value(record)[:25] == head
        assert encode_record(record)[ORDERED] == bytes(8) + head[:16] + head[17:]


def test_texts_sort_as_their_bytes() -> None:
    """All texts of up to two letters of each width, as metadata before any topic: none is mistaken for the end of another."""
    found = [OffsetRecord(1, 1, metadata=metadata, topic=topic) for metadata in TEXTS for topic in ("", "\0", "a", "\U0010ffff")]
    assert sorted(found, key=encode_value) == sorted(found)
    assert [decode_value(encode_value(record)) for record in found] == found


def test_partitions_sort_as_their_bytes_behind_any_text() -> None:
    """The last field, of a fixed width, behind texts that end in what could be an escape; up to 4,278,190,080."""
    numbers = (0, 1, 0xFF, 0xFF00, 2**31 - 1, 2**31, 0xFF00_0000)
    found = [OffsetRecord(1, 1, topic=topic, partition=partition) for topic in TEXTS for partition in numbers]
    assert sorted(found, key=encode_value) == sorted(found)


def test_larger_partitions_sort_wrongly_beside_a_topic_that_begins_with_a_zero_byte() -> None:
    """Their first byte looks like an escape. Named in docs/design/laws.md: two such records differ in their labels only."""
    larger, smaller = OffsetRecord(1, 1, topic="\0"), OffsetRecord(1, 1, partition=U32_MAX)
    assert larger > smaller
    assert encode_value(larger) < encode_value(smaller)

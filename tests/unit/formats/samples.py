"""Shared by the tests of the file formats: sample rows, and files in memory."""

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

from hypothesis import strategies as st

from adapter.formats import kafka_csv, offsets_json, rocketmq_json, rocketmq_rows
from adapter.formats.files import Format
from adapter.formats.rows import Naming, OffsetRow, Reject
from adapter.model.queues import QUEUE_MAX, MessageQueue, shard_of
from adapter.model.records import LONG_MAX
from tests.unit.helpers import NAMES, TEXTS, U64

N = "default"
DATA = Path(__file__).parents[2] / "data" / "rocketmq"
NUMBERS = f"0 to {LONG_MAX}"
NAMING = Naming()

QUEUE_NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, QUEUE_MAX))
LONGS = st.one_of(st.integers(0, 3), st.integers(0, LONG_MAX))
# A topic leaves room for the queue's number in the shard's name, and for the broker's name before it.
TOPICS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=29)
ROCKETMQ_TOPICS = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="@/"), min_size=1, max_size=29)
ROCKETMQ_GROUPS = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "%LMQ%"]),
    st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="@"), min_size=1, max_size=50),
    st.sampled_from(["", "@broadcast"]),
)
JSON_ROWS = st.builds(
    OffsetRow, NAMES, NAMES, NAMES, U64, metadata=TEXTS, committed_at_ms=U64, topic=NAMES, partition=QUEUE_NUMBERS, epoch=U64
)


@st.composite
def csv_rows(draw: st.DrawFn) -> OffsetRow:
    """A row that Kafka's CSV can hold."""
    topic, partition = draw(TOPICS), draw(QUEUE_NUMBERS)
    return OffsetRow(N, draw(NAMES), f"{topic}/{partition}", draw(LONGS), topic=topic, partition=partition)


@st.composite
def queue_rows(draw: st.DrawFn, broker: str = "", group: str = "") -> OffsetRow:
    """A row that RocketMQ's files can hold."""
    queue = MessageQueue(draw(ROCKETMQ_TOPICS), draw(QUEUE_NUMBERS), broker)
    name = group or draw(ROCKETMQ_GROUPS)
    return OffsetRow(N, name, shard_of(queue), draw(LONGS), topic=queue.topic, partition=queue.queue_id)


def lists(rows: st.SearchStrategy[OffsetRow]) -> st.SearchStrategy[list[OffsetRow]]:
    """Some rows without duplicate keys; those of a group follow each other."""
    some = st.lists(rows, min_size=1, max_size=8, unique_by=lambda row: row.key)
    return some.map(lambda found: sorted(found, key=lambda row: (row.namespace, row.group)))


_Parser = Callable[[IO[bytes], Naming, int], Iterable[OffsetRow | Reject]]
_PARSERS: dict[Format, _Parser] = {
    Format.ROCKETMQ_BROKER: lambda file, naming, size: rocketmq_rows.rows_of(rocketmq_json.broker_file(file, size), naming),
    Format.ROCKETMQ_CLIENT: lambda file, naming, size: rocketmq_rows.rows_of(rocketmq_json.client_file(file, size), naming),
    Format.KAFKA_CSV: lambda file, naming, _: kafka_csv.read(file, naming),
    Format.JSON: offsets_json.read,
}
_WRITERS: dict[Format, Callable[[IO[bytes], Iterable[OffsetRow], Naming], int]] = {
    Format.ROCKETMQ_BROKER: rocketmq_rows.write_broker,
    Format.ROCKETMQ_CLIENT: rocketmq_rows.write_client,
    Format.KAFKA_CSV: kafka_csv.write,
    Format.JSON: offsets_json.write,
}
TEXTUAL = [*_PARSERS]


def each(data: bytes, kind: Format, naming: Naming = NAMING, chunk_bytes: int = 2**18) -> Iterable[OffsetRow | Reject]:
    """Iterate over the entries of a file."""
    return _PARSERS[kind](io.BytesIO(data), naming, chunk_bytes)


def found(data: bytes, kind: Format, naming: Naming = NAMING) -> list[OffsetRow | Reject]:
    """All entries of a file."""
    return list(each(data, kind, naming))


def read(data: bytes, kind: Format, group: str = "") -> list[OffsetRow]:
    """The rows of a file without a reject."""
    rows = found(data, kind, Naming(group=group))
    assert not [row for row in rows if isinstance(row, Reject)]
    return [row for row in rows if isinstance(row, OffsetRow)]


def rejects(data: bytes, kind: Format, group: str = "") -> list[tuple[int, str]]:
    """(line, reason) of what is rejected."""
    return [(row.line, row.reason) for row in found(data, kind, Naming(group=group)) if isinstance(row, Reject)]


def offsets_5x() -> list[OffsetRow]:
    """The offsets in the 5.x files of tests/data/rocketmq, sorted."""
    lines = [line.split("\t") for line in (DATA / "offsets-5x.tsv").read_text().splitlines()]
    return sorted(
        OffsetRow(N, group, f"{topic}/{queue}", int(offset), topic=topic, partition=int(queue))
        for group, topic, queue, offset in lines
    )


def written(rows: Sequence[OffsetRow], kind: Format, naming: Naming = NAMING) -> bytes:
    """A file with these rows."""
    file = io.BytesIO()
    assert _WRITERS[kind](file, rows, naming) == len(rows)
    return file.getvalue()

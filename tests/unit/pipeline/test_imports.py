"""The rules of an import: what is accepted, under which names, and what is told of it. All on Arrow columns, without Spark."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from adapter.formats import kafka_csv
from adapter.formats.kafka_csv import LINE_MAX_BYTES
from adapter.formats.rows import Naming, Reject
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import LONG_MAX
from adapter.pipeline.config import ImportSection
from adapter.pipeline.places import Place
from adapter.pipeline.transfer import imports
from adapter.pipeline.transfer.import_entries import ENTRIES, csv_entries, entries
from adapter.pipeline.transfer.import_files import Piece, find_files, pieces
from adapter.runtime.settings.config import parse as parse_config

CSV_LINES = [
    "g,t,0,5",
    'g,"t",1,6\r',
    '"a ""b"", c",d,2,7',
    "g,,0,5",
    ",t,0,5",
    "t,0,5",
    "g,t,0",
    "g,t,0,5,6",
    "g,t,-1,5",
    "g,t,0,-5",
    "g,t,x,5",
    "g,t,0,5.0",
    "g,t,0, 5",
    "g,t,\u0663,5",
    "g,t,007,08",
    "g,t,000000000000,00000000000000000000",
    "g,t,000000000000000000000,5",
    f"g,t,{QUEUE_MAX},{LONG_MAX}",
    f"g,t,{QUEUE_MAX + 1},5",
    f"g,t,0,{LONG_MAX + 1}",
    f"g,t,0,{'9' * 20}",
    f"g,t,0,{'9' * 30}",
    "g,t,,5",
    'g,"t,0,5',
    'g,"t"x,0,5',
    'g,t"x,0,5',
    '"g","t","0","5"',
    '"t","0","5"',
    "group,topic,partition,offset",
    f"{'g' * LINE_MAX_BYTES},t,0,5",
    f"{'g' * 256},t,0,5",
    f"g,{'t' * 256},0,5",
    "g," + "\u00e4" * 127 + ",0,5",
    "g," + "\u00e4" * 128 + ",0,5",
    f"g,{'t' * 254},0,5",
    "a\tb,t,0,5",
    "g,a\x85b,0,5",
    "\u6d88\u8d39,\u8bdd\u9898,3,4",
    "x" * 200,
]


def section(**values: Any) -> ImportSection:
    """Settings of an import."""
    return parse_config(values, ImportSection, source="test")


def rows_of(table: pa.Table | pa.RecordBatch, *names: str) -> list[tuple[Any, ...]]:
    """Some columns of the rows."""
    return [tuple(row[name] for name in names) for row in table.to_pylist()]


def read_by_the_cli(line: str) -> tuple[str, str, int] | None:
    """The row that the command `import` makes of a line with a group; None if it refuses the line."""
    (row,) = kafka_csv.read(BytesIO(line.encode()), Naming())
    return None if isinstance(row, Reject) else (row.group, row.shard, row.offset)


def entry(**values: Any) -> dict[str, Any]:
    """A row of ENTRIES with some values."""
    return {"file": "f", "place": "p", "client": "", "group": "g", "topic": "t", "broker": "", "text": "", **values}


def standing(*rows: tuple[str, int, int | None]) -> pa.Table:
    """Stored offsets of the group g: shard, epoch, offset."""
    return pa.Table.from_pylist(
        [{"group": "g", "shard": shard, "epoch": epoch, "offset": offset} for shard, epoch, offset in rows], imports.STANDING
    )


def wanted(*rows: tuple[str, int, str]) -> pa.Table:
    """Accepted rows of the group g: shard, offset, place."""
    given = [
        {"group": "g", "shard": shard, "topic": "t", "partition": 0, "offset": offset, "file": "f", "place": place}
        for shard, offset, place in rows
    ]
    return pa.Table.from_pylist(given, imports.NAMED)


def test_a_csv_line_is_read_as_the_cli_reads_it() -> None:
    """The same lines are accepted, with the same values, and the same are refused, alone and with others."""
    data = "".join(f"{line}\n" for line in CSV_LINES).encode()
    found = imports.named(csv_entries(Piece(Place("f"), 1, 0, len(data)), data), section(format="kafka-csv"))
    taken = [
        (group, shard, offset) if reason is None else None
        for group, shard, offset, reason in rows_of(found, "group", "shard", "offset", "reason")
    ]
    assert taken == [read_by_the_cli(line) for line in CSV_LINES]
    reasons = dict(zip(CSV_LINES, found["reason"].to_pylist(), strict=True))
    assert reasons["g,t,x,5"] == f"partition: 'x' is not a whole number from 0 to {QUEUE_MAX}"
    assert reasons[f"g,t,0,{'9' * 30}"] == f"offset: '{'9' * 30}' is not a whole number from 0 to {LONG_MAX}"
    assert reasons["g,t,0,5,6"] == "is not group,topic,partition,offset, nor topic,partition,offset"
    assert reasons["t,0,5"] == "group is missing; [import] group = 'NAME' names it for all files"
    assert reasons["g,,0,5"] == "topic is empty"
    assert reasons[f"g,{'t' * 256},0,5"] == "topic is 256 bytes long; at most 255 are allowed"
    assert reasons["a\tb,t,0,5"] == "group has a control character"
    assert reasons[f"{'g' * LINE_MAX_BYTES},t,0,5"] == "is over 4,096 bytes long; no line of offsets is"
    texts = dict(zip(CSV_LINES, found["text"].to_pylist(), strict=True))
    shown = {row["reason"]: row["text"] for row in imports.rejects(found).to_pylist()}
    assert texts["x" * 200] == "x" * 200
    assert shown[reasons["x" * 200] or ""] == "x" * 120 + "..."


@pytest.mark.parametrize("line", CSV_LINES)
def test_a_line_alone_is_read_as_among_others(line: str) -> None:
    """The columns of a batch with a single kind of lines take other ways: no quotes, no rejects, all rejects."""
    data = f"{line}\n".encode()
    (found,) = imports.named(csv_entries(Piece(Place("f"), 1, 0, len(data)), data), section(format="kafka-csv")).to_pylist()
    assert (None if found["reason"] else (found["group"], found["shard"], found["offset"])) == read_by_the_cli(line)


def test_names_are_made_by_the_patterns() -> None:
    """The broker in a file precedes that of the settings; a pattern that is only a group needs no other field."""
    rows = pa.RecordBatch.from_pylist(
        [
            entry(client="c1", broker="b1", queue=3, offset=5),
            entry(client="c1", queue=3, offset=5),
            entry(client="c1", group="", queue=3, offset=5),
            entry(reason="bad", text="x"),
        ],
        ENTRIES,
    )
    given = section(format="rocketmq-client", shard="{broker}:{topic}-{partition}", group="{group}@{client}", broker="b0")
    assert rows_of(imports.named(rows, given), "group", "shard", "reason") == [
        ("g@c1", "b1:t-3", None),
        ("g@c1", "b0:t-3", None),
        ("@c1", "b0:t-3", "group is missing; [import] group = 'NAME' names it for all files"),
        ("g@", None, "bad"),
    ]
    assert rows_of(imports.named(rows, section(format="kafka-csv", group="only")), "group", "reason") == [
        ("only", "group: 'g' is not 'only', as [import] says"),
        ("only", "group: 'g' is not 'only', as [import] says"),
        ("only", None),
        ("only", "bad"),
    ]


def test_the_largest_offset_of_a_key_is_taken_and_of_equal_ones_the_first() -> None:
    """With its own place, and the number of all rows of the key."""
    found = imports.candidates(wanted(("a", 1, "1"), ("b", 9, "2"), ("a", 3, "3"), ("a", 3, "4"), ("a", 2, "5")))
    assert sorted(rows_of(found, "shard", "offset", "place", "rows")) == [("a", 3, "3", 4), ("b", 9, "2", 1)]


def test_a_preview_tells_new_raised_unchanged_and_lower() -> None:
    """A stored offset above Spark's integers, which is null, is larger than any; records of other keys do not matter."""
    there = standing(("raised", 1, 4), ("unchanged", 2, 5), ("lower", 3, 6), ("huge", 4, None), ("other", 1, 1))
    names = ("new", "raised", "unchanged", "lower", "huge")
    found = imports.preview(imports.candidates(wanted(*((name, 5, "") for name in names))), there, "n")
    assert {row["shard"]: (row["change"], row["standing_epoch"], row["standing_offset"]) for row in found.to_pylist()} == {
        "new": ("new", None, None),
        "raised": ("raised", 1, 4),
        "unchanged": ("unchanged", 2, 5),
        "lower": ("lower", 3, 6),
        "huge": ("lower", 4, None),
    }
    assert imports.counts(found).to_pylist() == [
        {"group": "g", "new": 1, "raised": 1, "unchanged": 1, "lower": 2, "duplicates": 0}
    ]
    assert imports.changes(imports.counts(found)) == 2
    assert set(rows_of(imports.planned(found), "shard")) == {("new",), ("raised",)}


def test_what_is_below_after_a_merge_is_told_but_for_resets_since() -> None:
    """Missing or smaller in the same epoch; a reset since then, or a value above Spark's integers, is no error."""
    shards = ("same", "larger", "less", "gone", "reset", "huge", "first", "first-reset")
    merged = pa.Table.from_pylist(
        [
            {
                "namespace": "n",
                "group": "g",
                "shard": shard,
                "offset": 10,
                "standing_epoch": None if shard.startswith("first") else 7,
                "change": "raised",
            }
            for shard in shards
        ],
        imports.PREVIEW,
    )
    now = standing(
        ("same", 7, 10),
        ("larger", 7, 11),
        ("less", 7, 9),
        ("reset", 8, 1),
        ("huge", 7, None),
        ("first", 1, 9),
        ("first-reset", 2, 9),
    )
    below = {shard for shard, bad in rows_of(imports.applied(merged, now), "shard", "below") if bad}
    assert below == {"less", "gone", "first"}


def test_files_of_clients_give_group_and_client_by_their_path(tmp_path: Path) -> None:
    """And the broker by the queue; a torn file with a backup, and one without."""
    good = '{"offsetTable":{{"brokerName":"b-1","queueId":0,"topic":"T"}:5,{"brokerName":"b-1","queueId":1,"topic":"\u8bdd"}:6}}'
    files = {"c1/g/offsets.json": good, "c2/g/offsets.json": "{", "c2/g/offsets.json.bak": good, "c3/h/offsets.json": good[:-9]}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    given = section(format="rocketmq-client", shard="{broker}/{topic}/{partition}", group="{group}@{client}")
    found = pieces(find_files([Place.of(tmp_path)], given.format), given.format)
    rows = [imports.named(batch, given) for piece in found for batch in entries(piece, given.format)]
    refused = pa.concat_tables([imports.rejects(batch) for batch in rows])
    assert set(rows_of(refused, "file", "place")) == {(str(tmp_path / f"{name}/offsets.json"), "") for name in ("c2/g", "c3/h")}
    taken = pa.concat_tables([imports.accepted(batch) for batch in rows])
    assert set(rows_of(taken, "group", "shard", "offset")) == {
        (f"g@{client}", shard, offset) for client in ("c1", "c2") for shard, offset in (("b-1/T/0", 5), ("b-1/\u8bdd/1", 6))
    }


def test_a_large_json_file_is_read_in_batches_with_the_place_of_every_queue(tmp_path: Path) -> None:
    """More keys than one batch has; rejects keep their place and text."""
    table: dict[str, Any] = {f"T{number}@g": {"0": number, "3": 2 * number} for number in range(10_001)}
    path = tmp_path / "consumerOffset.json"
    path.write_text(json.dumps({"offsetTable": {**table, "T@g@h": {"0": 1}}}))
    batches = [imports.named(batch, section()) for batch in entries(Piece(Place.of(path), 1, 0, 0), "rocketmq")]
    taken = pa.concat_tables([imports.accepted(batch) for batch in batches])
    assert len(batches) > 2
    assert taken.num_rows == 20_002
    assert rows_of(taken.slice(20_001), "shard", "offset", "place") == [("T10000/3", 20_000, '$.offsetTable["T10000@g"]["3"]')]
    refused = pa.concat_tables([imports.rejects(batch) for batch in batches])
    assert rows_of(refused, "place", "reason") == [
        ('$.offsetTable["T@g@h"]', "key: has 2 @: it is unclear which one separates topic and group")
    ]

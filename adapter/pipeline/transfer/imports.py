"""The rules of an import: ENTRIES -> names, checks, duplicates, comparison with the Meta Service. Pure, on Arrow columns.

A row that is not imported has a `reason`. No offset is lowered: the largest offset of a key wins, in the files and when merged.
"""

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adapter.formats.rows import TEXT_SHOWN
from adapter.model.names import NAME_MAX_BYTES
from adapter.model.records import FIRST_EPOCH
from adapter.pipeline.config import ImportSection, fields_of
from adapter.pipeline.transfer.import_entries import VALUE_SHOWN, first_reason, shortened

KEY = ["group", "shard"]  # of a namespace
CHANGES = ("new", "raised", "unchanged", "lower")
WRITTEN = ("new", "raised")
COUNTS = (*CHANGES, "duplicates")

REJECTS = pa.schema([(name, pa.string()) for name in ("file", "place", "text", "reason")])
# The rows of the files that can be imported, in the order of the files.
NAMED = pa.schema(
    [
        *((name, pa.string()) for name in (*KEY, "topic")),
        ("partition", pa.int64()),
        ("offset", pa.int64()),
        *((name, pa.string()) for name in ("file", "place")),
    ]
)
# What the Meta Service has. An offset that Spark cannot hold is null; it is larger than any in a file.
STANDING = pa.schema([*((name, pa.string()) for name in KEY), ("epoch", pa.int64()), ("offset", pa.int64())])
PREVIEW = pa.schema(
    [
        *((name, pa.string()) for name in ("namespace", *KEY, "topic")),
        *((name, pa.int64()) for name in ("partition", "offset", "rows")),
        *((name, pa.string()) for name in ("file", "place")),
        ("standing_epoch", pa.int64()),
        ("standing_offset", pa.int64()),
        ("change", pa.string()),
    ]
)
APPLIED = pa.schema(
    [
        *((name, pa.string()) for name in ("namespace", *KEY)),
        *((name, pa.int64()) for name in ("offset", "now_epoch", "now_offset")),
        ("below", pa.bool_()),
    ]
)

_CONTROL = r"[\x00-\x1f\x7f-\x{9f}]"


def named(entries: pa.RecordBatch, section: ImportSection) -> pa.RecordBatch:
    """The columns of NAMED with `text` and `reason`, which says what is wrong with the entry or its names."""
    broker = pc.if_else(pc.equal(entries["broker"], ""), section.broker, entries["broker"])
    fields = {"topic": entries["topic"], "partition": entries["queue"], "broker": broker}
    group = filled(section.group, {"group": entries["group"], "client": entries["client"]}, entries.num_rows)
    shard = filled(section.shard, fields, entries.num_rows)
    reasons = _bad_group(entries["group"], section, entries["reason"])
    for name, column in (("topic", entries["topic"]), ("group", group), ("shard", shard)):
        reasons = _bad_name(name, column, reasons)
    columns = {"group": group, "shard": shard, "partition": entries["queue"], "reason": reasons}
    same = {name: entries[name] for name in ("topic", "offset", "file", "place", "text")}
    return pa.RecordBatch.from_pydict({**columns, **same})


def filled(pattern: str, fields: Mapping[str, pa.Array], size: int) -> pa.Array:
    """The names that a pattern such as `{topic}/{partition}` gives for fields; null where a field of the pattern is null."""
    parts: list[Any] = []
    for text, name, _, _ in Formatter().parse(pattern):
        parts += [text] if text else []
        parts += [fields[name].cast(pa.string())] if name else []
    if all(isinstance(part, str) for part in parts):
        return pa.repeat(pa.scalar("".join(parts)), size)
    return pc.binary_join_element_wise(*parts, "")


def _bad_group(groups: pa.Array, section: ImportSection, reasons: pa.Array) -> pa.Array:
    none = pc.equal(groups, "")
    if fields_of(section.group):
        return first_reason(reasons, none, "group is missing; [import] group = 'NAME' names it for all files")
    shown = f"' is not {section.group!r}, as [import] says"
    return first_reason(
        reasons,
        pc.invert(pc.or_(none, pc.equal(groups, section.group))),
        lambda bad: pc.binary_join_element_wise("group: '", shortened(groups.filter(bad), VALUE_SHOWN), shown, ""),
    )


def _bad_name(name: str, column: pa.Array, reasons: pa.Array) -> pa.Array:
    """Reasons by the rules of `model.names.check_name`."""
    size = pc.binary_length(column)
    reasons = first_reason(reasons, pc.equal(size, 0), f"{name} is empty")
    said = f" bytes long; at most {NAME_MAX_BYTES} are allowed"
    reasons = first_reason(
        reasons,
        pc.greater(size, NAME_MAX_BYTES),
        lambda bad: pc.binary_join_element_wise(f"{name} is ", size.filter(bad).cast(pa.string()), said, ""),
    )
    return first_reason(reasons, pc.match_substring_regex(column, _CONTROL), f"{name} has a control character")


def rejects(rows: pa.RecordBatch) -> pa.Table:
    """The rows with a `reason`, which are not imported."""
    bad = pa.table(rows.filter(pc.is_valid(rows["reason"])))
    texts = shortened(bad["text"], TEXT_SHOWN)
    return bad.set_column(bad.schema.get_field_index("text"), "text", texts).select(REJECTS.names).cast(REJECTS)


def accepted(rows: pa.RecordBatch) -> pa.Table:
    """The rows NAMED that are imported."""
    return pa.table(rows.filter(pc.is_null(rows["reason"]))).select(NAMED.names).cast(NAMED)


def candidates(rows: pa.Table) -> pa.Table:
    """One row NAMED for each key: that of the largest offset, of equal ones the first. `rows`: how many the files have for it."""
    rows = rows.append_column("at", _numbered(rows))
    ordered = rows.sort_by([("offset", "descending"), ("at", "ascending")])
    # Without threads, "first" is the first in this order.
    keys = ordered.group_by(KEY, use_threads=False).aggregate([("at", "first"), ([], "count_all")])
    return rows.select(NAMED.names).take(keys["at_first"]).append_column("rows", keys["count_all"])


def preview(wanted: pa.Table, standing: pa.Table, namespace: str) -> pa.Table:
    """PREVIEW: candidates with the Meta Service's offsets. A stored offset that is null is larger than any candidate."""
    there = _standing_of(wanted, standing)
    new = pc.is_null(there["at"])
    offset = wanted["offset"]
    raised = pc.fill_null(pc.greater(offset, there["offset"]), fill_value=False)
    unchanged = pc.fill_null(pc.equal(offset, there["offset"]), fill_value=False)
    columns = {
        **{name: wanted[name] for name in wanted.column_names},
        "namespace": pa.repeat(pa.scalar(namespace), wanted.num_rows),
        "standing_epoch": there["epoch"],
        "standing_offset": there["offset"],
        "change": pc.if_else(new, "new", pc.if_else(raised, "raised", pc.if_else(unchanged, "unchanged", "lower"))),
    }
    return pa.table({name: columns[name] for name in PREVIEW.names}).cast(PREVIEW)


def counts(previewed: pa.Table) -> pa.Table:
    """For each group: the shards by kind of change, and how many rows had a repeated key."""
    each = {change: pc.equal(previewed["change"], change).cast(pa.int64()) for change in CHANGES}
    table = pa.table({"group": previewed["group"], **each, "duplicates": pc.subtract(previewed["rows"], 1)})
    return summed([table])


def changes(counted: pa.Table) -> int:
    """How many offsets would be merged, by the counts of some groups."""
    return sum(pc.sum(counted[name]).as_py() for name in WRITTEN)


def summed(parts: Sequence[pa.Table]) -> pa.Table:
    """The counts of each group, from tables that may all have it."""
    none = pa.schema([("group", pa.string()), *((name, pa.int64()) for name in COUNTS)]).empty_table()
    counted = pa.concat_tables([none, *parts])
    sums = counted.group_by("group", use_threads=False).aggregate([(name, "sum") for name in COUNTS])
    return sums.select(["group", *(f"{name}_sum" for name in COUNTS)]).rename_columns(["group", *COUNTS])


def planned(previewed: pa.Table) -> pa.Table:
    """The rows that raise an offset."""
    return previewed.filter(pc.is_in(previewed["change"], pa.array(WRITTEN)))


def applied(merged: pa.Table, standing: pa.Table) -> pa.Table:
    """APPLIED: the merged rows of PREVIEW with the offsets stored now.

    `below`: the stored one is smaller, and not because of a later reset or rewind.
    """
    there = _standing_of(merged, standing)
    first = pc.fill_null(merged["standing_epoch"], 0)
    reset = pc.greater(there["epoch"], pc.max_element_wise(first, FIRST_EPOCH))
    smaller = pc.and_(pc.less(there["offset"], merged["offset"]), pc.invert(reset))
    columns = {
        **{name: merged[name] for name in ("namespace", *KEY, "offset")},
        "now_epoch": there["epoch"],
        "now_offset": there["offset"],
        "below": pc.or_(pc.is_null(there["at"]), pc.fill_null(smaller, False)),  # noqa: FBT003 - Arrow's signature
    }
    return pa.table(columns).cast(APPLIED)


def _standing_of(rows: pa.Table, standing: pa.Table) -> pa.Table:
    """For each row `at`, `epoch` and `offset` of the stored record; null without one."""
    left = rows.select(KEY).append_column("row", _numbered(rows))
    right = standing.select(KEY).append_column("at", _numbered(standing))
    at = left.join(right, KEY, join_type="left outer", use_threads=False).sort_by("row")["at"]
    return standing.select(["epoch", "offset"]).take(at).append_column("at", at)


def _numbered(table: pa.Table) -> pa.Array:
    return pa.array(np.arange(table.num_rows))

"""Parses files of offsets into Arrow columns: each entry with its place, and what cannot be read as a row with a `reason`.

A file of RocketMQ is used as a whole or not at all: if it is torn, none of its entries is taken.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adapter.formats import rocketmq_json
from adapter.formats.kafka_csv import LINE_MAX_BYTES, UNTERMINATED
from adapter.formats.rocketmq_json import Queues
from adapter.formats.rows import NotReadableError, Reject
from adapter.model.queues import QUEUE_MAX
from adapter.model.records import LONG_MAX
from adapter.pipeline.config import OffsetFormat
from adapter.pipeline.places import Place, unseen
from adapter.pipeline.transfer.import_files import Piece, backup

# `place` is a line or a JSON path, empty for a whole file. A row with a `reason` is a reject, `text` its content.
ENTRIES = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("file", "place", "client", "group", "topic", "broker")),
        pa.field("queue", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
# The fields of a CSV line as text; all four are null if a line does not have three or four fields.
FIELDS = ("group", "topic", "queue", "offset")

_KEYS = 10_000  # keys of a JSON file, each with some queues, that become one batch
_DIGITS = "^[0-9]{1,20}$"
VALUE_SHOWN = 50
# One field of a CSV line; a quote within a quoted field is doubled.
_FIELD = '(?P<f{}>"(?:[^"]|"")*"|[^",][^,]*|)'
_FOUR, _THREE = (f"(?s)^{','.join(map(_FIELD.format, range(count)))}$" for count in (4, 3))
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def entries(piece: Piece, kind: OffsetFormat) -> Iterator[pa.RecordBatch]:
    """ENTRIES of a piece: of a CSV in one batch, of a JSON file in several.

    Raises AdapterError if the file is not there: the driver has found it, and nothing is left out on the word of one machine.
    """
    if kind != "kafka-csv":
        yield from json_entries(piece.file, kind)
        return
    try:
        with piece.file.open() as file:
            file.seek(piece.start)
            data = file.read(piece.end - piece.start)
    except FileNotFoundError as error:
        raise unseen(piece.file) from error
    except OSError as error:
        yield _batch(piece.file, {"reason": pa.array([f"cannot be read: {error.strerror or error}"])})
        return
    yield csv_entries(piece, data)


def csv_entries(piece: Piece, data: bytes) -> pa.RecordBatch:
    """ENTRIES of the lines `group,topic,partition,offset`, or without the group, as kafka-consumer-groups has them.

    Blank lines are skipped. A line that is not UTF-8 is a reject, and so are a last line without a line end, in which the file
    may be cut, and a file in UTF-16.
    """
    if piece.start == 0:
        if data.startswith(_UTF16):
            return _batch(piece.file, {"reason": pa.array(["is UTF-16; save it as UTF-8"])})
        data = data.removeprefix(_BOM)
    numbers, lines, reasons = _lines(data, piece.line)
    # A piece ends with a line end, but for the last one of a file that does not.
    reasons = first_reason(
        reasons, pc.equal(numbers, piece.line + data.count(b"\n")), f"{UNTERMINATED}; if it is whole, end the line"
    )
    text = _without_return(lines)
    reasons = first_reason(
        reasons,
        pc.greater(pc.binary_length(text), LINE_MAX_BYTES),
        f"is over {LINE_MAX_BYTES:,} bytes long; no line of offsets is",
    )
    found = dict(zip(FIELDS, _fields(pc.if_else(pc.is_null(reasons), text, None)), strict=True))
    reasons = first_reason(reasons, pc.is_null(found["topic"]), "is not group,topic,partition,offset, nor topic,partition,offset")
    queues, reasons = _numbers(found["queue"], "partition", QUEUE_MAX, reasons)
    offsets, reasons = _numbers(found["offset"], "offset", LONG_MAX, reasons)
    names = {name: pc.fill_null(found[name], "") for name in ("group", "topic")}
    place = pc.binary_join_element_wise("line ", pc.cast(numbers, pa.string()), "")
    return _batch(piece.file, {"place": place, **names, "queue": queues, "offset": offsets, "text": lines, "reason": reasons})


def _lines(data: bytes, first: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    """The lines that are not blank, numbered from `first`: numbers, texts, reasons."""
    raw = pc.split_pattern(pa.array([data], pa.binary()), "\n").flatten()
    numbers = pa.array(np.arange(first, first + len(raw)))
    try:
        lines, reasons = raw.cast(pa.string()), pa.nulls(len(raw), pa.string())
    except pa.ArrowInvalid:
        lines, reasons = _decoded(raw)
    some = pc.not_equal(pc.utf8_trim_whitespace(lines), "")
    return numbers.filter(some), lines.filter(some), reasons.filter(some)


def _decoded(raw: pa.Array) -> tuple[pa.Array, pa.Array]:
    lines, reasons = [], []
    for line in raw.to_pylist():
        reason = None
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            text, reason = line.decode(errors="replace"), f"is not UTF-8 at byte {error.start + 1}"
        lines.append(text)
        reasons.append(reason)
    return pa.array(lines, pa.string()), pa.array(reasons, pa.string())


def _without_return(lines: pa.Array) -> pa.Array:
    ends = pc.ends_with(lines, "\r")
    return pc.if_else(ends, pc.utf8_slice_codeunits(lines, 0, -1), lines) if pc.any(ends).as_py() else lines


def _fields(lines: pa.Array) -> list[pa.Array]:
    """FIELDS of lines; the group of a line without one is empty. Only lines with quotes need a regular expression."""
    quoted = pc.fill_null(pc.match_substring(lines, '"'), fill_value=False)
    parts = pc.split_pattern(lines, ",")
    counts = pc.fill_null(pc.list_value_length(parts), 0).to_numpy()
    flat, first = parts.flatten(), np.cumsum(counts) - counts - (counts == 3)  # noqa: PLR2004 - fields
    wrong = (counts != 3) & (counts != 4)  # noqa: PLR2004 - fields
    found = []
    for at in range(len(FIELDS)):
        absent = wrong | ((counts == 3) if at == 0 else False)  # noqa: PLR2004 - fields
        field = flat.take(pa.array(first + at, mask=absent))
        found.append(pc.if_else(pa.array(absent & ~wrong), "", field) if at == 0 else field)
    if pc.any(quoted).as_py():
        found = [
            pc.replace_with_mask(field, quoted, other)
            for field, other in zip(found, _quoted_fields(lines.filter(quoted)), strict=True)
        ]
    return found


def _quoted_fields(lines: pa.Array) -> list[pa.Array]:
    four, three = pc.extract_regex(lines, _FOUR), pc.extract_regex(lines, _THREE)
    none = pc.if_else(pc.is_valid(three), "", None)
    found = [pc.coalesce(pc.struct_field(four, [at]), pc.struct_field(three, [at - 1]) if at else none) for at in range(4)]
    return [_unquoted(field) for field in found]


def _unquoted(field: pa.Array) -> pa.Array:
    inner = pc.replace_substring(pc.utf8_slice_codeunits(field, 1, -1), '""', '"')
    return pc.if_else(pc.starts_with(field, '"'), inner, field)


def _numbers(texts: pa.Array, name: str, largest: int, reasons: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Whole numbers from 0 to `largest`; null, with a reason, for other texts."""
    digits = pc.ascii_ltrim(texts, "0")
    size, most = pc.binary_length(digits), str(largest)
    fits = pc.or_(pc.less(size, len(most)), pc.and_(pc.equal(size, len(most)), pc.less_equal(digits, most)))
    good = pc.and_(pc.match_substring_regex(texts, _DIGITS), fits)
    shown = f"' is not a whole number from 0 to {largest}"
    reasons = first_reason(
        reasons,
        pc.invert(good),
        lambda bad: pc.binary_join_element_wise(f"{name}: '", shortened(texts.filter(bad), VALUE_SHOWN), shown, ""),
    )
    return pc.if_else(good, texts, None).cast(pa.int64()), reasons


def json_entries(path: Place, kind: OffsetFormat) -> list[pa.RecordBatch]:
    """ENTRIES of a file of RocketMQ. If it is unreadable: a reject, and the entries of its backup, which RocketMQ reads then.

    It is read to its end before anything is returned, and takes several times its size in memory. Raises as `entries`.
    """
    try:
        return _parsed(path, kind)
    except (NotReadableError, FileNotFoundError) as error:
        reason = f"cannot be read: {error.strerror}" if isinstance(error, FileNotFoundError) else str(error)
        try:
            rest = _parsed(backup(path), kind)
            reason = f"{reason}; {backup(path).name} is taken instead"
        except NotReadableError:
            rest = []
        except FileNotFoundError:
            if isinstance(error, FileNotFoundError):
                raise unseen(path) from error
            rest = []
    return [_batch(path, {"reason": pa.array([reason])}), *rest]


def _parsed(path: Place, kind: OffsetFormat) -> list[pa.RecordBatch]:
    parse = rocketmq_json.client_file if kind == "rocketmq-client" else rocketmq_json.broker_file
    batches, rejects = [], []
    try:
        file = path.open()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotReadableError(f"cannot be read: {error.strerror or error}") from error
    with file:
        found = parse(file)
        while some := list(islice(found, _KEYS)):
            rejects += [entry for entry in some if isinstance(entry, Reject)]
            batches.append(_of_queues(path, kind, [entry for entry in some if isinstance(entry, Queues)]))
    texts = {name: pa.array([getattr(row, name) for row in rejects], pa.string()) for name in ("place", "text", "reason")}
    return [*batches, _of_path(path, kind, texts)]


def _of_queues(path: Place, kind: OffsetFormat, keys: Sequence[Queues]) -> pa.RecordBatch:
    sizes = [len(key.offsets) for key in keys]
    pairs = np.fromiter(chain.from_iterable(chain.from_iterable(key.offsets for key in keys)), np.int64, 2 * sum(sizes))
    rows = pa.array(np.repeat(np.arange(len(keys)), sizes))
    queues = pa.array(pairs[::2])
    places = pa.array([key.place for key in keys], pa.string()).take(rows)
    keyed = pa.array([key.keyed for key in keys], pa.bool_()).take(rows)
    whole = pc.binary_join_element_wise(places, '["', queues.cast(pa.string()), '"]', "")
    names = {
        name: pa.array([getattr(key, name) for key in keys], pa.string()).take(rows) for name in ("group", "topic", "broker")
    }
    return _of_path(
        path, kind, {"place": pc.if_else(keyed, whole, places), **names, "queue": queues, "offset": pa.array(pairs[1::2])}
    )


def _of_path(path: Place, kind: OffsetFormat, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """ENTRIES; in a client's file, group and client are the names of its directories."""
    if kind == "rocketmq-client":
        size = len(next(iter(columns.values())))
        columns = {**columns, "group": pa.repeat(path.parent.name, size), "client": pa.repeat(path.parent.parent.name, size)}
    return _batch(path, columns)


def _batch(file: Place, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    """ENTRIES of one file. Absent names and texts are empty; other absent columns are null."""
    size = len(next(iter(columns.values())))
    empty = {name: pa.repeat(pa.scalar(""), size) for name in ("place", "client", "group", "topic", "broker", "text")}
    given = {**empty, **columns, "file": pa.repeat(pa.scalar(str(file)), size)}
    columns = {field.name: given.get(field.name, pa.nulls(size, field.type)) for field in ENTRIES}
    return pa.RecordBatch.from_pydict(columns, ENTRIES)


def first_reason(reasons: pa.Array, bad: pa.Array, text: str | Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Give the rows `bad` that have no reason this one: a text, or a function of their mask that gives a text for each."""
    bad = pc.and_(pc.is_null(reasons), pc.fill_null(bad, fill_value=False))
    if not pc.any(bad).as_py():
        return reasons
    return pc.replace_with_mask(reasons, bad, pa.scalar(text) if isinstance(text, str) else text(bad))


def shortened(texts: pa.Array, size: int) -> pa.Array:
    """The first `size` characters of each text, with ... if there are more."""
    more = pc.binary_join_element_wise(pc.utf8_slice_codeunits(texts, 0, size), "...", "")
    return pc.if_else(pc.greater(pc.utf8_length(texts), size), more, texts)

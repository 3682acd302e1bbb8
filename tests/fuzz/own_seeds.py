"""What fuzzing of our own inputs begins with: one whole example of each."""

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq

from adapter.model.schemas import BROKER, JOURNAL, JOURNAL_VERSION, VERSION_OF_JOURNAL
from adapter.rpc import meta_pb, offsets_pb
from tests.fuzz.own_inputs import BOUNDARY, batch_bytes
from tests.fuzz.rpc_seeds import EXAMPLES, OFFSET_ADMIN, commit_groups, packed_entries, save_request, wanted_groups
from tests.fuzz.running import NOW_MS
from tests.unit.helpers import packed_rows

CONFIG = Path(__file__).parents[2] / "config"


def _requests() -> Iterator[bytes]:
    """See the target for the first byte."""
    both = commit_groups()
    yield b"\0" + offsets_pb.CommitOffsetsRequest(groups=both).SerializeToString()
    yield b"\0" + offsets_pb.CommitOffsetsRequest(groups=both[1:], mode=offsets_pb.OVERWRITE).SerializeToString()
    yield b"\1" + offsets_pb.ReadOffsetsRequest(groups=wanted_groups()).SerializeToString()
    yield from (b"\2" + request.SerializeToString() for request in EXAMPLES[OFFSET_ADMIN]["ResetOffsets"][:2])
    yield b"\3" + save_request().SerializeToString()
    keys, records = packed_entries()
    yield b"\4" + meta_pb.MergeOffsetDataRequest(keys=keys, records=records, now_ms=NOW_MS).SerializeToString()
    yield b"\4" + meta_pb.MergeOffsetDataRequest(packed=packed_rows("c", keys, records)).SerializeToString()


def _forms() -> Iterator[bytes]:
    """See the target for the first byte."""
    fields = {"kind": "reset", "namespace": "default", "group": "g", "form_token": "t"}
    for more in (
        {"to": "offset", "offset": "18446744073709551615", "shards": "a\r\nb\r\n\u8bdd", "create": "yes"},
        {"to": "shift", "shift": "-5"},
        {"to": "time", "time": "2026-11-24 12:00:00Z"},
        {"to": "file", "pasted": "t,0,5\nt,1,6\n"},
        {"kind": "clone", "to_group": "h"},
        {"kind": "delete", "shards": "a"},
    ):
        yield b"\0" + urlencode({**fields, **more}).encode()
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}' for name, value in (fields | {"to": "file"}).items()]
    parts.append(
        'Content-Disposition: form-data; name="file"; filename="plan.json"\r\nContent-Type: application/json\r\n\r\n'
        '[{"group":"g","shard":"t/0","offset":1}]'
    )
    border = b"--" + BOUNDARY
    yield b"\1" + b"".join(border + b"\r\n" + part.encode() + b"\r\n" for part in parts) + border + b"--\r\n"


def _settings() -> Iterator[bytes]:
    yield from (path.read_bytes() for path in sorted(CONFIG.glob("*.toml")))
    yield b'[server]\nlisten = "[::1]:9520"\nunix_socket = "/run/a"\nunix_socket_mode = "0660"\nunix_socket_group = "0"\n'
    yield b'[[policy]]\ngroups = "a-*"\nmode = "write_through"\n[etcd]\nmetadata = {endpoints = ["a:1"]}\n'


def _batch() -> pa.RecordBatch:
    row = {field.name: _value(field) for field in JOURNAL}
    return pa.RecordBatch.from_pylist([row | {"seq": seq} for seq in range(3)], schema=JOURNAL)


def _value(field: pa.Field) -> object:
    if pa.types.is_string(field.type):
        return "flush" if field.name == "kind" else "x"
    if pa.types.is_boolean(field.type):
        return True
    return 1


def _segments() -> Iterator[bytes]:
    table = pa.Table.from_batches([_batch()]).replace_schema_metadata({VERSION_OF_JOURNAL: JOURNAL_VERSION, BROKER: "b"})
    for compression in ("zstd", "none"):
        sink = BytesIO()
        pq.write_table(table, sink, compression=compression, write_page_checksum=True)
        yield sink.getvalue()


def _open_segments() -> Iterator[bytes]:
    yield batch_bytes(_batch())
    yield batch_bytes(_batch()) + bytes(64)


OWN_SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "requests": _requests,
    "forms": _forms,
    "settings": _settings,
    "segment": _segments,
    "open_segment": _open_segments,
}

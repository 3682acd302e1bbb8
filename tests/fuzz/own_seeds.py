"""What fuzzing of our own inputs begins with: one whole example of each."""

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq

from adapter.model.codec import encode_key, encode_record
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.model.schemas import BROKER, JOURNAL, JOURNAL_VERSION, VERSION_OF_JOURNAL
from adapter.rpc import meta_pb, offsets_pb
from tests.fuzz.own_inputs import BOUNDARY, NOW_MS, batch_bytes
from tests.unit.helpers import packed_rows

CONFIG = Path(__file__).parents[2] / "config"
NAMES = ("s", "topic/3", "\u8bdd", "x" * 255)


def _requests() -> Iterator[bytes]:
    """See the target for the first byte."""
    shards = [offsets_pb.ShardCommit(shard=name, offset=at, epoch=at) for at, name in enumerate(NAMES)]
    shards[0].metadata, shards[0].topic, shards[0].committed_at_ms, shards[0].partition = "m", "t", NOW_MS, 7
    shards[1].low_watermark, shards[1].high_watermark = 1, 2**63
    group = offsets_pb.GroupCommits(group="g", shards=shards, generation=3, member_id="m")
    columns = offsets_pb.GroupCommits(
        namespace="n", group="h", shard_names=NAMES, offsets=[0, 1, 2, 2**64 - 1], epochs=[0, 1, 1, 2]
    )
    yield b"\0" + offsets_pb.CommitOffsetsRequest(groups=[group, columns]).SerializeToString()
    yield b"\0" + offsets_pb.CommitOffsetsRequest(groups=[columns], mode=offsets_pb.OVERWRITE).SerializeToString()
    wanted = [
        offsets_pb.GroupShards(group="g", shards=NAMES),
        offsets_pb.GroupShards(group="g"),
        offsets_pb.GroupShards(group="h"),
    ]
    yield b"\1" + offsets_pb.ReadOffsetsRequest(groups=wanted).SerializeToString()
    targets = [offsets_pb.ResetOffsetsRequest.Target(shard=name, offset=5) for name in NAMES]
    yield (
        b"\2"
        + offsets_pb.ResetOffsetsRequest(
            group="g", to_targets=offsets_pb.ResetOffsetsRequest.Targets(targets=targets)
        ).SerializeToString()
    )
    yield b"\2" + offsets_pb.ResetOffsetsRequest(group="g", shards=NAMES, to_offset=7, create=True).SerializeToString()
    save = meta_pb.SaveOffsetDataRequest(cluster_name="c")
    group_of_save = save.offsets.add(group="g", tenant="n")
    for at, name in enumerate(NAMES):
        group_of_save.offsets.add(shard_name=name, offset=at, epoch=at, topic="t", metadata="m", tombstone=at == 2)
    yield b"\3" + save.SerializeToString()
    keys = [encode_key(OffsetKey("n", "g", name)) for name in NAMES]
    records = [encode_record(OffsetRecord(1 + at, at, at != 2, NOW_MS, "m" * at, "t" * at)) for at in range(len(NAMES))]
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

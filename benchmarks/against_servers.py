"""The gRPC servers of this tree against those of another checkout, in turns: commits over TLS, and large saves at a Meta Service.

    python -m benchmarks.against_servers /path/of/the/other/checkout [ROUNDS]

Commits are sent by h2load, 64 in flight on one connection: the same offset each time, so that what is measured is the server.
Saves have 20,000 offsets, in the form of a flush, on one connection; with `new` each has a connection of its own.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import numpy as np
import psutil

from adapter.model.codec import encode_fields, pack_names
from adapter.model.records import OffsetRecord
from adapter.rpc import meta_grpc, meta_pb, offsets_grpc, offsets_pb
from benchmarks import h2load
from benchmarks.against import ROOT, Tree, cpu_s
from benchmarks.http2_load import UNARY

PORT, META_PORT = 19_540, 19_550
WARM_UP = 10
SAVES = 25
OFFSETS = 20_000
KEYS = [pack_names("default", f"group-{at % 50}", f"shard-{at}") for at in range(OFFSETS)]
READY_S = 30.0
COMMITS, OF_THE_OTHER = 60_000, 6_000

Found = dict[str, float]


def certificate(directory: Path) -> str:
    """The settings of TLS, with a new certificate."""
    cert, key = directory / "cert", directory / "key"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=a"]
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return f"[server.tls]\ncert = '{cert}'\nkey = '{key}'\n"


def commits(tree: Tree, directory: Path, count: int) -> Found:
    """Commits a second over TLS, and the adapter's CPU for one."""
    settings = tree.adapter(PORT, META_PORT, directory) + certificate(directory)
    request = offsets_pb.CommitOffsetsRequest(
        groups=[offsets_pb.GroupCommits(group="g", shards=[offsets_pb.ShardCommit(shard="queue-0", offset=1)])]
    )
    body = directory / "body"
    body.write_bytes(h2load.frame(request.SerializeToString()))
    with tree.process("meta", tree.meta(META_PORT, directory), directory), tree.process("serve", settings, directory) as adapter:
        with grpc.insecure_channel(f"unix:{directory}/a.sock") as channel:
            stub = offsets_grpc.OffsetStoreStub(channel)
            _until(lambda: stub.CommitOffsets(request, timeout=2.0))
        before = cpu_s(adapter)
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        command = [h2load.COMMAND, f"-n{count}", "-c1", "-m64", "-d", str(body), *headers, f"https://127.0.0.1:{PORT}{UNARY}"]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        spent = cpu_s(adapter) - before
    succeeded, rate = re.search(r"(\d+) succeeded", told), re.search(r", ([\d.]+) req/s", told)
    assert succeeded, told
    assert rate, told
    assert int(succeeded[1]) == count, told
    return {"commits/s over TLS": float(rate[1]), "us of CPU a commit over TLS": spent / count * 1e6}


def saves(tree: Tree, directory: Path) -> Found:
    """The Meta Service's CPU for a save, in the form in which an adapter of that tree flushes."""
    save = _as_columns if "def _columns" in (tree.root / "adapter/meta/packed.py").read_text() else _as_rows
    found: Found = {}
    with tree.process("meta", tree.meta(META_PORT, directory), directory) as meta, _channel() as channel:
        kept = meta_grpc.MetaServiceServiceStub(channel)
        _until(lambda: kept.MergeOffsetData(save(1), timeout=2.0))

        def with_kept(offset: int) -> None:
            kept.MergeOffsetData(save(offset), timeout=READY_S)

        def with_new(offset: int) -> None:
            with _channel() as new:
                meta_grpc.MetaServiceServiceStub(new).MergeOffsetData(save(offset), timeout=READY_S)

        _spent_ms(meta, with_kept, range(2, 2 + WARM_UP))
        found["ms of CPU a save"] = _spent_ms(meta, with_kept, range(100, 100 + SAVES))
        found["ms of CPU a save, new"] = _spent_ms(meta, with_new, range(200, 200 + SAVES))
    return found


def _spent_ms(meta: psutil.Process, save: Callable[[int], None], offsets: Sequence[int]) -> float:
    before = cpu_s(meta)
    for offset in offsets:
        save(offset)
    return (cpu_s(meta) - before) / len(offsets) * 1e3


def _channel() -> grpc.Channel:
    return grpc.insecure_channel(f"127.0.0.1:{META_PORT}", [("grpc.use_local_subchannel_pool", 1)])


def _as_rows(offset: int) -> meta_pb.MergeOffsetDataRequest:
    return meta_pb.MergeOffsetDataRequest(tell_standing=True, keys=KEYS, records=[_record(offset)] * OFFSETS)


def _as_columns(offset: int) -> meta_pb.MergeOffsetDataRequest:
    cluster, record = pack_names("default"), _record(offset)
    rows = meta_pb.PackedRows(keys=cluster + cluster.join(KEYS), records=record * OFFSETS)
    rows.key_sizes = np.fromiter((len(cluster) + len(key) for key in KEYS), "<u2").tobytes()
    rows.record_sizes = np.full(OFFSETS, len(record), "<u2").tobytes()
    return meta_pb.MergeOffsetDataRequest(tell_standing=True, packed=rows)


def _record(offset: int) -> bytes:
    return encode_fields(OffsetRecord(1, offset, True, int(time.time() * 1000)))  # noqa: FBT003 - a live one


def _until(call: Callable[[], object]) -> None:
    """Call until it is answered."""
    until = time.monotonic() + READY_S
    while True:
        try:
            call()
        except grpc.RpcError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def main(other: Path, rounds: int) -> None:
    """Measure and print."""
    ours, theirs = Tree(ROOT), Tree(other)
    found: dict[Tree, list[Found]] = {ours: [], theirs: []}
    for number in range(rounds):
        for tree in (ours, theirs) if number % 2 else (theirs, ours):
            with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
                count = COMMITS if tree is ours else OF_THE_OTHER
                found[tree].append(commits(tree, Path(one), count) | saves(tree, Path(two)))
            print(tree.root, {key: round(value, 2) for key, value in found[tree][-1].items()}, flush=True)
    for key in found[ours][0]:
        one_, two_ = (statistics.median(row[key] for row in found[tree]) for tree in (ours, theirs))
        print(f"{key:32} {one_:12,.2f} {two_:12,.2f}  ratio {one_ / two_:.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 5)

"""`python -m tests.upgrade.fixtures NAME [COMMIT]`: has a release write each durable form into tests/data/releases/NAME.

    written.tar.gz    adapter/, meta/: stores after kill -9; journal/: finished segments and an open one; snapshot/; offset-file/
    etcd.json         the keys and values of a Meta Service in etcd, in hexadecimal
    expected.json     what stands in the adapter's store, as that release answers
    program.tar.xz    what is kept of its program

A release that is not in releases.toml yet is added there, with its COMMIT: a tag, a branch or a number. Needs etcd.
"""

import json
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from adapter.rpc import etcd_grpc, etcd_pb
from adapter.testing.etcd import LocalCluster
from adapter.testing.processes import adapter_process, ended, meta_process
from tests.durability.etcd_cluster import meta_process as etcd_meta_process
from tests.upgrade.releases import Program, Release, add, from_git, of_release, program_of, releases

STORED = ("adapter", "meta", "journal", "snapshot", "offset-file")
# RocksDB's own log, and the adapter's file that names the boot of this machine: another one would take it for a power cut.
WITHOUT = ("LOG", "running")
BROKER = "broker-1"
TURNS = 2


def write(release: Release, directory: Path) -> None:
    """Write all of them, with processes in `directory`."""
    program = program_of(release)
    release.data.mkdir(parents=True, exist_ok=True)
    release.program.write_bytes(lzma.compress(from_git(release), preset=9 | lzma.PRESET_EXTREME))
    expected = _stores(program, directory)
    _run(program, "file", str(directory / "offset-file"))
    with tarfile.open(release.data / "written.tar.gz", "w:gz", compresslevel=9) as archive:
        for name in STORED:
            archive.add(directory / name, name, filter=_stripped)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in expected)
    (release.data / "expected.json").write_text(f"[\n{lines}\n]\n")
    (release.data / "etcd.json").write_text(json.dumps(_etcd(program, directory / "on-etcd"), indent=0) + "\n")


def _stores(program: Program, directory: Path) -> list[object]:
    """Both stores, the journal and a snapshot; returns what stands."""
    meta = of_release(meta_process(directory), program)
    journal = f"[journal]\npath = '{directory / 'journal'}'\n"
    adapter = of_release(adapter_process(directory, meta.address, top=f"broker = '{BROKER}'", extra=journal), program)
    with ended(meta, adapter):
        meta.start()
        for turn in range(1, TURNS + 1):
            adapter.start()
            _run(program, "commit", adapter.address, str(turn))
            _run(program, "flushed", adapter.address)
            if turn < TURNS:
                adapter.stop()  # finishes a segment
        (directory / "snapshot").mkdir()
        taking = [*program.command, "snapshot", "--output", str(directory / "snapshot"), "--address", adapter.address]
        subprocess.run(taking, env={**os.environ, **program.environment}, check=True)
        expected: list[object] = json.loads(_run(program, "rows", adapter.address))
    return expected


def _etcd(program: Program, directory: Path) -> dict[str, dict[str, str]]:
    """What the same commits and an entry of metadata become in etcd, by Raft group."""
    with running_etcd(directory) as (metadata, offsets):
        meta = of_release(etcd_meta_process(directory, metadata.endpoints, offsets.endpoints), program)
        adapter = of_release(adapter_process(directory, meta.address, top=f"broker = '{BROKER}'"), program)
        with ended(meta, adapter):
            meta.start()
            adapter.start()
            for turn in range(1, TURNS + 1):
                _run(program, "commit", adapter.address, str(turn))
            _run(program, "flushed", adapter.address)
            putting = [*program.command, "meta", "kv", "put", "jobs/compaction", "node3", "--address", meta.address]
            subprocess.run(putting, env={**os.environ, **program.environment}, check=True)
        return {"metadata": dump(metadata), "offsets": dump(offsets)}


@contextmanager
def running_etcd(directory: Path) -> Iterator[tuple[LocalCluster, LocalCluster]]:
    """An etcd for metadata, and one for offsets, of one member each."""
    clusters = tuple(LocalCluster(name, members=1, directory=directory / name) for name in ("metadata", "offsets"))
    try:
        for cluster in clusters:
            cluster.start()
        yield clusters[0], clusters[1]
    finally:
        for cluster in clusters:
            cluster.stop()


def dump(cluster: LocalCluster) -> dict[str, str]:
    """All keys and values, in hexadecimal."""
    with grpc.insecure_channel(cluster.endpoints[0]) as channel:
        request = etcd_pb.RangeRequest(key=b"\0", range_end=b"\0")
        found = etcd_grpc.KVStub(channel).Range(request, timeout=60)
    return {row.key.hex(): row.value.hex() for row in found.kvs}


def load(cluster: LocalCluster, rows: dict[str, str]) -> None:
    """Put what `dump` gave."""
    with grpc.insecure_channel(cluster.endpoints[0]) as channel:
        stub = etcd_grpc.KVStub(channel)
        for key, value in rows.items():
            stub.Put(etcd_pb.PutRequest(key=bytes.fromhex(key), value=bytes.fromhex(value)), timeout=60)


def _run(program: Program, *arguments: str) -> str:
    command = [*program.python, str(Path(__file__).with_name("fill.py")), *arguments]
    done = subprocess.run(command, env={**os.environ, **program.environment}, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _stripped(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without RocksDB's log, times and owners, so that the archive is small and says nothing of the machine."""
    if Path(entry.name).name.startswith(WITHOUT):
        return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    if len(sys.argv) > 2:
        add(*sys.argv[1:])
    (chosen,) = [release for release in releases() if release.name == sys.argv[1]]
    with tempfile.TemporaryDirectory(prefix="fixtures-") as place:
        write(chosen, Path(place))

"""The command `snapshot`: writes all local records of an adapter to a Parquet file, which `offset-adapter-spark reconcile` reads.

The file appears completely or not at all: it is written under a temporary name, synced, and renamed after the last record.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from adapter.cli import options
from adapter.cli.connection import CallError, Target, connected, run
from adapter.cli.output import progress, tell, warn
from adapter.cli.table import print_json
from adapter.errors import ConfigError, InvalidInputError
from adapter.rpc import offsets_pb
from adapter.runtime.durable import files
from adapter.runtime.version import install_extra
from adapter.runtime.wording import counted

if TYPE_CHECKING:
    from adapter.cli.files.snapshot_file import SnapshotFile

TIMEOUT_S = 30.0  # between two replies; the adapter needs milliseconds for each

Reply = offsets_pb.SnapshotOffsetsReply


@click.command()
@click.option(
    "--output",
    required=True,
    metavar="FILE|DIRECTORY",
    help="The Parquet file to write, or a directory that gets BROKER-TIME.parquet; one with a / at its end is made.",
)
@options.target
@options.as_json
def snapshot(output: str, target: Target, *, as_json: bool) -> None:
    """Write all local offsets as they are at one instant to a Parquet file, tombstones included, while the adapter serves."""
    if output == files.STDIO:
        raise InvalidInputError("--output: Parquet cannot go to standard output; name a file or a directory")
    run(take, target, output, as_json)


async def take(target: Target, output: str, as_json: bool) -> None:
    """Take a snapshot and print its counts. Raises CallError, InvalidInputError for the file, ConfigError without pyarrow."""
    kind = _file_kind()
    async with connected(target) as client:
        replies = aiter(client.admin.SnapshotOffsets(offsets_pb.SnapshotOffsetsRequest()))
        first = await _next(replies, target)
        if first is None or not first.HasField("head"):
            raise CallError(f"{target.address}: did not begin with the snapshot's head")
        head = first.head
        path = _path(output, head)
        with files.replacing(path) as raw, progress("records", head.records) as advance, kind(raw, head) as file:
            while page := await _next(replies, target):
                file.add(page.keys, page.records)
                advance(len(page.keys))
            if file.records != head.records:
                raise CallError(
                    f"{target.address}: sent {file.records:,} of {counted(head.records, 'record')}; nothing was written"
                )
    _tell(path, file, head, as_json=as_json)


def _file_kind() -> "type[SnapshotFile]":
    try:
        from adapter.cli.files.snapshot_file import SnapshotFile  # noqa: PLC0415 - needs the extra `journal`
    except ModuleNotFoundError as error:
        raise ConfigError(f"snapshots need {error.name}, which is not installed: {install_extra('journal')}") from error
    return SnapshotFile


async def _next(replies: AsyncIterator[Reply], target: Target) -> Reply | None:
    """The next reply; None after the last one. Raises CallError if none comes within TIMEOUT_S."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await anext(replies, None)
    except TimeoutError as error:
        raise CallError(f"{target.address}: sent nothing for {TIMEOUT_S:g} s; nothing was written") from error


def _path(output: str, head: Reply.Head) -> Path:
    """The file to write. A trailing slash names a directory, which is made. Raises InvalidInputError if it cannot be made."""
    path = Path(output)
    if output.endswith("/"):
        _make(path, output)
    return path / f"{quote(head.broker, safe='')}-{head.taken_at_ms}.parquet" if path.is_dir() else path


def _make(path: Path, output: str) -> None:
    if path.exists() and not path.is_dir():
        raise InvalidInputError(f"--output {output}: is a file, and the slash at its end means a directory")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"--output {output}: cannot be made: {error.strerror}") from error


def _tell(path: Path, file: "SnapshotFile", head: Reply.Head, *, as_json: bool) -> None:
    counts = {"records": file.records, "tombstones": file.tombstones, "dirty": file.dirty, "problems": file.problems}
    if as_json:
        print_json({"path": str(path), "broker": head.broker, "taken_at_ms": head.taken_at_ms, **counts})
        return
    tell(
        f"{path}: {counted(file.records, 'record')} of {head.broker}, of which {file.tombstones:,} are tombstones; "
        f"{file.dirty:,} may not be in the Meta Service yet"
    )
    if file.problems:
        warn(f"{counted(file.problems, 'value')} that Spark's numbers cannot hold; the column `problem` names it")

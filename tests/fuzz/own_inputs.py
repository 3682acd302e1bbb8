"""Targets for what clients, operators and crashes hand to the programs: bytes in, an error out when a promise is broken.

The promises: a bad request, form or setting is refused by the error for it, never by another one; a segment that is torn says so;
and what may be parsed in two ways comes out the same.
"""

import contextlib
import tomllib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError, Message
from starlette.exceptions import HTTPException
from starlette.requests import Request

from adapter.console.access.csrf import Form, _read
from adapter.console.changes.wish import requests_of, wish_of
from adapter.console.config import ConsoleConfig
from adapter.errors import ConfigError, InvalidInputError
from adapter.meta.wire import save_entries
from adapter.metaservice.bulk_checks import Checked, check, check_packed
from adapter.metaservice.config import MetaConfig
from adapter.metaservice.offset_service import _problems
from adapter.model.names import check_name
from adapter.pipeline.config import JobConfig
from adapter.pipeline.journal.listing import Segment
from adapter.pipeline.journal.segment import UNREADABLE, read_segment
from adapter.rpc import meta_pb, offsets_pb
from adapter.runtime.settings.config import parse
from adapter.sidecar.api.commit_requests import ParsedCommit, parse_commit, parse_in_slices, size_of
from adapter.sidecar.api.requests import parse_reset, parse_wanted
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.journal import frames
from tests.fuzz.running import NOW_MS, directory, wait
from tests.unit.helpers import packed_rows

FITS = 2**16 - 2  # bytes of a key or record in columns, with the cluster in front
BOUNDARY = b"fuzz"
CONFIGS = (AdapterConfig, MetaConfig, ConsoleConfig, JobConfig)


def requests(data: bytes) -> None:
    """A request that is parsed in two ways, or entry by entry: its first byte chooses the kind. All calls are in rpcs.py."""
    kind, parsed = KINDS[data[0] % len(KINDS)] if data else KINDS[0]
    request = kind()
    try:
        request.ParseFromString(data[1:])
    except DecodeError:
        return
    parsed(request)


def _commit(request: offsets_pb.CommitOffsetsRequest) -> None:
    """In one go and in slices: the same commit, or the same error."""

    async def in_slices() -> ParsedCommit:
        return await parse_in_slices(request.groups, request.mode, NOW_MS)

    found, error = _refused(lambda: parse_commit(request, NOW_MS))
    assert (found, error) == _refused(lambda: wait(in_slices()))
    size = size_of(request.groups)
    if found:
        offered = dict(found.commit.offered())
        assert len(offered) <= size
        for key, record in offered.items():
            assert all(check_name(name, "name") for name in key)
            assert record.live


def _read_wanted(request: offsets_pb.ReadOffsetsRequest) -> None:
    found, _ = _refused(lambda: wait(parse_wanted(request.groups)))
    if found:
        assert len({wanted.group for wanted in found}) == len(found)


def _reset(request: offsets_pb.ResetOffsetsRequest) -> None:
    _refused(lambda: wait(parse_reset(request)))


def _save(request: meta_pb.SaveOffsetDataRequest) -> None:
    """Each entry is good, or has a reason."""
    entries = list(save_entries(request, NOW_MS))
    assert len(_problems(entries, 0)) == len(entries)


def _merge(request: meta_pb.MergeOffsetDataRequest) -> None:
    """Checked together, as columns, and each alone: the same entries are good."""
    _refused(lambda: wait(check_packed(request.packed, "c", NOW_MS)))
    keys, records = list(request.keys), list(request.records)
    together, _ = _refused(lambda: wait(check(keys, records, NOW_MS)))
    if together:
        if keys and max(map(len, [*keys, *records])) < FITS:
            assert wait(check_packed(packed_rows("c", keys, records), "c", NOW_MS)) == together
        alone = Checked()
        for at, (key, record) in enumerate(zip(keys, records, strict=True)):
            found = wait(check([key], [record], NOW_MS))
            alone.add(found.keys, found.records, found.newest_ms)
            alone.rejected += [one._replace(at=at) for one in found.rejected]
        assert together == alone


KINDS: Sequence[tuple[Callable[[], Message], Callable[[Any], None]]] = (
    (offsets_pb.CommitOffsetsRequest, _commit),
    (offsets_pb.ReadOffsetsRequest, _read_wanted),
    (offsets_pb.ResetOffsetsRequest, _reset),
    (meta_pb.SaveOffsetDataRequest, _save),
    (meta_pb.MergeOffsetDataRequest, _merge),
)


def forms(data: bytes) -> None:
    """A form of the console; its first byte says how it is encoded."""
    with warnings.catch_warnings():
        # Starlette leaves the file of a form that is torn to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        _form(data)


def _form(data: bytes) -> None:
    encoded = not data or data[0] % 2 == 0
    kind = b"application/x-www-form-urlencoded" if encoded else b"multipart/form-data; boundary=" + BOUNDARY

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data[1:], "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", kind)], "app": None}
    try:
        form = wait(_read(Request(scope, receive)))
    except HTTPException as error:
        status = error.status_code
    else:
        _wish(form)
        return
    assert status in {400, 413}


def _wish(form: Form) -> None:
    wish, _ = _refused(lambda: wish_of(form))
    if wish:
        assert all(check_name(shard, "shard") for shard in wish.named)
        if wish.to != "time":
            assert all(request.SerializeToString() for request in requests_of(wish, wish.named))


def settings(data: bytes) -> None:
    """A configuration file, as each kind of process reads it."""
    try:
        values = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return
    for kind in CONFIGS:
        with contextlib.suppress(ConfigError):
            parse(values, kind, source="fuzz")


def segment(data: bytes) -> None:
    """A segment of a journal: rows, and behind them at most one that says why the rest cannot be read."""
    of = Segment(str(directory()), "2026-11-24", "b", 1_795_442_400_000, 1, len(data))
    path = Path(of.root, of.relative)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    kinds = [row for batch in read_segment(of) for row in batch.column("kind").to_pylist()]
    assert UNREADABLE not in kinds[:-1]


def open_segment(data: bytes) -> None:
    """What a killed process left of a segment: whole frames, then a number of torn bytes."""
    found = frames.read(data)
    assert 0 <= found.torn <= len(data)
    if found.rows is not None:
        again = [frames.framed(found.rows.schema.serialize())]
        again += [frames.framed(batch.serialize()) for batch in found.rows.to_batches()]
        assert frames.read(b"".join(again)).rows == found.rows


OWN_INPUTS: dict[str, Callable[[bytes], None]] = {
    "requests": requests,
    "forms": forms,
    "settings": settings,
    "segment": segment,
    "open_segment": open_segment,
}


def _refused(parsed: Callable[[], Any]) -> tuple[Any, str]:
    """What was parsed, or the words of the error that refuses it."""
    try:
        return parsed(), ""
    except InvalidInputError as error:
        return None, str(error)


def batch_bytes(batch: pa.RecordBatch) -> bytes:
    """A batch as the whole content of an open segment."""
    return frames.framed(batch.schema.serialize()) + frames.framed(batch.serialize())

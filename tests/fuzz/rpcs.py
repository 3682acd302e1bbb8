"""A target for each service of ours: the first byte of an input chooses the method, the others are its request.

The promises: a call is answered, or refused with a status that is documented for it, and then nothing is stored; what is stored
can be read again; a page token that is answered is taken back, and pages end. UNCALLED has the services without a target.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache, partial
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from adapter.rpc import meta_pb, offsets_pb
from tests.fuzz.messages import changed
from tests.fuzz.rpc_seeds import META, METADATA, OFFSET_ADMIN, OFFSET_LAG, OFFSET_STORE, SCALER, STORE_BACKUP, examples
from tests.fuzz.rpc_servers import Adapters, MetaServices, Served, call
from tests.fuzz.running import at_end, wait
from tests.unit.calls import AbortedError

Code = grpc.StatusCode
Opening = Callable[[], AbstractAsyncContextManager[Served]]

SERVICES: Mapping[str, str] = {
    "offset_store": OFFSET_STORE,
    "offset_admin": OFFSET_ADMIN,
    "offset_lag": OFFSET_LAG,
    "external_scaler": SCALER,
    "meta_service": META,
    "metadata_store": METADATA,
    "store_backup": STORE_BACKUP,
}

# Services of which we are the client.
UNCALLED: Mapping[str, str] = {
    "offsets.v1.BrokerLog": "brokers answer it; what they answer is in replies.py",
    "broker.BrokerService": "a RobustMQ broker answers it; what it sends is in robustmq.py",
    **dict.fromkeys(
        (f"etcdserverpb.{name}" for name in ("KV", "Lease", "Cluster", "Maintenance", "Auth")),
        "etcd answers it, which only the Meta Service talks to",
    ),
}

_STALE = ((Code.UNAVAILABLE, "is not known here, but"), (Code.FAILED_PRECONDITION, "ILLEGAL_GENERATION"))

# What else than INVALID_ARGUMENT a request may get, with words of its reason.
REFUSALS: Mapping[str, Sequence[tuple[Code, str]]] = {
    **dict.fromkeys(("CommitOffsets", "StreamCommits", "CommitBroadcast", "ImportOffsets"), _STALE),
    "GetGroupLag": ((Code.NOT_FOUND, "no lag of"),),
    "GetMetrics": tuple(
        (Code.UNAVAILABLE, words)
        for words in (
            "was ever committed here",
            "nobody told the end",
            "nobody has committed to",
            "in seconds is not known yet",
            "seconds ago",
        )
    ),
    **dict.fromkeys(("Put", "Delete"), ((Code.ABORTED, "expected was"),)),
}

PAGES_MAX = 64  # of one listing


def methods_of(service: str) -> Sequence[MethodDescriptor]:
    """In the order of the proto file."""
    found: Sequence[MethodDescriptor] = descriptor_pool.Default().FindServiceByName(service).methods
    return found


def request_of(service: str, data: bytes) -> tuple[MethodDescriptor, Any]:
    """What an input calls. Raises DecodeError."""
    methods = methods_of(service)
    method = methods[data[0] % len(methods)] if data else methods[0]
    return method, GetMessageClass(method.input_type).FromString(data[1:])


def called(service: str, data: bytes) -> None:
    """A call, and all pages that follow it."""
    try:
        method, request = request_of(service, data)
    except DecodeError:
        return
    running = _running(service)
    before = running.served.content()
    try:
        replies = _answered(running, service, method, request)
        if replies:
            _follow(running, service, method, request, replies[-1])
        if running.served.content() != before:
            running.served.check()
    finally:
        if running.served.content() != before:
            running.renew()


def _answered(running: "Running", service: str, method: MethodDescriptor, request: Any) -> Sequence[Any]:
    """The replies; none if it was refused."""
    before = running.served.content()
    try:
        replies = wait(call(running.served.servicers[service], method, request))
    except AbortedError as error:
        code, text = error.args
    else:
        code, text = Code.OK, ""
        for reply in replies:
            assert reply.DESCRIPTOR is method.output_type
            assert len(reply.SerializeToString()) == reply.ByteSize()
            if isinstance(reply, offsets_pb.StreamCommitsReply):  # has the status itself
                assert (reply.id, reply.covers) == (request.id, 1)
                code, text = _CODES[reply.code], reply.message
    running.check()
    if code is Code.OK:
        return replies
    refusals = [(Code.INVALID_ARGUMENT, ""), *REFUSALS.get(method.name, ())]
    assert any(code is known and words in text for known, words in refusals), (code, text)
    assert running.served.content() == before, text
    return ()


def _follow(running: "Running", service: str, method: MethodDescriptor, request: Any, reply: Any) -> None:
    """Read the pages behind a reply."""
    if "next_page_token" not in method.output_type.fields_by_name:
        return
    seen = {request.SerializeToString()}
    while reply.next_page_token and len(seen) < PAGES_MAX:
        request.page_token = reply.next_page_token
        if isinstance(request, meta_pb.BatchGetOffsetDataRequest):
            del request.groups[: len(reply.groups) - 1]
        asked = request.SerializeToString()
        assert asked not in seen, "the same page again"
        seen.add(asked)
        (reply,) = _answered(running, service, method, request)


class Running:
    """A server that goes on between inputs. In a task of its own, which opens and closes it."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._begin()
        at_end(_kept.cache_clear)
        at_end(self.end)

    def check(self) -> None:
        """Raise what has ended it."""
        if self._task.done():
            self._task.result()

    def renew(self) -> None:
        """Go on with a new one."""
        self.end()
        self._begin()

    def end(self) -> None:
        """Close it."""
        wait(self._ended())

    def _begin(self) -> None:
        async def begin() -> Served:
            self._stop = asyncio.Event()
            found: asyncio.Future[Served] = asyncio.get_running_loop().create_future()

            async def serve() -> None:
                async with self._opening() as served:
                    found.set_result(served)
                    await self._stop.wait()

            self._task = asyncio.create_task(serve())
            both: list[asyncio.Future[Any]] = [self._task, found]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            return await found

        self.served = wait(begin())

    async def _ended(self) -> None:
        self._stop.set()
        await self._task


_CODES = {code.value[0]: code for code in Code}


def _running(service: str) -> Running:
    """The server of a service, which begins with the first input."""
    return _kept(_OPENINGS[service])


@cache
def _kept(opening: Opening) -> Running:
    return Running(opening)


_adapters, _metas = Adapters(), MetaServices()
_OPENINGS: Mapping[str, Opening] = {
    **dict.fromkeys((OFFSET_STORE, OFFSET_ADMIN), _adapters.served),
    **dict.fromkeys((OFFSET_LAG, SCALER), _adapters.lag_served),
    **dict.fromkeys((META, METADATA, STORE_BACKUP), _metas.served),
}

RPCS: Mapping[str, Callable[[bytes], None]] = {target: partial(called, service) for target, service in SERVICES.items()}


def changed_call(target: str, data: bytes, rng: random.Random) -> bytes:
    """An input with some fields of its request changed."""
    return data[:1] + changed(request_of(SERVICES[target], data)[1], rng)


def rpc_seeds(target: str) -> Iterator[bytes]:
    """The examples of its methods."""
    service = SERVICES[target]
    yield from examples(service, [method.name for method in methods_of(service)])

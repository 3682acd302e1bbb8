"""The scenarios of clients.md with grpcio, which is the C++ core: one program, one channel, one report."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapter.rpc import offsets_grpc, offsets_pb

if TYPE_CHECKING:  # the generated code has these only for the checker
    Stub: TypeAlias = offsets_grpc.OffsetStoreAsyncStub
    Call: TypeAlias = grpc.aio.StreamStreamCall[offsets_pb.StreamCommitsRequest, offsets_pb.StreamCommitsReply]

Report = dict[str, Any]
DEADLINE_S = 30.0
RETRY_S = 0.02
RESTART_S = 60.0
METADATA = "m" * 4096
OPTIONS = (("grpc.enable_retries", 0),)
NO_POLICY = (("grpc.service_config_disable_resolution", 1),)  # transparent retries alone
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)


def commit(group: str, *shards: tuple[str, int]) -> offsets_pb.CommitOffsetsRequest:
    """Offsets of shards of a group."""
    entries = [offsets_pb.ShardCommit(shard=shard, offset=offset) for shard, offset in shards]
    return offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=entries)])


def bulk(group: str, count: int) -> offsets_pb.CommitOffsetsRequest:
    """About 4,111 bytes for each of `count` shards."""
    entries = [offsets_pb.ShardCommit(shard=f"s-{at}", offset=1, metadata=METADATA) for at in range(count)]
    return offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=entries)])


def streamed(number: int, request: offsets_pb.CommitOffsetsRequest) -> offsets_pb.StreamCommitsRequest:
    """A request of a stream."""
    return offsets_pb.StreamCommitsRequest(id=number, commit=request)


def number_of(code: grpc.StatusCode) -> int:
    """The number of a status."""
    number: int = code.value[0]
    return number


class Client:
    """One channel, and the scenarios as its methods."""

    def __init__(self, channel: grpc.aio.Channel, group: str) -> None:
        self._channel = channel
        self._group = group
        self._stub: Stub = offsets_grpc.OffsetStoreStub(channel)

    async def unary(self, count: str) -> Report:
        """Small commits, one after the other."""
        return {"codes": Counter([await self._commit("s-0", at) for at in range(1, int(count) + 1)])}

    async def large(self) -> Report:
        """Just below and just above the largest message that is allowed."""
        requests = (bulk(self._group, 1000), bulk(self._group, 1050), commit(self._group, ("after", 1)))
        return {"codes": [await self._send(request) for request in requests]}

    async def concurrent_large(self) -> Report:
        """Large commits that share the windows of a connection."""
        return {"codes": Counter(await asyncio.gather(*(self._send(bulk(f"{self._group}-{at}", 256)) for at in range(16))))}

    async def big_reply(self) -> Report:
        """Replies of many windows at the same time."""
        code = await self._send(bulk(self._group, 500))
        return {"commit": code, "reads": await asyncio.gather(*(self._read() for _ in range(4)))}

    async def invalid(self) -> Report:
        """A refusal with a text beyond ASCII."""
        code, message = await self._status(commit(self._group, ("s-0", 1), ("s-0", 1)))
        return {"code": code, "message": message, "after": await self._commit("s-0", 1)}

    async def unknown(self) -> Report:
        """A method and a service that are not there."""
        codes = []
        for path in ("/offsets.v1.OffsetStore/NoSuchMethod", "/no.such.Service/Method"):
            call = self._channel.unary_unary(path, bytes, bytes)(b"", timeout=DEADLINE_S)
            codes.append(number_of(await call.code()))
        return {"codes": [*codes, await self._commit("s-0", 1)]}

    async def deadline(self) -> Report:
        """A stream that is left open, and calls that have hardly any time."""
        stream = number_of(await self._stub.StreamCommits(timeout=0.2).code())
        after = await self._commit("s-0", 1)
        short = Counter([await self._send(commit(self._group, ("s-1", at)), within_s=0.001) for at in range(1, 21)])
        return {"stream": stream, "after": after, "short": short, "last": await self._commit("s-0", 2)}

    async def cancel(self, rounds: str) -> Report:
        """Streams that are cancelled after their first answer."""
        answered, codes = 0, Counter[int]()
        for at in range(1, int(rounds) + 1):
            call: Call = self._stub.StreamCommits(timeout=DEADLINE_S)
            await call.write(streamed(at, commit(self._group, ("s-0", at))))
            answered += await call.read() != grpc.aio.EOF
            call.cancel()
            codes[number_of(await call.code())] += 1
        return {"answered": answered, "codes": codes, "after": await self._commit("s-0", int(rounds) + 1)}

    async def stream(self, count: str) -> Report:
        """Many commits on one stream."""
        last = int(count)

        async def requests() -> AsyncIterator[offsets_pb.StreamCommitsRequest]:
            for at in range(1, last + 1):
                yield streamed(at, commit(self._group, (f"s-{at % 100}", at)))

        call: Call = self._stub.StreamCommits(requests(), timeout=DEADLINE_S)
        covers, replies, refused, ordered = 0, 0, 0, True
        async for reply in call:
            covers += reply.covers
            replies += 1
            refused += reply.code != 0
            ordered = ordered and reply.id == covers
        code = number_of(await call.code())
        return {"code": code, "covers": covers, "replies": replies, "refused": refused, "ordered": ordered}

    async def bidi_refused(self) -> Report:
        """A refusal in the middle of a stream."""
        call: Call = self._stub.StreamCommits(timeout=DEADLINE_S)
        replies = []
        for at, shards in ((1, [("s-0", 1)]), (2, [("s-0", 1), ("s-0", 1)]), (3, [("s-0", 3)])):
            await call.write(streamed(at, commit(self._group, *shards)))
            reply = await call.read()
            assert isinstance(reply, offsets_pb.StreamCommitsReply)
            replies.append({"id": reply.id, "code": reply.code, "covers": reply.covers, "message": reply.message})
        await call.done_writing()
        return {"code": number_of(await call.code()), "replies": replies}

    async def many(self, count: str, in_flight: str) -> Report:
        """Many calls on one connection, some at a time."""
        room = asyncio.Semaphore(int(in_flight))

        async def one(at: int) -> int:
            async with room:
                return await self._commit(f"s-{at}", at)

        codes = Counter(await asyncio.gather(*(one(at) for at in range(1, int(count) + 1))))
        read = await self._read()
        return {"codes": codes, "rows": read["rows"], "sum": read["sum"]}

    async def compressed(self) -> Report:
        """A compressed request."""
        code, message = await self._status(bulk(self._group, 4), compression=grpc.Compression.Gzip)
        return {"code": code, "message": message, "after": await self._commit("s-0", 2)}

    async def metadata(self) -> Report:
        """Some and too much request metadata."""
        small, _ = await self._status(commit(self._group, ("s-0", 1)), metadata=(("x-filler", "X" * 4096),))
        large, message = await self._status(commit(self._group, ("s-0", 2)), metadata=(("x-filler", "X" * 20_480),))
        return {"small": small, "large": large, "message": message, "after": await self._commit("s-0", 3)}

    async def server_stream(self) -> Report:
        """A watch of the health, cancelled after its first message."""
        request = health_pb2.HealthCheckRequest(service="offsets.v1.OffsetStore")
        call = health_pb2_grpc.HealthStub(self._channel).Watch(request, timeout=DEADLINE_S)
        first = await call.read()
        call.cancel()
        return {"status": first.status, "code": number_of(await call.code()), "after": await self._commit("s-0", 1)}

    async def keepalive(self, seconds: str) -> Report:
        """Silence that is longer than the time between pings."""
        before = await self._commit("s-0", 1)
        await asyncio.sleep(float(seconds))
        return {"codes": Counter([before, await self._commit("s-0", 2)])}

    async def drain(self, within_s: float = 5.0) -> Report:
        """A ledger of what was acknowledged, until stdin is at its end."""
        drain = _Drain(self._stub, self._group, within_s)
        await asyncio.gather(*(drain.unary(f"w-{at}") for at in range(8)), drain.stream(), drain.end())
        ledger = {"acknowledged": drain.acknowledged, "codes": drain.codes, "stream_codes": drain.stream_codes}
        return {**ledger, "longest_ms": round(drain.longest_s * 1000)}

    async def restarts(self) -> Report:
        """The same with a deadline that no restart takes."""
        return await self.drain(RESTART_S)

    async def _commit(self, shard: str, offset: int) -> int:
        return await self._send(commit(self._group, (shard, offset)))

    async def _send(self, request: offsets_pb.CommitOffsetsRequest, within_s: float = DEADLINE_S) -> int:
        code, _ = await self._status(request, within_s=within_s)
        return code

    async def _status(
        self,
        request: offsets_pb.CommitOffsetsRequest,
        *,
        within_s: float = DEADLINE_S,
        compression: grpc.Compression | None = None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> tuple[int, str]:
        call = self._stub.CommitOffsets(request, timeout=within_s, compression=compression, metadata=tuple(metadata))
        return number_of(await call.code()), await call.details() or ""

    async def _read(self) -> Report:
        wanted = [offsets_pb.GroupShards(group=self._group)]
        try:
            reply = await self._stub.ReadOffsets(
                offsets_pb.ReadOffsetsRequest(groups=wanted, mode=offsets_pb.MEMORY), timeout=DEADLINE_S
            )
        except grpc.aio.AioRpcError as error:
            return {"code": number_of(error.code()), "rows": 0, "metadata_bytes": 0, "sum": 0}
        rows = reply.offsets
        total = sum(row.offset for row in rows)
        return {"code": 0, "rows": len(rows), "metadata_bytes": sum(len(row.metadata) for row in rows), "sum": total}


class _Drain:
    """Workers that go on through restarts of the adapter."""

    def __init__(self, stub: "Stub", group: str, within_s: float) -> None:
        self._stub = stub
        self._group = group
        self._within_s = within_s
        self._ending = False
        self.longest_s = 0.0
        self.acknowledged = Counter[str]()
        self.codes = Counter[int]()
        self.stream_codes = Counter[int]()

    async def end(self) -> None:
        await asyncio.to_thread(sys.stdin.read)
        self._ending = True

    async def unary(self, shard: str) -> None:
        self.acknowledged[shard] = 0
        while not self._ending:
            offset = self.acknowledged[shard] + 1
            begun = time.monotonic()
            call = self._stub.CommitOffsets(commit(self._group, (shard, offset)), timeout=self._within_s)
            code = number_of(await call.code())
            self.longest_s = max(self.longest_s, time.monotonic() - begun)
            self.codes[code] += 1
            if code:
                await asyncio.sleep(RETRY_S)
            else:
                self.acknowledged[shard] = offset

    async def stream(self) -> None:
        self.acknowledged["stream"] = 0
        while not self._ending:
            call: Call = self._stub.StreamCommits()
            # The call has then ended, as its code says.
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._lockstep(call)
            self.stream_codes[number_of(await call.code())] += 1
            await asyncio.sleep(RETRY_S)

    async def _lockstep(self, call: "Call") -> None:
        while not self._ending:
            offset = self.acknowledged["stream"] + 1
            await call.write(streamed(offset, commit(self._group, ("stream", offset))))
            reply = await call.read()
            if not isinstance(reply, offsets_pb.StreamCommitsReply):
                return
            if reply.code:
                self.stream_codes[reply.code] += 1
                await asyncio.sleep(RETRY_S)
            else:
                self.acknowledged["stream"] = offset
        await call.done_writing()
        await call.read()


async def main(scenario: str, address: str, group: str, *arguments: str) -> Report:
    """Do what the arguments say."""
    policies = NO_POLICY if scenario == "restarts" else OPTIONS
    options = (*policies, *(KEEPALIVE if scenario == "keepalive" else ()), *(RECONNECT if scenario == "drain" else ()))
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        run: Callable[..., Awaitable[Report]] = getattr(Client(channel, group), scenario)
        return await run(*arguments)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(*sys.argv[1:]))) + "\n")

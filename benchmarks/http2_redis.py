"""Redis with its append-only file, synced once a second, beside the built-in server: lone commits of the same shape, and batches.

Both sides answer after a write to the kernel, and both write together what has come in together.
"""

import csv
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from benchmarks import h2load
from benchmarks.fast_path import Target, Turn, in_turns
from benchmarks.fast_path_batches import CALLS, STREAM, Batching, Form
from benchmarks.fast_path_floor import LONE, MANY, ONE
from benchmarks.http2_load import GROUP
from benchmarks.http2_rising import Rising
from benchmarks.machine import cpu_s
from benchmarks.peers.peer import program
from benchmarks.peers.redis import Redis
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

COMMAND = "redis-benchmark"
OURS = "our sender"
MISSING = "redis-server and redis-benchmark are not installed: apt-get install redis-server"
TITLE = "Redis, AOF everysec, and the built-in server"
CALL_LIMIT = 0.4
CORE_LIMIT = 1.0
BATCH = 1_024

CALL_COLUMNS = (
    "one offset a call",
    "Redis/s",
    "by our sender",
    "built-in/s",
    "to Redis",
    "to it by our sender",
    "Redis p50 ms",
    "by our sender",
    "built-in p50 ms",
    "Redis CPU s per million",
    "built-in CPU s per million",
)
BATCH_COLUMNS = (
    "sent as",
    "offsets/s",
    "server CPU us/offset",
    "offsets per CPU s",
    "the built-in server's best batches to it, per CPU s",
)

NOTES = (
    (
        "Redis by redis-benchmark, in C: the same HSET repeated, each a write. Our sender, in Python, is the adapter's; by it "
        "Redis, too, gets 64 fields that rise. A pipeline of 64 is the load of 64 calls in flight: to Redis one read, one write."
    ),
)


@dataclass(frozen=True)
class Hset:
    """A load by redis-benchmark. `times` multiplies the calls of a turn: Redis is quick, and CPU time has ticks of 10 ms."""

    name: str
    connections: int = 1
    pipeline: int = 1
    fields: int = 1
    times: float = 8

    def __str__(self) -> str:
        """Its name, for the progress."""
        return self.name


LONES = (
    (LONE, Hset("1 connection x 1 in flight", times=4)),
    (MANY, Hset("64 connections x 1 in flight", connections=64)),
    (ONE, Hset("64 in flight on 1 connection, to a pipeline of 64", pipeline=64, times=40)),
)
PIPELINED = Hset(f"a pipeline of {BATCH:,} HSETs", pipeline=BATCH, times=100)
BATCHES = (
    PIPELINED,
    Hset(f"an HSET of {BATCH:,} fields", fields=BATCH, times=0.2),
    Hset("lone HSETs, 64 connections", connections=64),
)


def batch_forms(*, short: bool) -> Sequence[Form]:
    """How the built-in server gets its batches: a call needs a Python process as its sender, which takes its time."""
    if h2load.installed():
        return (STREAM,) if short else (STREAM, CALLS)
    return (CALLS,)


def lacking() -> bool:
    """True when it cannot be measured here."""
    return not all(map(program, ("redis-server", COMMAND)))


async def measure(
    result: Result, scale: Scale, directory: Path, adapter: Target, batching: Batching, rising: Rising, progress: Progress
) -> None:
    """Add the tables and the bars."""
    if lacking():
        result.tables.append(Table(TITLE, ("not measured",), [[MISSING]]))
        return
    with ExitStack() as running:
        redis = Redis("everysec")
        running.callback(redis.stop)
        (directory / "redis").mkdir()
        port = redis.start(directory / "redis")
        server = Target("Redis", f"127.0.0.1:{port}", lambda: sum(map(cpu_s, redis.pids)))
        await _lone(result, scale, (server, adapter), rising, progress)
        await _batches(result, scale, server, batching, progress)
    result.notes += NOTES


async def hset(server: Target, load: Hset, scale: Scale) -> Turn:
    """Run redis-benchmark; rate and CPU are those of an offset. Raises RuntimeError when it fails twice."""
    try:
        return await _hset(server, load, scale)
    except RuntimeError:  # once in a hundred runs it ends without a word
        return await _hset(server, load, scale)


async def _hset(server: Target, load: Hset, scale: Scale) -> Turn:
    commands = max(int(scale.floor_calls * load.times), load.pipeline)
    pairs = [word for at in range(load.fields) for word in (f"queue-{at}", "1")]
    port = server.address.rpartition(":")[2]
    counts = ["-p", port, "-c", str(load.connections), "-P", str(load.pipeline), "-n", str(commands), "--csv"]
    before = server.cpu_s()
    code, output = await h2load.told(program(COMMAND) or COMMAND, *counts, "HSET", GROUP, *pairs)
    offsets = commands * load.fields
    spent_us = (server.cpu_s() - before) / offsets * 1e6
    if code:
        raise RuntimeError(f"{COMMAND} ended with {code}:\n{output}")
    head, found = csv.reader(output.splitlines()[-2:])
    numbers = dict(zip(head, found, strict=True))
    return Turn(float(numbers["rps"]) * load.fields, float(numbers["p50_latency_ms"]), float(numbers["p99_latency_ms"]), spent_us)


async def _lone(result: Result, scale: Scale, servers: Sequence[Target], rising: Rising, progress: Progress) -> None:
    """The same shapes on both."""
    redis, adapter = servers
    rows: list[list[Cell]] = []
    rates: dict[h2load.Shape, tuple[float, float]] = {}  # Redis by redis-benchmark, the adapter
    for shape, load in LONES:
        calls = scale.floor_lone_calls * 2 if shape is LONE else scale.floor_calls * 4

        async def sending(way: str, _: int, shape: h2load.Shape = shape, load: Hset = load, calls: int = calls) -> Turn:
            if way == COMMAND:
                return await hset(redis, load, scale)
            if way == OURS:
                return await rising.turn(redis, 2 * calls, shape, redis=True)
            return await rising.turn(adapter, calls, shape)

        found = await in_turns(progress, f"http2: {load}", scale.fast_rounds, (COMMAND, OURS, adapter.name), sending)
        theirs, by_ours, turn = found.values()
        rates[shape] = (theirs.per_s, turn.per_s)
        per_s = [theirs.per_s, by_ours.per_s, turn.per_s, turn.per_s / theirs.per_s, turn.per_s / by_ours.per_s]
        rows.append([load.name, *per_s, theirs.p50_ms, by_ours.p50_ms, turn.p50_ms, theirs.cpu_us, turn.cpu_us])
    result.tables.append(Table(TITLE, CALL_COLUMNS, rows))
    # A Redis client that waits for each answer has 64 in flight over 64 connections, a gRPC client over one.
    for ours, theirs_shape in ((LONE, LONE), (MANY, MANY), (ONE, MANY)):
        what = ours.text if ours is theirs_shape else f"{ours.text} to {theirs_shape.text}"
        ratio = rates[ours][1] / rates[theirs_shape][0]
        result.bars.append(Bar(f"lone commits to Redis's HSETs, AOF everysec, {what}", ratio, CALL_LIMIT, least=True))


async def _batches(result: Result, scale: Scale, redis: Target, batching: Batching, progress: Progress) -> None:
    """What a second of the server's CPU is worth."""
    forms = batch_forms(short=scale.short)
    ways: Sequence[Form | Hset] = [*forms, *BATCHES]

    async def sending(way: Form | Hset, _: int) -> Turn:
        if isinstance(way, Hset):
            return await hset(redis, way, scale)
        found = await batching.turn(way, BATCH)
        return Turn(found.per_s, 0.0, 0.0, found.cpu_us)

    found = await in_turns(progress, "http2: batches", scale.fast_rounds, ways, sending)
    spent = {way: max(turn.cpu_us, 1e-3) for way, turn in found.items()}
    ours = min(spent[form] for form in forms)
    rows: list[list[Cell]] = []
    for way, turn in found.items():
        name = f"Redis, {way}" if isinstance(way, Hset) else f"built-in, {way}, {BATCH:,} offsets each"
        rows.append([name, turn.per_s, spent[way], 1e6 / spent[way], spent[way] / ours])
    result.tables.append(Table(f"Batches: {TITLE}", BATCH_COLUMNS, rows))
    text = f"offsets per CPU s of the server, commits of {BATCH:,} to {PIPELINED} of Redis"
    result.bars.append(Bar(text, spent[PIPELINED] / ours, CORE_LIMIT, least=True))

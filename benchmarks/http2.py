"""The built-in server beside small grpcio servers that also write, and Redis: all in turns, in one run."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from benchmarks import h2load, http2_profile, http2_redis, noop
from benchmarks.fast_path import Target, Turn, adapter_target, called_once, in_turns, noop_target
from benchmarks.fast_path_batches import Batching, Form
from benchmarks.fast_path_batches import Found as Batched
from benchmarks.fast_path_client import Found as Sent
from benchmarks.fast_path_client import under
from benchmarks.fast_path_floor import LONE, MANY, ONE, called
from benchmarks.fast_path_load import Batches, commit_request, stream_body
from benchmarks.http2_load import KEYS
from benchmarks.http2_rising import Rising
from benchmarks.load import Load
from benchmarks.processes import Stack, running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "the built-in server beside grpcio servers that write, and Redis"
ADAPTER = "adapter"
RATE_LIMIT = 4.0
LONE_LIMIT = 0.8
NO_WORSE = 1.0
KINDS = ("aio-uvloop", "threads-4")  # the best of each family
QUICKER = 4  # so many more calls in a turn of the built-in server: CPU time has ticks of 10 ms
STREAM_MESSAGES = 8  # for each call of the others
BATCH_KEYS = 1_024

# The best is that of the grpcio servers that write.
COLUMNS = ("server", "commits/s", "p50 ms", "p99 ms", "CPU s per million", "rate to the best", "p50 to the best")
H2LOAD_COLUMNS = ("h2load: commits/s", "p50 ms", "CPU s per million", "rate to the best")
PYTHON_COLUMNS = ("server", "commits/s", "p50 ms", "p99 ms", "server CPU s per million", "sender CPU s per million")
BATCH_COLUMNS = ("sent as", "offsets/s", "CPU us/offset")

NOTES = (
    (
        "`that writes` are two small grpcio servers that read the request and put one key into a store with the adapter's "
        "options, and do nothing else; the best of them is the best. The no-op servers are there for orientation."
    ),
    (
        "The commits are those of 64 keys in turn whose offsets rise: each is a write. h2load sends the same bytes each time, "
        "and an adapter answers an offset that stands since the same millisecond without a write."
    ),
    "Server, sender and, in batches, the Meta Service share the cores of the machine: CPU per million is steadier than a rate.",
)

REQUEST = commit_request("floor", ["queue-0"], 1, columns=False).SerializeToString()

Found = Mapping[Target, Turn]


@dataclass(frozen=True)
class Servers:
    """What runs during the whole benchmark. Of `tcp` and `unix` the adapter is the first."""

    stack: Stack
    tcp: Sequence[Target]
    unix: Sequence[Target]  # those that write, over their Unix sockets

    @property
    def adapter(self) -> Target:
        """The adapter, over TCP."""
        return self.tcp[0]


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """All servers run at once and take turns, one kind of load after the other."""
    result = Result("http2", TITLE)
    rising = Rising()
    with ExitStack() as running:
        servers = _started(directory, running, short=scale.short)
        spent_us = await _lone(result, scale, servers, Loads(scale, directory, rising), progress)
        await _from_python(result, scale, servers.adapter, progress)
        batching = await _together(result, scale, directory, servers, progress)
        await http2_redis.measure(result, scale, directory, servers.adapter, batching, rising, progress)
    (directory / "profile").mkdir()
    result.tables.append(await http2_profile.table(directory / "profile", spent_us, 50 if scale.short else 500))
    result.notes += NOTES
    return result


def _started(directory: Path, running: ExitStack, *, short: bool) -> Servers:
    stack = running.enter_context(running_stack(directory / ADAPTER))
    adapter = adapter_target(stack, ADAPTER)
    writers = [running.enter_context(noop.writing(kind, directory / kind)) for kind in (KINDS[:1] if short else KINDS)]
    nothing = [running.enter_context(noop.running(kind)) for kind in (() if short else KINDS)]
    write = [Target(f"{one.name}, writes", one.address, one.cpu_s) for one in writers]
    unix = [Target(ADAPTER, stack.adapter.address, adapter.cpu_s, stack)]
    unix += [Target(f"{one.name}, writes", one.unix, one.cpu_s) for one in writers]
    return Servers(stack, [adapter, *write, *map(noop_target, nothing)], unix)


async def _lone(result: Result, scale: Scale, servers: Servers, loads: "Loads", progress: Progress) -> float:
    """One offset a call, in each shape. Returns the built-in server's CPU microseconds for one of those that come together."""
    for target in (*servers.tcp, *servers.unix):
        await called_once(target.address, noop.UNARY, REQUEST)
    spent_us = 0.0
    for shape in (ONE, LONE, MANY):
        found = await loads.rising_in_turns(servers.tcp, shape, f"http2: {shape.text}", progress)
        repeated = await loads.repeated_in_turns(servers.tcp, shape, f"http2: h2load, {shape.text}", progress)
        _show(result, f"Lone commits, TCP, {shape.text}", found, repeated)
        _judge(result, shape, found, repeated)
        spent_us = spent_us or _adapter(found).cpu_us
    for shape in (ONE,) if scale.short else (ONE, LONE, MANY):
        found = await loads.rising_in_turns(servers.unix, shape, f"http2: Unix socket, {shape.text}", progress)
        _show(result, f"Lone commits, a Unix socket, {shape.text}", found, {})
    return spent_us


class Loads:
    """The two senders of lone commits."""

    def __init__(self, scale: Scale, directory: Path, rising: Rising) -> None:
        self._scale = scale
        self._rising = rising
        self._body = directory / "body"
        self._body.write_bytes(h2load.frame(REQUEST))

    async def rising_in_turns(self, targets: Sequence[Target], shape: h2load.Shape, name: str, progress: Progress) -> Found:
        """64 keys whose offsets rise: each commit is a write."""

        async def turn(target: Target, _: int) -> Turn:
            return await self._rising.turn(target, self._calls(target, shape), shape)

        return await in_turns(progress, name, self._scale.fast_rounds, targets, turn)

    async def repeated_in_turns(self, targets: Sequence[Target], shape: h2load.Shape, name: str, progress: Progress) -> Found:
        """One offset again and again, by h2load; nothing where it is not installed."""
        if not h2load.installed():
            return {}

        async def turn(target: Target, _: int) -> Turn:
            return await called(target, noop.UNARY, self._body, self._calls(target, shape), shape)

        return await in_turns(progress, name, self._scale.fast_rounds, targets, turn)

    def _calls(self, target: Target, shape: h2load.Shape) -> int:
        calls = self._scale.floor_lone_calls if shape is LONE else self._scale.floor_calls
        return calls if self._scale.short or target.name != ADAPTER else calls * QUICKER


def _adapter(found: Found) -> Turn:
    return next(turn for target, turn in found.items() if target.name == ADAPTER)


def _writing(found: Found) -> list[Turn]:
    """The grpcio servers that write."""
    return [turn for target, turn in found.items() if target.name != ADAPTER and not target.name.startswith("no-op")]


def _best(found: Found) -> float:
    return max(turn.per_s for turn in _writing(found))


def _show(result: Result, title: str, found: Found, repeated: Found) -> None:
    p50 = min(turn.p50_ms for turn in _writing(found))
    rows: list[list[Cell]] = []
    for target, turn in found.items():
        ratios = (turn.per_s / _best(found), turn.p50_ms / p50)
        rows.append([target.name, turn.per_s, turn.p50_ms, turn.p99_ms, turn.cpu_us, *ratios])
        if repeated:
            again = repeated[target]
            rows[-1] += [again.per_s, again.p50_ms, again.cpu_us, again.per_s / _best(repeated)]
    result.tables.append(Table(title, (*COLUMNS, *(H2LOAD_COLUMNS if repeated else ())), rows))


def _judge(result: Result, shape: h2load.Shape, found: Found, repeated: Found) -> None:
    if shape is LONE:
        ratio = _adapter(found).p50_ms / min(turn.p50_ms for turn in _writing(found))
        result.bars.append(Bar(f"p50 of a lone commit to the best grpcio server that writes, {shape.text}", ratio, LONE_LIMIT))
        return
    what = f"to the best grpcio server that writes, {shape.text}"
    limit = RATE_LIMIT if shape is ONE else NO_WORSE
    result.bars.append(Bar(f"lone commits {what}", _adapter(found).per_s / _best(found), limit, least=True))
    if shape is ONE and repeated:
        result.bars.append(Bar(f"lone commits by h2load {what}", _adapter(repeated).per_s / _best(repeated), limit, least=True))
    result.rates[f"built-in server, {shape.text}"] = _adapter(found).per_s


async def _from_python(result: Result, scale: Scale, adapter: Target, progress: Progress) -> None:
    """64 tasks of one process with grpcio's stub."""

    async def offered(target: Target, number: int) -> Sent:
        return await under(Load(target.address, f"python-{number}", scale.fast_s, warm_up_s=scale.warm_up_s), target)

    found = await in_turns(progress, "http2: Python", scale.fast_rounds, [adapter], offered)
    rows: list[list[Cell]] = [
        [target.name, turn.per_s, turn.p50_ms, turn.p99_ms, turn.server_cpu_us, turn.sender_cpu_us]
        for target, turn in found.items()
    ]
    result.tables.append(Table("Lone commits from Python, grpcio's stub, 64 tasks", PYTHON_COLUMNS, rows))


async def _together(result: Result, scale: Scale, directory: Path, servers: Servers, progress: Progress) -> Batching:
    """One StreamCommits call with an offset a message, and batches of 1,024. Returns the sender of batches."""
    rows: list[list[Cell]] = []
    if h2load.installed():
        found = await in_turns(progress, "http2: stream", scale.fast_rounds, [servers.adapter], _Streaming(scale, directory).turn)
        one = found[servers.adapter]
        rows.append(["a stream, one offset a message", one.per_s, one.cpu_us])
    (directory / "batches").mkdir()
    batching = Batching(servers.stack, directory / "batches", BATCH_KEYS, scale.fast_s / 2)
    await batching.warm_up()

    async def turn(form: Form, _: int) -> Batched:
        return await batching.turn(form, BATCH_KEYS)

    turns = await in_turns(progress, "http2: batches", scale.fast_rounds, http2_redis.batch_forms(short=scale.short), turn)
    rows += [[f"{form}, {BATCH_KEYS:,} offsets each", found.per_s, found.cpu_us] for form, found in turns.items()]
    result.tables.append(Table("StreamCommits and batches, TCP", BATCH_COLUMNS, rows))
    return batching


class _Streaming:
    """Streams of lone offsets that rise through all turns."""

    def __init__(self, scale: Scale, directory: Path) -> None:
        self._body = directory / "stream"
        self._messages = scale.floor_calls * STREAM_MESSAGES
        self._first = 1

    async def turn(self, target: Target, _: int) -> Turn:
        """One StreamCommits call."""
        batches = Batches(target.address, KEYS, 1, self._messages, self._first, columns=False)
        self._first += self._messages
        self._body.write_bytes(stream_body(batches))
        return await called(target, noop.STREAM, self._body, 1, LONE, self._messages)

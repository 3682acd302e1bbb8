"""The cost of gRPC alone for the adapter's calls, and that of the adapter, with the same load generator (h2load)."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.progress import Progress

from adapter.rpc import offsets_pb
from benchmarks import h2load, noop
from benchmarks.fast_path import (
    Target,
    Turn,
    adapter_target,
    called_once,
    in_turns,
    noop_target,
    not_measured,
)
from benchmarks.fast_path_load import commit_request
from benchmarks.processes import running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "a commit against a call that does nothing"
ONE = h2load.Shape(1, 64)
MANY = h2load.Shape(64, 1)
LONE = h2load.Shape(1, 1)
WAL_SYNCS = ("never", "interval", "always")
MEASURED = "adapter, wal_sync = interval"  # the target of the bars
CONSUMERS = 64
UNARY_LIMIT = 0.85
LONE_LIMIT = 1.3

COLUMNS = ("server", "calls/s", "p50 ms", "p99 ms", "server CPU us/call", "of the best no-op")
STREAM_COLUMNS = ("server", "messages/s", "server CPU us/message", "of the best no-op")

NOTES = (
    (
        "h2load sends the same bytes each time. So a unary commit repeats an offset: with a later millisecond it is a write too. "
        "Those of one moment share a write, as those of many consumers do. The offsets of a stream rise."
    ),
    "Each answer was a 2xx, the first call's gRPC status was 0, and the adapter's own counter rose by the number of commits.",
    (
        "A second process can only help where connections are many: each belongs to one process. The adapter's store has one "
        "writer, so that it cannot have one; the row shows what it would be worth on this machine."
    ),
)

Found = dict[Target, Turn]


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure all servers for each shape of calls. They run at the same time, and are measured in turn."""
    result = Result("floor", TITLE)
    if not h2load.installed():
        not_measured(result, TITLE)
        return result
    body = directory / "body"
    request = commit_request("floor", ["queue-0"], 1).SerializeToString()
    body.write_bytes(h2load.frame(request))
    with ExitStack() as running:
        targets = _started(directory, running, ["interval"] if scale.short else WAL_SYNCS)
        for target in targets:
            await called_once(target.address, noop.UNARY, request)
        found: dict[h2load.Shape, Found] = {}
        for shape, calls in ((ONE, scale.floor_calls), (MANY, scale.floor_calls), (LONE, scale.floor_lone_calls)):

            async def calling(target: Target, _: int, shape: h2load.Shape = shape, calls: int = calls) -> Turn:
                return await called(target, noop.UNARY, body, calls, shape)

            found[shape] = await in_turns(progress, f"floor: {shape.text}", scale.fast_rounds, targets, calling)
            result.tables.append(Table(f"Unary, one offset each, {shape.text}", COLUMNS, _rows(found[shape])))
        streams = await _streams(scale, directory, progress, targets)
    # A call is a whole stream, so its latency is meaningless.
    rows = [[name, rate, cpu, ratio] for name, rate, _, _, cpu, ratio in _rows(streams)]
    result.tables.append(Table("One StreamCommits call, one offset a message", STREAM_COLUMNS, rows))
    _judge(result, found, streams)
    return result


def _started(directory: Path, running: ExitStack, wal_syncs: Sequence[str]) -> list[Target]:
    names = (*noop.KINDS, noop.TWO_PROCESSES)
    nothing = [noop_target(running.enter_context(noop.running(name))) for name in names]
    stacks = {name: running.enter_context(running_stack(directory / name, wal_sync=name)) for name in wal_syncs}
    return [*nothing, *(adapter_target(stack, f"adapter, wal_sync = {name}") for name, stack in stacks.items())]


async def called(target: Target, method: str, body: Path, calls: int, shape: h2load.Shape, offsets: int = 1) -> Turn:
    """Make calls with `offsets` each; rate and CPU are per offset. Raises RuntimeError if calls failed."""
    before = await target.stack.commits() if target.stack else 0
    cpu_s = target.cpu_s()
    timed = await h2load.run(target.address, method, body, calls, shape)
    cpu_s = target.cpu_s() - cpu_s
    await target.check(before + calls * offsets)
    return Turn(timed.per_s * offsets, timed.p50_ms, timed.p99_ms, cpu_s / (calls * offsets) * 1e6)


async def _streams(scale: Scale, directory: Path, progress: Progress, targets: Sequence[Target]) -> Found:
    body = directory / "stream"

    async def streaming(target: Target, number: int) -> Turn:
        first = number * scale.floor_calls
        body.write_bytes(b"".join(map(_message, range(first, first + scale.floor_calls))))
        return await called(target, noop.STREAM, body, 1, LONE, scale.floor_calls)

    return await in_turns(progress, "floor: stream", scale.fast_rounds, targets, streaming)


def _message(number: int) -> bytes:
    """Requests of consumers in turn, with rising offsets."""
    commit = commit_request("stream", [f"queue-{number % CONSUMERS}"], 1 + number // CONSUMERS)
    return h2load.frame(offsets_pb.StreamCommitsRequest(id=number, commit=commit).SerializeToString())


def _best(found: Found) -> float:
    """The fastest no-op server that is a single process."""
    return max(turn.per_s for target, turn in found.items() if not target.stack and noop.TWO_PROCESSES not in target.name)


def _rows(found: Found) -> list[list[Cell]]:
    return [
        [target.name, turn.per_s, turn.p50_ms, turn.p99_ms, turn.cpu_us, turn.per_s / _best(found)]
        for target, turn in found.items()
    ]


def _named(found: Found, name: str) -> Turn:
    return next(turn for target, turn in found.items() if target.name == name)


def _judge(result: Result, found: dict[h2load.Shape, Found], streams: Found) -> None:
    for shape in (ONE, MANY):
        ratio = _named(found[shape], MEASURED).per_s / _best(found[shape])
        result.bars.append(Bar(f"unary commits to the best no-op unary server, {shape.text}", ratio, UNARY_LIMIT, least=True))
    alike = f"no-op, {noop.LIKE_THE_ADAPTER}"
    ratio = _named(found[LONE], MEASURED).p50_ms / _named(found[LONE], alike).p50_ms
    result.bars.append(Bar(f"p50 of a lone commit to that of a call to the {alike} server", ratio, LONE_LIMIT))
    result.rates["no-op unary, 64 in flight"] = _best(found[ONE])
    result.rates["unary, 64 in flight"] = _named(found[ONE], MEASURED).per_s
    result.rates["one stream"] = _named(streams, MEASURED).per_s
    result.notes += NOTES

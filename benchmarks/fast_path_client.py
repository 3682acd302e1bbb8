"""Many consumers in one process, one offset each, through OffsetClient, compared to calls of no-op servers."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from benchmarks import h2load, noop
from benchmarks.fast_path import (
    Target,
    adapter_target,
    in_turns,
    noop_target,
    not_measured,
    save_calls,
)
from benchmarks.fast_path_floor import ONE, called
from benchmarks.fast_path_load import commit_request
from benchmarks.load import Load
from benchmarks.processes import offered, running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "1,000 consumers of one process against no-op calls"
CONSUMERS = 1_000
LIMIT = 20.0
KINDS = ("aio-uvloop", "threads-4")  # the fastest kind of asyncio and of threaded servers

COLUMNS = ("consumers", "commits/s", "p50 ms", "p99 ms", "sender CPU us", "server CPU us")


@dataclass(frozen=True, eq=False)
class Way:
    """A number of consumers and their client (`via`); without it, h2load is the client."""

    name: str
    target: Target
    via: str
    consumers: int

    def __str__(self) -> str:
        """The name in the progress display."""
        return self.name


class Found(NamedTuple):
    """CPU microseconds per commit."""

    per_s: float
    p50_ms: float
    p99_ms: float
    sender_cpu_us: float
    server_cpu_us: float


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure the no-op servers by h2load and from Python, and the adapter from Python."""
    result = Result("client", TITLE)
    body = directory / "body"
    body.write_bytes(h2load.frame(commit_request("floor", ["queue-0"], 1).SerializeToString()))
    with ExitStack() as running:
        nothing = [noop_target(running.enter_context(noop.running(kind))) for kind in (KINDS[:1] if scale.short else KINDS)]
        stack = running.enter_context(running_stack(directory))

        async def measure(way: Way, number: int) -> Found:
            if not way.via:
                turn = await called(way.target, noop.UNARY, body, scale.floor_calls, ONE)
                return Found(turn.per_s, turn.p50_ms, turn.p99_ms, 0.0, turn.cpu_us)
            group = f"{way.via}-{way.consumers}-{number}"
            load = Load(way.target.address, group, scale.fast_s, consumers=way.consumers, warm_up_s=scale.warm_up_s, via=way.via)
            return await under(load, way.target)

        before = await stack.counters()
        ways = _ways(nothing, adapter_target(stack, "adapter"), (CONSUMERS,) if scale.short else (1, 64, CONSUMERS))
        found = await in_turns(progress, "client", scale.fast_rounds, ways, measure)
        saves = save_calls(before, await stack.counters())
    if not h2load.installed():
        not_measured(result, "No-op calls by h2load")
    result.tables.append(Table("One offset each, wal_sync = interval", COLUMNS, [_row(*pair) for pair in found.items()]))
    result.bars.append(saves)
    _judge(result, found)
    return result


def _ways(nothing: Sequence[Target], adapter: Target, sizes: Sequence[int]) -> list[Way]:
    by_h2load = [Way(f"{target.name}, h2load, 64 in flight", target, "", 64) for target in nothing]
    return [
        *(by_h2load if h2load.installed() else []),
        *(Way(f"{target.name}, {CONSUMERS:,} tasks", target, "store", CONSUMERS) for target in nothing),
        Way(f"unary calls, {CONSUMERS:,} tasks", adapter, "store", CONSUMERS),
        *(
            Way(f"OffsetClient, {consumers:,} task{'s' if consumers > 1 else ''}", adapter, "client", consumers)
            for consumers in sizes
        ),
        Way("BlockingOffsetClient, 64 threads", adapter, "blocking", 64),
    ]


async def under(load: Load, target: Target) -> Found:
    """Run a load in a Python process and measure its window. Raises RuntimeError if it fails."""

    async def look() -> float:
        return target.cpu_s()

    found, (before, after) = await offered(load, look, target.log)
    commits = max(found["commits_per_s"], 1.0)  # a very short window on a very busy machine
    return Found(
        found["commits_per_s"],
        found["p50_s"] * 1e3,
        found["p99_s"] * 1e3,
        found["cpu_share"] / commits * 1e6,
        (after - before) / load.seconds / commits * 1e6,
    )


def _row(way: Way, found: Found) -> list[Cell]:
    return [way.name, found.per_s, found.p50_ms, found.p99_ms, found.sender_cpu_us if way.via else "-", found.server_cpu_us]


def _judge(result: Result, found: dict[Way, Found]) -> None:
    through = next(turn for way, turn in found.items() if (way.via, way.consumers) == ("client", CONSUMERS))
    for via, text in (("", "by h2load"), ("store", "by as many tasks of the same Python process")):
        rates = [turn.per_s for way, turn in found.items() if way.via == via and way.target.stack is None]
        if rates:
            ratio = through.per_s / max(*rates, 1.0)
            result.bars.append(
                Bar(f"{CONSUMERS:,} consumers through the client to the no-op unary rate {text}", ratio, LIMIT, least=True)
            )
    for way, turn in found.items():
        if way.via in {"client", "blocking"}:
            result.rates[way.name] = turn.per_s
    result.notes.append(
        "A process of consumers and the adapter have a core each at best; the no-op rate by h2load leaves its server a whole one."
    )

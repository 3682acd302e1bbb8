"""Shared by the benchmarks of the fast path: servers, alternating rounds with medians, and the bar for save calls."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, TypeVar

import grpc.aio
from rich.progress import Progress

from benchmarks import h2load
from benchmarks.machine import cpu_s
from benchmarks.noop import NoOp
from benchmarks.processes import Counters, Stack
from benchmarks.report import Bar, Result, Table

T = TypeVar("T")
N = TypeVar("N", bound=tuple[float, ...])

SAVES_LIMIT = 10.5  # per second, at a flush interval of 100 ms
TIMEOUT_S = 60.0
# A setting of [meta]: on a busy machine, a save of 3 MiB exceeds the default timeout, and would be repeated.
PATIENT = "timeout_ms = 60_000"


@dataclass(frozen=True, eq=False)
class Target:
    """A server that accepts commits. `cpu_s` is its CPU time so far, in seconds."""

    name: str
    address: str
    cpu_s: Callable[[], float]
    stack: Stack | None = None  # None: a no-op server

    def __str__(self) -> str:
        """The name in the progress display."""
        return self.name

    def log(self) -> str:
        """The log of the server."""
        return self.stack.adapter.log if self.stack else ""

    async def check(self, commits: int) -> None:
        """Raise RuntimeError unless an adapter has acknowledged this many offsets."""
        if self.stack and (found := await self.stack.commits()) != commits:
            raise RuntimeError(
                f"{self.name}: {found} commits were acknowledged, not {commits}:\n{self.stack.adapter.log[-4000:]}"
            )


class Turn(NamedTuple):
    """The result of one measurement. CPU is the server's microseconds per commit."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


async def in_turns(
    progress: Progress, name: str, rounds: int, things: Sequence[T], measure: Callable[[T, int], Awaitable[N]]
) -> dict[T, N]:
    """Measure each thing once in each round, so that a slow phase of the machine affects all; returns medians."""
    task = progress.add_task(name, total=rounds * len(things))
    found: dict[T, list[N]] = {thing: [] for thing in things}
    for number in range(rounds):
        for thing in things:
            progress.update(task, description=f"{name}: {thing}")
            found[thing].append(await measure(thing, number))
            progress.advance(task)
    return {thing: middle(turns) for thing, turns in found.items()}


def middle(turns: Sequence[N]) -> N:
    """The median of each number."""
    return type(turns[0])(*(median(values) for values in zip(*turns, strict=True)))


async def called_once(address: str, method: str, message: bytes) -> None:
    """Make a unary call with prepared bytes. Raises AioRpcError, which h2load does not detect."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(method)  # without a serializer: bytes
        await call(message, timeout=TIMEOUT_S)


def save_calls(before: Counters, after: Counters) -> Bar:
    """The bar for save calls between two instants. They are seconds apart, because save calls come in ticks of 100 ms."""
    passed = after.since(before)
    return Bar("save calls/s, seen by the Meta Service throughout", passed.saves_seen / passed.at, SAVES_LIMIT)


def adapter_target(stack: Stack, name: str) -> Target:
    """The adapter of a stack as a target, over TCP as the others."""
    return Target(name, stack.adapter.tcp_address, lambda: cpu_s(stack.adapter.pid), stack)


def noop_target(server: NoOp) -> Target:
    """A no-op server as a target."""
    return Target(f"no-op, {server.name}", server.address, server.cpu_s)


def not_measured(result: Result, what: str) -> None:
    """Add a table that says that h2load is missing."""
    result.tables.append(Table(what, ("not measured",), [[h2load.MISSING]]))

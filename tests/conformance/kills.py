"""Consumers that commit through a driver while processes are killed, and the ledger that judges what they read.

A ledger knows, of each shard, the largest offset that was acknowledged and the largest that was sent. Whoever reads the shard has
to find something from the one to the other: less was lost, and is read twice; more was never worked through, and is skipped. What
stands is then what the consumer goes on with.

The targets of a kill: `adapter` and `meta` (kill -9), `driver` (kill -9: a broker in which the client is embedded), `drain` (the
adapter ends in order), `reset` (an operator resets a shard, and the adapter is killed at once).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from adapter.testing.processes import ServiceProcess
from adapter.testing.waiting import PATIENCE_S
from tests.conformance.driver import Answer, Driver, DriverGoneError, start
from tests.conformance.world import World, started

TARGETS = ("adapter", "meta", "driver", "drain", "reset")
GROUPS, SHARDS = 4, 16  # and shards of all groups together
PROGRESS = 20  # acknowledged commits of all consumers between two kills, at least
HAND_OVER_EVERY = 100  # commits of a consumer; then it gives its shard to the Meta Service, and takes it back
WAIT_S = 0.02  # before a call that was lost is made again


@dataclass
class Ledger:
    """What was sent and acknowledged of a shard, and what its reads contradicted."""

    sent: int = 0
    acknowledged: int = 0
    reads: int = 0
    violations: list[str] = field(default_factory=list)

    def found(self, name: str, offset: int) -> None:
        """Judge a read; what stands counts from now on."""
        self.reads += 1
        if offset < self.acknowledged:
            self.violations.append(f"{name}: {self.acknowledged} was acknowledged, and {offset} is read: lost")
        if offset > self.sent:
            self.violations.append(f"{name}: {offset} is read, and no more than {self.sent} was sent: skipped")
        self.acknowledged = self.sent = offset


@dataclass
class Report:
    """What a run did and found."""

    kills: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    reads: int = 0
    lost_answers: int = 0  # calls of which nobody knew what became of them
    without_meta: int = 0  # commits that were acknowledged while the Meta Service was dead
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """One line."""
        kills = ", ".join(f"{number} {target}" for target, number in self.kills.items())
        return (
            f"{sum(self.kills.values())} kills ({kills}): {self.acknowledged:,} commits acknowledged, {self.without_meta:,} "
            f"of them without the Meta Service, {self.lost_answers:,} calls not answered, {self.reads:,} reads judged, "
            f"{len(self.violations)} violations"
        )


class Run:
    """Consumers, and what happens to their processes."""

    def __init__(self, world: World, seed: int, targets: Sequence[str] = TARGETS, *, watches: bool = True) -> None:
        self.report = Report()
        self._world = world
        self._random = random.Random(seed)
        self._targets = targets
        ends = (self._kill_adapter, self._kill_meta, self._kill_driver, self._drain, self._reset)
        self._end = dict(zip(TARGETS, ends, strict=True))
        self._watches = watches
        self._driver: Driver
        self._ledgers = {f"s-{at}": Ledger() for at in range(SHARDS)}
        self._reread: dict[str, int] = {}  # shard -> the kill after which its consumer last began anew
        self._kill = self._anew = 0  # the present kill, and the last one after which all processes are there again
        self._meta_is_dead = False
        self._running = True
        self._alive = asyncio.Event()
        self._progress = asyncio.Condition()

    async def kills(self, number: int, tell: Callable[[str], None] = lambda _: None) -> Report:
        """So many kills, one after the other, each after some progress. Raises whatever ends a consumer."""
        await self._start_driver()
        consumers = [asyncio.create_task(self._consume(shard), name=shard) for shard in self._ledgers]
        try:
            for self._kill in range(1, number + 1):
                await self._advance(consumers)
                target = self._targets[self._kill % len(self._targets)] if number <= 2 * len(self._targets) else self._choose()
                await self._end[target]()
                self._anew = self._kill
                self.report.kills[target] = self.report.kills.get(target, 0) + 1
                tell(f"kill {self._kill}: {target}; {self.report.acknowledged:,} commits")
                await self._all_reread(consumers)
                if self.report.violations:
                    break
            self._running = False
            await asyncio.gather(*consumers)
        finally:
            for consumer in consumers:
                consumer.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
            await self._driver.kill()
        self._judge()
        return self.report

    def _choose(self) -> str:
        return self._random.choice(self._targets)

    # Targets

    async def _kill_adapter(self) -> None:
        await self._restart(self._world.adapter, self._world.adapter.kill)

    async def _drain(self) -> None:
        await self._restart(self._world.adapter, self._world.adapter.stop)

    async def _kill_meta(self) -> None:
        """Commits go on without it."""
        await asyncio.to_thread(self._world.meta.kill)
        before, self._meta_is_dead = self.report.without_meta, True
        async with asyncio.timeout(PATIENCE_S), self._progress:
            await self._progress.wait_for(lambda: self.report.without_meta >= before + PROGRESS)
        self._meta_is_dead = False
        await started(self._world.meta)

    async def _kill_driver(self) -> None:
        self._alive.clear()
        await self._driver.kill()
        await self._start_driver()

    async def _reset(self) -> None:
        """A shard with a consumer of its own, which is this: who knows no epoch is held off, reads, and goes on."""
        group, shard = f"{self._world.group}-reset", f"r-{self._kill}"
        await self._until(lambda: self._driver.commit(group, shard, 1_000))
        since = len(self._driver.changes)
        await self._world.reset(shard, 10, group)
        await self._kill_adapter()
        refused = await self._until(lambda: self._driver.commit(group, shard, 1_001), expected="moved")
        self._expect(refused.get("moved", [{}])[0].get("offset") == 10, f"{shard}: a commit after its reset: {refused}")
        found = await self._until(lambda: self._driver.call("read", group=group, shards=[shard]))
        self._expect(found["offsets"][shard]["offset"] == 10, f"{shard}: read after its reset: {found}")
        if self._watches:
            await self._driver.heard(lambda change: change.get("shard") == shard or change["change"] == "resync", since)
        await self._until(lambda: self._driver.commit(group, shard, 11))

    async def _restart(self, service: ServiceProcess, end: Callable[[], object]) -> None:
        await asyncio.to_thread(end)
        await started(service)

    async def _start_driver(self) -> None:
        self._driver = await start(self._world.command, self._world.adapter.address)
        if self._watches:
            self._driver.begin("watch")
        self._alive.set()

    # Consumers

    async def _consume(self, shard: str) -> None:
        """Work through a shard: read where to begin, commit each message, begin anew after each kill, as if it was restarted."""
        group = f"{self._world.group}-{int(shard[2:]) % GROUPS}"
        ledger = self._ledgers[shard]
        for number in count(1):
            if self._reread.get(shard) != self._anew or number % HAND_OVER_EVERY == 0 or not self._running:
                anew = self._anew
                if number % HAND_OVER_EVERY == 0:
                    await self._until(lambda: self._driver.call("remove", group=group, shards=[shard]))
                found = await self._until(lambda: self._driver.call("read", group=group, shards=[shard]))
                ledger.found(shard, found["offsets"].get(shard, {}).get("offset", 0))
                self._judge()
                await self._note(partial(self._reread.__setitem__, shard, anew))
                if not self._running:
                    return
            ledger.sent += 1
            answer = await self._until(lambda: self._driver.commit(group, shard, ledger.sent))
            self._expect("raised" in answer, f"{shard}: {ledger.sent} was not taken: {answer}")
            ledger.acknowledged = ledger.sent
            await self._note(self._count)

    def _count(self) -> None:
        self.report.acknowledged += 1
        self.report.without_meta += self._meta_is_dead

    async def _until(self, call: Callable[[], Awaitable[Answer]], expected: str = "") -> Answer:
        """Make a call until somebody knows what became of it; any error but a lost call, and the expected one, is a violation."""
        while True:
            await self._alive.wait()
            try:
                answer = await call()
            except DriverGoneError:
                answer = {"error": "lost"}
            if answer.get("error") != "lost":
                self._expect(answer.get("error", "") in {"", expected}, f"not the answer to expect: {answer}")
                return answer
            self.report.lost_answers += 1
            await asyncio.sleep(WAIT_S)

    async def _advance(self, consumers: Sequence["asyncio.Task[None]"]) -> None:
        least = self.report.acknowledged + PROGRESS
        await self._wait(lambda: self.report.acknowledged >= least, consumers)

    async def _all_reread(self, consumers: Sequence["asyncio.Task[None]"]) -> None:
        await self._wait(lambda: all(self._reread.get(shard) == self._anew for shard in self._ledgers), consumers)

    async def _wait(self, condition: Callable[[], bool], consumers: Sequence["asyncio.Task[None]"]) -> None:
        async with asyncio.timeout(4 * PATIENCE_S), self._progress:
            await self._progress.wait_for(lambda: condition() or any(each.done() for each in consumers))
        for consumer in consumers:
            if consumer.done():
                consumer.result()

    async def _note(self, change: Callable[[], None]) -> None:
        async with self._progress:
            change()
            self._progress.notify_all()

    def _expect(self, holds: object, problem: str) -> None:
        if not holds:
            self.report.violations.append(problem)

    def _judge(self) -> None:
        for ledger in self._ledgers.values():
            self.report.violations += ledger.violations
            ledger.violations.clear()
        self.report.reads = sum(ledger.reads for ledger in self._ledgers.values())

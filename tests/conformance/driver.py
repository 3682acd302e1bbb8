"""A client under test: a program that takes commands as lines of JSON on stdin, and answers on stdout, by `id`, in any order.

`PROGRAM ADDRESS SECONDS`, these for each call; the first line that it prints is {"ready": true}. `call` names the command;
`group`, `namespace` (default `default`) and `shards` (null: all of the group) say of what. At the end of stdin it ends.

    commit   `offsets`: [{"shard", "offset", "epoch"?, "metadata"?}], `overwrite`, `generation`, `member`
             -> {"behind": [{"shard", "offset", "epoch"}], "raised": {shard: epoch}}
    read     -> {"offsets": {shard: {"offset", "epoch", "held", "metadata"}}}, with STORE; `peek` the same with keep_hold
    persist  -> {}
    remove   -> {"removed": count}
    delete   -> {"deleted": count}
    watch    -> a line for each change: {"change": "resync" | "disconnected"}, {"change": "changed", "group", "shard", "offset"
             (null: deleted), "epoch", "held"}, {"change": "removed", "group", "shards"}
    drop     `of`: the id of a call that nobody waits for any more -> {}

A call that fails -> {"error": KIND, "message"}, KIND one of lost, moved, fenced, invalid, exhausted, refused, damaged (SPEC.md,
E1); with `moved`: [{"shard", "offset", "epoch", "held"}], and `field` of what is invalid. A driver decides nothing, and repeats
nothing: it shows what its client does.
"""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

from adapter.testing.waiting import PATIENCE_S

Answer = dict[str, Any]


class DriverGoneError(Exception):
    """The driver ended before it answered."""


class Driver:
    """A running driver."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = count(1)
        self._calls: dict[int, asyncio.Future[Answer]] = {}
        self._ended = asyncio.create_task(self._receive(), name="driver")
        self.changes: list[Answer] = []  # what its watch has told
        self._changed = asyncio.Event()

    def begin(self, call: str, **command: object) -> tuple[int, asyncio.Future[Answer]]:
        """Send a command; returns its id, and its answer, which is a DriverGoneError if the driver ends before."""
        number, answer = next(self._ids), asyncio.get_running_loop().create_future()
        if self._ended.done():
            answer.set_exception(DriverGoneError())
        else:
            self._calls[number] = answer
            assert self._process.stdin
            self._process.stdin.write(json.dumps({"id": number, "call": call, **command}).encode() + b"\n")
        return number, answer

    async def call(self, call: str, **command: object) -> Answer:
        """Send a command, and wait for its answer."""
        async with asyncio.timeout(2 * PATIENCE_S):  # more than the call itself may take
            return await self.begin(call, **command)[1]

    async def commit(self, group: str, shard: str, offset: int, **more: object) -> Answer:
        """Commit one offset. `epoch` and `metadata` are those of the shard."""
        row = {"shard": shard, "offset": offset} | {key: more.pop(key) for key in ("epoch", "metadata") if key in more}
        return await self.call("commit", group=group, offsets=[row], **more)

    async def read(self, group: str, shards: Sequence[str] | None = None, call: str = "read") -> dict[str, Answer]:
        """What a read, or a `peek`, finds. Raises AssertionError if it fails."""
        answer = await self.call(call, group=group, shards=shards)
        assert "error" not in answer, answer
        found: dict[str, Answer] = answer["offsets"]
        return found

    async def watch(self) -> None:
        """Begin to watch, and wait until every change is told."""
        self.begin("watch")
        await self.heard(lambda change: change["change"] == "resync")

    async def heard(self, wanted: Callable[[Answer], object], since: int = 0) -> Answer:
        """Wait for a change that the watch tells, behind the first `since` ones."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self._changed.clear()
                for change in self.changes[since:]:
                    if wanted(change):
                        return change
                await self._changed.wait()

    async def kill(self) -> None:
        """End it with SIGKILL."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._ended

    async def _receive(self) -> None:
        assert self._process.stdout
        while line := await self._process.stdout.readline():
            if not line.endswith(b"\n"):
                break  # killed while it wrote
            answer: Answer = json.loads(line)
            number = answer.pop("id", 0)
            if "change" in answer:
                self.changes.append(answer)
                self._changed.set()
            elif (waiting := self._calls.pop(number, None)) and not waiting.done():
                waiting.set_result(answer)
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(DriverGoneError())
                waiting.exception()  # seen: nobody may wait for it
        self._calls.clear()


async def start(command: Sequence[str], address: str, timeout_s: float = PATIENCE_S) -> Driver:
    """Start a driver whose calls take so long at most."""
    process = await asyncio.create_subprocess_exec(*command, address, str(timeout_s), stdin=PIPE, stdout=PIPE, limit=2**22)
    assert process.stdout
    assert json.loads(await process.stdout.readline()) == {"ready": True}
    return Driver(process)


@asynccontextmanager
async def driving(command: Sequence[str], address: str, timeout_s: float = PATIENCE_S) -> AsyncIterator[Driver]:
    """A driver that is killed at the end."""
    driver = await start(command, address, timeout_s)
    try:
        yield driver
    finally:
        await driver.kill()

"""One run: consumers read all messages while they are killed repeatedly. The kills are the same for each position store."""

import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import anyio

from demo.timeline import Timeline
from examples.keepers import Keeper
from examples.outcome import Outcome

ROOT = Path(__file__).parents[1]
SHARDS_OF = ((0, 1), (2, 3))  # the shards of each consumer process
LOOK_S = 0.05
STALLED_S = 60.0  # without progress; longer than any ack_wait, so a missing message will not come


class Consumer:
    """A consumer process for some shards. It ends when this process ends, even if it is killed."""

    def __init__(self, shards: Sequence[int], directory: Path, options: Sequence[str]) -> None:
        names = [str(shard) for shard in shards]
        self.name = f"the consumer of shards {' and '.join(names)}"
        self.shards = shards
        self._log = directory / f"consumer-{shards[0]}.log"
        self._command = [sys.executable, "-m", "examples.worker", *options, "--directory", str(directory), "--", *names]
        self._process = self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", "--", *self._command],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that Ctrl-C signals only the parent
            )

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self._process = self._launch()

    def last_words(self) -> str | None:
        """Why it ended by itself; None if it still runs."""
        if self._process.poll() is None:
            return None
        return "".join(self._log.read_text(errors="replace").splitlines()[-1:])


class Hole:
    """The gap that a kill left: unprocessed messages below processed ones."""

    def __init__(self, outcome: Outcome, shards: Collection[int]) -> None:
        done = outcome.tally.times
        theirs = [sequence for sequence, shard in enumerate(outcome.shards, 1) if shard in shards]
        newest = max((sequence for sequence in theirs if sequence in done), default=0)
        self._open = {sequence for sequence in theirs if sequence < newest and sequence not in done}
        self._started = time.monotonic()
        self._outcome = outcome

    def filled(self) -> bool:
        """True if all of them are processed. Updates the outcome's `hole_s` until then."""
        self._open -= self._outcome.tally.times.keys()
        if self._open:
            self._outcome.hole_s = max(self._outcome.hole_s, time.monotonic() - self._started)
        return not self._open


class Run:
    """Starts and kills consumers, until the position store reports that all is finished, or there is no more progress."""

    def __init__(self, keeper: Keeper, outcome: Outcome, kills: int, timeline: Timeline) -> None:
        self._keeper = keeper
        self._outcome = outcome
        self._timeline = timeline
        # The numbers of processed messages after which a consumer is killed; the adapter is killed midway between two of them.
        messages = len(outcome.truth)
        self._kill_after = [messages * number // (kills + 1) for number in range(1, kills + 1)]
        self._crash_after = messages * (kills // 2 * 2 + 1) // (kills * 2 + 2)
        self._crashed = False
        self._holes: list[Hole] = []

    async def play(self, directory: Path, broker: str) -> None:
        """Run to the end. The result is in the outcome."""
        started = moved = time.monotonic()
        outcome, tally = self._outcome, self._outcome.tally
        options = [*self._keeper.arguments, "--broker", broker]
        consumers = [Consumer(shards, directory, options) for shards in SHARDS_OF]
        try:
            while not outcome.finished and time.monotonic() < moved + STALLED_S:
                new = tally.read()
                outcome.seconds = time.monotonic() - started
                self._holes = [hole for hole in self._holes if not hole.filled()]
                self._revive(consumers)
                self._kill(consumers)
                await self._crash()
                if new:
                    moved = time.monotonic()
                else:
                    outcome.finished = await self._is_finished()
                await anyio.sleep(LOOK_S)
        finally:
            for consumer in consumers:
                consumer.kill()
        tally.read()
        self._timeline.tell(f"{outcome.keeper}: {tally.handled:,} processed, {tally.repeats:,} of them again")

    def _kill(self, consumers: Sequence[Consumer]) -> None:
        outcome = self._outcome
        if outcome.kills < len(self._kill_after) and outcome.tally.handled >= self._kill_after[outcome.kills]:
            victim = consumers[outcome.kills % len(consumers)]
            victim.restart()
            outcome.kills += 1
            self._holes.append(Hole(outcome, victim.shards))
            self._timeline.tell(f"kill -9 of {victim.name}, after {outcome.tally.handled:,} messages; it starts again")

    async def _crash(self) -> None:
        due = self._outcome.tally.handled >= self._crash_after and not self._holes  # one kill at a time
        if due and not self._crashed:
            self._crashed = True
            if done := await self._keeper.crash():
                self._outcome.crashes += 1
                self._timeline.tell(done)

    def _revive(self, consumers: Sequence[Consumer]) -> None:
        for consumer in consumers:
            words = consumer.last_words()
            if words is not None:
                self._timeline.tell(f"{consumer.name} ended by itself, and starts again: {words}")
                consumer.restart()

    async def _is_finished(self) -> bool:
        return self._outcome.kills == len(self._kill_after) and self._crashed and await self._keeper.finished()

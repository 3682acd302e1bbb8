"""The consumers of docs/own-broker*.md: their processes, and what each of them has to stand."""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from adapter.testing.waiting import eventually
from tests.acceptance.conftest import Pair

ADDRESS = "127.0.0.1:9520"  # in their code
LINES = 300
IN_HAND = 1  # handled, and killed before its commit returned


class Consumer:
    """A consumer in a directory, with what it has handled over all its lives."""

    def __init__(self, directory: Path, program: Sequence[str]) -> None:
        self.directory = directory
        self.program = program
        self.handled_file = directory / "handled"
        self.log = directory / "orders.log"

    def append(self, first: int, last: int) -> None:
        """Write messages to the log."""
        with self.log.open("a") as file:
            file.writelines(f"order {number}\n" for number in range(first, last + 1))

    @contextmanager
    def running(self) -> Iterator[None]:
        """It ends by a kill -9."""
        with self.handled_file.open("ab") as output:
            process = subprocess.Popen([*self.program, "orders.log"], cwd=self.directory, stdout=output)
            try:
                yield
                assert process.poll() is None, "it ended by itself"
            finally:
                process.kill()
                process.wait()

    @property
    def handled(self) -> list[int]:
        """The numbers of the messages, in the order in which they were handled."""
        return [int(number) for number in re.findall(r"^handled order (\d+)$", self.handled_file.read_text(), re.MULTILINE)]

    async def until(self, count: int) -> None:
        """Wait until so many were handled."""
        await eventually(lambda: len(self.handled) >= count)


async def stands_kills_and_a_reset(consumer: Consumer, pair: Pair) -> None:
    """It skips nothing and repeats only what was in hand, over kills of each process; then it follows a reset to the earliest."""
    consumer.append(1, LINES)
    with consumer.running():
        await consumer.until(LINES // 10)
    lives = 1
    with consumer.running():
        lives += 1
        await consumer.until(LINES // 5)
        pair.meta.kill()
        pair.restart()
        await consumer.until(LINES // 2)
        pair.meta.start()
        await consumer.until(LINES)
        handled = consumer.handled
        assert set(handled) == set(range(1, LINES + 1))
        assert sum(Counter(handled).values()) - LINES <= IN_HAND * lives
        await eventually(
            lambda: [(row["group"], row["lag"]) for row in pair("groups", "list", "--json").json] == [("billing", 0)]
        )

        before = len(consumer.handled)
        # Until the adapter has noticed that the Meta Service is there again.
        await eventually(lambda: pair("offsets", "reset", "billing", "--to-offset", "0", "--execute").code == 0)
        consumer.append(LINES + 1, LINES + 1)  # its commit is refused
        await consumer.until(before + 1 + LINES + 1)
        assert consumer.handled[before:] == [LINES + 1, *range(1, LINES + 2)]

"""docs/own-broker.md as it stands there: few commands until the first commit; its consumer under kills, and a reset."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapter.testing.waiting import eventually
from tests.acceptance.conftest import Pair
from tests.acceptance.documents import ROOT, blocks

PAGE = (ROOT / "docs" / "own-broker.md").read_text()
COMMANDS_MAX = 10  # until the first acknowledged commit
LINES = 300
IN_HAND = 1  # handled, and killed before its commit returned


class Consumer:
    """The page's consumer in a directory, with what it has handled over all its lives."""

    def __init__(self, directory: Path, address: str) -> None:
        self.directory = directory
        self.handled_file = directory / "handled"
        self.log = directory / "orders.log"
        code = blocks(PAGE, "python")[0]
        assert "127.0.0.1:9520" in code
        (directory / "consumer.py").write_text(code.replace("127.0.0.1:9520", address))

    def append(self, first: int, last: int) -> None:
        """Write messages to the log."""
        with self.log.open("a") as file:
            file.writelines(f"order {number}\n" for number in range(first, last + 1))

    @contextmanager
    def running(self) -> Iterator[None]:
        """It ends by a kill -9."""
        with self.handled_file.open("ab") as output:
            process = subprocess.Popen([sys.executable, "consumer.py", "orders.log"], cwd=self.directory, stdout=output)
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


def test_a_newcomer_has_a_commit_after_few_commands() -> None:
    """From the clone to the consumer's first one."""
    indented = [line.strip() for line in PAGE.splitlines() if line.startswith("    ") and not line.strip().startswith("#")]
    shell = [line.partition(" #")[0].strip() for line in indented]
    begin = next(at for at, line in enumerate(shell) if line.startswith("git clone"))
    end = shell.index("python consumer.py orders.log")
    typed = [line for line in shell[begin : end + 1] if re.match(r"(git|make|offset-adapter|seq|python) ", line)]
    commands = [command for line in typed for command in line.removesuffix("&").split("&&")]
    assert len(commands) <= COMMANDS_MAX


async def test_the_consumer_of_the_page_skips_nothing_and_repeats_only_what_was_in_hand(pair: Pair, tmp_path: Path) -> None:
    """Over kills of itself, of the adapter and of the Meta Service; then a reset to the earliest, which it follows."""
    consumer = Consumer(tmp_path, pair.adapter.tcp_address)
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

"""docs/own-broker*.md as they stand there: few commands until the first commit; Python's consumer under kills, and a reset.

tests/interop/own_broker.py has those in Go and Rust.
"""

import re
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import Pair
from tests.acceptance.documents import ROOT, blocks, page
from tests.acceptance.own_consumer import ADDRESS, Consumer, stands_kills_and_a_reset

COMMANDS_MAX = 10  # until the first acknowledged commit
LAST = {
    "own-broker": "python consumer.py orders.log &",
    "own-broker-go": "go run . orders.log",
    "own-broker-rust": "cargo run -- orders.log",
}
SAMPLES = {
    "own-broker-go": ("go", "clients/go/examples/consumer/main.go"),
    "own-broker-rust": ("rust", "clients/rust/examples/consumer.rs"),
}


@pytest.mark.parametrize("name", LAST)
def test_a_newcomer_has_a_commit_after_few_commands(name: str) -> None:
    """From the clone to the consumer's first one, whatever stands in a line of commands."""
    text = re.sub(r"^```.*?^```", "", page(name), flags=re.DOTALL | re.MULTILINE)
    shell = [line.partition(" #")[0].strip() for line in text.splitlines() if line.startswith("    ")]
    begin = next(at for at, line in enumerate(shell) if line.startswith("git clone"))
    commands = [command for line in shell[begin : shell.index(LAST[name]) + 1] for command in line.split("&&")]
    assert 5 < len(commands) <= COMMANDS_MAX


@pytest.mark.parametrize("name", SAMPLES)
def test_a_page_shows_the_example_that_the_client_builds(name: str) -> None:
    """Character by character."""
    language, file = SAMPLES[name]
    assert blocks(page(name), language) == [(ROOT / file).read_text()]


async def test_the_consumer_of_the_page_skips_nothing_and_repeats_only_what_was_in_hand(pair: Pair, tmp_path: Path) -> None:
    """Over kills of all processes; then a reset to the earliest, which it follows."""
    code = blocks(page("own-broker"), "python")[0]
    assert ADDRESS in code
    (tmp_path / "consumer.py").write_text(code.replace(ADDRESS, pair.adapter.tcp_address))
    await stands_kills_and_a_reset(Consumer(tmp_path, (sys.executable, "consumer.py")), pair)

"""A few rounds of `python -m tests.robustmq_kills`: kill -9 of a RobustMQ broker's double and the adapter before it."""

import random
from pathlib import Path

import pytest

from tests.robustmq_kills import Ledger, kill_round, stack

ROUNDS = 4


@pytest.mark.timeout(300)
def test_what_the_broker_has_flushed_survives_kills_and_nothing_is_skipped(tmp_path: Path) -> None:
    """Of the broker, of the adapter, and of both at once."""
    ledger = Ledger()
    with stack(tmp_path) as (_, broker, adapter):
        rng = random.Random(7)
        for _ in range(ROUNDS):
            kill_round(rng, ledger, broker, adapter)
    assert ledger.commits
    assert not ledger.lost, ledger.lost
    assert not ledger.skipped, ledger.skipped

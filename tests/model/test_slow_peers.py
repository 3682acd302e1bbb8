"""Peers of the built-in server that read nothing: no more is read from them, others go on, and in the end they are answered."""

from contextlib import closing

import pytest

from tests.model.broker import Setup
from tests.model.consumers import Offer, Way
from tests.model.invariants import Watch
from tests.model.machines import KEYS
from tests.model.settle import settle
from tests.model.slow_peers import HIGH_WATER, Kind, SlowWorld

OFFERS = [Offer(KEYS[0], 1, knowing=False, overwrite=False)] * 6
OTHERS = [Offer(KEYS[2], 1, knowing=False, overwrite=False)] * 6


@pytest.mark.parametrize("kind", Kind)
def test_a_peer_that_reads_nothing_is_read_no_more_and_holds_nobody_up(kind: Kind) -> None:
    """What it is told in the end is stored; where only its windows are closed, its commits are taken meanwhile."""
    with closing(SlowWorld(0, [Setup("interval", writes_through=False)] * 2)) as world:
        watch = Watch(world)
        world.commit(0, {KEYS[0]: 1, KEYS[2]: 1})
        world.pass_time(1)
        sent = 0
        for _ in range(20):
            sent += world.commit_slowly(0, OFFERS, kind)
            world.pass_time(0.0015)
            world.check_bounds()
            watch.check()
        [(_, client)] = world.slow
        assert client.wire.listens == (kind is Kind.WINDOW)
        assert (len(client.wire.waiting) > HIGH_WATER) == (kind is Kind.SOCKET)
        slow = world.unanswered
        assert slow > 40
        world.commit_together(0, OTHERS, Way.CONNECTIONS, apart=False)
        world.pass_time(0.01)
        assert world.unanswered == slow
        world.read_on(0)
        world.pass_time(0.1)
        watch.check()
        assert world.unanswered == 0
        settle(world, watch)

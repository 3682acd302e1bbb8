"""What observers are shown is on the disk, whatever becomes of the commit; lists, watches, the console and the lag among them."""

from contextlib import closing

import pytest

from adapter.sidecar.config import WalSync
from adapter.sidecar.ledger.watching import Watches
from tests.model.broker import Setup
from tests.model.consumers import Offer, Way
from tests.model.invariants import BrokenError
from tests.model.machines import KEYS
from tests.model.observers import Asked, ObservedWatch, ObservedWorld

KEY = KEYS[0]
OFFER = Offer(KEY, 1, knowing=False, overwrite=False)
SYNCS: list[WalSync] = ["interval", "always"]


def test_observers_see_commits_and_nothing_that_a_full_disk_refused() -> None:
    """Whatever they ask for; also by the fast path, which changes the memory first."""
    for wal_sync in SYNCS:
        with closing(ObservedWorld(0, [Setup(wal_sync, writes_through=False)] * 2)) as world:
            watch = ObservedWatch(world)
            world.commit(0, {KEY: 5})
            world.pass_time(1)
            world.observe(0, 20, list(Asked))
            world.commit_together(0, [OFFER], Way.CALLS, apart=False)
            world.pass_time(0.003)
            world.disk_full(0, full=True)
            world.commit_together(0, [OFFER, OFFER], Way.CALLS, apart=True)
            world.pass_time(0.02)
            watch.check()
            assert world.looks > 100
            assert {who: position for (who, name, key), position in world.seen.items() if (name, key) == ("b0", KEY)} == {
                "memory": (1, 6),
                "lag": (1, 6),
            }
            assert set(world.answers) == set(Asked)


def test_a_watch_that_misses_a_reset_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has listed the offset, and is told nothing."""
    with closing(ObservedWorld(0, [Setup("interval", writes_through=False)] * 2)) as world:
        watch = ObservedWatch(world)
        world.commit(0, {KEY: 5})
        world.pass_time(1)
        world.observe(0, 6, [Asked.WATCH])
        world.pass_time(0.01)
        watch.check()
        monkeypatch.setattr(Watches, "note", lambda *_: None)
        world.reset(0, [KEY], 2)
        world.pass_time(0.1)
        with pytest.raises(BrokenError, match="watchers of b0 know"):
            watch.check()

"""No alarm where nothing acknowledged is missing: a flush may be ahead of the local fsync when the power goes."""

import pytest

from tests.model import disk
from tests.model.broker import Setup
from tests.model.machines import KEYS
from tests.model.runs import quiet
from tests.model.world import World

SLOW_SYNC_S = 0.2
CUTS = 20


def test_a_power_cut_during_the_fsync_of_what_is_flushed_already_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `always` that commit is not acknowledged. Reported as stored, it would make the next start find an older copy."""
    monkeypatch.setattr(disk, "SYNC_S", SLOW_SYNC_S)
    flushed = 0
    with quiet():
        for cut in range(CUTS):
            world = World(1, [Setup("always", writes_through=False)])
            world.pass_time(5 + 0.005 * cut)
            world.commit(0, {KEYS[0]: 5})
            world.pass_time(2)
            world.commit(0, {KEYS[0]: 6})
            world.pass_time(SLOW_SYNC_S * 0.75)
            standing = world.service.standing(KEYS[0])
            flushed += standing is not None and standing.offset == 6
            world.power_cut(0, 0, keep_watermark=True)
            world.pass_time(5)
            core = world.brokers[0].core()
            assert core is not None
            assert core.ledger.store.loss is None
            world.close()
    assert flushed  # the flush was ahead in some

"""Runs that broke once, as they were printed, made small. Each is of a bug that other tests show alone; see the track record."""

import pytest

from tests.model.plans import plan_of, play
from tests.model.runs import quiet
from tests.model.worlds import WORLDS

BROKE = {
    "a power cut takes a commit behind a forgotten tombstone, and brings that one back": (
        "forgetful",
        (
            '[["begin",0,[[0,0],[0,0]]],["commit_much",0,0,0],["in_flight",0,0,1,0,0,0,0],["tombstones_are_forgotten",0,0],'
            '["power_cut",0,0,0,3],["commit_much",0,0,2],["power_cut",0,0,0,0]]'
        ),
    ),
    "a lower commit is answered with what the Meta Service has forgotten, which nobody is owed any more": (
        "forgetful",
        (
            '[["begin",0,[[0,0],[0,0]]],["goes_on",1,0,0,0,0,[],0,3],["refuse",[0],0],["commit_much",0,1,0],["a_day_passes",0],'
            '["tombstones_are_forgotten",0,0],["commit_much",0,0,0]]'
        ),
    ),
    "a clone onto a group that is put back while it expires stays held": (
        "two",
        (
            '[["begin",2,[[0,0],[0,0]]],["commit_in_columns",1,[[4,0]],0,0,5],["power_cut",1,0,0,0],["a_day_passes",0],'
            '["commit_in_columns",0,[[2,0]],0,0,5],["clone",1,[1,2,0],5],["commit_much",0,0,0]]'
        ),
    ),
    "a reset of a forgotten key in a group that is put back stays held": (
        "forgetful",
        (
            '[["begin",22,[[0,0],[0,0]]],["commit_in_columns",1,[[0,0]],0,0,5],["commit_in_columns",1,[[2,0]],0,0,5],'
            '["in_flight",0,1,3,0,1,0,5],["tombstones_are_forgotten",0,4],["reset",1,1,0,0],["commit_late",0,[[0,0]],0,4],'
            '["early",0,1,[[0,1]],2,0,0,0]]'
        ),
    ),
    "a commit that waited for its group does not undo a reset that was taken up meanwhile": (
        "two",
        (
            '[["begin",0,[[0,0],[0,0]]],["commit_late",1,[[0,0]],0,4],["apart",0,0,0,[[1,0],[1,0],[0,0]],0,0,1,1],'
            '["commit",0,[[2,0]],0,[0,0],4],["apart",0,1,1,[[0,0]],0,0,0,0]]'
        ),
    ),
    "an offset that was stored beside a refused one is not taken back": (
        "epochless",
        (
            '[["begin",0,[[0,2],[0,0]]],["start",0,3],["refuse",[4],4],["commit_together",0,[[[5,0,0,0]]],0,0,0,0,0],'
            '["commit_much",0,2,3],["commit_much",0,0,0]]'
        ),
    ),
    "the report of a store moves with the offsets, and is not forgotten beside a Raft group that falls silent then": (
        "etcd",
        (
            '[["begin",7,[[0,0],[0,0]],2,[[3,0,0,0,0,[0],0],[0,2,0,0,0,[0],0],[0,4,0,0,0,[0],4],[3,3,0,0,0,[0],0],'
            '[3,0,0,0,0,[0],0],[0,0,1,0,0,[0],0]]],["flush_beside_a_silent_group",0,0,[0],1,0],["move",0,0,6],'
            '["rebalance",0,5],["flush_beside_a_silent_group",0,0,[0],0,0]]'
        ),
    ),
    "a start forgets a tombstone that is past, taken up and not sent, and with it what it had superseded": (
        "two",
        (
            '[["begin",0,[[0,0],[0,0]]],["meta",1,3],["in_flight",1,3,0,0,0,0,0],["commit",0,[[0,0]],0,[0,0],3],'
            '["apart",0,3,0,[[0,0],[0,0]],1,0,1,1],["commit_much",0,0,3],["cut",0,0,3],["apart",0,0,0,[[0,0]],0,0,2,0],'
            '["a_day_passes",0]]'
        ),
    ),
    "of what expired, an older copy that a power cut brings back is enough": (
        "two",
        (
            '[["begin",0,[[2,0],[0,0]]],["power_cut",0,0,0,3],["a_day_passes",3],["power_cut",1,0,0,3],'
            '["commit_much",0,7,3],["commit_much",0,0,2],["move",0,0,0],["commit_much",0,7,5],["a_day_passes",5],'
            '["power_cut",1,0,0,3],["power_cut",0,0,0,0]]'
        ),
    ),
    "what is handed over during a recovery begins anew": (
        "lossy",
        (
            '[["begin",11,[[0,0],[0,0]]],["apart",0,4,1,[[0,0]],0,0,0,3],["apart",0,0,1,[[0,0]],0,0,0,5],'
            '["apart",0,1,0,[[0,0]],0,0,0,0],["apart",0,0,1,[[0,0],[0,0],[0,0]],1,0,2,6],["fail_sync",0,6],'
            '["apart",0,0,1,[[0,0],[0,0],[0,0]],0,0,0,0],["apart",0,2,1,[[0,0],[0,0]],0,0,0,6],["fail_sync",0,6],'
            '["apart",0,0,1,[[0,0]],0,0,0,6],["fail_sync",0,0],["apart",0,2,1,[[0,0],[0,0]],0,0,0,6],'
            '["fail_sync",0,6],["apart",0,3,1,[[0,0],[0,0],[0,0]],0,0,0,4],["apart",0,0,1,[[0,0]],0,0,0,0]]'
        ),
    ),
    "a read of the store that is asked for strangely takes up what is held": (
        "wide",
        ('[["begin",0,[[0,0],[0,0]],0],["goes_on",1,5,0,0,0,[],0,0],["ask",1,2,2,2,3],["goes_on",0,5,0,0,0,[],0,0]]'),
    ),
    "a group that comes while a comparison begins again hides no key of the groups behind it": (
        "exchanged",
        (
            '[["begin",3,[[0,0],[0,0]]],["goes_on",0,0,0,0,0,[],0,0],["apart",0,4,1,[[0,0],[0,0]],2,0,0,0],'
            '["power_cut",0,0,0,0],["commit_together",0,[[[2,0,0,0]],[[2,0,0,0]]],0,0,3,0,0]]'
        ),
    ),
    "a kill in the middle of a removal may come behind its write": (
        "two",
        (
            '[["begin",0,[[0,0],[0,0]]],["commit",0,[[1,1]],0,[0,0],0],["a_day_passes",2],["kill",0,[1,6],0,0],'
            '["commit",0,[[1,0]],0,[1,1],6]]'
        ),
    ),
    "an older generation gets in when a delete forgets the newer one while it waits": (
        "slow",
        (
            '[["begin",2,[[2,0],[0,0]]],["commit",0,[[5,0]],0,[1,1],2],["apart",0,0,0,[[0,0]],0,0,2,2],["delete",0,0,0,2],'
            '["commit",0,[[5,0]],0,[0,0],2],["commit_in_columns",0,[[4,0],[2,0]],0,0,2],["delete",0,4,1,0],'
            '["commit_in_columns",0,[[0,0]],0,0,2],["commit",0,[[0,0],[4,0]],0,[1,0],0]]'
        ),
    ),
    "the last read may meet a sweep of expired offsets, and is then answered later": (
        "two",
        (
            '[["begin",97,[[0,0],[2,0]]],["trouble",1,[1],0],["power_cut",1,0,0,0],["in_flight",0,0,0,0,0,0,0],'
            '["commit_knowing_the_epoch",1,[[4,1]],0,6],["commit_knowing_the_epoch",1,[[5,0]],0,6],'
            '["commit_in_columns",0,[[0,0]],0,0,6],["goes_on",0,0,1,0,0,[],0,0],["start",0,6],["commit_much",0,1,6],'
            '["disk_full",1,1,0],["a_day_passes",6],["a_day_passes",0],["meta",0,0],["apart",0,0,0,[[0,0]],0,0,0,0]]'
        ),
    ),
}


@pytest.mark.parametrize("fact", BROKE)
def test_what_broke_once_holds(fact: str) -> None:
    """All invariants, after every step."""
    world, steps = BROKE[fact]
    with quiet():
        play(WORLDS[world], plan_of(steps))

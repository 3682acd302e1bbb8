"""Groups that rest, against a plain list: what came to rest last is known, whatever left in between."""

from hypothesis import given
from hypothesis import strategies as st

from adapter.model.records import GroupKey
from adapter.sidecar.ledger import resting
from adapter.sidecar.ledger.resting import RestingGroups

MOST = 8
GROUPS = st.builds(GroupKey, st.sampled_from("ab"), st.integers(0, 9).map(str))


@given(st.lists(st.tuples(GROUPS, st.booleans()), max_size=60))
def test_the_groups_that_came_to_rest_last_are_known(steps: list[tuple[GroupKey, bool]]) -> None:
    """Half of the room at least; never one that has not come, or has left."""
    groups, rests = RestingGroups(MOST), list[GroupKey]()
    for group, comes in steps:
        known = group in groups
        if comes:
            if group not in groups or group not in rests[-MOST // 2 :]:
                rests = [one for one in rests if one != group] + [group]
            groups.add(group)
        else:
            assert groups.remove(group) is known
            rests = [one for one in rests if one != group]
        found = {one for one in rests if one in groups}
        assert found >= set(rests[-MOST // 4 :])
        assert groups.count == len(found) <= MOST
        assert (group in groups) is comes


def test_a_digest_is_found_only_where_one_begins() -> None:
    """Not across two of them."""
    digests = resting._Digests()
    first, second = bytes([7] * 15 + [1]), bytes([7] * 16)
    digests.add(first)
    digests.add(second)
    assert (first in digests, second in digests, bytes([7] * 14 + [1, 7]) in digests, bytes([7, 1] + [7] * 14) in digests) == (
        True,
        True,
        False,
        False,
    )
    assert (digests.remove(first), digests.remove(first), second in digests, digests.count) == (True, False, True, 1)

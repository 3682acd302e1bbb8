"""Numbers of names, and rows of keys, against plain dictionaries: whatever came, left and came again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.model.codec import pack_names, unpack_names
from adapter.model.records import GroupKey
from adapter.sidecar.lag import ids, packed
from adapter.sidecar.lag.ids import Ids, Names
from adapter.sidecar.lag.names import Keys

NAMES = st.tuples(
    st.sampled_from(["default", "d"]), st.sampled_from(["a", "ab", "bb", "ü", "x" * 60]), st.sampled_from(["s", "t", "tt"])
)
STEPS = st.lists(st.tuples(st.sets(NAMES, max_size=8), st.sampled_from(["add", "drop", "rest"])), max_size=12)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every room is moved together, and most names have the hash of another one."""
    monkeypatch.setattr(packed, "REST_S", 0)
    monkeypatch.setattr(ids, "LEAST_UNUSED", 1)
    monkeypatch.setattr(ids, "hash_of", len)


@given(STEPS)
def test_a_key_has_the_row_that_it_was_given_until_it_leaves(steps: list[tuple[set[tuple[str, str, str]], str]]) -> None:
    """Groups and logs have names as long as they have a key, and none afterwards; a view of before has the names of before."""
    keys = Keys()
    rows: dict[bytes, int] = {}
    views: list[tuple[Names[GroupKey], dict[int, GroupKey]]] = []
    for names, what in steps:
        some = [pack_names(*name) for name in sorted(names)]
        if what == "add":
            new = [key for key in some if key not in rows]
            given_rows, _ = keys.add(new)
            rows |= dict(zip(new, given_rows.tolist(), strict=True))
        elif what == "drop":
            old = [key for key in some if key in rows]
            groups_before = {_group(key) for key in rows}
            gone = keys.drop(keys.find(old))
            for key in old:
                del rows[key]
            assert {keys.groups.name(number) for number in gone} == groups_before - {_group(key) for key in rows}
        else:
            keys.rest()
        assert keys.find(some).tolist() == [rows.get(key, -1) for key in some]
        assert len(set(rows.values())) == len(rows) == keys.used
        assert {keys.key(row) for row in rows.values()} == set(rows)
        groups = {_group(key) for key in rows}
        assert {keys.groups.name(number) for number in keys.groups.used().tolist()} == groups
        assert len(keys.groups) == len(groups)
        assert len(keys.logs) == len({(key[0], key[2]) for key in map(unpack_names, rows)})
        view = keys.groups.names()
        views.append((view, {number: view[number] for number in keys.groups.used().tolist()}))
        for seen, there in views:
            assert {number: seen[number] for number in there} == there


def _group(key: bytes) -> GroupKey:
    return GroupKey(*unpack_names(key)[:2])


def test_a_name_that_is_given_twice_at_once_has_one_number() -> None:
    """And as many uses; it is new once."""
    numbers = Ids(GroupKey)
    name, other = pack_names("n", "a"), pack_names("n", "b")
    found, new = numbers.use([name, other, name])
    assert (found.tolist(), new) == ([0, 1, 0], [0, 1])
    assert numbers.find([other, name]).tolist() == [1, 0]
    numbers.settle()
    assert numbers.leave(found[:2]) == [1]
    assert numbers.take_new() == [0]
    assert (numbers.find([name, other]).tolist(), numbers.leave(found[2:])) == ([0, -1], [0])

"""The columns of groups against plain Python: orders, filters, pages, and what adapters say, in any sequence of changes."""

from fnmatch import fnmatchcase
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from adapter.fleet.table import GroupTable, plain_sum
from adapter.fleet.views import Key
from adapter.model.lag_status import BY_SEVERITY, Status
from adapter.rpc import lag_pb

ORDERS = [lag_pb.WORST, lag_pb.LAG, lag_pb.LAG_SECONDS, lag_pb.TREND, lag_pb.COMMIT_RATE, lag_pb.LAST_COMMIT, lag_pb.NAME]

names = st.sampled_from(["a", "b", "a b", "ä", "z" * 40, "orders-1", "orders-10", "[x]"])
optional_counts = st.none() | st.integers(0, 3)
optional_numbers = st.none() | st.sampled_from([-1.5, 0.0, 2.0, 7.25])


@st.composite
def sums(draw: st.DrawFn) -> lag_pb.GroupLag:
    """The sums of a group, of which many are equal."""
    return lag_pb.GroupLag(
        namespace=draw(st.sampled_from(["default", "n"])),
        group=draw(names),
        lag=draw(optional_counts),
        lag_seconds=draw(optional_numbers),
        trend=draw(optional_numbers),
        commit_rate=draw(optional_numbers),
        status=draw(st.sampled_from(lag_pb.LagStatus.values())),
        last_commit_at_ms=draw(st.integers(0, 3)),
    )


def down(group: lag_pb.GroupLag, field: str) -> float:
    """By which the largest comes first, and what is unknown last."""
    return -getattr(group, field) if group.HasField(field) else inf  # type: ignore[arg-type]


def rank(group: lag_pb.GroupLag, order: lag_pb.LagOrder.ValueType) -> tuple[float, ...]:
    """What an order sorts by, as the proto says."""
    lag, seconds = down(group, "lag"), down(group, "lag_seconds")
    return {
        lag_pb.WORST: (-BY_SEVERITY.index(Status(group.status)), seconds, lag),
        lag_pb.LAG: (lag, seconds),
        lag_pb.LAG_SECONDS: (seconds, lag),
        lag_pb.TREND: (down(group, "trend"), lag),
        lag_pb.COMMIT_RATE: (down(group, "commit_rate"),),
        lag_pb.LAST_COMMIT: (group.last_commit_at_ms or inf,),
        lag_pb.NAME: (),
    }[order]


@given(said=st.lists(sums(), max_size=12))
def test_an_order_is_that_of_plain_python(said: list[lag_pb.GroupLag]) -> None:
    """Unknown numbers last, equal ones in key order."""
    table = GroupTable(100)
    table.open(0)
    groups: dict[Key, lag_pb.GroupLag] = {}
    for group in said:
        table.put(0, group)
        groups[group.namespace, group.group] = group
    for order in ORDERS:
        found = table.sorting().page(lag_pb.LagFilter(), "", order, 100, 0)
        ranked = sorted((*rank(group, order), key[0].encode(), key[1].encode(), key) for key, group in groups.items())
        assert list(found.keys) == [each[-1] for each in ranked], order
        assert found.lag == sum(group.lag for group in groups.values())


@given(
    said=st.lists(sums(), max_size=12),
    pattern=st.sampled_from(["", "a*", "orders-?", "[[]x]", "*"]),
    namespace=st.sampled_from(["", "n", "other"]),
    at_least=st.sampled_from(lag_pb.LagStatus.values()),
    text=st.sampled_from(["", "ORDERS", "n/", "Ä", "nothing"]),
    size=st.integers(1, 5),
    skipped=st.integers(0, 5),
)
def test_a_page_has_what_matches(
    said: list[lag_pb.GroupLag],
    pattern: str,
    namespace: str,
    at_least: lag_pb.LagStatus.ValueType,
    text: str,
    size: int,
    skipped: int,
) -> None:
    """As plain Python chooses it."""
    table = GroupTable(100)
    table.open(0)
    groups: dict[Key, lag_pb.GroupLag] = {}
    for group in said:
        table.put(0, group)
        groups[group.namespace, group.group] = group
    expected = sorted(
        (
            key
            for key, group in groups.items()
            if (not namespace or key[0] == namespace)
            and (not pattern or fnmatchcase(key[1], pattern))
            and (not at_least or BY_SEVERITY.index(Status(group.status)) >= BY_SEVERITY.index(Status(at_least)))
            and text.casefold() in "/".join(key).casefold()
        ),
        key=lambda key: (key[0].encode(), key[1].encode()),
    )
    chosen = lag_pb.LagFilter(namespace=namespace, pattern=pattern, at_least=at_least)
    found = table.sorting().page(chosen, text, lag_pb.NAME, size, skipped)
    assert (list(found.keys), found.matching) == (expected[skipped : skipped + size], len(expected))
    assert sum(found.statuses.values()) == len(expected)


changes = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.none() | st.integers(0, 5)), max_size=30)


@given(changes)
def test_what_adapters_say_in_any_sequence_is_what_is_kept(steps: list[tuple[int, str, int | None]]) -> None:
    """None: it has the group no more. A group that several have is the plain sum, and has to be merged."""
    table = GroupTable(1_000)
    said: dict[int, dict[Key, lag_pb.GroupLag]] = {slot: {} for slot in range(3)}
    for slot in said:
        table.open(slot)
    for slot, name, lag in steps:
        key = ("default", name)
        if lag is None:
            said[slot].pop(key, None)
            table.remove(slot, key)
        else:
            said[slot][key] = lag_pb.GroupLag(namespace="default", group=name, lag=lag, shards=1, known=1)
            table.put(slot, said[slot][key])
    for name in "abc":
        key = ("default", name)
        having = {slot: groups[key] for slot, groups in said.items() if key in groups}
        assert set(table.owners(key)) == {*having}
        assert (key in table.unmerged) <= (len(having) > 1)
        known = table.get(key)
        if not having:
            assert known is None
        else:
            assert known
            total, since, exact = known
            assert (total.lag, since) == (sum(one.lag for one in having.values()), 0)
            assert exact == (len(having) == 1)
    assert table.groups == len({key for groups in said.values() for key in groups})
    found = table.sorting().page(lag_pb.LagFilter(), "", lag_pb.NAME, 10, 0)
    assert len(found.keys) == table.groups


def test_there_is_room_for_a_group_after_another_one_left() -> None:
    """The limit is of what is kept now."""
    table = GroupTable(1)
    table.open(0)
    for name in ("a", "b"):
        table.put(0, lag_pb.GroupLag(namespace="default", group=name, lag=1))
    assert (table.groups, table.left_out) == (1, 1)
    table.remove(0, ("default", "a"))
    table.put(0, lag_pb.GroupLag(namespace="default", group="b", lag=2))
    assert (table.groups, table.left_out) == (1, 0)


def test_what_was_merged_stays_until_it_is_merged_again() -> None:
    """Not the plain sum in between, which counts shards twice."""
    table = GroupTable(10)
    key = ("default", "g")
    for slot in (0, 1):
        table.open(slot)
        table.put(slot, lag_pb.GroupLag(namespace="default", group="g", lag=5))
    table.set_merged(key, lag_pb.GroupLag(namespace="default", group="g", lag=6), 0, exact=True, begun=1)
    table.unmerged.clear()
    table.put(1, lag_pb.GroupLag(namespace="default", group="g", lag=7))
    known = table.get(key)
    assert known
    assert (known[0].lag, known[2]) == (6, True)
    assert key in table.unmerged


def test_more_than_a_thousand_groups_and_many_adapters_have_room() -> None:
    """Columns grow."""
    table = GroupTable(10_000)
    for slot in range(100):
        table.open(slot)
        for number in range(30):
            table.put(slot, lag_pb.GroupLag(namespace="default", group=f"{slot}-{number}", lag=number))
    table.set_stale(99, 5)
    found = table.sorting().page(lag_pb.LagFilter(), "", lag_pb.LAG, 1, 0)
    assert (found.matching, found.lag, found.stale) == (3_000, 100 * 435, 30)


def test_a_plain_sum_has_what_is_known() -> None:
    """Of those that know it."""
    one = lag_pb.GroupLag(namespace="default", group="g", lag=1, shards=2, known=1, status=lag_pb.OK, stop=1)
    other = lag_pb.GroupLag(namespace="default", group="g", lag_seconds=3, shards=1, status=lag_pb.STOP, worst_shard="s")
    total = plain_sum([one, other])
    assert (total.lag, total.lag_seconds, total.shards, total.known, total.worst_shard) == (1, 3, 3, 1, "s")
    assert not total.HasField("trend")

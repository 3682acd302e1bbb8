"""Which shards the names in a reset, delete or clone select: a name without an offset does not create a shard."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from unittest import mock

import pytest

from adapter.errors import InvalidInputError
from adapter.model.queues import topics_of
from adapter.model.records import CommitMode, GroupKey, Member, OffsetKey, OffsetRecord
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Known, Reset, To, check_there, no_offset_of, plan_delete
from adapter.sidecar.ledger.operations import Commit
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit_of, core_over, key, record, send, tombstone

G = GroupKey("default", "g")
TO_3 = Reset(To.OFFSET, 3)
ORDERS = {key(f"orders/{number}"): record(9) for number in range(2)}
LABELLED = key("by-label")
STANDING = {**ORDERS, key("payments/0"): record(9), LABELLED: record(9, topic="orders")}


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("standing", [ORDERS, {**ORDERS, key("orders"): tombstone(1)}])
def test_a_shard_without_an_offset_refuses_the_whole_reset(standing: dict[OffsetKey, OffsetRecord], create: bool) -> None:
    """Unless it is to be created. A deleted shard has no offset either."""
    keys = [key("orders/0"), key("orders")]
    if create:
        check_there(TO_3._replace(create=True), keys, standing)
        return
    with pytest.raises(InvalidInputError, match=r"default/g has no offset of 'orders'; did you mean orders/0, orders/1\?"):
        check_there(TO_3, keys, standing)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (
            ["orders"],
            "no offset of 'orders'; did you mean orders/0, orders/1, by-label? topics: orders (--topic orders) means all",
        ),
        (["order/1"], "no offset of 'order/1'; did you mean orders/1, orders/0?"),
        (["xyz"], "no offset of 'xyz'"),
        (["a", "b", "c", "d", "e"], "no offset of 'a', 'b', 'c' and 2 more"),
    ],
)
def test_similar_shards_are_named(names: Sequence[str], text: str) -> None:
    """The shards of a topic with that name, or else names that differ a little."""
    assert no_offset_of([key(name) for name in names], STANDING).startswith(f"default/g has {text}")


def test_of_many_shards_three_are_named() -> None:
    """The error also says how many more there are."""
    many = {key(f"orders/{number}"): record(9) for number in range(10)}
    assert "did you mean orders/0, orders/1, orders/2 and 7 more?" in no_offset_of([key("orders")], many)


def test_suggestions_do_not_hold_up_commits() -> None:
    """Of a thousand similar names only a few are compared, and only for the first absent names."""
    many = {key(f"{'x' * 250}{number:05d}"): record(9) for number in range(5_000)}
    many.update({key(f"order-{number:04d}"): record(9) for number in range(5_000)})
    absent = [key(f"ordre-{number:04d}") for number in range(1_000)]
    with mock.patch("adapter.sidecar.engine.reset_plans.get_close_matches", wraps=get_close_matches) as compared:
        changes = plan_delete(absent, Known(many))
        no_offset_of(absent, many)
    assert [change.changes for change in changes] == [False] * 1_000
    assert compared.call_count <= 4
    assert all(len(name) <= 64 and len(names) <= 100 for (name, names, _), _ in compared.call_args_list)


def test_a_group_without_offsets_is_told_as_such() -> None:
    """The mistake is then in the name of the group."""
    assert no_offset_of([key("orders")], {key("orders"): tombstone(1)}).startswith(
        "default/g has no offsets; `groups list` shows"
    )


def test_a_delete_says_which_shards_were_perhaps_meant() -> None:
    """As a note in the row: an absent shard needs no delete, so nothing is refused."""
    (change,) = plan_delete([key("orders")], Known(ORDERS))
    assert not change.changes
    assert change.warning.startswith("has no offset; did you mean orders/0, orders/1?")


@pytest.mark.parametrize(
    ("shard", "label", "is_of"),
    [
        ("orders/0", "", True),
        ("broker-a/orders/0", "", True),
        ("anything", "orders", True),
        ("orders/0", "other", True),
        ("orders", "", False),
        ("orders/x", "", False),
        ("my-orders/0", "", False),
        ("orders/0/1", "", False),
    ],
)
def test_a_shard_is_of_a_topic_by_its_label_or_by_its_name(shard: str, label: str, is_of: bool) -> None:
    """By the name rules of `queues`, with or without a broker in front."""
    assert ("orders" in topics_of(shard, label)) is is_of


@pytest.mark.parametrize("execute", [False, True])
async def test_a_refused_reset_changes_nothing_and_its_dry_run_says_the_same(tmp_path: Path, execute: bool) -> None:
    """It used to create a shard "orders" beside orders/0 and orders/1, and to report success."""
    meta = FakeMeta(dict(ORDERS))
    async with core_over(tmp_path, meta) as core:
        for reset in (TO_3, Reset(To.TARGETS, targets={"orders": 3, "orders/0": 3})):
            with pytest.raises(InvalidInputError, match="no offset of 'orders'"):
                await core.resets.reset(Wanted(G, ["orders", "orders/0"]), reset, execute=execute)
        assert meta.records == ORDERS


async def test_a_topic_is_all_of_its_shards(tmp_path: Path) -> None:
    """By name and by label, together with named shards; each of them once."""
    meta = FakeMeta(dict(STANDING))
    async with core_over(tmp_path, meta) as core:
        outcome = await core.resets.reset(Wanted(G, ["orders/1"], ["orders"]), TO_3, execute=True)
        assert sorted(change.key.shard for change in outcome.changes) == ["by-label", "orders/0", "orders/1"]
        assert {found.shard for found, stands in meta.records.items() if stands.offset == 9} == {"payments/0"}
        await core.resets.clone(Wanted(G, [], ["payments"]), GroupKey("default", "h"), execute=True)
        assert [found.shard for found in meta.records if found.group == "h"] == ["payments/0"]
        await core.resets.delete(Wanted(G, [], ["orders"]), execute=True)
        assert [found.shard for found, stands in meta.records.items() if stands.live and found.group == "g"] == ["payments/0"]


async def test_the_delete_of_a_topic_leaves_the_groups_generation(tmp_path: Path) -> None:
    """The group's other topics are still in use."""
    async with core_over(tmp_path, FakeMeta(dict(STANDING))) as core:
        await send(core, commit_of({key("orders/0"): 10})._replace(members={G: Member(7, "m")}))
        await core.resets.delete(Wanted(G, [], ["orders"]), execute=True)
        assert core.ledger.store.member(G) == Member(7, "m")


async def test_an_unknown_topic_is_refused(tmp_path: Path) -> None:
    """The error lists the group's topics; otherwise it would select the whole group, or nothing."""
    meta = FakeMeta(dict(STANDING))
    async with core_over(tmp_path, meta) as core:
        wanted = Wanted(G, [], ["order"])
        why = "topics: default/g has no offset of topic 'order'; it has orders, payments"
        with pytest.raises(InvalidInputError, match=why):
            await core.resets.reset(wanted, TO_3, execute=True)
        with pytest.raises(InvalidInputError, match=why):
            await core.resets.delete(wanted, execute=True)
        with pytest.raises(InvalidInputError, match=why):
            await core.resets.clone(wanted, GroupKey("default", "h"), execute=True)
        assert meta.records == STANDING


async def test_after_ones_own_change_nobody_has_to_stop_consumers(tmp_path: Path) -> None:
    """A commit gives the warning; the time that a reset, clone or import sets does not."""
    async with core_over(tmp_path, FakeMeta({key("a"): record(9)})) as core:
        wanted, copy = Wanted(G, ["a"]), Wanted(GroupKey("default", "h"), ["a"])
        for _ in range(2):
            assert (await core.resets.reset(wanted, TO_3, execute=True)).warnings[1:] == []
        await core.resets.clone(wanted, copy.group, execute=True)
        assert not _told(await core.resets.reset(copy, TO_3, execute=False))
        now_ms = core.clocks.now_ms()
        await core.resets.merge(commit_of({key("b"): 5}, committed_at_ms=now_ms), execute=True)
        assert not _told(await core.resets.reset(Wanted(G, []), TO_3, execute=False))
        stands = core.ledger.store.get(key("a"))
        assert stands
        await send(core, Commit([(key("a"), record(12, stands.epoch, committed_at_ms=now_ms - 1_000))], CommitMode.INCREASE_ONLY))
        assert _told(await core.resets.reset(wanted, TO_3, execute=False))


def _told(outcome: object) -> bool:
    return "stop its consumers" in str(outcome)

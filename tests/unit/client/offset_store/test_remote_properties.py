"""The RemoteOffsetStore under any sequence of updates, rewinds, persists and lost answers."""

from hypothesis import given
from hypothesis import strategies as st

from adapter.client.offset_store.remote import RemoteOffsetStore
from adapter.client.offset_store.store import OffsetStoreError, ReadOffsetType
from adapter.model.queues import MessageQueue
from tests.unit.fake_adapter import FakeAdapter, Fault

A = MessageQueue("t", 0, "broker-a")
SHARD = "broker-a/t/0"
MEMORY = ReadOffsetType.READ_FROM_MEMORY

Step = tuple[str, int]
OFFSETS = st.integers(0, 9)
FAULTS = st.sampled_from(list(Fault))
MOVES = st.one_of(
    st.tuples(st.sampled_from(["update", "raise"]), OFFSETS),
    st.tuples(st.just("persist"), FAULTS),
)


@given(st.lists(MOVES, max_size=20))
async def test_alone_the_store_ends_with_exactly_what_the_consumer_said_last(moves: list[Step | tuple[str, Fault]]) -> None:
    """After any rewinds and lost replies, one answered persist is enough, and none of it is mistaken for a reset."""
    adapter, resets = FakeAdapter(), dict[MessageQueue, int | None]()
    await adapter.commit("g", {SHARD: 5})
    store = RemoteOffsetStore(adapter, "g", on_reset=resets.__setitem__)
    said = await store.read_offset(A)
    for name, value in moves:
        await move(store, adapter, name, value)
        if isinstance(value, int):
            said = value if name == "update" else max(value, said or 0)
    await store.persist(A)
    assert (adapter.records[SHARD].offset, resets) == (said, {})


@given(new=st.booleans(), before=st.lists(MOVES, max_size=10), target=OFFSETS, after=st.lists(MOVES, max_size=10))
async def test_nothing_undoes_a_reset(
    *, new: bool, before: list[Step | tuple[str, Fault]], target: int, after: list[Step | tuple[str, Fault]]
) -> None:
    """Invariant 7: the consumer is informed, and memory takes the offset of the reset, even of a new queue."""
    adapter, resets = FakeAdapter(), dict[MessageQueue, int | None]()
    store = RemoteOffsetStore(adapter, "g", on_reset=resets.__setitem__)
    if new:
        store.update_offset(A, 5)
        await store.persist(A)
    else:
        await adapter.commit("g", {SHARD: 5})
        await store.read_offset(A)
    for name, value in before:
        await move(store, adapter, name, value)
    adapter.reset(SHARD, target)
    epoch = adapter.records[SHARD].epoch
    for name, value in after:
        await move(store, adapter, name, value)
    store.update_offset(A, 1)
    store.update_offset(A, 0)
    await store.persist(A)
    assert adapter.records[SHARD].position == (epoch, target)
    assert resets == {A: target}
    assert await store.read_offset(A, MEMORY) == target


async def move(store: RemoteOffsetStore, adapter: FakeAdapter, name: str, value: int | Fault) -> None:
    """Do one random step."""
    if isinstance(value, int):
        store.update_offset(A, value, name == "raise")
        return
    adapter.faults.append(value)
    try:
        await store.persist(A)
    except OffsetStoreError:
        assert value is not Fault.NONE
    adapter.faults.clear()

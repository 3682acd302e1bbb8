"""What `OffsetClient.commit` raises: of shards that somebody moved nothing is stored, and a consumer must not go on unheard."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from anyio import to_thread

from adapter.client import BlockingOffsetClient, OffsetClient, ReadMode, SupersededError
from adapter.client import superseded as superseded_module
from adapter.model.records import CommitMode
from adapter.rpc import offsets_pb
from tests.integration.helpers import PATIENCE_S, serving


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[OffsetClient]:
    """A consumer's client: `g` stands at a: 42, b: 7."""
    async with serving(tmp_path) as (_, client):
        await client.commit("g", {"a": 42, "b": 7})
        yield client


async def reset(client: OffsetClient, offset: int, *shards: str) -> None:
    """As an operator does it."""
    request = offsets_pb.ResetOffsetsRequest(group="g", shards=shards, to_offset=offset, execute=True)
    await client.admin.ResetOffsets(request, timeout=PATIENCE_S)


async def test_a_commit_of_a_shard_that_was_reset_raises_and_says_what_stands(client: OffsetClient) -> None:
    """Its other shards are stored."""
    await reset(client, 10, "a")
    with pytest.raises(SupersededError) as caught:
        await client.commit("g", {"a": 43, "b": 8})
    assert str(caught.value) == (
        "g: 1 of 2 shards were not stored: a reset, delete, clone or rewind moved them (a: offset 10 stands, epoch 1.0). "
        "Read them with ReadMode.STORE and go on from there"
    )
    assert [row.shard for row in caught.value.moved] == ["a"]
    assert list(caught.value.committed) == caught.value.moved
    rows = await client.read("g", keep_hold=True)
    assert {shard: row.offset for shard, row in rows.items()} == {"a": 10, "b": 8}


async def test_it_raises_until_the_shard_is_read(client: OffsetClient) -> None:
    """A second attempt is no read; one by who only looks is none either."""
    await reset(client, 1_000, "a")
    for _ in range(2):
        with pytest.raises(SupersededError):
            await client.commit("g", {"a": 43})
    await client.read("g", mode=ReadMode.STORE, keep_hold=True)
    with pytest.raises(SupersededError):
        await client.commit("g", {"a": 43})
    await client.read("g", mode=ReadMode.STORE)
    await client.commit("g", {"a": 1_001})
    behind = await client.commit("g", {"a": 43})
    assert [(row.shard, row.offset) for row in behind] == [("a", 1_001)]


async def test_a_delete_raises_as_well(client: OffsetClient) -> None:
    """Nothing stands then."""
    await client.admin.DeleteOffsets(offsets_pb.DeleteOffsetsRequest(group="g", execute=True), timeout=PATIENCE_S)
    with pytest.raises(SupersededError, match=r"2 of 2 .*\(a: deleted, epoch 1\.0; b: deleted, epoch 1\.0\)"):
        await client.commit("g", {"a": 43, "b": 8})


async def test_a_commit_that_repeats_or_is_behind_raises_nothing(client: OffsetClient) -> None:
    """The rows say that more stands, as they always did."""
    assert await client.commit("g", {"a": 42}) == []
    assert [row.offset for row in await client.commit("g", {"a": 41})] == [42]
    rewound = await client.commit("g", {"a": 5}, mode=CommitMode.OVERWRITE)
    assert rewound.raised == {"a": 2}
    await client.commit("g", {"a": 6})
    assert [row.offset for row in await client.commit("g", {"a": 3})] == [6]


async def test_a_rewind_by_another_consumer_raises_for_who_named_the_epoch_before(client: OffsetClient) -> None:
    """It reads, and goes on from there."""
    await client.flush()  # before, its epoch is not known
    before = await client.read("g")
    epochs = {shard: row.epoch for shard, row in before.items()}
    await client.commit("g", {"a": 5}, mode=CommitMode.OVERWRITE)
    with pytest.raises(SupersededError, match=r"a: offset 5 stands, epoch 0\.2"):
        await client.commit("g", {"a": 43}, epochs=epochs)


async def test_without_check_the_rows_are_returned(client: OffsetClient) -> None:
    """For who compares them with what it knows."""
    await reset(client, 10)
    rows = await client.commit("g", {"a": 43, "b": 8}, check=False)
    assert [(row.shard, row.offset, row.held) for row in rows] == [("a", 10, True), ("b", 10, True)]


async def test_what_is_known_of_epochs_is_bounded(client: OffsetClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shard that was forgotten, a commit that is behind asks for a read."""
    monkeypatch.setattr(superseded_module, "MAX_KNOWN", 1)
    await reset(client, 10)
    await client.read("g", mode=ReadMode.STORE)
    await client.commit("g", {"a": 12, "b": 12})
    assert [row.offset for row in await client.commit("g", {"b": 11})] == [12]
    with pytest.raises(SupersededError):
        await client.commit("g", {"a": 11})


async def test_the_blocking_client_raises_too(client: OffsetClient, tmp_path: Path) -> None:
    """In the thread that committed."""
    await reset(client, 10)

    def commit() -> None:
        with BlockingOffsetClient(f"unix:{tmp_path}/a.sock") as blocking:
            blocking.commit("g", {"a": 43})

    with pytest.raises(SupersededError):
        await to_thread.run_sync(commit)

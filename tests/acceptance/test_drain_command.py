"""`offset-adapter drain`: everything leaves an adapter, whoever is killed in the middle of it."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapter.client import OffsetClient
from adapter.rpc import offsets_pb
from adapter.testing.waiting import eventually
from tests import forking
from tests.acceptance.conftest import Pair, run
from tests.acceptance.terminals import at_a_terminal

OK, ERROR = 0, 2
GROUPS, SHARDS, KILLS, CONSUMERS = 300, 3, 3, 8
WAIT_S = 120.0


@asynccontextmanager
async def draining(pair: Pair) -> AsyncIterator[tuple[forking.Forked, Path]]:
    """The command while it runs, and the file with what it prints."""
    said = pair.directory / "drain.out"
    with said.open("wb") as output:
        started = forking.start(["drain", "--address", pair.adapter.address], {}, output)
    try:
        yield started, said
    finally:
        started.kill()


def offsets(*source: str | Path, pair: Pair | None = None) -> dict[tuple[str, str], int]:
    """(group, shard) -> offset, as `list` has them."""
    rows = (pair("list", "--json") if pair else run("list", "--meta", *source, "--json")).json
    return {(row["group"], row["shard"]): row["offset"] for row in rows}


async def test_a_drain_ends_when_nothing_is_left_and_names_who_still_commits(pair: Pair) -> None:
    """Groups of every namespace leave, also one that comes meanwhile; a group that is being committed when its consumer stops."""
    stop = asyncio.Event()

    async def consume(client: OffsetClient, shard: str) -> int:
        offset = 0
        while not stop.is_set():
            offset += 1
            await client.commit("busy", {shard: offset}, check=False)
        return offset

    async with OffsetClient.connect(pair.adapter.address, WAIT_S) as client:
        await client.commit("quiet", {"s": 7})
        await client.commit("elsewhere", {"s": 8}, namespace="other")
        consuming = [asyncio.create_task(consume(client, f"s-{number}")) for number in range(CONSUMERS)]
        async with draining(pair) as (drain, said):
            await eventually(lambda: "default/busy; waiting for the consumers to stop" in said.read_text(), WAIT_S)
            await client.commit("late", {"s": 9})
            await eventually(lambda: "late" not in {group for group, _ in offsets(pair=pair)}, WAIT_S)
            assert drain.poll() is None
            stop.set()
            newest = {("busy", f"s-{number}"): await consumer for number, consumer in enumerate(consuming)}
            assert drain.wait(WAIT_S) == OK
        assert "nothing is left here, and the Meta Service has all of it" in said.read_text()
    assert offsets(pair=pair) == {}
    assert offsets(pair.meta.address) == {**newest, ("late", "s"): 9, ("quiet", "s"): 7, ("elsewhere", "s"): 8}
    assert pair("drain").code == OK


@pytest.mark.parametrize("victim", ["adapter", "command"])
async def test_a_kill_in_the_middle_of_a_drain_loses_nothing_and_it_is_repeated(pair: Pair, victim: str) -> None:
    """Each offset is here or there, whole groups at a time; the command says why it ended (1, 3)."""
    acked: dict[tuple[str, str], int] = {}
    async with OffsetClient.connect(pair.adapter.address, WAIT_S) as client:
        for number in range(GROUPS):
            await client.commit(f"g-{number}", {f"s-{shard}": number + shard for shard in range(SHARDS)})
            acked |= {(f"g-{number}", f"s-{shard}"): number + shard for shard in range(SHARDS)}
    left = GROUPS
    for _ in range(KILLS):
        async with draining(pair) as (drain, said):
            await fewer_than(left, pair)
            if victim == "adapter":
                pair.adapter.kill()
                code = drain.wait(WAIT_S)
                pair.adapter.start()
            else:
                drain.kill()
                code = drain.wait(WAIT_S)
        here, there = offsets(pair=pair), offsets(pair.meta.address)
        assert {key: max(here.get(key, -1), there.get(key, -1)) for key in acked} == acked
        assert all(there.get(key) == offset for key, offset in acked.items() if key not in here)
        left = len({group for group, _ in here})
        if left:
            assert code != OK
            assert victim == "command" or (code == ERROR and "error: " in said.read_text())
    assert pair("drain").code == OK
    assert (offsets(pair=pair), offsets(pair.meta.address)) == ({}, acked)


async def fewer_than(groups: int, pair: Pair) -> None:
    """Wait until the adapter has fewer groups, or none."""
    async with OffsetClient.connect(pair.adapter.address, WAIT_S) as client:
        request = offsets_pb.ListGroupsRequest(page_size=GROUPS)
        while len((await client.admin.ListGroups(request)).groups) >= max(groups, 1):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.005)


async def test_without_the_meta_service_a_drain_ends_with_an_error_and_what_it_does_not_have_stays(pair: Pair) -> None:
    """The error says who does not answer; afterwards it is repeated."""
    pair.meta.kill()
    assert pair("commit", "g", "s", "5").code == OK
    refused = pair("drain")
    assert (refused.code, "the adapter answers, the Meta Service does not" in refused.err) == (ERROR, True)
    assert offsets(pair=pair) == {("g", "s"): 5}
    pair.meta.start()
    await eventually(lambda: pair("drain").code == OK, WAIT_S)
    assert (offsets(pair=pair), offsets(pair.meta.address)) == ({}, {("g", "s"): 5})


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_a_drain_at_a_terminal_is_a_table_and_says_that_nothing_is_left(shared: Pair, columns: int) -> None:
    """A line for each group."""
    for name in ("payments-fraud-check", "orders"):
        assert shared("commit", name, "s", "5").code == OK
    code, shown = at_a_terminal(["drain", "--address", shared.adapter.address], {}, columns, errors=True)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown).splitlines()  # without the progress bar's moves
    assert code == OK, lines
    head = next(at for at, line in enumerate(lines) if line.split() == ["namespace", "group", "offsets"])
    assert [line.split() for line in lines[head + 1 : head + 3]] == [
        ["default", "orders", "1"],
        ["default", "payments-fraud-check", "1"],
    ]
    assert "2 groups handed over; nothing is left here, and the Meta Service has all of it" in shown
    assert max(map(len, lines[head:])) <= columns

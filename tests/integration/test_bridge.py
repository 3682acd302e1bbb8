"""The bridge between a sidecar and a RocketMQ broker, which is a fake one over the real wire."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from adapter.client.client import OffsetClient
from adapter.errors import BrokerLogError, ConfigError, MetaUnavailableError
from adapter.formats.rocketmq_json import broker_file
from adapter.formats.rocketmq_rows import rows_of
from adapter.formats.rows import Naming, OffsetRow
from adapter.model.records import OffsetKey, OffsetRecord, next_era
from adapter.rocketmq.config import RocketmqSection
from adapter.rpc import offsets_pb
from adapter.sidecar.bridge import bridge, deletes, store_changes, untold
from adapter.sidecar.bridge.broker_log import RocketmqLog
from adapter.sidecar.bridge.marks import FILE, Marks
from adapter.sidecar.ledger.operations import Forget
from adapter.sidecar.process import Sidecar
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config
from adapter.testing.waiting import PATIENCE_S, eventually
from tests.fake_rocketmq import Answer, FakeBroker
from tests.integration.helpers import commits, key, record, serving

Position = tuple[int, int, bool]


class Bridged:
    """A sidecar with its bridge, and its client."""

    def __init__(self, sidecar: Sidecar, client: OffsetClient) -> None:
        self.sidecar = sidecar
        self.client = client

    def at(self, queue: int = 0, group: str = "g", topic: str = "T") -> Position | None:
        """What stands here: epoch, offset, live."""
        found = self.sidecar.core().ledger.store.get(key(f"broker-a/{topic}/{queue}", group))
        return (found.epoch, found.offset, found.live) if found else None

    async def until(self, offset: int | None, queue: int = 0, group: str = "g", topic: str = "T") -> None:
        """Wait until this live offset stands here."""

        def stands() -> bool:
            found = self.at(queue, group, topic)
            return (found[1] if found and found[2] else None) == offset

        await eventually(stands)

    async def polled(self, times: int = 3) -> None:
        """Wait for some whole polls from now on."""
        bridge = self.sidecar._bridge
        assert bridge
        wanted = bridge.counts.polls + times
        await eventually(lambda: bridge.counts.polls >= wanted)

    async def looked(self, broker: FakeBroker) -> None:
        """Wait for two whole looks from now on: each asks the broker who it is."""
        wanted = broker.calls.count(26) + 3
        await eventually(lambda: broker.calls.count(26) >= wanted)

    async def reset(self, offset: int, queue: int = 0, topic: str = "T") -> None:
        """An operator's reset at the adapter."""
        request = offsets_pb.ResetOffsetsRequest(group="g", shards=[f"broker-a/{topic}/{queue}"], to_offset=offset, execute=True)
        await self.client.admin.ResetOffsets(request, timeout=PATIENCE_S)


@asynccontextmanager
async def bridged(directory: Path, broker: FakeBroker, meta: FakeMeta | None = None, **sections: Any) -> AsyncIterator[Bridged]:
    """A sidecar beside a broker that may be up or not."""
    values = {"broker": broker.address, "poll_ms": 10, **sections.pop("rocketmq", {})}
    async with serving(directory, meta or FakeMeta(), rocketmq=values, **sections) as (sidecar, client):
        yield Bridged(sidecar, client)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens once a second, or is tried again after one, does so ten times as often."""
    for name in ("LOOK_S", "SLAVE_S", "OWED_S", "LIST_AGAIN_S"):
        monkeypatch.setattr(bridge, name, getattr(bridge, name) / 10)


@pytest.fixture
async def broker() -> FakeBroker:
    """A broker with two queues of a group, and a port of its own."""
    fake = FakeBroker()
    async with fake.serving():
        pass
    fake.commit("g", "T", 0, 100)
    fake.commit("g", "T", 1, 7)
    fake.persist()
    return fake


async def test_what_a_broker_has_is_committed_with_its_labels(broker: FakeBroker, tmp_path: Path) -> None:
    """All of it at first, then what changes, and what is new."""
    meta = FakeMeta()
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.until(100)
        await here.until(7, 1)
        broker.commit("g", "T", 0, 120)
        broker.commit("h", "T", 3, 1)
        await here.until(120)
        await here.until(1, 3, "h")
        await eventually(lambda: key("broker-a/T/0") in meta.records and meta.records[key("broker-a/T/0")].offset == 120)
    stored = meta.records[key("broker-a/T/0")]
    assert (stored.topic, stored.partition) == ("T", 0)


async def test_a_group_by_import_and_by_bridge_is_one_and_the_same(broker: FakeBroker, tmp_path: Path) -> None:
    """Keys and labels; an import of the broker's own file finds that all of it stands."""
    meta = FakeMeta()
    broker.commit("ns%g", "ns%T", 5, 9)
    broker.commit("g", "%RETRY%g", 0, 3)
    broker.commit("g@broadcast", "T", 0, 4)
    broker.lmq = {"%LMQ%q@%LMQ%q": 11}
    with (tmp_path / "consumerOffset.json").open("w+b") as file:
        file.write(broker.table())
        file.seek(0)
        rows = [row for row in rows_of(broker_file(file), Naming(broker="broker-a")) if isinstance(row, OffsetRow)]
    assert len(rows) == 6
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await eventually(lambda: len(meta.records) == len(rows))
        assert {k: (r.offset, r.topic, r.partition) for k, r in meta.records.items()} == {
            row.key: (row.offset, row.topic, row.partition) for row in rows
        }
        shards = [
            offsets_pb.GroupCommits(
                namespace=row.namespace,
                group=row.group,
                shards=[offsets_pb.ShardCommit(shard=row.shard, offset=row.offset, topic=row.topic, partition=row.partition)],
            )
            for row in rows
        ]
        reply = await here.client.admin.ImportOffsets(offsets_pb.ImportOffsetsRequest(groups=shards, execute=True))
        assert not [row for row in reply.rows if row.changed]


async def test_without_the_brokers_name_shards_are_those_of_an_import_without_it(broker: FakeBroker, tmp_path: Path) -> None:
    """`name_in_shards = false`, for a Meta Service with one broker."""
    meta = FakeMeta()
    async with broker.serving(), bridged(tmp_path, broker, meta, rocketmq={"name_in_shards": False, "namespace": "ns"}):
        await eventually(lambda: {k.shard for k in meta.records} == {"T/0", "T/1"})
        assert {k.namespace for k in meta.records} == {"ns"}


async def test_a_broker_that_was_killed_gets_back_what_it_lost(broker: FakeBroker, tmp_path: Path) -> None:
    """Its file is older than what it had acknowledged."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(100)
            broker.commit("g", "T", 0, 500)
            broker.commit("new", "T", 0, 5)
            await here.until(500)
            await here.until(5, group="new")
        broker.restart()
        assert broker.offset("g", "T", 0) == 100
        async with broker.serving():
            await eventually(lambda: broker.offset("g", "T", 0) == 500)
            await eventually(lambda: broker.offset("new", "T", 0) == 5)
            assert broker.offset("g", "T", 1) == 7
            assert not broker.resets
            await here.polled()
        assert here.at() == (1, 500, True)


async def test_a_broker_in_its_first_second_gets_it_back_as_well(broker: FakeBroker, tmp_path: Path) -> None:
    """It answers the question for its start with an error then, and consumers would ask before it can."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            broker.commit("g", "T", 0, 500)
            await here.until(500)
        broker.restart()
        broker.young = True
        async with broker.serving():
            await eventually(lambda: broker.offset("g", "T", 0) == 500)
            broker.commit("g", "T", 0, 300)
            await here.until(300)
            broker.young = False
            await here.looked(broker)
            broker.commit("g", "T", 0, 200)
            await here.until(200)
    assert here.sidecar._bridge
    assert here.sidecar._bridge.counts.disconnects == 1


async def test_an_offset_file_that_is_lost_is_given_back_whole(broker: FakeBroker, tmp_path: Path) -> None:
    """All groups."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(100)
            await here.until(7, 1)
        broker.store = {}
        broker.restart()
        async with broker.serving():
            await eventually(lambda: (broker.offset("g", "T", 0), broker.offset("g", "T", 1)) == (100, 7))


async def test_with_both_disks_lost_the_meta_service_gives_it_back(broker: FakeBroker, tmp_path: Path) -> None:
    """A new sidecar with an empty store, beside a broker without its file."""
    meta = FakeMeta()
    async with broker.serving(), bridged(tmp_path / "one", broker, meta) as here:
        await here.until(100)
        await here.until(7, 1)
        await eventually(lambda: len(meta.records) == 2)
    broker.store = {}
    broker.restart()
    async with broker.serving(), bridged(tmp_path / "two", broker, meta):
        await eventually(lambda: (broker.offset("g", "T", 0), broker.offset("g", "T", 1)) == (100, 7))


async def test_the_meta_service_is_asked_again_until_it_answers(broker: FakeBroker, tmp_path: Path) -> None:
    """A broker without its file, a sidecar without its store, and a Meta Service that comes last."""
    meta = FakeMeta({key("broker-a/T/0"): record(100, topic="T")})
    meta.down = MetaUnavailableError("down")
    broker.offsets = {}
    async with broker.serving(), bridged(tmp_path, broker, meta, recovery={"timeout_ms": 50}) as here:
        await here.looked(broker)
        assert broker.offset("g", "T", 0) is None
        meta.down = None
        await eventually(lambda: broker.offset("g", "T", 0) == 100)


LIGHT = "%LMQ%q"


@pytest.mark.parametrize("restarted", ["broker", "sidecar"])
async def test_a_light_queue_that_the_table_does_not_tell_is_not_taken_back(
    restarted: str, broker: FakeBroker, tmp_path: Path
) -> None:
    """A JSON broker tells it, and leaves it out of its table as soon as it is one of V2: its consumers went on meanwhile."""
    meta = FakeMeta()
    broker.commit("g", LIGHT, 0, 7)
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.until(7, topic=LIGHT)
    broker.v2 = True
    broker.persist()
    broker.restart()
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.looked(broker)
        broker.commit("g", LIGHT, 0, 12)
        await here.until(12, topic=LIGHT)
    broker.commit("g", LIGHT, 0, 15)
    if restarted == "broker":
        broker.persist()
        broker.restart()
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.until(15, topic=LIGHT)
        assert broker.offset("g", LIGHT, 0) == 15


async def test_what_v2_lost_of_a_light_queue_is_given_back(broker: FakeBroker, tmp_path: Path) -> None:
    """It is asked, and has none."""
    broker.v2 = True
    meta = FakeMeta({key(f"broker-a/{LIGHT}/0"): record(9, topic=LIGHT)})
    broker.logs[LIGHT, 0] = (0, 100)
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await eventually(lambda: broker.offset("g", LIGHT, 0) == 9)
        broker.commit("g", LIGHT, 0, 11)
        await here.until(11, topic=LIGHT)


async def test_a_light_queue_that_is_imported_beside_v2_is_followed(broker: FakeBroker, tmp_path: Path) -> None:
    """The broker's own store, which tells it. What its consumers commit from then on is asked for."""
    broker.v2 = True
    broker.commit("g", LIGHT, 0, 12)
    meta = FakeMeta()
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.until(100)
        request = offsets_pb.ImportOffsetsRequest(groups=commits({f"broker-a/{LIGHT}/0": 12}).groups, execute=True)
        await here.client.admin.ImportOffsets(request)
        await here.until(12, topic=LIGHT)
        broker.commit("g", LIGHT, 0, 15)
        await here.until(15, topic=LIGHT)
    broker.commit("g", LIGHT, 0, 16)
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.until(16, topic=LIGHT)
        assert broker.offset("g", LIGHT, 0) == 16


async def test_a_reset_of_a_light_queue_at_v2_is_a_rewind_here(broker: FakeBroker, tmp_path: Path) -> None:
    """The consumer goes back, and commits; with the sidecar, or while it is away."""
    broker.commit("g", LIGHT, 0, 90)
    meta = FakeMeta()
    async with broker.serving():
        async with bridged(tmp_path, broker, meta) as here:
            await here.until(90, topic=LIGHT)
            broker.v2 = True
            broker.boot_ms += 1
            broker.cut()
            await here.looked(broker)
            broker.commit("g", LIGHT, 0, 20)
            await here.until(20, topic=LIGHT)
        broker.commit("g", LIGHT, 0, 5)
        async with bridged(tmp_path, broker, meta) as here:
            await here.until(5, topic=LIGHT)
            assert broker.offset("g", LIGHT, 0) == 5


@pytest.mark.parametrize("topic", ["T", LIGHT])
async def test_the_phantom_of_a_reset_at_v2_is_not_taken_in(topic: str, broker: FakeBroker, tmp_path: Path) -> None:
    """The reset is; at once, and when broker or sidecar begin anew, since the broker has the phantom for ever."""
    broker.v2 = True
    broker.commit("g", topic, 0, 90)
    meta = FakeMeta({key(f"broker-a/{topic}/0"): record(90, topic=topic)})
    phantom = key("broker-a/g/0", topic)
    async with broker.serving():
        async with bridged(tmp_path, broker, meta) as here:
            await here.until(90, topic=topic)
            await here.reset(20, topic=topic)
            await eventually(lambda: broker.offset(topic, "g", 0) == 20)
            broker.commit("g", topic, 0, 21)
            await here.until(21, topic=topic)
            assert here.sidecar.core().ledger.store.get(phantom) is None
        async with bridged(tmp_path, broker, meta) as here:
            await here.polled()
            assert here.sidecar.core().ledger.store.get(phantom) is None
    broker.persist()
    broker.told = {}
    broker.restart()
    ends = {queue: broker.logs.pop(queue) for queue in list(broker.logs) if queue[0] == topic}  # a killed V2 may forget topics
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.polled()
        assert here.sidecar.core().ledger.store.get(phantom) is None
        broker.logs |= ends
        await here.until(21, topic=topic)


async def test_a_real_group_that_looks_like_a_phantom_is_taken_in(broker: FakeBroker, tmp_path: Path) -> None:
    """Group and topic of the same names, both ways, at the same offsets; also where the broker cannot say which groups it has."""
    broker.v2 = True
    broker.commit("a", "b", 0, 20)
    broker.commit("b", "a", 0, 20)
    async with broker.serving(), bridged(tmp_path / "one", broker) as here:
        await here.until(20, group="a", topic="b")
        await here.until(20, group="b", topic="a")
        broker.commit("b", "a", 0, 25)
        await here.until(25, group="b", topic="a")
        assert broker.calls.count(201) == 1
    broker.group_table = lambda: b"{}"  # type: ignore[method-assign]
    async with broker.serving(), bridged(tmp_path / "two", broker) as here:
        await here.until(20, group="a", topic="b")
        await here.until(25, group="b", topic="a")


async def test_a_phantom_is_none_the_more_because_the_broker_is_slow_to_answer(broker: FakeBroker, tmp_path: Path) -> None:
    """Its table of groups comes late: it is asked again, and everything else waits for it no longer than for any other answer."""
    broker.v2 = True
    broker.offsets["g@T"] = {0: 100}
    silent = iter([True, True, False])
    broker.spoil = lambda code, data: b"" if code == 201 and next(silent, False) else data
    async with broker.serving(), bridged(tmp_path, broker, rocketmq={"timeout_ms": 200}) as here:
        await here.until(100)
        await here.polled()
        assert broker.calls.count(201) >= 3
        assert here.sidecar.core().ledger.store.get(key("broker-a/g/0", "T")) is None


async def test_what_was_a_phantom_is_taken_in_when_group_and_topic_have_come(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its next commit, or by the next look without one."""
    monkeypatch.setattr(bridge, "FORGET_S", 0.0)
    broker.v2 = True
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        await here.reset(20)
        await eventually(lambda: broker.offset("T", "g", 0) == 20)
        await here.looked(broker)
        assert here.sidecar.core().ledger.store.get(key("broker-a/g/0", "T")) is None
        broker.groups.add("T")
        broker.logs["g", 0] = (0, 100)
        await here.until(20, group="T", topic="g")
        broker.commit("T", "g", 0, 22)
        await here.until(22, group="T", topic="g")


async def test_a_reset_of_a_light_queue_at_the_adapter_stands_beside_v2(broker: FakeBroker, tmp_path: Path) -> None:
    """V2 resets what the consumer gets next, and keeps what it had: that is no news."""
    broker.commit("g", LIGHT, 0, 90)
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(90, topic=LIGHT)
        broker.v2 = True
        broker.boot_ms += 1
        broker.cut()
        await here.looked(broker)
        await here.reset(30, topic=LIGHT)
        await eventually(lambda: broker.offset("g", LIGHT, 0) == 30 and bool(broker.resets))
        broker.commit("g", LIGHT, 0, 33)
        await here.until(33, topic=LIGHT)
        await here.looked(broker)
        assert (broker.told, broker.offset("g", LIGHT, 0)) == ({f"{LIGHT}@g": {0: 30}}, 33)
        await here.until(33, topic=LIGHT)


async def test_a_reset_that_comes_before_a_light_queue_was_asked_for_stands(broker: FakeBroker, tmp_path: Path) -> None:
    """It is in the Meta Service alone. What the broker has is not news then."""
    broker.v2 = True
    broker.commit("g", LIGHT, 0, 90)
    meta = FakeMeta({key(f"broker-a/{LIGHT}/0"): record(20, topic=LIGHT, epoch=next_era(1))})
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await eventually(lambda: broker.offset("g", LIGHT, 0) == 20)
        await here.looked(broker)
        await here.until(20, topic=LIGHT)


async def test_many_light_queues_at_v2_are_asked_for_in_turn(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some with each poll, so that commits of all others do not wait for them."""
    monkeypatch.setattr(untold, "ASK_AT_ONCE", 3)
    lights = [f"{LIGHT}{number}" for number in range(10)]
    for topic in lights:
        broker.commit("g", topic, 0, 7)
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(7, topic=lights[-1])
        broker.v2 = True
        broker.persist()
        broker.restart()
        async with broker.serving():
            for topic in lights:
                broker.commit("g", topic, 0, 8)
            await here.looked(broker)
            met = len(broker.calls)
            for topic in lights:
                broker.commit("g", topic, 0, 9)
            for topic in lights:
                await here.until(9, topic=topic)
    between = "".join({14: "a", 43: "p"}.get(code, "") for code in broker.calls[met:]).strip("p").split("p")
    assert max(map(len, between)) <= 3


async def test_an_offset_that_a_consumer_commits_before_it_is_given_is_not_lowered(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a table that has lost it and its return."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(100)
        broker.store = {}
        broker.restart()
        answer = broker.answer

        def meanwhile(code: int, fields: dict[str, str], body: bytes) -> Answer:
            if code == 30 and fields == {"topic": "T", "queueId": "0"}:
                broker.commit("g", "T", 0, 130)
            return answer(code, fields, body)

        monkeypatch.setattr(broker, "answer", meanwhile)
        async with broker.serving():
            await here.until(130)
            assert broker.offset("g", "T", 0) == 130


async def test_a_broker_that_cannot_say_what_is_missing_is_not_asked(broker: FakeBroker, tmp_path: Path) -> None:
    """4.9 says 0 for what it does not have."""
    broker.version, broker.offsets = "V4_9_7", {}
    meta = FakeMeta({key("broker-a/T/0"): record(9, topic="T")})
    async with broker.serving(), bridged(tmp_path, broker, meta):
        await eventually(lambda: broker.offset("g", "T", 0) == 9)
    assert 14 not in broker.calls


async def test_an_offset_beyond_the_end_of_the_log_is_not_given(broker: FakeBroker, tmp_path: Path) -> None:
    """The log is another one: a broker on an empty disk. Given the offset, or the end in its place, it would skip messages."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(100)
            await here.until(7, 1)
        broker.store, broker.logs = {}, {("T", 0): (0, 20), ("T", 1): (0, 20)}
        broker.restart()
        async with broker.serving():
            await eventually(lambda: broker.offset("g", "T", 1) == 7)
            assert broker.offset("g", "T", 0) is None
            broker.commit("g", "T", 0, 15)
            await here.until(15)
            await here.looked(broker)
            assert broker.offset("g", "T", 0) == 15


async def test_an_offset_before_the_beginning_of_the_log_is_raised_to_it(broker: FakeBroker, tmp_path: Path) -> None:
    """What is older is gone by retention."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(100)
        broker.store, broker.logs = {}, {("T", 0): (600, 1_000), ("T", 1): (0, 1_000)}
        broker.restart()
        async with broker.serving():
            await eventually(lambda: broker.offset("g", "T", 0) == 600)


async def test_a_reset_at_the_broker_is_a_rewind_here(broker: FakeBroker, tmp_path: Path) -> None:
    """Mqadmin resetOffsetByTime: the table goes back, in a new epoch."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        broker.commit("g", "T", 0, 20)
        await here.until(20)
        assert here.at() == (2, 20, True)
        await here.looked(broker)
        assert broker.offset("g", "T", 0) == 20


async def test_a_reset_at_the_broker_outlives_its_kill(broker: FakeBroker, tmp_path: Path) -> None:
    """Its file has the offset from before the reset: larger, and older."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(100)
            broker.commit("g", "T", 0, 20)
            await here.until(20)
        broker.restart()
        assert broker.offset("g", "T", 0) == 100
        async with broker.serving():
            await eventually(lambda: broker.offset("g", "T", 0) == 20)
            assert not broker.resets


async def test_a_reset_at_the_broker_outlives_the_kill_of_both(broker: FakeBroker, tmp_path: Path) -> None:
    """The sidecar remembers on its disk up to where the broker's file may be old."""
    meta = FakeMeta()
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.until(100)
        broker.commit("g", "T", 0, 20)
        await here.until(20)
    broker.restart()
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await eventually(lambda: broker.offset("g", "T", 0) == 20)
        broker.commit("g", "T", 0, 130)
        await here.until(130)


async def test_a_reset_at_the_broker_while_the_sidecar_was_away_is_seen(broker: FakeBroker, tmp_path: Path) -> None:
    """The same life of the broker: what is lower there went back on purpose."""
    meta = FakeMeta()
    async with broker.serving():
        async with bridged(tmp_path, broker, meta) as here:
            await here.until(100)
            await here.looked(broker)  # they have met, and the sidecar remembers it
        broker.commit("g", "T", 0, 20)
        async with bridged(tmp_path, broker, meta) as here:
            await here.until(20)
            assert broker.offset("g", "T", 0) == 20


async def test_a_reset_at_the_adapter_reaches_the_broker_and_its_consumers(broker: FakeBroker, tmp_path: Path) -> None:
    """By the call that mqadmin makes, for one queue; back and forth."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        await here.reset(30)
        await eventually(lambda: broker.offset("g", "T", 0) == 30)
        assert [(reset["queueId"], reset["offset"]) for reset in broker.resets] == [("0", "30")]
        broker.commit("g", "T", 0, 35)
        await here.until(35)
        await here.reset(90)
        await eventually(lambda: broker.offset("g", "T", 0) == 90)
        assert broker.offset("g", "T", 1) == 7
        await here.until(90)


async def test_a_reset_is_passed_on_without_a_look_at_the_whole_store(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the watch."""
    monkeypatch.setattr(store_changes, "WHOLE_S", 1e9)
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        await here.polled()
        await here.reset(40)
        await eventually(lambda: broker.offset("g", "T", 0) == 40)
        assert broker.resets


async def test_a_commit_that_meets_a_reset_does_not_undo_it(broker: FakeBroker, tmp_path: Path) -> None:
    """The bridge commits with the epoch on which it agreed."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        broker.spoil = lambda code, data: b"" if code == 43 else data  # no poll is answered meanwhile
        await here.reset(30)
        broker.commit("g", "T", 0, 140)
        broker.spoil = None
        broker.cut()
        await eventually(lambda: broker.offset("g", "T", 0) == 30)
        await here.until(30)


async def test_a_reset_while_the_broker_is_away_reaches_it_later(broker: FakeBroker, tmp_path: Path) -> None:
    """Also over the restart of both."""
    meta = FakeMeta()
    async with bridged(tmp_path, broker, meta) as here:
        async with broker.serving():
            await here.until(100)
            await here.looked(broker)
        await here.reset(30)
    broker.restart()
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await eventually(lambda: broker.offset("g", "T", 0) == 30)
        assert len(broker.resets) == 1
        broker.commit("g", "T", 0, 31)
        await here.until(31)
    broker.persist()
    broker.restart()
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.looked(broker)
        assert len(broker.resets) == 1


async def test_a_reset_that_is_refused_at_the_meeting_is_offered_again(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reset, and no commit of the group undoes it meanwhile; a broker that has just started is often overloaded."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(100)
            await here.looked(broker)
        await here.reset(30)
        broker.restart()
        busy = _busy(broker, 222, monkeypatch)
        async with broker.serving():
            await eventually(lambda: 222 in broker.calls)
            broker.commit("g", "T", 0, 110)
            await here.looked(broker)
            assert here.at() == (next_era(1), 30, True)
            busy.clear()
            await eventually(lambda: broker.offset("g", "T", 0) == 30)
            await here.polled()
            assert here.at() == (next_era(1), 30, True)


async def test_a_rewind_that_is_refused_at_the_meeting_is_offered_again(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker came back with its file from before a reset there."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(100)
            broker.commit("g", "T", 0, 20)
            await here.until(20)
        broker.restart()
        busy = _busy(broker, 15, monkeypatch)
        async with broker.serving():
            await eventually(lambda: 15 in broker.calls)
            broker.commit("g", "T", 0, 101)
            await here.looked(broker)
            assert here.at() == (2, 20, True)
            busy.clear()
            await eventually(lambda: broker.offset("g", "T", 0) == 20)
            await here.polled()
            assert here.at() == (2, 20, True)


def _busy(broker: FakeBroker, code: int, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Have a broker refuse this request, until the set that is returned is empty."""
    answer, refused = broker.answer, {code}

    def busily(code: int, fields: dict[str, str], body: bytes) -> Answer:
        if code not in refused:
            return answer(code, fields, body)
        broker.calls.append(code)
        return 2, "[TIMEOUT_CLEAN_QUEUE]broker busy", {}, b""

    monkeypatch.setattr(broker, "answer", busily)
    return refused


@pytest.mark.parametrize("old", ["V4_9_7", "V5_3_3"])
async def test_a_broker_that_knows_no_reset_of_a_queue_is_not_asked_for_one(old: str, broker: FakeBroker, tmp_path: Path) -> None:
    """It would reset all queues to a time. The offset is set; who is online goes on, and the log says so."""
    broker.version, broker.server_side_reset = old, False
    broker.online.add("g")
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        await here.reset(30)
        await eventually(lambda: broker.offset("g", "T", 0) == 30)
        assert not broker.resets
        assert broker.offset("g", "T", 1) == 7


async def test_a_larger_offset_of_another_client_goes_to_the_broker(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python consumer of the same group, an import, or another adapter: by the look at the whole store."""
    monkeypatch.setattr(store_changes, "WHOLE_S", 0.05)
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        broker.logs["T", 2] = (0, 10)
        await here.client.store.CommitOffsets(commits({"broker-a/T/0": 150, "broker-a/T/2": 4}))
        await eventually(lambda: (broker.offset("g", "T", 0), broker.offset("g", "T", 2)) == (150, 4))
        assert here.at() == (1, 150, True)


async def test_polls_go_on_while_many_offsets_are_given(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind an import or a clone of a large group: commits at the broker meanwhile are not known elsewhere."""
    monkeypatch.setattr(bridge, "GIVE_AT_ONCE", 2)
    monkeypatch.setattr(store_changes, "KEYS_AT_ONCE", 3)
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        await here.until(7, 1)
        await here.polled()
        broker.logs.update({("T", queue): (0, 10) for queue in range(2, 12)})
        request = offsets_pb.ImportOffsetsRequest(
            groups=commits({f"broker-a/T/{queue}": 4 for queue in range(2, 12)}).groups, execute=True
        )
        await here.client.admin.ImportOffsets(request)
        await eventually(lambda: all(broker.offset("g", "T", queue) == 4 for queue in range(2, 12)))
        between = "".join({15: "g", 43: "p"}.get(code, "") for code in broker.calls).strip("p").split("p")
        assert max(map(len, between)) <= 2


async def test_offsets_of_others_are_left_alone(broker: FakeBroker, tmp_path: Path) -> None:
    """Of another broker, another namespace, and shards that are no queues."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        await here.client.store.CommitOffsets(commits({"broker-b/T/0": 9, "T/0": 9, "no-queue": 9}))
        await here.client.store.CommitOffsets(commits({"broker-a/T/0": 900}, namespace="other"))
        await here.looked(broker)
        assert broker.offsets == {"T@g": {0: 100, 1: 7}}


async def test_a_group_that_is_deleted_at_the_broker_is_deleted_here(broker: FakeBroker, tmp_path: Path) -> None:
    """Mqadmin deleteSubGroup -r true; a new one of the same name begins anew."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        await here.until(7, 1)
        broker.commit("h", "T", 0, 1)
        broker.delete_group("g")
        await here.until(None)
        await here.until(None, 1)
        await here.until(1, group="h")
        assert here.at() == (next_era(1), 0, False)
        broker.commit("g", "T", 0, 3)
        await here.until(3)
        await here.looked(broker)
        assert broker.offset("g", "T", 0) == 3


async def test_a_topic_that_is_deleted_at_the_broker_is_deleted_here(broker: FakeBroker, tmp_path: Path) -> None:
    """Mqadmin deleteTopic; the group's offsets of other topics stay."""
    broker.commit("g", "U", 0, 5)
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        await here.until(5, topic="U")
        broker.delete_topic("T")
        await here.until(None)
        await here.until(None, 1)
        assert here.at(topic="U") == (1, 5, True)


@pytest.mark.parametrize("topic", ["T", LIGHT])
async def test_what_a_query_makes_the_broker_forget_is_kept_and_given_back(
    topic: str, broker: FakeBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """QueryCorrectionOffset with filterGroups (apache/rocketmq 10987). Nobody ordered a delete; the event is told."""
    broker.commit("g", topic, 0, 100)
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100, topic=topic)
        await here.until(7, 1)
        broker.forget("g")
        await eventually(lambda: (broker.offset("g", topic, 0), broker.offset("g", "T", 1)) == (100, 7))
        await here.looked(broker)
        assert (here.at(topic=topic), here.at(1)) == ((1, 100, True), (1, 7, True))
        broker.commit("g", topic, 0, 101)
        await here.until(101, topic=topic)
        bridge = here.sidecar._bridge
        assert bridge
        assert (bridge.counts.forgotten, bridge.counts.deleted) == (len(broker.offsets) + 1, 0)
    assert "rocketmq.forgotten" in capsys.readouterr().out


async def test_a_light_group_that_is_gone_is_kept(broker: FakeBroker, tmp_path: Path) -> None:
    """It is in no table of groups, so nothing tells a delete from what a query did."""
    broker.commit("%LMQ%c", LIGHT, 0, 9)
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(9, group="%LMQ%c", topic=LIGHT)
        broker.delete_group("%LMQ%c")
        await eventually(lambda: broker.offset("%LMQ%c", LIGHT, 0) == 9)


async def test_a_light_queue_at_v2_whose_group_is_deleted_is_deleted_here(broker: FakeBroker, tmp_path: Path) -> None:
    """The broker says that it has none, and that it does not know the group."""
    broker.v2 = True
    broker.commit("g", LIGHT, 0, 12)
    meta = FakeMeta({key(f"broker-a/{LIGHT}/0"): record(12, topic=LIGHT)})
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.until(100)
        await here.until(12, topic=LIGHT)
        await here.looked(broker)
        broker.delete_group("g")
        await here.until(None, topic=LIGHT)
        await here.until(None)


async def test_a_broker_that_does_not_tell_its_groups_has_deleted_nothing(broker: FakeBroker, tmp_path: Path) -> None:
    """A table of groups that cannot be read is no proof, and ends no polls for good."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        await here.looked(broker)
        broker.group_table = lambda: b'{"subscriptionGroupTable":{"g":{"$ref":"$.h"}}}'  # type: ignore[method-assign]
        broker.delete_group("g")
        await eventually(lambda: broker.offset("g", "T", 0) == 100)
        assert here.at() == (1, 100, True)
        broker.commit("g", "T", 0, 101)
        await here.until(101)


async def test_of_many_deleted_topics_each_is_judged_by_the_broker(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some in a look; none is given back because its turn did not come."""
    monkeypatch.setattr(deletes, "TOPICS_AT_ONCE", 1)
    for topic in "UV":
        broker.commit("g", topic, 0, 5)
    async with broker.serving(), bridged(tmp_path, broker) as here:
        for topic in "UV":
            await here.until(5, topic=topic)
        for topic in "UV":
            broker.delete_topic(topic)
        for topic in "UV":
            await here.until(None, topic=topic)
        assert here.at() == (1, 100, True)
        assert here.sidecar._bridge
        assert here.sidecar._bridge.counts.forgotten == 0


async def test_a_deleted_group_is_forgotten_when_its_tombstones_are(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory and in the file, which grew with each group that came and went; one of the same name begins anew."""
    monkeypatch.setattr(bridge, "FORGET_S", 0.0)
    meta, marks = FakeMeta(), tmp_path / "adapter" / FILE
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.until(100)
        await here.until(7, 1)
        broker.commit("h", "T", 0, 1)
        broker.delete_group("g")
        await here.until(None)
        await here.until(None, 1)
        await eventually(lambda: len(Marks.load(marks).eras) == 2)
        keys = [key("broker-a/T/0"), key("broker-a/T/1")]
        for one in keys:
            del meta.records[one]
        await here.sidecar.core().ledger.submit(Forget(keys))
        await eventually(lambda: not Marks.load(marks).eras)
        following = here.sidecar._bridge
        assert following
        await eventually(lambda: following.counts.offsets == 1)
        broker.commit("g", "T", 0, 3)
        await here.until(3)


class _SlowMeta(FakeMeta):
    """One that does not answer reads of the group "g" while `slow` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.asked = anyio.Event()
        self.go_on = anyio.Event()

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        if self.slow and keys[0].group == "g":
            self.asked.set()
            await self.go_on.wait()
        return await super().get(keys, patient=patient)


async def test_no_poll_waits_for_the_meta_service_to_delete_a_group(broker: FakeBroker, tmp_path: Path) -> None:
    """Which may be slow, or hang, while the broker has commits that nobody else knows."""
    meta = _SlowMeta()
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.until(100)
        await here.until(7, 1)
        broker.commit("h", "T", 0, 1)
        await here.looked(broker)
        meta.slow = True
        broker.delete_group("g")
        with anyio.fail_after(PATIENCE_S):
            await meta.asked.wait()
        broker.commit("h", "T", 0, 2)
        await here.until(2, group="h")
        assert here.at() == (1, 100, True)
        meta.go_on.set()
        await here.until(None)
        await here.until(None, 1)


async def test_a_group_that_comes_back_while_it_is_deleted_keeps_its_new_offsets(broker: FakeBroker, tmp_path: Path) -> None:
    """They were acknowledged by the broker, and are given back to it."""
    meta = _SlowMeta()
    async with bridged(tmp_path, broker, meta) as here:
        async with broker.serving():
            await here.until(100)
            await here.until(7, 1)
            await here.looked(broker)
            meta.slow = True
            broker.delete_group("g")
            with anyio.fail_after(PATIENCE_S):
                await meta.asked.wait()
            broker.commit("g", "T", 0, 3)
            await here.until(3)
            meta.go_on.set()
            await here.until(None, 1)
            await here.until(3)
        broker.store = {}
        broker.restart()
        async with broker.serving():
            await eventually(lambda: broker.offset("g", "T", 0) == 3)
            assert broker.offset("g", "T", 1) is None


async def test_an_offset_that_is_gone_for_a_moment_is_not_deleted(broker: FakeBroker, tmp_path: Path) -> None:
    """It is back before the third look."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        kept = broker.offsets.pop("T@g")
        await here.polled()
        broker.offsets["T@g"] = kept
        await here.looked(broker)
        await here.looked(broker)
        assert here.at() == (1, 100, True)


async def test_a_delete_here_is_not_undone_by_a_broker_that_has_not_moved(broker: FakeBroker, tmp_path: Path) -> None:
    """RocketMQ cannot delete the offset of a queue; it stays deleted here until the group commits again."""
    meta = FakeMeta()
    async with broker.serving():
        async with bridged(tmp_path, broker, meta) as here:
            await here.until(100)
            request = offsets_pb.DeleteOffsetsRequest(group="g", shards=["broker-a/T/0"], execute=True)
            await here.client.admin.DeleteOffsets(request)
            await here.looked(broker)
            await here.until(None)
        async with bridged(tmp_path, broker, meta) as here:
            await here.looked(broker)
            await here.until(None)
            broker.commit("g", "T", 0, 101)
            await here.until(101)


async def test_a_clone_at_the_adapter_reaches_the_broker(broker: FakeBroker, tmp_path: Path) -> None:
    """With the group, of which it has not heard."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        request = offsets_pb.CloneGroupRequest(from_group="g", to_group="copy", execute=True)
        await here.client.admin.CloneGroup(request)
        await eventually(lambda: broker.offset("copy", "T", 0) == 100)


async def test_a_broker_that_lost_its_groups_gets_them_with_their_offsets(broker: FakeBroker, tmp_path: Path) -> None:
    """It would make them for their first consumer, who would have asked for its offset before."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(100)
        broker.store, broker.groups = {}, set()
        broker.restart()
        async with broker.serving():
            await eventually(lambda: broker.offset("g", "T", 0) == 100)
            assert broker.groups == {"g"}


async def test_a_refused_offset_does_not_hold_up_the_others(broker: FakeBroker, tmp_path: Path) -> None:
    """And is offered again: a broker that makes no groups by itself gets none from here."""
    broker.creates_groups = False
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        await here.client.store.CommitOffsets(commits({"broker-a/T/0": 9}, "unknown"))
        await here.client.store.CommitOffsets(commits({"broker-a/T/1": 9}))
        await eventually(lambda: broker.offset("g", "T", 1) == 9)
        broker.commit("g", "T", 0, 101)
        await here.until(101)
        await eventually(lambda: broker.calls.count(15) > 3)
        assert "unknown" not in broker.groups
        broker.groups.add("unknown")
        await eventually(lambda: broker.offset("unknown", "T", 0) == 9)


async def test_a_slave_is_not_followed_until_it_is_the_master(broker: FakeBroker, tmp_path: Path) -> None:
    """Its copy is old; its master's sidecar commits."""
    meta = FakeMeta({key("broker-a/T/0"): record(180, topic="T")})
    broker.role = "SLAVE"
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await here.looked(broker)
        assert 43 not in broker.calls
        assert (await status_of(here)).slave
        broker.role = "SYNC_MASTER"
        await eventually(lambda: broker.offset("g", "T", 0) == 180)
        found = await status_of(here)
        assert (found.connected, found.slave) == (True, False)


async def test_a_slave_that_is_away_is_not_said_to_wait(broker: FakeBroker, tmp_path: Path) -> None:
    """Its alert is that of any broker that does not answer."""
    broker.role = "SLAVE"
    async with bridged(tmp_path, broker) as here:
        bridge = here.sidecar._bridge
        assert bridge
        async with broker.serving():
            await eventually(lambda: bridge.counts.slave)
        await eventually(lambda: not bridge.counts.slave and bool(bridge.counts.last_error))


async def status_of(here: Bridged) -> offsets_pb.RocketmqStatus:
    """What Status tells of the bridge."""
    return (await here.client.status()).rocketmq


async def test_a_master_that_becomes_a_slave_rewinds_nothing(broker: FakeBroker, tmp_path: Path) -> None:
    """What it copies from the new master is older than what it had itself."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        broker.role = "SLAVE"
        broker.commit("g", "T", 0, 60)
        await eventually(lambda: here.sidecar._bridge is not None and not here.sidecar._bridge.counts.connected)
        assert here.at() == (1, 100, True)
        broker.role = "SYNC_MASTER"
        await eventually(lambda: broker.offset("g", "T", 0) == 100)


async def test_a_broker_of_another_name_is_a_stranger(broker: FakeBroker, tmp_path: Path) -> None:
    """At the same address: its offsets are its own."""
    async with bridged(tmp_path, broker) as here:
        async with broker.serving():
            await here.until(100)
        broker.name = "broker-b"
        broker.offsets = {"T@g": {0: 3}}
        async with broker.serving():
            await eventually(lambda: here.sidecar.core().ledger.store.get(key("broker-b/T/0")) is not None)
            await here.looked(broker)
        assert here.at() == (1, 100, True)
        assert broker.offsets == {"T@g": {0: 3}}


async def test_while_the_store_takes_no_commits_nothing_is_forgotten(broker: FakeBroker, tmp_path: Path) -> None:
    """The newest offset of each queue is committed when it takes them again."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        commit = here.sidecar.offsets.commits.commit

        async def refuse(*_: Any, **__: Any) -> Any:
            raise MetaUnavailableError("not now")

        here.sidecar.offsets.commits.commit = refuse  # type: ignore[method-assign]
        broker.commit("g", "T", 0, 130)
        broker.commit("g", "T", 1, 3)
        await here.polled()
        broker.commit("g", "T", 0, 140)
        await here.polled()
        assert here.at() == (1, 100, True)
        here.sidecar.offsets.commits.commit = commit  # type: ignore[method-assign]
        await here.until(140)
        await here.until(3, 1)


async def test_a_group_that_is_written_through_keeps_no_other_from_the_store(broker: FakeBroker, tmp_path: Path) -> None:
    """While the Meta Service is away, what is written back is stored."""
    meta = FakeMeta()
    policy = [{"groups": "g", "mode": "write_through"}]
    async with broker.serving(), bridged(tmp_path, broker, meta, policy=policy) as here:
        await here.until(100)
        meta.down = MetaUnavailableError("no endpoint answers")
        broker.commit("g", "T", 0, 130)
        broker.commit("h", "T", 0, 5)
        await here.until(5, group="h")
        assert here.at() == (1, 100, True)
        meta.down = None
        await here.until(130)


async def test_a_broker_that_answers_garbage_changes_nothing(broker: FakeBroker, tmp_path: Path) -> None:
    """And is followed again when it is itself again."""
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(100)
        for bad in (b"{}", b'{"offsetTable":{"T@g":{0:1', b"\0" * 100, b'{"offsetTable":3}'):
            broker.spoil = _with_body(bad)
            before = broker.calls.count(43)
            await eventually(lambda before=before: broker.calls.count(43) > before + 1)  # type: ignore[misc]
        broker.spoil = None
        broker.commit("g", "T", 0, 101)
        await here.until(101)
        assert here.at(1) == (1, 7, True)


def _with_body(body: bytes) -> Any:
    def spoil(code: int, data: bytes) -> bytes:
        if code != 43:
            return data
        size = int.from_bytes(data[5:8], "big")
        frame = data[4 : 8 + size] + body
        return len(frame).to_bytes(4, "big") + frame

    return spoil


async def test_each_reason_why_a_broker_is_not_followed_is_logged_once(
    broker: FakeBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is away, then it refuses the account: the log does not stay with the first reason, nor repeat it."""
    broker.secret = "12345678"  # noqa: S105
    async with bridged(tmp_path, broker) as here:
        await here.client.status()
        async with broker.serving():
            await eventually(lambda: len(broker.calls) > 8)
    lost = [line for line in capsys.readouterr().out.splitlines() if "rocketmq.lost" in line]
    assert ["Check signature failed" in line for line in lost][:2] == [False, True]
    assert len(lost) < 6


async def test_a_secret_that_was_replaced_is_read_again(broker: FakeBroker, tmp_path: Path) -> None:
    """With the next connection, of the bridge and of what asks for bounds; a file that is bad meanwhile ends nothing."""
    secret = tmp_path / "secret"
    secret.write_text("12345678")
    secret.chmod(0o600)
    broker.secret = "12345678"  # noqa: S105
    acl = {"access_key": "admin", "secret_key_file": str(secret)}
    log = RocketmqLog(RocketmqSection.model_validate({"broker": broker.address, "acl": acl}))
    async with broker.serving(), bridged(tmp_path, broker, rocketmq={"acl": acl}) as here:
        await here.until(100)
        secret.write_text("")
        broker.secret = "87654321"  # noqa: S105
        counts = here.sidecar._bridge
        assert counts
        await eventually(lambda: "secret_key_file" in counts.counts.last_error)
        with pytest.raises(BrokerLogError, match="secret_key_file"):
            await log.bounds("default", ["broker-a/T/0"])
        secret.write_text("87654321")
        broker.commit("g", "T", 0, 130)
        await here.until(130)
        assert await log.bounds("default", ["broker-a/T/0"])


async def test_a_table_of_many_offsets_is_taken_in_many_requests(broker: FakeBroker, tmp_path: Path) -> None:
    """None of them large."""
    for group in range(40):
        for queue in range(16):
            broker.commit(f"g{group}", "T", queue, group + queue)
    async with broker.serving(), bridged(tmp_path, broker) as here:
        await here.until(39 + 15, 15, "g39")
        await eventually(lambda: here.sidecar.core().ledger.store.keys == 40 * 16 + 2)


async def test_an_idle_group_does_not_expire(broker: FakeBroker, tmp_path: Path) -> None:
    """The broker keeps its offset for ever; it is committed again before its retention ends."""
    old = record(100, topic="T", committed_at_ms=1_000)
    meta = FakeMeta({key("broker-a/T/0"): old})
    async with broker.serving(), bridged(tmp_path, broker, meta) as here:
        await eventually(lambda: meta.records[key("broker-a/T/0")].committed_at_ms > 1_000)
        assert here.at() == (1, 100, True)


@pytest.mark.parametrize("hours", [0, 8_000])
async def test_an_idle_group_does_not_expire_behind_a_reload(
    hours: int, broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets are committed again by the retention that is in force."""
    monkeypatch.setattr(bridge, "REFRESH_PART", 100_000)
    meta, one = FakeMeta(), key("broker-a/T/0")
    async with broker.serving(), bridged(tmp_path, broker, meta, expiry={"retention_hours": hours}) as here:
        await eventually(lambda: one in meta.records)
        stood = meta.records[one].committed_at_ms
        await here.looked(broker)
        assert meta.records[one].committed_at_ms == stood
        here.sidecar.core().take(adapter_config(tmp_path, expiry={"retention_hours": 25}))
        await eventually(lambda: meta.records[one].committed_at_ms > stood)
        assert here.at() == (1, 100, True)


async def test_the_bounds_of_queues_come_from_the_broker(broker: FakeBroker) -> None:
    """Without those of other brokers, of unknown topics, and what is no queue."""
    broker.logs = {("T", 0): (5, 9), ("T", 1): (0, 0)}
    async with broker.serving():
        log = RocketmqLog(RocketmqSection(broker=broker.address))
        shards = ["broker-a/T/0", "broker-a/T/1", "broker-b/T/0", "broker-a/U/0", "T/0", "x"]
        found = await log.bounds("default", shards)
        assert {shard: (bounds.low, bounds.high) for shard, bounds in found.items()} == {
            "broker-a/T/0": (5, 9),
            "broker-a/T/1": (0, 0),
        }
        assert await log.bounds("other", shards) == {}


async def test_offsets_by_time_come_from_the_broker(broker: FakeBroker, tmp_path: Path) -> None:
    """A reset by time of an operator; None where all messages are older."""
    broker.logs = {("T", 0): (5, 9), ("T", 1): (0, 2)}
    broker.times = {("T", 0): [10, 20, 30, 40], ("T", 1): [1, 2]}
    broker.offsets = {"T@g": {0: 9, 1: 2}}
    async with broker.serving():
        log = RocketmqLog(RocketmqSection(broker=broker.address))
        assert await log.offsets_for_time("default", ["broker-a/T/0", "broker-a/T/1"], 25) == {
            "broker-a/T/0": 7,
            "broker-a/T/1": None,
        }
        async with bridged_with_log(tmp_path, broker) as here:
            await here.until(9)
            await here.until(2, 1)
            request = offsets_pb.ResetOffsetsRequest(group="g", to_timestamp_ms=25, execute=True)
            await here.client.admin.ResetOffsets(request)
            await eventually(lambda: broker.offset("g", "T", 0) == 7)
            reply = await here.client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g"))
            assert [(row.shard, row.lag) for row in reply.shards] == [("broker-a/T/0", 2), ("broker-a/T/1", 0)]


@asynccontextmanager
async def bridged_with_log(directory: Path, broker: FakeBroker) -> AsyncIterator[Bridged]:
    """As a process has it: the broker's log is asked as well."""
    log = RocketmqLog(RocketmqSection(broker=broker.address))
    values = {"broker": broker.address, "poll_ms": 10}
    async with serving(directory, FakeMeta(), broker_log=log, rocketmq=values) as (sidecar, client):
        yield Bridged(sidecar, client)


def test_one_of_both_serves_the_log(tmp_path: Path) -> None:
    """The bridge asks the broker itself."""
    with pytest.raises(ConfigError, match=r"broker_log.address: must be empty beside rocketmq.broker"):
        adapter_config(tmp_path, rocketmq={"broker": "127.0.0.1:1"}, broker_log={"address": "127.0.0.1:2"})


async def test_the_metrics_tell_what_polling_costs(broker: FakeBroker, tmp_path: Path) -> None:
    """Bytes and time grow with the table; the interval does when they do."""
    async with broker.serving(), bridged(tmp_path, broker, metrics={"listen": "127.0.0.1:0"}) as here:
        await here.until(100)
        registry = here.sidecar._metrics.registry
        assert (registry.get_sample_value("offset_adapter_rocketmq_poll_bytes_total") or 0) >= len(broker.table())
        assert registry.get_sample_value("offset_adapter_rocketmq_connected") == 1
        assert (registry.get_sample_value("offset_adapter_rocketmq_committed_total") or 0) >= 2


async def test_status_tells_which_broker_is_followed(broker: FakeBroker, tmp_path: Path) -> None:
    """Absent without a bridge; with one, whether the broker answers, and why not."""
    async with serving(tmp_path / "none") as (_, client):
        assert not (await client.status()).HasField("rocketmq")
    async with bridged(tmp_path / "one", broker) as here:
        found = (await here.client.status()).rocketmq
        assert (found.address, found.broker, found.connected) == (broker.address, "", False)
        async with broker.serving():
            await here.until(100)
            await here.polled()
            found = (await here.client.status()).rocketmq
            assert (found.broker, found.connected, found.offsets) == ("broker-a", True, 2)
            assert found.poll_interval_seconds >= 0.01
        await eventually(lambda: not here.sidecar.status.reply().rocketmq.connected)
        assert here.sidecar.status.reply().rocketmq.last_error


async def test_an_unexpected_end_of_the_bridge_ends_the_sidecar(tmp_path: Path) -> None:
    """As that of every background task (a bug must not end in silence)."""
    sidecar = Sidecar(adapter_config(tmp_path, rocketmq={"broker": "127.0.0.1:1"}), FakeMeta(), RocketmqLog(RocketmqSection()))
    assert sidecar._bridge

    async def fail(_: object) -> None:
        raise RuntimeError("a bug")

    sidecar._bridge.run = fail  # type: ignore[method-assign,assignment]
    with pytest.RaisesGroup(RuntimeError, flatten_subgroups=True), anyio.fail_after(PATIENCE_S):
        await sidecar.run()

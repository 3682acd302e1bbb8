"""RocketMQ's ConsumeFromWhere as a table of start positions. Line numbers are those of apache/rocketmq at 8fc57f1."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from adapter.client.broker_log import BrokerLogSection, GrpcBrokerLog
from adapter.client.offset_store.remote import RemoteOffsetStore
from adapter.client.offset_store.start import (
    BrokerLogBounds,
    ConsumeFromWhere,
    ConsumeInitMode,
    QueueBounds,
    Start,
    StartPositions,
    Starts,
    consume_timestamp_ms,
    pop_start,
    within,
)
from adapter.errors import BrokerLogError, InvalidInputError, UnknownBoundsError
from adapter.model.bounds import ShardKey
from adapter.model.queues import MessageQueue
from adapter.runtime.clocks import wall_ms
from adapter.testing.broker_log import MemoryLog
from adapter.testing.broker_log import serving as serving_log
from adapter.testing.fake_meta import FakeMeta
from tests.integration.helpers import serving
from tests.unit.offset_stores import DOWN, FakeStore, Logs

LAST, FIRST, TIMESTAMP = ConsumeFromWhere
RETRY = "%RETRY%g"
Q = MessageQueue("orders", 3, "broker-a")

PUSH = "RebalancePushImpl.computePullFromWhereWithException"
LITE = "RebalanceLitePullImpl.computePullFromWhereWithException"
QUERY = "ConsumerManageProcessor.queryConsumerOffset"
PULL = "PullMessageProcessor.composeResponseHeader"
STORE = "DefaultMessageStore.getMessage"
BY_TIME = "ConsumeQueueStore.getOffsetInQueueByTime"
POP = "PopMessageProcessor.getInitOffset"

AGED, YOUNG, EMPTY = QueueBounds(100, 900), QueueBounds(0, 900, beginning_in_memory=True), QueueBounds(0, 0)
ON_DISK = QueueBounds(0, 900)
AT_TIME = 400  # the offset of the first message at or after the asked time

# where, topic, what the group has stored, the log, and where RocketMQ begins
TABLE = {
    f"{PUSH}:176-178 {LITE}:96-97 a stored offset wins": (LAST, "orders", 500, AGED, 500),
    f"{PUSH}:199-200 {LITE}:116-117 a stored offset wins, FIRST": (FIRST, "orders", 500, AGED, 500),
    f"{PUSH}:212-213 {LITE}:127-128 a stored offset wins, TIMESTAMP": (TIMESTAMP, "orders", 500, AGED, 500),
    f"{PUSH}:176-178 0 is an offset": (LAST, "orders", 0, ON_DISK, 0),
    f"{PUSH}:180-185 {LITE}:98-103 none, LAST: the end": (LAST, "orders", None, AGED, 900),
    f"{PUSH}:181-182 {LITE}:99-100 none, LAST, a retry topic: 0": (LAST, RETRY, None, ON_DISK, 0),
    f"{PUSH}:181-182 {STORE}:853-855 ... which the broker corrects": (LAST, RETRY, None, AGED, 100),
    f"{PUSH}:201-203 {LITE}:118-119 none, FIRST: 0": (FIRST, "orders", None, ON_DISK, 0),
    f"{PUSH}:202 {STORE}:853-855 ... which the broker corrects, FIRST": (FIRST, "orders", None, AGED, 100),
    f"{PUSH}:201-203 none, FIRST, a retry topic": (FIRST, RETRY, None, ON_DISK, 0),
    f"{PUSH}:224-226 {LITE}:139-141 none, TIMESTAMP: by time": (TIMESTAMP, "orders", None, AGED, AT_TIME),
    f"{PUSH}:215-217 {LITE}:130-132 none, TIMESTAMP, a retry topic: the end": (TIMESTAMP, RETRY, None, AGED, 900),
    f"{BY_TIME}:188 a time before the log": (TIMESTAMP, "orders", None, QueueBounds(600, 900), 600),
    f"{BY_TIME}:189 a time behind the log": (TIMESTAMP, "orders", None, QueueBounds(100, 300), 300),
    f"{QUERY}:336-341 none, LAST, the beginning in memory: 0": (LAST, "orders", None, YOUNG, 0),
    f"{QUERY}:336-341 none, TIMESTAMP, the beginning in memory: 0": (TIMESTAMP, "orders", None, YOUNG, 0),
    f"{QUERY}:336-341 none, TIMESTAMP, a retry topic, the beginning in memory: 0": (TIMESTAMP, RETRY, None, YOUNG, 0),
    f"{QUERY}:336 the beginning has expired: the end": (LAST, "orders", None, QueueBounds(1, 900, beginning_in_memory=True), 900),
    f"{QUERY}:342-344 the beginning is on disk alone: the end": (LAST, "orders", None, ON_DISK, 900),
    f"{QUERY}:325-328 a stored offset, the beginning in memory": (LAST, "orders", 500, YOUNG, 500),
    f"{STORE}:853-855 {PULL}:670-675 OFFSET_TOO_SMALL: the beginning": (LAST, "orders", 99, AGED, 100),
    f"{STORE}:862 the first message": (LAST, "orders", 100, AGED, 100),
    f"{STORE}:862 the last message": (LAST, "orders", 899, AGED, 899),
    f"{STORE}:856-858 {PULL}:656-658 OFFSET_OVERFLOW_ONE: the end is a place to wait": (LAST, "orders", 900, AGED, 900),
    f"{STORE}:859-861 {PULL}:659-664 OFFSET_OVERFLOW_BADLY: the end": (FIRST, "orders", 901, AGED, 900),
    f"{STORE}:850-852 {PULL}:639-650 NO_MESSAGE_IN_QUEUE: 0": (LAST, "orders", 7, EMPTY, 0),
    f"{STORE}:850-852 {PULL}:651-653 nothing in the queue, and nothing read of it": (LAST, "orders", 0, EMPTY, 0),
    f"{STORE}:853-861 all has expired": (LAST, "orders", 50, QueueBounds(900, 900), 900),
}


@pytest.mark.parametrize(("where", "topic", "stored", "bounds", "expected"), TABLE.values(), ids=TABLE)
async def test_a_consumer_begins_where_rocketmq_does(
    where: ConsumeFromWhere, topic: str, stored: int | None, bounds: QueueBounds, expected: int
) -> None:
    """One row for each case of RocketMQ's client, and of its broker's correction of the client's answer."""
    queue = Q._replace(topic=topic)
    store = FakeStore({} if stored is None else {queue: stored})
    positions = StartPositions(store, Logs({queue: bounds}, {queue: AT_TIME}), where, timestamp_ms=1)
    assert await positions.of([queue]) == Starts({queue: Start(expected, stored)}, {})
    # A correction is stored at once; another start with the next persist.
    assert store.stored.get(queue) == (None if stored is None else expected)
    assert store.memory == {queue: expected}


@pytest.mark.parametrize("where", ConsumeFromWhere)
async def test_an_offset_that_cannot_be_read_is_an_error_and_not_a_beginning(where: ConsumeFromWhere) -> None:
    """-2 instead of -1 (RebalancePushImpl.computePullFromWhereWithException:191-194, 204-207, 232-235); others begin."""
    other = Q._replace(queue_id=4)
    store = FakeStore({Q: 500, other: 600})
    store.faults[Q] = DOWN
    found = await StartPositions(store, Logs(dict.fromkeys((Q, other), AGED)), where).of([Q, other])
    assert found == Starts({other: Start(600, 600)}, {Q: DOWN})


async def test_a_broker_that_does_not_answer_takes_only_its_own_queues_along() -> None:
    """As RebalancePushImpl.computePullFromWhereWithException:186-189, which throws when maxOffset does."""
    elsewhere = Q._replace(broker_name="broker-b")
    logs = Logs({Q: AGED, elsewhere: AGED})
    logs.down["broker-a"] = BrokerLogError("away")
    found = await StartPositions(FakeStore({Q: 500, elsewhere: 600}), logs).of([Q, elsewhere])
    assert found == Starts({elsewhere: Start(600, 600)}, {Q: logs.down["broker-a"]})


async def test_a_time_that_cannot_be_looked_up_is_an_error() -> None:
    """As RebalancePushImpl.computePullFromWhereWithException:227-230, which throws when searchOffset does."""
    logs = Logs({Q: AGED})
    logs.no_times = BrokerLogError("away")
    assert await StartPositions(FakeStore(), logs, TIMESTAMP).of([Q]) == Starts({}, {Q: logs.no_times})


async def test_a_queue_that_the_broker_does_not_have_has_no_beginning() -> None:
    """As PullMessageProcessor.processRequest:346-349 (TOPIC_NOT_EXIST): neither 0 nor the stored offset is used."""
    found = await StartPositions(FakeStore({Q: 500}), Logs({})).of([Q])
    assert isinstance(found.failed[Q], UnknownBoundsError)
    assert found.starts == {}


@pytest.mark.parametrize(("stored", "corrected", "reason"), [(99, 100, "too_small"), (5_000, 900, "too_large")])
async def test_a_correction_is_warned_of_and_counted_once(stored: int, corrected: int, reason: str) -> None:
    """PullMessageProcessor.composeResponseHeader:659-675; the corrected offset is stored, as in RocketMQ."""
    store = FakeStore({Q: stored})
    positions = StartPositions(store, Logs({Q: AGED}))
    before = corrections(reason)
    with capture_logs() as logs:
        for _ in range(2):
            await positions.of([Q])
    fields = {"group": "g", "shard": "broker-a/orders/3", "stored": stored, "corrected": corrected, "low": 100, "high": 900}
    assert logs == [{"event": "start.corrected", "log_level": "warning", **fields}]
    assert corrections(reason) == before + 1


@pytest.mark.parametrize(("beyond", "expected"), [(LAST, 900), (FIRST, 100), (TIMESTAMP, AT_TIME)])
async def test_a_consumer_may_choose_where_it_begins_in_a_log_that_was_made_anew(beyond: ConsumeFromWhere, expected: int) -> None:
    """Also one of a retry topic. A stored offset that is only too small is not one of a new log."""
    for topic in ("orders", RETRY):
        queue = Q._replace(topic=topic)
        store, logs = FakeStore({queue: 5_000}), Logs({queue: AGED}, {queue: AT_TIME})
        positions = StartPositions(store, logs, timestamp_ms=1, beyond=beyond)
        assert await positions.of([queue]) == Starts({queue: Start(expected, 5_000)}, {})
        assert store.stored == {queue: expected}
        small = StartPositions(FakeStore({queue: 5}), logs, timestamp_ms=1, beyond=beyond)
        assert await small.of([queue]) == Starts({queue: Start(100, 5)}, {})


async def test_a_correction_that_could_not_be_stored_is_no_beginning() -> None:
    """The larger stored offset would supersede every later commit. Such a correction is not counted."""
    store, logs = FakeStore({Q: 5_000}), Logs({Q: AGED})
    store.persist_faults[Q] = DOWN
    before = corrections("too_large")
    assert await StartPositions(store, logs).of([Q]) == Starts({}, {Q: DOWN})
    assert corrections("too_large") == before
    store.persist_faults.clear()
    assert await StartPositions(store, logs).of([Q]) == Starts({Q: Start(900, 5_000)}, {})


async def test_a_topic_made_anew_under_old_offsets_is_read_and_committed_again(tmp_path: Path) -> None:
    """apache/rocketmq #4774: an offset above the end would supersede every commit and make the lag negative. Real adapter."""
    q, meta = MessageQueue("orders", 0), FakeMeta()
    async with serving(tmp_path, meta) as (_, client):
        await client.commit("g", {"orders/0": 88_526})
        store = RemoteOffsetStore(client, "g")
        assert (await StartPositions(store, Logs({q: QueueBounds(0, 10)})).of([q])).starts == {q: Start(10, 88_526)}
        assert offset_in(meta) == 10
        store.update_offset(q, 12, increase_only=True)
        await store.force_persist([q])
        assert offset_in(meta) == 12
        assert (await StartPositions(RemoteOffsetStore(client, "g"), Logs({q: QueueBounds(0, 15)})).of([q])).starts == {
            q: Start(12, 12)
        }


async def test_the_log_is_asked_after_the_store() -> None:
    """Otherwise another consumer's commit in between could look like an offset beyond the end, and be rewound."""
    store = FakeStore({Q: 500})

    class Growing(Logs):
        async def bounds(self, queues: Iterable[MessageQueue]) -> Mapping[MessageQueue, QueueBounds]:
            return {queue: QueueBounds(0, store.stored[queue]) for queue in queues}

    store.before_read = lambda: store.stored.update({Q: 950})
    assert (await StartPositions(store, Growing({})).of([Q])).starts == {Q: Start(950, 950)}


async def test_a_message_that_comes_during_the_look_up_by_time_is_not_passed_over() -> None:
    """If no message is young enough, begin at the end read before the look-up, not at the present one."""

    class Appending(Logs):
        async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int | None:  # noqa: ARG002
            self.log[queue] = QueueBounds(0, 901)
            return None

    assert (await StartPositions(FakeStore(), Appending({Q: ON_DISK}), TIMESTAMP).of([Q])).starts == {Q: Start(900, None)}


async def test_a_timestamp_is_half_an_hour_before_the_consumer_unless_given() -> None:
    """As DefaultMQPushConsumer.consumeTimestamp:131."""
    logs = Logs({Q: AGED}, {Q: AT_TIME})
    earliest = wall_ms() - 30 * 60 * 1000
    await StartPositions(FakeStore(), logs, TIMESTAMP).of([Q])
    await StartPositions(FakeStore(), logs, TIMESTAMP, timestamp_ms=77).of([Q])
    default, given_ms = logs.asked_times
    assert earliest <= default <= wall_ms() - 30 * 60 * 1000
    assert given_ms == 77


@pytest.mark.parametrize("name", ["LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "MIN_OFFSET", "MAX_OFFSET", "LAST_OFFSET"])
def test_what_rocketmq_deprecated_means_last(name: str) -> None:
    """RebalancePushImpl.computePullFromWhereWithException:171-174 maps the deprecated names of ConsumeFromWhere:20-27."""
    assert ConsumeFromWhere(f"CONSUME_FROM_{name}") is LAST


def test_an_unknown_name_is_refused() -> None:
    """As Java's valueOf refuses it."""
    with pytest.raises(ValueError, match="CONSUME_FROM_HERE"):
        ConsumeFromWhere("CONSUME_FROM_HERE")


POP_TABLE = {
    f"{POP}:912-913 MIN": (ConsumeInitMode.MIN, "orders", AGED, 100),
    f"{POP}:912-913 a retry topic, also of pop": (ConsumeInitMode.MAX, "%RETRY%g_orders", AGED, 100),
    f"{POP}:915-918 MAX, the beginning in memory": (ConsumeInitMode.MAX, "orders", YOUNG, 0),
    f"{POP}:921 MAX: the last message": (ConsumeInitMode.MAX, "orders", AGED, 899),
    f"{POP}:923-925 MAX, nothing there": (ConsumeInitMode.MAX, "orders", EMPTY, 0),
    f"{POP}:921 MAX, all has expired; 766-777 corrects it": (ConsumeInitMode.MAX, "orders", QueueBounds(900, 900), 900),
}


@pytest.mark.parametrize(("mode", "topic", "bounds", "expected"), POP_TABLE.values(), ids=POP_TABLE)
def test_a_pop_group_begins_where_rocketmq_lets_it(mode: ConsumeInitMode, topic: str, bounds: QueueBounds, expected: int) -> None:
    """PopConsumerService.getPopOffset:212-213 uses the same method."""
    assert pop_start(topic, mode, bounds) == expected


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_corrected_offset_is_in_the_log_and_no_other_is_nearer(offset: int, one: int, other: int) -> None:
    """For any offset and any bounds."""
    bounds = QueueBounds(min(one, other), max(one, other))
    corrected = within(offset, bounds)
    assert bounds.low <= corrected <= bounds.high
    assert corrected == offset or corrected in bounds[:2]
    assert abs(corrected - offset) == min(abs(place - offset) for place in (corrected, *bounds[:2]))


@pytest.fixture
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_berlin")
def test_a_consume_timestamp_is_a_time_of_this_machine() -> None:
    """The example of DefaultMQPushConsumer:126-131, parsed as UtilAll.parseDate:453-460: 17:12:01 in Berlin's winter."""
    expected = datetime(2013, 12, 23, 16, 12, 1, tzinfo=UTC)
    assert consume_timestamp_ms("20131223171201") == int(expected.timestamp() * 1000)


@pytest.mark.parametrize(
    "text", ["", "2013122317120", "201312231712011", "20131323171201", "2013-12-23 17:", "\u0662\u0660131223171201"]
)
def test_what_is_no_consume_timestamp_is_refused_by_name(text: str) -> None:
    """As DefaultMQPushConsumerImpl.checkConfig:1058-1063."""
    with pytest.raises(InvalidInputError, match="yyyyMMddHHmmss"):
        consume_timestamp_ms(text)


async def test_the_bounds_come_from_a_broker_that_serves_them() -> None:
    """Over offsets.v1.BrokerLog: bounds, offsets by time, and shards that the broker does not know."""
    memory, there, not_there = MemoryLog(), MessageQueue("orders", 0), MessageQueue("orders", 1)
    memory.create(ShardKey("default", "orders/0"), low=5)
    memory.append(ShardKey("default", "orders/0"), 100, 200, 300)
    async with serving_log(memory) as address, GrpcBrokerLog.open(BrokerLogSection(address=address)) as broker:
        logs = BrokerLogBounds(broker)
        assert await logs.bounds([there, not_there]) == {there: QueueBounds(5, 8)}
        assert [await logs.offset_for_time(there, at) for at in (0, 150, 301)] == [5, 6, None]
        with pytest.raises(UnknownBoundsError, match="orders/1"):
            await logs.offset_for_time(not_there, 150)


async def test_a_cancelled_read_is_a_cancellation_and_not_a_failed_queue() -> None:
    """Treated as a failed queue, it would let a consumer that is being stopped go on."""
    store = FakeStore()
    store.faults[Q] = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError):
        await StartPositions(store, Logs({Q: AGED})).of([Q])


def corrections(reason: str) -> float:
    """The number of corrections counted so far."""
    labels = {"group": "g", "topic": "orders", "reason": reason}
    return REGISTRY.get_sample_value("offset_store_corrections_total", labels) or 0.0


def offset_in(meta: FakeMeta) -> int:
    """The only offset that the Meta Service has."""
    (record,) = meta.records.values()
    return record.offset

"""The plugin in a real RocketMQ broker, beside a real adapter: kill -9 of each, resets on both sides, a broker's life.

What the broker answers to a consumer is compared with what was acknowledged. `rocketmq_plugin_cluster` has the parts.
"""

import shutil
import time
from pathlib import Path

import anyio
import pytest

from adapter.rocketmq.broker import connected
from adapter.rocketmq.config import RocketmqSection
from adapter.testing.processes import adapter_process
from tests.interop.rocketmq_plugin_cluster import (
    OTHERS,
    Broker,
    Cluster,
    acknowledged,
    cluster,
    lines_of,
    positions,
    wait_for,
)

pytestmark = pytest.mark.timeout(900)

TOPIC, GROUP, QUEUES, MESSAGES = "orders", "billing", 4, 4_000
SYNC = "offsetAdapterAck=sync\noffsetAdapterAbsent=refuse\n"
KILLS = 3
ERA = 2**32


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a short name, for Unix sockets."""
    return tmp_path


def _prepare(running: Cluster, messages: int = MESSAGES) -> None:
    running.clients.do("topic", TOPIC, QUEUES)
    running.clients.do("group", GROUP)
    for queue in range(QUEUES):
        running.clients.do("produce", TOPIC, queue, messages)


def _shard(queue: int) -> str:
    return f"broker-a/{TOPIC}/{queue}"


def _at_broker(running: Cluster, group: str = GROUP) -> dict[int, int | None]:
    return {queue: running.clients.query(group, TOPIC, queue) for queue in range(QUEUES)}


def _commit(running: Cluster, offset: int, group: str = GROUP, *queues: int) -> None:
    for queue in queues or range(QUEUES):
        running.clients.do("commit", group, TOPIC, queue, offset)


def _wait_adapter(running: Cluster, expected: dict[str, int], group: str = GROUP) -> None:
    wait_for(lambda: running.offsets(group) == expected, f"the adapter has {expected}, and not {running.offsets(group)}")


def _all(offset: int) -> dict[str, int]:
    return {_shard(queue): offset for queue in range(QUEUES)}


def _lost(running: Cluster, acks: dict[int, int]) -> int:
    """Acknowledged commits that the broker no longer has."""
    return sum(max(0, offset - (running.clients.query(GROUP, TOPIC, queue) or 0)) for queue, offset in acks.items())


def _more_acks(file: Path, than: int) -> None:
    wait_for(lambda: len(lines_of(file)) > than, f"more than {than} acknowledged commits")


def _copy_log(source: Path, target: Path) -> None:
    """The messages without the offsets."""
    target.mkdir(exist_ok=True)
    shutil.copy2(source / "checkpoint", target / "checkpoint")
    for part in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(target / part, ignore_errors=True)
        shutil.copytree(source / part, target / part)


def test_a_killed_broker_loses_no_acknowledged_commit(root: Path) -> None:
    """With sync acknowledgements every commit that was answered is there after kill -9, each time."""
    with cluster(root, SYNC) as running:
        _prepare(running)
        acks = root / "acks"
        running.clients.do("committing", GROUP, TOPIC, QUEUES, str(acks))
        for _ in range(KILLS):
            _more_acks(acks, len(lines_of(acks)) + 100)
            running.broker.kill()
            before = acknowledged(acks)
            running.broker.start()
            assert _lost(running, before) == 0
        running.clients.do("committed")
        _wait_adapter(running, {_shard(queue): offset for queue, offset in _at_broker(running).items() if offset is not None})


def test_a_killed_broker_and_a_killed_sidecar_lose_no_acknowledged_commit(root: Path) -> None:
    """The same when the sidecar is killed with it, and when only the sidecar is; meanwhile commits are refused."""
    with cluster(root, SYNC) as running:
        _prepare(running)
        acks = root / "acks"
        running.clients.do("committing", GROUP, TOPIC, QUEUES, str(acks))
        for broker_too in (False, True, True):
            _more_acks(acks, len(lines_of(acks)) + 100)
            running.adapter.kill()
            if broker_too:
                running.broker.kill()
            before = acknowledged(acks)
            running.adapter.start()
            if broker_too:
                running.broker.start()
            assert _lost(running, before) == 0
        _more_acks(acks, len(lines_of(acks)) + 100)
        running.clients.do("committed")
        assert _lost(running, acknowledged(acks)) == 0


def test_async_loses_at_most_what_was_under_way(root: Path) -> None:
    """Without waiting, a killed broker has lost no more than the requests of an instant; a stock one loses seconds."""
    with cluster(root) as running:
        _prepare(running)
        acks = root / "acks"
        running.clients.do("committing", GROUP, TOPIC, QUEUES, str(acks))
        _more_acks(acks, 200)
        running.broker.kill()
        running.clients.do("committed")
        before = acknowledged(acks)
        running.broker.start()
        lost = _lost(running, before)
        assert lost <= QUEUES * MESSAGES // 100


def test_a_lost_offset_file_comes_back(root: Path) -> None:
    """Offsets whose file is gone come from the adapter; if the sidecar lost its disk too, from the Meta Service."""
    with cluster(root) as running:
        _prepare(running)
        _commit(running, 77)
        _wait_adapter(running, _all(77))
        running.broker.kill()
        for file in running.broker.store.glob("config/consumerOffset.json*"):
            file.unlink()
        running.broker.start()
        assert _at_broker(running) == dict.fromkeys(range(QUEUES), 77)

        running.cli("flush")
        running.broker.kill()
        running.adapter.kill()
        for file in running.broker.store.glob("config/consumerOffset.json*"):
            file.unlink()
        shutil.rmtree(running.adapter.directory / "adapter")
        running.adapter.start()
        running.broker.start()
        assert _at_broker(running) == dict.fromkeys(range(QUEUES), 77)


def test_a_broker_without_its_sidecar_serves_and_catches_up(root: Path) -> None:
    """A sidecar that is absent at the start, or goes away, stops nothing; when it is back it gets what was committed."""
    with cluster(root, "offsetAdapterStartWaitMs=0\n", start=False) as running:
        running.adapter.kill()
        running.broker.start()
        _prepare(running)
        _commit(running, 10)
        assert running.status()["offsetAdapterState"] == "not compared yet"
        running.adapter.start()
        _wait_adapter(running, _all(10))
        running.adapter.kill()
        _commit(running, 20)
        wait_for(lambda: running.status()["offsetAdapterState"] == "absent", "the plugin says that the sidecar is absent")
        running.adapter.start()
        _wait_adapter(running, _all(20))
        status = running.status()
        assert status["offsetAdapterState"] == "serving"
        assert int(status["offsetAdapterFailures"]) > 0


def test_refuse_holds_the_start_and_refuses_commits(root: Path) -> None:
    """With `refuse` a broker opens no port before the sidecar answers, and a commit that the sidecar lacks is an error."""
    with cluster(root, SYNC, start=False) as running:
        running.adapter.kill()
        running.broker.launch()
        assert running.broker.java is not None
        running.broker.java.wait_line("waits for the sidecar")
        assert "boot success" not in running.broker.output
        running.adapter.start()
        running.broker.java.wait_line("boot success")
        _prepare(running)
        _commit(running, 10)
        running.adapter.kill()
        with pytest.raises(RuntimeError, match="offset adapter"):
            _commit(running, 11)
        handled = root / "handled"
        running.clients.do("consume", "others", TOPIC, str(handled))
        wait_for(lambda: len(lines_of(handled)) >= MESSAGES, "consumers go on consuming")
        running.clients.do("consumed", "others")
        running.adapter.start()
        wait_for(lambda: running.status()["offsetAdapterState"] == "serving", "the plugin reaches the sidecar")
        _commit(running, 12)
        assert running.offsets(GROUP) == _all(12)


def test_resets_of_mqadmin_are_resets_in_the_adapter(root: Path) -> None:
    """A reset by time and deletes by mqadmin are the same in the adapter, a clone is commits; all survive kill -9."""
    with cluster(root, SYNC) as running:
        _prepare(running)
        _commit(running, 100)
        running.clients.mqadmin("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0")
        _wait_adapter(running, _all(0))
        assert {epoch >= ERA for epoch, _ in positions(running.adapter, GROUP).values()} == {True}
        running.broker.kill()
        running.broker.start()
        assert _at_broker(running) == dict.fromkeys(range(QUEUES), 0)

        _commit(running, 30)
        running.clients.do("group", "copy")
        running.clients.do("topic", f"%RETRY%{GROUP}", 1)  # where mqadmin looks for the group's brokers
        clone = ("cloneGroupOffset", "-s", GROUP, "-d", "copy", "-t", TOPIC, "-o", "true")
        wait_for(lambda: "success" in running.clients.mqadmin(*clone), "mqadmin finds the route of the new topic")
        _wait_adapter(running, _all(30), "copy")

        running.clients.mqadmin("deleteSubGroup", "-g", "copy", "-c", "c", "-r", "true")
        _wait_adapter(running, {}, "copy")
        assert running.offsets(GROUP) == _all(30)
        running.clients.mqadmin("deleteTopic", "-t", TOPIC, "-c", "c")
        _wait_adapter(running, {})


def test_a_reset_in_the_adapter_reaches_an_online_consumer(root: Path) -> None:
    """A running consumer handles the messages after the adapter's reset again, and nothing undoes the reset."""
    with cluster(root, log_address=True) as running:
        _prepare(running, 200)
        handled = root / "handled"
        running.clients.do("consume", GROUP, TOPIC, str(handled))
        wait_for(lambda: len(set(lines_of(handled))) == 200 * QUEUES, "all messages are handled")
        _wait_adapter(running, _all(200))
        again = len(lines_of(handled))
        running.cli("offsets", "reset", GROUP, _shard(1), "--to-offset", 150, "--execute")
        wait_for(lambda: lines_of(handled)[again:].count((1, 150)) == 1, "the consumer begins again at 150")
        wait_for(lambda: len(lines_of(handled)) >= again + 50, "it handles all from there")
        _wait_adapter(running, _all(200))
        assert positions(running.adapter, GROUP)[_shard(1)][0] >= ERA
        running.clients.do("consumed", GROUP)


def test_a_reset_in_the_adapter_while_the_broker_is_down_stands(root: Path) -> None:
    """The broker begins at the lower offset, though its own file has the higher one."""
    with cluster(root) as running:
        _prepare(running)
        _commit(running, 100)
        _wait_adapter(running, _all(100))
        running.broker.stop()
        running.cli("offsets", "reset", GROUP, "--to-offset", 40, "--execute")
        running.broker.start()
        assert _at_broker(running) == dict.fromkeys(range(QUEUES), 40)


def test_a_time_without_the_plugin_is_noticed(root: Path) -> None:
    """A stock broker that went back meanwhile stands, killed or stopped; after a time with the plugin the larger offset does."""
    with cluster(root) as running:
        _prepare(running)
        _commit(running, 100)
        _wait_adapter(running, _all(100))
        for kill, offset in ((False, 60), (True, 50)):
            running.broker.stop()
            running.broker.plugin = False
            running.broker.lines, settings = "flushConsumerOffsetInterval=100\n", running.broker.lines
            running.broker.start()
            _commit(running, offset)
            if kill:
                wait_for(
                    lambda: set(running.broker.own_offsets().get(f"{TOPIC}@{GROUP}", {}).values()) == {50},
                    "the stock broker has persisted",
                )
                running.broker.kill()
            else:
                running.broker.stop()
            running.broker.plugin, running.broker.lines = True, settings
            running.broker.start()
            assert _at_broker(running) == dict.fromkeys(range(QUEUES), offset)
            _wait_adapter(running, _all(offset))


def test_a_log_that_lost_its_end_is_not_skipped(root: Path) -> None:
    """After a power cut the log ends below the offset: the group begins at the end, and every new message is delivered."""
    with cluster(root, "flushConsumerOffsetInterval=100\n") as running:
        _prepare(running, 100)
        running.broker.stop()
        _copy_log(running.broker.store, root / "saved")
        running.broker.start()
        for queue in range(QUEUES):
            running.clients.do("produce", TOPIC, queue, 50)
        _commit(running, 150)
        _wait_adapter(running, _all(150))
        running.broker.kill()
        _copy_log(root / "saved", running.broker.store)  # what the disk had when the power went
        running.broker.start()
        assert _at_broker(running) == dict.fromkeys(range(QUEUES), 100)
        _wait_adapter(running, _all(100))
        for queue in range(QUEUES):
            running.clients.do("produce", TOPIC, queue, 80)
        handled = root / "handled"
        running.clients.do("consume", GROUP, TOPIC, str(handled))
        wanted = {(queue, offset) for queue in range(QUEUES) for offset in range(100, 180)}
        wait_for(lambda: set(lines_of(handled)) >= wanted, "every message after the power cut is delivered")
        running.clients.do("consumed", GROUP)


def test_the_broker_answers_for_its_log(root: Path) -> None:
    """`groups describe` shows lag, and a reset by time finds the offset, both from the broker's own store."""
    with cluster(root, log_address=True) as running:
        _prepare(running, 100)
        between_ms = int(time.time() * 1000)
        for queue in range(QUEUES):
            running.clients.do("produce", TOPIC, queue, 50)
        _commit(running, 120)
        _wait_adapter(running, _all(120))

        def described() -> set[tuple[str, ...]]:
            """Offset, end, lag, and from the live lag, which is evaluated every second, how much is lost."""
            lines = running.cli("groups", "describe", GROUP).splitlines()[1:]
            return {tuple(line.split("\t")[2:6]) for line in lines if line}

        wait_for(lambda: described() == {("120", "150", "30", "0")}, "the lag is shown")
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between_ms / 1000 - 3600)) + "Z"
        running.cli("offsets", "reset", GROUP, "--to-datetime", at, "--execute")
        wait_for(lambda: _at_broker(running) == dict.fromkeys(range(QUEUES), 0), "the broker is at the beginning")
        running.cli("offsets", "reset", GROUP, "--to-latest", "--execute")
        wait_for(lambda: _at_broker(running) == dict.fromkeys(range(QUEUES), 150), "the broker is at the end")


def test_pop_and_retry_topics_are_kept_too(root: Path) -> None:
    """What a POP group has acknowledged, and offsets of retry topics, are in the adapter and there after kill -9."""
    with cluster(root) as running:
        _prepare(running, 50)
        running.clients.do("group", "popping")
        running.clients.mqadmin(
            "setConsumeMode", "-b", running.broker.address, "-t", TOPIC, "-g", "popping", "-m", "POP", "-q", 8
        )
        handled = root / "handled"
        running.clients.do("consume", "popping", TOPIC, str(handled), "pop")
        wait_for(lambda: len(set(lines_of(handled))) == 50 * QUEUES, "all messages are handled")
        wait_for(lambda: running.offsets("popping").items() >= _all(50).items(), "the adapter has what was acknowledged")
        running.clients.do("consumed", "popping")
        running.clients.do("topic", f"%RETRY%{GROUP}", 1)
        running.clients.do("produce", f"%RETRY%{GROUP}", 0, 9)
        running.clients.do("commit", GROUP, f"%RETRY%{GROUP}", 0, 7)
        _wait_adapter(running, {f"broker-a/%RETRY%{GROUP}/0": 7})
        running.broker.kill()
        running.broker.start()
        assert _at_broker(running, "popping") == dict.fromkeys(range(QUEUES), 50)
        assert running.clients.query(GROUP, f"%RETRY%{GROUP}", 0) == 7


KINDS = {
    "lmq": "enableLmq=true\nenableMultiDispatch=true\n",
    "v1": "storeType=defaultRocksDB\n",
    "v2": "configManagerVersion=v2\n",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_offset_manager_stays_behind_the_plugin(root: Path, kind: str) -> None:
    """With offsets in LMQ's file, in RocksDB V1 or V2: commits, a reset and kill -9 lose nothing."""
    with cluster(root, SYNC + KINDS[kind]) as running:
        _prepare(running, 200)
        _commit(running, 100)
        running.broker.kill()
        running.broker.start()
        assert _at_broker(running) == dict.fromkeys(range(QUEUES), 100)
        running.cli("offsets", "reset", GROUP, "--to-offset", 40, "--execute")
        wait_for(lambda: _at_broker(running) == dict.fromkeys(range(QUEUES), 40), "the reset reaches the broker")
        running.broker.stop()
        running.broker.start()
        assert _at_broker(running) == dict.fromkeys(range(QUEUES), 40)
        if kind == "lmq":
            running.clients.do("group", "%LMQ%light")
            running.clients.do("commit", "%LMQ%light", TOPIC, 0, 33)
            assert running.offsets("%LMQ%light") == {_shard(0): 33}
            running.broker.kill()
            running.broker.start()
            assert running.clients.query("%LMQ%light", TOPIC, 0) == 33


@pytest.mark.parametrize("version", OTHERS)
def test_the_same_jar_runs_in_other_versions(root: Path, version: str) -> None:
    """A broker of another version keeps its offsets in the adapter, and has them after kill -9."""
    with cluster(root, version=version) as running:
        _prepare(running, 200)
        _commit(running, 100)
        _wait_adapter(running, _all(100))
        _commit(running, 60)
        _wait_adapter(running, _all(60))
        running.broker.kill()
        running.broker.start()
        assert _at_broker(running) == dict.fromkeys(range(QUEUES), 60)
        running.cli("offsets", "reset", GROUP, "--to-offset", 40, "--execute")
        wait_for(lambda: _at_broker(running) == dict.fromkeys(range(QUEUES), 40), "the reset reaches the broker")


@pytest.mark.parametrize(
    ("version", "lines", "says"),
    [
        ("4.9.7", "", "this broker is too old for the plugin"),
        ("5.2.0", "offsetAdapterAck=sync", "need RocketMQ 5.3.2 or newer"),
        ("5.3.3", "offsetAdapterAck=synk", "offsetAdapterAck: 'synk' is not async or sync"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(root: Path, version: str, lines: str, says: str) -> None:
    """A broker that is told to use the adapter and cannot ends at once, with the reason; it never runs without it unnoticed."""
    broker = Broker(root, "127.0.0.1:1", f"offsetAdapterAddress=127.0.0.1:1\n{lines}", version)
    broker.launch()
    assert broker.java is not None
    assert broker.java.process is not None
    assert broker.java.process.wait(120) != 0
    assert says in broker.output


def test_a_slave_commits_nothing_until_it_acts_as_master(root: Path) -> None:
    """The master of a pair commits. A slave that acts for a killed master begins where the adapter stands, and commits then."""
    acting = "enableSlaveActingMaster=true\nenableRemoteEscape=false\nskipPreOnline=true\n"
    with cluster(root, SYNC + acting) as running:
        other = adapter_process(root / "t", running.meta.address)
        slave = Broker(
            root, running.broker.namesrv, f"offsetAdapterAddress=unix:{other.socket}\n{acting}", name="slave", broker_id=1
        )
        running.brokers.append(slave)
        try:
            other.start()
            _prepare(running, 200)
            _commit(running, 50)
            slave.start()
            assert "compared with the adapter" not in slave.output
            wait_for(
                lambda: (
                    (slave.store / "config/topics.json").exists() and TOPIC in (slave.store / "config/topics.json").read_text()
                ),
                "copied",
            )
            _commit(running, 100)
            running.cli("flush")
            running.broker.kill()
            assert slave.java is not None
            slave.java.wait_line("promoted, so the adapter stands")
            clients = type(running.clients)(root, slave.namesrv, slave.address)
            try:
                assert {queue: clients.query(GROUP, TOPIC, queue) for queue in range(QUEUES)} == dict.fromkeys(range(QUEUES), 100)
                clients.do("commit", GROUP, TOPIC, 0, 110)
                wait_for(lambda: positions(other, GROUP)[_shard(0)][1] == 110, "the acting master commits")
            finally:
                clients.close()
        finally:
            other.kill()


def test_a_stopped_sidecar_does_not_hold_up_the_end_of_a_broker(root: Path) -> None:
    """SIGTERM of a broker whose sidecar is frozen ends it all the same."""
    with cluster(root) as running:
        _prepare(running, 100)
        _commit(running, 10)
        _wait_adapter(running, _all(10))
        running.adapter.freeze()
        try:
            _commit(running, 20)
            running.broker.stop()
        finally:
            running.adapter.thaw()
        running.broker.start()
        assert _at_broker(running) == dict.fromkeys(range(QUEUES), 20)
        _wait_adapter(running, _all(20))


@pytest.mark.parametrize(("version", "kind"), [("5.5.0", ""), ("5.5.0", "configManagerVersion=v2\n")], ids=["json", "v2"])
def test_what_nobody_deleted_or_made_is_no_change_in_the_adapter(root: Path, version: str, kind: str) -> None:
    """A query that makes the broker forget a group (apache/rocketmq 10987), and the phantom of a reset at V2; a delete is one."""
    with cluster(root, kind, version=version) as running:
        _prepare(running, 100)
        _commit(running, 50)
        _wait_adapter(running, _all(50))

        async def query() -> None:
            async with connected(RocketmqSection(broker=running.broker.address, timeout_ms=30_000), None) as broker:
                await broker._connection.call(308, {"topic": TOPIC, "compareGroup": "", "filterGroups": GROUP})

        anyio.run(query)
        wait_for(lambda: running.status()["offsetAdapterForgotten"] == str(QUEUES), "the plugin saw it")
        assert running.offsets(GROUP) == _all(50)
        assert _at_broker(running) == dict.fromkeys(range(QUEUES), 50)
        reset = ("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-q", 0, "-o", 7, "-s", "now", "-b", running.broker.address)
        running.clients.mqadmin(*reset)
        _wait_adapter(running, _all(50) | {_shard(0): 7})
        running.broker.stop()
        running.broker.start()  # compares all that its table lists, also what only its store had
        _wait_adapter(running, _all(50) | {_shard(0): 7})
        assert running.offsets(TOPIC) == {}
        running.clients.mqadmin("deleteSubGroup", "-b", running.broker.address, "-g", GROUP, "-r", "true")
        _wait_adapter(running, {})

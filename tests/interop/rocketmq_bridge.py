"""The bridge beside real RocketMQ brokers, with real clients and mqadmin. `make interop` runs it: RocketMQ's jars are needed."""

import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from adapter.rocketmq.broker import Broker, connected
from adapter.rocketmq.config import RocketmqSection
from adapter.rocketmq.errors import BrokerUnreachableError
from adapter.testing.waiting import PATIENCE_S
from demo.rocketmq.designs import design_of
from demo.rocketmq.lab import CLUSTER, Lab, Offsets, noted
from demo.rocketmq.rounds import Kind, play

pytestmark = pytest.mark.timeout(1_200)

R = TypeVar("R")
Kinds = Sequence[tuple[str, str]]

PATIENT_S = 3 * PATIENCE_S  # a JVM has to start meanwhile, beside others
PLAIN_ACL = """globalWhiteRemoteAddresses: []
accounts:
- accessKey: adapter
  secretKey: '12345678'
  admin: true
"""


ACL_2 = """authenticationEnabled=true
authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
initAuthenticationUser={"username":"adapter","password":"12345678"}
innerClientAuthenticationCredentials={"accessKey":"adapter","secretKey":"12345678"}
"""


def lab(version: str = "5.3.3", settings: str = "", adapter: str = "") -> AbstractContextManager[Lab]:
    """A broker of this version with the bridge beside it; not started."""
    return Lab.open(design_of("bridge"), version, settings, adapter)


def until(condition: Callable[[], bool], here: Lab, what: str) -> None:
    """Wait for something in other processes."""
    deadline = time.monotonic() + PATIENT_S
    while not condition():
        assert time.monotonic() < deadline, f"still not so: {what}\n{here.adapter.log[-3_000:] if here.adapter else ''}"
        time.sleep(0.2)


def stored(here: Lab, group: str, topic: str = "T") -> Offsets:
    """The group's offsets in the adapter: queue -> offset."""
    rows = json.loads(here.cli("get", group, "--json").stdout or "[]")
    prefix = f"broker-a/{topic}/"
    return {int(row["shard"].removeprefix(prefix)): int(row["offset"]) for row in rows if row["shard"].startswith(prefix)}


def commit(here: Lab, group: str, *offsets: int, topic: str = "T") -> None:
    """Acknowledged commits of queues 0, 1, ..."""
    for queue, offset in enumerate(offsets):
        here.ask("update", group, topic, queue, offset)


@pytest.mark.parametrize("version", ["5.3.3", "4.9.7"])
def test_kills_lose_no_message(version: str) -> None:
    """Broker, both, file, disk, another disk: all is delivered, and only what was not given back is delivered again."""
    with lab(version) as here:
        kinds = [Kind.BROKER, Kind.BOTH, Kind.FILE, Kind.DISK, Kind.MOVED]
        for cost in play(here, kinds, random.Random(7), messages=20_000):
            assert cost.never == 0, cost
            if cost.kind in {Kind.FILE, Kind.DISK}:
                assert cost.lost < cost.acknowledged, cost
                assert cost.again < cost.handled, cost


LIGHT, LIGHT_GROUP = "%LMQ%q", "%LMQ%c"
LMQ = "enableLmq=true\nenableMultiDispatch=true\n"
SINGLE = "storeType=defaultRocksDB\nuseSingleRocksDBForAllConfigs=true"
WAYS = {"json": "", "v1": "storeType=defaultRocksDB", "v2": "configManagerVersion=v2", "single": SINGLE}
KINDS = (("g", "T"), ("g", LIGHT), (LIGHT_GROUP, "T"), (LIGHT_GROUP, LIGHT))  # group and topic, each light or not
PLAIN = KINDS[:1]


def at_broker(here: Lab, work: Callable[[Broker], Awaitable[R]]) -> R:
    """Ask the broker on a connection of our own. One that is not reachable yet is asked again."""

    async def ask() -> R:
        async with connected(RocketmqSection(broker=here.broker_address, timeout_ms=30_000), None) as broker:
            return await work(broker)

    deadline = time.monotonic() + PATIENT_S
    while True:
        try:
            return anyio.run(ask)
        except BrokerUnreachableError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def commit_kinds(here: Lab, offset: int, kinds: Kinds = KINDS) -> None:
    """Acknowledged commits of queue 0, the next offset for each of the kinds."""

    async def work(broker: Broker) -> None:
        for number, (group, topic) in enumerate(kinds):
            if not group.startswith("%LMQ%"):
                await broker.create_group(group)
            await broker.update_offset(group, topic, 0, offset + number)

    at_broker(here, work)


def kinds_at_broker(here: Lab, kinds: Kinds = KINDS) -> list[int | None]:
    """What the broker answers for them. One before 5.0 answers consumers alone."""

    async def work(broker: Broker) -> list[int | None]:
        return [await broker.offset(group, topic, 0) for group, topic in kinds]

    return at_broker(here, work)


def kinds_here(here: Lab, kinds: Kinds = KINDS) -> list[int | None]:
    """What the adapter has of them."""
    return [stored(here, group, topic).get(0) for group, topic in kinds]


def both_have(here: Lab, offset: int, kinds: Kinds = KINDS) -> None:
    """Wait until the adapter and the broker have the offsets of `commit_kinds`."""
    wanted = [offset + number for number in range(len(kinds))]
    until(lambda: kinds_here(here, kinds) == wanted, here, f"the adapter has {wanted}: {kinds_here(here, kinds)}")
    until(lambda: kinds_at_broker(here, kinds) == wanted, here, f"the broker has {wanted}: {kinds_at_broker(here, kinds)}")


def restart(here: Lab, settings: str | None = None) -> None:
    """Kill the broker, and start it, also with another way to keep offsets; topics and groups are part of that."""
    here.kill_broker()
    if settings is not None:
        here.settings = settings
    here.start_broker()
    make = ("updateTopic", "-b", here.broker_address, "-t", "T", "-r", "4", "-w", "4")
    until(lambda: "success" in here.mqadmin(*make), here, "the topic is there")


def import_store(here: Lab) -> None:
    """The broker's own store V2, whose light queues nothing else tells."""
    done = here.cli("import", here.config / "rdb", "--broker", "broker-a", "--execute")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", ["5.5.0", "5.3.3"])
def test_every_way_in_which_a_broker_keeps_offsets_is_given_back(version: str, way: str) -> None:
    """Light groups, light topics, both, neither: followed, over restarts and kills of either side, and given back when lost."""
    if (version, way) == ("5.3.3", "single"):
        pytest.skip("the single store came with 5.4")
    with lab(version, LMQ + WAYS[way]) as here:
        here.start_broker()
        here.ask("send", "T", 400)
        here.ask("send", "T", 100, LIGHT)
        commit_kinds(here, 10)
        if way == "v2":
            import_store(here)
        both_have(here, 10)
        commit_kinds(here, 20)
        both_have(here, 20)
        here.kill_adapter()
        commit_kinds(here, 30)
        here.start_adapter()
        both_have(here, 30)
        restart(here)
        both_have(here, 30)
        here.kill_adapter()
        commit_kinds(here, 40)
        time.sleep(6)  # the broker writes its file every 5 s
        here.kill_broker()
        here.start_adapter()
        restart(here)
        both_have(here, 40)
        here.kill_broker()
        here.lose_offsets()
        restart(here)
        both_have(here, 40)
        commit_kinds(here, 50)
        both_have(here, 50)


def test_no_change_of_the_way_in_which_a_broker_keeps_offsets_takes_any_back() -> None:
    """From each to each, with commits in between; what the next way has on its disk is old, or nothing."""
    walk = ["json", "v1", "v2", "json", "single", "v1", "single", "v2", "single", "json", "v2", "v1", "json"]
    assert len(set(itertools.pairwise(walk))) == len(WAYS) * (len(WAYS) - 1)
    with lab("5.5.0", LMQ + WAYS[walk[0]]) as here:
        here.start_broker()
        here.ask("send", "T", 400)
        here.ask("send", "T", 100, LIGHT)
        commit_kinds(here, 5)
        both_have(here, 5)
        for step, way in enumerate(walk[1:], start=1):
            restart(here, LMQ + WAYS[way])
            both_have(here, 5 * step)
            commit_kinds(here, 5 * step + 5)
            both_have(here, 5 * step + 5)


@pytest.mark.parametrize("version", ["4.9.7"])
def test_light_groups_of_4_9_are_given_back(version: str) -> None:
    """Its table tells all of them."""
    with lab(version, LMQ) as here:
        here.start_broker()
        here.ask("send", "T", 400)
        commit(here, "g", 11, 12, 13, 14)
        until(lambda: stored(here, "g") == {0: 11, 1: 12, 2: 13, 3: 14}, here, "the commits are here")
        here.kill_broker()
        here.lose_offsets()
        here.start_broker()
        until(lambda: here.query("g", "T") == {0: 11, 1: 12, 2: 13, 3: 14}, here, "they are given back")


@pytest.mark.parametrize("way", ["json", "v2"])
def test_a_query_that_makes_the_broker_forget_a_group_deletes_nothing(way: str) -> None:
    """QueryCorrectionOffset with filterGroups (apache/rocketmq 10987); mqadmin's delete of the group is one."""
    with lab("5.5.0", WAYS[way]) as here:
        here.start_broker()
        here.ask("send", "T", 400)
        commit_kinds(here, 50, PLAIN)
        both_have(here, 50, PLAIN)

        async def query(broker: Broker) -> None:
            await broker._connection.call(308, {"topic": "T", "compareGroup": "", "filterGroups": "g"})

        at_broker(here, query)
        assert kinds_at_broker(here, PLAIN) == [None]
        both_have(here, 50, PLAIN)
        assert here.adapter
        assert "rocketmq.forgotten" in here.adapter.log
        here.mqadmin("deleteSubGroup", "-c", CLUSTER, "-g", "g", "-r", "true")
        until(lambda: not stored(here, "g"), here, "the delete is here")


def groups_here(here: Lab) -> list[str]:
    """The groups of which the adapter has offsets."""
    return [row["group"] for row in json.loads(here.cli("groups", "list", "--json").stdout)]


def test_the_phantom_of_a_reset_at_v2_is_no_group() -> None:
    """On the wire at once, and for ever on its disk, under swapped names."""
    with lab("5.5.0", LMQ + WAYS["v2"]) as here:
        here.start_broker()
        here.ask("send", "T", 400)
        commit_kinds(here, 50, PLAIN)
        both_have(here, 50, PLAIN)
        here.mqadmin("resetOffsetByTime", "-g", "g", "-t", "T", "-q", "0", "-o", "7", "-s", "now", "-b", here.broker_address)
        until(lambda: kinds_here(here, PLAIN) == [7], here, "the reset is here")
        until(lambda: "rocketmq.phantom" in (here.adapter.log if here.adapter else ""), here, "the phantom was seen")
        for _ in range(2):
            restart(here)
            here.kill_adapter()
            here.start_adapter()
            both_have(here, 7, PLAIN)
            assert groups_here(here) == ["g"], here.adapter.log if here.adapter else ""
            import_store(here)
            assert groups_here(here) == ["g"]


def test_mqadmin_is_seen_as_what_it_does() -> None:
    """Resets by time and to an offset, a clone, the deletes of a group and of a topic; and a kill right after a reset."""
    with lab() as here:
        here.start_broker()
        here.ask("send", "T", 400)
        commit(here, "g", 50, 50, 50, 50)
        until(lambda: stored(here, "g") == dict.fromkeys(range(4), 50), here, "the commits are here")
        here.mqadmin("resetOffsetByTime", "-g", "g", "-t", "T", "-s", "0")
        until(lambda: stored(here, "g") == dict.fromkeys(range(4), 0), here, "the reset by time is here")
        here.kill_broker()
        here.start_broker()
        until(lambda: here.query("g", "T") == dict.fromkeys(range(4), 0), here, "the reset holds at the broker")
        assert stored(here, "g") == dict.fromkeys(range(4), 0)
        here.mqadmin("resetOffsetByTime", "-g", "g", "-t", "T", "-q", "1", "-o", "7", "-s", "now", "-b", here.broker_address)
        until(lambda: stored(here, "g").get(1) == 7, here, "the reset of a queue is here")
        here.mqadmin("updateSubGroup", "-c", CLUSTER, "-g", "copy")
        here.mqadmin("cloneGroupOffset", "-s", "g", "-d", "copy", "-t", "T", "-o", "true")
        until(lambda: stored(here, "copy") == stored(here, "g") != {}, here, "the clone is here")
        here.mqadmin("updateTopic", "-c", CLUSTER, "-t", "T", "-r", "2", "-w", "2")
        assert set(stored(here, "g")) == {0, 1, 2, 3}
        here.mqadmin("deleteSubGroup", "-c", CLUSTER, "-g", "copy", "-r", "true")
        until(lambda: not stored(here, "copy"), here, "the delete of the group is here")
        assert stored(here, "g")
        here.mqadmin("deleteTopic", "-c", CLUSTER, "-t", "T")
        until(lambda: not stored(here, "g"), here, "the delete of the topic is here")


def test_a_reset_at_the_adapter_moves_a_consumer_that_is_online() -> None:
    """One queue of four, back; the consumer handles its messages again, and those of no other queue."""
    with lab() as here:
        here.start_broker()
        here.ask("send", "T", 400)
        handled = here.directory / "handled"
        here.start_consumer("g", "T", handled, 0.0, 1_000)
        until(lambda: stored(here, "g") == dict.fromkeys(range(4), 100), here, "the consumer has handled and committed all")
        before = len(noted(handled))
        done = here.cli("offsets", "reset", "g", "broker-a/T/1", "--to-offset", "10", "--execute")
        assert done.returncode == 0, done.stdout + done.stderr
        again = [(1, offset) for offset in range(10, 100)]
        until(lambda: set(again) <= set(noted(handled)[before:]), here, "they are handled again")
        until(lambda: stored(here, "g").get(1) == 100, here, "and committed again")
        assert {queue for queue, _ in noted(handled)[before:]} == {1}
        described = json.loads(here.cli("groups", "describe", "g", "--json").stdout)
        assert "100" in json.dumps(described)


def test_resets_by_time_and_lag_come_from_the_broker() -> None:
    """SEARCH_OFFSET_BY_TIMESTAMP, GET_MIN_OFFSET and GET_MAX_OFFSET."""
    with lab() as here:
        here.start_broker()
        here.ask("send", "T", 400)
        commit(here, "g", 90, 90, 90, 90)
        until(lambda: len(stored(here, "g")) == 4, here, "the commits are here")
        time.sleep(1.1)
        between = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        time.sleep(1.1)
        here.ask("send", "T", 400)
        done = here.cli("offsets", "reset", "g", "--to-datetime", between, "--execute")
        assert done.returncode == 0, done.stdout + done.stderr
        until(lambda: here.query("g", "T") == dict.fromkeys(range(4), 100), here, "the broker has the offsets of that time")


@pytest.mark.parametrize(("version", "settings"), [("4.9.7", "aclEnable=true"), ("5.3.3", ACL_2)], ids=["acl", "acl-2.0"])
def test_a_broker_with_an_acl_is_followed_by_its_account(version: str, settings: str, tmp_path: Path) -> None:
    """Signed as RocketMQ's own clients sign; a wrong secret is told."""
    secret = tmp_path / "secret"
    secret.write_text("12345678\n")
    secret.chmod(0o600)
    acl = f"[rocketmq.acl]\naccess_key = 'adapter'\nsecret_key_file = '{secret}'\n"
    with lab(version, settings, acl) as here:
        (here.directory / "home/conf").mkdir(parents=True, exist_ok=True)
        (here.directory / "home/conf/plain_acl.yml").write_text(PLAIN_ACL)
        here.start_broker()
        assert here.adapter
        assert "rocketmq.following" in here.adapter.log
        here.kill_adapter()
        secret.write_text("87654321\n")
        here.start_adapter()
        adapter = here.adapter
        until(lambda: "check signature failed" in adapter.log.lower(), here, "the broker refuses the account")


def test_a_broker_has_the_bounds_of_its_own_queues_alone() -> None:
    """It answers 0 for what it does not have; whether a topic exists is asked apart."""

    async def ask(address: str) -> None:
        async with connected(RocketmqSection(broker=address), None) as broker:
            with anyio.fail_after(PATIENT_S):  # the broker's index of a queue follows its log
                while await broker.bounds("T", 0) != (0, 100):  # noqa: ASYNC110 - there is no event
                    await anyio.sleep(0.05)
            assert await broker.bounds("none", 0) == (0, 0)
            assert await broker.has_topic("T")
            assert not await broker.has_topic("none")
            assert not await broker.has_consumers("g")

    for version in ("5.3.3", "4.9.7"):
        with lab(version) as here:
            here.start_broker()
            here.ask("send", "T", 400)
            anyio.run(ask, here.broker_address)

"""`make console` and `make demo-alerts` as programs, and: everything that the console draws is what the commands answer."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest

from adapter.testing.waiting import PATIENCE_S
from demo.alerts import prometheus
from demo.cluster import DemoError
from demo.fleet.console import console_of
from demo.fleet.processes import Adapter, Fleet
from demo.fleet.scenario import SHOP, Way
from demo.fleet.visitor import Element, Visitor
from tests import forking
from tests.durability.machine import require

ROOT = Path(__file__).parents[2]
LIMIT_S = 240  # far above what anything here takes
NAMES = {"order-service", "order-history", "fraud-case-desk", "config-reloader"}  # beside one group of each way
MOVED = "order-history"  # one of its shards is on two adapters
AGE_S = 5.0  # ages grow while pages and commands are read
# Windows of a few seconds, so that all is judged soon.
QUICK = """
[lag]
interval_ms = 200
bounds_interval_ms = 500
window_points = 4
point_distance_ms = 500
"""

Json = dict[str, Any]


def _scenario() -> Any:
    groups = [group for group in SHOP.groups if group.way is not Way.STEADY or group.name in NAMES]
    return replace(SHOP, groups=groups, ill_after_s=6.0)


async def _answer(*words: str, accepted: Sequence[int] = (0,)) -> Any:
    """What a command answers in JSON."""
    done = await anyio.to_thread.run_sync(partial(forking.run, [*words, "--output", "json"], ROOT, os.environ, LIMIT_S))
    assert done.returncode in accepted, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)


class Answers:
    """What the commands answer of a whole fleet: by adapter's address, and merged as an operator would by hand."""

    def __init__(self) -> None:
        self.status: dict[str, Json] = {}
        self.listed: dict[str, list[Json]] = {}
        self.top: dict[str, list[Json]] = {}
        self.shards: dict[tuple[str, str], dict[str, tuple[str, Json]]] = {}  # group -> shard -> its adapter, its row
        self.members: dict[tuple[str, str, str], Json] = {}  # (adapter, namespace, group) -> what describes it
        self.meta: Json = {}

    @classmethod
    async def of(cls, fleet: Fleet) -> "Answers":
        """Ask."""
        found = cls()
        token = f"--token-file={fleet.token_file}"
        limiter = anyio.CapacityLimiter(3)

        async def ask(adapter: Adapter) -> None:
            async with limiter:
                at = adapter.process.tcp_address
                found.status[at] = await _answer("status", "--address", at, token)
                found.listed[at] = await _answer("groups", "list", "--address", at, token)
                found.top[at] = await _answer("top", "--once", "--address", at)
                for namespace in ("default", "staging"):
                    command = ("groups", "describe", "--all-groups", "--namespace", namespace, "--address", at, token)
                    for group in await _answer(*command):
                        found.describe(at, group)

        async with anyio.create_task_group() as tasks:
            for adapter in fleet.adapters:
                tasks.start_soon(ask, adapter)
        found.meta = await _answer("meta", "status", "--address", fleet.meta.address)
        return found

    def describe(self, address: str, group: Json) -> None:
        """Take an answer of `groups describe`. The larger (epoch, offset) is the newer one; then what was committed last."""
        key = group["namespace"], group["group"]
        self.members[(address, *key)] = group
        rows = self.shards.setdefault(key, {})
        for shard in group["shards"]:
            if "live" in shard:
                known = rows.get(shard["shard"])
                if known is None or _newness(shard["live"]) > _newness(known[1]["live"]):
                    rows[shard["shard"]] = (address, shard)

    def sums(self, key: tuple[str, str]) -> Json:
        """The sums of a group over all adapters."""
        live = [shard["live"] for _, shard in self.shards[key].values()]
        order = ("ok", "warn", "rewind", "stall", "stop")
        known = [row["status"] for row in live if row["status"] in order]
        return {
            "status": max(known, key=order.index, default="unknown"),
            "lag": sum(row["lag"] for row in live if "lag" in row) if any("lag" in row for row in live) else None,
            "lost": sum(row["lost"] for row in live),
            "lag_seconds": max((row["lag_seconds"] for row in live if "lag_seconds" in row), default=None),
            "shards": len(live),
            "last_commit_at_ms": max(row["committed_at_ms"] for row in live),
        }

    def at_rest(self) -> object:
        """All that must not change while nothing happens."""
        return (
            {at: (row["state"], row["dirty_keys"], row["unsynced_writes"], row["commits"]) for at, row in self.status.items()},
            {key: {shard: _rest(row["live"]) for shard, (_, row) in rows.items()} for key, rows in self.shards.items()},
        )


def _newness(live: Json) -> tuple[int, int, int, int]:
    return live["epoch"], live["offset"], live["committed_at_ms"], live["bounds_at_ms"]


def _rest(live: Json) -> object:
    always = [live[name] for name in ("epoch", "offset", "committed_at_ms", "status", "lost")]
    return always + [live.get(name) for name in ("lag", "low_watermark", "high_watermark")]


@asynccontextmanager
async def _fleet_at_rest(directory: Path) -> AsyncIterator[tuple[Fleet, Visitor]]:
    """A fleet whose groups do all that groups do, which has then been frozen; and a person at its console."""
    async with Fleet.open(directory, _scenario(), extra=QUICK) as fleet:
        with console_of(fleet) as console:
            await fleet.start()
            await console.start()
            async with anyio.create_task_group() as tasks, Visitor.login(console.address, console.view_token) as visitor:
                await tasks.start(fleet.load.run)
                await _until_all_is_judged(visitor)
                await fleet.reset(next(fleet.load.scenario.of(Way.RESET)))
                await _leave_one_behind(fleet)
                await fleet.load.freeze()
                yield fleet, visitor
                tasks.cancel_scope.cancel()


async def _leave_one_behind(fleet: Fleet) -> None:
    """A shard that is on two adapters: committed through another one, as before its broker changed, and since then by its own."""
    here, there = fleet.load.brokers[:2]
    moved = next(consumer for consumer in here.consumers if consumer.key.group == MOVED)
    before = here.acknowledged[moved.key] + 1
    await there.client.commit(MOVED, {moved.key.shard: before}, namespace=moved.key.namespace)
    with anyio.fail_after(PATIENCE_S):
        while here.acknowledged[moved.key] <= before:  # noqa: ASYNC110 - the load has no event for it
            await anyio.sleep(0.05)


async def _until_all_is_judged(visitor: Visitor) -> None:
    """Wait until a group stalls, one has stopped, and one falls behind."""
    with anyio.fail_after(2 * PATIENCE_S):
        while True:
            statuses = {row["status"] for row in (await visitor.json("/groups", size="1000"))["groups"]}
            if {"stall", "stop", "warn"} <= statuses:
                return
            await anyio.sleep(0.2)


def _cell(row: Element, field: str) -> Element:
    return row.one("", **{"data-field": field})


def _value(row: Element, field: str) -> str:
    return _cell(row, field).attributes["data-value"]


def _drawn(value: float | None) -> str:
    """A number as it has to be drawn."""
    return "\N{EN DASH}" if value is None else f"{value:,.0f}"


def _assert_number(row: Element, field: str, expected: float | None) -> None:
    """The value of a cell, and the text that a person sees."""
    assert _value(row, field) == ("" if expected is None else str(expected)), (field, row.text)
    assert _cell(row, field).text.split()[0] == _drawn(expected), (field, row.text)


def _assert_age(row: Element, field: str, before: float | None, after: float | None) -> None:
    """The same of seconds, which go on while pages and commands are read: between what was answered before and afterwards."""
    shown = _value(row, field)
    if before is None or after is None:
        assert shown == "", (field, row.text)
    else:
        assert min(before, after) - AGE_S <= float(shown) <= max(before, after) + AGE_S, (field, row.text)


def _compare_fleet(page: Element, before: Answers, answers: Answers, fleet: Fleet) -> None:
    """The fleet page against `status`, `top`, `meta status`."""
    for at, status in answers.status.items():
        row = page.one("tr", **{"data-address": at})
        assert _cell(row, "name").text == next(adapter.name for adapter in fleet.adapters if adapter.process.tcp_address == at)
        assert _value(row, "health") == status["state"].lower() == _cell(row, "health").text.split()[0]
        for field in ("dirty_keys", "unsynced_writes"):
            _assert_number(row, field, status[field])
        _assert_age(row, "oldest_dirty_seconds", before.status[at]["oldest_dirty_seconds"], status["oldest_dirty_seconds"])
        assert float(_value(row, "last_flush_seconds")) == status["last_flush_seconds"]
        assert _value(row, "version") == status["version"] == _cell(row, "version").text
        assert _value(row, "config") == status["config"]["sha256"]
        assert _cell(row, "config").text.split()[0] == status["config"]["sha256"][:12]
        _assert_number(row, "groups", len(answers.top[at]))
        assert ("loss" in status) == (_cell(row, "loss").text != "none known")
    instance = page.one("tr", **{"data-address": fleet.meta.address})
    assert _value(instance, "state") == "answers"
    assert _value(instance, "version") == answers.meta["version"]
    summary = page.one("", id="group-summary")
    sums = {key: answers.sums(key) for key in answers.shards}
    _assert_number(summary, "matching", len(sums))
    assert _value(summary, "lag") == str(sum(row["lag"] or 0 for row in sums.values()))
    for word in ("ok", "warn", "rewind", "stall", "stop", "unknown"):
        _assert_number(summary, f"status-{word}", sum(row["status"] == word for row in sums.values()))


def _compare_groups(page: Element, before: Answers, answers: Answers) -> None:
    """The page of groups against the sums of what `groups describe` says of each adapter's shards."""
    rows = {
        (row.attributes["data-namespace"], row.attributes["data-group"]): row
        for row in page.all("tr")
        if "data-group" in row.attributes
    }
    assert (
        rows.keys() == answers.shards.keys() == {(row["namespace"], row["group"]) for top in answers.top.values() for row in top}
    )
    for key, row in rows.items():
        expected = answers.sums(key)
        assert row.one("a").text == key[1]
        assert _value(row, "status") == expected["status"]
        assert _cell(row, "status").text.split()[-1] == expected["status"].upper()
        _assert_number(row, "lag", expected["lag"])
        assert (f"{expected['lost']:,} lost" in _cell(row, "lag").text) == bool(expected["lost"])
        _assert_age(row, "lag_seconds", before.sums(key)["lag_seconds"], expected["lag_seconds"])
        _assert_number(row, "shards", expected["shards"])
        assert _value(row, "last_commit_at_ms") == str(expected["last_commit_at_ms"])


def _compare_group(page: Element, key: tuple[str, str], before: Answers, answers: Answers, names: Mapping[str, str]) -> None:
    """The page of a group against `groups describe`, shard by shard."""
    sums, expected = page.one("", id="group-sums"), answers.sums(key)
    assert _value(sums, "status") == expected["status"]
    _assert_number(sums, "lag", expected["lag"])
    _assert_age(sums, "lag_seconds", before.sums(key)["lag_seconds"], expected["lag_seconds"])
    rows = {row.attributes["data-shard"]: row for row in page.all("tr") if "data-shard" in row.attributes}
    assert rows.keys() == answers.shards[key].keys()
    for name, row in rows.items():
        address, shard = answers.shards[key][name]
        live = shard["live"]
        assert _value(row, "status") == live["status"]
        for field, value in (
            ("offset", live["offset"]),
            ("epoch", live["epoch"]),
            ("low", live.get("low_watermark")),
            ("high", live.get("high_watermark")),
            ("lag", live.get("lag")),
        ):
            _assert_number(row, field, value)
        earlier = before.shards[key][name][1]["live"]
        _assert_age(row, "lag_seconds", earlier.get("lag_seconds"), live.get("lag_seconds"))
        assert _value(row, "committed_at_ms") == str(live["committed_at_ms"])
        assert (_value(row, "adapter"), _cell(row, "adapter").text.split()[0]) == (address, names[address])
        assert (shard["local"]["epoch"], shard["local"]["offset"]) == (live["epoch"], live["offset"])
        assert ("dirty" in _cell(row, "notes").text.split()) == bool(shard["dirty"])
        assert ("held" in _cell(row, "notes").text.split()) == ("held_until_ms" in shard)
    for item in page.one("", id="group-sums").all("li"):
        described = answers.members[(item.attributes["data-adapter"], *key)]
        if described.get("member_id"):
            assert _cell(item, "member_id").text == described["member_id"]
            assert _cell(item, "generation").text == _drawn(described["generation"])


def _compare_adapters(answers: Answers) -> None:
    """`top`, `groups list` and `groups describe` of one adapter agree with each other."""
    for at, top in answers.top.items():
        listed = {(row["namespace"], row["group"]): row for row in answers.listed[at]}
        for row in top:
            key = row["namespace"], row["group"]
            live = answers.members[(at, *key)]["live"]
            assert (row["status"], row.get("lag"), row["lost"]) == (live["status"], live.get("lag"), live["lost"])
            assert (listed[key]["status"], listed[key].get("lag")) == (row["status"], row.get("lag"))
            assert row["shards"] == len([shard for shard in answers.members[(at, *key)]["shards"] if "live" in shard])


@pytest.mark.release  # what pages draw of given answers is also in tests/unit/console, tests/integration and tests/browser
async def test_everything_that_is_drawn_equals_what_the_commands_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    """At rest: each number of the pages fleet, groups and group, as it is seen; ages may differ by seconds."""
    directory = tmp_path_factory.mktemp("f")
    async with _fleet_at_rest(directory) as (fleet, visitor):
        names = {adapter.process.tcp_address: adapter.name for adapter in fleet.adapters}
        before = await Answers.of(fleet)
        with anyio.fail_after(LIMIT_S):
            while True:
                pages = await visitor.page("/"), await visitor.page("/groups", size="1000")
                of_group = {key: await visitor.page("/group", namespace=key[0], group=key[1]) for key in before.shards}
                after = await Answers.of(fleet)
                if before.at_rest() == after.at_rest():
                    break
                before = after  # a verdict was still due: a group that is at rest has stopped
        _compare_adapters(after)
        _compare_fleet(pages[0], before, after, fleet)
        _compare_groups(pages[1], before, after)
        for key, page in of_group.items():
            _compare_group(page, key, before, after, names)
        keys = {group.key: group for group in fleet.load.scenario.groups}
        assert after.shards.keys() == keys.keys()
        acknowledged = {key: offset for broker in fleet.load.brokers for key, offset in broker.acknowledged.items()}
        reset = next(fleet.load.scenario.of(Way.RESET))
        for at, offset in acknowledged.items():
            # Of the group that was reset, no consumer may have committed again.
            if (at.namespace, at.group) != reset.key:
                assert after.shards[at.namespace, at.group][at.shard][1]["live"]["offset"] == offset
        changed = of_group[reset.key]
        assert [item.attributes["data-kind"] for item in changed.one("", id="changes").all("li", **{"data-kind": "reset"})]
        assert any(row["lost"] for row in map(after.sums, after.shards))


async def test_pages_are_answered_while_an_adapter_hangs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Frozen by SIGSTOP: it is shown as away, its groups as not live, and no page fails."""
    async with _fleet_at_rest(tmp_path_factory.mktemp("f")) as (fleet, visitor):
        frozen = fleet.adapters[0]
        fleet.load.thaw()
        frozen.process.freeze()
        try:
            with anyio.fail_after(PATIENCE_S):
                while True:
                    page = await visitor.page("/")
                    for group in fleet.load.scenario.groups:
                        await visitor.page("/group", namespace=group.namespace, group=group.name)
                    if any(page.all("li", **{"data-kind": "adapter-away", "data-subject": frozen.name})):
                        break
            assert "not live" in (await visitor.page("/groups", size="1000")).text
        finally:
            frozen.process.thaw()


@contextmanager
def _program(directory: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A demo as a process whose temporary files are in `directory`; its children are killed if they outlive the test."""
    with subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(directory), "COLUMNS": "110"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


async def _shown(visitor: Visitor, group: str) -> None:
    """Wait until the page of groups has one; the console asks the adapters while it already answers."""
    with anyio.fail_after(LIMIT_S):
        while True:
            with suppress(DemoError):
                assert (await visitor.page("/groups", q=group)).one("a", class_="name").text == group
                return
            await anyio.sleep(0.2)


async def test_make_console_serves_pages_until_ctrl_c(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It prints the address and both tokens; the page answers with the load's groups; Ctrl-C frees processes, ports and files."""
    directory = tmp_path_factory.mktemp("c")
    with _program(directory, "demo.console") as process:
        assert process.stdout is not None
        said: dict[str, str] = {}
        for line in process.stdout:
            name, _, value = line.strip().partition(": ")
            said[name] = value.strip()
            if line.startswith("Ctrl-C"):
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 5
        address = said["The console"].rstrip("/")
        for token in ("to look", "to change"):
            async with Visitor.login(address, said[token]) as visitor:
                await _shown(visitor, "payment-reconciliation")
        with pytest.raises(DemoError, match="does not take the token"):
            async with Visitor.login(address, "not-a-token-at-all"):
                pass
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert errors == "Stopped: all processes have ended, their directory is removed.\n"
    assert not any(child.is_running() for child in children)
    assert list(directory.iterdir()) == []


def _prometheus() -> str:
    """Why there is no Prometheus."""
    try:
        prometheus.program()
    except DemoError as error:
        return str(error)
    return ""


@pytest.mark.release  # a Prometheus over processes that die is also in tests/monitoring/test_prometheus.py
def test_demo_alerts_measures_a_fault(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kill -9 of an adapter: the page shows it, the alert fires, both clear; nothing is left."""
    require("make demo-alerts", _prometheus)
    directory = tmp_path_factory.mktemp("p")
    with _program(directory, "demo.alerts", "--fault", "kill", "--quiet", "0") as process:
        output, errors = process.communicate(timeout=LIMIT_S)
    assert errors == ""
    row = next(line for line in output.splitlines() if "OffsetAdapterAway" in line and "broker-1" in line)
    figures = row.split("OffsetAdapterAway")[1].split()
    assert len(figures) == 5
    assert "never" not in figures
    assert process.returncode == 0 or "took" in output, output  # on a busy machine it may be late; then it says so
    assert list(directory.iterdir()) == []

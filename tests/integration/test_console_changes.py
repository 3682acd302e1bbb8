"""Changes through the console's forms, on adapters that run here: what was confirmed is what is done, and nothing else."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from structlog.testing import capture_logs

from adapter.client.broker_log import BrokerLogSection, GrpcBrokerLog
from adapter.client.client import OffsetClient
from adapter.console.changes import pages as module
from adapter.console.changes.run import Changer
from adapter.fleet.views import AdapterView, Health
from adapter.model.bounds import ShardKey
from adapter.model.records import CommitMode
from adapter.rpc import offsets_pb
from adapter.testing.broker_log import MemoryLog
from adapter.testing.broker_log import serving as serving_log
from adapter.testing.fake_meta import FakeMeta
from tests.integration.brokers import memory_log
from tests.integration.certificates import Authority
from tests.integration.helpers import serving
from tests.unit.console.consoles import ADMIN, VIEW, Browser, browsing, by_token, few, hidden, secret, settings_of
from tests.unit.console.fakes import FakeFleet

HOSTILE = '<b>"&\u202e{{7*7}}/\u00e4'


class Scene:
    """Adapters over one Meta Service, and an admin's browser at the console."""

    def __init__(self, browser: Browser, clients: Sequence[OffsetClient], fleet: FakeFleet, meta: FakeMeta) -> None:
        self.browser = browser
        self.clients = clients
        self.fleet = fleet
        self.meta = meta
        self.form_token = ""

    async def ask(self, group: str = "g", **fields: str) -> httpx.Response:
        """Send the form of a change; the answer is the page of the plan, or the form with what is wrong."""
        self.form_token = await self.browser.token_of("/change?group=g")
        answer = await self.browser.post("/change", {"form_token": self.form_token, "group": group, **fields})
        return await self.browser.get(answer.headers["location"]) if answer.status_code == 303 else answer

    async def confirm(self, plan: httpx.Response, name: str = "g") -> httpx.Response:
        """Confirm a plan; the answer is the page that one is led to."""
        fields = {
            "form_token": self.form_token,
            "id": hidden(plan.text, "id"),
            "seen": hidden(plan.text, "seen"),
            "confirm": name,
        }
        answer = await self.browser.post("/change/execute", fields)
        while answer.status_code == 303:
            answer = await self.browser.get(answer.headers["location"])
        return answer

    async def offsets(self, group: str = "g", at: int = 0) -> dict[str, int]:
        """The offsets of a group, at one of the adapters."""
        return {shard: row.offset for shard, row in (await self.clients[at].read(group)).items()}


@asynccontextmanager
async def scene(
    directory: Path, adapters: int = 1, away: Sequence[str] = (), log: MemoryLog | None = None
) -> AsyncIterator[Scene]:
    """Adapters in this process, with the broker's log if there is one, and a browser in which an admin is logged in."""
    meta = FakeMeta()
    async with AsyncExitStack() as stack:
        broker = None
        if log:
            section = BrokerLogSection(address=await stack.enter_async_context(serving_log(log)))
            broker = await stack.enter_async_context(GrpcBrokerLog.open(section))
        clients, addresses = [], []
        for at in range(adapters):
            own = directory / str(at)
            own.mkdir()
            sidecar, client = await stack.enter_async_context(serving(own, meta, broker_log=broker))
            clients.append(client)
            addresses.append(sidecar.addresses[-1])
        fleet = few(addresses, away)
        settings = settings_of(by_token(directory, changes=True))
        browser = await stack.enter_async_context(browsing(settings, fleet))
        assert (await browser.login(ADMIN)).status_code == 303
        yield Scene(browser, clients, fleet, meta)


async def test_a_reset_is_planned_confirmed_done_and_read_back(directory: Path) -> None:
    """The dry run changes nothing; the adapter's audit log and history have the person's name."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7, "b": 9})
        plan = await s.ask(kind="reset", to="offset", offset="3")
        assert plan.status_code == 200
        assert "2 of 2 offsets would be moved" in plan.text
        assert "stop its consumers first" in plan.text
        assert await s.offsets() == {"a": 7, "b": 9}
        with capture_logs() as lines:
            result = await s.confirm(plan)
        assert "<strong>Done.</strong> 2 offsets are as confirmed, and read back" in result.text
        assert await s.offsets() == {"a": 3, "b": 3}
        history = (await s.clients[0].admin.ListChanges(offsets_pb.ListChangesRequest())).changes
        assert [(change.kind, change.claimed) for change in history] == [("reset", "ann")]
    calls = [line for line in lines if line["event"] == "admin.call" and line["method"] == "ResetOffsets" and not line["dry_run"]]
    assert [line["claimed"] for line in calls] == ["ann"]
    audited = [(line["outcome"], line["person"], line["group"]) for line in lines if line["event"] == "console.change"]
    assert audited == [("begun", "ann", "g"), ("done", "ann", "g")]


@pytest.mark.parametrize("name", ["", "G", " g", "g ", "default/g", "other"])
async def test_another_name_confirms_nothing(directory: Path, name: str) -> None:
    """The page says so, and can be confirmed again."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7})
        plan = await s.ask(kind="reset", to="offset", offset="3")
        wrong = await s.confirm(plan, name)
        assert (wrong.status_code, "is not the name of the group" in wrong.text) == (400, True)
        assert await s.offsets() == {"a": 7}
        assert "Done." in (await s.confirm(wrong)).text
        assert await s.offsets() == {"a": 3}


async def test_a_clone_and_a_delete(directory: Path) -> None:
    """A clone is confirmed by the name of the group that gets the offsets."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7, "b": 9})
        plan = await s.ask(kind="clone", to_group="h", shards="a")
        assert "Clone g to h" in plan.text
        assert (await s.confirm(plan)).status_code == 400
        assert "Done." in (await s.confirm(plan, "h")).text
        assert await s.offsets("h") == {"a": 7}
        assert "Done." in (await s.confirm(await s.ask(kind="delete"))).text
        assert (await s.offsets(), await s.offsets("h")) == ({}, {"a": 7})


@pytest.mark.parametrize(
    ("fields", "after"),
    [
        ({"to": "shift", "shift": "-2"}, {"a": 5, "b": 7}),
        ({"to": "offset", "offset": "1", "shards": "b"}, {"a": 7, "b": 1}),
        ({"to": "offset", "offset": "4", "shards": "new", "create": "yes"}, {"a": 7, "b": 9, "new": 4}),
        ({"to": "file", "pasted": '{"format":"offsets"}'}, None),
        ({"to": "file", "pasted": ""}, None),
        ({"to": "file", "pasted": "t,0,x"}, None),
        ({"to": "earliest"}, None),
        ({"to": "time", "time": "yesterday"}, None),
        ({"to": "offset", "offset": "-1"}, None),
        ({"to": "offset", "offset": "1e3"}, None),
        ({"to": "offset", "offset": str(2**64)}, None),
        ({"to": "shift", "shift": "\u0663"}, None),
        ({"to": "nowhere"}, None),
        ({"to": "offset", "offset": "4", "shards": "new"}, None),
        ({"to": "offset", "offset": "4", "shards": "a\na"}, None),
        ({"to": "offset", "offset": "4", "shards": "x" * 256}, None),
        ({"to": "offset", "offset": "4", "group": "none"}, None),
    ],
)
async def test_targets_of_a_reset(directory: Path, fields: dict[str, str], after: dict[str, int] | None) -> None:
    """A bad one comes back with what is wrong, and with what was filled in; nothing is changed."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7, "b": 9})
        plan = await s.ask(kind="reset", **fields)
        if after is None:
            assert (plan.status_code, 'id="problem"' in plan.text) == (400, True)
        else:
            assert "Done." in (await s.confirm(plan)).text
        assert await s.offsets() == (after or {"a": 7, "b": 9})


async def test_a_file_sets_each_shard_to_its_own_offset(directory: Path) -> None:
    """As `offsets reset --from-file` reads it; sent as a browser sends files."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"t/0": 7, "t/1": 9})
        form_token = await s.browser.token_of("/change?group=g")
        fields = {"form_token": form_token, "group": "g", "kind": "reset", "to": "file"}
        upload = {"file": ("plan.csv", b"t,0,2\nt,1,20\n", "text/csv")}
        answer = await s.browser.client.post("/change", data=fields, files=upload, headers={"Origin": "http://127.0.0.1"})
        assert answer.status_code == 303, answer.text
        s.form_token = form_token
        result = await s.confirm(await s.browser.get(answer.headers["location"]))
        assert "Done." in result.text
        assert await s.offsets() == {"t/0": 2, "t/1": 20}


async def test_a_file_that_may_be_cut_is_said_so_before_it_is_confirmed(directory: Path) -> None:
    """Its last line has no line end. What was pasted has none as a rule, and is seen as it is."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"t/0": 7})
        form_token = await s.browser.token_of("/change?group=g")
        fields = {"form_token": form_token, "group": "g", "kind": "reset", "to": "file"}
        upload = {"file": ("plan.csv", b"t,0,1234", "text/csv")}
        answer = await s.browser.client.post("/change", data=fields, files=upload, headers={"Origin": "http://127.0.0.1"})
        plan = await s.browser.get(answer.headers["location"])
        assert "file.csv: line 1: has no line end: the file may be cut here (there stands t,0,1234)" in plan.text
        assert "no line end" not in (await s.ask(kind="reset", to="file", pasted="t,0,1234")).text


async def test_offsets_that_moved_without_effect_on_the_result_are_changed_as_confirmed(directory: Path) -> None:
    """A group that goes on committing can be reset to an offset."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7})
        plan = await s.ask(kind="reset", to="offset", offset="3")
        await s.clients[0].commit("g", {"a": 8})
        assert "Done." in (await s.confirm(plan)).text
        assert await s.offsets() == {"a": 3}


ENDS_MOVE = [
    ({"to": "latest"}, "at least 8", 10),
    ({"to": "earliest"}, "at least 2", 4),
    ({"to": "time", "time": "1970-01-01T00:00:09Z"}, "at least 8", 8),
    ({"to": "offset", "offset": "9"}, "8 to 9", 9),
    ({"to": "offset", "offset": "1"}, "at least 2", 4),
    ({"to": "shift", "shift": "100"}, "8 to 106", 10),
    ({"to": "shift", "shift": "-100"}, "at least 2", 4),
]


@pytest.mark.parametrize(("fields", "shown", "after"), ENDS_MOVE)
async def test_a_reset_to_a_target_that_moves_is_done_as_confirmed(
    directory: Path, fields: dict[str, str], shown: str, after: int
) -> None:
    """Messages come in and old ones go while a person reads the plan: the shard goes where the target is then."""
    log, shard = memory_log(a=[1] * 8), ShardKey("default", "a")
    log.trim(shard, 2)
    async with scene(directory, log=log) as s:
        await s.clients[0].commit("g", {"a": 6})
        plan = await s.ask(kind="reset", **fields)
        assert f'<td class="number">{shown}</td>' in plan.text
        assert 'id="moving"' in plan.text
        log.append(shard, 9_000, 9_001)
        log.trim(shard, 4)
        result = await s.confirm(plan)
        assert "Done." in result.text
        assert f'<td class="number">{shown}</td>\n<td class="number">{after}</td>' in result.text
        assert await s.offsets() == {"a": after}


@pytest.mark.parametrize(
    ("fields", "now"),
    [
        ({"to": "latest"}, "a would go to at least 3, and not to at least 8"),
        ({"to": "offset", "offset": "7"}, "a would go to 3 to 7, and not to 7"),
        ({"to": "shift", "shift": "100"}, "a would go to 3 to 106, and not to 8 to 106"),
    ],
)
async def test_a_log_that_was_made_anew_is_not_what_was_confirmed(directory: Path, fields: dict[str, str], now: str) -> None:
    """Its end is below the one that was shown. The page names the shard and both."""
    log, shard = memory_log(a=[1] * 8), ShardKey("default", "a")
    async with scene(directory, log=log) as s:
        await s.clients[0].commit("g", {"a": 6})
        plan = await s.ask(kind="reset", **fields)
        log.create(shard)
        log.append(shard, 1, 1, 1)
        anew = await s.confirm(plan)
        assert f"is not what you confirmed: {now}. Look again" in anew.text
        assert await s.offsets() == {"a": 6}
        assert "Done." in (await s.confirm(anew)).text
        assert await s.offsets() == {"a": 3}


async def test_an_offset_that_is_gone_before_it_is_confirmed_is_not_what_was_confirmed(directory: Path) -> None:
    """What was to be read is not there any more: a person decides again."""
    log, shard = memory_log(a=[1] * 8), ShardKey("default", "a")
    async with scene(directory, log=log) as s:
        await s.clients[0].commit("g", {"a": 6})
        plan = await s.ask(kind="reset", to="offset", offset="2")
        log.trim(shard, 4)
        assert "a would go to at least 4, and not to 2" in (await s.confirm(plan)).text
        assert await s.offsets() == {"a": 6}


async def test_a_group_that_goes_on_committing_can_be_cloned(directory: Path) -> None:
    """The clone begins where the group is when it is confirmed, and never before what was shown."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7})
        plan = await s.ask(kind="clone", to_group="h")
        await s.clients[0].commit("g", {"a": 9})
        assert "at least 7" in (result := (await s.confirm(plan, "h")).text)
        assert "Done." in result
        assert await s.offsets("h") == {"a": 9}
        plan = await s.ask(kind="clone", to_group="i")
        await s.clients[0].commit("g", {"a": 2}, mode=CommitMode.OVERWRITE)
        assert "a would go to at least 2, and not to at least 9" in (await s.confirm(plan, "i")).text
        assert await s.offsets("i") == {}


@pytest.mark.parametrize("what", ["commit", "reset", "shard"])
async def test_what_would_be_another_result_is_shown_instead_of_done(directory: Path, what: str) -> None:
    """Offsets moved, somebody reset the group, or it has another shard: the new dry run has to be confirmed by itself."""
    async with scene(directory) as s:
        client = s.clients[0]
        await client.commit("g", {"a": 7})
        plan = await s.ask(kind="reset", to="shift", shift="-2")
        if what == "reset":
            await client.admin.ResetOffsets(offsets_pb.ResetOffsetsRequest(group="g", to_offset=7, execute=True))
        else:
            await client.commit("g", {"a": 10} if what == "commit" else {"b": 50})
        before = await s.offsets()
        anew = await s.confirm(plan)
        assert "what would change now is not what you confirmed" in anew.text
        assert await s.offsets() == before
        # A second click on the old page confirms nothing that was not seen.
        assert (await s.confirm(plan)).status_code == 409
        assert await s.offsets() == before
        assert "Done." in (await s.confirm(anew)).text
        assert (await s.offsets())["a"] == before["a"] - 2


async def test_a_second_click_and_the_back_button_do_nothing_again(directory: Path) -> None:
    """At the same time, or later: each shows the one result. The plan's page leads there too."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7})
        plan = await s.ask(kind="reset", to="shift", shift="-1")
        with capture_logs() as lines:
            both = await asyncio.gather(s.confirm(plan), s.confirm(plan))
            again = await s.confirm(plan)
        assert [line["outcome"] for line in lines if line["event"] == "console.change"] == ["begun", "done"]
        assert all("Done." in page.text for page in (*both, again))
        assert await s.offsets() == {"a": 6}
        name = hidden(plan.text, "id")
        assert (await s.browser.get(f"/change/plan?id={name}")).headers["location"] == f"/change/result?id={name}"


async def test_a_change_goes_on_when_nobody_waits_for_it(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says that it is under way, and loads itself again."""
    monkeypatch.setattr(module, "WAIT_S", 0.0)
    go_on = asyncio.Event()
    execute = Changer.execute

    async def slow(*arguments: Any) -> Any:
        await go_on.wait()
        return await execute(*arguments)

    monkeypatch.setattr(Changer, "execute", slow)
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7})
        plan = await s.ask(kind="reset", to="offset", offset="3")
        waiting = await s.confirm(plan)
        assert "under way" in waiting.text
        assert waiting.headers["refresh"] == "2"
        go_on.set()
        url = f"/change/result?id={hidden(plan.text, 'id')}"
        while "under way" in (page := await s.browser.get(url)).text:  # noqa: ASYNC110 - as the browser does
            await asyncio.sleep(0.01)
        assert "Done." in page.text
        assert await s.offsets() == {"a": 3}


async def test_each_shard_is_changed_by_the_adapter_that_owns_it(directory: Path) -> None:
    """A group over two adapters is one change."""
    async with scene(directory, adapters=2) as s:
        await s.clients[0].commit("g", {"a": 7})
        await s.clients[1].commit("g", {"b": 9})
        for client in s.clients:
            await client.flush()
        plan = await s.ask(kind="reset", to="offset", offset="3")
        assert "2 of 2 offsets would be moved" in plan.text
        assert "Done." in (await s.confirm(plan)).text
        for at, shard in enumerate("ab"):
            (change,) = (await s.clients[at].admin.ListChanges(offsets_pb.ListChangesRequest())).changes
            assert [row.shard for row in change.rows] == [shard]
            assert (await s.offsets(at=at))[shard] == 3


async def test_an_adapter_that_fails_in_the_middle_is_shown_shard_by_shard(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done, what is unknown, where each offset is now, and what to do. Nothing is tried behind the first error."""
    async with scene(directory, adapters=3) as s:
        for client, shard in zip(s.clients, "abc", strict=True):
            await client.commit("g", {shard: 7})
            await client.flush()
        plan = await s.ask(kind="reset", to="offset", offset="3")
        order = [shard for _, shard in sorted(zip([view.address for view in s.fleet.adapters], "abc", strict=True))]
        calls = 0
        from adapter.console.changes.run import _Clients  # noqa: PLC0415

        change = _Clients.change

        async def failing(self: Any, address: str, request: Any, *, execute: bool) -> Any:
            nonlocal calls
            calls += execute
            if execute and calls == 2:
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone")
            return await change(self, address, request, execute=execute)

        monkeypatch.setattr(_Clients, "change", failing)
        result = (await s.confirm(plan)).text
        assert "Not complete." in result
        assert "UNAVAILABLE: gone" in result
        assert "finish it here" in result
        table = " ".join(result.partition('<table id="result">')[2].split())
        states = dict(zip(order, ("done", "unknown", "not tried"), strict=True))
        for shard, state in states.items():
            row = table.partition(f'<th scope="row" class="names">{shard}</th>')[2].partition("</tr>")[0]
            assert f">{state}</span>" in row
            assert f'<td class="number">{3 if state == "done" else 7}</td> <td class="names">' in row
        assert calls == 2
        assert "Done." in (await s.confirm(await s.ask(kind="reset", to="offset", offset="3"))).text


@pytest.mark.parametrize(
    ("fields", "confirmed", "after"),
    [
        ({"kind": "reset", "to": "shift", "shift": "-2"}, "g", [5, 5, 5]),
        ({"kind": "reset", "to": "offset", "offset": "3"}, "g", [3, 3, 3]),
        ({"kind": "delete"}, "g", []),
        ({"kind": "clone", "to_group": "h"}, "h", [7, 7, 7]),
    ],
)
async def test_half_a_change_is_finished_and_not_made_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], confirmed: str, after: list[int]
) -> None:
    """One shard is changed, of one the answer was lost, one was not tried: each is changed once."""
    async with scene(directory, adapters=3) as s:
        for client, shard in zip(s.clients, "abc", strict=True):
            await client.commit("g", {shard: 7})
            await client.flush()
        from adapter.console.changes.run import _Clients  # noqa: PLC0415

        change, calls = _Clients.change, 0

        async def failing(self: Any, address: str, request: Any, *, execute: bool) -> Any:
            nonlocal calls
            calls += execute
            reply = await change(self, address, request, execute=execute)
            if execute and calls == 2:
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "lost")
            return reply

        monkeypatch.setattr(_Clients, "change", failing)
        result = await s.confirm(await s.ask(**fields), confirmed)
        assert "of 1 the answer was lost" in result.text
        rest = {"form_token": s.form_token, "id": hidden(result.text, "id")}
        answer = await s.browser.post("/change/rest", rest)
        assert answer.status_code == 303, answer.text
        assert "Done." in (await s.confirm(await s.browser.get(answer.headers["location"]), confirmed)).text
        stands = {key.shard: record.offset for key, record in s.meta.records.items() if key.group == confirmed and record.live}
        assert stands == dict(zip("abc", after, strict=False))


async def test_a_refused_change_is_as_before(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says so."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7})
        plan = await s.ask(kind="reset", to="offset", offset="3")
        from adapter.console.changes.run import _Clients  # noqa: PLC0415

        change = _Clients.change

        async def refusing(self: Any, address: str, request: Any, *, execute: bool) -> Any:
            if execute:
                raise grpc.aio.AioRpcError(grpc.StatusCode.FAILED_PRECONDITION, grpc.aio.Metadata(), grpc.aio.Metadata(), "no")
            return await change(self, address, request, execute=execute)

        monkeypatch.setattr(_Clients, "change", refusing)
        result = (await s.confirm(plan)).text
        assert "1 were refused and are as before" in result
        assert await s.offsets() == {"a": 7}


async def test_an_adapter_that_is_away_is_said_and_the_others_are_changed(directory: Path) -> None:
    """None that answers: nothing can be planned."""
    async with scene(directory, away=["127.0.0.1:1"]) as s:
        await s.clients[0].commit("g", {"a": 7})
        plan = await s.ask(kind="reset", to="offset", offset="3")
        assert "127.0.0.1:1: is away: refused" in plan.text
        assert "Done." in (await s.confirm(plan)).text
        s.fleet.adapters = [view for view in s.fleet.adapters if view.address == "127.0.0.1:1"]
        none = await s.ask(kind="reset", to="offset", offset="3")
        assert (none.status_code, "no adapter answered, and nothing was changed" in none.text) == (400, True)


async def test_an_adapter_that_goes_away_between_plan_and_confirmation(directory: Path) -> None:
    """Nothing is changed, and the plan can be confirmed later."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7})
        plan = await s.ask(kind="reset", to="offset", offset="3")
        there = s.fleet.adapters
        s.fleet.adapters = []
        assert "Nothing was changed: no adapter answered" in (await s.confirm(plan)).text
        s.fleet.adapters = there
        assert "Done." in (await s.confirm(plan)).text


async def test_a_plan_of_another_session_or_none_is_not_known(directory: Path) -> None:
    """Not even for the same person; nothing is changed."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {"a": 7})
        plan = await s.ask(kind="reset", to="offset", offset="3")
        await s.browser.login(ADMIN)
        s.form_token = await s.browser.token_of("/change?group=g")
        lost = await s.confirm(plan)
        assert (lost.status_code, "is not known here" in lost.text) == (404, True)
        assert (await s.browser.get("/change/result?id=nothing")).status_code == 404
        assert await s.offsets() == {"a": 7}


async def test_names_are_shown_as_text_and_confirm_as_they_are_or_as_they_are_shown(directory: Path) -> None:
    """Whatever is in them."""
    async with scene(directory) as s:
        for typed in (HOSTILE, HOSTILE.replace("\u202e", "\\u{202e}")):
            await s.clients[0].commit(HOSTILE, {HOSTILE: 7}, check=False)
            plan = await s.ask(HOSTILE, kind="reset", to="offset", offset="3")
            assert "&lt;b&gt;" in plan.text
            assert "<b>" not in plan.text
            assert "\u202e" not in plan.text
            result = await s.confirm(plan, typed)
            assert "Done." in result.text
            assert "<b>" not in result.text
        assert await s.offsets(HOSTILE) == {HOSTILE: 3}


async def test_a_group_of_thousands_of_shards_is_changed_as_a_whole(directory: Path) -> None:
    """In pieces; the pages show the first thousand."""
    async with scene(directory) as s:
        await s.clients[0].commit("g", {f"s{at:05}": 7 for at in range(2_500)})
        plan = await s.ask(kind="reset", to="offset", offset="3")
        assert "the first 1,000 rows of 2,500" in plan.text
        assert "2,500 offsets are as confirmed" in (await s.confirm(plan)).text
        assert set((await s.offsets()).values()) == {3}
        (change,) = (await s.clients[0].admin.ListChanges(offsets_pb.ListChangesRequest())).changes[:1]
        assert change.shards == 500


@pytest.mark.parametrize(
    ("configured", "token", "problem"),
    [
        ("dns:localhost:1", ADMIN, ""),
        ("dns:other.example:1", ADMIN, "UNAVAILABLE"),
        ("dns:localhost:1", VIEW, "UNAUTHENTICATED"),
    ],
)
async def test_an_adapter_behind_tls_is_changed_with_its_token(
    directory: Path, configured: str, token: str, problem: str
) -> None:
    """Its certificate has to be for the name of the settings, not for the address that the name has now."""
    authority = Authority(directory)
    server = authority.issue("server")
    sections: dict[str, Any] = {
        "server": {"tls": {"cert": str(server.cert), "key": str(server.key)}},
        "admin": {"token_file": secret(directory, "adapter", ADMIN)},
    }
    (directory / "0").mkdir()
    async with serving(directory / "0", **sections) as (sidecar, client):
        await client.commit("g", {"a": 7})
        fleet = few()
        fleet.adapters = [AdapterView(sidecar.addresses[0], configured, Health.SERVING)]
        access = by_token(directory, changes=True, adapter_token_file=secret(directory, "mine", token))
        async with browsing(settings_of(access, fleet={"tls": {"ca": str(authority.cert)}}), fleet) as browser:
            await browser.login(ADMIN)
            s = Scene(browser, [client], fleet, FakeMeta())
            plan = await s.ask(kind="reset", to="offset", offset="3")
            if problem:
                assert (plan.status_code, problem in plan.text) == (400, True)
            else:
                assert "Done." in (await s.confirm(plan)).text
            assert await s.offsets() == {"a": 7 if problem else 3}


async def test_a_token_goes_to_no_other_machine_in_plaintext(directory: Path) -> None:
    """The error says what to do; nothing is sent."""
    fleet = few()
    fleet.adapters = [AdapterView("192.0.2.1:9520", "192.0.2.1:9520", Health.SERVING)]
    access = by_token(directory, changes=True, adapter_token_file=secret(directory, "mine", ADMIN))
    async with browsing(settings_of(access), fleet) as browser:
        await browser.login(ADMIN)
        plan = await Scene(browser, [], fleet, FakeMeta()).ask(kind="reset", to="offset", offset="3")
    assert (plan.status_code, "would go there in plaintext" in plan.text) == (400, True)

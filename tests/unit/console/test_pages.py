"""The reading pages: hostile names, paging, headers, what is unknown and what is away."""

from urllib.parse import parse_qs, urlsplit

import pytest

from adapter.console.access import guard
from adapter.console.config import ConsoleConfig, ConsoleServerSection
from adapter.console.sources import asking
from adapter.console.sources.meta_instances import RaftSituation
from adapter.console.views.groups import ORDERS, STATUS_WORDS
from adapter.fleet.views import AdapterView, GroupShards, Health
from adapter.rpc import lag_pb, offsets_pb
from tests.unit.console.fakes import (
    HOSTILE,
    NOW_MS,
    FakeCalls,
    FakeFleet,
    FakeMeta,
    Parsed,
    adapter_view,
    application,
    client_of,
    group_view,
    instance,
    shard_row,
)

PAGES = ("/", "/groups", "/group?group=g")


def fleet_of(*names: str) -> FakeFleet:
    """One adapter with groups."""
    return FakeFleet([adapter_view()], [group_view(name) for name in names])


@pytest.mark.parametrize("path", [*PAGES, "/nowhere", "/groups?order=bad", "/static/console.js", "/healthz"])
async def test_every_answer_has_the_security_headers(path: str) -> None:
    """Pages, errors, files: all of them."""
    async with client_of(application(fleet_of("g"))) as client:
        answer = await client.get(path)
    for name, value in guard.HEADERS:
        assert answer.headers[name] == value
    assert "unsafe-inline" not in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("path", PAGES)
async def test_pages_are_not_stored_and_have_no_inline_script_or_style(path: str) -> None:
    """What the policy forbids is not there: the browser would show a page without it."""
    async with client_of(application(fleet_of("g"))) as client:
        answer = await client.get(path)
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"
    page = Parsed(answer.text)
    assert all(script.get("src", "").startswith("/static/") for script in page.tags("script"))
    assert not page.tags("style")
    assert not [name for _, attributes in page.elements for name in attributes if name == "style" or name.startswith("on")]


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_name_is_text_wherever_it_is_shown(name: str) -> None:
    """The groups page, the group's own page behind the link there, and the names in them."""
    fleet = FakeFleet([adapter_view()], [group_view(name, status=lag_pb.STOP)])
    fleet.shards["default", name] = GroupShards(group_view(name), [shard_row(name)])
    async with client_of(application(fleet)) as client:
        start, groups = Parsed((await client.get("/")).text), Parsed((await client.get("/groups")).text)
        [row] = groups.having("data-group")
        assert row["data-group"] == name
        [link] = [found["href"] for found in groups.tags("a") if found.get("href", "").startswith("/group?")]
        assert parse_qs(urlsplit(link).query)["group"] == [name]
        answer = await client.get(link)
    assert answer.status_code == 200
    group = Parsed(answer.text)
    assert [shard["data-shard"] for shard in group.having("data-shard")] == [name]
    for page in (start, groups, group):
        assert len(page.tags("script")) == 1
        assert not page.tags("img")
        assert "49" not in page.text.replace("149", "")
        assert not set("\u202e\u200b\u0085").intersection(page.text)


async def test_a_name_of_an_adapter_a_member_and_a_person_is_text_too() -> None:
    """Whatever an adapter tells is shown and never executed."""
    evil = HOSTILE[0]
    view = AdapterView(
        "a:1", "a:1", Health.FAILED, broker=evil, version=evil, error=evil, status=offsets_pb.StatusReply(reason=evil)
    )
    fleet, calls = FakeFleet([view], [group_view("g")]), FakeCalls()
    shard = offsets_pb.DescribeGroupReply.Shard(shard="t/0", warning=evil, metadata=evil, topic=evil)
    calls.described["a:1"] = offsets_pb.DescribeGroupReply(shards=[shard], member_id=evil, remote_error=evil, bounds_error=evil)
    change = offsets_pb.ListChangesReply.Change(at_ms=NOW_MS, kind=evil, who=evil, claimed=evil, peer=evil, shards=1)
    calls.changed["a:1"] = offsets_pb.ListChangesReply(changes=[change])
    meta = FakeMeta([instance(engine=evil, version=evil)._replace(error=evil)], RaftSituation([], [evil], evil))
    async with client_of(application(fleet, meta, calls)) as client:
        for path in ("/", "/group?group=g"):
            answer = await client.get(path)
            assert answer.status_code == 200
            assert "<script>alert" not in answer.text
            assert evil in Parsed(answer.text).text


@pytest.mark.parametrize(("number", "word"), [*STATUS_WORDS.items()])
async def test_every_status_has_a_word_and_a_sign(number: int, word: str) -> None:
    """Nothing is told by colour alone."""
    async with client_of(application(FakeFleet([], [group_view("g", status=number)]))) as client:
        answer = await client.get("/groups")
    page = Parsed(answer.text)
    assert {"data-field": "status", "data-value": word} in page.tags("td")
    assert word.upper() in page.text
    assert 'aria-hidden="true"' in answer.text


async def test_a_page_is_asked_of_the_fleet_as_it_was_asked_for() -> None:
    """Namespace, status, order, size and offset go to the fleet; the console sorts nothing."""
    fleet = fleet_of("a")
    async with client_of(application(fleet)) as client:
        answer = await client.get("/groups?q=pay-*&namespace=n&at_least=stall&order=lag&size=100&offset=200")
        await client.get("/groups?q=pay")
    assert answer.status_code == 200
    wanted = lag_pb.LagFilter(namespace="n", pattern="pay-*", at_least=lag_pb.STALL)
    assert fleet.asked == [(wanted, lag_pb.LAG, 100, 200, ""), (lag_pb.LagFilter(), lag_pb.WORST, 50, 0, "pay")]


@pytest.mark.parametrize("order", [*ORDERS])
async def test_every_order_of_lag_can_be_asked_for(order: str) -> None:
    """By its name in the API."""
    fleet = fleet_of("a")
    async with client_of(application(fleet)) as client:
        assert (await client.get(f"/groups?order={order}")).status_code == 200
    assert fleet.asked[0][1] == ORDERS[order]


async def test_10000_groups_are_paged() -> None:
    """The last page has the last group, a link back, none forward; one beyond it says so."""
    fleet = fleet_of(*(f"group-{number:06}" for number in range(10_000)))
    async with client_of(application(fleet)) as client:
        last = Parsed((await client.get("/groups?size=1000&offset=9000")).text)
        beyond = Parsed((await client.get("/groups?size=1000&offset=10000")).text)
    assert [row["data-group"] for row in last.having("data-group")][-1] == "group-009999"
    assert "Groups 9,001 to 10,000 of 10,000" in last.text
    assert [link["rel"] for link in last.having("rel") if link["rel"] in {"prev", "next"}] == ["prev"]
    assert "behind the last one" in beyond.text


async def test_the_pager_walks_over_all_pages_and_keeps_the_filter() -> None:
    """Following `next` shows each group once."""
    fleet = fleet_of(*(f"group-{number}" for number in range(25)))
    seen: list[str] = []
    async with client_of(application(fleet)) as client:
        path = "/groups?size=10&order=name&q=group"
        while path:
            page = Parsed((await client.get(path)).text)
            seen += [row["data-group"] for row in page.having("data-group")]
            path = next((link["href"] for link in page.tags("a") if link.get("rel") == "next"), "")
            assert not path or {"order": ["name"], "q": ["group"]}.items() <= parse_qs(urlsplit(path).query).items()
    assert seen == [f"group-{number}" for number in range(25)]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/groups?size=0", "size"),
        ("/groups?size=1001", "size"),
        ("/groups?size=%C2%B2", "size"),
        ("/groups?offset=-1", "offset"),
        ("/groups?offset=99999999999999999999", "offset"),
        ("/groups?order=upwards", "order"),
        ("/groups?at_least=sad", "at_least"),
        ("/groups?q=" + "x" * 256, "q"),
        ("/group", "group"),
        ("/group?group=g&order=lag_seconds", "order"),
        ("/live/groups?size=x", "size"),
    ],
)
async def test_a_bad_parameter_is_named(path: str, names: str) -> None:
    """400, in HTML and in JSON."""
    async with client_of(application(fleet_of("g"))) as client:
        html = await client.get(path)
        json = await client.get(path, headers={"Accept": "application/json"})
    assert (html.status_code, json.status_code) == (400, 400)
    assert f"{names}: " in Parsed(html.text).text
    assert json.json()["error"].startswith(f"{names}: ")


async def test_a_group_that_nobody_has_is_not_found() -> None:
    """404 that names it, not an empty page."""
    fleet, calls = FakeFleet([adapter_view()]), FakeCalls()
    calls.described["a:1"], calls.changed["a:1"] = offsets_pb.DescribeGroupReply(), offsets_pb.ListChangesReply()
    async with client_of(application(fleet, calls=calls)) as client:
        answer = await client.get("/group?group=nope&format=json")
    assert (answer.status_code, "'nope'" in answer.json()["error"]) == (404, True)


async def test_a_group_without_lag_is_shown_as_the_adapter_describes_it() -> None:
    """Lag may be turned off; offsets are there."""
    fleet, calls = FakeFleet([adapter_view()]), FakeCalls()
    shard = offsets_pb.DescribeGroupReply.Shard(shard="t/0", local=offsets_pb.Position(epoch=2, offset=7))
    calls.described["a:1"] = offsets_pb.DescribeGroupReply(shards=[shard])
    async with client_of(application(fleet, calls=calls)) as client:
        found = (await client.get("/group?group=g&format=json")).json()
    assert found["sums"] is None
    assert [(row["shard"], row["offset"], row["epoch"], row["status"]) for row in found["shards"]] == [("t/0", 7, 2, "unknown")]


async def test_a_group_has_member_generation_hold_dirty_and_warning_of_its_adapter() -> None:
    """What DescribeGroup alone tells stands beside the lag."""
    fleet, calls = FakeFleet([adapter_view()], [group_view("g")]), FakeCalls()
    shard = offsets_pb.DescribeGroupReply.Shard(shard="t/1", dirty=True, held_until_ms=NOW_MS, warning="careful")
    calls.described["a:1"] = offsets_pb.DescribeGroupReply(shards=[shard], member_id="m-1", generation=3, mode="write_back")
    async with client_of(application(fleet, calls=calls)) as client:
        found = (await client.get("/group?group=g&order=name&format=json")).json()
        page = Parsed((await client.get("/group?group=g")).text)
    assert [(row["shard"], row["dirty"], row["held_until_ms"], row["warning"]) for row in found["shards"]] == [
        ("t/0", None, None, ""),
        ("t/1", True, NOW_MS, "careful"),
    ]
    assert [(one["member_id"], one["generation"]) for one in found["members"]] == [("m-1", 3)]
    assert "generation 3" in page.text
    assert "held until 2026-09-21 14:13:20 UTC" in page.text


async def test_shards_are_paged_and_in_the_order_asked_for() -> None:
    """Worst first unless asked otherwise; a page has at most the size."""
    fleet = FakeFleet([adapter_view()], [group_view("g")])
    rows = [shard_row(f"t/{number:03}", lag=number) for number in range(150)]
    rows[7].lag.status = lag_pb.STOP
    fleet.shards["default", "g"] = GroupShards(group_view("g"), rows)
    async with client_of(application(fleet)) as client:
        worst = (await client.get("/group?group=g&format=json")).json()
        second = (await client.get("/group?group=g&order=name&offset=100&format=json")).json()
        lag = (await client.get("/group?group=g&order=lag&format=json")).json()
    assert (worst["shards"][0]["shard"], len(worst["shards"]), worst["shards_matching"]) == ("t/007", 100, 150)
    assert [row["shard"] for row in second["shards"]] == [f"t/{number:03}" for number in range(100, 150)]
    assert [row["lag"] for row in lag["shards"][:2]] == [149, 148]


async def test_what_changed_a_group_is_merged_from_all_adapters_newest_first() -> None:
    """With who asked for it, and which adapter could not be asked."""
    fleet, calls = FakeFleet([adapter_view("a:1"), adapter_view("b:1"), adapter_view("c:1")], [group_view("g")]), FakeCalls()
    made = offsets_pb.ListChangesReply.Change
    calls.changed["a:1"] = offsets_pb.ListChangesReply(
        since_ms=5, changes=[made(at_ms=30, kind="reset", who="alice", shards=1), made(at_ms=10, kind="rewind", shards=1)]
    )
    calls.changed["b:1"] = offsets_pb.ListChangesReply(since_ms=9, changes=[made(at_ms=20, kind="delete", who="bob", shards=2)])
    async with client_of(application(fleet, calls=calls)) as client:
        found = (await client.get("/group?group=g&format=json")).json()
    assert [(one["at_ms"], one["kind"], one["who"], one["adapter"]) for one in found["changes"]] == [
        (30, "reset", "alice", "a:1"),
        (20, "delete", "bob", "b:1"),
        (10, "rewind", "", "a:1"),
    ]
    assert found["changes_since_ms"] == 9  # before that one of them may have forgotten some
    assert [one["adapter"] for one in found["changes_unknown"]] == ["c:1"]


async def test_adapters_are_not_asked_again_for_each_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten readers of a page cost an adapter what one costs."""
    monkeypatch.setattr(asking, "ASK_S", 600.0)
    fleet, calls = FakeFleet([adapter_view()], [group_view("g")]), FakeCalls()
    async with client_of(application(fleet, calls=calls)) as client:
        for _ in range(10):
            await client.get("/group?group=g")
    assert sorted(calls.asked) == [("changes", "a:1"), ("describe", "a:1")]


async def test_an_adapter_that_is_away_is_not_asked_and_is_said() -> None:
    """Its part is marked as old, and the page does not wait for it."""
    gone = adapter_view("b:1", Health.AWAY)
    view = group_view("g", adapters=("a:1", "b:1"))
    stale = type(view)(view.lag, view.adapters, stale_since_ms=NOW_MS, exact=False)
    fleet, calls = FakeFleet([adapter_view(), gone], [stale]), FakeCalls()
    fleet.shards["default", "g"] = GroupShards(stale, [shard_row("t/0")], {"b:1": "UNAVAILABLE"})
    async with client_of(application(fleet, calls=calls)) as client:
        group, start = Parsed((await client.get("/group?group=g")).text), Parsed((await client.get("/")).text)
        groups = Parsed((await client.get("/groups")).text)
    assert {address for _, address in calls.asked} == {"a:1"}
    kinds = {element["data-kind"] for element in group.having("data-kind")}
    assert {"stale", "inexact", "missing"} <= kinds
    assert "not live" in groups.text
    assert ("adapter-away", "bad") in [(one["data-kind"], one["data-level"]) for one in start.having("data-kind")]


async def test_an_empty_fleet_says_what_to_set() -> None:
    """Nothing there is a state like others."""
    async with client_of(application(FakeFleet())) as client:
        start, groups = Parsed((await client.get("/")).text), Parsed((await client.get("/groups")).text)
    assert "fleet.adapters" in start.text
    assert "meta.endpoints" in start.text
    assert "No group matches" in groups.text


async def test_a_well_fleet_says_that_nothing_is_wrong() -> None:
    """An empty list could also mean that it was not looked at."""
    async with client_of(application(fleet_of("g"), FakeMeta([instance()]))) as client:
        page = Parsed((await client.get("/")).text)
    assert "Nothing is wrong" in page.text


async def test_json_has_what_the_page_has() -> None:
    """Each value of a cell is the value in JSON."""
    fleet = fleet_of("a", "b")
    async with client_of(application(fleet, FakeMeta([instance()]))) as client:
        page, found = Parsed((await client.get("/groups")).text), (await client.get("/groups?format=json")).json()
        start, fleet_found = (
            Parsed((await client.get("/")).text),
            (await client.get("/", headers={"Accept": "application/json"})).json(),
        )
    fields = ("status", "lag", "lag_seconds", "trend", "commit_rate", "last_commit_at_ms", "shards")
    cells = [cell["data-value"] for cell in page.having("data-value") if cell.get("data-field") in fields]
    assert cells == [str(group[field]) for group in found["groups"] for field in fields]
    assert {one["data-address"] for one in start.having("data-address")} == {"a:1", "m:1"}
    assert [one["address"] for one in fleet_found["adapters"] + fleet_found["meta"]] == ["a:1", "m:1"]


async def test_raft_groups_show_leaders_and_members() -> None:
    """One without a leader is wrong."""
    member = {
        "endpoint": "e:1",
        "node": "n1",
        "state": "unreachable",
        "behind": None,
        "db_bytes": 0,
        "version": "",
        "problem": "gone",
    }
    raft = RaftSituation([{"name": "offsets-1", "leader": None, "members": [member]}], ["offsets-1: no leader is known"])
    async with client_of(application(fleet_of("g"), FakeMeta([], raft))) as client:
        page = Parsed((await client.get("/")).text)
    assert {"raft-leaderless", "raft-member-away"} <= {one["data-kind"] for one in page.having("data-kind")}
    assert "no leader" in page.text


async def test_links_are_below_the_root_path_and_name_no_host() -> None:
    """Behind a proxy that gives the console a path; a forged Host is in no link."""
    settings = ConsoleConfig(server=ConsoleServerSection(hosts=("evil.example", "127.0.0.1")))
    app = application(fleet_of("g"), settings=settings)
    async with client_of(app) as client:
        client._transport.root_path = "/ops"  # type: ignore[attr-defined]
        answer = await client.get("/ops/groups", headers={"Host": "evil.example"})
    assert answer.status_code == 200
    page = Parsed(answer.text)
    links = [found["href"] for found in page.having("href")] + [found["src"] for found in page.having("src")]
    assert all(link.startswith(("/ops/", "#")) for link in links)
    assert "evil.example" not in answer.text


async def test_a_failure_is_told_without_its_text() -> None:
    """A bug is in the log; the answer has the headers and no detail."""

    class Broken(FakeFleet):
        async def groups(self, *_: object, **__: object) -> object:  # type: ignore[override]
            raise RuntimeError("the secret")

    async with client_of(application(Broken())) as client:
        answer = await client.get("/groups")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["Content-Security-Policy"] == guard.POLICY

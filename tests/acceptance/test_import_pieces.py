"""What `offset-adapter import` makes of large files, and of an adapter that does not do what it is asked: a scripted one."""

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from adapter.rpc import offsets_pb
from tests.acceptance.scripted_admin import Change, ScriptedAdmin, Tool, done, refusing, serving

OK, NO, ERROR = 0, 1, 2


@pytest.fixture
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """A scripted adapter that merges whatever comes, and says so of every offset."""
    admin = ScriptedAdmin()
    admin.script = merged
    with serving(admin, tmp_path_factory.mktemp("t")) as made:
        yield made


def merged(request: offsets_pb.ImportOffsetsRequest) -> Change:
    """Nothing stood where these offsets come."""
    rows = [
        Change.Row(
            namespace=group.namespace,
            group=group.group,
            shard=item.shard,
            after=offsets_pb.Position(epoch=1, offset=item.offset),
            changed=True,
        )
        for group in request.groups
        for item in group.shards
    ]
    return Change(rows=rows, executed=request.execute)


def sizes(tool: Tool) -> list[int]:
    """Offsets of each request."""
    return [sum(len(group.shards) for group in request.groups) for request in tool.admin.changes]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Offsets of 3 groups, which take turns: 2,100 of them."""
    path = tmp_path / "offsets.csv"
    path.write_text("".join(f"g{at % 3},t,{at // 3},{at}\n" for at in range(2_100)))
    return path


def test_the_offsets_of_a_group_go_together(tool: Tool, file: Path) -> None:
    """The adapter loads each group that a request names, so none is in more requests than it has to be."""
    assert tool("import", file, "--execute").code == OK
    assert sizes(tool) == [500, 500, 500, 500, 100]
    named = [[group.group for group in request.groups] for request in tool.admin.changes]
    assert named == [["g0"], ["g0", "g1"], ["g1", "g2"], ["g2"], ["g2"]]
    assert tool.admin.executed == [True] * 5
    first, second, *_ = tool.admin.changes
    shards = [item.shard for group in (first.groups[0], second.groups[0]) for item in group.shards]
    assert shards == [f"t/{at}" for at in range(700)]


def test_requests_with_much_metadata_stay_below_grpcs_limit(tool: Tool, tmp_path: Path) -> None:
    """4 MiB; with the longest names and metadata."""
    long = "x" * 250
    row = {"group": long, "metadata": "\u00e4" * 2_048, "topic": long}
    path = tmp_path / "large.json"
    path.write_text(json.dumps([{**row, "shard": f"{long}{at:05d}", "offset": at} for at in range(1_000)]))
    assert tool("import", path).code == OK
    assert sum(sizes(tool)) == 1_000
    assert max(request.ByteSize() for request in tool.admin.changes) < 2 * 2**20


def test_an_error_on_the_way_tells_what_was_done_and_a_second_run_is_harmless(tool: Tool, file: Path) -> None:
    """The second request fails. A merge that is repeated changes nothing."""
    tool.admin.script = refusing(2, grpc.StatusCode.UNAVAILABLE, execute=True)
    ran = tool("import", file, "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (ERROR, "done before the error: 1 of 1 offset imported, read back and equal")
    told, error = ran.err.splitlines()
    assert told == "warning: the error below ended the import: run it again; what was merged already stays as it is"
    assert "UNAVAILABLE: for a reason" in error
    tool.admin.script = refusing(2, grpc.StatusCode.UNAVAILABLE, execute=True)
    ran = tool("import", file, "--execute", "--json")
    assert (ran.code, ran.json["executed"], len(ran.json["rows"])) == (ERROR, False, 1)
    tool.admin.changes.clear()
    tool.admin.script = merged
    assert tool("import", file, "--execute").code == OK
    assert sizes(tool) == [500, 500, 500, 500, 100]


def test_what_somebody_moved_at_the_same_time_does_not_keep_the_others_back(tool: Tool, file: Path) -> None:
    """ABORTED: it is told, the exit code is 1, and the other requests are made."""
    tool.admin.script = refusing(2, grpc.StatusCode.ABORTED, execute=True)
    ran = tool("import", file, "--execute")
    assert (ran.code, ran.err) == (NO, "not as it was asked for: for a reason\n")
    assert sizes(tool) == [500, 500, 500, 500, 100]


def test_success_is_said_only_for_what_the_adapter_confirms(tool: Tool, file: Path) -> None:
    """A reply without `executed` is none."""
    tool.admin.script = lambda request: Change(rows=done(request).rows)
    ran = tool("import", file, "--execute")
    assert ran.code == NO
    assert "done:" not in ran.out
    assert ran.err == "not done: the adapter does not confirm it; look with `groups describe`, and try again\n"


def test_positions_outside_of_the_log_are_told_in_the_table_and_behind_it(tool: Tool, file: Path) -> None:
    """In the dry run, which is a success; JSON counts them. Once it is executed, a warning is of a larger offset that stands."""

    def script(request: offsets_pb.ImportOffsetsRequest) -> Change:
        reply = merged(request)
        reply.rows[0].warning = "6 is beyond the log's end 5"
        return reply

    tool.admin.script = script
    ran = tool("import", file)
    assert ran.code == OK
    assert "beyond the log's end 5" in ran.out
    assert "outside of the log, see the notes" in ran.err
    found = tool("import", file, "--json").json["counts"]
    assert (found["outside"] > 0, found["larger_stands"]) == (True, 0)
    found = tool("import", file, "--execute", "--json").json["counts"]
    assert (found["outside"], found["larger_stands"] > 0) == (0, True)


def test_a_person_sees_how_far_it_is(tool: Tool, file: Path) -> None:
    """First of the reading, then of what is sent; on standard error, and only on a terminal."""
    ran = tool("import", file, "--execute", "--json", terminal=True)
    assert "reading" in ran.err
    assert "importing" in ran.err
    assert len(json.loads(ran.out)["rows"]) == 2_100
    assert "comparing" in tool("import", file, terminal=True).err
    assert tool("import", file).err == ""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """20,000 offsets in an order of no help to anybody."""
    path = tmp_path / "large.csv"
    path.write_text("".join(f"g{at * 7 % 20:02d},t,{at // 20},{at + 1}\n" for at in range(20_000)))
    return path


def test_a_large_file_shows_its_beginning_and_all_of_it_in_json(tool: Tool, large: Path) -> None:
    """The first 1,000 offsets that change, in the order of their names."""
    ran = tool("import", large)
    *table, more, _, headline = ran.out.splitlines()
    assert (ran.code, len(table)) == (OK, 1_001)
    assert [line.split()[1:3] for line in table[1:]] == [["g00", f"t/{at}"] for at in range(1_000)]
    assert (more, headline) == (
        "and 19,000 more; --json prints all",
        "dry run: 20,000 of 20,000 offsets would be imported; --execute does it",
    )
    ran = tool("import", large, "--execute", "--json")
    assert (ran.code, ran.json["executed"], len(ran.json["rows"])) == (OK, True, 20_000)
    zeros = dict.fromkeys(("raised", "unchanged", "larger_stands", "repeated", "unreadable", "outside"), 0)
    assert ran.json["counts"] == {"new": 20_000, **zeros}
    row = ran.json["rows"][-1]
    assert {name: row[name] for name in ("namespace", "group", "changed", "warning")} == {
        "namespace": "default",
        "group": "g19",
        "changed": True,
        "warning": "",
    }
    assert row["after"].keys() == {"epoch", "offset", "deleted"}
    assert "before" not in row

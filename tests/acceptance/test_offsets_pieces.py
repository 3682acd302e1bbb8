"""What the commands `groups` and `offsets` make of many shards, and of an adapter that does not do what it is asked.

The adapter is a scripted one: a real one cannot be made to fail in the second of three requests.
"""

import json
from collections.abc import Iterator

import grpc
import pytest

from adapter.cli.offsets.reading import PIECE
from adapter.rpc import offsets_pb
from tests.acceptance.scripted_admin import Change, Described, ScriptedAdmin, Tool, done, refusing, serving

OK, NO, ERROR = 0, 1, 2


@pytest.fixture
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """A scripted adapter whose groups have two shards more than fit into two requests."""
    directory = tmp_path_factory.mktemp("t")
    with serving(ScriptedAdmin(2 * PIECE + 2), directory) as made:
        yield made


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tool]:
    """A scripted adapter whose groups have one shard."""
    with serving(ScriptedAdmin(1), tmp_path_factory.mktemp("t")) as made:
        yield made


def test_many_shards_go_in_pieces_that_are_all_planned_before_one_is_executed(tool: Tool) -> None:
    """At most 1,000 shards in a request, each shard once."""
    ran = tool("offsets", "reset", "g", "--from-file", tool.plan_of(2_001), "--execute")
    assert ran.code == OK
    assert [len(request.to_targets.targets) for request in tool.admin.changes] == [1_000, 1_000, 1] * 2
    assert tool.admin.executed == [False] * 3 + [True] * 3
    named = [target.shard for request in tool.admin.changes[:3] for target in request.to_targets.targets]
    assert named == [f"t/{at}" for at in range(2_001)]


def test_a_group_of_many_shards_is_taken_shard_by_shard(tool: Tool) -> None:
    """Cloned in pieces."""
    assert tool("groups", "clone", "g", "h").code == OK
    assert [len(request.shards) for request in tool.admin.changes] == [1_000, 1_000, 2]


def test_the_deletion_of_a_large_group_ends_with_the_group_itself(tool: Tool) -> None:
    """Its generation goes only with a request that names no shards; no dry run asks for that."""
    assert tool("offsets", "delete", "g", "--execute").code == OK
    assert [len(request.shards) for request in tool.admin.changes] == [1_000, 1_000, 2] * 2 + [0]
    assert tool.admin.executed == [False] * 3 + [True] * 4


def test_a_small_group_is_one_request_without_names(small: Tool) -> None:
    """The adapter knows best which shards it has at that moment."""
    assert small("offsets", "reset", "g", "--to-latest", "--execute").code == OK
    ((request,),) = (small.admin.changes,)
    assert (list(request.shards), request.to_latest, request.execute) == ([], True, True)


def test_a_topic_of_few_shards_is_left_to_the_adapter_and_one_of_many_is_taken_shard_by_shard(tool: Tool, small: Tool) -> None:
    """With the shards that are named beside it, each once; of another topic nothing."""
    assert small("offsets", "reset", "g", "new", "--topic", "t", "--create", "--to-latest").code == OK
    ((request,),) = (small.admin.changes,)
    assert (list(request.shards), list(request.topics), request.create) == (["new"], ["t"], True)
    for command in (["offsets", "reset", "g", "--to-latest"], ["offsets", "delete", "g"], ["groups", "clone", "g", "h"]):
        tool.admin.changes.clear()
        assert tool(*command, "t/0", "--topic", "t").code == OK
        assert [(len(request.shards), list(request.topics)) for request in tool.admin.changes] == [
            (1_000, []),
            (1_000, []),
            (2, []),
        ]
    tool.admin.changes.clear()
    assert tool("offsets", "delete", "g", "--topic", "other").code == OK
    assert [(list(request.shards), list(request.topics)) for request in tool.admin.changes] == [([], ["other"])]


def test_nothing_is_executed_when_a_later_piece_cannot_be(tool: Tool) -> None:
    """The error is the adapter's."""
    tool.admin.script = refusing(3, grpc.StatusCode.FAILED_PRECONDITION, execute=False)
    ran = tool("offsets", "reset", "g", "--to-latest", "--execute")
    assert (ran.code, ran.out) == (ERROR, "")
    assert ran.err.endswith("FAILED_PRECONDITION: for a reason\n")
    assert tool.admin.executed == [False] * 3


def test_what_was_done_before_an_error_is_told(tool: Tool) -> None:
    """Row by row, and how much is left."""
    tool.admin.script = refusing(2, grpc.StatusCode.UNAVAILABLE, execute=True)
    ran = tool("offsets", "reset", "g", "--to-latest", "--execute")
    assert ran.code == ERROR
    assert ran.out.splitlines()[-1] == "done: 1,000 offsets moved, read back and equal"
    told, error = ran.err.splitlines()
    assert told == "warning: this is what was done before the error: 1 of 3 requests"
    assert "UNAVAILABLE: for a reason" in error
    tool.admin.script = refusing(2, grpc.StatusCode.UNAVAILABLE, execute=True)
    as_json = tool("offsets", "reset", "g", "--to-latest", "--execute", "--json")
    assert (as_json.code, as_json.json["executed"], len(as_json.json["rows"])) == (ERROR, False, 1_000)


def test_what_is_not_equal_when_read_back_is_no_success(small: Tool) -> None:
    """ABORTED: somebody else moved it at the same time. Exit code 1, since it was done."""
    small.admin.script = refusing(1, grpc.StatusCode.ABORTED, execute=True)
    ran = small("offsets", "reset", "g", "--to-latest", "--execute")
    assert (ran.code, ran.out, ran.err) == (NO, "", "not as it was asked for: for a reason\n")


def test_success_is_said_only_for_what_the_adapter_confirms(small: Tool) -> None:
    """A reply without `executed` is none."""
    small.admin.script = lambda request: Change(rows=done(request).rows)
    ran = small("offsets", "reset", "g", "--to-latest", "--execute")
    assert ran.code == NO
    assert "done:" not in ran.out
    assert ran.err == "not done: the adapter does not confirm it; look with `groups describe`, and try again\n"
    as_json = small("offsets", "reset", "g", "--to-latest", "--execute", "--json")
    assert (as_json.code, as_json.json["executed"]) == (NO, False)


def test_a_person_sees_how_far_it_is(tool: Tool) -> None:
    """On standard error, and only on a terminal; what is on standard output stays as it is."""
    given = ("offsets", "reset", "g", "--from-file", tool.plan_of(1_001), "--execute", "--json")
    ran = tool(*given, terminal=True)
    assert "planning" in ran.err
    assert "executing" in ran.err
    assert json.loads(ran.out)["executed"] is True
    assert tool(*given).err == ""


def test_the_warnings_of_many_pieces_do_not_hide_the_result(tool: Tool) -> None:
    """The same one once; of many the first five, and all of them in JSON."""
    counter = iter(range(100))
    tool.admin.script = lambda request: done(request, f"warning {next(counter)}")
    given = ("offsets", "reset", "g", "--from-file", tool.plan_of(6_500))
    ran = tool(*given)
    assert ran.err.splitlines() == [f"warning: warning {at}" for at in range(5)] + ["warning: and 2 more; --json shows all"]
    assert len(tool(*given, "--json").json["warnings"]) == 7
    tool.admin.script = lambda request: done(request, "the same")
    assert tool(*given).err == "warning: the same\n"


def test_all_pages_of_groups_are_followed(small: Tool) -> None:
    """Also for what is done to all groups."""
    assert [row["group"] for row in small("groups", "list", "--json").json] == [f"g{at}" for at in range(5)]
    ran = small("export")
    assert (ran.code, ran.out) == (OK, "".join(f"g{at},t,0,7\n" for at in range(5)))


def test_what_the_adapter_could_not_ask_is_told(small: Tool) -> None:
    """The broker's bounds: a warning beside the table."""
    row = Described.Shard(
        shard="t/0", local=offsets_pb.Position(epoch=1, offset=5), remote=offsets_pb.Position(epoch=1, offset=5)
    )
    small.admin.described = Described(shards=[row], mode="write_back", bounds_error="the broker is away")
    ran = small("groups", "describe", "g")
    assert (ran.code, ran.err) == (
        OK,
        (
            "group g in namespace default: write_back\n"
            "warning: the broker did not tell the bounds of its shards: the broker is away\n"
            "no live lag: this adapter is of a version without it\n"
        ),
    )


def test_a_narrow_width_folds_nothing(small: Tool) -> None:
    """A pipe has no width; grep, awk and cut take what is there."""
    small.admin.described = Described(shards=[Described.Shard(shard="a-long-topic-name/0")], mode="write_back")
    wide, narrow = (small("groups", "describe", "g", columns=columns) for columns in ("200", "80"))
    assert wide.out == narrow.out
    assert narrow.out.splitlines()[-1].split() == ["g", "a-long-topic-name/0", "-", "-", "-", "clean"]


def test_one_group_that_is_too_large_hides_no_other(small: Tool) -> None:
    """It is left out, with a warning and exit code 1; alone it is an error."""
    small.admin.too_large = "g2"
    small.admin.described.shards.add(shard="t/0")
    ran = small("groups", "describe", "--all-groups", "--json")
    assert (ran.code, [row["group"] for row in ran.json]) == (NO, ["g0", "g1", "g3", "g4"])
    assert "warning: left out: group: default/g2 has too many\n" in ran.err
    assert small("groups", "describe", "g2").code == ERROR

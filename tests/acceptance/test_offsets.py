"""The commands `groups` and `offsets` as a user of kafka-consumer-groups types them, against a real adapter and Meta Service."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from adapter.model.records import U64_MAX
from adapter.testing.waiting import eventually
from tests.acceptance.conftest import Pair, run
from tests.acceptance.helpers import commit, standing
from tests.integration.helpers import commits, rpc

OK, NO, ERROR = 0, 1, 2


def described(pair: Pair, group: str) -> dict[str, dict[str, Any]]:
    """The shards of a group by name."""
    ((reply),) = pair("groups", "describe", group, "--json").json
    return {row["shard"]: row for row in reply["shards"]}


def groups_of(pair: Pair) -> list[str]:
    """The groups that are listed."""
    return [row["group"] for row in pair("groups", "list", "-n", "default", "--json").json]


def test_a_reset_without_execute_changes_nothing(shared: Pair) -> None:
    """It shows what it would do to every shard."""
    commit(shared, "dry", {"t/0": 100, "t/1": 5})
    shared("flush")
    ran = shared("offsets", "reset", "dry", "--to-offset", "50")
    assert ran.code == OK
    assert "namespace group shard before after by note" in ran.words
    assert "default dry t/0 100 50 -50" in ran.words
    assert "default dry t/1 5 50 +45" in ran.words
    assert ran.out.endswith("dry run: 2 of 2 offsets would be moved; --execute does it\n")
    assert standing(shared, "dry") == {"t/0": 100, "t/1": 5}


def test_an_executed_reset_is_there_and_says_so(shared: Pair) -> None:
    """Back and forth; on both sides; only the shards that were named."""
    commit(shared, "moved", {"t/0": 100, "t/1": 5, "t/2": 7})
    ran = shared("offsets", "reset", "moved", "t/0", "t/1", "--to-offset", "50", "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 2 offsets moved, read back and equal")
    shared("flush")
    assert standing(shared, "moved") == {"t/0": 50, "t/1": 50, "t/2": 7}


def test_a_plan_that_was_cut_in_a_number_is_not_executed(shared: Pair, tmp_path: Path) -> None:
    """As an import: the line is shown, and --execute asks for --accept-unterminated."""
    commit(shared, "plan-cut", {"t/0": 5})
    plan = tmp_path / "plan.csv"
    plan.write_text("t,0,1234")
    dry = shared("offsets", "reset", "plan-cut", "--from-file", plan)
    assert (dry.code, "line 1: has no line end" in dry.err) == (OK, True)
    refused = shared("offsets", "reset", "plan-cut", "--from-file", plan, "--execute")
    assert (refused.code, "(there stands t,0,1234); nothing was sent. If the file is whole" in refused.err) == (ERROR, True)
    assert standing(shared, "plan-cut") == {"t/0": 5}
    assert shared("offsets", "reset", "plan-cut", "--from-file", plan, "--execute", "--accept-unterminated").code == OK
    assert standing(shared, "plan-cut") == {"t/0": 1234}
    misplaced = shared("offsets", "reset", "plan-cut", "--to-offset", "1", "--accept-unterminated")
    assert (misplaced.code, "--accept-unterminated: is for --from-file" in misplaced.err) == (ERROR, True)


@pytest.mark.parametrize(
    ("to", "offsets"),
    [
        (["--to-earliest"], {"t/0": 10, "t/1": 10}),
        (["--to-latest"], {"t/0": 99, "t/1": 99}),
        (["--to-offset", "0"], {"t/0": 10, "t/1": 10}),
        (["--to-offset", str(U64_MAX)], {"t/0": 99, "t/1": 99}),
        (["--shift-by", "5"], {"t/0": 55, "t/1": 65}),
        (["--shift-by", "+5"], {"t/0": 55, "t/1": 65}),
        (["--shift-by", "-5"], {"t/0": 45, "t/1": 55}),
        (["--shift-by=-100"], {"t/0": 10, "t/1": 10}),
        (["--to-current"], {"t/0": 50, "t/1": 60}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_way_to_say_where_to(shared: Pair, to: list[str], offsets: dict[str, int]) -> None:
    """As Kafka's options do; what is outside of the shard goes to its nearest end."""
    commit(shared, "ways", {"t/0": 50, "t/1": 60}, low=10, high=99)
    ran = shared("offsets", "reset", "ways", *to, "--json")
    assert ran.code == OK
    assert {row["shard"]: row["after"]["offset"] for row in ran.json["rows"]} == offsets


def test_a_target_outside_of_the_shard_is_told(shared: Pair) -> None:
    """Beside the row, with the bounds; the exit code is still 0, as Kafka's."""
    commit(shared, "clamped", {"t/0": 50}, low=10, high=99)
    ran = shared("offsets", "reset", "clamped", "--to-offset", "5000")
    assert ran.code == OK
    assert "default clamped t/0 50 99 +49 5000 is outside: the shard has 10 to 99" in ran.words


def test_unknown_bounds_are_told(shared: Pair) -> None:
    """As a warning where they are only checked against, as an error with what to do where they are needed."""
    commit(shared, "boundless", {"boundless/0": 50})
    ran = shared("offsets", "reset", "boundless", "--to-offset", "5000")
    assert ran.code == OK
    assert "warning: the bounds of boundless/0 are not known: the target was not checked" in ran.err
    for to in (["--to-earliest"], ["--to-latest"], ["--to-datetime", "2026-01-01T00:00:00.000"], ["--by-duration", "P1D"]):
        ran = shared("offsets", "reset", "boundless", *to)
        assert (ran.code, ran.out) == (ERROR, "")
        assert "broker_log.address" in ran.err
        assert "use to_offset" in ran.err


def test_an_active_group_is_told(shared: Pair) -> None:
    """Its consumers would commit over the reset."""
    commit(shared, "active", {"t/0": 50})
    assert "stop its consumers first" in shared("offsets", "reset", "active", "--to-offset", "1").err


def test_a_saved_plan_gives_the_same(shared: Pair, tmp_path: Path) -> None:
    """Exported by a dry run, executed from the file: in Kafka's form, and in JSON for names that it cannot hold."""
    commit(shared, "planned", {"t/0": 100, "t/10": 200, "t/9": 300})
    plan = tmp_path / "plan.csv"
    ran = shared("offsets", "reset", "planned", "--shift-by", "-1", "--export", plan)
    assert (ran.code, ran.err.splitlines()[0]) == (OK, f"the plan is in {plan}; --from-file reads it")
    assert sorted(plan.read_text().splitlines()) == ["t,0,99", "t,10,199", "t,9,299"]
    assert shared("offsets", "reset", "planned", "--to-offset", "1", "--execute").code == OK
    ran = shared("offsets", "reset", "planned", "--from-file", plan, "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 3 offsets moved, read back and equal")
    assert standing(shared, "planned") == {"t/0": 99, "t/10": 199, "t/9": 299}

    commit(shared, "named", {"a queue": 5})
    ran = shared("offsets", "reset", "named", "--to-offset", "1", "--export", plan, "--execute")
    assert (ran.code, ran.out) == (ERROR, "")
    assert "'a queue' of group 'named' is not of the form topic/partition" in ran.err
    assert standing(shared, "named") == {"a queue": 5}
    as_json = tmp_path / "plan.json"
    assert shared("offsets", "reset", "named", "--to-offset", "1", "--export", as_json).code == OK
    assert shared("offsets", "reset", "named", "--from-file", as_json, "--execute").code == OK
    assert standing(shared, "named") == {"a queue": 1}


def test_a_plan_of_kafkas_tool_is_read_from_standard_input(shared: Pair) -> None:
    """As `--export` of kafka-consumer-groups prints it, for one group and for several, its last blank line included."""
    commit(shared, "kafka", {"orders/0": 5})
    for text in ("orders,0,3\n\n", "kafka,orders,0,3\n\n"):
        ran = run(
            "offsets", "reset", "kafka", "--from-file", "-", "--json", answer=text, OFFSET_ADAPTER_ADDRESS=shared.adapter.address
        )
        assert ran.code == OK
        assert [row["after"]["offset"] for row in ran.json["rows"]] == [3]


async def test_describe_shows_what_kafkas_tool_shows(pair: Pair) -> None:
    """Offsets, ends, lag, and what is ours: both sides, epoch, state, member."""
    commit(pair, "g", {"t/0": 40, "t/2": 60, "t/10": 5}, low=10, high=99)
    with rpc(pair.adapter.address) as stubs:
        request = commits({"t/1": 1}, metadata="a \x1b[31mnote")
        request.groups[0].generation, request.groups[0].member_id = 7, "consumer-1"
        stubs.store.CommitOffsets(request, timeout=30)
    pair("flush")
    ran = pair("groups", "describe", "g", "--wide")
    assert ran.code == OK
    # What is behind it says that there is no live lag, within the first second.
    assert ran.err.splitlines()[0] == "group g in namespace default: write_back, generation 7, last member consumer-1"
    core = "group shard current-offset log-end-offset lag lag-time status state"
    assert f"{core} meta-service log-start-offset lost commits/s trend/s burrow epoch committed metadata" in ran.words
    # What is live may not have been evaluated yet; test_top has it.
    assert re.search(r"t/0 40 99 59(?: (?!t/)\S+)* clean 40 10(?: (?!t/)\S+)* 0\.1 20", ran.words)
    assert re.search(r"t/1 1 - -(?: (?!t/)\S+)* clean 1 -(?: (?!t/)\S+)* 0\.1 20", ran.words)
    assert "a \\x1b[31mnote" in ran.words
    assert [ran.out.index(f"t/{number}\t") for number in (0, 1, 2, 10)] == sorted(
        ran.out.index(f"t/{n}\t") for n in (0, 1, 2, 10)
    )

    pair.meta.kill()
    commit(pair, "g", {"t/0": 41})
    ran = pair("groups", "describe", "g", "--wide")
    assert ran.code == NO
    assert re.search(r"t/0 41 99 58(?: (?!t/)\S+)* dirty \? 10(?: (?!t/)\S+)* 0\.1", ran.words)
    assert ran.err.splitlines()[1].startswith("warning: the Meta Service was not asked, only local values are shown: ")
    pair.meta.start()
    await eventually(lambda: described(pair, "g")["t/0"]["state"] == "clean", 30)


def test_describe_of_all_groups_and_of_none(shared: Pair) -> None:
    """A group without offsets is no error, but not a success."""
    commit(shared, "one", {"t/0": 1})
    commit(shared, "two", {"t/0": 1})
    found = shared("groups", "describe", "--all-groups", "--json").json
    assert {"one", "two"} <= {group["group"] for group in found}
    ran = shared("groups", "describe", "absent")
    assert (ran.code, ran.err.splitlines()[-1]) == (NO, "group absent has no offsets; `groups list` shows the groups that have")
    assert shared("groups", "describe", "one", "absent", "--json").code == NO
    for arguments in ([], ["one", "--all-groups"]):
        ran = shared("groups", "describe", *arguments)
        assert (ran.code, ran.err) == (ERROR, "error: name at least one GROUP, or give --all-groups\n")


def test_groups_are_listed_with_what_they_have(pair: Pair) -> None:
    """All namespaces, or one."""
    assert pair("groups", "list").err == pair("groups", "describe", "--all-groups").err == "0 groups\n"
    pair("commit", "g", "t/0", "1", "-n", "team")
    pair("commit", "g", "t/0", "1")
    pair("commit", "g", "t/1", "1")
    pair("flush")
    ran = pair("groups", "list")
    assert ran.code == OK
    assert "default g 2 0 20" in ran.words
    assert "team g 1 0 20" in ran.words
    assert [(row["namespace"], row["shards"]) for row in pair("groups", "list", "-n", "team", "--json").json] == [("team", 1)]


def test_every_group_is_reset_and_set_back_from_a_file(pair: Pair, tmp_path: Path) -> None:
    """As kafka-consumer-groups does with --all-groups, --topic and --from-file; of other groups and shards nothing is touched."""
    commit(pair, "a", {"t/0": 100, "t/1": 200, "u/0": 300})
    commit(pair, "b", {"t/0": 50})
    commit(pair, "c", {"u/0": 5})
    pair("commit", "a", "t/0", "7", "-n", "team")
    plan = tmp_path / "plan.csv"
    ran = pair("offsets", "reset", "--all-groups", "--topic", "t", "--shift-by", "-10", "--export", plan)
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "dry run: 3 of 3 offsets would be moved; --execute does it")
    assert sorted(plan.read_text().splitlines()) == ["a,t,0,90", "a,t,1,190", "b,t,0,40"]
    ran = pair("offsets", "reset", "--all-groups", "--to-offset", "1", "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 5 offsets moved, read back and equal")
    ran = pair("offsets", "reset", "--all-groups", "--from-file", plan, "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 3 offsets moved, read back and equal")
    ran = pair("offsets", "reset", "--all-groups", "u/0", "--to-offset", "2", "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 2 offsets moved, read back and equal")
    pair("flush")
    assert [standing(pair, group) for group in "abc"] == [{"t/0": 90, "t/1": 190, "u/0": 2}, {"t/0": 40}, {"u/0": 2}]
    assert pair("get", "a", "-n", "team", "--json").json[0]["offset"] == 7
    ran = pair("offsets", "reset", "--all-groups", "none/0", "--to-offset", "2", "--execute")
    assert (ran.code, ran.out.startswith("nothing to do: there is no such offset")) == (NO, True)


def test_a_deleted_group_is_gone(shared: Pair) -> None:
    """From the list and from reads; and a commit afterwards begins anew."""
    commit(shared, "gone", {"t/0": 5, "t/1": 6})
    assert shared("offsets", "delete", "gone").out.endswith("dry run: 2 of 2 offsets would be deleted; --execute does it\n")
    assert "gone" in groups_of(shared)
    ran = shared("offsets", "delete", "gone", "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 2 offsets deleted, read back and equal")
    assert "gone" not in groups_of(shared)
    assert shared("get", "gone").code == NO
    assert {row["state"] for row in described(shared, "gone").values()} == {"deleted"}
    ran = shared("commit", "gone", "t/0", "7")
    assert (ran.code, "it is held until a consumer has read it from the store; --epoch 1.0 " in ran.out) == (NO, True)
    assert shared("commit", "gone", "t/0", "1", "--epoch", "1.0").code == OK
    assert "gone" in groups_of(shared)


def test_a_shard_that_is_not_there_cannot_be_deleted(shared: Pair) -> None:
    """The others are; exit code 1, in the dry run too."""
    commit(shared, "partly", {"t/0": 5, "t/1": 6})
    for execute in ([], ["--execute"]):
        ran = shared("offsets", "delete", "partly", "t/0", "t/9", *execute)
        assert ran.code == NO
        assert "default partly t/9 - - has no offset" in ran.words
    assert ran.out.splitlines()[-1] == "done: 1 offset deleted, read back and equal; 1 stays as it was"
    ran = shared("offsets", "delete", "nobody", "--execute")
    assert (ran.code, ran.out.splitlines()) == (
        NO,
        ["nothing to do: there is no such offset; `groups list` shows the groups that have offsets"],
    )


def test_a_shard_made_anew_is_deleted_from_every_group(shared: Pair) -> None:
    """Of other shards nothing is touched."""
    for group in ("a", "b"):
        commit(shared, group, {"anew/0": 5, "other/0": 6})
    ran = shared("offsets", "delete", "--all-groups", "anew/0", "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 2 offsets deleted, read back and equal")
    for group in ("a", "b"):
        assert standing(shared, group) == {"other/0": 6}


def test_a_clone_has_the_same_offsets(shared: Pair) -> None:
    """All, or those that are named; the source stays."""
    commit(shared, "origin", {"t/0": 5, "t/1": 6})
    assert shared("groups", "clone", "origin", "copy").out.endswith("2 of 2 offsets would be cloned; --execute does it\n")
    assert shared("get", "copy").code == NO
    ran = shared("groups", "clone", "origin", "copy", "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 2 offsets cloned, read back and equal")
    assert shared("groups", "clone", "origin", "part", "t/1", "--execute").code == OK
    shared("flush")
    assert standing(shared, "copy") == standing(shared, "origin") == {"t/0": 5, "t/1": 6}
    assert standing(shared, "part") == {"t/1": 6}
    ran = shared("groups", "clone", "nobody", "copy", "--execute")
    assert ran.code == ERROR
    assert "from_group: default/nobody has no offsets; nothing was cloned" in ran.err


def test_a_large_group_is_imported_and_described(pair: Pair, tmp_path: Path) -> None:
    """Far over gRPC's usual limit of 4 MiB for a message, with the longest names and metadata."""
    long = "x" * 250
    row = {"group": long, "metadata": "m" * 4_096, "topic": long}
    path = tmp_path / "large.json"
    path.write_text(json.dumps([{**row, "shard": f"{long}{at:05d}", "offset": at} for at in range(1_500)]))
    ran = pair("import", path, "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 1,500 of 1,500 offsets imported, read back and equal")
    assert len(described(pair, long)) == 1_500

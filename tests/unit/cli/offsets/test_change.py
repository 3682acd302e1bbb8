"""The commands about offsets: what they refuse before any call, and their help."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from adapter.cli.groups.command import groups
from adapter.cli.main import cli
from adapter.cli.offsets.change import ChangeOptions, _change
from adapter.cli.offsets.command import offsets
from adapter.errors import InvalidInputError
from adapter.model.records import U64_MAX
from adapter.rpc import offsets_pb

USAGE: list[tuple[list[str], str]] = [
    (["offsets", "reset", "g"], "name exactly one of --to-offset, --to-earliest, --to-latest, --to-current, --shift-by, "),
    (["offsets", "reset", "g", "--to-latest", "--to-offset", "0"], "name exactly one of --to-offset, "),
    (["offsets", "reset", "g", "--to-offset", "-1"], f"--to-offset: '-1' is not a whole number from 0 to {U64_MAX}"),
    (["offsets", "reset", "g", "--shift-by", "1.5"], f"--shift-by: '1.5' is not a whole number from -{2**63 - 1} to {2**63 - 1}"),
    (["offsets", "reset", "g", "--shift-by", str(2**63)], f"--shift-by: '{2**63}' is not a whole number from"),
    (["offsets", "reset", "g", "--to-datetime", "yesterday"], "--to-datetime: 'yesterday' is not a time like 2026-"),
    (["offsets", "reset", "g", "--by-duration", "7 days"], "--by-duration: '7 days' is not a duration like P7D, "),
    (["offsets", "reset", "g", "--from-file", "no.csv"], "no.csv: cannot be read: No such file or directory"),
    (["offsets", "reset", "g", "--topic", "t", "--from-file", "no.csv"], "--from-file: the file names the shards; name none"),
    (["offsets", "delete", "t/0", "--all-groups", "--topic", "t"], "--topic: --all-groups wants the shards by their names"),
    (["offsets", "reset", "g", "s", "--from-file", "no.csv"], "--from-file: the file names the shards; name none"),
    (["offsets", "reset", "g", "--to-latest", "--export", "-"], "--export: name a file; --json prints the plan"),
    (["offsets", "reset", "--to-latest"], "name the GROUP, or give --all-groups"),
    (["offsets", "reset", "", "s", "--to-latest"], "name the GROUP, or give --all-groups"),
    (
        ["offsets", "reset", "--all-groups", "s", "--create", "--to-latest"],
        "--create: name the GROUP; --all-groups is for offsets",
    ),
    (["groups", "list", "--columns", "group,size"], "--columns: there is no 'size'; there are namespace, group, shards, dirty,"),
    (["groups", "describe", "g", "--columns", "lag", "--json"], "--columns: is for tables; JSON and CSV have all fields"),
    (["groups", "describe", "g", "--all-groups"], "name at least one GROUP, or give --all-groups"),
    (["groups", "describe"], "name at least one GROUP, or give --all-groups"),
    (["export", "g", "--all-namespaces"], "--all-namespaces: is for --format json, and names no groups"),
    (["export", "--all-namespaces"], "--all-namespaces: is for --format json, and names no groups"),
    (["groups", "list", "--json", "--output", "csv"], "--json and --output csv: name one of them"),
    (["offsets", "delete"], "name the group, or give --all-groups and the shards"),
    (["offsets", "delete", "--all-groups"], "name the shards"),
    (["offsets", "delete", "", "s"], "GROUP is empty; --all-groups is for every group"),
    (["import", "-"], "standard input: holds no offsets; it was read as kafka-csv: --format names another"),
    (["import", "-", "--format", "rocketmq-client"], "--group: is missing, and a rocketmq-client file names no group"),
    (
        ["import", "/x/my-group/offsets.json"],
        "--group: is missing, and a rocketmq-client file names no group; its directory is my-group: if that is the group, --gr",
    ),
    (["import", "no.csv"], "no.csv: cannot be read: No such file or directory"),
    (["import", "/", "--format", "json"], "/: cannot be read: Is a directory"),
    (["import", "-", "--format", "rocketmq-rocksdb"], "FILE: rocketmq-rocksdb is a directory; name it"),
    (["import", "a.csv", "--broker", "b"], "--broker: kafka-csv names shards as they are; only rocketmq-broker and rocketmq-"),
    (["export", "--format", "rocketmq-rocksdb"], "-o: rocketmq-rocksdb is a directory; name it"),
    (["export", "--output", "json"], "-o: 'json' is a form of listings; here it names a file: --format sets its format"),
    (["export", "--layout", "v2"], "--layout: kafka-csv has none; only rocketmq-rocksdb has"),
    (["export", "-o", "offsets.json"], "rocketmq-client: such a file is of one group; name exactly one"),
    (["export", "a", "b", "-o", "offsets.json"], "rocketmq-client: such a file is of one group; name exactly one"),
]


def test_an_offset_of_any_length_is_refused_as_such() -> None:
    """Python converts no more than 4,300 digits."""
    ran = CliRunner().invoke(cli, ["offsets", "reset", "g", "--to-offset", "9" * 5_000])
    assert isinstance(ran.exception, InvalidInputError)
    assert str(ran.exception).endswith(f"is not a whole number from 0 to {U64_MAX}")


def test_what_cannot_be_meant_is_told_before_anybody_is_called() -> None:
    """Arguments that cannot be used are refused before any call, in one line that names them."""
    for arguments, text in USAGE:
        ran = CliRunner().invoke(cli, [*arguments, "--address", "unix:/nowhere"])
        assert isinstance(ran.exception, InvalidInputError), arguments
        assert str(ran.exception).startswith(text), arguments
        assert len(str(ran.exception).splitlines()) == 1, arguments


def test_a_plan_is_taken_as_a_whole_or_not_at_all() -> None:
    """The error names every unreadable line and every repeated shard, and nothing is reset."""
    given = ["offsets", "reset", "g", "--from-file", "-", "--address", "unix:/nowhere"]
    ran = CliRunner().invoke(cli, given, input="t,0,5\nt,x,5\nt,0,6\n")
    assert isinstance(ran.exception, InvalidInputError)
    bad, twice = str(ran.exception).splitlines()
    assert bad.startswith("standard input: line 2: partition: 'x' is not a whole number from 0 to ")
    assert twice == "standard input: shard: 't/0' is in it twice"


def test_a_plan_for_all_groups_names_each_of_them_and_stays_in_its_namespace(tmp_path: Path) -> None:
    """A line without a group, a shard that is in it twice for one group, an entry of another namespace."""
    given = ["offsets", "reset", "--all-groups", "--address", "unix:/nowhere", "--from-file"]
    ran = CliRunner().invoke(cli, [*given, "-"], input="a,t,0,5\nb,t,0,5\na,t,0,6\n")
    assert str(ran.exception) == "standard input: shard: 't/0' is in it twice for group 'a'"
    ran = CliRunner().invoke(cli, [*given, "-"], input="t,0,5\n")
    assert isinstance(ran.exception, InvalidInputError)
    plan = tmp_path / "plan.json"
    plan.write_text('[{"namespace": "other", "group": "a", "shard": "s", "offset": 1}]')
    ran = CliRunner().invoke(cli, [*given, str(plan)])
    assert str(ran.exception) == f"{plan}: namespace: 'other' is not that of --namespace, 'default'"


COMMANDS: list[tuple[str, ...]] = [
    *((str(group.name), command) for group in (groups, offsets) for command in group.commands),
    ("import",),
    ("export",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_says_what_it_does(command: tuple[str, ...]) -> None:
    """The help of a change also says that it is a dry run, and what exit code 1 means."""
    shown = CliRunner().invoke(cli, [*command, "--help"])
    words = " ".join(shown.output.split())
    assert shown.exit_code == 0
    assert ("A dry run unless --execute" in words) == ("--execute Make the change." in words)
    assert ("Exit code 1 when" in words) == (command not in {("groups", "list"), ("offsets", "history")})


def test_every_command_is_there() -> None:
    """The options are those that the reference lists."""
    assert sorted(COMMANDS) == [
        ("export",),
        ("groups", "broadcast"),
        ("groups", "clone"),
        ("groups", "describe"),
        ("groups", "handover"),
        ("groups", "list"),
        ("import",),
        ("offsets", "delete"),
        ("offsets", "history"),
        ("offsets", "reset"),
    ]


async def test_what_was_done_before_ctrl_c_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Else whoever repeats a shift does not know that a part of it is done."""
    requests = [offsets_pb.ResetOffsetsRequest(group="g", shards=[shard], shift_by=5) for shard in "ab"]

    async def call(request: offsets_pb.ResetOffsetsRequest, **_: float) -> offsets_pb.ChangeReply:
        if request.execute and request.shards == ["b"]:
            raise asyncio.CancelledError
        row = offsets_pb.ChangeReply.Row(group="g", shard=request.shards[0], changed=True)
        return offsets_pb.ChangeReply(rows=[row], executed=request.execute)

    with pytest.raises(asyncio.CancelledError):
        await _change(call, requests, "moved", ChangeOptions(execute=True))
    told = capsys.readouterr()
    assert told.out.endswith("done: 1 offset moved, read back and equal\n")
    assert told.err == "warning: this is what was done before the error: 1 of 2 requests\n"

"""`offsets export` and `offsets import` between real adapters: the same offsets, in Kafka's CSV and in JSON."""

import json
from pathlib import Path

from adapter.model import U64_MAX
from tests.acceptance.conftest import Pair, run
from tests.acceptance.helpers import commit, standing

OK, NO, ERROR = 0, 1, 2


def test_offsets_go_from_one_adapter_to_another(pair: Pair, shared: Pair, tmp_path: Path) -> None:
    """Equal in both forms: with Kafka's CSV the offsets, with JSON all that was committed."""
    pair("commit", "g1", "t/0", "5", "--metadata", 'a, "b"')
    pair("commit", "g1", "a,b/10", "7")
    pair("commit", "g2", "t/0", str(2**63 - 1))
    path = tmp_path / "offsets.csv"
    ran = pair("offsets", "export", "-o", path)
    assert (ran.code, ran.out, ran.err) == (OK, "", f"exported 3 offsets of 2 groups to {path}\n")
    assert path.read_text() == f'g1,"a,b",10,7\ng1,t,0,5\ng2,t,0,{2**63 - 1}\n'
    ran = shared("offsets", "import", path)
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "dry run: 3 of 3 offsets would be imported; --execute does it")
    assert shared("get", "g1").code == NO
    ran = shared("offsets", "import", path, "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 3 offsets imported, read back and equal")
    assert standing(shared, "g1") == {"t/0": 5, "a,b/10": 7}
    labels = {row["shard"]: (row["topic"], row["partition"]) for row in shared("get", "g1", "--json").json}
    assert labels == {"t/0": ("t", 0), "a,b/10": ("a,b", 10)}

    pair("commit", "g3", "no partition", str(U64_MAX))
    ran = pair("offsets", "export", "g3", "g1", "--format", "json", "-n", "default")
    exported = sorted(json.loads(ran.out), key=lambda row: row["shard"])
    moved = json.dumps([row | {"namespace": "elsewhere"} for row in exported])
    ran = run(
        "offsets", "import", "-", "--format", "json", "--execute", answer=moved, OFFSET_ADAPTER_ADDRESS=shared.adapter.address
    )
    assert ran.code == OK
    back = json.loads(shared("offsets", "export", "g3", "g1", "--json", "-n", "elsewhere").out)
    assert [{**row, "namespace": "default"} for row in sorted(back, key=lambda row: row["shard"])] == exported


def test_a_file_of_one_group_goes_to_the_group_that_is_named(shared: Pair, tmp_path: Path) -> None:
    """Kafka's form for a single group has no group in it."""
    commit(shared, "single", {"t/0": 5})
    path = tmp_path / "single.csv"
    assert shared("offsets", "export", "single", "-o", path).code == OK
    assert path.read_text() == "t,0,5\n"
    ran = shared("offsets", "import", path)
    assert (ran.code, ran.err) == (ERROR, f"error: {path}: line 1: group is missing; --group names it for the whole file\n")
    assert shared("offsets", "import", path, "--group", "renamed", "--execute").code == OK
    assert standing(shared, "renamed") == {"t/0": 5}


def test_an_import_never_goes_back(shared: Pair, tmp_path: Path) -> None:
    """What stands and is larger stays, is named, and makes the exit code 1, also in the dry run."""
    commit(shared, "ahead", {"t/0": 100, "t/1": 1})
    path = tmp_path / "old.csv"
    path.write_text("ahead,t,0,50\nahead,t,1,50\n")
    for execute in ([], ["--execute"]):
        ran = shared("offsets", "import", path, *execute)
        assert ran.code == NO
        assert "default ahead t/0 100 100 +0 100 stands and is larger" in ran.words
    assert ran.out.splitlines()[-1] == "done: 1 offsets imported, read back and equal; 1 stay as they were"
    assert standing(shared, "ahead") == {"t/0": 100, "t/1": 50}


def test_a_file_with_a_bad_line_is_refused_as_a_whole(shared: Pair, tmp_path: Path) -> None:
    """Every bad line is named; nothing was sent."""
    path = tmp_path / "bad.csv"
    path.write_bytes(b"bad,t,0,5\nbad,t,1,-5\n\nbad,t,2,\xff\n")
    ran = shared("offsets", "import", path, "--execute")
    assert (ran.code, ran.out) == (ERROR, "")
    assert ran.err.splitlines() == [
        f"error: {path}: line 2: offset: '-5' is not a whole number from 0 to 9223372036854775807",
        f"error: {path}: line 4: is not UTF-8 at byte 9",
    ]
    assert shared("get", "bad").code == NO


def test_what_csv_cannot_hold_is_not_exported(shared: Pair, tmp_path: Path) -> None:
    """A file that was there stays as it was."""
    commit(shared, "uncsv", {"a queue": 5})
    path = tmp_path / "e.csv"
    path.write_text("before")
    ran = shared("offsets", "export", "uncsv", "-o", path)
    help_text = "Kafka's CSV cannot hold it; use --format json, or a file name that ends in .json"
    assert ran.code == ERROR
    assert ran.err == f"error: shard 'a queue' of group 'uncsv' is not of the form topic/partition: {help_text}\n"
    assert path.read_text() == "before"
    assert shared("offsets", "export", "uncsv", "-o", tmp_path / "e.json").code == OK
    ran = shared("offsets", "export", "uncsv", "nobody", "--json")
    assert (ran.code, len(ran.json)) == (NO, 1)
    assert "group 'nobody' has no offsets in namespace 'default'" in ran.err

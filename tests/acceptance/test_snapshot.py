"""`offset-adapter snapshot` as a user runs it, against a real adapter."""

from pathlib import Path

import pyarrow.parquet as pq

from tests.acceptance.conftest import Pair
from tests.acceptance.helpers import commit


def test_a_snapshot_has_what_the_adapter_lists(shared: Pair, tmp_path: Path) -> None:
    """As a file or in a directory; deleted offsets are in it as tombstones."""
    commit(shared, "snapshot", {"a": 5, "b": 7, "c": 9})
    assert shared("offsets", "delete", "snapshot", "c", "--execute").code == 0
    commit(shared, "snapshot", {"a": 6})
    assert shared("flush").code == 0
    told = shared("snapshot", "--output", tmp_path, "--json").json
    (path,) = tmp_path.iterdir()
    assert told["path"] == str(path)
    assert path.name == f"{told['broker']}-{told['taken_at_ms']}.parquet"
    rows = pq.read_table(path).to_pylist()
    assert (told["records"], told["tombstones"], told["dirty"], told["problems"]) == (len(rows), 1, 0, 0)
    listed = {
        (row["namespace"], row["group"], row["shard"]): (row["epoch"], row["offset"]) for row in shared("list", "--json").json
    }
    live = {(row["namespace"], row["group"], row["shard"]): (row["epoch"], row["offset"]) for row in rows if row["live"]}
    assert live == listed
    assert [row["shard"] for row in rows if not row["live"]] == ["c"]

    ran = shared("snapshot", "--output", tmp_path / "x.parquet")
    assert (ran.code, ran.err) == (0, "")
    assert f"{tmp_path / 'x.parquet'}: {len(rows)} records of" in ran.out
    assert "of which 1 are tombstones; 0 may not be in the Meta Service yet" in ran.out
    assert pq.read_table(tmp_path / "x.parquet").num_rows == len(rows)


def test_what_cannot_be_done_is_one_line_and_exit_code_2(shared: Pair, tmp_path: Path) -> None:
    """No traceback, and no file."""
    for arguments, told in (
        (("--output", "-"), "error: --output: Parquet cannot go to standard output; name a file or a directory"),
        (("--output", tmp_path / "no" / "x"), "cannot be written: No such file or directory"),
        (("--output", tmp_path, "--address", f"unix:{tmp_path}/none"), "UNAVAILABLE"),
        ((), "Missing option '--output'"),
    ):
        ran = shared("snapshot", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert told in ran.err
    assert list(tmp_path.iterdir()) == []


def test_snapshots_on_tcp_need_what_other_admin_calls_need(shared: Pair, tmp_path: Path) -> None:
    """A snapshot shows everything that the adapter has."""
    ran = shared("snapshot", "--output", tmp_path, "--address", shared.adapter.tcp_address)
    assert ran.code == 2
    assert "PERMISSION_DENIED" in ran.err
    assert list(tmp_path.iterdir()) == []

"""The file that the bridge keeps across restarts."""

from pathlib import Path

import pytest

from adapter.model.records import OffsetKey
from adapter.sidecar.bridge.marks import Marks

KEY = OffsetKey("default", "gr\u00fc\u00dfe", "broker-a/T/0")


def test_marks_come_back_as_they_were_saved(tmp_path: Path) -> None:
    """All of them."""
    marks = Marks("broker-a", 1_700_000_000_000, {KEY: 2}, {KEY: 120})
    marks.save(tmp_path / "m.json")
    assert Marks.load(tmp_path / "m.json") == marks


def test_without_a_file_nothing_is_remembered(tmp_path: Path) -> None:
    """As at the first start."""
    assert Marks.load(tmp_path / "m.json") == Marks()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"broker":"b","boot_ms":1,"eras":[["a"]],"ceilings":[]}',
        b'{"broker":"b","boot_ms":1,"eras":[],"ceilings":[["n","g","s","x"]]}',
        b'{"broker":"b","boot_ms":null,"eras":[],"ceilings":[]}',
    ],
)
def test_a_damaged_file_is_as_none(tmp_path: Path, content: bytes) -> None:
    """The larger value of each offset stands then."""
    (tmp_path / "m.json").write_bytes(content)
    assert Marks.load(tmp_path / "m.json") == Marks()


def test_a_directory_that_is_gone_does_not_end_the_bridge(tmp_path: Path) -> None:
    """It is logged; commits go on."""
    Marks("broker-a").save(tmp_path / "gone" / "m.json")
    assert not (tmp_path / "gone").exists()

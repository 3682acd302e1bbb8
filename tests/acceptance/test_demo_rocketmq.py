"""`make demo-rocketmq` as far as it needs no Java: what it counts and shows, and what it says when something is missing."""

from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from demo.rocketmq import designs, lab
from demo.rocketmq.__main__ import kinds_of, main, table_of
from demo.rocketmq.designs import DesignError, design_of
from demo.rocketmq.lab import LabError, noted, pairs
from demo.rocketmq.rounds import Cost, Kind


def test_every_kind_of_kill_has_its_turn() -> None:
    """The broker on an empty disk comes last: what was before is gone then."""
    kinds = kinds_of(20)
    assert len(kinds) == 20
    assert set(kinds) == set(Kind)
    assert [at for at, kind in enumerate(kinds) if kind is Kind.MOVED] == [19]
    assert kinds_of(1) == [Kind.MOVED]


def test_the_table_has_a_column_for_each_design() -> None:
    """Mean and worst of each kind."""
    costs = {
        "stock": [Cost(Kind.BROKER, 5_000, 3_000, 9_000, 800, 0, 0.0), Cost(Kind.BROKER, 5_000, 1_000, 9_000, 200, 0, 0.0)],
        "bridge": [Cost(Kind.BROKER, 5_000, 50, 9_000, 30, 1, 0.1)],
    }
    text = StringIO()
    Console(file=text, width=160).print(table_of(costs))
    lines = [" ".join(line.split()) for line in text.getvalue().splitlines()]
    assert "broker kills 2 1" in lines
    assert "acknowledged commits lost 2,000 (3,000) 50 (50)" in lines
    assert "messages never handled 0 (0) 1 (1)" in lines
    assert not any("sidecar" in line for line in lines)


def test_a_plugin_that_is_not_built_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that builds it."""
    monkeypatch.setattr(designs, "PLUGIN_JARS", tmp_path)
    with pytest.raises(DesignError, match="make plugin"):
        design_of("plugin")
    (tmp_path / "offset-adapter-rocketmq-1.jar").touch()
    (tmp_path / "offset-adapter-rocketmq-1-sources.jar").touch()
    assert [jar.name for jar in design_of("plugin-sync").jars] == ["offset-adapter-rocketmq-1.jar"]


def test_jars_that_are_missing_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the script that fetches them; exit code 1."""
    monkeypatch.setattr(lab, "CACHE", tmp_path)
    with pytest.raises(LabError, match=r"install-rocketmq.sh"):
        lab.jars("5.3.3")
    done = CliRunner().invoke(main, ["--design", "stock", "--kills", "1"])
    assert done.exit_code == 1
    assert "install-rocketmq.sh" in " ".join(done.output.split())


def test_what_a_killed_client_noted_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    """A line that is torn was not handled for sure."""
    file = tmp_path / "handled"
    assert noted(file) == []
    file.write_text("0 1\n3 22\n3 2")
    assert noted(file) == [(0, 1), (3, 22)]
    assert pairs(["0 1", "3 22", "0 2"]) == {0: 2, 3: 22}

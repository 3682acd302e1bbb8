"""`meta rebalance` over real Raft groups: what a person sees, what a script gets, and the exit codes."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from adapter.cli.main import cli
from adapter.errors import ConfigError, InvalidInputError
from adapter.metaservice.etcd import rebalancing
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry
from adapter.runtime.retry import retrying
from adapter.testing.processes import free_port
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require
from tests.durability.moving import CLUSTER, A, B, layout_of, meta, section_of, settings

DONE, UNFINISHED = 0, 1
KEYS = 40


class Command:
    """The command, in this process, over Raft groups of which the first has offsets."""

    def __init__(self, directory: Path) -> None:
        require("Raft groups that offsets move between", etcd)
        self.section = section_of(A, B)
        self.config = directory / "Meta Service.toml"
        self.config.write_text(settings(self.section))
        asyncio.run(self._fill())

    def __call__(self, *arguments: str, answer: str = "") -> Result:
        """Run it. Raises what it raises."""
        command = ["meta", "rebalance", "--config", str(self.config), *arguments]
        return CliRunner().invoke(cli, command, input=answer, env={"COLUMNS": "200"}, catch_exceptions=False)

    def groups(self) -> tuple[int, tuple[str, ...]]:
        """The version of the layout, and where offsets are by it."""
        return asyncio.run(layout_of(self.section))[:2]

    async def _fill(self) -> None:
        entries = [SaveEntry(OffsetKey("default", f"group-{number}", "s"), OffsetRecord(1, 1)) for number in range(KEYS)]
        async with meta(self.section.model_copy(update={"offsets": self.section.offsets[:1]})) as each:
            await each.save(CLUSTER, entries)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Ready to move about half of the keys."""
    return Command(tmp_path)


def test_a_person_is_told_what_would_move_and_asked(command: Command) -> None:
    """--dry-run and `no` change nothing; `yes` moves what was said."""
    shown = command("--dry-run")
    assert shown.exit_code == DONE
    assert shown.output.startswith(f"{A} -> {A}, {B}: about ")
    assert shown.output.endswith(f" keys to move, of {KEYS} in {A}\n")
    assert command(answer="n\n").exit_code == UNFINISHED
    assert command.groups() == (1, (A,))
    moved = command(answer="y\n")
    assert moved.exit_code == DONE
    assert moved.output.startswith(shown.output)
    assert moved.output.endswith(f"the offsets are in {A}, {B}\n")
    assert command.groups() == (4, (A, B))
    assert command().output == f"the offsets are in {A}, {B}; nothing to do\n"


def test_a_script_gets_numbers(command: Command) -> None:
    """And the exit code says whether there is more to do."""
    plan = json.loads(command("--dry-run", "--json").output)
    assert plan == {
        "from": [A],
        "to": [A, B],
        "state": "settled",
        "keys": KEYS,
        "moving": plan["moving"],
        "finished": False,
    }
    assert json.loads(command("--yes", "--json").output) == {**plan, "finished": True}
    emptied = command("--yes", "--json", "--without", A)
    assert emptied.exit_code == DONE
    assert json.loads(emptied.output) == {
        **plan,
        "from": [A, B],
        "to": [B],
        "keys": KEYS - plan["moving"],
        "finished": True,
        "moving": KEYS - plan["moving"],
    }


def test_mistakes_are_named(command: Command, tmp_path: Path) -> None:
    """Before anything is changed."""
    with pytest.raises(InvalidInputError, match=f"--without nobody: there is no such .* there are {A}, {B}"):
        command("--without", "nobody")
    with pytest.raises(InvalidInputError, match="no Raft group would be left"):
        command("--without", A, "--without", B)
    command.config = tmp_path / "embedded.toml"
    command.config.write_text("")
    with pytest.raises(ConfigError, match="is it the configuration of a Meta Service on etcd"):
        command()


def test_without_an_answer_it_is_unfinished(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1, and what to do; the Meta Services do not depend on it."""
    monkeypatch.setattr(rebalancing, "_retrying", retrying("rebalance", first_s=0.01, max_s=0.01, limit_s=0.0))
    text = command.config.read_text()
    assert command.section.metadata
    command.config.write_text(text.replace(command.section.metadata.endpoints[0], f"127.0.0.1:{free_port()}"))
    result = command("--yes")
    assert result.exit_code == UNFINISHED
    assert "run the same command again to continue" in result.stderr

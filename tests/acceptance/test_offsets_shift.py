"""`offsets reset --shift-by` before a scripted adapter: which IDs it sends, when it keeps them, and what it says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.cli.offsets.reading import PIECE
from adapter.cli.offsets.shift import AGAIN
from tests.acceptance.scripted_admin import Change, RefusalError, ScriptedAdmin, Tool, done, serving

OK, NO, ERROR = 0, 1, 2
PLANNED_MS = 1_764_338_400_000
SHIFT = ("offsets", "reset", "g", "--shift-by", "-1", "--execute")


class Remembering:
    """A script of an adapter that remembers what it planned, and refuses the executions of these numbers."""

    def __init__(self, refused: dict[int, grpc.StatusCode] | None = None) -> None:
        self.refused = refused or {}
        self.planned: set[str] = set()
        self._executed = 0

    def __call__(self, request: Any) -> Change:
        reply = done(request)
        reply.change_id = request.change_id
        if request.change_id in self.planned:
            reply.planned_at_ms = PLANNED_MS
        if request.execute:
            self.planned.add(request.change_id)
            self._executed += 1
            if self._executed in self.refused:
                raise RefusalError(self.refused[self._executed], "for a reason")
        return reply


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the IDs are kept."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "offset-adapter" / "changes"


@pytest.fixture
def tool(tmp_path: Path) -> Iterator[Tool]:
    """An adapter whose groups have two shards more than fit into two requests."""
    with serving(ScriptedAdmin(2 * PIECE + 2), tmp_path) as made:
        yield made


def sent(tool: Tool, *, execute: bool = True) -> list[str]:
    """The IDs of the requests since the last look, of executions or dry runs."""
    found = [request.change_id for request in tool.admin.changes if request.execute is execute]
    tool.admin.changes.clear()
    return found


def kept(files: Path) -> int:
    """How many files there are."""
    return len([*files.glob("*")])


def test_a_shift_that_was_not_answered_is_finished_by_the_same_command(tool: Tool, files: Path) -> None:
    """By the same IDs, for the same shards; the next one has its own."""
    tool.admin.script = Remembering({2: grpc.StatusCode.UNAVAILABLE})
    ran = tool(*SHIFT)
    assert (ran.code, AGAIN in ran.err, "1 of 3 requests" in ran.err, kept(files)) == (ERROR, True, True, 1)
    ids = [request.change_id for request in tool.admin.changes[:3]]
    assert sent(tool) == ids[:2]
    tool.admin.shards.append("t/new")
    dry = tool(*SHIFT[:-1])
    assert (dry.code, "it is finished, not made again" in dry.err, sent(tool, execute=False)) == (OK, True, ids)
    ran = tool(*SHIFT)
    assert (ran.code, "planned at 2025-11-28T14:00:00+00:00" in ran.err, kept(files)) == (OK, True, 0)
    assert sent(tool) == ids
    ran = tool(*SHIFT)
    assert (ran.code, ran.err, kept(files)) == (OK, "", 0)
    assert not {*sent(tool)} & {*ids}


@pytest.mark.parametrize(
    ("at", "code", "exit_code", "left"),
    [
        (1, grpc.StatusCode.INVALID_ARGUMENT, ERROR, 0),
        (2, grpc.StatusCode.INVALID_ARGUMENT, ERROR, 1),
        (1, grpc.StatusCode.FAILED_PRECONDITION, ERROR, 1),
        (1, grpc.StatusCode.DEADLINE_EXCEEDED, ERROR, 1),
        (1, grpc.StatusCode.RESOURCE_EXHAUSTED, ERROR, 1),
        (2, grpc.StatusCode.ABORTED, NO, 1),
        (3, grpc.StatusCode.ABORTED, NO, 0),
    ],
)
def test_an_id_is_kept_until_all_is_answered(
    tool: Tool, files: Path, at: int, code: grpc.StatusCode, exit_code: int, left: int
) -> None:
    """And the command says what to do where it is kept."""
    tool.admin.script = Remembering({at: code})
    ran = tool(*SHIFT)
    assert (ran.code, kept(files), AGAIN in ran.err) == (exit_code, left, bool(left))


def test_an_adapter_that_knows_no_ids_is_said_to(tool: Tool, files: Path) -> None:
    """It shifts without; a shift that was sent to another one before is not made by it."""
    ran = tool(*SHIFT)
    assert (ran.code, "look at the offsets" in ran.err, kept(files), sent(tool)) == (OK, True, 0, [""] * 3)
    tool.admin.script = Remembering({1: grpc.StatusCode.UNAVAILABLE})
    assert (tool(*SHIFT).code, kept(files)) == (ERROR, 1)
    tool.admin.changes.clear()
    tool.admin.script = done
    ran = tool(*SHIFT)
    assert (ran.code, "it is of an earlier release; ask a newer one" in ran.err, kept(files), sent(tool)) == (ERROR, True, 1, [])


@pytest.mark.parametrize("same_meta_service", [True, False])
def test_a_shift_is_finished_at_another_adapter(tool: Tool, files: Path, tmp_path: Path, *, same_meta_service: bool) -> None:
    """By its IDs, whose plans it has. One without them may be of another Meta Service: then the file stays for the first."""
    script = tool.admin.script = Remembering({1: grpc.StatusCode.UNAVAILABLE})
    tool(*SHIFT)
    ids = [request.change_id for request in tool.admin.changes[:3]]
    (tmp_path / "other").mkdir()
    with serving(ScriptedAdmin(1), tmp_path / "other") as other:
        other.admin.script = script if same_meta_service else Remembering()
        assert (other(*SHIFT).code, sent(other), kept(files)) == (OK, ids, not same_meta_service)


def test_a_file_that_cannot_be_read_is_named(tool: Tool, files: Path) -> None:
    """Nothing is sent: it may be that of a shift that was made."""
    tool.admin.script = Remembering({1: grpc.StatusCode.UNAVAILABLE})
    tool(*SHIFT)
    (path,) = files.iterdir()
    path.write_text(path.read_text()[:-10])
    tool.admin.changes.clear()
    ran = tool(*SHIFT)
    assert (ran.code, f"{path}: has the IDs of a shift" in ran.err, tool.admin.changes) == (ERROR, True, [])


def test_nothing_is_sent_where_the_file_cannot_be_written(tool: Tool, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the directory."""
    files.parent.parent.mkdir()
    files.parent.write_text("no directory")
    tool.admin.script = Remembering()
    ran = tool(*SHIFT)
    assert (ran.code, str(files) in ran.err, "set XDG_STATE_HOME" in ran.err, sent(tool)) == (ERROR, True, True, [])
    monkeypatch.setenv("XDG_STATE_HOME", "~/state")
    ran = tool(*SHIFT)
    assert (ran.code, "there is no home directory" in ran.err, sent(tool)) == (ERROR, True, [])

"""docs/track-record.md is what the table of bugs gives, and the replays tell a bug from its fix."""

import subprocess
from pathlib import Path

import pytest
from click import ClickException

from tests.evidence.bugs import BUGS, Bug, Planted
from tests.evidence.replay import Replay, replay, replays
from tests.evidence.track_record import PAGE, page

TEST = "from code import answer\n\ndef test_the_answer():\n    assert answer() == 42\n"


def _git(directory: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    return subprocess.run(
        ["git", *settings, *arguments], cwd=directory, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three commits: wrong code, the fix, and the check that came later. Its pytest loads one plugin, for speed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    _git(tmp_path, "init", "--quiet")
    (tmp_path / "answers.py").write_text("def answer():\n    return 41\n")
    _commit(tmp_path, "wrong")
    (tmp_path / "answers.py").write_text("def answer():\n    return 42\n")
    _commit(tmp_path, "fix")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_answers.py").write_text(TEST.replace("code", "answers"))
    (tmp_path / "tests" / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    (tmp_path / "tests" / "test_imports.py").write_text("from answers import question\n\ndef test_it():\n    pass\n")
    _commit(tmp_path, "check")
    return tmp_path


def _commit(directory: Path, message: str) -> None:
    _git(directory, "add", "--all")
    _git(directory, "commit", "--quiet", "-m", message)


@pytest.mark.parametrize(
    ("test", "before", "after", "found"), [("answers", 1, 0, True), ("nothing", 0, 0, False), ("imports", 2, 2, False)]
)
def test_a_replay_needs_a_failure_before_the_fix_and_none_after_it(
    repository: Path, test: str, before: int, after: int, *, found: bool
) -> None:
    """A check that cannot run on the commit before has found nothing. No worktree is left behind."""
    fix, check = _git(repository, "rev-parse", "HEAD^"), _git(repository, "rev-parse", "HEAD")
    done, text = replay(Bug("wrong", fix, f"tests/test_{test}.py", check), repository)
    assert (done.before, done.after, done.found) == (before, after, found), text
    assert len(_git(repository, "worktree", "list").splitlines()) == 1


def test_a_planted_bug_is_found_in_the_commit_of_its_check(repository: Path) -> None:
    """The decisive lines are taken back there. What is not there once cannot be."""
    fix, check = _git(repository, "rev-parse", "HEAD^"), _git(repository, "rev-parse", "HEAD")
    bug = Bug("wrong", fix, "tests/test_answers.py", check, planted=Planted("answers.py", "return 42", "return 43"))
    done, text = replay(bug, repository)
    assert done.found, text
    assert done.told == "assert 43 == 42"
    with pytest.raises(ClickException, match="there 0 times"):
        replay(bug._replace(planted=Planted("answers.py", "return 41", "")), repository)


def test_a_check_that_fails_for_a_name_that_the_code_lacks_has_found_nothing() -> None:
    """It came with the fix."""
    assert Replay("2026-11-24", "a", "t", 1, 0, "assert 1 == 2").found
    assert not Replay("2026-11-24", "a", "t", 1, 0, "AttributeError: module 'a' has no attribute 'b'").found


def test_the_page_is_what_the_table_gives() -> None:
    """`python -m tests.evidence.replay --page` draws it again."""
    assert PAGE.read_text(encoding="utf-8") == page(replays()), "run: python -m tests.evidence.replay --page"


def test_the_page_shows_what_was_replayed() -> None:
    """By the fix and the check, so that numbers may change."""
    (_, first), (_, second) = [each for each in BUGS if each[1].test][:2]
    done = {
        (first.fix, first.test): Replay("2026-11-24", first.fix, first.test, 1, 0),
        (second.fix, second.test): Replay("2026-11-25", second.fix, second.test, 0, 0),
    }
    text = page(done)
    assert text.count("| 2026-11-24 |") == 1
    assert text.count("| **not found**, 2026-11-25 |") == 1
    assert "1 were replayed and found again" in text


def test_every_bug_can_be_looked_for() -> None:
    """At least 30 by a replay, the others by a command; none twice."""
    assert all(bool(bug.test) != bool(bug.command) for _, bug in BUGS)
    for _, bug in BUGS:
        files = [word for word in bug.command.split() if word.startswith("tests/")]
        assert all(Path(file).exists() for file in files), bug.command
    assert len({(bug.fix, bug.test or bug.command) for _, bug in BUGS}) == len(BUGS)
    assert sum(bool(bug.test) for _, bug in BUGS) >= 30


def test_the_checks_are_in_the_history() -> None:
    """Each with its file and its name, at the commit that is named, which has the fix."""
    for bug in [bug for _, bug in BUGS if bug.test]:
        after = bug.after or bug.fix
        if subprocess.run(["git", "cat-file", "-e", f"{bug.fix}^"], capture_output=True, check=False).returncode:
            pytest.skip("the history is not here: a shallow clone, or no clone")
        path, _, name = bug.test.partition("::")
        assert f"def {name}" in _git(Path.cwd(), "show", f"{after}:{path}"), bug
        if after != bug.fix:
            assert subprocess.run(["git", "merge-base", "--is-ancestor", bug.fix, after], check=False).returncode == 0, bug

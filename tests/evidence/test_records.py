"""The file of runs: whole lines only, whatever ends a run."""

from dataclasses import replace
from pathlib import Path

from tests.evidence.records import Closing, Runs, Slice, Violation, append, read

SLICE = Slice(
    "2026-11-24T12:00:00.000+00:00",
    "c" * 40,
    dirty=False,
    machine="model",
    seeds=(1, 1),
    seconds=2.0,
    cpu_seconds=1.5,
    command="x",
)
BROKEN = replace(SLICE, machine="soak", counts={"kills": 3}, violations=(Violation("python -m x", "exit code 1\n\u8bdd"),))


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    """In its order; a violation is open until it is closed."""
    path = tmp_path / "evidence" / "runs.jsonl"
    assert read(path).slices == ()
    for record in (SLICE, BROKEN):
        append(path, record)
    assert read(path).slices == (SLICE, BROKEN)
    assert read(path).open == [BROKEN]
    append(path, Closing(BROKEN.name, "fixed in abc"))
    assert read(path).open == []
    assert read(path).slices == (SLICE, BROKEN)


def test_unknown_code_is_no_code() -> None:
    """Slices from before the digest are those of no code, also of none that is asked for by an empty name."""
    runs = Runs((SLICE, replace(SLICE, code="a"), replace(SLICE, code="a", machine="soak")))
    assert runs.of_code("model", "") == []
    assert runs.of_code("model", "a") == runs.of_newest_code("model") == [runs.slices[1]]


def test_a_torn_last_line_is_reported_and_joins_nothing(tmp_path: Path) -> None:
    """A crash may cut it anywhere; what comes after it stands on a line of its own."""
    path = tmp_path / "runs.jsonl"
    append(path, SLICE)
    whole = path.read_bytes()
    for size in range(1, len(whole) - 1):
        path.write_bytes(whole + whole[:size])
        assert read(path).slices == (SLICE,)
        assert read(path).torn == (2,)
    append(path, BROKEN)
    assert read(path).slices == (SLICE, BROKEN)
    assert read(path).torn == (2,)


def test_a_line_of_another_kind_is_reported(tmp_path: Path) -> None:
    """JSON alone makes no record."""
    path = tmp_path / "runs.jsonl"
    path.write_text('{"at": 1}\n[]\n7\n{"closes": "x"}\n')
    assert read(path).torn == (1, 2, 3, 4)

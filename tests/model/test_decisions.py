"""The table of decisions on the way of a commit has files in every row: a module that was renamed would leave it in silence."""

from tests.model.decisions import PATHS, REPLACED, files_of


def test_every_path_has_files_and_none_is_played_and_replaced() -> None:
    """`files_of` fails for a path that matches nothing."""
    played = set(files_of(PATHS))
    replaced = [file for paths in REPLACED.values() for file in files_of(paths)]
    assert len(replaced) == len(set(replaced))
    assert not played & set(replaced)

"""The digest of code: what changes it, and what does not."""

from pathlib import Path

import pytest

from tests.evidence.code import digest, modules

FILES = {
    "main.py": "from package import direct\n",
    "package/__init__.py": "",
    "package/direct.py": "def call():\n    import package.sub.late\n    return f('package.lazy:name')\n",
    "package/sub/__init__.py": "",
    "package/sub/late.py": "more = 0\n",
    "package/lazy.py": 'class Thing:\n    """One."""\n\n    size = 1  # metre\n',
    "package/other.py": "import main\n",
}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """`main`, which imports all but `package.other`."""
    (tmp_path / "package" / "sub").mkdir(parents=True)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", [name for name in FILES if name != "package/other.py"])
def test_a_change_of_what_is_imported_changes_the_digest(code: Path, name: str) -> None:
    """At the head of a module, in a function, by a string; the packages of a module are imported with it."""
    before = digest(["main"], code)
    with (code / name).open("a") as file:
        file.write("more = 1\n")
    assert digest(["main"], code) != before


def test_what_is_not_imported_does_not(code: Path) -> None:
    """Nor are modules elsewhere part of it."""
    before = digest(["main"], code)
    (code / "package" / "other.py").write_text("import main, sys, click\n")
    assert digest(["main"], code) == before
    assert sorted(modules(["main"], code)) == [
        "main",
        "package",
        "package.direct",
        "package.lazy",
        "package.sub",
        "package.sub.late",
    ]


@pytest.mark.parametrize(
    "text",
    ['class Thing:\n    """Two."""\n\n    size = 1\n', '"""Module."""\n# Comment.\n\nclass Thing:\n  size=(1)\n'],
)
def test_comments_docstrings_and_layout_do_not(code: Path, text: str) -> None:
    """They change nothing of what is run."""
    before = digest(["main"], code)
    (code / "package" / "lazy.py").write_text(text)
    assert digest(["main"], code) == before


@pytest.mark.parametrize(
    "text", ["class Thing:\n    size = 2\n", "class Thing:\n    'no docstring'[0]\n    size = 1\n", "x = = 1"]
)
def test_any_other_text_does(code: Path, text: str) -> None:
    """Also of a file that is no Python yet."""
    for before in (FILES["package/lazy.py"], "x = = 22"):
        (code / "package" / "lazy.py").write_text(before)
        digest_before = digest(["main"], code)
        (code / "package" / "lazy.py").write_text(text)
        assert digest(["main"], code) != digest_before


def test_a_module_that_moves_changes_it(code: Path) -> None:
    """Its name is part of it."""
    before = digest(["package.sub.late"], code)
    (code / "package" / "sub" / "late.py").rename(code / "package" / "sub" / "later.py")
    assert digest(["package.sub.later"], code) != before

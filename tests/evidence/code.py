"""Which code a machine ran: a digest of the modules that its commands import. No history is needed, and none can change it.

It is of what the modules do, without comments, docstrings and layout, so that a commit of those alone keeps what was reached.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

SIZE = 12  # hexadecimal digits


class _Module(NamedTuple):
    """`hash`: of what it does. `names`: of modules, and of what is in them; other words are among them."""

    hash: str
    names: frozenset[str]


def digest(roots: Iterable[str], directory: Path = Path()) -> str:
    """Of these modules of `directory`, and of all there that they import, wherever in their text."""
    found = modules(roots, directory)
    return _hash("\n".join(f"{name} {found[name]}" for name in sorted(found)).encode())[:SIZE]


def modules(roots: Iterable[str], directory: Path = Path()) -> dict[str, str]:
    """The modules by their names, with a hash of what each does."""
    found: dict[str, str] = {}
    left = set(roots)
    seen: set[str] = set()  # also names of no modules, most of them
    while left:
        name = left.pop()
        seen.add(name)
        file = _file(name, directory)
        if file is None:
            continue
        module = _read(file, file.stat().st_mtime_ns, file.stat().st_size)
        found[name] = module.hash
        left |= {*module.names, name.rpartition(".")[0]} - seen
    return found


def _file(name: str, directory: Path) -> Path | None:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    path = directory.joinpath(*parts)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _read(file: Path, _changed: int, _size: int) -> _Module:
    """A run of many slices parses a file when it has changed."""
    text = file.read_bytes()
    try:
        tree = ast.parse(text, file)
    except SyntaxError:  # somebody is writing it
        return _Module(_hash(text), frozenset())
    names = frozenset(name for node in ast.walk(tree) for name in _named(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = _without_docstring(node.body)
    return _Module(_hash(ast.dump(tree).encode()), names)


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _named(node: ast.AST) -> Iterator[str]:
    """What an import names. A string may be such a name as well: the commands and `adapter.client` are imported by theirs."""
    match node:
        case ast.Import(names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(str(module), names, 0):
            yield module
            yield from (f"{module}.{alias.name}" for alias in names)
        case ast.Constant(str(value)) if "." in value:
            yield value.partition(":")[0]


def _without_docstring(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(ast.Constant(str())), *rest]:
            return rest
    return list(body)

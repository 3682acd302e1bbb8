"""How many classes a commit meets, of how many parts a class is made, what a name means."""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import grpc.aio
import pytest

import adapter
from adapter.rpc import offsets_pb
from adapter.rpc.offsets_pb2_grpc import OffsetStoreStub
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import eventually
from tests.durability.inprocess import over_grpc

ROOT = Path(adapter.__file__).parent
MOST_CLASSES = {"plain": 39, "any": 56}  # whose code runs; these may only fall
MOST_ARGUMENTS = 6
SMALL_LINES, MOST_SMALL = 8, 58  # private functions with one use; may only fall: a step is read where it is taken
PROCESSES = ("sidecar", "console")  # in which each public name has one meaning


class Met:
    """Which classes of the product ran, by file and name."""

    def __init__(self) -> None:
        self.classes: set[str] = set()
        self._known: dict[str, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Take a call of the profiler."""
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(ROOT)) and "/rpc/" not in file and "/testing/" not in file:
            name = frame.f_code.co_qualname.split(".")[0]
            if file not in self._known:
                self._known[file] = {node.name for node in _tree(Path(file)).body if isinstance(node, ast.ClassDef)}
            if name in self._known[file]:
                self.classes.add(f"{Path(file).relative_to(ROOT)} {name}")


@pytest.mark.parametrize("kind", MOST_CLASSES)
async def test_a_commit_meets_few_classes_from_the_socket_to_the_meta_service(tmp_path: Path, kind: str) -> None:
    """A plain one, or any, and its flush, without the evaluation of lag. The list is printed when it is too long."""
    meta, met = FakeMeta(), [Met() for _ in range(3)]

    async def as_it_is(_: object) -> None: ...

    async with (
        over_grpc(meta, as_it_is) as client,
        running_sidecar(adapter_config(tmp_path, lag={"shards": 0}), client) as sidecar,
        grpc.aio.insecure_channel(sidecar.addresses[0]) as channel,
    ):
        commit = OffsetStoreStub(channel).CommitOffsets
        for offset in range(1, 20):
            await commit(_request(offset))
        await eventually(lambda: _newest(meta) == 19)
        dirty = sidecar.core().ledger.dirty
        for number, one in enumerate(met):
            sys.setprofile(one)
            try:
                if kind == "any":
                    columns = offsets_pb.GroupCommits(group=f"new-{number}", shard_names=["a", "b"], offsets=[1, 1], generation=1)
                    await commit(offsets_pb.CommitOffsetsRequest(groups=[columns, *_request(1).groups]))
                await commit(_request(20 + number))
                await eventually(lambda newest=20 + number: _newest(meta) == newest and not dirty)  # type: ignore[misc]
            finally:
                sys.setprofile(None)
    always = set.intersection(*(one.classes for one in met))  # on a busy machine what runs by the clock comes in between
    assert len(always) <= MOST_CLASSES[kind], "\n".join(sorted(always))
    assert {"sidecar/ledger/ledger.py Ledger", "sidecar/engine/flusher.py Flusher"} <= always


def test_a_class_of_engine_and_ledger_is_made_of_few_parts() -> None:
    """Constructors have at most six arguments, however they are given."""
    found = {}
    for room in ("engine", "ledger"):
        for file in (ROOT / "sidecar" / room).glob("*.py"):
            for node in _tree(file).body:
                for method in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(node, ast.ClassDef) and isinstance(method, ast.FunctionDef) and method.name == "__init__":
                        found[f"{file.name} {node.name}"] = len(method.args.args) + len(method.args.kwonlyargs) - 1
    assert found
    assert {name: count for name, count in found.items() if count > MOST_ARGUMENTS} == {}


def test_few_private_functions_are_small_and_used_once() -> None:
    """Those whose name explains a rule. The list is printed when it is too long."""
    found = []
    for room in ("engine", "ledger"):
        for file in sorted((ROOT / "sidecar" / room).glob("*.py")):
            nodes = [*ast.walk(_tree(file))]
            uses = Counter(_used(node) for node in nodes)
            for node in nodes:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match("_[a-z]", node.name):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    if lines <= SMALL_LINES and uses[node.name] == 1:
                        found.append(f"{room}/{file.name} {node.name}")
    assert found
    assert len(found) <= MOST_SMALL, "\n".join(found)


def test_a_public_name_has_one_meaning_in_a_process() -> None:
    """Classes, and aliases of types."""
    for process in PROCESSES:
        places = defaultdict(list)
        for file in (ROOT / process).rglob("*.py"):
            for name in _names(_tree(file)):
                places[name].append(str(file.relative_to(ROOT)))
        assert {name: files for name, files in places.items() if len(files) > 1} == {}


def _request(offset: int) -> offsets_pb.CommitOffsetsRequest:
    shards = [offsets_pb.ShardCommit(shard="s", offset=offset)]
    return offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=shards)])


def _newest(meta: FakeMeta) -> int:
    return max((entry.record.offset for save in meta.saves for entry in save), default=0)


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if re.match(r"[A-Z][a-z]", name) and not (isinstance(node.value, ast.Call) and _called(node.value) == "TypeVar"):
                yield name


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _used(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""

"""A release and this program in all four pairs, up and down again on the same directories, under load, with kill -9."""

import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from adapter.runtime.durable import format_mark
from adapter.testing.history import History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from tests.durability.etcd_cluster import etcd
from tests.durability.etcd_cluster import meta_process as etcd_meta_process
from tests.durability.load import Load, Watcher, running_load, watching
from tests.durability.machine import require
from tests.durability.test_crash import expect_recovered, restart_and_verify, start, stop_and_compare
from tests.upgrade.fixtures import running_etcd
from tests.upgrade.releases import (
    LIST,
    LOCK,
    ROOT,
    Program,
    Release,
    add,
    from_git,
    last_release,
    of_release,
    program_of,
    releases,
)

COMMITS = 200  # acknowledged with each pair


async def exchange(load: Load, watcher: Watcher, before: ServiceProcess, after: ServiceProcess, adapter: ServiceProcess) -> None:
    """Kill a process under load, start the other program on its directory, and compare all that was acknowledged and read."""
    await load.progress(COMMITS)
    before.kill()
    if after is adapter:
        found = await restart_and_verify(load, adapter)
    else:
        await start(after)
        await load.progress(COMMITS)
        adapter.kill()
        found = await restart_and_verify(load, adapter)
    await expect_recovered(load, adapter, watcher, found)
    load.resume()


def exchanged() -> list[Any]:
    """The last release, and the one before it, which a release is exchanged with before it goes out."""
    before, last = releases()[-2:]
    return [pytest.param(before, id=before.name, marks=pytest.mark.release), pytest.param(last, id=last.name)]


@pytest.fixture(params=exchanged())
def program(request: pytest.FixtureRequest) -> Program:
    """That of the last release, and of the one before: a fleet goes up from both."""
    program = program_of(request.param)
    asked = [*program.python, "-c", "import adapter; print(adapter.__file__)"]
    told = subprocess.run(asked, env={**os.environ, **program.environment}, check=True, capture_output=True, text=True)
    assert Path(told.stdout.strip()).is_relative_to(program.tree)
    return program


async def test_a_release_and_this_program_are_exchanged_under_load(program: Program, tmp_path: Path) -> None:
    """Up in the documented order, down again, and up: each pair serves, nothing is lost and nothing goes back (1, 2, 3)."""
    history = History()
    new_meta = meta_process(tmp_path)
    new_adapter = adapter_process(tmp_path, new_meta.address)
    old_meta, old_adapter = of_release(new_meta, program), of_release(new_adapter, program)
    with ended(old_meta, old_adapter, new_meta, new_adapter):
        await start(old_meta, old_adapter)
        async with running_load(new_adapter.address, history) as load, watching(new_meta.address, history) as watcher:
            await exchange(load, watcher, old_meta, new_meta, old_adapter)
            await exchange(load, watcher, old_adapter, new_adapter, new_adapter)
            await exchange(load, watcher, new_meta, old_meta, new_adapter)
            await exchange(load, watcher, new_adapter, old_adapter, old_adapter)
            await exchange(load, watcher, old_meta, new_meta, old_adapter)
            await exchange(load, watcher, old_adapter, new_adapter, new_adapter)
            await stop_and_compare(load, new_adapter, watcher)
    assert marked(tmp_path) == {"meta", "adapter"}


async def test_meta_services_on_etcd_are_exchanged_under_load(program: Program, tmp_path: Path) -> None:
    """Those of a release and of this program, on the same Raft groups, one after the other and side by side (1, 2, 3)."""
    require("the exchange of Meta Services on etcd", etcd)
    history = History()
    with running_etcd(tmp_path / "etcd") as groups:
        new_meta, beside = (
            etcd_meta_process(tmp_path / name, groups[0].endpoints, groups[1].endpoints) for name in ("meta", "beside")
        )
        old_meta, adapter = of_release(new_meta, program), adapter_process(tmp_path, new_meta.address)
        with ended(old_meta, new_meta, beside, adapter):
            await start(old_meta, adapter)
            async with running_load(adapter.address, history) as load, watching(beside.address, history) as watcher:
                await load.progress(COMMITS)
                await start(beside)
                for before, after in ((old_meta, new_meta), (new_meta, old_meta)):
                    await load.progress(COMMITS)
                    before.kill()
                    await start(after)
                    await load.progress(COMMITS)
                await stop_and_compare(load, adapter, watcher)


def test_a_release_that_nobody_has_is_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to do, instead of a test that did not run."""
    monkeypatch.setattr("tests.upgrade.releases.BUILT", tmp_path / "built")
    with pytest.raises(RuntimeError, match=r"the release 0\.0\.1 cannot be built: .* run `git fetch --unshallow`"):
        program_of(Release("0.0.1", "1" * 40))
    assert not (tmp_path / "built").exists()


def test_a_new_release_is_listed_with_its_commit_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the newest one, and once."""
    listed = tmp_path / "releases.toml"
    shutil.copy(LIST, listed)
    before = releases()
    monkeypatch.setattr("tests.upgrade.releases.LIST", listed)
    add("99.0.0", "HEAD")
    assert releases()[:-1] == before
    assert last_release().name == "99.0.0"
    assert re.fullmatch("[0-9a-f]{40}", last_release().commit)
    with pytest.raises(RuntimeError, match=r"99\.0\.0 is there already"):
        add("99.0.0", "HEAD")
    with pytest.raises(RuntimeError, match="there is no commit 1111111"):
        add("99.0.1", "1" * 40)


def test_a_shallow_clone_has_the_program_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one of the commit, wherever git has that."""
    release = last_release()
    with suppress(RuntimeError):  # git does not have it here
        assert files_of(lzma.decompress(release.program.read_bytes())) == files_of(from_git(release))
    (tmp_path / "requirements").mkdir()
    shutil.copy(ROOT / LOCK, tmp_path / LOCK)
    monkeypatch.setattr("tests.upgrade.releases.ROOT", tmp_path)
    monkeypatch.setattr("tests.upgrade.releases.BUILT", tmp_path / "built")
    monkeypatch.setattr("tests.upgrade.releases._own_interpreter", lambda _: Path(sys.executable))
    program = program_of(release)
    told = subprocess.run(
        [*program.command, "--help"], env={**os.environ, **program.environment}, check=True, capture_output=True
    )
    assert b"offset" in told.stdout
    assert (program.tree / "adapter" / "__init__.py").exists()


def files_of(archive: bytes) -> dict[str, bytes]:
    """The files of a tar, by name."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        return {member.name: file.read() for member in members if (file := members.extractfile(member))}


def marked(directory: Path) -> set[str]:
    """Which of the stores carry a mark."""
    return {name for name in ("meta", "adapter") if (directory / name / format_mark.FILE).exists()}

"""Backups of both stores while they are written to, and putting them back, with real processes and kill -9 in the middle."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from adapter.cli.backup.directory import _PARTIAL
from adapter.client.client import OffsetClient
from adapter.errors import StoreDamagedError
from adapter.metaservice.rocksdb import restore as of_meta
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.model.records import ReadMode
from adapter.rpc import metadata_grpc, metadata_pb, offsets_pb
from adapter.runtime.durable.backups import ADAPTER as ADAPTER_STORE
from adapter.runtime.durable.backups import META as META_STORE
from adapter.runtime.durable.backups import RESTORING, Backup, backups_in
from adapter.runtime.durable.checkpoint import DIRECTORY
from adapter.sidecar.ledger import restore as of_adapter
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.history import ADAPTER, History
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.durability.callers import WAIT_S, Callers, check_local, check_remote, local_positions, under
from tests.durability.killing import NEVER, Commands, places
from tests.durability.restored import NOTICED, at_least_in
from tests.integration.helpers import status_of, until_clean

KINDS: dict[str, tuple[str, ...]] = {ADAPTER_STORE: (), META_STORE: ("meta",)}  # kind of a store -> what its commands begin with
CHECKS: dict[str, Callable[[Path, int], object]] = {ADAPTER_STORE: of_adapter.check, META_STORE: of_meta.check}


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    """Starts the commands of all tests."""
    with Commands.started() as found:
        yield found


def whole(path: Path) -> Backup:
    """A backup, of which all files are as they were written, and all rows are there."""
    backup = Backup.load(path)
    backup.check_files()
    CHECKS[backup.kind](backup.database, backup.seq)
    return backup


async def flushed(*adapters: ServiceProcess) -> None:
    """Everything that these have acknowledged is in the Meta Service."""
    for adapter in adapters:
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            await until_clean(client)


async def check(adapter: ServiceProcess, history: History) -> None:
    """What an adapter holds of the keys of a history contradicts nothing."""
    reading, keys = history.reading(ADAPTER), history.least(ADAPTER).keys()
    reading.found({key: position for key, position in (await local_positions(adapter)).items() if key in keys})
    assert history.check() == []


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[tuple[ServiceProcess, ServiceProcess]]:
    """A Meta Service and an adapter."""
    meta = meta_process(tmp_path / "m")
    adapter = adapter_process(tmp_path / "a", meta.address)
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        yield meta, adapter


async def test_backups_under_load_are_whole_and_a_kill_in_the_middle_leaves_those_before(
    tmp_path: Path, commands: Commands
) -> None:
    """Of the command, or of the process that is backed up. What that acknowledged is there, and nothing of a backup is left."""
    history = History()
    async with two(tmp_path) as (meta, adapter), under(Callers(adapter.address, history)) as load:
        await load.acknowledged_more(200)
        for kind, server in ((ADAPTER_STORE, adapter), (META_STORE, meta)):
            store, directory = tmp_path / ("a/adapter" if server is adapter else "m/meta"), tmp_path / kind
            words: tuple[str | Path, ...] = (*KINDS[kind], "backup", directory, "--address", server.address)

            async def take(at: int = NEVER, victim: ServiceProcess | None = None) -> tuple[int, str, int]:
                while True:
                    found = await asyncio.to_thread(commands.run, *words, below=directory, at=at, victim=victim)  # noqa: B023
                    if "is being taken already" not in found.said:  # for a killed command, of whose end the server has not heard
                        return found

            code, said, steps = await take()
            assert code == 0, said
            for at in places(steps):
                before = backups_in(directory)
                code, said, _ = await take(at)
                assert code in {-9, 0}, said
                assert before == backups_in(directory)[: len(before)]
                await load.acknowledged_more(10)
            for at in places(steps, some=2, last=0):
                before = backups_in(directory)
                code, said, _ = await take(at, victim=server)
                assert "UNAVAILABLE" in said if code else backups_in(directory) != before, said
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                assert not (store / DIRECTORY).exists()
                await load.acknowledged_more(10)
            code, said, _ = await take()
            assert code == 0, said
            assert not (directory / _PARTIAL).exists()
            assert not (store / DIRECTORY).exists()
            found = [whole(path) for path in backups_in(directory)]
            assert [backup.seq for backup in found] == sorted(backup.seq for backup in found)
    async with two_again(meta, adapter):
        await check_local(adapter, history)


@asynccontextmanager
async def two_again(meta: ServiceProcess, adapter: ServiceProcess) -> AsyncIterator[None]:
    """The same processes, started once more."""
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        yield


def _opens(kind: str, path: Path) -> None:
    """Open a store as its process does, and close it. Raises what that meets."""
    if kind == ADAPTER_STORE:
        LocalStore.open(path, "interval").close()
        return
    RocksDbEngine.open(path).close()


async def test_a_restore_that_is_killed_is_no_store_yet_and_can_be_repeated(tmp_path: Path, commands: Commands) -> None:
    """At no step is there a store that opens, and has less than the backup; a store that is there is left alone."""
    async with two(tmp_path) as (meta, adapter):
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            await client.commit("g", {f"s{at}": at for at in range(100)})
            await until_clean(client)
        for kind, server in ((ADAPTER_STORE, adapter), (META_STORE, meta)):
            code, said, _ = commands.run(*KINDS[kind], "backup", tmp_path / kind, "--address", server.address, below=tmp_path)
            assert code == 0, said
    for kind, begins in KINDS.items():
        store, config = tmp_path / "put-back" / kind, tmp_path / f"{kind}.toml"
        config.write_text(f"[store]\npath = '{store}'\n")
        words: tuple[str | Path, ...] = (*begins, "restore", tmp_path / kind, "--config", config)
        code, said, steps = commands.run(*words, below=store)
        assert code == 0, said
        (backup,) = map(whole, backups_in(tmp_path / kind))
        kills = 0
        for at in places(steps):
            shutil.rmtree(store)
            code, said, _ = commands.run(*words, below=store, at=at)
            kills += code == -9
            assert code in {-9, 0}, said  # RocksDB does not make as many files each time
            if not (store / "db").exists():
                if (store / RESTORING).exists():
                    with pytest.raises(StoreDamagedError, match="a restore has not come to its end"):
                        _opens(kind, store)
                    assert not (store / "db").exists()
                code, said, _ = commands.run(*words, below=store)
                assert code == 0, said
            CHECKS[kind](store / "db", backup.seq)
            _opens(kind, store)
        assert kills >= len(places(steps)) - 2
        code, said, _ = commands.run(*words, below=store)
        assert (code, "there is a store already" in said) == (2, True), said


async def test_a_meta_service_that_was_put_back_gets_what_came_since_from_the_adapters(
    tmp_path: Path, commands: Commands
) -> None:
    """Commits, resets and deletes of adapters that ran, that were stopped, and of new ones: no consumer reads twice, or skips.

    What no adapter has is as old as the backup, and no revision of metadata comes again.
    """
    meta = meta_process(tmp_path / "m")
    running, stopped, new = (adapter_process(tmp_path / name, meta.address, top=f"broker = '{name}'") for name in ("r", "s", "n"))
    histories = {name: History() for name in "rs"}
    with ended(meta, running, stopped, new):
        meta.start()
        for adapter, (name, history) in zip((running, stopped), histories.items(), strict=True):
            adapter.start()
            await Callers(adapter.address, history, group=name, callers=2).run(turns=1)
        async with OffsetClient.connect(running.address, WAIT_S) as client:
            await client.commit("reset", {"s": 50})
            await client.commit("deleted", {"s": 50})
            await client.commit("handed-over", {"s": 50})
            await _put(meta, "before")
            await flushed(running, stopped)
            code, said, _ = commands.run("meta", "backup", tmp_path / "b", "--address", meta.address, below=tmp_path / "b")
            assert code == 0, said
            for adapter, (name, history) in zip((running, stopped), histories.items(), strict=True):
                await Callers(adapter.address, history, group=name, callers=2).run(turns=2)
            await client.admin.ResetOffsets(offsets_pb.ResetOffsetsRequest(group="reset", to_offset=7, execute=True))
            await client.admin.DeleteOffsets(offsets_pb.DeleteOffsetsRequest(group="deleted", execute=True))
            await client.commit("handed-over", {"s": 60})
            await client.persist("handed-over", ["s"])
            await client.remove("handed-over", ["s"])
            revision = await _put(meta, "after")
        await flushed(running, stopped)
        assert stopped.stop() == 0
        meta.kill()
        shutil.rmtree(tmp_path / "m/meta")
        code, said, _ = commands.run("meta", "restore", tmp_path / "b", "--config", tmp_path / "m/meta.toml", below=tmp_path)
        assert code == 0, said
        meta.start()
        stopped.start()
        await eventually(lambda: "meta.compared_again" in running.log, WAIT_S)
        assert NOTICED in running.log
        new.start()
        for adapter, history in zip((running, stopped), histories.values(), strict=True):
            await at_least_in(meta, history)
            history.carrying().done()
            await check_remote(meta, history)
            await check(adapter, history)
        async with OffsetClient.connect(new.address, WAIT_S) as client:
            for group, offsets in (("reset", {"s": 7}), ("deleted", {}), ("handed-over", {"s": 50})):
                found = {shard: row.offset for shard, row in (await client.read(group, mode=ReadMode.STORE)).items()}
                assert found == offsets, group
        with pytest.raises(grpc.RpcError, match="expected was"):
            await _put(meta, "of a writer from before", expected=revision)
        assert await _put(meta, "again") > revision
        said = commands.run("meta", "status", "--address", meta.address, below=tmp_path).said
        assert "incarnation 2" in said
        assert "it was restored from the backup of" in said


async def test_an_adapter_that_was_put_back_goes_back_in_nothing(tmp_path: Path, commands: Commands) -> None:
    """What the Meta Service got since is looked up there, also groups that the backup does not know. Write counters go on."""
    history = History()
    async with two(tmp_path) as (_, adapter):
        await Callers(adapter.address, history).run(turns=1)
        code, said, _ = commands.run("backup", tmp_path / "b", "--address", adapter.address, below=tmp_path / "b")
        assert code == 0, said
        await Callers(adapter.address, history).run(turns=2)
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            await client.commit("new", {"s": 5})
        await flushed(adapter)
        before = status_of(adapter).store
        adapter.kill()
        shutil.rmtree(tmp_path / "a/adapter")
        code, said, _ = commands.run("restore", tmp_path / "b", "--config", tmp_path / "a/serve.toml", below=tmp_path)
        assert code == 0, said
        adapter.start()
        await check(adapter, history)
        async with OffsetClient.connect(adapter.address, WAIT_S) as client:
            assert (await client.read("new", mode=ReadMode.STORE))["s"].offset == 5
        after = status_of(adapter)
        assert "it was restored from the backup of" in after.loss.why
        assert (after.store.id, after.store.seq > before.seq) == (before.id, True)
        await Callers(adapter.address, history).run(turns=1)
        adapter.kill()
        adapter.start()
        await check(adapter, history)
        assert adapter.log.count("store.acknowledged_writes_lost") == 1
        code, said, _ = commands.run("backup", tmp_path / "b", "--address", adapter.address, below=tmp_path / "b")
        assert code == 0, said
        older, newer = map(whole, backups_in(tmp_path / "b"))
        assert (newer.store_id, newer.seq > older.seq) == (older.store_id, True)


async def _put(meta: ServiceProcess, value: str, expected: int | None = None) -> int:
    """Write a metadata entry; returns its revision."""
    async with grpc.aio.insecure_channel(meta.address) as channel:
        request = metadata_pb.PutRequest(key="k", value=value.encode(), expected_revision=expected)
        return (await metadata_grpc.MetadataStoreStub(channel).Put(request, timeout=WAIT_S)).revision

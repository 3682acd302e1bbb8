"""The file of LocalFileOffsetStore: its path, its content, and the choice between the file and its .bak when one is torn."""

import asyncio
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest
import structlog.testing

from adapter.client.offset_store.local_file import LocalFileOffsetStore
from adapter.client.offset_store.store import OffsetStoreError, ReadOffsetType
from adapter.errors import InvalidInputError
from adapter.model.queues import MessageQueue

A, B = (MessageQueue("orders", number, "broker-a") for number in range(2))
CLIENT_ID = "192.168.1.5@DEFAULT"
STORE = ReadOffsetType.READ_FROM_STORE
# As the client of RocketMQ 5.3.3 writes it: a key is an object.
JAVA = '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"orders"\n\t\t}:17\n\t}\n}'


def store_in(directory: Path) -> LocalFileOffsetStore:
    """A store of the group `audit`."""
    return LocalFileOffsetStore(directory, CLIENT_ID, "audit")


async def stored_in(directory: Path) -> dict[MessageQueue, int]:
    """The offsets that another process reads."""
    store = store_in(directory)
    await store.load()
    return store.clone_offset_table()


async def with_two_files(directory: Path) -> tuple[Path, Path]:
    """A store whose file has offset 2 and whose .bak has offset 1."""
    store = store_in(directory)
    for offset in (1, 2):
        store.update_offset(A, offset)
        await store.persist(A)
    return store.path, store.path.with_name("offsets.json.bak")


async def test_the_file_is_where_the_java_client_looks(tmp_path: Path) -> None:
    """LocalFileOffsetStore.java:45 and :56, with the directory in place of user.home."""
    store = store_in(tmp_path)
    store.update_offset(A, 1)
    await store.persist(A)
    assert (tmp_path / ".rocketmq_offsets" / CLIENT_ID / "audit" / "offsets.json").is_file()
    assert sorted(path.name for path in store.path.parent.iterdir()) == ["FORMAT", "offsets.json"]


@pytest.mark.parametrize("name", ["", ".", "..", "../g", "/etc", "a/b", "a\0b", "n" * 256])
def test_a_name_that_is_not_one_part_of_a_path_is_refused(tmp_path: Path, name: str) -> None:
    """No client id or group can lead to a file outside of the directory."""
    with pytest.raises(InvalidInputError, match="client_id"):
        LocalFileOffsetStore(tmp_path, name, "g")
    with pytest.raises(InvalidInputError, match="group"):
        LocalFileOffsetStore(tmp_path, "c", name)


async def test_names_of_rocketmq_are_parts_of_a_path(tmp_path: Path) -> None:
    """Retry groups, IPv6 addresses, spaces and other scripts are accepted."""
    for client_id, group in [("fe80::1%eth0@4711#88", "%RETRY%g"), ("...", "группа 1"), ("~", "-rf")]:
        store = LocalFileOffsetStore(tmp_path, client_id, group)
        store.update_offset(A, 3)
        await store.persist(A)
        assert await LocalFileOffsetStore(tmp_path, client_id, group).read_offset(A) == 3


@pytest.mark.parametrize("queue", [MessageQueue("orders", 0), MessageQueue("a/b", 0, "b"), MessageQueue("", 0, "b")])
async def test_a_queue_that_the_file_cannot_name_is_refused_at_once(tmp_path: Path, queue: MessageQueue) -> None:
    """The update is refused, so that the persist of other queues cannot fail because of it."""
    for put in (store_in(tmp_path).update_offset, store_in(tmp_path).update_and_freeze_offset):
        with pytest.raises(InvalidInputError):
            put(queue, 1)
    with pytest.raises(InvalidInputError):
        await store_in(tmp_path).read_offset(queue)


@pytest.mark.parametrize("offset", [-1, 2**63, 1.5, "7", None])
def test_an_offset_that_java_cannot_hold_is_refused_at_once(tmp_path: Path, offset: int) -> None:
    """A Java long goes to 2^63 - 1; its -1 (none) is None here."""
    store = store_in(tmp_path)
    for put in (store.update_offset, store.update_and_freeze_offset):
        with pytest.raises(InvalidInputError, match="offset"):
            put(A, offset)
    assert store.clone_offset_table() == {}


async def test_a_file_of_the_java_client_is_read_and_its_other_queues_are_kept(tmp_path: Path) -> None:
    """As LocalFileOffsetStore.persistAll:145, which reads the file before it writes."""
    store = store_in(tmp_path)
    store.path.parent.mkdir(parents=True)
    store.path.write_text(JAVA)
    store.update_offset(B, 2**63 - 1)
    await store.persist_all([B])
    assert await stored_in(tmp_path) == {A: 17, B: 2**63 - 1}
    assert store.path.with_name("offsets.json.bak").read_text() == JAVA


@contextmanager
def held_by_another(path: Path) -> Iterator[None]:
    """Hold the file's lock in another process."""
    directory = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(directory)


def waits_for_a_lock() -> bool:
    """Whether the kernel says that a thread waits for a lock."""
    return any("->" in line and f" {os.getpid()} " in line for line in Path("/proc/locks").read_text().splitlines())


async def until_waiting(task: asyncio.Task[Any]) -> None:
    """Wait until a thread of this process waits for a lock."""
    while not waits_for_a_lock():
        assert not task.done()
        await anyio.lowlevel.checkpoint()


async def test_processes_that_share_a_file_wait_for_each_other(tmp_path: Path) -> None:
    """Without a lock, one process could overwrite what the other has just merged."""
    path, _ = await with_two_files(tmp_path)
    store = store_in(tmp_path)
    store.update_offset(B, 5)
    with held_by_another(path):
        persist = asyncio.create_task(store.persist(B))
        await until_waiting(persist)
        path.write_text(JAVA)
    await persist
    assert await stored_in(tmp_path) == {A: 17, B: 5}


async def test_a_cancelled_persist_is_made_up_for_and_never_comes_after_a_newer_one(tmp_path: Path) -> None:
    """Its thread may still wait for another process's lock when the next persist begins."""
    path, _ = await with_two_files(tmp_path)
    store = store_in(tmp_path)
    store.update_offset(A, 5)
    with held_by_another(path):
        persist = asyncio.create_task(store.persist(A))
        await until_waiting(persist)
        persist.cancel()
        with pytest.raises(asyncio.CancelledError):
            await persist
    store.update_offset(A, 4)
    await store.persist(A)
    await asyncio.to_thread(store._merge_into_file, {A: 5}, 1)
    assert await stored_in(tmp_path) == {A: 4}


async def test_what_is_said_while_the_file_is_read_is_newer(tmp_path: Path) -> None:
    """An update during the read stays; RocketMQ's client would overwrite it."""
    path, _ = await with_two_files(tmp_path)
    store = store_in(tmp_path)
    with held_by_another(path):
        read = asyncio.create_task(store.read_offset(A, STORE))
        await until_waiting(read)
        store.update_offset(A, 1)
    assert await read == 2
    assert store.clone_offset_table() == {A: 1}


async def test_where_directories_cannot_be_locked_the_file_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Home directories are often on NFS, which may refuse locks."""
    monkeypatch.setattr(fcntl, "flock", refuse)
    await with_two_files(tmp_path)
    assert await stored_in(tmp_path) == {A: 2}


def refuse(*_: Any) -> None:
    """Refuse the lock as NFS does."""
    raise OSError(errno.EBADF, os.strerror(errno.EBADF))


async def test_nothing_new_is_nothing_written(tmp_path: Path) -> None:
    """A persist without changes leaves the file and its .bak as they are."""
    path, backup = await with_two_files(tmp_path)
    before = path.stat(), backup.stat()
    store = store_in(tmp_path)
    await store.load()
    store.update_offset(A, 2)
    await store.persist_all([A])
    assert (path.stat(), backup.stat()) == before


async def test_a_file_that_was_removed_is_made_anew_as_a_whole(tmp_path: Path) -> None:
    """The new file has all persisted queues, changed or not."""
    store = store_in(tmp_path)
    store.update_offset(A, 1)
    store.update_offset(B, 1)
    await store.persist_all([A, B])
    store.path.unlink()
    store.update_offset(B, 2)
    await store.persist_all([A, B])
    assert await stored_in(tmp_path) == {A: 1, B: 2}


async def test_a_file_torn_at_any_byte_falls_back_to_the_one_before(tmp_path: Path) -> None:
    """RocketMQ's client writes in place. Any loss but white space at the end is detected and logged."""
    path, _ = await with_two_files(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole.rstrip())):
        path.write_bytes(whole[:size])
        with structlog.testing.capture_logs() as logs:
            assert await stored_in(tmp_path) == {A: 1}
        assert [(line["event"], line["log_level"]) for line in logs] == [("offset_store.backup_used", "warning")]


async def test_a_persist_over_a_torn_file_keeps_the_backup(tmp_path: Path) -> None:
    """The torn file must not replace the good .bak."""
    path, backup = await with_two_files(tmp_path)
    kept = backup.read_bytes()
    path.write_bytes(path.read_bytes()[:-9])
    store = store_in(tmp_path)
    store.update_offset(B, 5)
    await store.persist(B)
    assert await stored_in(tmp_path) == {A: 1, B: 5}
    assert backup.read_bytes() == kept


async def test_a_crash_between_the_two_renames_loses_nothing(tmp_path: Path) -> None:
    """The .bak has the newest acknowledged offsets, and the temporary file that is left over is replaced."""
    path, backup = await with_two_files(tmp_path)
    path.with_name("offsets.json.new").write_text("torn")
    path.replace(backup)
    with structlog.testing.capture_logs() as logs:
        assert await stored_in(tmp_path) == {A: 2}
    assert logs[0]["reason"] == "the file is not there"
    store = store_in(tmp_path)
    store.update_offset(B, 3)
    await store.persist(B)
    assert await stored_in(tmp_path) == {A: 2, B: 3}
    assert sorted(found.name for found in path.parent.iterdir()) == ["FORMAT", "offsets.json", "offsets.json.bak"]


async def test_what_a_crashed_process_of_the_same_number_left_is_not_in_the_way(tmp_path: Path) -> None:
    """In a container every process may have the process id 1."""
    path, _ = await with_two_files(tmp_path)
    for name in ("offsets.json.new", f".offsets.json.new.{os.getpid()}"):
        path.with_name(name).write_text("torn")
    store = store_in(tmp_path)
    store.update_offset(A, 3)
    await store.persist(A)
    assert await stored_in(tmp_path) == {A: 3}
    assert sorted(found.name for found in path.parent.iterdir()) == ["FORMAT", "offsets.json", "offsets.json.bak"]


@pytest.mark.parametrize(
    ("file", "backup"),
    [("{", "{"), ("", None), (None, ""), ("{}{}", '{"offsetTable":[]}'), ("[]", '{"offsetTable":{"x":1}}'), ("\xff", "{")],
)
async def test_neither_readable_is_an_error_that_names_both(tmp_path: Path, file: str | None, backup: str | None) -> None:
    """The offsets are not treated as absent, and neither file is overwritten."""
    path, beside = await with_two_files(tmp_path)
    for at, text in ((path, file), (beside, backup)):
        at.unlink() if text is None else at.write_text(text, encoding="latin-1")
    store = store_in(tmp_path)
    store.update_offset(B, 5)
    for call in (store.load(), store.read_offset(A), store.read_offset(B, STORE), store.persist(B)):
        with pytest.raises(OffsetStoreError) as failure:
            await call
        assert f"{path}: " in str(failure.value)
        assert f"{beside}: " in str(failure.value)
    found = [at.read_text(encoding="latin-1") if at.exists() else None for at in (path, beside)]
    assert found == [file, backup]
    assert store.clone_offset_table() == {B: 5}


async def test_neither_there_is_no_offsets(tmp_path: Path) -> None:
    """On the first start there is neither a file nor a .bak."""
    assert await stored_in(tmp_path) == {}
    (tmp_path / ".rocketmq_offsets" / CLIENT_ID / "audit").mkdir(parents=True)
    assert await stored_in(tmp_path) == {}


async def test_a_persist_that_failed_is_made_up_for(tmp_path: Path) -> None:
    """The value stays in memory, and the next persist writes it."""
    store = store_in(tmp_path)
    store.update_offset(A, 1)
    (tmp_path / ".rocketmq_offsets").write_text("in the way")
    with pytest.raises(OffsetStoreError) as failure:
        await store.persist_all([A, B])
    assert list(failure.value.failed) == [A]
    (tmp_path / ".rocketmq_offsets").unlink()
    await store.persist_all([A, B])
    assert await stored_in(tmp_path) == {A: 1}


async def test_what_is_released_is_stored_and_forgotten(tmp_path: Path) -> None:
    """The offsets of other queues stay in memory."""
    store = store_in(tmp_path)
    store.update_offset(A, 1)
    store.update_offset(B, 2)
    await store.force_persist([B])
    await store.release([A])
    assert store.clone_offset_table() == {B: 2}
    assert await stored_in(tmp_path) == {A: 1, B: 2}


async def test_the_file_is_json_but_for_its_keys(tmp_path: Path) -> None:
    """Keys are JSON objects, as fastjson writes and reads them."""
    path, _ = await with_two_files(tmp_path)
    key = '{"brokerName":"broker-a","queueId":0,"topic":"orders"}'
    assert json.loads(path.read_text().replace(key, json.dumps(key))) == {"offsetTable": {key: 2}}

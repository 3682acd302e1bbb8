"""The call that streams a backup: its replies, and when it is ended or refused."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from adapter.errors import InvalidInputError, NotReadyError
from adapter.metaservice.backup_service import MetaBackup
from adapter.metaservice.metrics import MetaMetrics
from adapter.rpc import backup_pb
from adapter.runtime.durable import rocks
from adapter.runtime.durable.checkpoint import DIRECTORY, Checkpoints
from adapter.runtime.serving import store_backup
from adapter.runtime.serving.statuses import Context
from adapter.runtime.serving.store_backup import MAX_KNOWN, answer
from tests.unit.calls import AbortedError, context

HEAD = backup_pb.BackupStoreReply.Store(kind="adapter", id=bytes(16))


class Client:
    """The client's end of a call. It reads `reads` replies and then nothing."""

    def __init__(self, reads: int = 1_000) -> None:
        self.replies: list[backup_pb.BackupStoreReply] = []
        self._reads = reads

    async def write(self, reply: backup_pb.BackupStoreReply) -> None:
        """Take a reply, or let the server wait."""
        if len(self.replies) == self._reads:
            await asyncio.Event().wait()
        self.replies.append(reply)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    """Those of an open database."""
    opened = rocks.open_store(tmp_path / "db", ("default",), "advice", lambda db: db.put(b"key", b"value"))
    yield Checkpoints(opened.db, tmp_path)
    opened.close()


async def ask(checkpoints: Checkpoints, client: Client, *known: backup_pb.BackupFile) -> None:
    """Make a call."""
    await answer(HEAD, checkpoints, backup_pb.BackupStoreRequest(known=known), cast("Context", client))


async def test_the_store_comes_first_and_known_files_without_their_bytes(checkpoints: Checkpoints) -> None:
    """So a caller knows whose files they are before it keeps any."""
    client, again = Client(), Client()
    await ask(checkpoints, client)
    head, *parts = client.replies
    assert head.store == HEAD
    files = [reply.sent for reply in parts if reply.HasField("sent")]
    assert sum(file.size for file in files) == sum(len(reply.data) for reply in parts)
    await ask(checkpoints, again, *files)
    assert "CURRENT" in {reply.known.name for reply in again.replies}


async def test_a_reader_that_stands_still_is_cut_off(
    tmp_path: Path, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep files that RocksDB has deleted. The next one is served."""
    with monkeypatch.context() as patch:
        patch.setattr(store_backup, "IDLE_S", 0.01)
        with pytest.raises(NotReadyError, match="its reader did nothing for"):
            await ask(checkpoints, Client(reads=2))
    assert not (tmp_path / DIRECTORY).exists()
    await ask(checkpoints, Client())


async def test_too_many_known_files_are_refused(checkpoints: Checkpoints) -> None:
    """Before anything is done for them."""
    client: Any = Client()
    with pytest.raises(InvalidInputError, match="known: are 20001 files"):
        await ask(checkpoints, client, *[backup_pb.BackupFile()] * (MAX_KNOWN + 1))
    assert not client.replies


async def test_a_meta_service_on_etcd_says_what_to_use() -> None:
    """It has nothing to copy."""
    with pytest.raises(AbortedError) as refused:
        await MetaBackup(None, MetaMetrics()).BackupStore(backup_pb.BackupStoreRequest(), context())
    code, text = refused.value.args
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "etcdctl snapshot save" in text

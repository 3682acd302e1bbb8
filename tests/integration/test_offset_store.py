"""RocketMQ's OffsetStore as a table: what its two implementations do, by file and line at 8fc57f1, and ours after them.

A row is a script of steps. `update`, `raise` (increaseOnly) and `freeze` an offset; `persist`, `remove`, `load`; `persist all` of
the queue, `persist other` of another one, `persist none` of none; `memory`, `store` and `first` say what a read of that type
finds; `elsewhere` is an offset that another process stored; `broken` makes the store unreadable.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from adapter.client.client import OffsetClient
from adapter.client.offset_store.local_file import LocalFileOffsetStore
from adapter.client.offset_store.remote import RemoteOffsetStore
from adapter.client.offset_store.store import OffsetStore, OffsetStoreError, ReadOffsetType
from adapter.errors import MetaUnavailableError
from adapter.formats import files
from adapter.formats.files import Format
from adapter.formats.rows import Naming, OffsetRow
from adapter.model.queues import MessageQueue, shard_of
from adapter.model.records import CommitMode
from adapter.testing.fake_meta import FakeMeta
from tests.integration.helpers import serving

QUEUE = MessageQueue("FooBar", 1, "broker-a")
OTHER = MessageQueue("FooBar", 2, "broker-a")
READS = {
    "memory": ReadOffsetType.READ_FROM_MEMORY,
    "store": ReadOffsetType.READ_FROM_STORE,
    "first": ReadOffsetType.MEMORY_FIRST_THEN_STORE,
}


class Row(NamedTuple):
    """One behaviour: the fact, the steps, and where RocketMQ defines it for each of its stores; empty: it does not apply."""

    fact: str
    steps: str
    remote: str = ""
    local: str = ""


TABLE = [
    Row("an update is in memory", "update 1024; memory 1024", "updateOffset:59", "updateOffset:78"),
    Row("a lower update counts", "update 1024; update 1023; memory 1023", "updateOffset:71", "updateOffset:90"),
    Row(
        "unless it only raises",
        "update 1023; raise 1022; memory 1023; raise 1024; memory 1024",
        "updateOffset:69",
        "updateOffset:88",
    ),
    Row("the first one counts even so", "raise 5; memory 5", "updateOffset:63", "updateOffset:82"),
    Row("zero is an offset", "update 0; memory 0; persist; store 0", "readOffset:92", "readOffset:111"),
    Row(
        "a frozen one stands",
        "freeze 100; update 200; raise 300; update 50; memory 100",
        "updateAndFreezeOffset:77",
        "updateAndFreezeOffset:96",
    ),
    Row(
        "freezing goes both ways",
        "update 200; freeze 100; memory 100; freeze 150; memory 150",
        "updateAndFreezeOffset:79",
        "updateAndFreezeOffset:98",
    ),
    Row(
        "removing ends the freeze",
        "freeze 1024; remove; memory none; update 1023; memory 1023",
        "removeOffset:174",
        "removeOffset:202",
    ),
    Row(
        "what is frozen is persisted, also downwards",
        "update 9; persist; freeze 4; persist; store 4",
        "persist:158",
        "persist:173",
    ),
    Row("memory alone is not asked further", "elsewhere 7; memory none", "readOffset:94", "readOffset:113"),
    Row("memory goes first", "elsewhere 7; update 9; first 9", "readOffset:92", "readOffset:111"),
    Row("then the store", "elsewhere 7; first 7; memory 7", "readOffset:97", "readOffset:117"),
    Row(
        "a store read refreshes memory, also downwards",
        "elsewhere 7; update 9; store 7; memory 7",
        "readOffset:100",
        "readOffset:126",
    ),
    Row("but not a frozen one", "elsewhere 7; freeze 3; store 7; memory 3", "readOffset:100", "readOffset:126"),
    Row("absent in the store leaves memory", "update 1024; store none; memory 1024", "readOffset:104", "readOffset:136"),
    Row("absent everywhere is not 0", "memory none; store none; first none", "readOffset:105", "readOffset:136"),
    # RocketMQ's -2. Its local store returns -1 here, :121, as if there were none.
    Row("failed is not absent", "update 5; broken; store failed; memory 5", "readOffset:110", "readOffset:121"),
    Row("failed with nothing in memory", "broken; first failed; memory none", "readOffset:110", "readOffset:121"),
    Row("a persist stores", "update 1024; persist; store 1024; update 1023; persist; store 1023", "persist:158", "persist:173"),
    Row(
        "what only raised memory not at all is not stored",
        "update 9; persist; raise 8; persist; store 9",
        "persist:162",
        "persist:189",
    ),
    Row("persisting what is not in memory does nothing", "persist; store none", "persist:160", "persist:178"),
    Row("a persist of all stores", "update 1025; persist all; store 1025", "persistAll:134", "persistAll:158"),
    # RocketMQ's local store keeps it in memory, unstored (:156). One contract: here both forget.
    Row(
        "and forgets the others, unstored", "update 9; persist other; memory none; store none", "persistAll:144", "persistAll:156"
    ),
    Row(
        "what it forgot stays stored",
        "update 9; persist; persist other; memory none; first 9",
        "persistAll:151",
        "persistAll:156",
    ),
    Row("of no queues it does nothing", "update 9; persist none; memory 9; store none", "persistAll:123", "persistAll:141"),
    # RocketMQ logs and goes on, :141 and :148: who persists does not learn of it.
    Row("a failed persist loses nothing", "update 9; broken; persist failed; memory 9; persist failed", "", "persist:183"),
    Row("a file is loaded as a whole", "elsewhere 7; load; memory 7", "", "load:68"),
    Row("loading ends the freeze", "elsewhere 7; freeze 3; load; memory 7; update 8; memory 8", "", "load:68"),
    Row("loading a broken file fails", "broken; load failed", "", "load:64"),
    Row("a broker's store loads nothing", "elsewhere 7; load; memory none", "load:55"),
    Row("a commit to the broker is stored at once", "commit 9; store 9", "updateConsumeOffsetToBroker:207"),
    Row("and a file has no broker", "commit 9; memory none; store none", "", "updateConsumeOffsetToBroker:211"),
]


class World(Protocol):
    """A store, and what is behind it."""

    store: OffsetStore

    async def elsewhere(self, offset: int) -> None:
        """Another process stores an offset."""

    def broken(self) -> None:
        """The store cannot be read any more."""


class Remote:
    """Over a real adapter."""

    def __init__(self, client: OffsetClient, impatient: OffsetClient, meta: FakeMeta) -> None:
        self._clients = {"broker-a": client}
        self.store: OffsetStore = RemoteOffsetStore(self._clients, "FooBarGroup")
        self._client = client
        self._impatient = impatient
        self._meta = meta

    async def elsewhere(self, offset: int) -> None:
        """By a commit."""
        await self._client.commit("FooBarGroup", {shard_of(QUEUE): offset}, mode=CommitMode.OVERWRITE)

    def broken(self) -> None:
        """By a Meta Service that is away, as a client finds it that does not wait for it."""
        self._meta.down = MetaUnavailableError("no route")
        self._clients["broker-a"] = self._impatient


class Local:
    """Over a real file."""

    def __init__(self, directory: Path) -> None:
        self._files = LocalFileOffsetStore(directory, "192.168.1.5@DEFAULT", "FooBarGroup")
        self.store: OffsetStore = self._files

    async def elsewhere(self, offset: int) -> None:
        """By a file."""
        self._files.path.parent.mkdir(parents=True)
        row = OffsetRow("default", "FooBarGroup", shard_of(QUEUE), offset)
        files.write(self._files.path, Format.ROCKETMQ_CLIENT, [row], Naming(group="FooBarGroup"))

    def broken(self) -> None:
        """By an empty file without a .bak."""
        self._files.path.parent.mkdir(parents=True)
        self._files.path.write_text("")


@asynccontextmanager
async def world(kind: str, directory: Path) -> AsyncIterator[World]:
    """A store of this kind, and what is behind it."""
    if kind == "LocalFileOffsetStore":
        yield Local(directory)
        return
    meta = FakeMeta()
    async with serving(directory, meta) as (sidecar, client), OffsetClient.connect(sidecar.addresses[-1], 0.2) as impatient:
        yield Remote(client, impatient, meta)


async def step(world: World, name: str, word: str) -> None:
    """Do one step of a script."""
    store = world.store
    if name in READS:
        assert await store.read_offset(QUEUE, READS[name]) == (None if word == "none" else int(word)), f"{name} {word}"
    elif name == "load":
        await store.load()
    elif name == "persist":
        await {
            "": lambda: store.persist(QUEUE),
            "all": lambda: store.persist_all([QUEUE]),
            "other": lambda: store.persist_all([OTHER]),
            "none": lambda: store.persist_all([]),
        }[word]()
    elif name == "commit":
        await store.update_consume_offset_to_broker(QUEUE, int(word))
    elif name == "elsewhere":
        await world.elsewhere(int(word))
    elif name == "broken":
        world.broken()
    elif name == "remove":
        store.remove_offset(QUEUE)
    elif name == "freeze":
        store.update_and_freeze_offset(QUEUE, int(word))
    else:
        store.update_offset(QUEUE, int(word), {"update": False, "raise": True}[name])


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        pytest.param(kind, row, id=f"{source}:{cite}:{row.fact}")
        for row in TABLE
        for kind, source, cite in [
            ("RemoteOffsetStore", "RemoteBrokerOffsetStore", row.remote),
            ("LocalFileOffsetStore", "LocalFileOffsetStore", row.local),
        ]
        if cite
    ],
)
async def test_the_store_does_what_rocketmqs_does(tmp_path_factory: pytest.TempPathFactory, kind: str, row: Row) -> None:
    """Every row of the table, in one life."""
    async with world(kind, tmp_path_factory.mktemp("d")) as about:
        for words in row.steps.split("; "):
            name, _, word = words.partition(" ")
            if word == "failed":
                with pytest.raises(OffsetStoreError):
                    await step(about, name, "" if name == "persist" else "none")
            else:
                await step(about, name, word)


@pytest.mark.parametrize("kind", ["RemoteOffsetStore", "LocalFileOffsetStore"])
async def test_a_clone_is_a_copy_of_one_topic_or_of_all(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    """RemoteBrokerOffsetStore.cloneOffsetTable:183, LocalFileOffsetStore.cloneOffsetTable:217; a blank topic is none."""
    other = MessageQueue("Bar", 0, "broker-a")
    async with world(kind, tmp_path_factory.mktemp("d")) as about:
        store = about.store
        store.update_offset(QUEUE, 1024)
        store.update_and_freeze_offset(other, 7)
        assert store.clone_offset_table("FooBar") == {QUEUE: 1024}
        assert store.clone_offset_table(" ") == store.clone_offset_table() == {QUEUE: 1024, other: 7}
        store.clone_offset_table()[QUEUE] = 0
        assert store.clone_offset_table("FooBar") == {QUEUE: 1024}

"""Offset files exchanged with RocketMQ's own classes, both ways. `make interop` runs it: RocketMQ's jars are needed."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from adapter.formats import broker_places, files, rocksdb_copy
from adapter.formats.files import Format
from adapter.formats.rocketmq_rocksdb import Layout
from adapter.formats.rows import Naming, OffsetRow
from adapter.model.queues import queue_of
from adapter.runtime.durable import rocks
from tests.interop.rocketmq import KINDS, SINGLE, Broker, Client, Kind, Line, newest

TABLE: list[Line] = [
    ("g", "T", 3, 42),
    ("g", "T", 0, 0),
    ("g", "%RETRY%g", 0, 9_007_199_254_740_993),  # over what JavaScript, and so fastjson's BrowserCompatible, writes as a number
    ("g", "%DLQ%g", 0, 9_223_372_036_854_775_807),
    ("g@broadcast", "T", 1, 7),
    ("ns%g", "ns%T", 2_147_483_647, 5),
    ("%LMQ%q", "%LMQ%q", 0, 11),
    ("%LMQ%q", "ordinary", 0, 12),
    *((f"group-{group:02}", "orders", queue, group * queue) for group in range(20) for queue in range(8)),
]
OTHERS: list[Line] = [("pull", "g", "T", 3, 77), ("topic", "T"), ("group", "g")]
STORES = [kind for kind in KINDS if kind.name in {"v1", "v2"}]
FORMS, READ_STORES = [*KINDS, SINGLE], [*STORES, SINGLE]
LAYOUTS: dict[str, Layout] = {"v1": "v1", "v2": "v2"}


def by_name(kind: Kind) -> str:
    """For pytest."""
    return f"{kind.name}-{kind.version}"


each_kind = pytest.mark.parametrize("kind", KINDS, ids=by_name)
each_form = pytest.mark.parametrize("kind", FORMS, ids=by_name)
each_read_store = pytest.mark.parametrize("kind", READ_STORES, ids=by_name)
each_store = pytest.mark.parametrize("kind", STORES, ids=by_name)
each_version = pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])


def offsets(lines: Iterable[Line]) -> list[Line]:
    """What a broker is told."""
    return [("offset", *line) for line in lines]


def answers(lines: Iterable[Line]) -> list[str]:
    """What a broker says that has these."""
    return sorted("\t".join(map(str, line)) for line in offsets(lines))


def format_of(kind: Kind) -> Format:
    """Ours for a broker's."""
    return Format.ROCKETMQ_ROCKSDB if kind in READ_STORES else Format.ROCKETMQ_BROKER


def rows(broker: Broker) -> list[OffsetRow]:
    """All of its offsets, sorted as an export does it. There are no rejects."""
    found = list(files.read(broker.offsets, format_of(broker.kind), Naming()))
    assert not [row for row in found if not isinstance(row, OffsetRow)]
    return sorted(row for row in found if isinstance(row, OffsetRow))


def table(found: Iterable[OffsetRow]) -> list[Line]:
    """Rows as lines."""
    queues = [(row, queue_of(row.shard)) for row in found]
    return sorted((row.group, queue.topic, queue.queue_id, row.offset) for row, queue in queues if queue)


def write(found: list[OffsetRow], broker: Broker) -> None:
    """Ours, at the place of a broker's."""
    broker.offsets.parent.mkdir(parents=True, exist_ok=True)
    files.write(broker.offsets, format_of(broker.kind), found, Naming(), LAYOUTS.get(broker.kind.name, "v1"))


def encoded(broker: Broker) -> Any:
    """What a broker encodes, order aside, and without the version of its data, which is new at each start."""
    document = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', broker.encode()))
    document.pop("dataVersion", None)
    document["groupTopicMap"] = {group: sorted(topics) for group, topics in document.get("groupTopicMap", {}).items()}
    return document


def content(store: Path) -> dict[bytes, bytes]:
    """All rows of a store but the version of its data."""
    with rocksdb_copy.opened(store) as db:
        return {key: value for key, value in rocks.scan(db, b"", b"") if not key.endswith(b"data_version")}


def digests(directory: Path) -> dict[str, tuple[str, int]]:
    """Of each file, its content and when it was changed."""
    return {file.name: (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_mtime_ns) for file in directory.iterdir()}


@each_form
def test_what_a_broker_wrote_is_read_as_it_is(kind: Kind, tmp_path: Path) -> None:
    """All kinds of names and numbers; none more, none less."""
    broker = Broker(kind, tmp_path / "broker")
    broker.write(offsets(TABLE))
    assert table(rows(broker)) == sorted(TABLE)


@each_kind
def test_a_broker_loads_what_is_written_here_as_if_it_were_its_own(kind: Kind, tmp_path: Path) -> None:
    """Written by RocketMQ, read here, written here, loaded and encoded by RocketMQ: equal, order aside."""
    theirs, ours = Broker(kind, tmp_path / "theirs"), Broker(kind, tmp_path / "ours")
    theirs.write(offsets(TABLE))
    write(rows(theirs), ours)
    questions = [("query", *line[:3]) for line in TABLE]
    loaded = ours.load(questions)
    assert loaded == theirs.load(questions)
    assert loaded[-len(TABLE) :] == ["\t".join(map(str, ("query", *line))) for line in TABLE]
    assert encoded(ours) == encoded(theirs)


@each_store
def test_a_store_that_is_written_here_has_the_bytes_of_a_brokers(kind: Kind, tmp_path: Path) -> None:
    """Keys and values; fastjson orders the queues of a value by their hash, which for small numbers is their order."""
    theirs, ours = Broker(kind, tmp_path / "theirs"), Broker(kind, tmp_path / "ours")
    theirs.write(offsets(TABLE))
    write(rows(theirs), ours)
    assert content(ours.offsets) == content(theirs.offsets)


@each_kind
def test_a_broker_goes_on_with_what_is_written_here(kind: Kind, tmp_path: Path) -> None:
    """It commits on top of ours, and that is read again."""
    theirs, ours = Broker(kind, tmp_path / "theirs"), Broker(kind, tmp_path / "ours")
    theirs.write(offsets(TABLE))
    write(rows(theirs), ours)
    ours.write(offsets([("g", "T", 3, 43), ("new", "T", 0, 1)]))
    expected = {line[:3]: line for line in [*TABLE, ("g", "T", 3, 43), ("new", "T", 0, 1)]}
    assert table(rows(ours)) == sorted(expected.values())


@each_read_store
def test_a_store_is_read_while_its_broker_runs_and_stays_as_it_is(kind: Kind, tmp_path: Path) -> None:
    """No lock is in the way, no byte is changed, and what is in the log only is seen."""
    broker = Broker(kind, tmp_path / "broker")
    with broker.running(offsets(TABLE)):
        before = digests(broker.offsets)
        assert table(rows(broker)) == sorted(TABLE)
        assert digests(broker.offsets) == before


@each_read_store
def test_a_store_whose_broker_was_killed_is_read(kind: Kind, tmp_path: Path) -> None:
    """What it had persisted is in the log only."""
    broker = Broker(kind, tmp_path / "broker")
    broker.halt(offsets(TABLE))
    assert table(rows(broker)) == sorted(TABLE)


@pytest.mark.parametrize("kind", [newest("v2"), SINGLE], ids=by_name)
def test_what_else_is_in_a_store_is_left_out(kind: Kind, tmp_path: Path) -> None:
    """Pull offsets, topics and subscription groups are no offsets that were consumed, and no rejects."""
    broker = Broker(kind, tmp_path / "broker")
    broker.write([*offsets(TABLE), *OTHERS])
    assert table(rows(broker)) == sorted(TABLE)


def test_a_v1_store_that_is_written_here_wins_over_a_json_file_beside_it(tmp_path: Path) -> None:
    """RocksDBConsumerOffsetManager.merge takes the file where its counter is higher, and forgets the store."""
    json_kind, v1 = KINDS[2], KINDS[4]
    old = Broker(json_kind, tmp_path / "broker")
    old.write(offsets([("g", "T", 3, number) for number in range(2_000)]))  # its counter goes up every 500 commits
    assert json.loads(re.sub(r"(\d+):", r'"\1":', old.offsets.read_text()))["dataVersion"]["counter"] > 0
    new = Broker(v1, tmp_path / "broker")
    write([OffsetRow("default", "g", "T/3", 42)], new)
    assert new.load() == answers([("g", "T", 3, 42)])


def test_a_broker_that_is_switched_to_rocksdb_takes_over_the_json_that_is_written_here(tmp_path: Path) -> None:
    """V1 ignores a file whose counter is not above its own, as that of a broker with less than 500 commits, in silence."""
    before, after = Broker(newest("json"), tmp_path / "broker"), Broker(newest("v1"), tmp_path / "broker")
    before.write(offsets(TABLE))
    assert after.load() == [], "the broker's own file is ignored: all groups start as new"
    write(rows(before), before)
    assert after.load() == answers(TABLE)


def test_a_json_file_that_is_written_here_is_taken_over_once(tmp_path: Path) -> None:
    """By a broker that has counted commits in RocksDB; what it commits after that is not taken back at its next start."""
    file, broker = Broker(newest("json"), tmp_path / "broker"), Broker(newest("v1"), tmp_path / "broker")
    broker.write(offsets([("g", "T", 3, number) for number in range(2_000)]))
    write([OffsetRow("default", "g", "T/3", 3_000)], file)
    assert broker.load() == answers([("g", "T", 3, 3_000)])
    broker.write(offsets([("g", "T", 3, 3_001)]))
    assert broker.load() == answers([("g", "T", 3, 3_001)])


def test_a_broker_with_v2_reads_its_own_form_alone(tmp_path: Path) -> None:
    """Neither JSON nor a V1 store, whatever their counters are."""
    places = [Broker(newest(name), tmp_path / "broker") for name in ("json", "v1", "v2")]
    json_file, v1, v2 = places
    for place in (json_file, v1):
        write([OffsetRow("default", "g", "T/3", 42)], place)
    assert v2.load() == []
    shutil.rmtree(v2.offsets)
    write([OffsetRow("default", "g", "T/3", 42)], v2)
    assert v2.load() == answers([("g", "T", 3, 42)])


def test_a_single_store_goes_back_to_a_v1_store_that_is_written_here(tmp_path: Path) -> None:
    """It takes over a store whose counter is above its own, once, and ours is a time: so `export` refuses to write it beside."""
    single, v1 = Broker(SINGLE, tmp_path / "broker"), Broker(newest("v1"), tmp_path / "broker")
    single.write(offsets([("g", "T", 3, 99), ("g", "T", 0, 1)]))
    write([OffsetRow("default", "g", "T/3", 15)], v1)
    assert single.load() == answers([("g", "T", 3, 15)]), "also without the queue that is not in ours"
    single.write(offsets([("g", "T", 3, 100)]))
    assert single.load() == answers([("g", "T", 3, 100)]), "and not once more"


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_with_light_queues_all_groups_are_in_a_file_of_another_name(version: str, tmp_path: Path) -> None:
    """The other file is neither read nor written, whatever is in it; an import of it says so."""
    kinds = {kind.name: kind for kind in KINDS if kind.version == version}
    plain, lmq = Broker(kinds["json"], tmp_path / "broker"), Broker(kinds["lmq"], tmp_path / "broker")
    plain.write(offsets([("g", "T", 3, 15)]))
    dead = plain.offsets.read_bytes()
    os.utime(plain.offsets, (0, 0))  # files of one second may look equally old
    assert lmq.load() == []
    lmq.write(offsets([("g", "T", 3, 99)]))
    assert plain.offsets.read_bytes() == dead
    assert "with enableLmq=true keeps all its groups there" in broker_places.in_use_instead(plain.offsets)
    assert not broker_places.in_use_instead(lmq.offsets)


@each_version
def test_a_clients_file_is_read_and_written(version: str, tmp_path: Path) -> None:
    """The table of a broadcasting consumer, both ways."""
    lines: list[Line] = [("broker-a", "T", 3, 42), ("broker-a", "T", 0, 9_223_372_036_854_775_807), ("broker-b", "ns%T", 0, 0)]
    theirs, ours = Client(version, tmp_path / "theirs"), Client(version, tmp_path / "ours")
    theirs.write(lines)
    naming = Naming(group="g")
    found = [row for row in files.read(theirs.offsets, Format.ROCKETMQ_CLIENT, naming) if isinstance(row, OffsetRow)]
    assert sorted((row.shard, row.offset) for row in found) == sorted(
        (f"{line[0]}/{line[1]}/{line[2]}", line[3]) for line in lines
    )
    ours.offsets.parent.mkdir(parents=True)
    files.write(ours.offsets, Format.ROCKETMQ_CLIENT, found, naming)
    assert ours.load() == theirs.load() == sorted("\t".join(map(str, line)) for line in lines)

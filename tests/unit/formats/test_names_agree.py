"""A group is one and the same, by whichever way it came: `adapter.model.queues` names its shards, and nothing else does."""

import re
from pathlib import Path

import pytest

from adapter.client.offset_store.remote import RemoteOffsetStore
from adapter.formats import files
from adapter.formats.files import Format
from adapter.formats.rows import Naming, OffsetRow
from adapter.model.queues import MessageQueue, key_of, queue_of, shard_of
from tests.unit.fake_adapter import FakeAdapter

ADAPTER = Path(__file__).parents[3] / "adapter"
# What RocketMQ's broker "broker-a" has of groups: retry topics, namespaces and broadcasting are parts of the names.
TOPICS = ["orders", "%RETRY%g", "ns%orders", "DefaultCluster_REPLY_TOPIC"]


def imported(path: Path, kind: Format, naming: Naming) -> set[OffsetRow]:
    """The rows of a file, without their labels."""
    rows = [row for row in files.read(path, kind, naming) if isinstance(row, OffsetRow)]
    return {row._replace(topic="", partition=0) for row in rows}


@pytest.mark.parametrize("topic", TOPICS)
async def test_what_was_imported_is_what_a_consumer_commits(tmp_path: Path, topic: str) -> None:
    """From a broker's file or store, from a client's file, and by the OffsetStore of a Python consumer."""
    queue = MessageQueue(topic, 3, "broker-a")
    expected = OffsetRow(*key_of("g", queue), 42)
    broker = tmp_path / "consumerOffset.json"
    broker.write_text(f'{{"offsetTable":{{"{topic}@g":{{3:42}}}}}}')
    assert imported(broker, Format.ROCKETMQ_BROKER, Naming(broker="broker-a")) == {expected}
    client = tmp_path / "offsets.json"
    client.write_text(f'{{"offsetTable":{{{{"brokerName":"broker-a","queueId":3,"topic":"{topic}"}}:42}}}}')
    assert imported(client, Format.ROCKETMQ_CLIENT, Naming(group="g")) == {expected}
    for layout in ("v1", "v2"):
        store = tmp_path / layout
        row = expected._replace(topic=topic, partition=3)
        files.write(store, Format.ROCKETMQ_ROCKSDB, [row], Naming(broker="broker-a"), layout)
        assert imported(store, Format.ROCKETMQ_ROCKSDB, Naming(broker="broker-a")) == {expected}
    adapter = FakeAdapter()
    consumer = RemoteOffsetStore(adapter, "g")
    consumer.update_offset(queue, 42)
    await consumer.persist(queue)
    assert list(adapter.records) == [expected.shard] == [shard_of(queue)]
    assert queue_of(expected.shard) == queue


def test_only_one_module_puts_the_name_of_a_shard_together() -> None:
    """Kafka's CSV has two columns for it, and an error of OffsetStore shows a queue to a person; all others call `shard_of`."""
    built = re.compile(r"""f["'][^"']*\{[a-z_.]*topic[a-z_.]*\}/""")
    found = {str(path.relative_to(ADAPTER)) for path in ADAPTER.rglob("*.py") if built.search(path.read_text())}
    assert found == {"client/offset_store/store.py", "formats/kafka_csv.py"}

"""What `export` writes goes into a Kafka broker by Kafka's own command, and comes back by ours: `make interop`."""

import csv
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from adapter.client import BlockingOffsetClient
from adapter.testing.sidecars import sidecar_in_thread
from adapter.testing.waiting import PATIENCE_S
from tests.acceptance.documents import ROOT
from tests.interop.spark_jars import CACHE, java, kafka_broker

pytestmark = pytest.mark.timeout(900)

# Kafka moves an offset that is not within a partition's log to its nearer end: so the topics are written first.
MESSAGES = 3_000
GROUPS: Mapping[str, Mapping[str, int]] = {
    "billing": {"orders/0": 120, "orders/1": 0, "orders/2": 7, "mails/0": 99},
    'a, "group" of mine': {"mails/1": 1, "mails/2": 2},
}


def kafka(tool: str, *arguments: str | Path, text: str = "") -> str:
    """Run one of Kafka's commands; its standard output."""
    classes = [java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{CACHE / 'spark-kafka-broker'}/*"]
    ran = subprocess.run(
        [*classes, f"org.apache.kafka.tools.{tool}", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def ours(address: str, *arguments: str | Path) -> str:
    """Run `offset-adapter`."""
    command = [sys.executable, "-m", "adapter", *map(str, arguments), "--address", address]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """An adapter that has GROUPS."""
    with sidecar_in_thread(tmp_path) as address:
        with BlockingOffsetClient(address, PATIENCE_S) as client:
            for group, offsets in GROUPS.items():
                client.commit(group, offsets)
        yield address


def test_an_export_is_taken_by_kafkas_command_and_comes_back(tmp_path: Path, address: str) -> None:
    """Of one group, whose file has no column of groups, and of several: the same offsets there, and after the way back here."""
    with kafka_broker(tmp_path / "kafka") as broker:
        for topic in ("orders", "mails"):
            lines = "".join(f"{number}:message\n" for number in range(MESSAGES))
            options = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
            kafka("ConsoleProducer", "--bootstrap-server", broker, "--topic", topic, *options, text=lines)
        for number, groups in enumerate((["billing"], list(GROUPS))):
            plan = tmp_path / f"{number}.csv"
            ours(address, "export", *groups, "-o", plan)
            named = [word for group in groups for word in ("--group", group)]
            reset(broker, *named, "--from-file", plan, "--execute")
            for group in groups:
                assert there(broker, group) == GROUPS[group]
            back = tmp_path / f"back-{number}.csv"
            back.write_text(reset(broker, *named, "--to-current", "--dry-run", "--export"))
            said = ours(address, "import", back, *(["--group", groups[0]] if len(groups) == 1 else []))
            count = sum(len(GROUPS[group]) for group in groups)
            assert said.startswith(f"0 new, 0 raised, {count} unchanged, 0 where a larger one stands;"), said


def reset(broker: str, *arguments: str | Path) -> str:
    """Kafka's command for resets, of all topics of the groups."""
    command = "consumer.group.ConsumerGroupCommand"
    topics = [] if "--from-file" in arguments else ["--all-topics"]
    return kafka(command, "--bootstrap-server", broker, "--reset-offsets", *arguments, *topics)


def there(broker: str, group: str) -> dict[str, int]:
    """What Kafka has of a group, as it exports it itself."""
    lines = reset(broker, "--group", group, "--to-current", "--dry-run", "--export").splitlines()
    return {f"{topic}/{partition}": int(offset) for topic, partition, offset in csv.reader(line for line in lines if line)}

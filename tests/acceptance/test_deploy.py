"""What is in deploy/ is what the commands take: its settings, the flags of etcd, and the names by which parts find each other.

The program in docs/etcd.md runs as it stands there.

It is read as text: nothing else here needs YAML. There is no Docker and no Kubernetes here either, so nothing of it is started.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from adapter.config import AdapterConfig, MetaSection, load, split_address
from adapter.local_etcd import RECOMMENDED, EtcdMissingError, etcd_binary
from adapter.meta_client import GrpcMetaClient
from adapter.metaservice.config import MetaConfig
from adapter.model import DEFAULT_NAMESPACE, OffsetKey, OffsetRecord, SaveEntry, next_era
from adapter.testing import ended, meta_process

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes"
ETCD_ENV = KUBERNETES / "config" / "etcd.env"
# `ETCD_MAX_TXN_OPS: "512"` in YAML, `ETCD_MAX_TXN_OPS=512` in a file of variables, `name: ETCD_NAME` of a container.
ETCD_SETTING = re.compile(r'^\s*(?:- name: )?ETCD_([A-Z_]+)(?:(?:: *|=)"?([^"\s#]*)"?)?', re.MULTILINE)


def settings(path: Path) -> Iterator[tuple[str, str]]:
    """The flags of etcd in a file, without dashes, and their values."""
    for name, value in ETCD_SETTING.findall(path.read_text()):
        yield name.lower().replace("_", "-"), value


def front(directory: Path) -> MetaConfig:
    """The settings of the fronts. Raises ConfigError."""
    return load(directory / "config" / "meta.toml", MetaConfig)


def adapter(directory: Path) -> AdapterConfig:
    """The settings of the adapters. Raises ConfigError."""
    return load(directory / "config" / "adapter.toml", AdapterConfig)


@pytest.mark.parametrize("directory", [DEPLOY, KUBERNETES])
def test_deployed_fronts_use_etcd_and_adapters_use_the_fronts(directory: Path) -> None:
    """The files are valid, and name two Raft groups of three members."""
    etcd = front(directory).etcd
    assert etcd.metadata
    assert [len(members.endpoints) for members in (etcd.metadata, *etcd.offsets)] == [3, 3]
    assert etcd.placement.balance
    assert str(etcd.max_txn_ops) == RECOMMENDED["max-txn-ops"]
    assert adapter(directory).meta.endpoints


@pytest.mark.parametrize("path", [COMPOSE, ETCD_ENV])
def test_deployed_members_have_the_recommended_flags(path: Path) -> None:
    """With the values that are tried here, in every test with etcd."""
    assert dict(settings(path)).items() >= RECOMMENDED.items()


def test_every_etcd_variable_is_one_of_its_flags() -> None:
    """Of others it only warns: a misspelt quota would be no quota."""
    try:
        said = subprocess.run([etcd_binary(), "--help"], capture_output=True, text=True, check=False)
    except EtcdMissingError as error:
        pytest.skip(f"flags in deploy/: not checked: {error}")
    flags = {*re.findall(r"^\s+--([a-z-]+)", said.stdout + said.stderr, re.MULTILINE)}
    found = {name for path in (COMPOSE, ETCD_ENV, *KUBERNETES.glob("*.yaml")) for name, _ in settings(path)}
    assert len(found) > len(RECOMMENDED)
    assert found - flags == set()


def test_every_endpoint_is_a_part_of_the_compose_file() -> None:
    """A service there, by its name."""
    etcd = front(DEPLOY).etcd
    assert etcd.metadata
    hosts = [*etcd.metadata.endpoints, *etcd.offsets[0].endpoints, *adapter(DEPLOY).meta.endpoints]
    services = {
        *re.findall(r"^  ([a-z0-9-]+):", COMPOSE.read_text().split("\nservices:")[1].split("\nvolumes:")[0], re.MULTILINE)
    }
    assert {split_address(host)[0] for host in hosts} <= services


def test_every_endpoint_is_a_part_of_the_manifests() -> None:
    """A pod of a StatefulSet and its headless Service, or a Service; and the members' certificates have their names."""
    etcd = front(KUBERNETES).etcd
    assert etcd.metadata
    named = {
        *re.findall(r"^  name: ([a-z0-9-]+)$", "".join(path.read_text() for path in KUBERNETES.glob("*.yaml")), re.MULTILINE)
    }
    certified = re.search(r"for cluster in (.*); do", (KUBERNETES / "certificates.sh").read_text())
    assert certified
    for cluster, members in zip(certified[1].split(), (etcd.metadata, *etcd.offsets), strict=True):
        assert cluster in named
        assert [split_address(endpoint)[0] for endpoint in members.endpoints] == [f"{cluster}-{n}.{cluster}" for n in range(3)]
    assert {split_address(endpoint)[0] for endpoint in adapter(KUBERNETES).meta.endpoints} <= named


async def test_a_meta_service_is_copied_as_the_document_says(tmp_path: Path) -> None:
    """Tombstones with it; what is larger in the new one stays."""
    program = re.search(r"^```python\n(.*?)^```", (ROOT / "docs" / "etcd.md").read_text(), re.DOTALL | re.MULTILINE)
    assert program
    kept, gone, ahead = (OffsetKey(DEFAULT_NAMESPACE, "g", shard) for shard in ("kept", "gone", "ahead"))
    buried = OffsetRecord(next_era(1), 0, live=False)
    old, new = meta_process(tmp_path / "old"), meta_process(tmp_path / "new")
    with ended(old, new):
        for service in (old, new):
            service.start()
        async with GrpcMetaClient.open(MetaSection(endpoints=(old.address,))) as client:
            await client.save(
                [SaveEntry(kept, OffsetRecord(1, 42)), SaveEntry(gone, buried), SaveEntry(ahead, OffsetRecord(1, 5))]
            )
        async with GrpcMetaClient.open(MetaSection(endpoints=(new.address,))) as client:
            await client.save([SaveEntry(ahead, OffsetRecord(1, 7))])
            code = program[1].replace("old:9530", old.address).replace("new:9530", new.address)
            copied = await anyio.run_process([sys.executable, "-c", code], cwd=ROOT)
            assert copied.stdout == b"3\n"
            found = await client.get([kept, gone, ahead])
        assert {key.shard: record[:3] for key, record in found.items()} == {
            "kept": (1, 42, True),
            "gone": (next_era(1), 0, False),
            "ahead": (1, 7, True),
        }

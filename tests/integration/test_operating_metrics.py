"""What an adapter and a Meta Service tell of their stores, of changes by hand and of Raft groups, from real ones."""

import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from adapter.errors import MetaUnavailableError
from adapter.model.records import CommitMode, GroupKey, OffsetRecord
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.ledger.operations import Commit
from adapter.testing.etcd import LocalCluster
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import ServiceProcess, ended, free_port
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import PATIENCE_S
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require
from tests.monitoring.server import wait_for
from tests.unit.helpers import key, record

ALL, TO_2 = Wanted(GroupKey("default", "g"), ()), Reset(To.OFFSET, 2)


async def test_executed_changes_are_counted_by_kind_and_dry_runs_are_not(tmp_path: Path) -> None:
    """One for each group that a call changed; also when it fails half way. What changes nothing is none."""
    meta = FakeMeta({key("a"): record(9)})
    async with running_sidecar(adapter_config(tmp_path), meta) as sidecar:
        registry, core = sidecar._metrics.registry, sidecar.core()

        def counts() -> dict[str, float | None]:
            kinds = ("reset", "delete", "clone", "import")
            return {kind: registry.get_sample_value("offset_adapter_changes_total", {"kind": kind}) for kind in kinds}

        assert counts() == {"reset": 0, "delete": 0, "clone": 0, "import": 0}
        await core.resets.reset(ALL, TO_2, execute=False)
        assert counts()["reset"] == 0
        await core.resets.reset(ALL, TO_2, execute=True)
        await core.resets.clone(ALL, GroupKey("default", "h"), execute=True)
        offered = [(key("a"), OffsetRecord(0, 20)), (key("b"), OffsetRecord(0, 20))]
        commit = Commit(offered, CommitMode.INCREASE_ONLY)
        await core.resets.merge(commit, execute=False)
        await core.resets.merge(commit, execute=True)
        await core.resets.merge(commit, execute=True)  # it stands already
        await core.resets.delete(ALL, execute=True)
        assert counts() == {"reset": 1, "delete": 1, "clone": 1, "import": 1}
        meta.faults.append(MetaUnavailableError("down by the test"))
        with pytest.raises(MetaUnavailableError):
            await core.resets.reset(Wanted(GroupKey("default", "h"), ()), TO_2, execute=True)
        assert counts()["reset"] == 2


async def test_an_adapter_tells_the_space_of_its_disk_and_its_last_flush(tmp_path: Path) -> None:
    """The flush with its time; with `never`, no age of what is not synced."""
    for wal_sync in ("interval", "never"):
        directory = tmp_path / wal_sync
        directory.mkdir()
        async with running_sidecar(adapter_config(directory, store={"wal_sync": wal_sync}), FakeMeta()) as sidecar:
            value = sidecar._metrics.registry.get_sample_value
            assert value("offset_adapter_store_disk_free_bytes")
            assert value("offset_adapter_store_disk_size_bytes")
            assert value("offset_adapter_last_flush_timestamp_seconds") == 0
            assert (value("offset_adapter_unsynced_age_seconds") is None) == (wal_sync == "never")


def scraped(port: int) -> dict[tuple[str, str], float]:
    """The samples of a process by name and Raft group."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    return {(sample.name, sample.labels.get("raft_group", "")): sample.value for family in families for sample in family.samples}


def test_a_meta_service_on_etcd_tells_leader_size_and_quota_of_each_raft_group(tmp_path: Path) -> None:
    """Of real members; when those of a group are killed, it has no leader."""
    require("the metrics of Raft groups", etcd)
    metadata, offsets = (LocalCluster(name, directory=tmp_path, members=1) for name in ("metadata", "offsets-1"))
    with metadata, offsets:
        ports = free_port(), free_port()
        settings = f"""engine = "etcd"
[server]
listen = "127.0.0.1:{ports[0]}"
[metrics]
listen = "127.0.0.1:{ports[1]}"
[etcd]
quota_bytes = 123456789
timeout_ms = 5000
[etcd.metadata]
endpoints = ["{metadata.endpoints[0]}"]
[[etcd.offsets]]
name = "offsets-1"
endpoints = ["{offsets.endpoints[0]}"]
"""
        meta = ServiceProcess("meta", tmp_path, settings, ports[0])
        with ended(meta):
            meta.start()
            name = "offset_meta_raft_group_"
            wait_for("seen", lambda: scraped(ports[1]).get((f"{name}leader", "offsets-1")) == 1)
            found = scraped(ports[1])
            for group in ("metadata", "offsets-1"):
                assert found[f"{name}leader", group] == 1
                assert found[f"{name}members_unreachable", group] == 0
                assert found[f"{name}full", group] == 0
                assert found[f"{name}bytes", group] > 0
                assert found[f"{name}quota_bytes", group] in {123456789, 8 * 2**30}  # etcd 3.6 tells its own
            offsets.members[0].kill()
            wait_for("seen", lambda: scraped(ports[1])[f"{name}leader", "offsets-1"] == 0)
            assert scraped(ports[1])[f"{name}leader", "metadata"] == 1
            assert scraped(ports[1])[f"{name}members_unreachable", "offsets-1"] == 1

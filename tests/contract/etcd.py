"""One etcd member of each name for all tests of a worker, started on first use. Each test has its own key prefix."""

import atexit
import shutil
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.testing.etcd import LocalCluster
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require

_NO_SYNC = {"unsafe-no-fsync": "true"}  # no contract test cuts the power
_used = count()


@cache
def shared_cluster(name: str = "contract") -> LocalCluster:
    """A cluster that runs until this process ends. Skips the test if etcd is not installed."""
    require("the contract on etcd", etcd)
    directory = Path(tempfile.mkdtemp(prefix="contract-etcd-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    cluster = LocalCluster(name, members=1, directory=directory, options=_NO_SYNC)
    atexit.register(cluster.stop)
    cluster.start()
    return cluster


def shared_members(name: str = "contract") -> MembersSection:
    """The shared cluster, as the Meta Service's settings name it."""
    return MembersSection(endpoints=shared_cluster(name).endpoints)


def shared_section() -> EtcdSection:
    """Settings with a new key prefix, so that a test finds no data of others."""
    return EtcdSection(prefix=f"test-{next(_used)}/", timeout_ms=5_000, metadata=shared_members())

"""One etcd member of each name for all tests of a module, started on first use. Each test has its own key prefix.

They end with the module (tests/conftest.py): an idle etcd takes 2% of a core.
"""

import atexit
import shutil
import tempfile
from itertools import count
from pathlib import Path

from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.testing.etcd import LocalCluster
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require

_NO_SYNC = {"unsafe-no-fsync": "true"}  # no contract test cuts the power
_used = count()


_running: dict[str, tuple[LocalCluster, Path]] = {}


def shared_cluster(name: str = "contract") -> LocalCluster:
    """A cluster that runs until `stop_shared`. Skips the test if etcd is not installed."""
    require("the contract on etcd", etcd)
    if name not in _running:
        directory = Path(tempfile.mkdtemp(prefix="contract-etcd-"))
        _running[name] = LocalCluster(name, members=1, directory=directory, options=_NO_SYNC), directory
        _running[name][0].start()
    return _running[name][0]


@atexit.register
def stop_shared() -> None:
    """Stop all that run."""
    while _running:
        _, (cluster, directory) = _running.popitem()
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def shared_members(name: str = "contract") -> MembersSection:
    """The shared cluster, as the Meta Service's settings name it."""
    return MembersSection(endpoints=shared_cluster(name).endpoints)


def shared_section() -> EtcdSection:
    """Settings with a new key prefix, so that a test finds no data of others."""
    return EtcdSection(prefix=f"test-{next(_used)}/", timeout_ms=5_000, metadata=shared_members())

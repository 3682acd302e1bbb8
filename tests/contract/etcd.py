"""One etcd member of each name for all tests of a module, started on first use. Each test has its own key prefix.

They end with the module (tests/conftest.py): an idle etcd takes 2% of a core.
"""

import atexit
import tempfile
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.testing.etcd import LocalCluster
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require

_NO_SYNC = {"unsafe-no-fsync": "true"}  # no contract test cuts the power
_used = count()
_running: dict[str, LocalCluster] = {}
_ends = ExitStack()  # stops them, and removes their directories


def shared_cluster(name: str = "contract") -> LocalCluster:
    """A cluster that runs until `stop_shared`. Skips the test if etcd is not installed."""
    require("the contract on etcd", etcd)
    if name not in _running:
        directory = _ends.enter_context(tempfile.TemporaryDirectory(prefix="contract-etcd-", ignore_cleanup_errors=True))
        cluster = LocalCluster(name, members=1, directory=Path(directory), options=_NO_SYNC)
        _running[name] = _ends.enter_context(cluster)
    return _running[name]


@atexit.register
def stop_shared() -> None:
    """Stop all that run."""
    _running.clear()
    _ends.close()


def shared_members(name: str = "contract") -> MembersSection:
    """The shared cluster, as the Meta Service's settings name it."""
    return MembersSection(endpoints=shared_cluster(name).endpoints)


def shared_section() -> EtcdSection:
    """Settings with a new key prefix, so that a test finds no data of others."""
    return EtcdSection(prefix=f"test-{next(_used)}/", timeout_ms=5_000, metadata=shared_members())

"""A Meta Service process on either engine, for tests that hold for both."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from adapter.testing.etcd import LocalCluster
from adapter.testing.processes import ServiceProcess, ended, meta_process
from tests.durability import etcd_cluster
from tests.durability.machine import require

ENGINES = ("rocksdb", "etcd")


@contextmanager
def meta_on(engine: str, directory: Path, extra: str = "", top: str = "") -> Iterator[ServiceProcess]:
    """A Meta Service that runs; `extra` are further sections of its settings, `top` goes before them.

    It can be killed and started again.
    """
    directory.mkdir(exist_ok=True)
    with ExitStack() as stack:
        if engine == "etcd":
            require("the Meta Service on etcd", etcd_cluster.etcd)
            metadata, offsets = (
                stack.enter_context(LocalCluster(name, 1, directory=directory)) for name in ("metadata", "offsets")
            )
            meta = etcd_cluster.meta_process(directory / "meta-process", metadata.endpoints, offsets.endpoints, extra)
        else:
            meta = meta_process(directory, extra=extra)
        meta.settings = top + meta.settings
        stack.enter_context(ended(meta))
        meta.start()
        yield meta

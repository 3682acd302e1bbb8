"""The processes behind the pages: a Meta Service, two adapters with groups of all sorts, and consoles over them."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import grpc

from adapter.rpc import offsets_grpc, offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port, meta_process
from adapter.testing.waiting import PATIENCE_S

VIEW, ADMIN = "view-token-of-vera-0123456789", "admin-token-of-ann-0123456789"
HOSTILE = (
    "<script>document.title='hit'</script>",
    '"><img src=x onerror=document.title="hit">',
    "a/b/../c?d=e&f#g",
    "\u202eright to left",
    "\u0645\u062c\u0645\u0648\u0639\u0629",
    "{{ 7 * 7 }}${7*7}",
)
PLAIN_GROUPS = 120
LAG = "[lag]\ninterval_ms = 500\npoint_distance_ms = 200\nhead_distance_ms = 1000\n"


class Scene:
    """All that runs. Commits go to an adapter by its number. A console starts when a test asks for it."""

    def __init__(self, meta: ServiceProcess, adapters: list[ServiceProcess], stack: ExitStack, directory: Path) -> None:
        self.meta = meta
        self.adapters = adapters
        channels = [stack.enter_context(grpc.insecure_channel(adapter.address)) for adapter in adapters]
        self.stores = [offsets_grpc.OffsetStoreStub(channel) for channel in channels]
        self.admins = [offsets_grpc.OffsetAdminStub(channel) for channel in channels]
        self._stack = stack
        self._directory = directory

    @cached_property
    def console(self) -> str:
        """The address of one that logs in by token, and makes changes."""
        tokens = {"view": f"vera {VIEW}\n", "admin": f"ann {ADMIN}\n"}
        for name, text in tokens.items():
            path = self._directory / name
            path.write_text(text)
            path.chmod(0o600)
        access = f"""[access]
changes = true
view_token_file = '{self._directory / "view"}'
admin_token_file = '{self._directory / "admin"}'
"""
        return self._started("console", access)

    @cached_property
    def reader(self) -> str:
        """The address of one that asks nobody who they are."""
        return self._started("reader", "")

    def _started(self, name: str, section: str) -> str:
        process = console_process(self._directory / name, self, section)
        self._stack.enter_context(ended(process))
        return started(process)

    def commit(
        self, group: str, offsets: Mapping[str, int], *, high: int = 1_000, at: int = 0, namespace: str = "default"
    ) -> None:
        """Commit offsets of shards whose logs go from 0 to `high`."""
        shards = [
            offsets_pb.ShardCommit(shard=shard, offset=offset, low_watermark=0, high_watermark=high)
            for shard, offset in offsets.items()
        ]
        groups = [offsets_pb.GroupCommits(namespace=namespace, group=group, shards=shards)]
        self.stores[at].CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=PATIENCE_S)

    def offsets(self, group: str, at: int = 0) -> dict[str, int]:
        """What an adapter has of a group."""
        wanted = [offsets_pb.GroupShards(namespace="default", group=group)]
        reply = self.stores[at].ReadOffsets(offsets_pb.ReadOffsetsRequest(groups=wanted, keep_hold=True), timeout=PATIENCE_S)
        return {row.shard: row.offset for row in reply.offsets}


@contextmanager
def running(directory: Path, plain: int = PLAIN_GROUPS) -> Iterator[Scene]:
    """Run the whole scene in a directory with a short name; `plain` is how many groups keep still, 0: none of any sort."""
    with ExitStack() as stack:
        meta = meta_process(directory / "m")
        stack.enter_context(ended(meta))
        meta.start()
        adapters = [
            adapter_process(directory / name, meta.tcp_address, top=f"broker = '{name}'", extra=LAG)
            for name in ("broker-a", "broker-b")
        ]
        stack.enter_context(ended(*adapters))
        for adapter in adapters:
            adapter.start()
        scene = Scene(meta, adapters, stack, directory)
        if plain:
            fill(scene, plain)
        yield scene


def fill(scene: Scene, plain: int) -> None:
    """Groups of all sorts, over both adapters."""
    for at in range(plain):
        scene.commit(f"plain-{at:03}", {"t/0": 1_000 - at, "t/1": 1_000}, at=at % 2)
    for group in HOSTILE:
        scene.commit(group, {group: 5}, namespace="default")
    scene.commit("spread", {"t/0": 400, "t/1": 500}, at=0)
    scene.commit("spread", {"t/2": 600}, at=1)
    for admin in scene.admins:
        admin.Flush(offsets_pb.FlushRequest(), timeout=PATIENCE_S)


def console_process(directory: Path, scene: Scene, more: str) -> ServiceProcess:
    """A console over the scene."""
    port = free_port()
    adapters = ", ".join(f"'{adapter.address}'" for adapter in scene.adapters)
    settings = f"""{more}
[server]
listen = '127.0.0.1:{port}'
[fleet]
adapters = [{adapters}]
interval_ms = 500
history_ms = 1000
[meta]
endpoints = ['{scene.meta.tcp_address}']
interval_ms = 1000
[charts]
interval_ms = 1000
"""
    return ServiceProcess("console", directory, settings, port)


def started(process: ServiceProcess) -> str:
    """Start a console; returns its address without a slash at its end."""
    process.launch()
    until = time.monotonic() + PATIENCE_S
    while not (found := re.search(r"console\.serving\s.*?(https?://[0-9.:]+)", process.log)):
        assert process.process
        assert process.process.poll() is None, process.log
        assert time.monotonic() < until, process.log
        time.sleep(0.05)
    return found[1]

"""The faults: how each is made and repaired, which page tells it, and which alert is for it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
import grpc
import grpc.aio

from adapter.rpc import lag_pb
from demo.alerts import page
from demo.alerts.disk import SmallDisk
from demo.fleet.processes import Adapter, Fleet
from demo.fleet.scenario import Group
from demo.fleet.visitor import Element

Step = Callable[[], Awaitable[None]]


async def at_once() -> None:
    """The fault is there as soon as it was made."""


async def by_itself() -> None:
    """Nothing has to be repaired."""


@dataclass(frozen=True)
class Fault:
    """One fault. `alert` with `labels` has to fire, and `shown` to be true of the page at `path` while it lasts.

    `real`: returns when the fault is there for an adapter to know: a group is not stalled by its first equal commit. Times count
    from then. `lasting`: what the page shows stays, since it tells what was done.
    """

    name: str
    inject: Step
    repair: Step
    shown: Callable[[Element], bool]
    alert: str
    labels: Mapping[str, str]
    path: str = "/"
    query: Mapping[str, str] = field(default_factory=dict)
    real: Step = at_once
    lasting: bool = False


def kill(adapter: Adapter) -> Fault:
    """Kill -9 of an adapter; the repair starts it again."""

    async def inject() -> None:
        await anyio.to_thread.run_sync(adapter.process.kill)

    async def repair() -> None:
        await anyio.to_thread.run_sync(adapter.process.start)

    labels = {"job": "offset-adapter", "instance": adapter.metrics}
    shown = lambda root: page.adapter_away(root, adapter)  # noqa: E731 - one expression
    return Fault(f"kill -9 of {adapter.name}'s adapter", inject, repair, shown, "OffsetAdapterAway", labels)


def pause(fleet: Fleet) -> Fault:
    """SIGSTOP of the Meta Service; the repair is SIGCONT."""

    async def inject() -> None:
        fleet.meta.freeze()

    async def repair() -> None:
        fleet.meta.thaw()

    labels = {"job": "offset-meta", "instance": fleet.meta_metrics}
    shown = lambda root: page.meta_away(root, fleet)  # noqa: E731
    return Fault("SIGSTOP of the Meta Service", inject, repair, shown, "OffsetMetaAway", labels)


def fill(fleet: Fleet, adapter: Adapter, disk: SmallDisk) -> Fault:
    """Take every byte of the disk of an adapter; the repair gives them back."""
    load = next(broker for broker in fleet.load.brokers if broker.name == adapter.name)

    async def inject() -> None:
        await anyio.to_thread.run_sync(disk.fill)

    async def repair() -> None:
        disk.free()

    async def real() -> None:
        failures = load.failures
        while load.failures == failures:  # noqa: ASYNC110 - the load has no event for it
            await anyio.sleep(0.01)

    labels = {"job": "offset-adapter", "instance": adapter.metrics}
    shown = lambda root: page.disk_full(root, adapter)  # noqa: E731
    return Fault(f"{adapter.name}'s disk is full", inject, repair, shown, "OffsetStoreDiskFull", labels, real=real)


def stall(fleet: Fleet, group: Group) -> Fault:
    """A group commits the same offsets again and again; the repair lets it read on."""

    async def inject() -> None:
        fleet.load.stall(group)

    async def repair() -> None:
        fleet.load.stall(group, stalled=False)

    async def real() -> None:
        while not await _is_stalled(fleet, group):  # noqa: ASYNC110 - in other processes
            await anyio.sleep(0.02)

    labels = {"namespace": group.namespace, "group": group.name}
    return Fault(
        f"{group.name} stalls",
        inject,
        repair,
        lambda root: page.stalled(root, group),
        "OffsetGroupStalled",
        labels,
        "/groups",
        {"q": group.name, "namespace": group.namespace},
        real,
    )


def reset(fleet: Fleet, group: Group) -> Fault:
    """An operator sets a group back. Nothing has to be repaired: the alert ends by itself, the page keeps what was done."""

    async def inject() -> None:
        await fleet.reset(group)

    return Fault(
        f"{group.name} is reset",
        inject,
        by_itself,
        page.was_reset,
        "OffsetsChangedByHand",
        {"kind": "reset"},
        "/group",
        {"namespace": group.namespace, "group": group.name},
        lasting=True,
    )


async def _is_stalled(fleet: Fleet, group: Group) -> bool:
    """True if an adapter says so."""
    for broker in fleet.load.brokers_of(group):
        try:
            reply = await broker.client.group_lag(group.name, namespace=group.namespace)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
        else:
            if reply.sums.status >= lag_pb.STALL:
                return True
    return False

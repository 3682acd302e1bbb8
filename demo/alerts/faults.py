"""The faults: how each is made and repaired, how the page tells it, and which alert is for it."""

import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import anyio
import anyio.to_thread
import grpc
import grpc.aio

from adapter.rpc import lag_pb
from demo.alerts.disk import SmallDisk
from demo.alerts.page import Page
from demo.fleet.processes import Adapter, Fleet
from demo.fleet.scenario import Group

Step = Callable[[], Awaitable[None]]
Shown = Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class Fault:
    """One fault. `alert` with `labels` has to fire, `shown` to be True on the page while it lasts.

    `real`: returns when the fault is there for an adapter to know: a group is not stalled by its first equal commit. The page's
    time counts from then. `lasting`: what the page shows stays, since it tells what was done.
    """

    name: str
    inject: Step
    repair: Step
    shown: Shown
    alert: str
    labels: Mapping[str, str]
    real: Step
    lasting: bool = False


async def at_once() -> None:
    """The fault is there as soon as it was made."""


async def by_itself() -> None:
    """Nothing has to be repaired."""


def kill(page: Page, adapter: Adapter) -> Fault:
    """Kill -9 of an adapter; the repair starts it again."""

    async def inject() -> None:
        await anyio.to_thread.run_sync(adapter.process.kill)

    async def repair() -> None:
        await anyio.to_thread.run_sync(adapter.process.start)

    async def shown() -> bool:
        return await page.adapter_away(adapter)

    labels = {"job": "offset-adapter", "instance": adapter.metrics}
    return Fault(f"kill -9 of the adapter of {adapter.name}", inject, repair, shown, "OffsetAdapterAway", labels, at_once)


def pause(fleet: Fleet, page: Page) -> Fault:
    """SIGSTOP of the Meta Service; the repair is SIGCONT."""

    async def inject() -> None:
        fleet.meta.signal(signal.SIGSTOP)

    async def repair() -> None:
        fleet.meta.signal(signal.SIGCONT)

    async def shown() -> bool:
        return await page.meta_away()

    labels = {"job": "offset-meta", "instance": fleet.meta_metrics}
    return Fault("SIGSTOP of the Meta Service", inject, repair, shown, "OffsetMetaAway", labels, at_once)


def fill(fleet: Fleet, page: Page, adapter: Adapter, disk: SmallDisk) -> Fault:
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

    async def shown() -> bool:
        return await page.disk_full(adapter)

    labels = {"job": "offset-adapter", "instance": adapter.metrics}
    return Fault(f"the disk of {adapter.name} is full", inject, repair, shown, "OffsetStoreDiskFull", labels, real)


def stall(fleet: Fleet, page: Page, group: Group) -> Fault:
    """A group commits the same offsets again and again; the repair lets it read on."""

    async def inject() -> None:
        fleet.load.stall(group)

    async def repair() -> None:
        fleet.load.stall(group, stalled=False)

    async def real() -> None:
        while not await _is_stalled(fleet, group):  # noqa: ASYNC110 - in other processes
            await anyio.sleep(0.02)

    async def shown() -> bool:
        return await page.stalled(group)

    labels = {"namespace": group.namespace, "group": group.name}
    return Fault(f"{group.name} commits the same offset", inject, repair, shown, "OffsetGroupStalled", labels, real)


def reset(fleet: Fleet, page: Page, group: Group) -> Fault:
    """An operator sets a group back. Nothing has to be repaired: the alert ends by itself, the page keeps what was done."""

    async def inject() -> None:
        await fleet.reset(group)

    async def shown() -> bool:
        return await page.was_reset(group)

    labels = {"kind": "reset"}
    return Fault(
        f"an operator resets {group.name}", inject, by_itself, shown, "OffsetsChangedByHand", labels, at_once, lasting=True
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

"""The command `meta status`: the stores of a Meta Service."""

from collections.abc import Iterator

import click
import grpc
import grpc.aio

from adapter.cli import options, watch
from adapter.cli.connection import CallError, Target, run
from adapter.cli.output import Form, as_dict, show_object, when
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.channels import open_channel
from adapter.runtime.clocks import wall_ms
from adapter.runtime.wording import counted

TIMEOUT_S = 10.0
_NOT_THERE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED}


@click.command(cls=watch.WatchCommand)
@watch.option
@options.meta_target
@options.form
def status(target: Target, form: Form, every_s: float | None) -> None:
    """Show a Meta Service's stores, their revisions, and what they lost. Exit code 1 when they ever lost a write."""

    def once() -> bool:
        reply, difference_ms = run(_status, target)
        show_object(form, _json(reply, difference_ms), _rows(reply, difference_ms))
        return not reply.HasField("loss")

    watch.look(once, every_s)


async def _status(target: Target) -> tuple[meta_pb.GetStoreStatusReply, int]:
    """The reply, and the milliseconds by which the server's clock is ahead of this machine's."""
    async with open_channel(target.address, target.tls, ()) as channel:
        begun = wall_ms()
        try:
            reply = await meta_grpc.MetaServiceServiceStub(channel).GetStoreStatus(
                meta_pb.GetStoreStatusRequest(), timeout=TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            help_text = "; is a Meta Service that serves offsets there? (--address)" if error.code() in _NOT_THERE else ""
            raise CallError(f"{target.address}: {error.code().name}: {error.details()}{help_text}") from error
    return reply, reply.now_ms - (begun + wall_ms()) // 2


def _json(reply: meta_pb.GetStoreStatusReply, difference_ms: int) -> dict[str, object]:
    loss = as_dict(reply.loss) if reply.HasField("loss") else None
    stores = [
        {"name": mark.name, "store_id": mark.store_id.hex(), "incarnation": mark.incarnation, "revision": mark.revision}
        for mark in reply.marks
    ]
    return {
        "engine": reply.engine,
        "version": reply.version,
        "stores": stores,
        "now_ms": reply.now_ms,
        "clock_difference_ms": difference_ms,
        "loss": loss,
    }


def _rows(reply: meta_pb.GetStoreStatusReply, difference_ms: int) -> Iterator[tuple[str, str]]:
    """The reply as rows of (what, value)."""
    yield "engine, version", f"{reply.engine}, {reply.version}"
    for mark in reply.marks:
        text = f"{mark.store_id.hex()}, incarnation {mark.incarnation:,}, revision {mark.revision:,}"
        yield f"store {mark.name}".rstrip(), text
    yield "clock", f"{difference_ms / 1000:+.3f} s against this machine"
    if reply.HasField("loss"):
        writes = counted(reply.loss.writes, "acknowledged write")
        why = f": {reply.loss.why}" if reply.loss.why else ""
        yield "LOSS", f"about {writes} missing, found {when(reply.loss.found_at_ms)}{why}; adapters pushed again what they held"

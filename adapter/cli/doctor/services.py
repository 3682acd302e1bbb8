"""What a process calls: the Meta Service, etcd, the broker. Every call only reads."""

import socket
import time
from collections.abc import Iterator

import anyio
import grpc

from adapter.cli.doctor.findings import FAIL, OK, WARN, Finding
from adapter.meta.config import MetaSection
from adapter.metaservice.config import EtcdSection
from adapter.metaservice.etcd.leader_balancer import opened
from adapter.metaservice.etcd.leader_placement import RaftGroup
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.channels import open_blocking_channel
from adapter.runtime.clocks import CLOCK_LIMIT_MS, wall_ms
from adapter.runtime.settings.addresses import split_address

TIMEOUT_S = 10.0
NAME = "Meta Service"
DIFFERENCE_MS = 2_000  # of clocks: above it a warning, at CLOCK_LIMIT_MS a failure
OURS = "of this project"
NO_ROBUSTMQ = (
    "robustmq.listen is set, and a RobustMQ broker's other calls are answered with UNIMPLEMENTED here: name RobustMQ's nodes in "
    "meta.endpoints"
)
_NO_GROUP = "offset-adapter-doctor"  # whose offsets are read where nothing else can be: it has none


def meta_services(section: MetaSection, *, wants_robustmq: bool = False) -> Iterator[Finding]:
    """Each endpoint: whether it answers, its kind and version, its losses, its clock. All are asked at the same time.

    `wants_robustmq`: a RobustMQ broker calls the adapter, whose other calls only RobustMQ's nodes answer.
    """
    channels = {name: open_blocking_channel(name, section.tls, name="meta.tls") for name in section.endpoints}
    try:
        begun = wall_ms()
        calls = {
            name: meta_grpc.MetaServiceServiceStub(channel).GetStoreStatus.future(
                meta_pb.GetStoreStatusRequest(), timeout=TIMEOUT_S
            )
            for name, channel in channels.items()
        }
        found = {name: [*_answer(section, name, channels[name], call, begun)] for name, call in calls.items()}
    finally:
        for channel in channels.values():
            channel.close()
    one_answers = any(rows[0].state != FAIL for rows in found.values())
    for rows in found.values():
        for row in rows:
            away = row.check == NAME and row.state == FAIL and one_answers
            if wants_robustmq and row.check == NAME and row.state == OK and OURS in row.seen:
                yield row._replace(state=FAIL, advice=NO_ROBUSTMQ)
            else:
                yield row._replace(state=WARN) if away else row


def _answer(
    section: MetaSection, name: str, channel: grpc.Channel, call: "grpc.Future[meta_pb.GetStoreStatusReply]", begun_ms: int
) -> Iterator[Finding]:
    try:
        reply = call.result()
        ended_ms = wall_ms()
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            yield _other(section, name, channel)
        else:
            yield Finding(NAME, FAIL, f"{name}: {error.code().name}: {error.details()}", _help(section))
        return
    yield Finding(NAME, OK, f"{name}: {OURS}, engine {reply.engine}, version {reply.version}, {ended_ms - begun_ms} ms")
    if reply.HasField("loss"):
        seen = f"{name}: it once lost about {reply.loss.writes:,} acknowledged writes"
        yield Finding(
            "losses", WARN, seen, "adapters pushed again what they held: docs/broken.md, A damaged store of the Meta Service"
        )
    # The server's time is of an instant between the call and its reply; what that leaves open counts for it.
    ahead_ms = max(reply.now_ms - ended_ms, begun_ms - reply.now_ms, 0)
    seen = f"{name}: its clock and this one are {ahead_ms / 1000:,.1f} s apart, or less than a call takes"
    if ahead_ms < DIFFERENCE_MS:
        yield Finding("clocks", OK, seen)
    else:
        advice = "set the clocks (chrony): from 30 s on nothing expires through this adapter"
        yield Finding("clocks", FAIL if ahead_ms >= CLOCK_LIMIT_MS else WARN, seen, advice)


def _other(section: MetaSection, name: str, channel: grpc.Channel) -> Finding:
    """A server that does not know our calls: RobustMQ's Meta Service answers the one that reads the offsets of a group."""
    request = meta_pb.GetOffsetDataRequest(tenant=DEFAULT_NAMESPACE, group=_NO_GROUP, cluster_name=section.cluster)
    begun = time.perf_counter()
    try:
        meta_grpc.MetaServiceServiceStub(channel).GetOffsetData(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        advice = "is another program there? meta.endpoints names Meta Services"
        return Finding(NAME, FAIL, f"{name}: answers, and is no Meta Service: {error.code().name}: {error.details()}", advice)
    took_ms = (time.perf_counter() - begun) * 1000
    seen = f"{name}: RobustMQ's, which knows no epochs, and tells neither its version nor its time; {took_ms:.0f} ms"
    return Finding(NAME, OK, seen, "docs/robustmq.md says what is weaker with it")


def _help(section: MetaSection) -> str:
    plain = "; it may want TLS: [meta.tls]" if section.tls is None else "; [meta.tls]: does its certificate match the CA?"
    return f"is it running there? meta.endpoints{plain}"


def etcd(section: EtcdSection) -> Iterator[Finding]:
    """Each Raft group: whether its members answer and follow a leader, and their versions."""

    async def look() -> tuple[RaftGroup, ...]:
        async with opened(section) as leaders:
            state = await leaders.look()
        return (state.metadata, *state.offsets)

    for group in anyio.run(look):
        away = [f"{member.endpoint}: {member.problem}" for member in group.members if not member.reachable]
        alarms = [f"{member.endpoint}: {member.problem}" for member in group.members if member.reachable and member.problem]
        versions = ", ".join(sorted({member.version for member in group.members if member.reachable}))
        well = len(group.members) - len(away)
        seen = f"{group.name}: {well} of {len(group.members)} members answer" + (f", version {versions}" if versions else "")
        seen = "; ".join([seen, *away, *alarms])
        if group.leader is None:
            yield Finding("etcd", FAIL, f"{seen}; no leader", "a majority must run and reach each other: etcdctl endpoint status")
        elif away or alarms:
            yield Finding("etcd", WARN, seen, "etcdctl endpoint status, etcdctl alarm list")
        else:
            yield Finding("etcd", OK, f"{seen}, {group.leader.endpoint} leads")


def listens(name: str, setting: str, address: str) -> Iterator[Finding]:
    """Whether somebody accepts a connection at an address that the process calls."""
    host, port = split_address(address)
    try:
        socket.create_connection((host, port), TIMEOUT_S).close()
    except OSError as error:
        yield Finding(name, WARN, f"{address}: {error.strerror or error}", f"is it running there? {setting}")
    else:
        yield Finding(name, OK, f"{address}: accepts connections")

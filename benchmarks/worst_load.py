"""The most expensive requests that fit into a message, by method, and a process that sends several of them at once.

`python -m benchmarks.worst_load ADDRESS NAME TIMES SECONDS` prints the outcomes as JSON: status -> number. With
CONNECTIONS behind that, so many connections send them for these seconds, again and again.
"""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from adapter.rpc import lag_pb, meta_pb, offsets_pb, scaler_pb
from adapter.runtime.clocks import wall_ms

BIG = "big"  # a group with most of the shards
LEAVES = "leaves"  # a group that is removed
STORE, ADMIN, LAG = "offsets.v1.OffsetStore", "offsets.v1.OffsetAdmin", "offsets.v1.OffsetLag"
SCALER = "externalscaler.ExternalScaler"
META = "meta.service.common.MetaServiceService"
HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"
MIB = 2**20
FULL = 4 * MIB - 1024  # bytes of a full message
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
COMMIT = 5_000  # offsets of a commit: the limit
PATIENCE_S = 60.0  # for the answers to a flood

Shard = offsets_pb.ShardCommit
Group = offsets_pb.GroupCommits


class Worst(NamedTuple):
    """A request. `stream`: how often it is sent in each call of a streaming method; 0 for others."""

    service: str
    method: str
    make: Callable[[], Message]
    stream: int = 0

    @property
    def path(self) -> str:
        """The path of the method."""
        return f"/{self.service}/{self.method}"


def _wanted(*groups: offsets_pb.GroupShards) -> dict[str, Any]:
    return {"groups": groups}


def _big(times: int, group: str = BIG) -> dict[str, Any]:
    return {"groups": [offsets_pb.GroupShards(group=group)] * times}


def _shards(count: int) -> list[str]:
    return [shard_of(at) for at in range(count)]


def shard_of(number: int) -> str:
    """The name of a shard of the big group."""
    return f"shard-{number}"


def _rewind(offset: int = 1) -> offsets_pb.CommitOffsetsRequest:
    rows = [Shard(shard=f"r{at}", offset=offset, metadata="m" * 50, topic="t", high_watermark=9) for at in range(COMMIT)]
    return offsets_pb.CommitOffsetsRequest(groups=[Group(group="rewinds", shards=rows)], mode=offsets_pb.OVERWRITE)


def _columns(count: int) -> offsets_pb.CommitOffsetsRequest:
    return offsets_pb.CommitOffsetsRequest(
        groups=[Group(group="columns", shard_names=[f"{at:x}" for at in range(count)], offsets=[1] * count)]
    )


def _members() -> offsets_pb.CommitOffsetsRequest:
    shards = [Shard(shard="s", offset=1)]
    groups = [Group(group=f"m{at}", generation=at, member_id="m", shards=shards) for at in range(COMMIT // 2)]
    return offsets_pb.CommitOffsetsRequest(groups=groups)


def _targets() -> offsets_pb.ResetOffsetsRequest:
    rows = [offsets_pb.ResetOffsetsRequest.Target(shard=shard, offset=5) for shard in _shards(20_000)]
    return offsets_pb.ResetOffsetsRequest(group=BIG, to_targets=offsets_pb.ResetOffsetsRequest.Targets(targets=rows))


def _import() -> offsets_pb.ImportOffsetsRequest:
    rows = [Shard(shard=shard, offset=1, metadata="m" * 50) for shard in _shards(COMMIT)]
    return offsets_pb.ImportOffsetsRequest(groups=[Group(group=BIG, shards=rows)], execute=True)


def _broadcast() -> offsets_pb.CommitBroadcastRequest:
    rows = [Shard(shard=shard, offset=1) for shard in _shards(COMMIT)]
    return offsets_pb.CommitBroadcastRequest(group="broadcast", client_id="c", shards=rows)


def _trigger(**metadata: str) -> scaler_pb.ScaledObjectRef:
    return scaler_pb.ScaledObjectRef(scalerMetadata={"group": BIG, "lagThreshold": "10", **metadata})


def _metric(threshold: str) -> scaler_pb.GetMetricsRequest:
    return scaler_pb.GetMetricsRequest(scaledObjectRef=_trigger(lagSecondsThreshold=threshold))


def _empties(kind: type[Message]) -> Callable[[], Message]:
    """A request of two million empty groups, which are two bytes each."""
    return lambda: kind.FromString(b"\x0a\0" * (FULL // 2))


def _empty_commit() -> offsets_pb.CommitOffsetsRequest:
    return offsets_pb.CommitOffsetsRequest.FromString(b"\x0a\0" * (FULL // 2 - 8))


def _names(count: int) -> list[str]:
    return [f"{at:x}" for at in range(count)]


P = offsets_pb
ADAPTER: dict[str, Worst] = {
    "commit, rewinds with metadata": Worst(STORE, "CommitOffsets", _rewind),
    "commit, 5,000 in columns": Worst(STORE, "CommitOffsets", lambda: _columns(COMMIT)),
    "commit, columns of 4 MiB": Worst(STORE, "CommitOffsets", lambda: _columns(500_000)),
    "commit, 2,500 generations": Worst(STORE, "CommitOffsets", _members),
    "commit, groups of 4 MiB": Worst(
        STORE, "CommitOffsets", lambda: P.CommitOffsetsRequest(groups=[Group(group=f"{at:x}") for at in range(400_000)])
    ),
    "stream of rewinds": Worst(STORE, "StreamCommits", lambda: P.StreamCommitsRequest(commit=_rewind()), 20),
    "broadcast, 5,000 shards": Worst(STORE, "CommitBroadcast", _broadcast),
    "broadcast, 500,000 shards": Worst(
        STORE, "CommitBroadcast", lambda: P.CommitBroadcastRequest(group="broadcast", client_id="c", shards=[Shard()] * 500_000)
    ),
    "read broadcast": Worst(STORE, "ReadBroadcast", lambda: P.ReadBroadcastRequest(group="broadcast", shards=_shards(20_000))),
    "read, a group 1,000 times": Worst(STORE, "ReadOffsets", lambda: P.ReadOffsetsRequest(**_big(1_000), mode=P.MEMORY)),
    "read, a group": Worst(STORE, "ReadOffsets", lambda: P.ReadOffsetsRequest(**_big(1), mode=P.MEMORY)),
    "read, 40,000 shards": Worst(
        STORE,
        "ReadOffsets",
        lambda: P.ReadOffsetsRequest(**_wanted(P.GroupShards(group=BIG, shards=_shards(40_000))), mode=P.MEMORY),
    ),
    "read, names of 4 MiB": Worst(
        STORE,
        "ReadOffsets",
        lambda: P.ReadOffsetsRequest(**_wanted(P.GroupShards(group=BIG, shards=_names(500_000)))),
    ),
    "read, 40,000 groups": Worst(
        STORE,
        "ReadOffsets",
        lambda: P.ReadOffsetsRequest(groups=[P.GroupShards(group=f"group-{at}") for at in range(40_000)], mode=P.MEMORY),
    ),
    "persist, a group 50,000 times": Worst(STORE, "PersistOffsets", lambda: P.PersistOffsetsRequest(**_big(50_000))),
    "status": Worst(ADMIN, "Status", P.StatusRequest),
    "flush": Worst(ADMIN, "Flush", P.FlushRequest),
    "list offsets": Worst(STORE, "ListOffsets", lambda: P.ListOffsetsRequest(page_size=10_000)),
    "list lag, 10,000 groups": Worst(
        LAG, "ListGroupLag", lambda: lag_pb.ListGroupLagRequest(page_size=10_000, filter=lag_pb.LagFilter(pattern="*-*[0-9]*"))
    ),
    "lag of a group": Worst(LAG, "GetGroupLag", lambda: lag_pb.GetGroupLagRequest(group=BIG)),
    "list groups": Worst(ADMIN, "ListGroups", lambda: P.ListGroupsRequest(page_size=10_000)),
    "describe a group": Worst(ADMIN, "DescribeGroup", lambda: P.DescribeGroupRequest(group=BIG)),
    "reset a group": Worst(ADMIN, "ResetOffsets", lambda: P.ResetOffsetsRequest(group=BIG, to_offset=1)),
    "reset 20,000 shards": Worst(ADMIN, "ResetOffsets", _targets),
    "delete a group": Worst(ADMIN, "DeleteOffsets", lambda: P.DeleteOffsetsRequest(group=BIG)),
    "delete 20,000 shards": Worst(ADMIN, "DeleteOffsets", lambda: P.DeleteOffsetsRequest(shards=_shards(20_000))),
    "clone a group": Worst(ADMIN, "CloneGroup", lambda: P.CloneGroupRequest(from_group=BIG, to_group="clone")),
    "import 5,000": Worst(ADMIN, "ImportOffsets", _import),
    "export": Worst(ADMIN, "ExportOffsets", lambda: P.ExportOffsetsRequest(groups=[P.GroupShards(group=BIG)])),
    "snapshot": Worst(ADMIN, "SnapshotOffsets", P.SnapshotOffsetsRequest),
    "scaler, topics of 4 MiB": Worst(SCALER, "IsActive", lambda: _trigger(topics="," * FULL)),
    "scaler, names of topics": Worst(SCALER, "StreamIsActive", lambda: _trigger(topics=",".join(_names(600_000)))),
    "scaler, 300,000 keys": Worst(
        SCALER, "GetMetricSpec", lambda: scaler_pb.ScaledObjectRef(scalerMetadata=dict.fromkeys(_names(300_000), ""))
    ),
    "scaler, a number of 4 MiB": Worst(SCALER, "GetMetrics", lambda: _metric("9" * FULL)),
    "scaler, the big group": Worst(SCALER, "IsActive", _trigger),
    "lag, a pattern of 4 MiB": Worst(
        LAG, "ListGroupLag", lambda: lag_pb.ListGroupLagRequest(filter=lag_pb.LagFilter(pattern="*" * FULL))
    ),
    "commit, 2,000,000 empty groups": Worst(STORE, "CommitOffsets", _empties(P.CommitOffsetsRequest)),
    "read, 2,000,000 empty groups": Worst(STORE, "ReadOffsets", _empties(P.ReadOffsetsRequest)),
    "stream, 2,000,000 empty groups": Worst(STORE, "StreamCommits", lambda: P.StreamCommitsRequest(commit=_empty_commit()), 4),
    "health, a name of 4 MiB": Worst(HEALTH, "Watch", lambda: health_pb2.HealthCheckRequest(service="n" * FULL)),
    "reflection, a name of 4 MiB": Worst(
        REFLECTION,
        "ServerReflectionInfo",
        lambda: reflection_pb2.ServerReflectionRequest(file_containing_symbol="n" * FULL),
        2,
    ),
    # Last, because the group does not exist afterwards.
    "remove, a group 50,000 times": Worst(STORE, "RemoveOffsets", lambda: P.RemoveOffsetsRequest(**_big(50_000, LEAVES))),
}


def _saved(count: int) -> meta_pb.SaveOffsetDataRequest:
    rows = [meta_pb.SaveOffsetDataRequestOffset(shard_name=f"{at:x}", offset=1) for at in range(count)]
    return meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(group="saves", offsets=rows)])


def _empty_saves() -> meta_pb.SaveOffsetDataRequest:
    return meta_pb.SaveOffsetDataRequest.FromString(b"\x12\0" * (FULL // 2))


M = meta_pb
META_SERVICE: dict[str, Worst] = {
    "save, 20,000": Worst(META, "SaveOffsetData", lambda: _saved(20_000)),
    "save, 500,000": Worst(META, "SaveOffsetData", lambda: _saved(500_000)),
    "merge, 1,000,000": Worst(
        META, "MergeOffsetData", lambda: M.MergeOffsetDataRequest(keys=[b"\1n\1g\1s"] * 1_000_000, records=[b""] * 1_000_000)
    ),
    "save, 2,000,000 empty groups": Worst(META, "SaveOffsetData", _empty_saves),
    "list offsets": Worst(META, "ListOffsetData", lambda: M.ListOffsetDataRequest(page_size=10_000)),
    "scan": Worst(META, "ScanOffsetData", lambda: M.ScanOffsetDataRequest(page_size=20_000)),
    "scan as columns": Worst(META, "ScanOffsetData", lambda: M.ScanOffsetDataRequest(page_size=20_000, as_packed=True)),
    "split": Worst(META, "SplitOffsetData", lambda: M.SplitOffsetDataRequest(parts=1_000)),
    "expire a group": Worst(
        META, "ExpireOffsetData", lambda: M.ExpireOffsetDataRequest(namespace="default", group=BIG, before_ms=1, now_ms=wall_ms())
    ),
    "delete 500,000 names": Worst(
        META,
        "DeleteOffsetData",
        lambda: M.DeleteOffsetDataRequest(group="no", shard_names=_names(500_000)),
    ),
    # Last: the group is not there afterwards.
    "expire a group that is old": Worst(
        META,
        "ExpireOffsetData",
        lambda: M.ExpireOffsetDataRequest(namespace="default", group=LEAVES, before_ms=wall_ms(), now_ms=wall_ms()),
    ),
    "delete a group": Worst(META, "DeleteOffsetData", lambda: M.DeleteOffsetDataRequest(namespace="default", group=LEAVES)),
}
ALL = {**ADAPTER, **{f"meta: {name}": worst for name, worst in META_SERVICE.items()}}


def attack(address: str, worst: Worst, times: int, timeout_s: float) -> Counter[str]:
    """Send a request several times at once; returns status -> number."""
    return _sent(address, worst, worst.make().SerializeToString(), times, timeout_s)


def _sent(address: str, worst: Worst, data: bytes, times: int, timeout_s: float) -> Counter[str]:
    found: Counter[str] = Counter()
    with grpc.insecure_channel(address, [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]) as channel:
        # A streaming call for all methods, also unary ones; replies are not parsed.
        call: Any = channel.stream_stream(worst.path)
        calls = [call(_messages(data, worst.stream or 1), timeout=timeout_s) for _ in range(times)]
        for one in calls:
            try:
                for _ in one:
                    if worst.method == "Watch":
                        one.cancel()
                found["OK"] += 1
            except grpc.RpcError as error:
                found[error.code().name] += 1
    return found


def _messages(data: bytes, times: int) -> Iterator[bytes]:
    for _ in range(times):
        yield data


def flood(address: str, worst: Worst, times: int, seconds: float, connections: int) -> Counter[str]:
    """Send a request several times at once over each of these connections, for so long; returns status -> number."""
    data = worst.make().SerializeToString()
    until = time.monotonic() + seconds
    found: list[Counter[str]] = []

    def one() -> None:
        while time.monotonic() < until:
            found.append(_sent(address, worst, data, times, PATIENCE_S))

    threads = [threading.Thread(target=one) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(found, Counter[str]())


if __name__ == "__main__":
    address_, name_, times_, seconds_, *connections_ = sys.argv[1:]
    worst_, arguments_ = ALL[name_], (int(times_), float(seconds_))
    print(
        json.dumps(
            flood(address_, worst_, *arguments_, int(connections_[0])) if connections_ else attack(address_, worst_, *arguments_)
        )
    )

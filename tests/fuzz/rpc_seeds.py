"""What fuzzing of calls begins with: examples of each method, whole, and the content of the servers that are called."""

from collections.abc import Iterator, Mapping, Sequence

from google.protobuf.message import Message

from adapter.model.codec import encode_key, encode_record, pack_names
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord
from adapter.rpc import backup_pb, lag_pb, meta_pb, metadata_pb, offsets_pb, scaler_pb
from adapter.sidecar.engine.groups import GroupRow, PartialGroup
from tests.fuzz.running import NOW_MS
from tests.unit.helpers import packed_rows

NAMES = ("s", "topic/3", "\u8bdd", "x" * 255)
CLUSTER = "default"
STORE_ID = bytes(range(16))

OFFSET_STORE, OFFSET_ADMIN, OFFSET_LAG = "offsets.v1.OffsetStore", "offsets.v1.OffsetAdmin", "offsets.v1.OffsetLag"
META, METADATA = "meta.service.common.MetaServiceService", "offsets.meta.v1.MetadataStore"
SCALER = "externalscaler.ExternalScaler"
STORE_BACKUP = "offsets.v1.StoreBackup"

Reset = offsets_pb.ResetOffsetsRequest
Examples = Mapping[str, Sequence[Message]]


def commit_groups() -> list[offsets_pb.GroupCommits]:
    """A group with all that a shard may have, and one in columns."""
    shards = [offsets_pb.ShardCommit(shard=name, offset=at, epoch=min(at, 1)) for at, name in enumerate(NAMES)]
    shards[0].metadata, shards[0].topic, shards[0].committed_at_ms, shards[0].partition = "m", "t", NOW_MS, 7
    shards[1].low_watermark, shards[1].high_watermark, shards[1].log_id = 1, 2**63, "log"
    group = offsets_pb.GroupCommits(group="g", shards=shards, generation=3, member_id="m")
    columns = offsets_pb.GroupCommits(
        namespace="n", group="h", shard_names=NAMES, offsets=[0, 1, 2, 2**64 - 1], epochs=[0, 1, 1, 1]
    )
    return [group, columns]


def wanted_groups() -> list[offsets_pb.GroupShards]:
    """A group of which shards are named, the same as a whole, and another one."""
    return [
        offsets_pb.GroupShards(group="g", shards=NAMES),
        offsets_pb.GroupShards(group="g"),
        offsets_pb.GroupShards(namespace="n", group="h"),
    ]


def save_request() -> meta_pb.SaveOffsetDataRequest:
    """With all that an entry may have."""
    save = meta_pb.SaveOffsetDataRequest(cluster_name=CLUSTER, store=_store(), now_ms=NOW_MS)
    group = save.offsets.add(group="g", tenant="n")
    for at, name in enumerate(NAMES):
        group.offsets.add(shard_name=name, offset=at, epoch=at, topic="t", metadata="m", tombstone=at == 2)
    group.offsets[3].expected_offset = 3
    return save


def packed_entries() -> tuple[list[bytes], list[bytes]]:
    """Keys and records in packed form."""
    keys = [encode_key(OffsetKey("n", "g", name)) for name in NAMES]
    return keys, [encode_record(OffsetRecord(1 + at, at, at != 2, NOW_MS, "m" * at, "t" * at)) for at in range(len(NAMES))]


def _store() -> meta_pb.LocalStore:
    return meta_pb.LocalStore(broker="b", path="/var/lib/adapter", store_id=STORE_ID, flushed_seq=7)


def _offset_store() -> Examples:
    commit = offsets_pb.CommitOffsetsRequest(groups=commit_groups())
    wanted = wanted_groups()
    token = encode_key(OffsetKey("default", "g", "s"))
    return {
        "CommitOffsets": [commit, offsets_pb.CommitOffsetsRequest(groups=commit_groups()[1:], mode=offsets_pb.OVERWRITE)],
        "StreamCommits": [offsets_pb.StreamCommitsRequest(id=5, commit=commit)],
        "ReadOffsets": [
            offsets_pb.ReadOffsetsRequest(groups=wanted),
            offsets_pb.ReadOffsetsRequest(groups=wanted, mode=offsets_pb.STORE, keep_hold=True),
        ],
        "PersistOffsets": [offsets_pb.PersistOffsetsRequest(groups=wanted)],
        "RemoveOffsets": [offsets_pb.RemoveOffsetsRequest(groups=wanted)],
        "CommitBroadcast": [
            offsets_pb.CommitBroadcastRequest(group="all", client_id="c", shards=[offsets_pb.ShardCommit(shard="s", offset=9)])
        ],
        "ReadBroadcast": [
            offsets_pb.ReadBroadcastRequest(group="all", client_id="c", shards=NAMES),
            offsets_pb.ReadBroadcastRequest(group="all"),
        ],
        "ListOffsets": [
            offsets_pb.ListOffsetsRequest(page_size=2, deleted=True),
            offsets_pb.ListOffsetsRequest(namespace="default", group="g", page_size=1, page_token=token),
        ],
        "WatchOffsets": [offsets_pb.WatchOffsetsRequest(namespace="default", group="g")],
    }


def _offset_admin() -> Examples:
    targets = Reset.Targets(targets=[Reset.Target(shard=name, offset=5) for name in NAMES])
    return {
        "Status": [offsets_pb.StatusRequest()],
        "Flush": [offsets_pb.FlushRequest()],
        "ListGroups": [
            offsets_pb.ListGroupsRequest(page_size=1),
            offsets_pb.ListGroupsRequest(namespace="default", page_size=1, page_token=pack_names("default", "all@broadcast@c")),
            offsets_pb.ListGroupsRequest(page_token=PartialGroup(GroupRow(GroupKey("default", "g"), 1, 1, NOW_MS), "s").token),
        ],
        "DescribeGroup": [offsets_pb.DescribeGroupRequest(group="g", shards=NAMES), offsets_pb.DescribeGroupRequest(group="g")],
        "DescribeGroups": [offsets_pb.DescribeGroupsRequest(namespace="default", groups=["g", "h"])],
        "ResetOffsets": [
            Reset(group="g", shards=NAMES, to_offset=7, create=True, execute=True),
            Reset(group="g", to_targets=targets, execute=True),
            Reset(group="g", topics=["t", "topic"], shift_by=-3, change_id=f"{NOW_MS}-0123456789abcdef", execute=True),
            Reset(group="g", to_earliest=True, execute=True),
            Reset(group="g", to_latest=True),
            Reset(group="g", to_current=True),
            Reset(group="g", to_timestamp_ms=NOW_MS + 1),
        ],
        "DeleteOffsets": [
            offsets_pb.DeleteOffsetsRequest(group="g", shards=NAMES[:2], topics=["t"], execute=True),
            offsets_pb.DeleteOffsetsRequest(shards=["s"], execute=True),
        ],
        "CloneGroup": [offsets_pb.CloneGroupRequest(from_group="g", to_group="new", shards=NAMES, topics=["t"], execute=True)],
        "ExportOffsets": [offsets_pb.ExportOffsetsRequest(groups=wanted_groups()), offsets_pb.ExportOffsetsRequest()],
        "ImportOffsets": [offsets_pb.ImportOffsetsRequest(groups=commit_groups(), execute=True)],
        "SnapshotOffsets": [offsets_pb.SnapshotOffsetsRequest()],
        "Reload": [offsets_pb.ReloadRequest(), offsets_pb.ReloadRequest(allow_defaults=True)],
        "ListChanges": [offsets_pb.ListChangesRequest(namespace="default", group="g", limit=5)],
    }


def _offset_lag() -> Examples:
    chosen = lag_pb.LagFilter(namespace="default", pattern="[a-h]*", at_least=lag_pb.OK)
    return {
        "ListGroupLag": [
            lag_pb.ListGroupLagRequest(page_size=2, offset=1),
            lag_pb.ListGroupLagRequest(filter=chosen, order=lag_pb.NAME),
        ],
        "GetGroupLag": [lag_pb.GetGroupLagRequest(namespace="default", group="g")],
        "GetGroupLags": [lag_pb.GetGroupLagsRequest(namespace="default", groups=["g", "h"])],
        "WatchGroupLag": [lag_pb.WatchGroupLagRequest(filter=chosen), lag_pb.WatchGroupLagRequest()],
    }


def _external_scaler() -> Examples:
    metadata = {
        "scalerAddress": "adapter:9520",
        "group": "g",
        "namespace": "default",
        "lagThreshold": "10",
        "lagSecondsThreshold": "2.5",
        "activationLagThreshold": "3",
        "excludeStalled": "false",
        "limitToShards": "lagging",
        "topics": "t, topic",
        "boundsMaxAgeSeconds": "1e9",
    }
    scaled = [
        scaler_pb.ScaledObjectRef(name="o", namespace="k", scalerMetadata=metadata),
        scaler_pb.ScaledObjectRef(scalerMetadata={"group": "g", "lagThresholdFromEnv": "5"}),
    ]
    return {
        "IsActive": scaled,
        "StreamIsActive": scaled,
        "GetMetricSpec": scaled,
        "GetMetrics": [
            scaler_pb.GetMetricsRequest(scaledObjectRef=one, metricName=name)
            for one, name in zip(scaled, ("", "offset-adapter-lag"), strict=True)
        ],
        "StreamMetricSpec": scaled,
    }


def _meta() -> Examples:
    keys, records = packed_entries()
    token = pack_names(CLUSTER, "n", "g", "s")
    group = meta_pb.BatchGetOffsetDataRequest.Group
    packed = packed_rows(CLUSTER, keys, records)
    return {
        "SaveOffsetData": [save_request()],
        "GetOffsetData": [meta_pb.GetOffsetDataRequest(tenant="n", group="g")],
        "DeleteOffsetData": [meta_pb.DeleteOffsetDataRequest(tenant="n", group="g", shard_names=NAMES[:2])],
        "BatchGetOffsetData": [
            meta_pb.BatchGetOffsetDataRequest(
                groups=[group(namespace="n", group="g"), group(namespace="n", group="g", shard_names=NAMES)], page_size=2
            ),
            meta_pb.BatchGetOffsetDataRequest(
                groups=[group(namespace="n", group="g", shard_names=NAMES), group(group="h")],
                page_size=1,
                page_token=b"topic/3",
            ),
            meta_pb.BatchGetOffsetDataRequest(known=packed),
        ],
        "ExpireOffsetData": [meta_pb.ExpireOffsetDataRequest(namespace="n", group="g", before_ms=NOW_MS, now_ms=NOW_MS)],
        "ListOffsetData": [
            meta_pb.ListOffsetDataRequest(page_size=1),
            meta_pb.ListOffsetDataRequest(namespace="n", group="g", page_token=token),
        ],
        "SplitOffsetData": [meta_pb.SplitOffsetDataRequest(namespace="n", group="g", parts=3)],
        "ScanOffsetData": [
            meta_pb.ScanOffsetDataRequest(page_size=1, as_packed=True),
            meta_pb.ScanOffsetDataRequest(
                namespace="n", group="g", page_token=token, until_token=pack_names(CLUSTER, "n", "g", "\u8bdd")
            ),
        ],
        "SnapshotOffsetData": [meta_pb.SnapshotOffsetDataRequest(), meta_pb.SnapshotOffsetDataRequest(namespace="n", group="g")],
        "MergeOffsetData": [
            meta_pb.MergeOffsetDataRequest(keys=keys, records=records, now_ms=NOW_MS, tell_standing=True, store=_store()),
            meta_pb.MergeOffsetDataRequest(packed=packed, tell_standing=True),
            meta_pb.MergeOffsetDataRequest(packed=packed),
        ],
        "ReportStore": [meta_pb.ReportStoreRequest(store=_store(), replaces=bytes(16), now_ms=NOW_MS)],
        "ListChangedGroups": [
            meta_pb.ListChangedGroupsRequest(),
            meta_pb.ListChangedGroupsRequest(after=[meta_pb.StoreMark(store_id=bytes(16), incarnation=1, revision=1)]),
        ],
        "GetStoreStatus": [meta_pb.GetStoreStatusRequest()],
    }


def _metadata() -> Examples:
    return {
        "Put": [metadata_pb.PutRequest(key="a/b", value=b"v", expected_revision=1), metadata_pb.PutRequest(key="c", value=b"v")],
        "Get": [metadata_pb.GetRequest(key="a/b")],
        "Delete": [metadata_pb.DeleteRequest(key="a/b", expected_revision=1)],
        "List": [
            metadata_pb.ListRequest(page_size=1),
            metadata_pb.ListRequest(prefix="a/", page_size=1, page_token=b"a/b"),
        ],
    }


EXAMPLES: Mapping[str, Examples] = {
    OFFSET_STORE: _offset_store(),
    OFFSET_ADMIN: _offset_admin(),
    OFFSET_LAG: _offset_lag(),
    SCALER: _external_scaler(),
    META: _meta(),
    METADATA: _metadata(),
    STORE_BACKUP: {
        "BackupStore": [
            backup_pb.BackupStoreRequest(),
            backup_pb.BackupStoreRequest(known=[backup_pb.BackupFile(name="CURRENT", size=16, sha256=bytes(32))]),
        ]
    },
}

# What a server has stored before it is called.
CONTENT: Mapping[str, Sequence[tuple[str, Message]]] = {
    OFFSET_STORE: [
        *(("CommitOffsets", request) for request in EXAMPLES[OFFSET_STORE]["CommitOffsets"]),
        ("CommitBroadcast", EXAMPLES[OFFSET_STORE]["CommitBroadcast"][0]),
    ],
    OFFSET_ADMIN: [
        ("Flush", offsets_pb.FlushRequest()),
        ("ResetOffsets", Reset(group="g", shards=["s"], to_offset=7, execute=True)),
        ("DeleteOffsets", offsets_pb.DeleteOffsetsRequest(namespace="n", group="h", shards=["topic/3"], execute=True)),
    ],
    META: [("SaveOffsetData", save_request()), *(("MergeOffsetData", one) for one in EXAMPLES[META]["MergeOffsetData"][:1])],
    METADATA: [("Put", metadata_pb.PutRequest(key=name, value=b"v")) for name in ("a/b", "a/c", "b")],
}


def examples(service: str, methods: Sequence[str]) -> Iterator[bytes]:
    """The examples of a service as inputs: the place of the method, and the message."""
    for at, method in enumerate(methods):
        yield from (bytes([at]) + request.SerializeToString(deterministic=True) for request in EXAMPLES[service][method])

"""The gRPC service of metadata: conversion, validation, limits, metrics. It has no rule about what is stored.

A conflict is ABORTED, with the stored revision in its message; a write whose outcome is unknown is UNAVAILABLE.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram

from adapter.metaservice.config import DEFAULT_CLUSTER
from adapter.metaservice.limits import Limit
from adapter.metaservice.metadata import (
    Entry,
    MetadataStore,
    check_key,
    check_page_size,
    check_page_token,
    check_prefix,
    check_revision,
    check_value,
)
from adapter.model.names import check_name
from adapter.rpc import metadata_grpc, metadata_pb
from adapter.runtime.serving.statuses import Context, answering

SERVICE = "offsets.meta.v1.MetadataStore"
RPCS = ("Put", "Get", "Delete", "List")

# Seconds. Dense from 7 ms (metadata alone) to 150 ms (beside offsets), to show whether offsets slow the metadata down.
_BUCKETS = (0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1, 2, 5)


class MetadataMetrics:
    """Counts calls, and measures the duration of those that succeed. One instance per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        calls = Counter("offset_meta_metadata_calls", "Metadata calls by RPC.", ["rpc"], registry=registry)
        seconds = Histogram(
            "offset_meta_metadata_seconds",
            "Duration of a metadata call that was answered.",
            ["rpc"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._calls = {rpc: calls.labels(rpc) for rpc in RPCS}
        self._seconds = {rpc: seconds.labels(rpc) for rpc in RPCS}

    @contextmanager
    def call(self, rpc: str) -> Iterator[None]:
        """Count a call, and observe its duration unless it fails."""
        self._calls[rpc].inc()
        started = time.perf_counter()
        yield
        self._seconds[rpc].observe(time.perf_counter() - started)


class MetadataService(metadata_grpc.MetadataStoreServicer):
    """The gRPC service `offsets.meta.v1.MetadataStore`; proto/metadata.proto documents the calls."""

    def __init__(self, store: MetadataStore, limit: Limit, metrics: MetadataMetrics) -> None:
        self._store = store
        self._limit = limit
        self._metrics = metrics

    @answering
    async def Put(self, request: metadata_pb.PutRequest, context: Context) -> metadata_pb.PutReply:  # noqa: D102 - see the proto
        with self._metrics.call("Put"), self._limit.admit(1):
            cluster, key = _cluster(request.cluster_name), check_key(request.key)
            revision = await self._store.put(cluster, key, check_value(request.value), _expected(request))
        return metadata_pb.PutReply(revision=revision)

    @answering
    async def Get(self, request: metadata_pb.GetRequest, context: Context) -> metadata_pb.GetReply:  # noqa: D102
        with self._metrics.call("Get"), self._limit.admit(1):
            found = await self._store.get(_cluster(request.cluster_name), check_key(request.key))
        return metadata_pb.GetReply(entry=_wire(found) if found else None)

    @answering
    async def Delete(self, request: metadata_pb.DeleteRequest, context: Context) -> metadata_pb.DeleteReply:  # noqa: D102
        with self._metrics.call("Delete"), self._limit.admit(1):
            cluster, key = _cluster(request.cluster_name), check_key(request.key)
            deleted = await self._store.delete(cluster, key, _expected(request))
        return metadata_pb.DeleteReply(deleted=deleted)

    @answering
    async def List(self, request: metadata_pb.ListRequest, context: Context) -> metadata_pb.ListReply:  # noqa: D102
        with self._metrics.call("List"), self._limit.admit(1):
            cluster, prefix = _cluster(request.cluster_name), check_prefix(request.prefix)
            size, after = check_page_size(request.page_size), check_page_token(request.page_token, prefix)
            page = await self._store.list_page(cluster, prefix, size, after)
        return metadata_pb.ListReply(entries=map(_wire, page.entries), next_page_token=page.after.encode())


def _cluster(name: str) -> str:
    return check_name(name or DEFAULT_CLUSTER, "cluster_name")


def _expected(request: metadata_pb.PutRequest | metadata_pb.DeleteRequest) -> int | None:
    return check_revision(request.expected_revision) if request.HasField("expected_revision") else None


def _wire(entry: Entry) -> metadata_pb.Entry:
    return metadata_pb.Entry(key=entry.key, value=entry.value, revision=entry.revision)

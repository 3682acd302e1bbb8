"""The metrics of real processes with their labels: from the registries that an adapter, a Meta Service and the lag job serve."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from adapter.metaservice.config import LIVE as META_LIVE
from adapter.metaservice.config import MetaConfig
from adapter.metaservice.etcd.leader_metrics import LeaderMetrics
from adapter.metaservice.metadata_service import MetadataMetrics
from adapter.metaservice.metrics import MetaMetrics
from adapter.metaservice.stores import PREFIX, opened
from adapter.pipeline.lag.metrics import LagMetrics
from adapter.runtime import descriptors
from adapter.runtime.settings.config import parse
from adapter.runtime.settings.reloading import Reloading, ReloadingCollector
from adapter.runtime.telemetry.metrics import GaugesCollector
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import free_port
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import eventually

Catalog = dict[str, frozenset[str]]

SUFFIXES: Mapping[str, Iterable[tuple[str, frozenset[str]]]] = {
    "counter": [("_total", frozenset())],
    "gauge": [("", frozenset())],
    "histogram": [("_bucket", frozenset({"le"})), ("_sum", frozenset()), ("_count", frozenset())],
    "info": [("_info", frozenset())],
    "unknown": [("", frozenset())],
}


async def real_metrics(directory: Path) -> Catalog:
    """Every metric that an adapter with all its parts, a Meta Service on either engine, or the lag job can have."""
    return await adapter_metrics(directory) | await meta_metrics(directory) | catalog(LagMetrics().registry)


async def adapter_metrics(directory: Path) -> Catalog:
    """Those of an adapter with a journal, a bridge and a front."""
    config = adapter_config(
        directory,
        journal={"path": str(directory / "journal")},
        rocketmq={"broker": f"127.0.0.1:{free_port()}"},
        robustmq={"listen": f"127.0.0.1:{free_port()}"},
    )
    async with running_sidecar(config, FakeMeta()) as sidecar:
        await eventually(lambda: sidecar._lag_metrics is not None)  # loaded beside the first commits
        return catalog(sidecar._metrics.registry)


async def meta_metrics(directory: Path) -> Catalog:
    """Those of a Meta Service: what its process registers, and the stores of both engines."""
    metrics = MetaMetrics()
    registry = metrics.registry
    metrics.refused("offsets")
    registry.register(GaugesCollector(PREFIX, descriptors.gauges))
    MetadataMetrics(registry)
    LeaderMetrics(registry)
    endpoint = f"127.0.0.1:{free_port()}"
    groups = {"metadata": {"endpoints": [endpoint]}, "offsets": [{"name": "o", "endpoints": [f"127.0.0.1:{free_port()}"]}]}
    embedded = parse({"store": {"path": str(directory / "meta-store")}}, MetaConfig, source="test")
    on_etcd = parse({"engine": "etcd", "etcd": groups}, MetaConfig, source="test")
    registry.register(ReloadingCollector(PREFIX, Reloading(embedded, META_LIVE)))
    found = catalog(registry)
    for config in (embedded, on_etcd):
        own = CollectorRegistry()
        async with opened(config, own):
            found |= catalog(own)
    return found


def catalog(registry: CollectorRegistry) -> Catalog:
    """The series of a registry: their names, and the names of their labels."""
    collectors: list[Collector] = list(registry._collector_to_names)
    return {
        name: labels for collector in collectors for family in collector.collect() for name, labels in _series(collector, family)
    }


def _series(collector: Collector, family: Metric) -> Iterable[tuple[str, frozenset[str]]]:
    declared = getattr(collector if isinstance(collector, MetricWrapperBase) else family, "_labelnames", ())
    labels = frozenset(declared).union(*(sample.labels for sample in family.samples)) - {"le"}
    return [(f"{family.name}{suffix}", labels | own) for suffix, own in SUFFIXES[family.type]]

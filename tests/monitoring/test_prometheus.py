"""A real Prometheus scrapes a real adapter and a real Meta Service: every rule is evaluated, every panel's query is answered."""

import itertools
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import grpc
import pytest

from adapter.rpc import offsets_grpc, offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port, meta_process
from adapter.testing.waiting import PATIENCE_S
from deploy.monitoring.source.dashboards import DASHBOARDS
from tests.monitoring.server import Prometheus, running_prometheus, wait_for

# What these processes have nothing to show in: no etcd, no bridge, no refusals, nothing that fires.
EMPTY = re.compile(
    r"raft_group|offset_meta_etcd|leaders_apart|leader_moves|rocketmq|commit_errors|refused_calls|ALERTS\{|journal|last_flush"
)
# What tells of the machine, not of these processes: its disk may be nearly full. `scenarios.py` tests these rules.
OF_THE_MACHINE = {"OffsetStoreDiskNearlyFull", "OffsetStoreDiskFull", "OffsetStoreDiskFillsSoon"}

LAG = "[lag]\ninterval_ms = 100\npoint_distance_ms = 50\nhead_distance_ms = 100"


class Watched(NamedTuple):
    """The processes."""

    prometheus: Prometheus
    adapter: ServiceProcess
    meta: ServiceProcess


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """An adapter, a Meta Service, and a Prometheus that has scraped both; offsets were committed."""
    directory = tmp_path_factory.mktemp("watched")
    meta, ports = meta_process(directory), (free_port(), free_port())
    meta.settings = meta.settings.replace("listen = ''", f"listen = '127.0.0.1:{ports[0]}'")
    adapter = adapter_process(directory, meta.address, extra=LAG)
    adapter.settings = adapter.settings.replace("listen = ''", f"listen = '127.0.0.1:{ports[1]}'")
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        jobs = {"offset-meta": ports[:1], "offset-adapter": ports[1:]}
        with running_prometheus(directory / "prometheus", jobs) as prometheus, committing(adapter):
            wait_for("both are scraped", lambda: prometheus.values("sum(up)") == [2])
            wait_for("rules are evaluated", lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()))
            yield Watched(prometheus, adapter, meta)


@contextmanager
def committing(adapter: ServiceProcess) -> Iterator[None]:
    """A group that commits all the time, five messages behind the end of its log."""
    ended = threading.Event()

    def work() -> None:
        with grpc.insecure_channel(adapter.address) as channel:
            stub = offsets_grpc.OffsetStoreStub(channel)
            for end in itertools.count(10):
                if ended.wait(0.05):
                    return
                shards = [
                    offsets_pb.ShardCommit(shard=f"orders/{at}", offset=end - 5, low_watermark=0, high_watermark=end)
                    for at in range(3)
                ]
                group = offsets_pb.GroupCommits(namespace="default", group="billing", shards=shards)
                with suppress(grpc.RpcError):  # it is being restarted
                    stub.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=[group]), timeout=PATIENCE_S)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_every_rule_is_evaluated_without_an_error(watched: Watched) -> None:
    """Also those whose metrics are not there."""
    rules = watched.prometheus.rules()
    assert len(rules) > 40
    assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"} == {}


def without_data(prometheus: Prometheus) -> list[str]:
    """The queries of panels without data over the last minute, asked as Grafana would."""
    now = time.time()
    found: list[str] = []
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                expr = query.expr.replace("$__rate_interval", "4s")
                expr = re.sub(r"\$(instance|namespace|group)", ".*", expr)
                if not prometheus.api("query_range", query=expr, start=now - 60, end=now, step=1)["result"]:
                    found.append(f"{dashboard.uid}: {panel.title}: {expr}")
    return found


def test_every_panel_has_an_answer_and_data_where_there_is_some(watched: Watched) -> None:
    """No query of a panel is refused; all but those of parts that these processes do not have show something."""
    missing: list[str] = []

    def all_there() -> bool:
        missing[:] = [query for query in without_data(watched.prometheus) if not EMPTY.search(query)]
        return not missing

    wait_for("data", all_there, lambda: missing)


def test_the_choices_on_top_of_dashboards_have_values(watched: Watched) -> None:
    """As Grafana asks for them: the values of a label of a metric."""
    for dashboard in DASHBOARDS:
        for variable in dashboard.variables:
            matching = {"match[]": variable.metric}
            assert watched.prometheus.api(f"label/{variable.of}/values", **matching), variable


def fires_of_the_processes(prometheus: Prometheus) -> set[str]:
    """The names of the alerts that fire, but for those of the machine."""
    return prometheus.firing() - OF_THE_MACHINE


def test_nothing_fires_while_all_is_well(watched: Watched) -> None:
    """Two healthy processes. On a machine so busy that a scrape fails, something may fire at first: times are short here."""
    prometheus = watched.prometheus
    wait_for("nothing fires", lambda: not fires_of_the_processes(prometheus), prometheus.firing)


def test_an_adapter_that_is_killed_is_told_and_one_that_is_back_is_not(watched: Watched) -> None:
    """And the Meta Service likewise, which its adapter notices."""
    prometheus, adapter, meta = watched
    adapter.kill()
    wait_for("away", lambda: "OffsetAdapterAway" in prometheus.firing(), prometheus.firing)
    adapter.start()
    wait_for("back", lambda: not fires_of_the_processes(prometheus), prometheus.firing)
    meta.kill()
    wait_for(
        "no Meta Service", lambda: {"OffsetMetaAway", "OffsetMetaUnreachable", "OffsetAdapterDirtyTooOld"} <= prometheus.firing()
    )
    meta.start()
    wait_for("all is well", lambda: not fires_of_the_processes(prometheus), prometheus.firing)

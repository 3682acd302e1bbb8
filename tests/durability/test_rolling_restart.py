"""A rolling restart of brokers with a native sidecar each: the broker stops first, and starts when the adapter is ready."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapter.rpc import meta_pb
from adapter.testing.processes import ServiceProcess, ended, meta_process
from adapter.testing.waiting import PATIENCE_S
from tests.durability.rolling import Pod
from tests.integration.helpers import meta_rpc


@contextmanager
def pods(directory: Path, count: int) -> Iterator[tuple[ServiceProcess, list[Pod]]]:
    """A Meta Service, and pods that run."""
    meta = meta_process(directory / "meta")
    made = [Pod(directory / f"pod-{number}", meta.address, f"broker-{number}") for number in range(count)]
    with ended(meta):
        meta.start()
        try:
            for pod in made:
                pod.start()
            yield meta, made
        finally:
            for pod in made:
                pod.kill()


def stored(meta: ServiceProcess, pod: Pod) -> int:
    """The offset of a pod's group in the Meta Service."""
    group = meta_pb.BatchGetOffsetDataRequest.Group(namespace="default", group=pod.group)
    with meta_rpc(meta.address) as stub:
        reply = stub.BatchGetOffsetData(meta_pb.BatchGetOffsetDataRequest(groups=[group]), timeout=PATIENCE_S)
    (found,) = reply.groups[0].offsets
    return int(found.offset)


def test_no_commit_is_refused_and_each_is_in_the_meta_service_when_a_pod_has_stopped(tmp_path: Path) -> None:
    """One pod after the other, while the others commit: both processes end with 0, and nothing is only on the volume (8)."""
    with pods(tmp_path, 2) as (meta, made):
        for pod in made:
            assert pod.stop() == (0, 0), pod.adapter.log
            assert stored(meta, pod) == pod.acknowledged()[-1][0]
            pod.start()
        for pod in made:
            assert pod.stop() == (0, 0), pod.adapter.log
            assert pod.refused() == []
            offsets = [offset for offset, _ in pod.acknowledged()]
            assert offsets == [*range(1, len(offsets) + 1)], "each start went on where the last one was"


def test_an_adapter_that_stops_before_its_broker_refuses_a_commit(tmp_path: Path) -> None:
    """As an ordinary container of the pod, which gets its SIGTERM with the broker's: this is what the order is for."""
    with pods(tmp_path, 1) as (meta, (pod,)):
        assert pod.adapter.stop() == 0
        assert pod.broker_ended() == 1
        assert len(pod.refused()) == 1
        assert stored(meta, pod) == pod.acknowledged()[-1][0], "what was acknowledged is there all the same"

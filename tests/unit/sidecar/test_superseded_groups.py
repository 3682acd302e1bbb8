"""Superseded offsets by group: bounded, whatever consumers do."""

from adapter.rpc import offsets_pb
from adapter.sidecar.metrics import SUPERSEDED_GROUPS, CommitsCollector


def superseded_of(commits: CommitsCollector) -> dict[str, float]:
    """Group -> its superseded offsets."""
    found = next(metric for metric in commits.collect() if metric.name == "offset_adapter_group_superseded")
    return {sample.labels["group"]: sample.value for sample in found.samples}


def test_the_groups_that_were_superseded_last_have_a_metric() -> None:
    """What is not superseded counts for none; the one that it happened to longest ago leaves."""
    commits = CommitsCollector("offset_adapter")
    commits.add(5, (), 0.001)
    assert superseded_of(commits) == {}
    names = [f"g{at}" for at in range(SUPERSEDED_GROUPS)]
    for name in [*names, "g0", "one-more"]:
        commits.add(1, [offsets_pb.Superseded(namespace="default", group=name)], 0.001)
    found = superseded_of(commits)
    assert len(found) == SUPERSEDED_GROUPS
    assert (found["g0"], found["one-more"], "g1" in found) == (2, 1, False)

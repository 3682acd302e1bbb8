"""The metrics of the live lag: bounded in number, without a sample for what is unknown, and clean for promtool."""

import shutil
from pathlib import Path

import anyio
import pytest
from prometheus_client import generate_latest

from tests.unit.sidecar.lag.lagging import Lagging, lagging


def _samples(lag: Lagging) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in generate_latest(lag.registry).decode().splitlines() if not line.startswith("#")]
    return {name.removeprefix("offset_adapter_"): float(value) for name, _, value in lines}


async def _behind(lag: Lagging, **lags: int) -> None:
    """Groups with these lags."""
    for group, behind in lags.items():
        lag.tell(group, 1_000)
        await lag.commit({group: 1_000 - behind}, group)
    await lag.evaluate()


async def test_the_worst_groups_and_named_ones_have_their_own_and_the_rest_is_summed(tmp_path: Path) -> None:
    """`metric_groups_max` bounds the worst ones, and as many again that a pattern names."""
    async with lagging(tmp_path, metric_groups_max=2, metric_groups=["name?"]) as lag:
        await _behind(lag, a=1, b=50, c=7, d=30, named=3, name1=2, name2=4, name3=5)
        found = _samples(lag)
        own = {name: value for name, value in found.items() if name.startswith("group_lag_messages")}
        assert own == {
            f'group_lag_messages{{group="{group}",namespace="default"}}': value
            for group, value in {"b": 50.0, "d": 30.0, "name1": 2.0, "name2": 4.0}.items()
        }
        assert found["other_groups_lag_messages"] == 1 + 7 + 5 + 3
        assert (found["lag_shards"], found['lag_groups{status="unknown"}']) == (8, 8)


async def test_what_is_unknown_has_no_sample(tmp_path: Path) -> None:
    """Not 0, and not NaN, which would spoil sums."""
    async with lagging(tmp_path) as lag:
        await lag.commit({"s": 5})
        await lag.evaluate()
        found = _samples(lag)
        assert not any(name.startswith(("group_lag_messages", "group_lag_seconds")) for name in found)
        assert found['group_lag_status{group="g",namespace="default"}'] == 0
        assert found['group_last_commit_timestamp_seconds{group="g",namespace="default"}'] == lag.now_ms / 1_000


async def test_forgotten_shards_are_counted_over_all_stores(tmp_path: Path) -> None:
    """A counter never falls, also when the store is opened again and the lag begins anew."""
    async with lagging(tmp_path, shards=1) as lag:
        await lag.commit({"a": 1, "b": 1})
        await lag.evaluate()
        assert _samples(lag)["lag_forgotten_shards_total"] == 1
        lag.live.end()
        assert _samples(lag)["lag_shards"] == 0
        lag.follow(lag.core)
        await lag.commit({"a": 2})
        await lag.evaluate()
        await lag.commit({"b": 2})
        await lag.evaluate()
        assert _samples(lag)["lag_forgotten_shards_total"] >= 2


async def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    """Names, units and help texts."""
    if not shutil.which("promtool"):
        pytest.skip("promtool is in Debian's package prometheus: make tools")
    async with lagging(tmp_path) as lag:
        for offset in (10, 20, 30):
            await lag.step(offset, 100)
        text = generate_latest(lag.registry)
        checked = await anyio.run_process(["promtool", "check", "metrics"], input=text, check=False)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")

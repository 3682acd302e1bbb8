"""Leaders of two real etcd clusters, each with a member on three nodes: forced together, in turns, and when a node dies."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import grpc
import pytest
import structlog
from click.testing import CliRunner, Result

from adapter.cli.meta.placement import placement
from adapter.errors import ConfigError
from adapter.metaservice.config import EtcdSection, MetaConfig
from adapter.metaservice.etcd.leader_balancer import Balancer, opened
from adapter.metaservice.etcd.leader_placement import apart
from adapter.rpc import etcd_grpc, etcd_pb
from adapter.runtime.settings.config import load
from adapter.testing.etcd import LocalCluster
from adapter.testing.waiting import PATIENCE_S
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require
from tests.unit.leader_fakes import NODES, Seen

COOLDOWN_MS = 400


class Fleet:
    """A metadata group and one of offsets, member for member on the same nodes."""

    def __init__(self, directory: Path) -> None:
        self.metadata, self.offsets = (LocalCluster(name, directory=directory) for name in ("metadata", "offsets-1"))
        self.config = directory / "meta.toml"
        self.configure("first/")

    def configure(self, prefix: str, cooldown_ms: int = COOLDOWN_MS) -> None:
        """Its settings. What was moved under another prefix holds nothing."""
        self.config.write_text(f"""engine = "etcd"
[etcd]
prefix = "{prefix}"
timeout_ms = 5000  # a busy machine is not a dead one, which refuses connections
[etcd.placement]
interval_ms = 100
cooldown_ms = {cooldown_ms}
[etcd.metadata]
endpoints = {list(self.metadata.endpoints)}
nodes = {list(NODES)}
[[etcd.offsets]]
name = "offsets-1"
endpoints = {list(self.offsets.endpoints)}
nodes = {list(NODES)}
""")

    @property
    def section(self) -> EtcdSection:
        """Its [etcd]."""
        return load(self.config, MetaConfig).etcd

    def bring_together(self, moved: LocalCluster, other: LocalCluster) -> str:
        """Bring the leader of one group to the node of the other one's, and return that node."""
        node = NODES[other.members.index(other.leader())]
        source, target = moved.leader(), moved.members[NODES.index(node)]
        status = target.status()
        assert status
        if source is not target:
            with grpc.insecure_channel(source.endpoint) as channel:
                request = etcd_pb.MoveLeaderRequest(targetID=status.header.member_id)
                etcd_grpc.MaintenanceStub(channel).MoveLeader(request, timeout=PATIENCE_S)
        return node

    def run(self, *arguments: str) -> Result:
        """The command, with its configuration."""
        return CliRunner().invoke(placement, [*arguments, "--config", str(self.config)])


@pytest.fixture(scope="module")
def running_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two clusters."""
    require("the placement of leaders", etcd)
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    with fleet.metadata, fleet.offsets:
        yield fleet


@pytest.fixture
def fleet(running_fleet: Fleet, request: pytest.FixtureRequest) -> Fleet:
    """Two clusters, their leaders on one node, and none of them moved lately."""
    running_fleet.configure(f"{request.node.name}/")
    running_fleet.bring_together(running_fleet.offsets, running_fleet.metadata)
    return running_fleet


@pytest.fixture(autouse=True)
def _log() -> Iterator[None]:
    """The command sets up the log of its process, which is this one."""
    yield
    structlog.reset_defaults()


def test_leaders_that_were_forced_together_are_put_apart(fleet: Fleet) -> None:
    """By the command, which says so; done again it does nothing."""
    shown = fleet.run("show")
    assert shown.exit_code == 1, shown.output
    assert "beside" in shown.stdout
    balanced = fleet.run("balance")
    assert balanced.exit_code == 0, balanced.output
    assert "offsets-1: leader n" in balanced.stdout
    again = fleet.run("balance")
    assert (again.exit_code, again.stdout) == (0, "the leaders are where they should be\n")
    shown = fleet.run("show", "--json")
    assert shown.exit_code == 0
    told = json.loads(shown.stdout)
    assert (told["good"], told["apart"], told["problems"]) == (True, True, [])
    states = [sorted(member["state"] for member in group["members"]) for group in told["raft_groups"]]
    assert states == [["follower", "follower", "leader"]] * 2


def test_a_leader_that_was_moved_lately_stays(fleet: Fleet) -> None:
    """The command says for how long, and that it is not well so."""
    fleet.configure("held/", cooldown_ms=3_600_000)
    assert fleet.run("balance").exit_code == 0
    fleet.bring_together(fleet.offsets, fleet.metadata)
    held = fleet.run("balance")
    assert held.exit_code == 1
    assert re.search(r"offsets-1: stays 3,[56]\d\d s longer, because it was moved lately", held.stdout)


def test_a_balancer_that_is_stopped_gives_its_turn_back(fleet: Fleet) -> None:
    """The command --watch: it tells what it does, and ends well at a signal."""
    command = [sys.executable, "-m", "adapter", "meta", "placement", "balance", "--watch", "--config", str(fleet.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "balancing\n"
            assert process.stdout.readline().startswith("offsets-1: leader n")
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
    again = fleet.run("balance")
    assert (again.stdout, again.stderr) == ("the leaders are where they should be\n", "")


async def test_of_two_balancers_one_works(fleet: Fleet) -> None:
    """The other one stands by, and has the turn when the first is stopped; the command stands back too."""
    first, second = Seen(), Seen()
    async with opened(fleet.section) as leaders, anyio.create_task_group() as tasks:
        with anyio.CancelScope() as first_scope:
            async with anyio.create_task_group() as first_tasks:
                first_tasks.start_soon(Balancer(leaders, fleet.section, [first], name="first").run)
                await first.until(lambda: bool(first.moves))
                tasks.start_soon(Balancer(leaders, fleet.section, [second], name="second").run)
                await second.until(lambda: bool(second.turns))
                refused = await anyio.to_thread.run_sync(fleet.run, "balance")
                assert (refused.exit_code, refused.stderr) == (0, "warning: first balances now; nothing was done here\n")
                first_scope.cancel()
        assert {str(error) for error in second.turns} == {"first"}
        await second.until(lambda: second.turns[-1] is None)
        tasks.cancel_scope.cancel()
    assert len(first.moves) == 1
    assert second.moves == []


async def test_when_a_node_dies_the_leaders_are_apart_again(fleet: Fleet) -> None:
    """Also when the metadata leader comes to the offsets leader's node; and then nothing more is moved."""
    seen = Seen()
    async with opened(fleet.section) as leaders, anyio.create_task_group() as tasks:
        tasks.start_soon(Balancer(leaders, fleet.section, [seen]).run)
        await seen.until(lambda: seen.situation is not None and apart(seen.situation))
        dead = NODES[fleet.metadata.members.index(await anyio.to_thread.run_sync(fleet.metadata.leader))]
        for cluster in (fleet.metadata, fleet.offsets):
            cluster.members[NODES.index(dead)].kill()
        await seen.looks_more(2)  # one of them began after that
        await seen.until(lambda: seen.situation is not None and apart(seen.situation))
        await anyio.to_thread.run_sync(fleet.bring_together, fleet.metadata, fleet.offsets)
        moves = len(seen.moves)
        await seen.until(lambda: len(seen.moves) > moves)
        await seen.until(lambda: seen.situation is not None and apart(seen.situation))
        moves = len(seen.moves)
        await seen.looks_more(2 * COOLDOWN_MS // 100)
        assert len(seen.moves) == moves
        tasks.cancel_scope.cancel()


def test_without_raft_groups_there_are_no_leaders(tmp_path: Path) -> None:
    """The settings of an embedded engine are refused by name."""
    config = tmp_path / "meta.toml"
    config.write_text("")
    with pytest.raises(ConfigError, match=r"etcd\.metadata: no endpoints are configured"):
        CliRunner().invoke(placement, ["show", "--config", str(config)], catch_exceptions=False)

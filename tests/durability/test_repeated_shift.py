"""`offsets reset --shift-by` under kill -9 of the command, the adapter and the Meta Service: run again, it shifts once (7)."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import grpc
import pytest

from adapter.cli.offsets import unanswered
from adapter.rpc import meta_grpc, meta_pb, metadata_grpc, metadata_pb, offsets_grpc, offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from adapter.testing.waiting import PATIENCE_S
from tests import forking
from tests.durability.both_engines import ENGINES, meta_on

SHARDS, BEFORE = 1_200, 1_000  # in two requests, the first of them saved in two parts
STAGES = ("sent", "planned", "half")
VICTIMS = ("command", "adapter", "meta")
# Each stage with each victim; on etcd, whose Meta Service takes the same steps, each once.
KILLS = {"rocksdb": [*product(VICTIMS, STAGES)], "etcd": [*zip(VICTIMS, STAGES, strict=True)]}


class Command:
    """`offset-adapter` as it runs, in a fork: importing takes most of the time of this command."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - its process writes it
        self.process = forking.start(words, environment, self._output)

    def ended(self) -> tuple[str, int]:
        """Wait for its end; what it said, and its exit code."""
        code = self.process.wait(PATIENCE_S)
        with self._output:
            self._output.seek(0)
            return self._output.read().decode(), code


class Scene:
    """A Meta Service and an adapter with a group, and the command."""

    def __init__(self, meta: ServiceProcess, adapter: ServiceProcess, state: Path) -> None:
        self.meta = meta
        self.adapter = adapter
        self.environment = {**os.environ, "XDG_STATE_HOME": str(state)}
        self.files = state / "offset-adapter" / "changes"

    def begin(self) -> "Command":
        """Start the command."""
        words = ["offsets", "reset", "g", "--shift-by", "-1", "--execute", "--address", self.adapter.address]
        return Command(words, self.environment)

    def commit(self) -> None:
        """Give the group its offsets, and flush them."""
        shards = [offsets_pb.ShardCommit(shard=f"s{at:04}", offset=BEFORE) for at in range(SHARDS)]
        with grpc.insecure_channel(self.adapter.address) as channel:
            request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=shards)])
            offsets_grpc.OffsetStoreStub(channel).CommitOffsets(request, timeout=PATIENCE_S)
            offsets_grpc.OffsetAdminStub(channel).Flush(offsets_pb.FlushRequest(), timeout=PATIENCE_S)

    def offsets(self) -> list[int]:
        """The group's offsets in the Meta Service."""
        with grpc.insecure_channel(self.meta.address) as channel:
            request = meta_pb.GetOffsetDataRequest(tenant="default", group="g")
            return [row.offset for row in meta_grpc.MetaServiceServiceStub(channel).GetOffsetData(request).offsets]

    def plans(self) -> int:
        """How many plans the Meta Service remembers."""
        with grpc.insecure_channel(self.meta.address) as channel:
            request = metadata_pb.ListRequest(prefix="offset-adapter/changes/")
            return len(metadata_grpc.MetadataStoreStub(channel).List(request).entries)

    def reached(self, stage: str, plans: int, offset: int) -> bool:
        """Whether a shift has come so far: its ID is kept, there is one more plan than `plans`, or an offset below `offset`."""
        if stage == "sent":
            return any(self.files.glob("*.json"))
        return self.plans() > plans if stage == "planned" else min(self.offsets()) < offset

    def kill(self, victim: str, command: Command) -> None:
        """Send SIGKILL to one of them."""
        if victim == "command":
            command.process.kill()
        else:
            (self.adapter if victim == "adapter" else self.meta).kill()

    def restart(self, victim: str) -> None:
        """Start it again; the command is not."""
        if victim != "command":
            (self.adapter if victim == "adapter" else self.meta).start()


def until(reached: Callable[[], bool], command: Command) -> None:
    """Wait for a stage of the command, or its end."""
    deadline = time.monotonic() + PATIENCE_S
    while command.process.poll() is None and not reached():
        assert time.monotonic() < deadline


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shift_that_is_killed_and_run_again_shifts_once(tmp_path: Path, engine: str) -> None:
    """Whoever is killed, when its ID is kept, its plan is, or a part of it is done. Then the next shift is a new one."""
    with meta_on(engine, tmp_path / "meta") as meta:
        adapter = adapter_process(tmp_path, meta.address)
        with ended(adapter):
            adapter.start()
            scene = Scene(meta, adapter, tmp_path / "state")
            scene.commit()
            expected = BEFORE
            for victim, stage in KILLS[engine]:
                plans = scene.plans()
                command = scene.begin()
                until(partial(scene.reached, stage, plans, expected), command)
                scene.kill(victim, command)
                said, _ = command.ended()
                scene.restart(victim)
                while any(scene.files.glob("*.json")):
                    said, code = scene.begin().ended()
                    assert "and not answered" in said
                    assert code == 0 or "run the same command again" in said, said
                expected -= 1
                assert set(scene.offsets()) == {expected}, f"{victim} killed when {stage}: {said}"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_meta_service_without_metadata_says_that_it_remembers_no_shift(tmp_path: Path, engine: str) -> None:
    """The shift is made, and the command says to look first where its answer is lost; no file is left."""
    served = 'serve = ["offsets"]\n'
    with meta_on(engine, tmp_path / "meta", top=served) as meta:
        adapter = adapter_process(tmp_path, meta.address)
        with ended(adapter):
            adapter.start()
            scene = Scene(meta, adapter, tmp_path / "state")
            scene.commit()
            said, code = scene.begin().ended()
            assert (code, "remembers no changes" in said, "before you repeat it" in said) == (0, True, True), said
            assert set(scene.offsets()) == {BEFORE - 1}
            assert not scene.files.exists()


def test_the_file_of_a_shift_is_by_what_was_asked_for() -> None:
    """Shards and topics of the same name are not the same; the address is not in it."""
    assert unanswered.path_of(["n", "g", "a", "", ""]) != unanswered.path_of(["n", "g", "", "a", ""])

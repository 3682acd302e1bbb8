"""Brokers that call the Meta Service themselves, without epochs, as RobustMQ's do: what a lower offset of theirs becomes."""

from pathlib import Path

import grpc
import pytest

from adapter.rpc import meta_grpc, meta_pb
from adapter.testing.processes import ServiceProcess
from adapter.testing.waiting import PATIENCE_S
from tests.durability.both_engines import ENGINES, meta_on

OVERWRITE = "[saves]\nwithout_epoch = 'overwrite'\n"


class Broker:
    """Saves as RobustMQ's brokers do: a group, a shard, an offset and a topic."""

    def __init__(self, meta: ServiceProcess) -> None:
        self._meta = meta

    def save(self, offset: int, expected: int | None = None) -> bool:
        """Save an offset; True if it is said to be committed."""
        item = meta_pb.SaveOffsetDataRequestOffset(shard_name="t-0", offset=offset, topic="t", expected_offset=expected)
        request = meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(tenant="default", group="g", offsets=[item])])
        with grpc.insecure_channel(self._meta.address) as channel:
            return meta_grpc.MetaServiceServiceStub(channel).SaveOffsetData(request, timeout=PATIENCE_S).committed

    def standing(self) -> tuple[int, int]:
        """(epoch, offset) that stand."""
        with grpc.insecure_channel(self._meta.address) as channel:
            request = meta_pb.GetOffsetDataRequest(tenant="default", group="g")
            (found,) = meta_grpc.MetaServiceServiceStub(channel).GetOffsetData(request, timeout=PATIENCE_S).offsets
        return found.epoch, found.offset


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lower_save_without_an_epoch_is_a_rewind_where_it_is_set_so(tmp_path: Path, engine: str) -> None:
    """Also after a kill at once behind the answer (1); what comes next goes on from there; a repeat changes nothing."""
    with meta_on(engine, tmp_path, OVERWRITE) as meta:
        broker = Broker(meta)
        assert broker.save(900)
        assert broker.save(100)
        meta.kill()
        meta.start()
        assert broker.standing() == (2, 100)
        assert broker.save(100)
        assert broker.save(150)
        assert broker.standing() == (2, 150)
        assert broker.save(120, expected=150)
        assert broker.standing() == (3, 120)
        assert not broker.save(50, expected=150)
        assert broker.standing() == (3, 120)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lower_save_without_an_epoch_changes_nothing_by_default(tmp_path: Path, engine: str) -> None:
    """A save that was overtaken takes nothing back; it is acknowledged, since more stands."""
    with meta_on(engine, tmp_path) as meta:
        broker = Broker(meta)
        assert broker.save(900)
        assert broker.save(100)
        assert broker.standing() == (1, 900)

"""The table of `status`: what is wrong stands there in words."""

import pytest

from adapter.cli.output import as_dict
from adapter.cli.process.status import status_rows
from adapter.rpc import offsets_pb

ADDRESS = "127.0.0.1:10911"


@pytest.mark.parametrize(
    ("broker", "text"),
    [
        (offsets_pb.RocketmqStatus(address=ADDRESS), f"at {ADDRESS}: NOT CONNECTED: it was not reached yet"),
        (
            offsets_pb.RocketmqStatus(address=ADDRESS, broker="broker-a", version="V5_3_3", last_error="refused", offsets=2),
            f"broker-a V5_3_3 at {ADDRESS}: NOT CONNECTED: refused",
        ),
        (
            offsets_pb.RocketmqStatus(
                address=ADDRESS, broker="b", connected=True, last_error="old", offsets=1_200, poll_interval_seconds=0.1
            ),
            f"b at {ADDRESS}: 1,200 offsets, read every 0.10 s",
        ),
        (
            offsets_pb.RocketmqStatus(address=ADDRESS, broker="b", slave=True, last_error="old"),
            f"b at {ADDRESS}: is a slave, and the adapter of its master commits",
        ),
    ],
)
def test_the_line_of_a_rocketmq_broker(broker: offsets_pb.RocketmqStatus, text: str) -> None:
    """Which broker, whether it answers, and why not."""
    assert dict(status_rows(offsets_pb.StatusReply(rocketmq=broker)))["RocketMQ broker"] == text
    assert "RocketMQ broker" not in dict(status_rows(offsets_pb.StatusReply()))


def test_a_state_of_a_later_version_is_shown_as_its_number() -> None:
    """The command may be older than the adapter that it asks."""
    reply = offsets_pb.StatusReply.FromString(b"\x08\x63")
    assert reply.state == 99
    assert dict(status_rows(reply))["state"] == "99"
    assert as_dict(reply)["state"] == "99"

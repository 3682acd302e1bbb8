"""The front with real processes: an unmodified RobustMQ broker calls an adapter in place of its Meta Service."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port
from adapter.testing.waiting import PATIENCE_S
from tests.dialect import ROBUST, Failure, RobustMeta, robust_meta
from tests.integration.certificates import Authority
from tests.integration.helpers import key
from tests.integration.test_reload import Secret
from tests.robustmq_kills import stack

SERVICE = "/meta.service.common.MetaServiceService"
Code = grpc.StatusCode
# As systemd starts a service with a socket, whose number is its first argument.
HANDED = """
import os, sys
handed = int(sys.argv.pop(1))
os.dup2(handed, 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
from adapter.cli.main import main
main()
"""


class Front:
    """An adapter with a front, RobustMQ's imitation behind it, and a client that calls as a broker does."""

    def __init__(
        self, adapter: ServiceProcess, meta: RobustMeta, port: int, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self.adapter, self.meta, self.port = adapter, meta, port
        where, options = f"127.0.0.1:{port}", [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.secure_channel(where, credentials, options) if credentials else grpc.insecure_channel(where, options)

    def heartbeat(self) -> Any:
        """A call that RobustMQ answers. Raises RpcError."""
        made: Any = self._channel.unary_unary(f"{SERVICE}/Heartbeat")
        return made(b"", timeout=PATIENCE_S)

    def call(self, name: str, **fields: Any) -> Any:
        """Make one call. Raises RpcError."""
        made: Any = self._channel.unary_unary(
            f"{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=ROBUST[f"{name}Reply"].FromString,
        )
        return made(ROBUST[f"{name}Request"](**fields), timeout=PATIENCE_S, wait_for_ready=False)

    def save(self, group: str, expected: int | None = None, **offsets: int) -> Any:
        """Save offsets by shard."""
        return self.call("SaveOffsetData", offsets=[_group(group, offsets, expected)])

    def read(self, group: str) -> dict[str, int]:
        """The offsets of a group."""
        reply = self.call("GetOffsetData", tenant="default", group=group)
        assert all((row.topic, row.partition) == ("orders", 3) for row in reply.offsets)
        return {row.shard_name: row.offset for row in reply.offsets}

    def refused(self, name: str, **fields: Any) -> tuple[Code, str]:
        """The error of a call that has to fail."""
        with pytest.raises(grpc.RpcError) as failed:
            self.call(name, **fields)
        return failed.value.code(), str(failed.value.details())

    def status(self) -> Any:
        """What `status` shows of it."""
        command = [sys.executable, "-m", "adapter", "status", "--json", "--address", self.adapter.address]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _group(group: str, offsets: dict[str, int], expected: int | None = None, tenant: str = "default") -> Any:
    rows = [
        ROBUST["SaveOffsetDataRequestOffset"](
            shard_name=shard,
            offset=offset,
            topic="orders",
            partition=3,
            **({} if expected is None else {"expected_offset": expected}),
        )
        for shard, offset in offsets.items()
    ]
    return ROBUST["SaveOffsetData"](tenant=tenant, group=group, offsets=rows)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    """One that serves."""
    port = free_port()
    with robust_meta() as meta:
        adapter = adapter_process(tmp_path, meta.address, extra=f"[robustmq]\nlisten = '127.0.0.1:{port}'\n")
        with ended(adapter):
            adapter.start()
            yield Front(adapter, meta, port)


def _until(true: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_offsets_are_answered_here_as_robustmq_answers_them(front: Front) -> None:
    """The last save counts, also a lower one; labels come back; an unknown group has no offsets; deletes reach both."""
    assert front.save("g", a=5, b=7).committed
    assert front.read("g") == {"a": 5, "b": 7}
    front.save("g", a=3)
    assert front.read("g") == {"a": 3, "b": 7}
    _until(lambda: front.meta.offsets == {key("a"): 3, key("b"): 7})
    assert front.meta.topics[key("a")] == "orders"
    assert front.read("unknown") == {}
    front.call("DeleteOffsetData", tenant="default", group="g", shard_names=["a", "never"])
    assert front.read("g") == {"b": 7}
    assert front.meta.offsets == {key("b"): 7}
    status = front.status()["robustmq"]
    assert (status["saves"], status["reads"], status["deletes"]) == (2, 4, 1)


def test_a_read_has_the_larger_of_both(front: Front) -> None:
    """Also what the broker saved at RobustMQ itself while the adapter was away."""
    front.save("g", a=5)
    _until(lambda: front.meta.offsets == {key("a"): 5})
    front.meta.offsets[key("a")] = 9
    assert front.read("g") == {"a": 9}


def test_a_condition_is_checked_against_what_stands(front: Front) -> None:
    """As RobustMQ has it: an absent offset is 0, a mismatch is skipped, and the reply does not say which it was."""
    assert not front.save("g", expected=4, a=5).committed
    assert front.read("g") == {}
    assert front.save("g", expected=0, a=5).committed
    assert front.save("g", expected=5, a=6).committed
    assert not front.save("g", expected=5, a=7).committed
    assert front.read("g") == {"a": 6}


def test_a_flush_of_any_size_is_taken(front: Front) -> None:
    """Of more groups and offsets than a commit may have; the last row of a shard that is named twice counts."""
    groups = [_group(f"g{at}", {f"s{shard}": at + 1 for shard in range(3)}) for at in range(400)]
    front.call(
        "SaveOffsetData",
        offsets=[*groups, _group("g7", {"s0": 1_000}), _group("large", {f"s{at}": at + 1 for at in range(1_000)})],
    )
    assert front.read("g399") == {"s0": 400, "s1": 400, "s2": 400}
    assert front.read("g7")["s0"] == 1_000
    assert len(front.read("large")) == 1_000


def test_a_group_without_offsets_does_not_keep_the_others_from_being_saved(front: Front) -> None:
    """A broker sends one when a delete came between a commit and its flush. RobustMQ refuses all of the flush."""
    assert front.call("SaveOffsetData", offsets=[_group("g", {}), _group("h", {"s": 5})]).committed
    assert front.read("h") == {"s": 5}
    assert front.read("g") == {}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("SaveOffsetData", {"offsets": []}),
        ("SaveOffsetData", {"offsets": [_group("g", {"": 1})]}),
        ("SaveOffsetData", {"offsets": [_group("g", {"a": 1}, tenant="")]}),
        ("GetOffsetData", {"tenant": "", "group": "g"}),
        ("DeleteOffsetData", {"tenant": "default", "group": "g", "shard_names": []}),
    ],
)
def test_what_robustmq_refuses_is_refused(front: Front, name: str, fields: dict[str, Any]) -> None:
    """As the fault of the request: the broker does not go on to its next address with it."""
    code, text = front.refused(name, **fields)
    assert code is Code.INVALID_ARGUMENT
    assert "is empty" in text


def test_names_that_are_not_kept_here_stay_with_robustmq(front: Front) -> None:
    """One such group does not keep the others of a flush from being saved; its reads go on to the next address."""
    front.call("SaveOffsetData", offsets=[_group("a/b", {"s": 4}), _group("g", {"s": 5}), _group("h", {"s\x07": 6})])
    assert front.meta.offsets[key("s", "a/b")] == 4
    assert front.meta.offsets[key("s\x07", "h")] == 6
    assert front.read("g") == {"s": 5}
    for group in ("a/b", "h"):
        code, text = front.refused("GetOffsetData", tenant="default", group=group)
        assert code is Code.UNAVAILABLE
        assert text.startswith("The service is currently unavailable")
    front.call("DeleteOffsetData", tenant="default", group="a/b", shard_names=["s"])
    assert key("s", "a/b") not in front.meta.offsets


def test_a_refusal_never_names_a_leader(front: Front) -> None:
    """A client that is told one calls it from then on, past the front."""

    def elect(name: str, _: Any) -> None:
        if name == "GetOffsetData":
            raise Failure(Code.INTERNAL, 'has to forward request to: Some(2), Some(Node { rpc_addr: "127.0.0.1:1" })')

    front.meta.before = elect
    code, text = front.refused("GetOffsetData", tenant="default", group="g")
    assert code is Code.ABORTED
    assert "forward request to" not in text
    assert "rpc_addr" not in text


def test_a_delete_that_fails_behind_the_front_can_be_repeated(front: Front) -> None:
    """It was removed here, and still stands there."""
    front.save("g", a=5)
    front.meta.before = lambda name, _: _fail() if name == "DeleteOffsetData" else None
    assert front.refused("DeleteOffsetData", tenant="default", group="g", shard_names=["a"])[0] is Code.ABORTED
    front.meta.before = lambda *_: None
    assert front.read("g") == {"a": 5}
    front.call("DeleteOffsetData", tenant="default", group="g", shard_names=["a"])
    assert front.read("g") == {}


@pytest.mark.parametrize("held", ["nothing", "GetOffsetData"])
def test_a_save_during_a_delete_of_the_same_broker_does_not_undo_it(front: Front, held: str) -> None:
    """The broker had sent it before, and empties its map when the delete is answered; one behind that counts. Also a slow one."""
    front.save("g", a=5, b=5)
    reached = threading.Event()

    def save() -> None:
        front.save("g", a=6)
        reached.set()

    saving = threading.Thread(target=save)

    def before(name: str, _: Any) -> None:
        if name == "DeleteOffsetData" and not saving.ident:
            saving.start()
            reached.wait(PATIENCE_S)
        if name == held and saving.ident:
            reached.set()
            time.sleep(0.1)

    front.meta.before = before
    front.call("DeleteOffsetData", tenant="default", group="g", shard_names=["a"])
    saving.join()
    assert front.read("g") == {"b": 5}
    assert set(front.meta.offsets) == {key("b")}
    front.save("g", a=7)
    assert front.read("g") == {"a": 7, "b": 5}


def _fail() -> None:
    raise Failure(Code.INTERNAL)


def test_a_stop_leaves_nothing_behind_that_was_acknowledged(front: Front) -> None:
    """Its connection ends, and the last flush comes after the last save."""
    saved, offset = 0, 0
    front.adapter.signal(signal.SIGTERM)
    while True:
        offset += 1
        try:
            front.save("g", a=offset)
        except grpc.RpcError:
            break
        saved = offset
    assert front.adapter.process
    assert front.adapter.process.wait(PATIENCE_S) == 0
    assert front.meta.offsets.get(key("a"), 0) >= saved


def test_a_save_that_is_under_way_at_a_stop_is_flushed(front: Front) -> None:
    """It waits for RobustMQ, and is acknowledged then: the last flush comes behind it."""
    asked, answers = threading.Event(), threading.Event()

    def hang(name: str, _: Any) -> None:
        if name == "GetOffsetData":
            asked.set()
            answers.wait(PATIENCE_S)

    front.meta.before = hang
    save = threading.Thread(target=lambda: front.save("g", a=5))
    save.start()
    assert asked.wait(PATIENCE_S)
    front.adapter.signal(signal.SIGTERM)
    save.join()
    answers.set()
    assert front.adapter.process
    assert front.adapter.process.wait(PATIENCE_S) == 0
    assert front.meta.offsets == {key("a"): 5}


def test_an_adapter_before_its_own_meta_service_says_so(tmp_path: Path) -> None:
    """The broker's other calls cannot work there."""
    from adapter.testing.processes import meta_process  # noqa: PLC0415

    meta = meta_process(tmp_path / "meta")
    adapter = adapter_process(tmp_path / "a", meta.address, extra=f"[robustmq]\nlisten = '127.0.0.1:{free_port()}'\n")
    with ended(adapter, meta):
        meta.start()
        adapter.start()
        _until(lambda: "robustmq.no_robustmq" in adapter.log)
        command = [sys.executable, "-m", "adapter", "doctor", "--config", str(tmp_path / "a" / "serve.toml")]
        seen = subprocess.run(command, check=False, capture_output=True, text=True)
        assert seen.returncode == 1
        assert "name RobustMQ's nodes in meta.endpoints" in seen.stdout


def _changed(adapter: ServiceProcess, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "adapter", *arguments, "--address", adapter.address], check=True, capture_output=True)


def test_a_reset_reaches_the_broker(tmp_path: Path) -> None:
    """It answers from its map until that is emptied; what it saves itself does not empty it."""
    with stack(tmp_path) as (meta, broker, adapter):
        assert adapter
        broker.commit("g", "s", 100)
        broker.commit("g", "s", 60)  # a rewind by its own consumer
        _until(lambda: broker.flushed.get(("g", "s")) == 60)
        assert _told(adapter) == 0
        _changed(adapter, "offsets", "reset", "g", "--to-offset", "20", "--execute")
        _until(lambda: _told(adapter) == 1)
        assert broker.read("g") == {"s": 20}
        broker.commit("g", "s", 21)
        _until(lambda: broker.flushed.get(("g", "s")) == 21)
        _until(lambda: meta.offsets.get(key("s")) == 21)
        assert _told(adapter) == 1


def test_a_broker_that_is_away_is_told_when_it_is_back(tmp_path: Path) -> None:
    """And a save of its old map after the reset changes nothing."""
    with stack(tmp_path) as (_, broker, adapter):
        assert adapter
        broker.commit("g", "s", 100)
        _until(lambda: broker.flushed.get(("g", "s")) == 100)
        broker.kill()
        _changed(adapter, "offsets", "reset", "g", "--to-offset", "20", "--execute")
        _until(lambda: "robustmq.untold" in adapter.log)
        broker.start()
        assert broker.read("g") == {"s": 20}
        _until(lambda: _told(adapter) == 1)


def _told(adapter: ServiceProcess) -> int:
    command = [sys.executable, "-m", "adapter", "status", "--json", "--address", adapter.address]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["robustmq"]
    return int(found["told_groups"])


def test_the_double_loses_what_it_has_not_sent(tmp_path: Path) -> None:
    """Without it, the tests of kills would show nothing: after a save that failed the group is not marked again."""
    with stack(tmp_path, bare=True) as (meta, broker, _):
        meta.before = lambda name, _: _fail() if name == "SaveOffsetData" else None
        broker.commit("g", "s", 100)
        _until(lambda: meta.saves or True)
        broker.kill()
        meta.before = lambda *_: None
        broker.start()
        assert broker.read("g") == {}


def test_the_settings_are_checked(tmp_path: Path) -> None:
    """By name."""
    for text, wanted in (
        ("listen = '10.0.0.1:9522'", "robustmq: listen"),
        ("broker = '127.0.0.1:1228'", "robustmq: broker: is of no use without listen"),
    ):
        file = tmp_path / "adapter.toml"
        file.write_text(f"[robustmq]\n{text}\n")
        ran = subprocess.run(
            [sys.executable, "-m", "adapter", "check-config", str(file)], check=False, capture_output=True, text=True
        )
        assert ran.returncode == 2
        assert wanted in ran.stderr


def test_certificates_of_both_sides_are_exchanged_without_a_restart(tmp_path: Path) -> None:
    """Of the front, of its clients' authority, and of RobustMQ's nodes; a connection that is open lives on."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    shown, trusted = Secret(tmp_path / "shown"), Secret(tmp_path / "trusted")
    shown.put(old.issue("front"), old)
    trusted.put(old.issue("client"), old)
    port = free_port()
    files = "".join(f"{name} = '{shown.path}/{file}'\n" for name, file in (("cert", "cert"), ("key", "key"), ("client_ca", "ca")))
    with robust_meta(credentials=_server(old)) as meta:
        settings = f"{trusted.client()}[robustmq]\nlisten = '127.0.0.1:{port}'\n[robustmq.tls]\n{files}"
        adapter = adapter_process(tmp_path, meta.address, extra=settings)
        with ended(adapter):
            adapter.start()
            first = Front(adapter, meta, port, _client(old))
            first.save("g", a=5)
            assert first.heartbeat() == b""
            for stranger in (None, _client(new), grpc.ssl_channel_credentials(old.cert.read_bytes())):
                with pytest.raises(grpc.RpcError):
                    Front(adapter, meta, port, stranger).heartbeat()

            shown.put(new.issue("front"), new)
            trusted.put(new.issue("client"), new)
            adapter.signal(signal.SIGHUP)
            _until(lambda: "config.reloaded" in adapter.log)
            meta.stop()
            meta.credentials = _server(new)
            meta.start()
            second = Front(adapter, meta, port, _client(new))
            _until(lambda: _answers(second))
            second.save("g", a=6)
            first.save("g", b=7)
            _until(lambda: meta.offsets == {key("a"): 6, key("b"): 7})
            with pytest.raises(grpc.RpcError):
                Front(adapter, meta, port, _client(old)).heartbeat()
            assert not second.status()["robustmq"]["unreachable"]


def _answers(front: Front) -> bool:
    try:
        front.heartbeat()
    except grpc.RpcError:
        return False
    return True


def _server(authority: Authority) -> grpc.ServerCredentials:
    """Of a node that asks for certificates."""
    pair = authority.issue("node")
    return grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.cert.read_bytes())], authority.cert.read_bytes(), require_client_auth=True
    )


def _client(authority: Authority) -> grpc.ChannelCredentials:
    pair = authority.issue("broker")
    return grpc.ssl_channel_credentials(authority.cert.read_bytes(), pair.key.read_bytes(), pair.cert.read_bytes())


def test_a_socket_of_a_service_manager_is_served_and_stays(tmp_path: Path) -> None:
    """Who connects while the adapter restarts waits in its backlog, and is answered by the next process, not by RobustMQ."""
    with robust_meta() as meta, socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        adapter = adapter_process(tmp_path, meta.address, extra=f"[robustmq]\nlisten = '127.0.0.1:{port}'\n")
        adapter.descriptors = (held.fileno(),)
        adapter.program = (sys.executable, "-c", HANDED, str(held.fileno()))
        front = Front(adapter, meta, port)
        with ended(adapter):
            meta.before = lambda name, _: _fail() if name == "SaveOffsetData" else None
            adapter.start()
            front.save("g", a=5)
            adapter.kill()
            waiting: list[dict[str, int]] = []
            reader = threading.Thread(target=lambda: waiting.append(Front(adapter, meta, port).read("g")))
            reader.start()
            adapter.start()
            reader.join()
            assert waiting == [{"a": 5}]
            assert "handed_over=1" in adapter.log or '"handed_over": 1' in adapter.log
            meta.before = lambda *_: None
            assert adapter.stop() == 0
            socket.create_connection(("127.0.0.1", port)).close()  # it is the manager's, and listens on

"""The front before a RobustMQ broker, with real processes.

What the broker is told while the adapter is slow, starts, stops, or stands still; what it then does by itself at RobustMQ's own
node; and what stands there in the end.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port
from adapter.testing.waiting import PATIENCE_S
from tests.dialect import Failure, RobustMeta, robust_meta
from tests.integration.helpers import key
from tests.robustmq_broker import TRANSPORT
from tests.robustmq_kills import BrokerProcess

Code = grpc.StatusCode
# At SIGUSR1 its event loop stands still.
FREEZES = """
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(10**6))
from adapter.cli.main import main
main()
"""


@dataclass
class Place:
    """A broker that calls the adapter first, and then `behind`, a node of RobustMQ: the adapter's, or another one."""

    adapter: ServiceProcess
    meta: RobustMeta
    behind: RobustMeta
    broker: BrokerProcess

    def commit(self, offset: int, group: str = "g") -> None:
        """Commit, and wait until the broker's save was acknowledged, wherever."""
        self.broker.commit(group, "s", offset)
        until(lambda: self.broker.flushed.get((group, "s")) == offset)

    def refused(self, **question: object) -> None:
        """Ask what has to be refused at once, in words at which no other node is asked."""
        text = self.broker.ask(**question)
        assert isinstance(text, str), text
        assert text.startswith("ABORTED: "), text
        assert "offset-adapter status" in text
        assert not any(words in text for words in (*TRANSPORT, "forward request to", "rpc_addr")), text


@contextmanager
def placed(directory: Path, *, apart: bool) -> Iterator[Place]:
    """Processes that run; `apart`: behind the adapter there is another node, so that it is seen what comes there."""
    port = free_port()
    with robust_meta() as meta, robust_meta() as other:
        behind = other if apart else meta
        broker = BrokerProcess([f"127.0.0.1:{port}", behind.address])
        settings = (
            f"[robustmq]\nlisten = '127.0.0.1:{port}'\nbroker = '{broker.address}'\n[recovery]\ntimeout_ms = 100\n"
            "[stop]\ndrain_timeout_ms = 600000\n"
        )
        adapter = adapter_process(directory, meta.address, extra=settings)
        try:
            with ended(adapter):
                adapter.start()
                broker.start()
                yield Place(adapter, meta, behind, broker)
        finally:
            broker.kill()


def until(true: Callable[[], object]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def no_flush(name: str, request: Any) -> None:
    """Fail the adapter's saves, which expect something; a broker's do not."""
    if name == "SaveOffsetData" and any(row.HasField("expected_offset") for group in request.offsets for row in group.offsets):
        raise Failure(Code.UNAVAILABLE)


def hung(name: str, until: threading.Event) -> Callable[[str, Any], None]:
    """Let calls of this name wait, and fail the adapter's saves."""

    def before(called: str, request: Any) -> None:
        no_flush(called, request)
        if called == name:
            until.wait(PATIENCE_S)

    return before


def no_read(text: str) -> Callable[[str, Any], None]:
    """Fail reads as well."""

    def before(name: str, request: Any) -> None:
        no_flush(name, request)
        if name == "GetOffsetData":
            raise Failure(Code.INTERNAL, text)

    return before


@pytest.mark.timeout(300)
def test_a_read_is_never_answered_behind_a_running_adapter(tmp_path: Path) -> None:
    """There is less: 1 in place of 100. It is refused, and answered when the adapter can: slow, failing, starting, degraded."""
    with placed(tmp_path, apart=True) as place:
        adapter, meta, behind, broker = place.adapter, place.meta, place.behind, place.broker
        behind.offsets |= {key("s"): 1, key("s", "other"): 1}
        meta.before = no_flush
        place.commit(100)
        broker.restart()

        answers = threading.Event()
        meta.before = hung("GetOffsetData", answers)
        place.refused(read="g")
        answers.set()
        meta.before = no_flush
        assert broker.read("g") == {"s": 100}

        broker.restart()
        meta.before = no_read("; ".join(TRANSPORT))
        place.refused(read="g")
        meta.before = no_flush
        assert broker.read("g") == {"s": 100}

        adapter.kill()
        meta.stop()
        listening = adapter.log.count("robustmq.listening")
        adapter.launch()
        until(lambda: adapter.log.count("robustmq.listening") > listening)
        broker.restart()
        place.refused(read="g")
        until(lambda: "sidecar.degraded" in adapter.log)
        place.refused(read="g")
        meta.start()
        assert broker.read("g") == {"s": 100}

        adapter.signal(signal.SIGTERM)
        until(lambda: broker.ask(read="other") != {})
        place.refused(read="other")
        assert not behind.reads
        place.commit(5, "later")
        assert behind.offsets[key("s", "later")] == 5  # saves do go on
        meta.before = lambda *_: None
        assert adapter.process
        assert adapter.process.wait(PATIENCE_S) == 0
        assert meta.offsets[key("s")] == 100
        assert broker.read("other") == {"s": 1}


@pytest.mark.timeout(180)
def test_a_delete_is_done_at_both_or_refused(tmp_path: Path) -> None:
    """One that RobustMQ alone did would be undone by what the adapter has."""
    with placed(tmp_path, apart=True) as place:
        place.meta.before = no_flush
        place.commit(100)
        place.refused(delete=["g", "s"])
        place.adapter.kill()
        place.adapter.start()
        assert place.broker.read("g") == {"s": 100}
        place.meta.before = lambda *_: None
        until(lambda: place.meta.offsets.get(key("s")) == 100)
        place.meta.before = lambda name, _: _fail() if name == "DeleteOffsetData" else None
        place.refused(delete=["g", "s"])
        place.meta.before = lambda *_: None
        assert place.broker.ask(delete=["g", "s"]) is None
        assert not place.behind.deletes
        place.adapter.kill()
        place.adapter.start()
        assert key("s") not in place.meta.offsets
        place.broker.restart()
        assert place.broker.read("g") == {}


def _fail() -> None:
    raise Failure(Code.INTERNAL)


@pytest.mark.timeout(180)
def test_what_robustmq_took_in_place_of_the_adapter_stays(tmp_path: Path) -> None:
    """A save that a stopping adapter refused, and an older one that it has not flushed: killed there, and started again."""
    with placed(tmp_path, apart=False) as place:
        place.meta.before = no_flush
        place.commit(100)
        place.adapter.signal(signal.SIGTERM)
        until(lambda: isinstance(place.broker.ask(read="other"), str))
        place.commit(120)
        assert place.meta.offsets[key("s")] == 120
        place.adapter.kill()
        place.meta.before = lambda *_: None
        place.adapter.start()
        place.broker.restart()
        assert place.broker.read("g") == {"s": 120}
        place.commit(121)
        until(lambda: place.meta.offsets[key("s")] == 121)


@pytest.mark.timeout(180)
def test_a_frozen_adapter_holds_the_broker_up_for_a_bounded_time(tmp_path: Path) -> None:
    """SIGSTOP: calls go on after five seconds, and nothing that was acknowledged meanwhile is lost when it goes on.

    Heartbeats do not get through; the manager of the process has to end it.
    """
    with placed(tmp_path, apart=False) as place:
        place.commit(100)
        until(lambda: place.meta.offsets.get(key("s")) == 100)
        place.adapter.freeze()
        place.commit(120)
        assert place.meta.offsets[key("s")] == 120
        assert place.broker.ask(heartbeat=True) == "no answer in time"
        place.adapter.thaw()
        until(lambda: place.broker.ask(heartbeat=True) == ["OK", "OK"])
        place.broker.restart()
        assert place.broker.read("g") == {"s": 120}
        place.adapter.freeze()
        place.adapter.kill()
        place.commit(130)
        assert place.broker.ask(heartbeat=True) == ["UNAVAILABLE", "OK"]
        place.adapter.start()
        place.broker.restart()
        assert place.broker.read("g") == {"s": 130}


@pytest.mark.timeout(180)
def test_an_adapter_whose_event_loop_stands_still_ends_itself(tmp_path: Path) -> None:
    """With the traceback of each thread; the broker goes on at RobustMQ."""
    with placed(tmp_path, apart=False) as place:
        place.adapter.kill()
        place.adapter.program = (sys.executable, "-c", FREEZES)
        place.adapter.start()
        place.broker.restart()
        place.commit(100)
        place.adapter.signal(signal.SIGUSR1)
        assert place.adapter.process
        assert place.adapter.process.wait(PATIENCE_S) == 1
        assert "Timeout (0:00:10)!" in place.adapter.log
        place.commit(120)
        assert place.meta.offsets[key("s")] == 120


@pytest.mark.timeout(180)
def test_a_node_that_hangs_holds_no_heartbeat_up(tmp_path: Path) -> None:
    """The broker has three seconds for all of its addresses."""
    with placed(tmp_path, apart=True) as place:
        hangs = threading.Event()
        place.meta.before = hung("Heartbeat", hangs)
        assert place.broker.ask(heartbeat=True) == ["DEADLINE_EXCEEDED", "OK"]
        hangs.set()
        assert place.broker.ask(heartbeat=True) == ["OK", "OK"]

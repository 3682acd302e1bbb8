"""A world with peers of the built-in server that send commits and read nothing: their sockets are full, or their windows closed.

What is promised then (docs/design/http2.md, Back-pressure):

- what such a peer is told at last, when it reads again, was stored before it was told, and is there;
- all others are answered as if there were no such peer;
- of a peer that does not read no more is read, and what waits for it does not grow.
"""

from collections.abc import Sequence
from enum import Enum

from h2.settings import SettingCodes

from adapter.rpc import offsets_pb
from adapter.runtime.serving.http2.server import READ_MAX
from tests.model import choices as st
from tests.model.broker import WRITE_THROUGH, Broker, Running, Setup, State
from tests.model.choices import rule
from tests.model.consumers import Offer, Plain, Way
from tests.model.http2_client import COMMIT, Client, Wire
from tests.model.invariants import BrokenError
from tests.model.machines import KEYS
from tests.model.runs import BROKERS, OFFERS, Everything
from tests.model.world import World

HIGH_WATER = 600  # bytes in the socket's buffer, above which the transport asks its protocol to pause
ROUND = 4_096  # more than the answers to all commits of a step
MOST = 60  # calls of such a peer that are not answered
ANSWERED_S = 0.7  # for who is not slow, also when its group has to be loaded first


class Kind(Enum):
    """Why a peer gets nothing."""

    SOCKET = "it does not read its socket"
    WINDOW = "its flow-control windows are closed"


class SlowWire(Wire):
    """A socket with small buffers, of which the client reads when it wants to."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.reads = True  # the client
        self.listens = True  # the server
        self.waiting = bytearray()  # for the client
        self.kernel = bytearray()  # for the server
        self._paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.reads:
            super().write(data)
            return
        self.waiting += data
        if len(self.waiting) > HIGH_WATER and not self._paused:
            self._paused = True
            self._client.peer.pause_writing()

    def deliver(self, data: bytes) -> None:
        """It waits in the kernel while the server does not read."""
        if self.listens:
            super().deliver(data)
        else:
            self.kernel += data

    def pause_reading(self) -> None:
        self.listens = False

    def resume_reading(self) -> None:
        self.listens = True
        data, self.kernel = bytes(self.kernel), bytearray()
        if data and not self._closing:
            super().deliver(data)

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def read_on(self) -> None:
        """The client reads again, all that waits."""
        self.reads = True
        data, self.waiting = bytes(self.waiting), bytearray()
        if data and not self._closing:
            super().write(data)
        if self._paused:
            self._paused = False
            if not self._closing:
                self._client.peer.resume_writing()


class SlowClient(Client):
    """A client that reads nothing, in one way or another, until `read_on`."""

    wire_type = SlowWire
    wire: SlowWire
    kind: Kind

    def turn_off(self, kind: Kind) -> None:
        """Read nothing from now on."""
        self.kind = kind
        if kind is Kind.SOCKET:
            self.wire.reads = False
        else:
            self._http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
            self.send()

    def read_on(self) -> None:
        """Read again."""
        if self.kind is Kind.WINDOW and not self.closed:
            self._http.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 65_535})
            self.send()
        self.wire.read_on()

    @property
    def unanswered(self) -> int:
        """Its calls."""
        return len(self._calls)


class SlowWorld(World):
    """The world; each broker has at most one such peer of each kind."""

    def __init__(self, seed: int, setups: Sequence[Setup]) -> None:
        self._lost_ms: dict[str, int] = {}
        self.slow: list[tuple[Running, SlowClient]] = []
        super().__init__(seed, setups)
        self.machine.on_loss = self._lost_more

    def commit_slowly(self, at: int, offers: Sequence[Offer], kind: Kind) -> int:
        """Commits of a peer that reads nothing; returns how many of them were sent."""
        running = self._running(at)
        if not running or running.dead or running.paused or not running.grpc_server:
            return 0
        sent = self._plain(running, offers)
        self.unanswered += len(sent)

        def come() -> None:
            client = self._client(running, kind)
            if client is None or client.unanswered > MOST:
                self.unanswered -= len(sent)
                return
            for one in sent:
                client.call(COMMIT, [one.request.SerializeToString()], self._calling(running, one))
            client.send()

        running.read(come)
        return len(sent)

    def _client(self, running: Running, kind: Kind) -> SlowClient | None:
        for whose, client in self.slow:
            if whose is running and client.kind is kind and client.open:
                return client
        if running.dead or not running.grpc_server:
            return None
        client = SlowClient(running.grpc_server)
        client.turn_off(kind)
        self.slow.append((running, client))
        running._clients[-len(self.slow)] = client
        return client

    def read_on(self, at: int) -> None:
        """The slow peers of a broker read again, and go on doing so."""
        running = self._running(at)
        for whose, client in [one for one in self.slow if one[0] is running]:
            whose.read(client.read_on)
        self.slow = [one for one in self.slow if one[0] is not running]

    def heal(self) -> None:
        """They all do."""
        for at in range(len(self.brokers)):
            self.read_on(at)
        for running, client in self.slow:
            running.read(client.read_on)  # of a process that has ended, which it learns by that
        self.slow.clear()

    def check_bounds(self) -> None:
        """What waits for a peer that does not read, or from it, does not grow."""
        for running, client in self.slow:
            if len(client.wire.waiting) > HIGH_WATER + ROUND or len(client.peer.unread) > READ_MAX:
                self._violation(f"back-pressure: {len(client.wire.waiting)} bytes wait for a peer of {running.broker.name}")
            if client.wire.waiting and len(client.wire.waiting) > HIGH_WATER and client.wire.listens and not client.closed:
                self._violation(f"back-pressure: {running.broker.name} reads from a peer that does not read")

    def is_healthy(self, at: int) -> bool:
        """Whether a broker has to answer commits soon."""
        broker = self.brokers[at]
        running = broker.running
        calm = not (broker.platter.full or broker.platter.failing_syncs or broker.link.faults)
        serves = running is not None and not running.paused and running.state == State.SERVING and running.grpc_server is not None
        return serves and calm and (running is None or running.disk is None or running.disk.fuse is None)

    def _lost_more(self, broker: Broker) -> None:
        self._lost_ms[broker.name] = self.now_ms()
        self._lost(broker)

    def _acknowledged(self, running: Running, one: Plain, rows: Sequence[offsets_pb.Superseded]) -> None:
        """What a peer hears of late may be from before a loss."""
        if self._lost_ms.get(running.broker.name, -1) < one.sent_ms:
            super()._acknowledged(running, one, rows)


class Slow(Everything):
    """Peers that read nothing."""

    world_type = SlowWorld
    world: SlowWorld

    @rule(at=BROKERS, slow=OFFERS, kind=st.sampled_from(Kind), rounds=st.integers(1, 4), others=OFFERS, way=st.sampled_from(Way))
    def commit_beside_the_slow(self, at: int, slow: list[Offer], kind: Kind, rounds: int, others: list[Offer], way: Way) -> None:
        """A slow peer sends as much as it can, and others commit beside it, who are answered."""
        world = self.world
        cached = [offer for offer in others if offer.key.group != WRITE_THROUGH] or [
            Offer(KEYS[0], 1, knowing=False, overwrite=False)
        ]
        before = world.unanswered
        sent = 0
        for _ in range(rounds):
            sent += world.commit_slowly(at, slow, kind)
            self._pass(0.0015)
            world.check_bounds()
        healthy = world.is_healthy(at)
        running = world.brokers[at].running
        world.commit_together(at, cached, way, apart=False)
        self._pass(ANSWERED_S)
        world.check_bounds()
        still = healthy and world.is_healthy(at) and world.brokers[at].running is running
        if still and world.unanswered > before + sent:
            raise BrokenError(f"back-pressure: {world.unanswered - before - sent} commits beside a slow peer are not answered")
        self._pass(0)

    @rule(at=BROKERS)
    def read_on(self, at: int) -> None:
        """The slow peers of a broker read again."""
        self.world.read_on(at)
        self._pass(0.0015)

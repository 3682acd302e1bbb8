"""Hostile peers of the built-in server, over sockets: each is ended with its reason, costs little, and disturbs nobody else.

`HOSTILE=<times>` in the environment makes floods so many times as long. `PEERS=<number>` is how many random peers there are;
`CRASH_SEED` draws the same ones again.
"""

import os
import random
import ssl
import struct
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from hyperframe.frame import DataFrame, HeadersFrame, PingFrame, WindowUpdateFrame

from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, free_port, meta_process
from tests import http2_attacks as attacks
from tests.durability.load import random_instants
from tests.http2_attacks import END_STREAM, FLOODS, HEADERS, Attacker, Calls, attack, frame
from tests.http2_client import PREFACE, message
from tests.integration.certificates import Authority
from tests.integration.helpers import PATIENCE_S, commits, rpc
from tests.integration.honest import MIB, HonestConsumer, cpu_s, undisturbed
from tests.integration.http2.random_peer import drawn

TIMES = int(os.environ.get("HOSTILE") or 1)
PEERS = int(os.environ.get("PEERS") or 40)
AT_ONCE = 20  # of the random peers, before all is looked at
STREAMS_MAX = 1_000  # that the built-in server allows on a connection
MESSAGE_MAX = 4 * MIB
EXTRA_CREDIT_MAX = 32 * MIB  # of large messages that come in on a connection
WINDOW = 65_535
SHARDS = 500  # of the large group
LARGE_BYTES = SHARDS * 4_000  # of a reply with all of it
ONE = commits({"s": 1}, "hostile").SerializeToString()
LARGE = offsets_pb.ReadOffsetsRequest(groups=[offsets_pb.GroupShards(group="large")]).SerializeToString()


@contextmanager
def secure(directory: Path) -> Iterator[str]:
    """Peers over TCP use TLS meanwhile; gives the adapter's settings for it."""
    authority = Authority(directory)
    server = authority.issue("server")
    context = ssl.create_default_context(cafile=authority.cert)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    Attacker.context, HonestConsumer.ca = context, authority.cert.read_bytes()
    try:
        yield "".join(f"[{name}.tls]\ncert = '{server.cert}'\nkey = '{server.key}'\n" for name in ("server", "robustmq"))
    finally:
        Attacker.context = HonestConsumer.ca = None


@pytest.fixture(scope="module", params=["plain", "tls"])
def adapter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """An adapter, with a front, which outlives all attacks of this module; those over TCP come in the plain, and over TLS."""
    directory = tmp_path_factory.mktemp("d")
    meta = meta_process(directory)
    with ended(meta), ExitStack() as secured:
        meta.start()
        tls = secured.enter_context(secure(directory)) if request.param == "tls" else ""
        settings = f"[robustmq]\nlisten = '127.0.0.1:{free_port()}'\n[stop]\ngrace_ms = 1000\n{tls}"
        service = adapter_process(directory, meta.address, extra=settings)
        with ended(service):
            service.start()
            with rpc(service.address) as stubs:
                stubs.store.CommitOffsets(
                    commits({f"shard-{at}": 1 for at in range(SHARDS)}, "large", metadata="m" * 4_000), timeout=PATIENCE_S
                )
            yield service


def front_of(adapter: ServiceProcess) -> str:
    """Where a RobustMQ broker would call it, whose calls are relayed but for three."""
    return str(tomllib.loads(adapter.settings)["robustmq"]["listen"])


@contextmanager
def front_undisturbed(adapter: ServiceProcess, *, grows: int = 64 * MIB) -> Iterator[str]:
    """`undisturbed`, beginning with the front's connection with its node: the first call makes it, and it stays.

    An attack before may have ended it; a call that is lost with it is followed by another one.
    """
    calls = Calls()
    with Attacker(front_of(adapter)) as peer:
        for _ in range(2):
            peer.send(calls.whole("/no/such"))
            peer.read_until(_answered(calls.last))
    with undisturbed(adapter, grows=grows):
        yield front_of(adapter)


@pytest.mark.parametrize(("flood", "code"), FLOODS.items(), ids=[flood.__name__ for flood in FLOODS])
def test_a_flood_ends_with_its_reason(adapter: ServiceProcess, flood: Callable[[int], Iterable[bytes]], code: int) -> None:
    """GOAWAY says which, and that is the end of that connection; also at the front, where the calls go on to a node."""
    with undisturbed(adapter):
        assert attack(adapter.tcp_address, flood, 10_000 * TIMES).code == code
    with front_undisturbed(adapter) as front:
        assert attack(front, flood, 10_000 * TIMES).code == code


@pytest.mark.parametrize("address", ["tcp_address", "address"])
def test_what_costs_no_more_than_its_bytes_is_no_flood(adapter: ServiceProcess, address: str) -> None:
    """Windows that grow by a byte, DATA of a byte: the connection goes on."""
    calls = Calls()
    with undisturbed(adapter), Attacker(getattr(adapter, address)) as peer:
        peer.send(frame(attacks.WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * 50_000 * TIMES)
        peer.send(calls.open(), *(frame(attacks.DATA, 0, calls.last, bytes([byte])) for byte in message(ONE)))
        peer.send(frame(attacks.DATA, END_STREAM, calls.last))
        assert peer.read_until(_answered(calls.last)).resets == {}


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(190),  # a ClientHello of TLS
        random.Random(1).randbytes(100_000),
        b"\0" * 100_000,
        PREFACE.replace(b"SM", b"MS"),
        PREFACE + frame(attacks.PING, 0, 0, bytes(8)),
    ],
    ids=["http1", "tls", "garbage", "zeros", "bad_preface", "no_settings"],
)
def test_what_is_not_http2_is_told_so(adapter: ServiceProcess, opening: bytes) -> None:
    """PROTOCOL_ERROR, at its first bytes."""
    with undisturbed(adapter), Attacker(adapter.tcp_address, greets=False) as peer:
        peer.send(opening)
        assert peer.end().code == attacks.PROTOCOL_ERROR


def test_a_stream_that_breaks_a_rule_ends_alone(adapter: ServiceProcess) -> None:
    """More DATA than its window, a window over 2^31 - 1, DATA behind its end: each is reset; a commit beside them is answered."""
    calls, bad = Calls(), {}
    with undisturbed(adapter), Attacker(adapter.tcp_address) as peer:
        whole = message(bytes(WINDOW - 5))
        peer.send(calls.open(), *_data(calls.last, whole))
        peer.send(frame(attacks.DATA, 0, calls.last, b"1"))
        bad[calls.last] = attacks.FLOW_CONTROL_ERROR
        peer.send(calls.open(attacks.STREAM), frame(attacks.WINDOW_UPDATE, 0, calls.last, struct.pack(">L", 2**31 - 1)))
        bad[calls.last] = attacks.FLOW_CONTROL_ERROR
        peer.send(calls.open(attacks.STREAM), *[frame(attacks.DATA, END_STREAM, calls.last)] * 2)
        bad[calls.last] = attacks.STREAM_CLOSED
        peer.send(calls.whole(body=ONE))
        found = peer.read_until(_answered(calls.last))
        assert (found.resets, found.code) == (bad, None)


def test_streams_beyond_the_limit_are_refused_and_those_within_it_go_on(adapter: ServiceProcess) -> None:
    """REFUSED_STREAM: they were not looked at, and may be sent again."""
    calls, more = Calls(), 200
    with undisturbed(adapter), Attacker(adapter.tcp_address) as peer:
        peer.send(b"".join(calls.open(attacks.STREAM) for _ in range(STREAMS_MAX + more)))
        found = peer.read_until(lambda found: len(found.resets) == more)
        beyond = range(2 * STREAMS_MAX + 1, 2 * (STREAMS_MAX + more), 2)
        assert found.resets == dict.fromkeys(beyond, attacks.REFUSED_STREAM)
        peer.send(frame(attacks.RST_STREAM, 0, 1, bytes(4)), calls.whole(body=ONE))
        assert peer.read_until(_answered(calls.last)).code is None


def test_indices_that_stand_for_long_headers_are_not_kept(adapter: ServiceProcess) -> None:
    """Below the limit that ends the connection a call is refused, or goes its way, however few its bytes are; nothing stays."""
    with undisturbed(adapter, grows=16 * MIB), ExitStack() as peers:
        for times in (17, *[2] * 24):
            peer, calls, long = peers.enter_context(Attacker(adapter.tcp_address)), Calls(), ("x", "y" * 3_400)
            peer.send(calls.open("/no/such", long))
            again = calls.open("/no/such", *[long] * times)
            for at in range(200 * TIMES):  # each another block
                block = again[9:] + bytes([0x80 | 15 + at % 16, 0x80 | 15 + at // 16 % 16])
                calls.last += 2
                peer.send(frame(HEADERS, attacks.END_HEADERS | END_STREAM, calls.last, block))
            peer.send(frame(attacks.PING, 0, 0, bytes(8)))
            found = peer.read_until(lambda found: any(isinstance(each, PingFrame) for each in found.frames))
            assert found.code is None


def test_large_messages_come_in_within_what_is_lent(adapter: ServiceProcess) -> None:
    """Many of 4 MiB at once: some are let in, the others wait; each is answered in the end."""
    count = 10 * TIMES
    body = b"\x7a" + _varint(MESSAGE_MAX - 10) + bytes(MESSAGE_MAX - 10)  # of a field that nobody knows
    calls, whole, room = Calls(), message(body), dict[int, int]()
    with undisturbed(adapter, grows=160 * MIB), Attacker(adapter.tcp_address) as peer:
        for _ in range(count):
            peer.send(calls.open(), *_data(calls.last, whole[:WINDOW]))
            room[calls.last] = 0
        peer.send(frame(attacks.PING, 0, 0, bytes(8)))
        found = peer.read_until(lambda found: any(isinstance(each, PingFrame) for each in found.frames))
        _add_room(room, found)
        assert MESSAGE_MAX < sum(room.values()) <= EXTRA_CREDIT_MAX
        answered = set[int]()
        while len(answered) < count:
            for stream in [stream for stream, size in room.items() if WINDOW + size >= len(whole)]:
                peer.send(*_data(stream, whole[WINDOW:]), frame(attacks.DATA, END_STREAM, stream))
                del room[stream]
            found = peer.read_until(lambda found: bool(found.frames))
            _add_room(room, found)
            answered.update(
                each.stream_id for each in found.frames if isinstance(each, HeadersFrame) and "END_STREAM" in each.flags
            )
            assert (found.code, found.resets) == (None, {})


@pytest.mark.parametrize("address", ["tcp_address", "address"])
def test_many_connections_come_and_go(adapter: ServiceProcess, address: str) -> None:
    """Those that say nothing, half a preface, half a frame, or begin a call; that hang up, or vanish with a reset."""
    openings = [b"", PREFACE[:11], PREFACE + bytes(3), PREFACE + frame(4, 0, 0) + Calls().open()]
    with undisturbed(adapter):
        for round_ in range(3 * TIMES):
            peers = [Attacker(getattr(adapter, address), greets=False) for _ in range(100)]
            for at, peer in enumerate(peers):
                peer.send(openings[at % 4])
                if at % 8 < 4 or round_ % 2:
                    peer.vanish()
                else:
                    peer.socket.close()


def test_a_peer_that_vanishes_in_the_middle_of_its_commits_harms_only_itself(adapter: ServiceProcess) -> None:
    """What it sent is stored or not; nobody waits for it."""
    with undisturbed(adapter):
        for _ in range(50 * TIMES):
            calls = Calls()
            with Attacker(adapter.tcp_address) as peer:
                peer.send(b"".join(calls.whole(body=ONE) for _ in range(64)))
                peer.vanish()


def test_calls_that_are_given_up_leave_nothing_behind(adapter: ServiceProcess) -> None:
    """StreamCommits with messages under way, reset by their sender, fewer than a flood."""
    body = offsets_pb.StreamCommitsRequest(id=1, commit=commits({"s": 1}, "hostile")).SerializeToString()
    with undisturbed(adapter):
        for _ in range(5 * TIMES):
            calls = Calls()
            with Attacker(adapter.tcp_address) as peer:
                for _ in range(15):
                    opened = [calls.open(attacks.STREAM) for _ in range(20)]
                    ids = range(calls.last - 38, calls.last + 1, 2)
                    sent = [frame(attacks.DATA, 0, stream, message(body) * 20) for stream in ids]
                    given_up = [frame(attacks.RST_STREAM, 0, stream, b"\0\0\0\x08") for stream in ids]
                    peer.send(b"".join([*opened, *sent, *given_up]))
                peer.send(calls.whole(body=ONE))
                assert peer.read_until(_answered(calls.last)).code is None


@pytest.mark.parametrize(
    ("address", "path", "body", "count"),
    [("tcp_address", attacks.READ, LARGE, 120), ("address", attacks.EXPORT, b"", 6), ("address", attacks.SNAPSHOT, b"", 25)],
    ids=["read", "export", "snapshot"],
)
@pytest.mark.parametrize("allows", [False, True], ids=["no_window", "wide_windows"])
def test_replies_that_nobody_reads_are_bounded(
    adapter: ServiceProcess, address: str, path: str, body: bytes, count: int, allows: bool
) -> None:
    """With windows or without: of unary calls only some begin; a stream (the owner's alone) has a page waiting."""
    calls = Calls()
    with undisturbed(adapter, grows=120 * MIB) as honest, Attacker(getattr(adapter, address), buffer=4_096) as peer:
        peer.send(attacks.WIDE if allows else attacks.NO_WINDOW)
        peer.send(b"".join(calls.whole(path, body) for _ in range(count)))
        for _ in range(count // 2):
            honest.goes_on()


def test_a_peer_that_reads_a_byte_at_a_time_gets_its_reply(adapter: ServiceProcess) -> None:
    """Slow is not hostile."""
    calls = Calls()
    with undisturbed(adapter), Attacker(adapter.tcp_address, buffer=2_048) as peer:
        peer.send(calls.whole(attacks.READ, LARGE))
        peer.crawl(3_000)
        found = peer.read_until(lambda found: _size(found) == WINDOW)  # as far as windows allow it
        assert found.code is None


@pytest.mark.parametrize("stays", [False, True], ids=["gone", "there"])
def test_a_storm_of_resets_by_new_connections_holds_up_no_new_client(adapter: ServiceProcess, stays: bool) -> None:
    """Each sends less than a flood, before any message: it took 8 ms for each, for which new connections waited."""
    calls = Calls()
    greeting = PREFACE + frame(attacks.SETTINGS, 0, 0)
    resets = (calls.open(attacks.STREAM) + frame(attacks.RST_STREAM, 0, calls.last, b"\0\0\0\x08") for _ in range(1_900))
    storm = greeting + b"".join(resets)
    with undisturbed(adapter), ExitStack() as peers:
        used = []
        for sent in (greeting, storm):  # over TLS a handshake is most of what either costs
            before = cpu_s(adapter)
            for _ in range(200 * TIMES):
                peer = Attacker(adapter.tcp_address, greets=False)
                peers.callback(peer.socket.close)
                peer.send(sent)
                if not stays:
                    peer.vanish()
            with rpc(adapter.tcp_address, HonestConsumer.ca) as stubs:
                stubs.store.CommitOffsets(commits({"new": 1}), timeout=PATIENCE_S)
            used.append(cpu_s(adapter) - before)
        assert used[1] - used[0] < 0.005 * 200 * TIMES


def test_peers_that_do_anything_disturb_nobody(adapter: ServiceProcess) -> None:
    """Drawn: right, broken, too many frames; cut anywhere; gone or silent. Whole frames are answered, or end in a hang-up."""
    rng = random_instants()
    for _ in range(-(-PEERS // AT_ONCE)):
        with front_undisturbed(adapter, grows=120 * MIB) as front:
            for _ in range(AT_ONCE):
                drawn(rng).play(rng.choice((adapter.tcp_address, adapter.address, front)))


def test_peers_that_ignore_the_stop_do_not_hold_it_up(adapter: ServiceProcess) -> None:
    """They answer no PING, go on with their calls, read nothing: when the grace time is over they are cut off."""
    peers = []
    for allows in (attacks.NO_WINDOW, attacks.WIDE):
        calls = Calls()
        peer = Attacker(adapter.tcp_address, buffer=4_096)
        peer.send(allows, calls.open(attacks.STREAM), *(calls.whole(attacks.READ, LARGE) for _ in range(30)))
        peers.append(peer)
    with rpc(adapter.tcp_address, HonestConsumer.ca) as stubs:
        stubs.store.CommitOffsets(commits({"last": 1}), timeout=PATIENCE_S)
        assert adapter.stop() == 0
        with pytest.raises(grpc.RpcError):
            stubs.store.CommitOffsets(commits({"last": 2}), timeout=1.0)
    for peer in peers:
        peer.socket.close()


def _answered(stream: int) -> Callable[[attacks.Ended], bool]:
    """A call was answered."""

    def answered(found: attacks.Ended) -> bool:
        return any(
            isinstance(each, HeadersFrame) and each.stream_id == stream and "END_STREAM" in each.flags for each in found.frames
        )

    return answered


def _data(stream: int, data: bytes) -> Iterator[bytes]:
    """DATA frames."""
    return (frame(attacks.DATA, 0, stream, data[at : at + 16_384]) for at in range(0, len(data), 16_384))


def _add_room(room: dict[int, int], found: attacks.Ended) -> None:
    """Add what the server allows of streams."""
    for each in found.frames:
        if isinstance(each, WindowUpdateFrame) and each.stream_id in room:
            room[each.stream_id] += each.window_increment


def _size(found: attacks.Ended) -> int:
    """Bytes of DATA."""
    return sum(len(each.data) for each in found.frames if isinstance(each, DataFrame))


def _varint(value: int) -> bytes:
    """As protobuf writes lengths."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])

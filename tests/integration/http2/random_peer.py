"""A hostile peer by a seed: what it says is drawn before it says it, of HTTP/2 that is right, broken, or too much."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import NamedTuple

from hyperframe.frame import PingFrame

from adapter.rpc import offsets_pb
from tests import http2_attacks as attacks
from tests.http2_attacks import FLOODS, Attacker, Calls, Ended, frame
from tests.http2_client import PREFACE
from tests.integration.helpers import commits

PIECES, CUTS = 12, 6  # at most, of one peer: what it says, and where its bytes are cut into sends
TIMES = (1, 10, 100, 1_000, 3_000)  # how often a flood says its word
PAYLOAD = 200  # bytes of a drawn frame, at most
BODIES = (b"", b"\0", commits({"s": 1}, "hostile").SerializeToString(), commits({"": 2**63}, "hostile").SerializeToString())
LARGE = offsets_pb.ReadOffsetsRequest(groups=[offsets_pb.GroupShards(group="large")]).SerializeToString()
PATHS = (attacks.COMMIT, attacks.STREAM, attacks.READ, attacks.EXPORT, attacks.SAVE, "/no/such")
MARK = b"the last"  # in a PING


class Session(NamedTuple):
    """What a peer sends, in these pieces, and how it goes.

    `whole`: nothing but whole frames, so that the server has to answer a PING behind them, or hang up.
    """

    sends: list[bytes]
    whole: bool
    vanishes: bool

    def play(self, address: str) -> Ended | None:
        """Say it all; what came of it if it is whole. Raises TimeoutError."""
        with Attacker(address, greets=False, buffer=4_096) as peer:
            peer.send(*self.sends)
            if self.whole:
                peer.send(frame(attacks.PING, 0, 0, MARK))
                return peer.read_until(_has_answer)
            if self.vanishes:
                peer.vanish()
        return None


def _has_answer(found: Ended) -> bool:
    return any(isinstance(each, PingFrame) and each.opaque_data == MARK for each in found.frames)


def drawn(rng: Random) -> Session:
    """A session."""
    calls = Calls()
    pieces = [
        PREFACE + frame(attacks.SETTINGS, 0, 0),
        *(piece for _ in range(rng.randint(1, PIECES)) for piece in _said(rng, calls)),
    ]
    whole = rng.random() < 0.6
    data = b"".join(pieces)
    if not whole:
        data = _damaged(rng, data)
    places = sorted({0, len(data), *(rng.randint(0, len(data)) for _ in range(rng.randrange(CUTS)))})
    return Session([data[a:b] for a, b in pairwise(places)], whole, rng.random() < 0.5)


def _said(rng: Random, calls: Calls) -> Iterator[bytes]:
    """One thing that a peer may say, of whole frames."""
    match rng.randrange(6):
        case 0:
            yield from rng.choice([*FLOODS])(rng.choice(TIMES))
        case 1 | 2:
            yield calls.whole(rng.choice(PATHS), rng.choice((*BODIES, LARGE)))
        case 3:
            yield calls.open(rng.choice(PATHS))
            yield frame(attacks.DATA, rng.choice((0, attacks.END_STREAM)), calls.last, rng.randbytes(rng.randrange(PAYLOAD)))
        case 4:
            yield rng.choice((attacks.NO_WINDOW, attacks.WIDE, frame(attacks.RST_STREAM, 0, max(calls.last, 1), bytes(4))))
        case _:
            stream = rng.choice((0, 1, max(calls.last, 1), calls.last + 2, rng.getrandbits(31)))
            yield frame(rng.randrange(12), rng.getrandbits(8), stream, rng.randbytes(rng.randrange(PAYLOAD)))


def _damaged(rng: Random, data: bytes) -> bytes:
    """With a byte changed, some gone, or the end missing."""
    at = rng.randrange(len(data))
    match rng.randrange(3):
        case 0:
            return data[:at] + rng.randbytes(1) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + rng.randrange(PAYLOAD) :]
        case _:
            return data[: at + 1]

"""What fuzzing begins with: what RocketMQ wrote, what was found before, and some of each kind."""

from collections.abc import Iterator
from pathlib import Path

from adapter.formats import rocksdb_layouts
from adapter.formats.rocksdb_layouts import Entry
from tests import http2_client
from tests.fuzz.own_seeds import OWN_SEEDS
from tests.fuzz.replies import REPLIES, reply_seeds
from tests.fuzz.robustmq import ROBUSTMQ, robustmq_seeds
from tests.fuzz.rocketmq import ROCKETMQ, rocketmq_seeds
from tests.fuzz.rpcs import RPCS, rpc_seeds

DATA = Path(__file__).parents[1] / "data" / "rocketmq"
SESSIONS = DATA.parent / "http2"  # what grpcio and grpc-go sent


_KEY = b'{\\"brokerName\\":\\"b\\",\\"queueId\\":3,\\"topic\\":\\"T\\"}'
_CLIENT = b'{"offsetTable":{"' + _KEY + b'":42,{"brokerName":"b","queueId":0,"topic":"T"}:"7"}}'


def _row(key: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + value


SEEDS: dict[str, list[bytes]] = {
    "broker": [
        b'{"offsetTable":{"T@g":{0:1,"1":"2",2:9223372036854775807,"3":-1},"T@g@broadcast":{"0":5}},"dataVersion":{"counter":1}}',
        b'\xef\xbb\xbf{"lmqOffsetTable":{"%LMQ%q@%LMQ%q":7},"resetOffsetTable":{"T@g":{}},"groupTopicMap":{"g":["T"]},"x":[[{}]]}',
        b'{"offsetTable":{"T\\u0040g":{"00":1.0,"1":1e3},"a/b@g":{"0":1},"a@b@c":{},"\\ud800@g":{"0":0}}}',
        b"\xff\xfe{\x00}\x00",
        b"[" * 100,
        b'{"a":' * 100,
    ],
    "client": [_CLIENT, b'{"offsetTable":{}}', b'{"offsetTable":{{"topic":"T","brokerName":"b","queueId":"3"}:"x",[]:1}}'],
    "own": [
        b'[{"group":"g","shard":"t/0","offset":1,"dirty":true}]',
        b'[{"namespace":"n","group":"g","shard":"s","offset":9,"metadata":"m","committed_at_ms":5,"topic":"t","partition":0,"epoch":2}]',
        b'[1,"a",{},{"shard":"s","shard":"s","offset":0,"group":"g"},{"shard":"\\udc00","offset":1.0,"group":"g"},null]',
    ],
    "kafka": [
        b"g,t,0,5\r\ng,t,1,6\n\n",
        b'"my, group","t",0,5\nt,0,5\n',
        b"\xef\xbb\xbft,0,5\nt,-1,5\nt,0\n\xff,0,1\n",
        b" " * 5_000 + b"g,t,0,5\n",
    ],
    "v1": [
        _row(b"T@g", b'{"offsetTable":{"0":1,1:"2"}}'),
        _row(b"T@g@broadcast", b'{"dataVersion":{},"offsetTable":{0:9223372036854775808,"0":3}}'),
        _row(b"a@b@c", b"[]"),
        _row(b"/@\xff", b'{"offsetTable":{"\\ud800":{}}}'),
    ],
    "v2": [_row(*rocksdb_layouts.encode_v2(Entry("g", "T", 3, 42))), _row(rocksdb_layouts.CONSUMER_VERSION, bytes(24))],
    "local": [_CLIENT + b"\n--\n" + _CLIENT.replace(b"42", b"41"), _CLIENT[:40] + b"\n--\n" + _CLIENT, b"\n--\n", b"{}\n--\n{"],
}


def _sessions() -> Iterator[bytes]:
    """For `http2`; see the target for the first byte."""
    yield from (b"\0" + path.read_bytes() for path in sorted(SESSIONS.glob("*.bin")))
    block, message = http2_client.block(http2_client.request()), http2_client.message(b"hello")
    client = http2_client.Client()
    numbers = [client.begin("/s/m", ("grpc-timeout", "1S")) for _ in range(3)]
    for number in numbers:
        client.send(number, message, pad=3)
    client.h2.ping(bytes(8))
    client.h2.reset_stream(numbers[0])
    client.h2.end_stream(numbers[1])
    yield b"\0" + client.take_output()
    records = [
        (1, 4, 1, block),
        (0, 0, 1, message),
        (0, 1, 1, b""),
        (1, 5, 3, b"\x82\x84\x86"),
        (3, 0, 1, bytes(4)),
        (6, 0, 0, bytes(8)),
    ]
    records += [
        (4, 0, 0, bytes((0, 4, 0, 0, 0, 9))),
        (8, 0, 0, bytes((0, 0, 1, 0))),
        (1, 1, 5, block),
        (9, 4, 5, b""),
        (2, 0, 7, bytes(5)),
    ]
    yield b"\3" + b"".join(bytes((kind, flags, number, len(payload))) + payload for kind, flags, number, payload in records)


def seeds(target: str) -> Iterator[bytes]:
    """The inputs of a target."""
    if target in {"broker", "client", "own", "local"}:
        yield from (path.read_bytes() for path in sorted(DATA.glob("*.json")))
    if target == "http2":
        yield from _sessions()
    if target in ROCKETMQ:
        yield from rocketmq_seeds(target)
    if target in ROBUSTMQ:
        yield from robustmq_seeds(target)
    if target == "rocketmq_table":
        yield b"\n--\n".join(path.read_bytes() for path in sorted(DATA.glob("broker-*.json")))
    if target in RPCS:
        yield from rpc_seeds(target)
    if target in REPLIES:
        yield from reply_seeds(target)
    if target in OWN_SEEDS:
        yield from OWN_SEEDS[target]()
    yield from SEEDS.get(target, [])

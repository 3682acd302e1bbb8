"""A RocketMQ broker in memory, over the real wire: what ConsumerManageProcessor and AdminBrokerProcessor answer, no messages.

Written from RocketMQ's sources (RemotingCommand, RocketMQSerializable, RequestCode, PlainAccessValidator of 4.9.7 and 5.3.3), and
not with the adapter's client. `store` is what is on its disk: a kill comes back with what `persist` put there last.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Table = dict[str, dict[int, int]]  # topic@group -> queue -> offset
Fields = dict[str, str]
Answer = tuple[int, str, Fields, bytes]  # code, remark, extFields, body

OK = 0
ERROR = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 16
NO_TOPIC = 17
NOT_FOUND = 22
NO_GROUP = 26


@dataclass
class FakeBroker:
    """One broker through several lives. `logs` are the bounds of its queues; `online` are groups with consumers.

    With `v2` it is one with configManagerVersion=v2: its table does not tell the queues of light topics, or (`told`) tells what a
    reset left there, and a reset leaves a phantom: the same offset for group and topic with their names swapped.
    """

    name: str = "broker-a"
    version: str = "V5_3_3"
    role: str = "ASYNC_MASTER"
    server_side_reset: bool = True
    creates_groups: bool = True
    v2: bool = False
    binary: bool = False
    secret: str = ""
    offsets: Table = field(default_factory=dict)
    lmq: dict[str, int] | None = None
    told: Table = field(default_factory=dict)
    store: Table = field(default_factory=dict)
    logs: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    times: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    online: set[str] = field(default_factory=set)
    resets: list[Fields] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    boot_ms: int = 1_000
    young: bool = False  # in its first second: it does not know its statistics yet
    # Called with the bytes of each answer before they are sent; what it returns is sent instead.
    spoil: Callable[[int, bytes], bytes] | None = None
    port: int = 0
    connections: set[asyncio.StreamWriter] = field(default_factory=set)

    def commit(self, group: str, topic: str, queue: int, offset: int, end: int = 1_000) -> None:
        """A consumer's commit; topic, group and log begin with it."""
        self.groups.add(group)
        self.logs.setdefault((topic, queue), (0, end))
        self.offsets.setdefault(f"{topic}@{group}", {})[queue] = offset

    def offset(self, group: str, topic: str, queue: int) -> int | None:
        """What it has."""
        return self.offsets.get(f"{topic}@{group}", {}).get(queue)

    def persist(self) -> None:
        """Write its file, as it does every five seconds."""
        self.store = {key: dict(queues) for key, queues in self.offsets.items()}

    def restart(self) -> None:
        """Begin a new life with what is on its disk."""
        self.offsets = {key: dict(queues) for key, queues in self.store.items()}
        self.boot_ms += 1

    def answer(self, code: int, fields: Fields, body: bytes) -> Answer:
        """What it says to a request."""
        self.calls.append(code)
        if self.secret and fields.get("Signature") != self._signature(fields, body):
            return NO_PERMISSION, "Check signature failed for accessKey=admin", {}, b""
        answers: dict[int, Callable[[Fields], Answer]] = {
            14: self._query,
            15: self._update,
            26: self._settings,
            28: self._runtime,
            29: self._by_time,
            30: lambda fields: self._end_of_log(fields, 1),
            31: lambda fields: self._end_of_log(fields, 0),
            38: self._consumers,
            43: lambda _: (OK, "", {}, self.table()),
            201: lambda _: (OK, "", {}, self.group_table()),
            202: self._topic,
            200: lambda _: self._create(body),
            222: self._reset,
        }
        if code not in answers:
            return NOT_SUPPORTED, f" request type {code} not supported", {}, b""
        return answers[code](fields)

    def _runtime(self, _: Fields) -> Answer:
        if self.young:
            return ERROR, "java.util.NoSuchElementException, java.base/java.util.LinkedList.getLast", {}, b""
        table = {"bootTimestamp": str(self.boot_ms), "brokerVersionDesc": self.version, "runtime": "[ 0 days ]"}
        return OK, "", {}, json.dumps({"table": table}).encode()

    def _settings(self, _: Fields) -> Answer:
        reset = f"useServerSideResetOffset={str(self.server_side_reset).lower()}\n" if self.version.startswith("V5") else ""
        reset += f"configManagerVersion={'v2' if self.v2 else 'v1'}\n" if reset else ""
        creates = f"autoCreateSubscriptionGroup={str(self.creates_groups).lower()}\n"
        text = f"aclEnable=false\n{creates}brokerName={self.name}\nbrokerRole={self.role}\n{reset}"
        return OK, "", {"version": "{}"}, text.encode()

    def _create(self, body: bytes) -> Answer:
        self.groups.add(json.loads(body)["groupName"])
        return OK, "", {}, b""

    def _consumers(self, fields: Fields) -> Answer:
        known = fields["consumerGroup"] in self.online
        return (OK, "", {}, b'{"consumerIdList":["c"]}') if known else (ERROR, "no consumer for this group", {}, b"")

    def _topic(self, fields: Fields) -> Answer:
        known = fields["topic"].startswith("%LMQ%") or any(topic == fields["topic"] for topic, _ in self.logs)
        return (OK, "", {}, b'{"offsetTable":{}}') if known else (NO_TOPIC, f"topic[{fields['topic']}] not exist", {}, b"")

    def table(self) -> bytes:
        """Its offsets as fastjson writes them: numbers of queues are not quoted."""
        table = {key: queues for key, queues in self.offsets.items() if not (self.v2 and key.startswith("%LMQ%"))} | self.told
        members = ",".join(
            f"{json.dumps(key, ensure_ascii=False)}:{{{','.join(f'{queue}:{offset}' for queue, offset in queues.items())}}}"
            for key, queues in table.items()
        )
        lmq = "" if self.lmq is None else f',"lmqOffsetTable":{json.dumps(self.lmq, separators=(",", ":"))}'
        head = '{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"groupTopicMap":{"g":["T"]},"offsetTable":{'
        return f"{head}{members}}}{lmq}}}".encode()

    def group_table(self) -> bytes:
        """Its groups, but for light ones."""
        names = [json.dumps(name, ensure_ascii=False) for name in sorted(self.groups) if not name.startswith("%LMQ%")]
        rows = ",".join(f'{name}:{{"brokerId":0,"groupName":{name},"groupSysFlag":0}}' for name in names)
        return f'{{"dataVersion":{{"counter":1}},"forbiddenTable":{{}},"subscriptionGroupTable":{{{rows}}}}}'.encode()

    def delete_group(self, group: str) -> None:
        """Mqadmin deleteSubGroup -r true."""
        self.groups.discard(group)
        self.forget(group)

    def delete_topic(self, topic: str) -> None:
        """Mqadmin deleteTopic."""
        self.logs = {queue: bounds for queue, bounds in self.logs.items() if queue[0] != topic}
        self.offsets = {key: queues for key, queues in self.offsets.items() if not key.startswith(topic + "@")}

    def forget(self, group: str) -> None:
        """What a query with the group in filterGroups does."""
        self.offsets = {key: queues for key, queues in self.offsets.items() if not key.endswith("@" + group)}

    def _end_of_log(self, fields: Fields, end: int) -> Answer:
        return OK, "", {"offset": str(self.logs.get((fields["topic"], int(fields["queueId"])), (0, 0))[end])}, b""

    def _by_time(self, fields: Fields) -> Answer:
        queue = (fields["topic"], int(fields["queueId"]))
        low, high = self.logs.get(queue, (0, 0))
        wanted = int(fields["timestamp"])
        found = next((low + at for at, when in enumerate(self.times.get(queue, ())) if when >= wanted), high)
        return OK, "", {"offset": str(found)}, b""

    def _query(self, fields: Fields) -> Answer:
        found = self.offset(fields["consumerGroup"], fields["topic"], int(fields["queueId"]))
        if found is None and (self.version.startswith("V4") or fields.get("setZeroIfNotFound") != "false"):
            found = 0  # the log still begins at 0
        return (NOT_FOUND, "Not found", {}, b"") if found is None else (OK, "", {"offset": str(found)}, b"")

    def _update(self, fields: Fields) -> Answer:
        topic, group = fields["topic"], fields["consumerGroup"]
        if group not in self.groups and self.version.startswith("V5"):
            return NO_GROUP, f"Group {group} not exist!", {}, b""
        self.offsets.setdefault(f"{topic}@{group}", {})[int(fields["queueId"])] = int(fields["commitOffset"])
        return OK, "", {}, b""

    def _reset(self, fields: Fields) -> Answer:
        self.resets.append(fields)
        topic, group = fields["topic"], fields["group"]
        queues = self.offsets.get(f"{topic}@{group}", {})
        if self.v2:
            self.offsets.setdefault(f"{group}@{topic}", {})[int(fields["queueId"])] = int(fields["offset"])
            if topic.startswith("%LMQ%"):  # consumers that pull next begin there; what is kept stays
                queues = self.told.setdefault(f"{topic}@{group}", {})
        if self.server_side_reset and self.version.startswith("V5"):
            queues[int(fields["queueId"])] = int(fields["offset"])
        else:  # it knows no queue: all go to the time, which is the beginning
            queues.update(dict.fromkeys(queues, 0))
        return OK, "", {}, b""

    def _signature(self, fields: Fields, body: bytes) -> str:
        content = "".join(fields[name] for name in sorted(fields) if name != "Signature").encode() + body
        return base64.b64encode(hmac.new(self.secret.encode(), content, hashlib.sha1).digest()).decode()

    @property
    def address(self) -> str:
        """Where it serves."""
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["FakeBroker"]:
        """One life on a port; the same one in the next life. Ends with every connection cut."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections.add(writer)
            try:
                while True:
                    (length,) = struct.unpack(">i", await reader.readexactly(4))
                    frame = await reader.readexactly(length)
                    size = int.from_bytes(frame[1:4], "big")
                    head, body = json.loads(frame[4 : 4 + size]), frame[4 + size :]
                    data = self._encoded(head["opaque"], self.answer(head["code"], head.get("extFields") or {}, body))
                    writer.write(self.spoil(head["code"], data) if self.spoil else data)
                    await writer.drain()
            except (asyncio.IncompleteReadError, OSError):
                pass
            finally:
                self.connections.discard(writer)
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", self.port, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()
            await asyncio.sleep(0)

    def cut(self) -> None:
        """Cut every connection, as a kill does."""
        for writer in list(self.connections):
            writer.transport.abort()

    def _encoded(self, opaque: int, answer: Answer) -> bytes:
        code, remark, fields, body = answer
        if self.binary:
            head = struct.pack(">hbhii", code, 0, 477, opaque, 1)
            text = remark.encode()
            packed = b"".join(_short(name) + _long(value) for name, value in fields.items())
            head += struct.pack(">i", len(text)) + text + struct.pack(">i", len(packed)) + packed
        else:
            values: dict[str, object] = {"code": code, "flag": 1, "language": "JAVA", "opaque": opaque, "version": 477}
            values |= {"serializeTypeCurrentRPC": "JSON", "extFields": fields} | ({"remark": remark} if remark else {})
            head = json.dumps(values).encode()
        form = bytes([int(self.binary)]) + len(head).to_bytes(3, "big")
        return struct.pack(">i", 4 + len(head) + len(body)) + form + head + body


def _short(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def _long(text: str) -> bytes:
    return struct.pack(">i", len(text.encode())) + text.encode()

#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
SERVER=2.15.3
NATS_PY=2.16.0
need go:golang-go
pypi "nats-py==$NATS_PY"
(cd "$WORK" && GOPATH="$WORK/go" GOFLAGS=-modcacherw GOTOOLCHAIN=auto go install "github.com/nats-io/nats-server/v2@v$SERVER") >"$WORK/go.log" 2>&1 \
  || broken "go did not build nats-server $SERVER"
PORT=$(free_port)

statement <<TEXT
nats-server $SERVER (Go), JetStream in files, one server; a durable consumer with explicit acknowledgements; nats-py $NATS_PY (PyPI).
20 messages; every other one is acknowledged with an answer (\`ack_sync\`: the server confirms it). Then the server is killed with
SIGKILL, the machine goes on.

Most expect: an acknowledgement that the server has confirmed is kept when its process dies; only a power cut may lose it, since
  files are synced every two minutes (sync_interval).
What happens: the answer comes before the consumer's state is written to its file. What was confirmed in the last instants before
  the kill, here all of it, is handed out again. With a pause before the kill nothing is. 2.9.10, Debian's, does the same.
Why it matters: a handler that did its work once, and was told so, does it again after a crash of the server. Who keeps offsets and
  answers commits has to have them in a file, or at least with the system, before the answer; and a comparison of brokers by kills
  has to kill the server within milliseconds of an answer.
TEXT

cat >"$WORK/try.py" <<'PY'
import asyncio
import subprocess
import sys
import time

import nats
from nats.errors import TimeoutError as Nothing
from nats.js.api import AckPolicy, ConsumerConfig

PROGRAM, DIRECTORY, PORT = sys.argv[1:]
URL, COUNT, ACK_WAIT_S = f"nats://127.0.0.1:{PORT}", 20, 3


async def heard(error):
    """Of a connection whose server was killed."""


class Server:
    def __init__(self, directory):
        words = [PROGRAM, "-js", "-sd", directory, "-a", "127.0.0.1", "-p", PORT]
        self.process = subprocess.Popen(words, stderr=subprocess.DEVNULL)

    async def connected(self):
        while True:
            try:
                return await nats.connect(URL, allow_reconnect=False, error_cb=heard)
            except OSError:
                assert self.process.poll() is None
                await asyncio.sleep(0.05)

    def kill(self):
        self.process.kill()
        self.process.wait()


async def handed_out_again(directory, pause_s):
    server = Server(directory)
    stream = (await server.connected()).jetstream()
    await stream.add_stream(name="S", subjects=["s"])
    await stream.add_consumer("S", ConsumerConfig(durable_name="c", ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S))
    for number in range(COUNT):
        await stream.publish("s", b"%d" % number)
    messages = await (await stream.pull_subscribe("s", durable="c")).fetch(COUNT)
    confirmed = set()
    for message in messages[::2]:
        await message.ack_sync(timeout=30)
        confirmed.add(message.data)
    await asyncio.sleep(pause_s)
    server.kill()
    server = Server(directory)
    stream = (await server.connected()).jetstream()
    pull = await stream.pull_subscribe("s", durable="c")
    unconfirmed, again = {message.data for message in messages} - confirmed, set()
    until = time.monotonic() + 2 * ACK_WAIT_S
    while time.monotonic() < until or not unconfirmed <= again:
        try:
            again |= {message.data for message in await pull.fetch(COUNT, timeout=1)}
        except Nothing:
            pass
    server.kill()
    return len(confirmed), len(confirmed & again)


for when, pause_s in (("at once", 0), ("after a pause", 2)):
    confirmed, again = asyncio.run(handed_out_again(f"{DIRECTORY}/{pause_s}", pause_s))
    print(f"killed {when}: {confirmed} confirmed,", "some of them" if again else "none of them", "handed out again")
PY
timeout 300 "$WORK/venv/bin/python" "$WORK/try.py" "$WORK/go/bin/nats-server" "$WORK/store" "$PORT" >"$SEEN" 2>"$WORK/try.log" \
  || broken "the trial did not end"

verdict <<'STATED'
killed at once: 10 confirmed, some of them handed out again
killed after a pause: 10 confirmed, none of them handed out again
STATED

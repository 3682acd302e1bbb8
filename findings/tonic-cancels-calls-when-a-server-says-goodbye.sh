#!/bin/sh
set -eu
. "$(dirname "$0")/lib/common.sh"
GRPCIO=1.85.1
TONIC=0.14.9
cargo --version >/dev/null 2>&1 || broken "cargo is missing, or has no toolchain (1.88 or newer; rustup)"
pypi "grpcio==$GRPCIO"

statement <<TEXT
A client with tonic $TONIC (crates.io), when its server ends a connection in an orderly way, as gRPC servers do at a stop and at
max_connection_age: a GOAWAY that names 2^31 - 1 asks for no more calls on it. Here: a server with grpcio $GRPCIO (PyPI) and a
max_connection_age of 0.1 s, 8 callers.

Most expect: a call that the client has not sent goes to a new connection, and the application hears nothing, as with grpcio.
What happens: calls that tonic has queued for the old connection end as CANCELLED, "operation was canceled": hyper drops them, and
  tonic does not make them again. The server never gets them. On a busy machine some end as UNKNOWN instead ("http2 error", a
  GOAWAY): those were sent, and the server has not begun them either.
Why it matters: each restart of a sidecar or a broker, each rotation of connections by a load balancer, fails some calls with a
  code that reads as if the application had given them up, and that retry policies for UNAVAILABLE leave out. Retry this CANCELLED
  as well; it was not done. tonic has the same code for a call that was past its deadline ("Timeout expired"): tell them apart.
TEXT

cat >"$WORK/server.py" <<'PY'
import itertools
import sys
from concurrent import futures

import grpc

COUNT = itertools.count()


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request, context):
        next(COUNT)
        return request


options = [("grpc.max_connection_age_ms", 100), ("grpc.max_connection_age_grace_ms", 60_000)]
server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[Echo()], options=options)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(f"127.0.0.1:{port}", flush=True)
sys.stdin.readline()
server.stop(5).wait()
print(f"handled: {next(COUNT)}", flush=True)
PY

cat >"$WORK/client.py" <<'PY'
import sys
import time
from concurrent import futures

import grpc


def calls(until: float) -> list[str]:
    seen = []
    while time.monotonic() < until:
        try:
            call(b"", timeout=30)
            seen.append("OK")
        except grpc.RpcError as error:
            seen.append(f"{error.code().name}: {error.details()}")
    return seen


call = grpc.insecure_channel(sys.argv[1]).unary_unary("/t.T/Echo")
with futures.ThreadPoolExecutor(8) as pool:
    for seen in pool.map(calls, [time.monotonic() + 10] * 8):
        print(*seen, sep="\n")
PY

mkdir -p "$WORK/rust/src"
cat >"$WORK/rust/Cargo.toml" <<TOML
[package]
name = "client"
version = "1.0.0"
edition = "2024"

[dependencies]
h2 = "=0.4.20"
http = "=1.5.0"
hyper = "=1.12.0"
tokio = { version = "=1.54.1", features = ["macros", "rt-multi-thread", "time"] }
tonic = { version = "=$TONIC", default-features = false, features = ["channel"] }
tonic-prost = "=$TONIC"
TOML
cat >"$WORK/rust/src/main.rs" <<'RUST'
use std::error::Error;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, client::Grpc};
use tonic_prost::ProstCodec;

async fn call(channel: &Channel) -> Result<(), Status> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut request = Request::new(());
    request.set_timeout(Duration::from_secs(30));
    grpc.unary(request, PathAndQuery::from_static("/t.T/Echo"), ProstCodec::<(), ()>::default()).await?;
    Ok(())
}

fn told(status: &Status) -> String {
    let name = if status.code() == Code::Cancelled { "CANCELLED".to_owned() } else { format!("{:?}", status.code()) };
    let mut text = format!("{name}: {}", status.message());
    let mut behind = status.source();
    while let Some(error) = behind {
        if ["connection closed", "connection was not ready"].contains(&error.to_string().as_str()) {
            text = format!("{text}, by hyper");
        }
        if error.downcast_ref::<h2::Error>().is_some_and(|error| error.is_go_away() && error.is_remote()) {
            return "UNKNOWN by a GOAWAY".to_owned();
        }
        behind = error.source();
    }
    text
}

async fn calls(channel: Channel, until: Instant) -> Vec<String> {
    let mut seen = Vec::new();
    while Instant::now() < until {
        seen.push(call(&channel).await.map_or_else(|status| told(&status), |()| "OK".to_owned()));
    }
    seen
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let address = std::env::args().nth(1).expect("an address");
    let channel = Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
    let until = Instant::now() + Duration::from_secs(10);
    let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(calls(channel.clone(), until))).collect();
    for task in tasks {
        println!("{}", task.await.expect("no panic").join("\n"));
    }
}
RUST
(cd "$WORK/rust" && CARGO_HOME="$WORK/cargo" cargo build --quiet --release) >"$WORK/cargo.log" 2>&1 \
  || broken "cargo (1.88 or newer) did not build the client"

against_a_server() { # NAME COMMAND...: what a client saw, and whether the server has handled what went well, and nothing else
  name=$1
  shift
  mkfifo "$WORK/$name.end"
  "$WORK/venv/bin/python" "$WORK/server.py" <"$WORK/$name.end" >"$WORK/$name.server" 2>"$WORK/$name.server.log" &
  server=$!
  PIDS="$PIDS $server"
  exec 3>"$WORK/$name.end"
  wait_for : "$WORK/$name.server" "$server"
  "$@" "$(head -n 1 "$WORK/$name.server")" >"$WORK/$name.codes" 2>"$WORK/$name.log" || broken "the client failed: $name"
  echo >&3
  exec 3>&-
  wait "$server" || broken "the server failed"
  echo "$name:"
  sort -u "$WORK/$name.codes" | grep -v "^UNKNOWN by a GOAWAY$" | sed 's/^/  /'
  echo "  calls that the server handled, beyond those that were OK: $(($(sed -n 's/handled: //p' "$WORK/$name.server") - $(grep -cx OK "$WORK/$name.codes")))"
}

{
  against_a_server grpcio "$WORK/venv/bin/python" "$WORK/client.py"
  against_a_server tonic "$WORK/rust/target/release/client"
} >"$SEEN"

verdict <<'STATED'
grpcio:
  OK
  calls that the server handled, beyond those that were OK: 0
tonic:
  CANCELLED: operation was canceled, by hyper
  OK
  calls that the server handled, beyond those that were OK: 0
STATED

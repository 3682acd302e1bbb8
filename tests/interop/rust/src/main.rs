//! The scenarios of ../clients.md with tonic: one program, one channel, one report.

mod calls;
mod drain;
mod wire;

use std::env::args;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc::channel;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{iter, pending};
use tonic::Status;

use calls::{Client, DEADLINE, Tally, code_of, message_of, within};
use wire::{COMMIT, Empty, HealthReply, HealthRequest, READ, ReadReply, StreamReply, WATCH, bulk, commit, read, streamed, twice};

async fn unary(client: Client, count: u64) -> Value {
    let mut codes = Tally::default();
    for at in 1..=count {
        codes.add(client.commit("s-0", at).await);
    }
    json!({"codes": codes})
}

async fn large(client: Client) -> Value {
    let below = client.send(bulk(&client.group, 1000), DEADLINE).await;
    let above = client.send(bulk(&client.group, 1050), DEADLINE).await;
    json!({"codes": [below, above, client.commit("after", 1).await]})
}

async fn concurrent_large(client: Client) -> Value {
    let mut calls = JoinSet::new();
    for at in 0..16 {
        let client = client.clone();
        calls.spawn(async move { client.send(bulk(&format!("{}-{at}", client.group), 256), DEADLINE).await });
    }
    json!({"codes": calls.join_all().await.into_iter().collect::<Tally>()})
}

async fn rows(client: Client) -> Result<ReadReply, Status> {
    client.unary(READ, within(DEADLINE, read(&client.group))).await
}

async fn big_reply(client: Client) -> Value {
    let code = client.send(bulk(&client.group, 500), DEADLINE).await;
    let mut calls = JoinSet::new();
    for _ in 0..4 {
        calls.spawn(rows(client.clone()));
    }
    let found = calls.join_all().await.into_iter().map(|answer| {
        let code = code_of(&answer);
        let rows = answer.unwrap_or_default().offsets;
        json!({"code": code, "rows": rows.len(), "metadata_bytes": rows.iter().map(|row| row.metadata.len()).sum::<usize>()})
    });
    json!({"commit": code, "reads": found.collect::<Vec<_>>()})
}

async fn invalid(client: Client) -> Value {
    let answer = client.unary::<_, Empty>(COMMIT, within(DEADLINE, twice(&client.group))).await;
    json!({"code": code_of(&answer), "message": message_of(&answer), "after": client.commit("s-0", 1).await})
}

async fn unknown(client: Client) -> Value {
    let method = client.unary::<_, Empty>("/offsets.v1.OffsetStore/NoSuchMethod", within(DEADLINE, Empty {})).await;
    let service = client.unary::<_, Empty>("/no.such.Service/Method", within(DEADLINE, Empty {})).await;
    json!({"codes": [code_of(&method), code_of(&service), client.commit("s-0", 1).await]})
}

async fn deadline(client: Client) -> Value {
    let ended = match client.stream(pending(), Some(Duration::from_millis(200))).await {
        Ok(mut replies) => code_of(&replies.message().await),
        refused => code_of(&refused),
    };
    let after = client.commit("s-0", 1).await;
    let mut short = Tally::default();
    for at in 1..=20 {
        short.add(client.send(commit(&client.group, "s-1", at), Duration::from_millis(1)).await);
    }
    json!({"stream": ended, "after": after, "short": short, "last": client.commit("s-0", 2).await})
}

/// tonic cancels a call when its replies and its requests are dropped, and has no code for it: CANCELLED is what that means.
async fn cancel(client: Client, rounds: u64) -> Value {
    let (mut answered, mut codes) = (0, Tally::default());
    for at in 1..=rounds {
        let (requests, queue) = channel(1);
        let _ = requests.send(streamed(at, commit(&client.group, "s-0", at))).await;
        let mut replies = client.stream(ReceiverStream::new(queue), Some(DEADLINE)).await.expect("a reply");
        answered += u64::from(matches!(replies.message().await, Ok(Some(_))));
        drop(replies);
        drop(requests);
        codes.add(1);
    }
    json!({"answered": answered, "codes": codes, "after": client.commit("s-0", rounds + 1).await})
}

async fn stream(client: Client, count: u64) -> Value {
    let group = client.group.clone();
    let requests = iter((1..=count).map(move |id| streamed(id, commit(&group, &format!("s-{}", id % 100), id))));
    let (mut covers, mut replies, mut refused, mut ordered) = (0, 0, 0, true);
    let mut see = |reply: StreamReply| {
        covers += u64::from(reply.covers);
        replies += 1;
        refused += u64::from(reply.code != 0);
        ordered = ordered && reply.id == covers;
    };
    let ended = async {
        let mut answers = client.stream(requests, Some(DEADLINE)).await?;
        while let Some(reply) = answers.message().await? {
            see(reply);
        }
        Ok::<_, Status>(())
    };
    let code = code_of(&ended.await);
    json!({"code": code, "covers": covers, "replies": replies, "refused": refused, "ordered": ordered})
}

async fn bidi_refused(client: Client) -> Value {
    let (requests, queue) = channel(1);
    let _ = requests.send(streamed(1, commit(&client.group, "s-0", 1))).await;
    let mut answers = client.stream(ReceiverStream::new(queue), Some(DEADLINE)).await.expect("a reply");
    let mut replies = Vec::new();
    for next in [Some(streamed(2, twice(&client.group))), Some(streamed(3, commit(&client.group, "s-0", 3))), None] {
        let reply = answers.message().await.expect("no error").expect("a reply");
        replies.push(json!({"id": reply.id, "code": reply.code, "covers": reply.covers, "message": reply.message}));
        if let Some(request) = next {
            let _ = requests.send(request).await;
        }
    }
    drop(requests);
    json!({"code": code_of(&answers.message().await), "replies": replies})
}

async fn many(client: Client, count: u64, in_flight: usize) -> Value {
    let mut codes = Tally::default();
    let mut calls = JoinSet::new();
    for at in 1..=count {
        if calls.len() == in_flight {
            codes.add(calls.join_next().await.expect("one").expect("no panic"));
        }
        let client = client.clone();
        calls.spawn(async move { client.commit(&format!("s-{at}"), at).await });
    }
    codes.merge(&calls.join_all().await.into_iter().collect());
    let found = rows(client).await.unwrap_or_default().offsets;
    json!({"codes": codes, "rows": found.len(), "sum": found.iter().map(|row| row.offset).sum::<u64>()})
}

async fn compressed(client: Client) -> Value {
    let answer = client.zipped(bulk(&client.group, 4)).await;
    json!({"code": code_of(&answer), "message": message_of(&answer), "after": client.commit("s-0", 2).await})
}

async fn metadata(client: Client) -> Value {
    let mut answers = Vec::new();
    for (offset, size) in [(1, 4096), (2, 20480)] {
        let mut request = within(DEADLINE, commit(&client.group, "s-0", offset));
        request.metadata_mut().insert("x-filler", "X".repeat(size).parse().expect("ASCII"));
        answers.push(client.unary::<_, Empty>(COMMIT, request).await);
    }
    let codes: Vec<i32> = answers.iter().map(code_of).collect();
    json!({"small": codes[0], "large": codes[1], "message": message_of(&answers[1]), "after": client.commit("s-0", 3).await})
}

async fn server_stream(client: Client) -> Value {
    let request = within(DEADLINE, HealthRequest { service: "offsets.v1.OffsetStore".to_owned() });
    let mut replies = client.server_stream::<_, HealthReply>(WATCH, request).await.expect("a reply");
    let status = replies.message().await.expect("no error").expect("a reply").status;
    drop(replies); // see `cancel`
    json!({"status": status, "code": 1, "after": client.commit("s-0", 1).await})
}

async fn keepalive(client: Client, seconds: f64) -> Value {
    let mut codes = Tally::default();
    codes.add(client.commit("s-0", 1).await);
    sleep(Duration::from_secs_f64(seconds)).await;
    codes.add(client.commit("s-0", 2).await);
    json!({"codes": codes})
}

#[tokio::main]
async fn main() {
    let given: Vec<String> = args().skip(1).collect();
    let [scenario, address, group, rest @ ..] = given.as_slice() else {
        panic!("usage: client SCENARIO ADDRESS GROUP [NUMBERS]");
    };
    let number = |at: usize| rest[at].parse::<u64>().expect("a whole number");
    let client = Client::new(address, group, scenario == "keepalive").expect("an address");
    let report = match scenario.as_str() {
        "unary" => unary(client, number(0)).await,
        "large" => large(client).await,
        "concurrent_large" => concurrent_large(client).await,
        "big_reply" => big_reply(client).await,
        "invalid" => invalid(client).await,
        "unknown" => unknown(client).await,
        "deadline" => deadline(client).await,
        "cancel" => cancel(client, number(0)).await,
        "stream" => stream(client, number(0)).await,
        "bidi_refused" => bidi_refused(client).await,
        "many" => many(client, number(0), number(1) as usize).await,
        "compressed" => compressed(client).await,
        "metadata" => metadata(client).await,
        "server_stream" => server_stream(client).await,
        "keepalive" => keepalive(client, rest[0].parse().expect("a number")).await,
        "drain" => drain::drain(client).await,
        unknown => panic!("no such scenario: {unknown}"),
    };
    println!("{report}");
}

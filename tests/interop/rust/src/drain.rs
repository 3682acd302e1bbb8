//! The scenario `drain`: commits that go on while the adapter is stopped and started, until stdin ends.

use std::collections::BTreeMap;
use std::io::{Read, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc::channel;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::calls::{Client, Tally, cause_of, code_of};
use crate::wire::{commit, streamed};

const PAUSE: Duration = Duration::from_millis(20);

#[derive(Default)]
struct Seen {
    acknowledged: BTreeMap<String, u64>,
    codes: Tally,
    stream_codes: Tally,
    causes: BTreeMap<String, u64>, // of what failed: code and text, and how often
}

impl Seen {
    fn cause<T>(&mut self, result: &Result<T, Status>) {
        if let Some(cause) = cause_of(result) {
            *self.causes.entry(cause).or_default() += 1;
        }
    }
}

pub async fn drain(client: Client) -> Value {
    let ending = Arc::new(AtomicBool::new(false));
    let told = ending.clone();
    std::thread::spawn(move || {
        let _ = stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Relaxed);
    });
    let mut workers = JoinSet::new();
    for at in 0..8 {
        workers.spawn(unary(client.clone(), format!("w-{at}"), ending.clone()));
    }
    workers.spawn(stream(client, ending));
    let mut all = Seen::default();
    for seen in workers.join_all().await {
        all.acknowledged.extend(seen.acknowledged);
        all.codes.merge(&seen.codes);
        all.stream_codes.merge(&seen.stream_codes);
        for (cause, count) in seen.causes {
            *all.causes.entry(cause).or_default() += count;
        }
    }
    json!({"acknowledged": all.acknowledged, "codes": all.codes, "stream_codes": all.stream_codes, "causes": all.causes})
}

async fn unary(client: Client, shard: String, ending: Arc<AtomicBool>) -> Seen {
    let (mut seen, mut offset) = (Seen::default(), 0);
    while !ending.load(Ordering::Relaxed) {
        let answer = client.save(commit(&client.group, &shard, offset + 1), Duration::from_secs(5)).await;
        seen.codes.add(code_of(&answer));
        seen.cause(&answer);
        match answer {
            Ok(_) => offset += 1,
            Err(_) => sleep(PAUSE).await,
        }
    }
    seen.acknowledged.insert(shard, offset);
    seen
}

async fn stream(client: Client, ending: Arc<AtomicBool>) -> Seen {
    let (mut seen, mut offset) = (Seen::default(), 0);
    while !ending.load(Ordering::Relaxed) {
        let ended = lockstep(&client, &ending, &mut offset, &mut seen.stream_codes).await;
        seen.stream_codes.add(code_of(&ended));
        seen.cause(&ended);
        sleep(PAUSE).await;
    }
    seen.acknowledged.insert("stream".to_owned(), offset);
    seen
}

/// Goes on behind an offset until the call or stdin ends, and returns what ended the call.
async fn lockstep(client: &Client, ending: &AtomicBool, offset: &mut u64, refused: &mut Tally) -> Result<(), Status> {
    let (requests, queue) = channel(1);
    let next = |offset| streamed(offset, commit(&client.group, "stream", offset));
    // The first request is there before the call: the server's headers come with its first reply.
    let _ = requests.send(next(*offset + 1)).await;
    let mut replies = client.stream(ReceiverStream::new(queue), None).await?;
    while let Some(reply) = replies.message().await? {
        if reply.code == 0 {
            *offset += 1;
        } else {
            refused.add(reply.code as i32);
            sleep(PAUSE).await;
        }
        if ending.load(Ordering::Relaxed) {
            break;
        }
        let _ = requests.send(next(*offset + 1)).await;
    }
    drop(requests);
    while replies.message().await?.is_some() {}
    Ok(())
}

//! Commits per second of this client, and of the bare generated stub with one call a commit, in turns.
//!
//!     benchmark ADDRESS CONSUMERS SECONDS ROUNDS
//!
//! Each consumer is a task, has a shard of its own, and commits as soon as it is answered. Prints "bare begin" and "bare RATE" around
//! each window, and the same for "client", and ends with its stdin. benchmarks/clients.py runs it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use offset_adapter_client::{Client, Commit, Group};
use tonic::transport::{Channel, Endpoint};

#[allow(dead_code, clippy::all)]
mod proto {
    tonic::include_proto!("offsets.v1");
}

type Stub = proto::offset_store_client::OffsetStoreClient<Channel>;

const TIMEOUT: Duration = Duration::from_secs(30);
static OFFSETS: AtomicU64 = AtomicU64::new(1); // rise for ever, so that each commit changes something

#[derive(Clone)]
enum Side {
    Bare(Stub),
    Client(Box<Client>, Group),
}

impl Side {
    async fn commit(&mut self, shard: &Arc<str>, offset: u64) {
        match self {
            Side::Bare(stub) => {
                let shards = vec![proto::ShardCommit { shard: shard.to_string(), offset: Some(offset), ..Default::default() }];
                let groups = vec![proto::GroupCommits { group: "bare".to_owned(), shards, ..Default::default() }];
                let mut request = tonic::Request::new(proto::CommitOffsetsRequest { groups, mode: 0 });
                request.set_timeout(TIMEOUT);
                stub.commit_offsets(request).await.expect("a commit");
            }
            Side::Client(client, group) => {
                client.commit(Commit::of(group).offset(shard.clone(), offset)).await.expect("a commit");
            }
        }
    }
}

/// Commits per second.
async fn rate(side: &Side, consumers: usize, window: Duration) -> f64 {
    let begin = Instant::now();
    let tasks: Vec<_> = (0..consumers)
        .map(|at| {
            let (mut side, shard) = (side.clone(), Arc::<str>::from(format!("shard-{at}")));
            tokio::spawn(async move {
                let mut count = 0;
                while begin.elapsed() < window {
                    side.commit(&shard, OFFSETS.fetch_add(1, Ordering::Relaxed)).await;
                    count += 1;
                }
                count
            })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await.expect("no panic");
    }
    f64::from(count) / begin.elapsed().as_secs_f64()
}

#[tokio::main]
async fn main() {
    let [address, consumers, seconds, rounds] =
        [1, 2, 3, 4].map(|at| std::env::args().nth(at).expect("usage: benchmark ADDRESS CONSUMERS SECONDS ROUNDS"));
    let consumers: usize = consumers.parse().expect("a number of consumers");
    let window = Duration::from_secs_f64(seconds.parse().expect("seconds"));
    let channel = Endpoint::from_shared(address.clone()).expect("an address").connect_lazy();
    let client = Client::builder(&address).timeout(TIMEOUT).build().expect("an address");
    let sides = [("bare", Side::Bare(Stub::new(channel))), ("client", Side::Client(Box::new(client), Group::new("client")))];
    for _ in 0..rounds.parse().expect("a number of rounds") {
        for (name, side) in &sides {
            rate(side, consumers, window / 2).await; // a warm-up
            println!("{name} begin");
            println!("{name} {}", rate(side, consumers, window).await);
        }
    }
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

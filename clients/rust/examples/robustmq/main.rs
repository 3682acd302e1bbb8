//! A double of a broker over the manager, for tests/conformance: its commands as lines of JSON, and no state of its own, so that
//! kill -9 shows what of its acknowledged commits is durable.
//!
//!     cargo run --example robustmq -- ADDRESS SECONDS

mod offset_manager;

use std::collections::HashMap;
use std::time::Duration;

use offset_adapter_client::{Client, Shards};
use offset_manager::{OffsetManager, Refusal, ShardPosition};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

const TENANT: &str = "default";

fn names(command: &Value) -> Shards {
    match &command["shards"] {
        Value::Array(names) => Shards::Named(names.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
        _ => Shards::All,
    }
}

async fn call(manager: &OffsetManager, command: &Value) -> Result<Value, Refusal> {
    let group = command["group"].as_str().unwrap_or("");
    match command["call"].as_str().unwrap_or("") {
        "commit" => {
            let rows = command["offsets"].as_array().into_iter().flatten();
            let positions: Vec<ShardPosition> = rows
                .map(|row| {
                    let shard = row["shard"].as_str().unwrap_or("").to_owned();
                    ShardPosition { topic: ("orders".to_owned(), 0), offset: row["offset"].as_u64().unwrap_or(0), shard }
                })
                .collect();
            let member = command["generation"].as_u64().map(|generation| (generation, command["member"].as_str().unwrap_or("")));
            manager.commit_offset(TENANT, group, &positions, member).await?;
            Ok(json!({"behind": [], "raised": {}}))
        }
        "remove" => manager.give_up(TENANT, group).await.map(|()| json!({"removed": 0})),
        "delete" => {
            manager.delete_offsets(TENANT, group, names(command)).await?;
            // RobustMQ's Meta Service tells every broker, also the one that made it.
            manager.hear_of_delete(TENANT, group, names(command)).await.map(|()| json!({"deleted": 0}))
        }
        name => {
            let rows = manager.get_offset(TENANT, group, name == "read").await?.into_iter();
            let rows: HashMap<String, Value> = rows.map(|row| (row.shard, json!({"offset": row.offset}))).collect();
            Ok(json!({"offsets": rows}))
        }
    }
}

#[tokio::main]
async fn main() {
    let [address, seconds] = [1, 2].map(|at| std::env::args().nth(at).expect("usage: robustmq ADDRESS SECONDS"));
    let timeout = Duration::from_secs_f64(seconds.parse().expect("seconds"));
    let manager = OffsetManager::new(Client::builder(&address).timeout(timeout).build().expect("an address"));
    let mut lines = BufReader::new(stdin()).lines();
    println!("{}", json!({"ready": true}));
    while let Ok(Some(line)) = lines.next_line().await {
        let command: Value = serde_json::from_str(&line).expect("a line of JSON");
        let manager = manager.clone();
        tokio::spawn(async move {
            let mut line = call(&manager, &command).await.unwrap_or_else(|refusal| match refusal {
                Refusal::Rejoin(text) => json!({"error": "moved", "message": text}),
                Refusal::Retry(text) => json!({"error": "lost", "message": text}),
                Refusal::Failed(text) => json!({"error": "refused", "message": text}),
            });
            line["id"] = command["id"].clone();
            println!("{line}");
        });
    }
}

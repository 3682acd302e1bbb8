//! The driver of tests/conformance: commands as lines of JSON on stdin, answers on stdout. clients/SPEC.md says what they are.

use std::collections::HashMap;
use std::time::Duration;

use offset_adapter_client::{Change, Client, Commit, Committed, Error, Group, Moved, Progress, Shards, Watch};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::task::AbortHandle;

/// Print one line; only whole lines are written, from any task.
fn answer(line: &Value) {
    println!("{line}");
}

fn group_of(command: &Value) -> Group {
    let group = Group::new(text(command, "group"));
    match text(command, "namespace") {
        "" => group,
        namespace => group.in_namespace(namespace),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

fn shards_of(command: &Value) -> Shards {
    match &command["shards"] {
        Value::Array(names) => Shards::Named(names.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
        _ => Shards::All,
    }
}

fn commit_of(command: &Value) -> Commit {
    let offsets = command["offsets"].as_array().into_iter().flatten().map(|row| {
        let progress =
            Progress::new(text(row, "shard"), row["offset"].as_u64().unwrap_or(0)).epoch(row["epoch"].as_u64().unwrap_or(0));
        progress.metadata(text(row, "metadata"))
    });
    let commit = Commit::of(&group_of(command)).progress(offsets);
    let commit = if command["overwrite"] == true { commit.overwrite() } else { commit };
    match command["generation"].as_u64() {
        Some(generation) => commit.member(generation, text(command, "member")),
        None => commit,
    }
}

fn committed(done: &Committed) -> Value {
    let behind: Vec<Value> =
        done.behind.iter().map(|row| json!({"shard": row.shard, "offset": row.offset, "epoch": row.epoch})).collect();
    let raised: HashMap<&str, u64> = done.raised.iter().map(|row| (row.shard.as_str(), row.epoch)).collect();
    json!({"behind": behind, "raised": raised})
}

fn moved(row: &Moved) -> Value {
    json!({"shard": row.shard, "offset": row.offset, "epoch": row.epoch, "held": row.held})
}

fn failed(error: &Error) -> Value {
    let kind = match error {
        Error::Lost { .. } => "lost",
        Error::Moved(_) => "moved",
        Error::Fenced { .. } => "fenced",
        Error::Invalid { .. } => "invalid",
        Error::Exhausted { .. } => "exhausted",
        Error::Refused { .. } => "refused",
        Error::Damaged { .. } => "damaged",
        _ => "config",
    };
    let mut found = json!({"error": kind, "message": error.to_string()});
    match error {
        Error::Moved(rows) => found["moved"] = rows.iter().map(moved).collect(),
        Error::Invalid { field, .. } => found["field"] = json!(field),
        _ => {}
    }
    found
}

async fn call(client: &Client, command: &Value) -> Result<Value, Error> {
    let group = group_of(command);
    match text(command, "call") {
        "commit" => client.commit(commit_of(command)).await.map(|done| committed(&done)),
        "persist" => client.persist(&group, shards_of(command)).await.map(|()| json!({})),
        "remove" => client.remove(&group, shards_of(command)).await.map(|removed| json!({"removed": removed})),
        "delete" => client.delete(&group, shards_of(command)).await.map(|deleted| json!({"deleted": deleted})),
        name => {
            let shards = shards_of(command);
            let found = if name == "peek" { client.peek(&group, shards).await? } else { client.read(&group, shards).await? };
            let rows: HashMap<String, Value> = found
                .into_iter()
                .map(|(shard, row)| {
                    (shard, json!({"offset": row.offset, "epoch": row.epoch, "held": row.held, "metadata": row.metadata}))
                })
                .collect();
            Ok(json!({"offsets": rows}))
        }
    }
}

async fn tell(mut watch: Watch, id: Value) {
    loop {
        let mut line = match watch.next().await {
            Ok(Change::Disconnected) => json!({"change": "disconnected"}),
            Ok(Change::Resync) => json!({"change": "resync"}),
            Ok(Change::Changed { group, shard, offset, epoch, held }) => {
                json!({"change": "changed", "group": group.name(), "shard": shard, "offset": offset, "epoch": epoch, "held": held})
            }
            Ok(Change::Removed { group, shards }) => json!({"change": "removed", "group": group.name(), "shards": shards}),
            Ok(_) => continue,
            Err(error) => {
                let mut line = failed(&error);
                line["id"] = id;
                return answer(&line);
            }
        };
        line["id"] = id.clone();
        answer(&line);
    }
}

#[tokio::main]
async fn main() {
    let [address, seconds] = [1, 2].map(|at| std::env::args().nth(at).expect("usage: conformance ADDRESS SECONDS"));
    let timeout = Duration::from_secs_f64(seconds.parse().expect("seconds"));
    let client = Client::builder(&address).timeout(timeout).build().expect("an address");
    let mut calls: HashMap<String, AbortHandle> = HashMap::new();
    let mut lines = BufReader::new(stdin()).lines();
    answer(&json!({"ready": true}));
    while let Ok(Some(line)) = lines.next_line().await {
        let command: Value = serde_json::from_str(&line).expect("a line of JSON");
        let id = command["id"].clone();
        if command["call"] == "drop" {
            if let Some(dropped) = calls.get(&command["of"].to_string()) {
                dropped.abort();
            }
            answer(&json!({"id": id}));
            continue;
        }
        calls.retain(|_, call| !call.is_finished());
        let (name, client) = (id.to_string(), client.clone());
        let task = tokio::spawn(async move {
            if command["call"] == "watch" {
                return tell(client.watch(), id).await;
            }
            let mut line = call(&client, &command).await.unwrap_or_else(|error| failed(&error));
            line["id"] = id;
            answer(&line);
        });
        calls.insert(name, task.abort_handle());
    }
}

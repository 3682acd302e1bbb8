//! Handles the lines of a file, one message each, and commits after every one.

use std::time::Duration;

use offset_adapter_client::{Client, Commit, Error, Group, Progress};

const SHARD: &str = "orders/0"; // a name of your choice; a shard is one log that is read in order

/// In place of your broker's client.
struct Log {
    path: String,
}

impl Log {
    /// The messages from `offset` on, perhaps none, and the log's end: the offset that the next message will get.
    async fn poll(&self, offset: u64) -> std::io::Result<(Vec<String>, u64)> {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let text = std::fs::read_to_string(&self.path)?;
        let mut lines: Vec<&str> = text.split('\n').collect();
        lines.pop(); // what is behind the last line end is not a message yet
        let messages = lines.iter().skip(offset as usize).map(|line| line.to_string()).collect();
        Ok((messages, lines.len() as u64))
    }
}

fn handle(message: &str) {
    println!("handled {message}");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let log = Log { path: std::env::args().nth(1).ok_or("name the file of the log")? };
    let group = Group::new("billing");
    let client = Client::new("127.0.0.1:9520")?;
    'begin: loop {
        let stored = client.read(&group, [SHARD]).await?;
        // Nothing stored is not 0: where a new group begins is your choice; here it is 0.
        let (mut position, epoch) = stored.get(SHARD).map_or((0, 0), |stored| (stored.offset, stored.epoch));
        loop {
            let (messages, end) = log.poll(position).await?;
            for message in messages {
                handle(&message);
                position += 1;
                let progress = Progress::new(SHARD, position).epoch(epoch).bounds(0..end);
                match client.commit(Commit::of(&group).progress([progress])).await {
                    Ok(_) => {} // durable
                    // Somebody reset the group: nothing was stored, go on where it stands.
                    Err(moved @ Error::Moved(_)) => {
                        println!("{moved}");
                        continue 'begin;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

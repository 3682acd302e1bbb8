//! What a broker's group manager is over the adapter: for brokers such as RobustMQ's, whose manager has these functions over a
//! map that a task sends now and then (docs/robustmq.md).
//!
//! It has no map, no marks and no task. A commit is answered when it is on disk, a read asks where the group stands, and both go
//! to the adapter on this machine. So nothing is left to lose, to expire, or to forget when somebody else moves an offset.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use offset_adapter_client::{Client, Commit, Error, Group, Progress, Shards};

const NOTICE: Duration = Duration::from_secs(30); // a notice of the Meta Service is tried three times, five seconds each

/// An offset as the broker has it: the shard by its name, and the topic and partition that its readers look up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPosition {
    /// The name of the shard.
    pub shard: String,
    /// The topic, and the partition of it.
    pub topic: (String, u32),
    /// The next offset to read.
    pub offset: u64,
}

/// What the broker answers to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Let it join the group again, and so read where it stands (Kafka: ILLEGAL_GENERATION): somebody moved the offsets, or its
    /// generation has ended.
    Rejoin(String),
    /// Let it send the commit, or the question, again (Kafka: COORDINATOR_NOT_AVAILABLE).
    Retry(String),
    /// Its request is wrong, or somebody has to look after the adapter.
    Failed(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Moved(_) | Error::Fenced { .. } => Refusal::Rejoin(text),
            error if error.is_transient() => Refusal::Retry(text),
            _ => Refusal::Failed(text),
        }
    }
}

/// The group manager.
#[derive(Clone)]
pub struct OffsetManager {
    adapter: Client,
    deleted: Arc<Mutex<HashMap<Group, Instant>>>, // by this broker, of late
}

impl OffsetManager {
    /// Over the adapter of this machine.
    pub fn new(adapter: Client) -> Self {
        OffsetManager { adapter, deleted: Arc::default() }
    }

    /// Commit: durable when it returns, so the consumer may be answered. It may go back, as in Kafka. `generation` and
    /// `member`: those of the consumer, if its protocol has them.
    pub async fn commit_offset(
        &self,
        tenant: &str,
        group: &str,
        positions: &[ShardPosition],
        member: Option<(u64, &str)>,
    ) -> Result<(), Refusal> {
        let progress = positions.iter().map(|position| {
            Progress::new(position.shard.as_str(), position.offset).labels(position.topic.0.as_str(), position.topic.1)
        });
        let mut commit = Commit::of(&group_of(tenant, group)).progress(progress).overwrite();
        if let Some((generation, id)) = member {
            commit = commit.member(generation, id);
        }
        self.adapter.commit(commit).await?;
        Ok(())
    }

    /// Where the group stands. `starts`: for a consumer that begins there, which takes up what an operator reset; tools that only
    /// show it do not.
    pub async fn get_offset(&self, tenant: &str, group: &str, starts: bool) -> Result<Vec<ShardPosition>, Refusal> {
        let group = group_of(tenant, group);
        let found =
            if starts { self.adapter.read(&group, Shards::All).await? } else { self.adapter.peek(&group, Shards::All).await? };
        let row = |(shard, stored): (String, offset_adapter_client::Stored)| {
            let topic = stored.labels.unwrap_or_else(|| (shard.clone(), 0));
            ShardPosition { shard, topic, offset: stored.offset }
        };
        Ok(found.into_iter().map(row).collect())
    }

    /// A consumer or an operator deletes a group's offsets at this broker, or those of some shards: in the Meta Service, and here, so
    /// that nothing sends them again.
    pub async fn delete_offsets(&self, tenant: &str, group: &str, shards: Shards) -> Result<(), Refusal> {
        let group = group_of(tenant, group);
        self.deleted.lock().expect("no panic").insert(group.clone(), Instant::now());
        self.adapter.delete(&group, shards).await?;
        Ok(())
    }

    /// The Meta Service says that offsets were deleted. Where another broker did that, this adapter may still have them; of a delete
    /// of its own the broker hears as well, a moment later, and what was committed since is not meant.
    pub async fn hear_of_delete(&self, tenant: &str, group: &str, shards: Shards) -> Result<(), Refusal> {
        let group = group_of(tenant, group);
        {
            let mut deleted = self.deleted.lock().expect("no panic");
            deleted.retain(|_, at| at.elapsed() < NOTICE);
            if deleted.contains_key(&group) {
                return Ok(());
            }
        }
        self.adapter.delete(&group, shards).await?;
        Ok(())
    }

    /// Another broker coordinates the group from now on. Call it before that one answers its first consumer; it has the offsets
    /// when this returns.
    pub async fn give_up(&self, tenant: &str, group: &str) -> Result<(), Refusal> {
        self.adapter.remove(&group_of(tenant, group), Shards::All).await?;
        Ok(())
    }
}

fn group_of(tenant: &str, group: &str) -> Group {
    Group::new(group).in_namespace(tenant)
}

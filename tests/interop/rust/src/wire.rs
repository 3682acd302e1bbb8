//! The messages of offsets.v1 that the scenarios need, and how they are made.

use prost::Message;

pub const COMMIT: &str = "/offsets.v1.OffsetStore/CommitOffsets";
pub const STREAM: &str = "/offsets.v1.OffsetStore/StreamCommits";
pub const READ: &str = "/offsets.v1.OffsetStore/ReadOffsets";
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

#[derive(Clone, PartialEq, Message)]
pub struct ShardCommit {
    #[prost(string, tag = "1")]
    pub shard: String,
    #[prost(uint64, optional, tag = "2")]
    pub offset: Option<u64>,
    #[prost(string, tag = "3")]
    pub metadata: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct GroupCommits {
    #[prost(string, tag = "2")]
    pub group: String,
    #[prost(message, repeated, tag = "3")]
    pub shards: Vec<ShardCommit>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CommitRequest {
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<GroupCommits>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct StreamRequest {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(message, optional, tag = "2")]
    pub commit: Option<CommitRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StreamReply {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint32, tag = "3")]
    pub code: u32,
    #[prost(string, tag = "4")]
    pub message: String,
    #[prost(uint32, tag = "5")]
    pub covers: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct GroupShards {
    #[prost(string, tag = "2")]
    pub group: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReadRequest {
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<GroupShards>,
    #[prost(uint32, tag = "2")]
    pub mode: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ShardOffset {
    #[prost(uint64, tag = "5")]
    pub offset: u64,
    #[prost(string, tag = "6")]
    pub metadata: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ReadReply {
    #[prost(message, repeated, tag = "1")]
    pub offsets: Vec<ShardOffset>,
}

#[derive(Clone, PartialEq, Message)]
pub struct HealthRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct HealthReply {
    #[prost(uint32, tag = "1")]
    pub status: u32,
}

fn entry(shard: &str, offset: u64, metadata: String) -> ShardCommit {
    ShardCommit { shard: shard.to_owned(), offset: Some(offset), metadata }
}

fn group_of(group: &str, shards: Vec<ShardCommit>) -> CommitRequest {
    CommitRequest { groups: vec![GroupCommits { group: group.to_owned(), shards }] }
}

pub fn commit(group: &str, shard: &str, offset: u64) -> CommitRequest {
    group_of(group, vec![entry(shard, offset, String::new())])
}

/// A shard two times, which is refused.
pub fn twice(group: &str) -> CommitRequest {
    group_of(group, vec![entry("s-0", 1, String::new()); 2])
}

/// About 4,111 bytes for each of `count` shards.
pub fn bulk(group: &str, count: usize) -> CommitRequest {
    group_of(group, (0..count).map(|at| entry(&format!("s-{at}"), 1, "m".repeat(4096))).collect())
}

pub fn streamed(id: u64, commit: CommitRequest) -> StreamRequest {
    StreamRequest { id, commit: Some(commit) }
}

/// Asks for what is in memory of a group.
pub fn read(group: &str) -> ReadRequest {
    ReadRequest { groups: vec![GroupShards { group: group.to_owned() }], mode: 1 }
}

#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

use std::time::Duration;

mod client;
mod commits;
mod error;
mod retry;
mod types;
mod watch;

#[allow(missing_docs, dead_code, clippy::all)]
mod proto {
    tonic::include_proto!("offsets.v1");
}

#[cfg(feature = "tls")]
pub use client::Tls;
pub use client::{Builder, Client};
pub use error::Error;
pub use types::{Commit, Committed, Group, Member, Moved, Progress, Raised, Shards, Stands, Stored};
pub use watch::{Change, Watch};

type Service = proto::offset_store_client::OffsetStoreClient<tonic::transport::Channel>;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5); // Kafka's commit timeout
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const TIMED_OUT: &str = "not answered in time";

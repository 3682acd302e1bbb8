//! Hearing of changes that did not come as ordinary commits.

use std::collections::VecDeque;

use tokio::time::{sleep_until, timeout};
use tonic::Streaming;

use crate::error::Error;
use crate::proto;
use crate::retry::Pauses;
use crate::types::Group;
use crate::{CONNECT_TIMEOUT, Service};

/// What a [`Watch`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Nothing is heard until the next [`Change::Resync`], which comes when there is a connection again: until then an offset
    /// that is cached may be an old one.
    Disconnected,
    /// From now on every change is told; what was changed before may have been missed. Forget every offset that is cached, and
    /// read again where consumers stand.
    Resync,
    /// A shard was reset, cloned onto, imported, rewound, deleted, or taken from the Meta Service.
    Changed {
        /// Its group.
        group: Group,
        /// The shard.
        shard: String,
        /// What stands; `None`: it was deleted.
        offset: Option<u64>,
        /// Its epoch. What a cache has with a larger (epoch, offset) is newer than this.
        epoch: u64,
        /// True while nobody has taken up the reset.
        held: bool,
    },
    /// Shards that are no longer at this adapter: handed over, or expired.
    Removed {
        /// Their group.
        group: Group,
        /// The shards; empty: all of the group.
        shards: Vec<String>,
    },
}

/// A stream of changes that connects again by itself. Made by [`Client::watch`](crate::Client::watch).
pub struct Watch {
    service: Service,
    filter: proto::WatchOffsetsRequest,
    stream: Option<Streaming<proto::WatchOffsetsReply>>,
    ready: VecDeque<Change>,
    pauses: Pauses,
}

impl Watch {
    pub(crate) fn new(service: Service, group: Option<&Group>) -> Self {
        let filter = group.map_or_else(Default::default, |group| proto::WatchOffsetsRequest {
            namespace: group.namespace().to_owned(),
            group: group.name().to_owned(),
        });
        Watch { service, filter, stream: None, ready: VecDeque::new(), pauses: Pauses::default() }
    }

    /// The next change; waits for one, and for the adapter. The first one is [`Change::Resync`].
    ///
    /// May be dropped at any moment, as `select!` does: no change is lost by it.
    ///
    /// # Errors
    /// Only what a further attempt does not mend, such as [`Error::Refused`] by an adapter that cannot be watched.
    pub async fn next(&mut self) -> Result<Change, Error> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return Ok(change);
            }
            match &mut self.stream {
                Some(stream) => match stream.message().await {
                    Ok(Some(reply)) => self.take(reply),
                    Ok(None) | Err(_) => {
                        self.stream = None;
                        self.pauses.begin();
                        self.ready.push_back(Change::Disconnected);
                    }
                },
                None => self.connect().await?,
            }
        }
    }

    async fn connect(&mut self) -> Result<(), Error> {
        if let Some(until) = self.pauses.until() {
            sleep_until(until).await;
            self.pauses.end();
        }
        let problem = match timeout(CONNECT_TIMEOUT, self.service.watch_offsets(self.filter.clone())).await {
            Ok(Ok(reply)) => {
                self.stream = Some(reply.into_inner());
                return Ok(());
            }
            Ok(Err(status)) => Error::from_status(&status),
            Err(_) => Error::lost("the adapter does not answer"),
        };
        self.pauses.begin();
        if problem.is_transient() { Ok(()) } else { Err(problem) }
    }

    fn take(&mut self, reply: proto::WatchOffsetsReply) {
        self.pauses.forget();
        if reply.resync {
            self.ready.push_back(Change::Resync);
        }
        self.ready.extend(reply.changed.into_iter().map(|row| Change::Changed {
            group: Group::new(row.group).in_namespace(row.namespace),
            shard: row.shard,
            offset: (!row.deleted).then_some(row.offset),
            epoch: row.epoch,
            held: row.held,
        }));
        self.ready.extend(
            reply
                .removed
                .into_iter()
                .map(|row| Change::Removed { group: Group::new(row.group).in_namespace(row.namespace), shards: row.shards }),
        );
    }
}

//! What a caller gives and gets: groups, progress, commits, stored offsets.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
use crate::proto;

const NAME_MAX: usize = 255; // bytes of UTF-8, see offsets.proto

/// A consumer group in a namespace. Cheap to clone.
///
/// ```
/// use offset_adapter_client::Group;
///
/// let group = Group::new("billing");
/// assert_eq!(group.namespace(), "default");
/// assert_eq!(Group::new("billing").in_namespace("tenant-1").namespace(), "tenant-1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl Group {
    /// A group in the namespace `default`.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Group { namespace: "default".into(), name: name.into() }
    }

    /// The group of the same name in another namespace.
    pub fn in_namespace(self, namespace: impl Into<Arc<str>>) -> Self {
        Group { namespace: namespace.into(), ..self }
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        check_name(&self.namespace, "namespace")?;
        check_name(&self.name, "group")
    }
}

impl fmt::Display for Group {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}/{}", self.namespace, self.name)
    }
}

/// The next offset to read of a shard, and what may be told beside it.
///
/// ```
/// use offset_adapter_client::Progress;
///
/// let plain = Progress::new("orders/0", 43);
/// let more = Progress::new("orders/0", 43).bounds(0..50).labels("orders", 0).metadata("worker 3");
/// assert_eq!(plain.offset(), more.offset());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub(crate) shard: Arc<str>,
    pub(crate) offset: u64,
    pub(crate) epoch: u64,
    pub(crate) metadata: String,
    pub(crate) labels: Option<(String, u32)>,
    pub(crate) bounds: Option<Range<u64>>,
    pub(crate) log_id: String,
}

impl Progress {
    /// Every message below `offset` is done; the next one to read has this offset.
    pub fn new(shard: impl Into<Arc<str>>, offset: u64) -> Self {
        let (shard, metadata, log_id) = (shard.into(), String::new(), String::new());
        Progress { shard, offset, epoch: 0, metadata, labels: None, bounds: None, log_id }
    }

    /// The shard.
    pub fn shard(&self) -> &str {
        &self.shard
    }

    /// The next offset to read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The epoch that was read with the offset, or that a later commit was [raised](Committed::raised) to. With it, a commit that
    /// is in flight cannot undo a reset. 0: unknown.
    pub fn epoch(self, epoch: u64) -> Self {
        Progress { epoch, ..self }
    }

    /// At most 4,096 bytes that are kept with the offset.
    pub fn metadata(self, metadata: impl Into<String>) -> Self {
        Progress { metadata: metadata.into(), ..self }
    }

    /// Topic and partition, which travel to the Meta Service with the offset.
    pub fn labels(self, topic: impl Into<String>, partition: u32) -> Self {
        Progress { labels: Some((topic.into(), partition)), ..self }
    }

    /// The log's first readable offset, and the one that its next message will get. Lag is counted by them.
    pub fn bounds(self, bounds: Range<u64>) -> Self {
        Progress { bounds: Some(bounds), ..self }
    }

    /// With the bounds: which log they are of, any text that is another one when the log was made anew.
    pub fn log_id(self, log_id: impl Into<String>) -> Self {
        Progress { log_id: log_id.into(), ..self }
    }

    /// True if it fits into the columns of a request.
    pub(crate) fn is_plain(&self) -> bool {
        self.metadata.is_empty() && self.labels.is_none() && self.bounds.is_none() && self.log_id.is_empty()
    }

    /// About how much it takes of a request, in plain offsets.
    pub(crate) fn weight(&self) -> usize {
        let topic = self.labels.as_ref().map_or(0, |(topic, _)| topic.len());
        1 + (self.metadata.len() + topic + self.log_id.len()) / 512
    }

    pub(crate) fn to_proto(&self) -> proto::ShardCommit {
        let (topic, partition) = self.labels.clone().unwrap_or_default();
        proto::ShardCommit {
            shard: self.shard.to_string(),
            offset: Some(self.offset),
            epoch: self.epoch,
            metadata: self.metadata.clone(),
            topic,
            partition,
            low_watermark: self.bounds.as_ref().map(|bounds| bounds.start),
            high_watermark: self.bounds.as_ref().map(|bounds| bounds.end),
            log_id: self.log_id.clone(),
            ..Default::default()
        }
    }
}

/// The committing member of a group, for fencing: a commit of a generation below the group's newest is refused as
/// [`Error::Fenced`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The group's generation, as in Kafka: it grows with each rebalance.
    pub generation: u64,
    /// Shown in errors and by `offset-adapter groups describe`; may be empty.
    pub id: String,
}

/// One commit: offsets of one group, which are durable together.
///
/// ```
/// use offset_adapter_client::{Commit, Group, Progress};
///
/// let commit = Commit::of(&Group::new("billing")).offset("orders/0", 43).offset("orders/1", 7);
/// let fenced = Commit::of(&Group::new("billing")).progress([Progress::new("orders/0", 43).epoch(1)]).member(7, "worker-3");
/// # let _ = (commit, fenced);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub(crate) group: Group,
    pub(crate) progress: Vec<Progress>,
    pub(crate) member: Option<Member>,
    pub(crate) overwrite: bool,
}

impl Commit {
    /// An empty commit of a group.
    pub fn of(group: &Group) -> Self {
        Commit { group: group.clone(), progress: Vec::new(), member: None, overwrite: false }
    }

    /// Add the next offset to read of a shard.
    pub fn offset(self, shard: impl Into<Arc<str>>, offset: u64) -> Self {
        self.progress([Progress::new(shard, offset)])
    }

    /// Add offsets with what is told beside them.
    pub fn progress(mut self, progress: impl IntoIterator<Item = Progress>) -> Self {
        self.progress.extend(progress);
        self
    }

    /// Fence it: refused when a newer generation of the group has committed.
    pub fn member(self, generation: u64, id: impl Into<String>) -> Self {
        Commit { member: Some(Member { generation, id: id.into() }), ..self }
    }

    /// A lower offset is a rewind, stored under the next epoch. Without this it changes nothing.
    pub fn overwrite(self) -> Self {
        Commit { overwrite: true, ..self }
    }

    pub(crate) fn weight(&self) -> usize {
        self.progress.iter().map(Progress::weight).sum()
    }

    /// What would be refused anyway is refused here, where it does not make other commits wait that share its request.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.group.check()?;
        if self.progress.is_empty() {
            return Err(Error::invalid("shards", "shards: no offset is in the commit; at least one is needed"));
        }
        let mut seen = std::collections::HashSet::with_capacity(self.progress.len());
        for (at, progress) in self.progress.iter().enumerate() {
            let field = format_args!("shards[{at}].shard").to_string();
            check_name(&progress.shard, &field)?;
            if !seen.insert(&progress.shard) {
                return Err(Error::invalid(&field, format!("{field}: {} is in the commit twice", progress.shard)));
            }
        }
        Ok(())
    }
}

/// What a durable commit did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Committed {
    /// Shards of which a larger offset was stored already: this commit came late, or repeats an earlier one. Nothing is lost.
    pub behind: Vec<Stands>,
    /// Shards that were stored in a new epoch: a rewind, or the first commit after a reset. Name it in the next commits of them.
    pub raised: Vec<Raised>,
}

/// The offset that stands in the place of one that was committed late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stands {
    /// The shard.
    pub shard: String,
    /// The stored offset.
    pub offset: u64,
    /// Its epoch.
    pub epoch: u64,
}

/// A shard in a new epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raised {
    /// The shard.
    pub shard: String,
    /// The new epoch.
    pub epoch: u64,
}

/// A shard that somebody else moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// The shard.
    pub shard: String,
    /// The offset that stands now; `None` if it was deleted.
    pub offset: Option<u64>,
    /// Its epoch. A commit that names it is taken.
    pub epoch: u64,
    /// True while nobody has taken up the reset: a commit without an epoch changes nothing.
    pub held: bool,
}

impl fmt::Display for Moved {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(to, "{} (now {offset}, epoch {})", self.shard, self.epoch),
            None => write!(to, "{} (deleted, epoch {})", self.shard, self.epoch),
        }
    }
}

/// A stored offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The next offset to read.
    pub offset: u64,
    /// Commit with it.
    pub epoch: u64,
    /// What was committed with the offset.
    pub metadata: String,
    /// Unix time in milliseconds.
    pub committed_at_ms: u64,
    /// Topic and partition, where they were told.
    pub labels: Option<(String, u32)>,
    /// True while a reset is not taken up.
    pub held: bool,
}

/// Which shards of a group: all that have an offset, or those that are named.
///
/// A list that is empty by mistake is refused, instead of meaning all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shards {
    /// Every shard of the group.
    All,
    /// These, at least one.
    Named(Vec<String>),
}

impl Shards {
    pub(crate) fn into_proto(self, group: &Group) -> Result<proto::GroupShards, Error> {
        group.check()?;
        let shards = match self {
            Shards::All => Vec::new(),
            Shards::Named(shards) if shards.is_empty() => {
                return Err(Error::invalid("shards", "shards: none is named; for every shard of the group say Shards::All"));
            }
            Shards::Named(shards) => shards,
        };
        for (at, shard) in shards.iter().enumerate() {
            check_name(shard, &format!("shards[{at}]"))?;
        }
        Ok(proto::GroupShards { namespace: group.namespace().to_owned(), group: group.name().to_owned(), shards })
    }
}

impl From<Vec<String>> for Shards {
    fn from(names: Vec<String>) -> Self {
        Shards::Named(names)
    }
}

impl<const N: usize> From<[&str; N]> for Shards {
    fn from(names: [&str; N]) -> Self {
        Shards::Named(names.map(str::to_owned).into())
    }
}

impl From<&[&str]> for Shards {
    fn from(names: &[&str]) -> Self {
        Shards::Named(names.iter().map(|name| (*name).to_owned()).collect())
    }
}

fn check_name(name: &str, field: &str) -> Result<(), Error> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.len() > NAME_MAX {
        "is longer than 255 bytes"
    } else if name.chars().any(char::is_control) {
        "has a control character"
    } else {
        return Ok(());
    };
    Err(Error::invalid(field, format!("{field}: {name:?} {problem}")))
}

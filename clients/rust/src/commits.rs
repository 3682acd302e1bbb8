//! The pending commits of a client: commits that wait while requests are in flight share the next one.
//!
//! Of one shard, a commit is sent after those before it were answered. A request that is refused is divided, so that a refusal
//! reaches only the commit that it concerns. One that is lost is sent again until the deadline of its commits; with OVERWRITE it
//! is alone in its request, and sent once.

use std::collections::hash_map::{Entry as Slot, HashMap};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tonic::{Code, Status};

use crate::error::Error;
use crate::proto;
use crate::retry::Pauses;
use crate::types::{Commit, Committed, Group, Member, Moved, Raised, Stands};
use crate::{Service, TIMED_OUT};

const MAX_SHARED: usize = 2; // shared requests in flight: the adapter works on one while the next is on the wire
const MIN_SPREAD: usize = 32; // commits; more than that are spread evenly over the shared requests
const MAX_ALONE: usize = 32; // requests of a single commit in flight
const MAX_WEIGHT: usize = 2_048; // offsets of a shared request: with the longest names 2.7 of the 4 MiB that are allowed
const MAX_QUEUED: usize = 4_096; // commits; beyond it, callers wait
const MAX_WRITTEN_THROUGH: usize = 4_096; // groups that are remembered

type Shard = (Group, Arc<str>);

/// What of a reply concerns one commit.
#[derive(Default)]
struct Reply {
    superseded: Vec<proto::Superseded>,
    raised: Vec<proto::Raised>,
}

struct Entry {
    commit: Commit,
    answer: oneshot::Sender<Result<Reply, Error>>,
    deadline: Instant,
    /// Sent in a request of its own.
    alone: bool,
    /// Its last request was lost: it waits for the end of the pause.
    lost: bool,
}

impl Entry {
    fn shards(&self) -> impl Iterator<Item = Shard> {
        self.commit.progress.iter().map(|progress| (self.commit.group.clone(), progress.shard.clone()))
    }
}

/// The sending end, which every handle has.
#[derive(Clone)]
pub(crate) struct Commits {
    queue: mpsc::Sender<Entry>,
}

impl Commits {
    /// Start the task that sends commits. It ends when no handle is left.
    pub(crate) fn start(service: Service) -> Self {
        let (queue, commits) = mpsc::channel(MAX_QUEUED);
        tokio::spawn(Sender::new(service).run(commits));
        Commits { queue }
    }

    pub(crate) async fn commit(&self, commit: Commit, limit: Duration) -> Result<Committed, Error> {
        commit.check()?;
        let sent: Vec<(Arc<str>, u64, u64)> =
            commit.progress.iter().map(|progress| (progress.shard.clone(), progress.offset, progress.epoch)).collect();
        let deadline = Instant::now() + limit;
        let (answer, answered) = oneshot::channel();
        let alone = commit.overwrite;
        let entry = Entry { commit, answer, deadline, alone, lost: false };
        let ended = || Error::lost("the runtime in which this client was made has ended");
        let reply = timeout_at(deadline, async {
            self.queue.send(entry).await.map_err(|_| ended())?;
            answered.await.map_err(|_| ended())?
        });
        judge(reply.await.map_err(|_| Error::lost(TIMED_OUT))??, &sent)
    }
}

/// A shard that somebody moved is an error. One of which more is stored already, in the epoch of the commit, is not.
fn judge(reply: Reply, sent: &[(Arc<str>, u64, u64)]) -> Result<Committed, Error> {
    let (mut moved, mut behind) = (Vec::new(), Vec::new());
    for row in reply.superseded {
        let (offset, epoch) =
            sent.iter().find(|(shard, ..)| **shard == *row.shard).map_or((0, 0), |&(_, offset, epoch)| (offset, epoch));
        if row.held || row.deleted || row.offset < offset || (epoch != 0 && row.epoch > taken_up(epoch)) {
            let stands = (!row.deleted).then_some(row.offset);
            moved.push(Moved { shard: row.shard, offset: stands, epoch: row.epoch, held: row.held });
        } else {
            behind.push(Stands { shard: row.shard, offset: row.offset, epoch: row.epoch });
        }
    }
    if !moved.is_empty() {
        return Err(Error::Moved(moved));
    }
    let raised = reply.raised.into_iter().map(|row| Raised { shard: row.shard, epoch: row.epoch }).collect();
    Ok(Committed { behind, raised })
}

/// A reset's epoch, whose lower half is 0, and the one behind its hold are one to a consumer that read either.
fn taken_up(epoch: u64) -> u64 {
    if epoch as u32 == 0 { epoch + 1 } else { epoch }
}

/// What came of a request.
struct Done {
    entries: Vec<Entry>,
    alone: bool,
    result: Result<proto::CommitOffsetsReply, Status>,
}

struct Sender {
    service: Service,
    queue: VecDeque<Entry>,
    requests: JoinSet<Done>,
    shared: usize,
    /// Commits in the shared requests.
    underway: usize,
    alone: usize,
    /// Shards of requests in flight.
    busy: HashSet<Shard>,
    /// Groups whose commits wait for the Meta Service: others should not wait with them.
    written_through: HashSet<Group>,
    pauses: Pauses,
}

impl Sender {
    fn new(service: Service) -> Self {
        Sender {
            service,
            queue: VecDeque::new(),
            requests: JoinSet::new(),
            shared: 0,
            underway: 0,
            alone: 0,
            busy: HashSet::new(),
            written_through: HashSet::new(),
            pauses: Pauses::default(),
        }
    }

    async fn run(mut self, mut commits: mpsc::Receiver<Entry>) {
        let mut open = true;
        while open || !self.queue.is_empty() || !self.requests.is_empty() {
            let paused = self.pauses.until().filter(|_| self.queue.iter().any(|entry| entry.lost));
            tokio::select! {
                received = commits.recv(), if open && self.queue.len() < MAX_QUEUED => match received {
                    Some(entry) => self.queue.push_back(entry),
                    None => open = false,
                },
                Some(done) = self.requests.join_next() => {
                    if let Ok(done) = done {
                        self.settle(done);
                    }
                }
                () = sleep_until(paused.unwrap_or_else(Instant::now)), if paused.is_some() => self.pauses.end(),
            }
            // Behind every task that can run now: those that were answered together commit again together.
            yield_now().await;
            self.accept(&mut commits);
            while let Some((entries, alone)) = self.next_request() {
                self.send(entries, alone);
                // Until it is on the wire: two that are written together are answered together, and each end waits for the other.
                yield_now().await; // behind its own task
                yield_now().await; // and behind the connection's
            }
        }
    }

    /// Put all commits that have come into the queue.
    fn accept(&mut self, commits: &mut mpsc::Receiver<Entry>) {
        while self.queue.len() < MAX_QUEUED
            && let Ok(entry) = commits.try_recv()
        {
            self.queue.push_back(entry);
        }
    }

    /// Whether a shared request may be sent now. Beside another one it has to be about as large: a request costs the adapter much
    /// more than a commit in it, and those that were answered together commit again together.
    fn may_share(&self) -> bool {
        self.shared == 0 || (self.shared < MAX_SHARED && 4 * self.queue.len() >= 3 * self.underway)
    }

    fn may_be_alone(&self) -> bool {
        self.alone < MAX_ALONE && (!self.written_through.is_empty() || self.queue.iter().any(|entry| entry.alone))
    }

    /// The commits of the next request, and whether it is one of its own; `None` if no more may be sent now.
    fn next_request(&mut self) -> Option<(Vec<Entry>, bool)> {
        let may_share = self.may_share();
        if !may_share && !self.may_be_alone() {
            return None;
        }
        let most = MIN_SPREAD.max((self.queue.len() + self.underway) / MAX_SHARED);
        let mut chosen: Vec<Entry> = Vec::new();
        let mut members: HashMap<Group, Option<Member>> = HashMap::new();
        // No later commit of these shards is in the request, and none overtakes one that stays in the queue.
        let mut taken: HashSet<Shard> = HashSet::new();
        let mut stay = VecDeque::new();
        let mut weight = 0;
        let is_paused = self.pauses.until().is_some();
        while let Some(entry) = self.queue.pop_front() {
            if entry.answer.is_closed() {
                continue; // nobody waits for it: it was dropped, or its time is over
            }
            let alone = entry.alone || self.written_through.contains(&entry.commit.group);
            let is_ready =
                !(entry.lost && is_paused) && entry.shards().all(|shard| !self.busy.contains(&shard) && !taken.contains(&shard));
            taken.extend(entry.shards());
            let fits = if alone {
                chosen.is_empty() && self.alone < MAX_ALONE
            } else {
                let room = if chosen.is_empty() { may_share } else { weight + entry.commit.weight() <= MAX_WEIGHT };
                room && members.get(&entry.commit.group).is_none_or(|member| *member == entry.commit.member)
            };
            if !(is_ready && fits) {
                stay.push_back(entry);
                continue;
            }
            weight += entry.commit.weight();
            members.insert(entry.commit.group.clone(), entry.commit.member.clone());
            chosen.push(entry);
            if alone || chosen.len() == most || weight >= MAX_WEIGHT {
                stay.append(&mut self.queue);
                self.queue = stay;
                return Some((chosen, alone));
            }
        }
        self.queue = stay;
        (!chosen.is_empty()).then_some((chosen, false))
    }

    fn send(&mut self, entries: Vec<Entry>, alone: bool) {
        if alone {
            self.alone += 1;
        } else {
            self.shared += 1;
            self.underway += entries.len();
        }
        self.busy.extend(entries.iter().flat_map(Entry::shards));
        let request = request_of(&entries);
        let deadline = entries.iter().map(|entry| entry.deadline).max().unwrap_or_else(Instant::now);
        let mut service = self.service.clone();
        self.requests.spawn(async move {
            let limit = deadline.saturating_duration_since(Instant::now());
            let mut request = tonic::Request::new(request);
            // In whole seconds: the adapter knows the headers of a request that are those of the one before. `timeout` is exact.
            request.set_timeout(Duration::from_secs(limit.as_secs() + 1));
            let result = match timeout(limit, service.commit_offsets(request)).await {
                Ok(answer) => answer.map(tonic::Response::into_inner),
                Err(_) => Err(Status::deadline_exceeded(TIMED_OUT)),
            };
            Done { entries, alone, result }
        });
    }

    fn settle(&mut self, done: Done) {
        if done.alone {
            self.alone -= 1;
        } else {
            self.shared -= 1;
            self.underway -= done.entries.len();
        }
        for shard in done.entries.iter().flat_map(Entry::shards) {
            self.busy.remove(&shard);
        }
        match done.result {
            Ok(reply) => {
                if done.entries.iter().any(|entry| entry.lost) {
                    self.pauses.forget();
                }
                self.answer(done.entries, reply);
            }
            Err(status) => self.failed(done.entries, &status),
        }
    }

    fn answer(&mut self, entries: Vec<Entry>, reply: proto::CommitOffsetsReply) {
        if !reply.written_through.is_empty() {
            self.note_written_through(&entries, &reply.written_through);
        }
        let mut replies: Vec<Reply> = entries.iter().map(|_| Reply::default()).collect();
        if !(reply.superseded.is_empty() && reply.raised.is_empty()) {
            let places: HashMap<Shard, usize> =
                entries.iter().enumerate().flat_map(|(at, entry)| entry.shards().map(move |shard| (shard, at))).collect();
            let place = |namespace: &str, group: &str, shard: &str| {
                places.get(&(Group::new(group).in_namespace(namespace), shard.into())).copied()
            };
            for row in reply.superseded {
                if let Some(at) = place(&row.namespace, &row.group, &row.shard) {
                    replies[at].superseded.push(row);
                }
            }
            for row in reply.raised {
                if let Some(at) = place(&row.namespace, &row.group, &row.shard) {
                    replies[at].raised.push(row);
                }
            }
        }
        for (entry, reply) in entries.into_iter().zip(replies) {
            let _ = entry.answer.send(Ok(reply)); // an error: nobody waits any more
        }
    }

    fn note_written_through(&mut self, entries: &[Entry], indexes: &[u32]) {
        if self.written_through.len() > MAX_WRITTEN_THROUGH {
            self.written_through.clear();
        }
        let mut groups: Vec<&Group> = Vec::new(); // in the order of the request
        for entry in entries {
            if !groups.contains(&&entry.commit.group) {
                groups.push(&entry.commit.group);
            }
        }
        let found = indexes.iter().filter_map(|&at| groups.get(at as usize));
        self.written_through.extend(found.map(|&group| group.clone()));
    }

    fn failed(&mut self, entries: Vec<Entry>, status: &Status) {
        let error = Error::from_status(status);
        let is_lost = matches!(error, Error::Lost { .. });
        // Of all commits alike, such as a full disk: each by itself would only be told the same.
        let is_common = matches!(error, Error::Exhausted { .. } | Error::Damaged { .. })
            || matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied);
        if is_lost {
            self.pauses.begin();
        }
        let is_one = entries.len() == 1;
        for mut entry in entries.into_iter().rev() {
            let again = if is_lost { !entry.commit.overwrite && entry.deadline > Instant::now() } else { !is_one && !is_common };
            if again {
                entry.alone = true;
                entry.lost |= is_lost;
                self.queue.push_front(entry);
            } else {
                let _ = entry.answer.send(Err(error.clone()));
            }
        }
    }
}

/// One `GroupCommits` for each group, in the order in which groups first occur.
fn request_of(entries: &[Entry]) -> proto::CommitOffsetsRequest {
    let mut groups: Vec<proto::GroupCommits> = Vec::new();
    let mut places: HashMap<&Group, usize> = HashMap::new();
    for entry in entries {
        let commit = &entry.commit;
        let at = match places.entry(&commit.group) {
            Slot::Occupied(slot) => *slot.get(),
            Slot::Vacant(slot) => {
                groups.push(proto::GroupCommits {
                    namespace: commit.group.namespace().to_owned(),
                    group: commit.group.name().to_owned(),
                    member_id: commit.member.as_ref().map_or_else(String::new, |member| member.id.clone()),
                    generation: commit.member.as_ref().map(|member| member.generation),
                    ..Default::default()
                });
                *slot.insert(groups.len() - 1)
            }
        };
        for progress in &commit.progress {
            if progress.is_plain() {
                groups[at].shard_names.push(progress.shard.to_string());
                groups[at].offsets.push(progress.offset);
                groups[at].epochs.push(progress.epoch);
            } else {
                groups[at].shards.push(progress.to_proto());
            }
        }
    }
    for group in &mut groups {
        if group.epochs.iter().all(|&epoch| epoch == 0) {
            group.epochs.clear();
        }
    }
    let mode = if entries.iter().any(|entry| entry.commit.overwrite) {
        proto::CommitMode::Overwrite
    } else {
        proto::CommitMode::IncreaseOnly
    };
    proto::CommitOffsetsRequest { groups, mode: mode.into() }
}

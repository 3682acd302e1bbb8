//! One channel, the calls that the scenarios make on it, and the counting of their codes.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use serde::Serialize;
use tonic::codec::{CompressionEncoding, Streaming};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, client::Grpc};
use tonic_prost::ProstCodec;

use crate::wire::{COMMIT, CommitRequest, Empty, STREAM, StreamReply, StreamRequest, commit};

pub const DEADLINE: Duration = Duration::from_secs(30);

/// How often each code was seen.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub struct Tally(BTreeMap<i32, u64>);

impl Tally {
    pub fn add(&mut self, code: i32) {
        *self.0.entry(code).or_default() += 1;
    }

    pub fn merge(&mut self, other: &Tally) {
        for (code, count) in &other.0 {
            *self.0.entry(*code).or_default() += count;
        }
    }
}

impl FromIterator<i32> for Tally {
    fn from_iter<T: IntoIterator<Item = i32>>(codes: T) -> Self {
        let mut tally = Tally::default();
        codes.into_iter().for_each(|code| tally.add(code));
        tally
    }
}

pub fn code_of<T>(result: &Result<T, Status>) -> i32 {
    result.as_ref().err().map_or(0, |status| status.code() as i32)
}

/// What a failed call says, with what lies behind it, and nothing of one that did not fail.
pub fn cause_of<T>(result: &Result<T, Status>) -> Option<String> {
    let status = result.as_ref().err()?;
    let mut cause = format!("{} {}", status.code() as i32, status.message());
    let mut behind = status.source();
    while let Some(error) = behind {
        cause = format!("{cause}: {error}");
        behind = error.source();
    }
    Some(cause)
}

pub fn message_of<T>(result: &Result<T, Status>) -> String {
    result.as_ref().err().map_or(String::new(), |status| status.message().to_owned())
}

/// A request with a deadline.
pub fn within<T>(limit: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

#[derive(Clone)]
pub struct Client {
    channel: Channel,
    pub group: String,
}

impl Client {
    /// A channel that connects with its first call, and again with the next one after it has lost its connection.
    pub fn new(address: &str, group: &str, keepalive: bool) -> Result<Client, tonic::transport::Error> {
        let target = if address.starts_with("unix:") { address.to_owned() } else { format!("http://{address}") };
        let mut endpoint = Endpoint::from_shared(target)?;
        if keepalive {
            endpoint = endpoint
                .http2_keep_alive_interval(Duration::from_secs(10))
                .keep_alive_timeout(Duration::from_secs(2))
                .keep_alive_while_idle(true);
        }
        Ok(Client { channel: endpoint.connect_lazy(), group: group.to_owned() })
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc)
    }

    pub async fn unary<T, R>(&self, path: &'static str, request: Request<T>) -> Result<R, Status>
    where
        T: Message + 'static,
        R: Message + Default + 'static,
    {
        let codec = ProstCodec::<T, R>::default();
        self.ready().await?.unary(request, PathAndQuery::from_static(path), codec).await.map(Response::into_inner)
    }

    pub async fn zipped(&self, request: CommitRequest) -> Result<Empty, Status> {
        let codec = ProstCodec::<CommitRequest, Empty>::default();
        let mut grpc = self.ready().await?.send_compressed(CompressionEncoding::Gzip);
        grpc.unary(within(DEADLINE, request), PathAndQuery::from_static(COMMIT), codec).await.map(Response::into_inner)
    }

    pub async fn server_stream<T, R>(&self, path: &'static str, request: Request<T>) -> Result<Streaming<R>, Status>
    where
        T: Message + 'static,
        R: Message + Default + 'static,
    {
        let codec = ProstCodec::<T, R>::default();
        self.ready().await?.server_streaming(request, PathAndQuery::from_static(path), codec).await.map(Response::into_inner)
    }

    /// StreamCommits. Answers with the server's first headers, or when it has ended.
    pub async fn stream<S>(&self, requests: S, limit: Option<Duration>) -> Result<Streaming<StreamReply>, Status>
    where
        S: tokio_stream::Stream<Item = StreamRequest> + Send + 'static,
    {
        let mut request = Request::new(requests);
        if let Some(limit) = limit {
            request.set_timeout(limit);
        }
        let codec = ProstCodec::<StreamRequest, StreamReply>::default();
        self.ready().await?.streaming(request, PathAndQuery::from_static(STREAM), codec).await.map(Response::into_inner)
    }

    /// Commits, and returns the code.
    pub async fn send(&self, request: CommitRequest, limit: Duration) -> i32 {
        code_of(&self.save(request, limit).await)
    }

    /// Commits.
    pub async fn save(&self, request: CommitRequest, limit: Duration) -> Result<Empty, Status> {
        self.unary(COMMIT, within(limit, request)).await
    }

    /// Commits one offset, and returns the code.
    pub async fn commit(&self, shard: &str, offset: u64) -> i32 {
        self.send(commit(&self.group, shard, offset), DEADLINE).await
    }
}

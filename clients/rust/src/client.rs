//! The client, and how it is made.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::commits::Commits;
use crate::error::Error;
use crate::proto::{self, offset_admin_client::OffsetAdminClient};
use crate::retry::Pauses;
use crate::types::{Commit, Committed, Group, Shards, Stored};
use crate::watch::Watch;
use crate::{CONNECT_TIMEOUT, DEFAULT_TIMEOUT, Service, TIMED_OUT};

const PING_EVERY: Duration = Duration::from_secs(10); // a connection whose other end is gone is noticed, also by a watch
const PING_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REPLY: usize = 64 << 20; // bytes: the adapter is trusted, and limits its replies itself

/// A client of one adapter. Clones share its connection and its requests.
///
/// It connects with the first call, and again whenever the connection is lost, so the adapter may start later, and restart at any
/// time.
#[derive(Clone)]
pub struct Client {
    service: Service,
    admin: OffsetAdminClient<Channel>,
    commits: Commits,
    timeout: Duration,
    token: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// A client of `unix:/path/to/socket` or `host:port`, with a timeout of 5 s for each call.
    ///
    /// # Errors
    /// [`Error::Config`] for an address that is none, and outside of a Tokio runtime. The client belongs to that runtime.
    pub fn new(address: &str) -> Result<Self, Error> {
        Builder::new(address).build()
    }

    /// A client with other settings than those of [`Client::new`].
    pub fn builder(address: &str) -> Builder {
        Builder::new(address)
    }

    /// Commit offsets. When it returns, they are durable as the policy of their group demands: on the adapter's disk, or in the
    /// Meta Service.
    ///
    /// Commits that are made at the same time share requests, so make many at once, from any number of tasks. Of one shard they
    /// are carried out in the order in which they were made. A commit whose request was lost is sent again until the timeout,
    /// so it survives a restart of the adapter; one with [`overwrite`](Commit::overwrite) is sent once.
    ///
    /// **Dropped** before it is ready, it may have been carried out or not, as after [`Error::Lost`]. What was not sent by then
    /// is not sent any more.
    ///
    /// # Errors
    /// See [`Error`]; with [`Error::Moved`] all shards of the commit that it does not name are durable.
    pub async fn commit(&self, commit: Commit) -> Result<Committed, Error> {
        self.commits.commit(commit, self.timeout).await
    }

    /// Where a consumer begins: shard -> the larger of what the adapter and the Meta Service have (STORE).
    ///
    /// A shard without an offset is left out: absent is not 0. It also takes up what an operator reset: from then on commits
    /// without an epoch are taken again. So call it only for a consumer that will go on from the answer.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Lost`] also while the Meta Service does not answer.
    pub async fn read(&self, group: &Group, shards: impl Into<Shards>) -> Result<HashMap<String, Stored>, Error> {
        self.read_store(group, shards.into(), false).await
    }

    /// The same for monitors and people: what an operator reset is not taken up by it.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn peek(&self, group: &Group, shards: impl Into<Shards>) -> Result<HashMap<String, Stored>, Error> {
        self.read_store(group, shards.into(), true).await
    }

    /// Returns when the Meta Service has at least the present offsets of these shards.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn persist(&self, group: &Group, shards: impl Into<Shards>) -> Result<(), Error> {
        let request = proto::PersistOffsetsRequest { groups: vec![shards.into().into_proto(group)?] };
        self.call(request, |request| {
            let mut service = self.service.clone();
            async move { service.persist_offsets(request).await }
        })
        .await?;
        Ok(())
    }

    /// Hand shards over: when it returns, the Meta Service has their offsets, and this adapter no longer. Returns how many the
    /// last attempt removed; 0 also when an attempt whose answer was lost had removed them.
    ///
    /// End their commits first: one that is made meanwhile brings the shard back to this adapter.
    ///
    /// # Errors
    /// See [`Error`]. After one, some of the shards may have been removed; the Meta Service has those.
    pub async fn remove(&self, group: &Group, shards: impl Into<Shards>) -> Result<u64, Error> {
        let request = proto::RemoveOffsetsRequest { groups: vec![shards.into().into_proto(group)?] };
        let reply = self
            .call(request, |request| {
                let mut service = self.service.clone();
                async move { service.remove_offsets(request).await }
            })
            .await?;
        Ok(reply.removed)
    }

    /// Delete offsets for good: in the Meta Service, and at this adapter, which does not send them again. Returns how many.
    ///
    /// An administrator's call (OffsetAdmin): over the adapter's Unix socket for the user that runs it, elsewhere with a
    /// [token](Builder::token) or a certificate. Consumers hear of it as of a reset.
    ///
    /// # Errors
    /// See [`Error`]. After one, some may have been deleted.
    pub async fn delete(&self, group: &Group, shards: impl Into<Shards>) -> Result<u64, Error> {
        let named = shards.into().into_proto(group)?;
        let (namespace, group, shards) = (named.namespace, named.group, named.shards);
        let request = proto::DeleteOffsetsRequest { namespace, group, shards, execute: true, topics: Vec::new() };
        let reply = self
            .call(request, |mut request| {
                let mut admin = self.admin.clone();
                if let Some(token) = &self.token {
                    request.metadata_mut().insert("authorization", token.clone());
                }
                async move { admin.delete_offsets(request).await }
            })
            .await?;
        Ok(reply.rows.iter().filter(|row| row.changed).count() as u64)
    }

    /// Hear of changes that did not come as ordinary commits, of all groups.
    pub fn watch(&self) -> Watch {
        Watch::new(self.service.clone(), None)
    }

    /// Hear of those of one group.
    pub fn watch_group(&self, group: &Group) -> Watch {
        Watch::new(self.service.clone(), Some(group))
    }

    async fn read_store(&self, group: &Group, shards: Shards, keep_hold: bool) -> Result<HashMap<String, Stored>, Error> {
        let groups = vec![shards.into_proto(group)?];
        let request = proto::ReadOffsetsRequest { groups, mode: proto::ReadMode::Store.into(), keep_hold };
        let reply = self
            .call(request, |request| {
                let mut service = self.service.clone();
                async move { service.read_offsets(request).await }
            })
            .await?;
        Ok(reply.offsets.into_iter().map(stored).collect())
    }

    /// A call that may be repeated, until it is answered or the timeout is over.
    async fn call<Q: Clone, R, F>(&self, message: Q, method: impl Fn(Request<Q>) -> F) -> Result<R, Error>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let deadline = Instant::now() + self.timeout;
        let mut pauses = Pauses::default();
        let mut last = Error::lost(TIMED_OUT);
        loop {
            let mut request = Request::new(message.clone());
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
            match timeout_at(deadline, method(request)).await {
                Ok(Ok(reply)) => return Ok(reply.into_inner()),
                Ok(Err(status)) => last = Error::from_status(&status),
                Err(_) => return Err(last),
            }
            pauses.begin();
            match pauses.until() {
                Some(until) if matches!(last, Error::Lost { .. }) && until < deadline => sleep_until(until).await,
                _ => return Err(last),
            }
            pauses.end();
        }
    }
}

fn stored(row: proto::ShardOffset) -> (String, Stored) {
    let labels = (!row.topic.is_empty()).then_some((row.topic, row.partition));
    let stored = Stored {
        offset: row.offset,
        epoch: row.epoch,
        metadata: row.metadata,
        committed_at_ms: row.committed_at_ms,
        labels,
        held: row.held,
    };
    (row.shard, stored)
}

/// The settings of a client.
#[derive(Clone)]
pub struct Builder {
    address: String,
    timeout: Duration,
    token: String,
    #[cfg(feature = "tls")]
    tls: Option<tonic::transport::ClientTlsConfig>,
}

impl Builder {
    fn new(address: &str) -> Self {
        Builder {
            address: address.to_owned(),
            timeout: DEFAULT_TIMEOUT,
            token: String::new(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// How long a call may take with all its attempts; 5 s if it is not set.
    pub fn timeout(self, timeout: Duration) -> Self {
        Builder { timeout, ..self }
    }

    /// The adapter's token (`admin.token_file`), for [`Client::delete`] over TCP. No other call needs or sends it.
    pub fn token(self, token: impl Into<String>) -> Self {
        Builder { token: token.into(), ..self }
    }

    /// TLS to `host:port`: the authority that signed the adapter's certificate, or the system's; an identity, where the adapter
    /// asks its clients for one (`server.tls.client_ca`); the name in its certificate, if that is not the host.
    #[cfg(feature = "tls")]
    pub fn tls(self, tls: Tls) -> Self {
        Builder { tls: Some(tls.0), ..self }
    }

    /// The client. Connects with its first call.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn build(self) -> Result<Client, Error> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::Config { message: "make the client within a Tokio runtime, in which it then lives".to_owned() });
        }
        let config = |what: String| Error::Config { message: format!("{}: {what}", self.address) };
        let target = if self.address.starts_with("unix:") {
            self.address.clone()
        } else if self.address.contains("://") || !self.address.contains(':') {
            return Err(config("not an address: it is host:port or unix:/path".to_owned()));
        } else {
            format!("{}://{}", self.scheme(), self.address)
        };
        let mut endpoint = Endpoint::from_shared(target).map_err(|error| config(error.to_string()))?;
        endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        #[cfg(feature = "tls")]
        if let Some(tls) = self.tls.clone() {
            endpoint = endpoint.tls_config(tls).map_err(|error| config(error.to_string()))?;
        }
        let token = self.bearer().map_err(config)?;
        let channel = endpoint.connect_lazy();
        let service = Service::new(channel.clone()).max_decoding_message_size(MAX_REPLY);
        let admin = OffsetAdminClient::new(channel).max_decoding_message_size(MAX_REPLY);
        Ok(Client { commits: Commits::start(service.clone()), service, admin, timeout: self.timeout, token })
    }

    /// The token as metadata. It does not leave this machine in plaintext.
    fn bearer(&self) -> Result<Option<MetadataValue<Ascii>>, String> {
        if self.token.is_empty() {
            return Ok(None);
        }
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host.trim_matches(['[', ']']));
        let is_local = self.address.starts_with("unix:")
            || host == "localhost"
            || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
        if !is_local && self.scheme() == "http" {
            return Err("the token would go there in plaintext: use TLS, or the adapter's Unix socket".to_owned());
        }
        format!("Bearer {}", self.token)
            .parse()
            .map(Some)
            .map_err(|_| "the token has letters that metadata cannot have".to_owned())
    }

    fn scheme(&self) -> &'static str {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return "https";
        }
        "http"
    }
}

/// What a connection with TLS needs; PEM throughout.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
pub struct Tls(tonic::transport::ClientTlsConfig);

#[cfg(feature = "tls")]
impl Tls {
    /// Trust the authorities that the system trusts.
    pub fn of_system() -> Self {
        Tls(tonic::transport::ClientTlsConfig::new().with_native_roots())
    }

    /// Trust this authority alone.
    pub fn of_authority(ca_pem: impl AsRef<[u8]>) -> Self {
        let certificate = tonic::transport::Certificate::from_pem(ca_pem);
        Tls(tonic::transport::ClientTlsConfig::new().ca_certificate(certificate))
    }

    /// Show this certificate with its private key.
    pub fn identity(self, certificate_pem: impl AsRef<[u8]>, key_pem: impl AsRef<[u8]>) -> Self {
        Tls(self.0.identity(tonic::transport::Identity::from_pem(certificate_pem, key_pem)))
    }

    /// The name that the adapter's certificate has to have.
    pub fn server_name(self, name: impl Into<String>) -> Self {
        Tls(self.0.domain_name(name))
    }
}

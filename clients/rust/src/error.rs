//! What went wrong, by what the caller has to do.

use std::fmt;
use std::time::Duration;

use tonic::{Code, Status};

use crate::types::Moved;

/// Why a call failed. Each variant says what is known then, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// No answer came within the timeout, or the adapter could not say: the call may have been carried out or not.
    ///
    /// Repeat it. Commits that only increase, reads, [`persist`](crate::Client::persist) and [`remove`](crate::Client::remove)
    /// were already repeated until the timeout. A commit with [`overwrite`](crate::Commit::overwrite) was sent once, because a
    /// late repeat could undo what others committed since: read where the group stands first.
    Lost {
        /// The last reason.
        message: String,
    },
    /// Shards of the commit were reset, deleted, cloned or rewound by somebody else, so their offsets were **not** taken. All
    /// other shards of the commit are durable.
    ///
    /// [Read](crate::Client::read) these shards, and go on from there.
    Moved(Vec<Moved>),
    /// The generation of the commit has ended: a newer one of the group has committed. Nothing of the commit was done.
    ///
    /// Refuse the consumer (Kafka's ILLEGAL_GENERATION): it has to join its group again.
    Fenced {
        /// Which generation has ended, and which one is the present one.
        message: String,
    },
    /// The request breaks a rule. Nothing of it was done, and a repeat would fail alike.
    ///
    /// Correct the field.
    Invalid {
        /// The field, such as `shards[1].offset`; empty if the text begins with none.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// The adapter has too much to do, its disk is full, or the answer would be too large. Nothing was done.
    ///
    /// Try again later, after `retry_after` if it is there; ask for fewer shards if the text says so.
    Exhausted {
        /// What is exhausted.
        message: String,
        /// How long the adapter asks its clients to wait.
        retry_after: Option<Duration>,
    },
    /// The adapter or the Meta Service does not take this: its settings, its version, or a rule of the Meta Service forbid it.
    ///
    /// A person has to look; the text is written for them.
    Refused {
        /// Why.
        message: String,
    },
    /// The store of the adapter is damaged.
    ///
    /// A person has to look: `offset-adapter status`.
    Damaged {
        /// What was found.
        message: String,
    },
    /// The client cannot be made: the address, or the TLS files.
    Config {
        /// What is wrong.
        message: String,
    },
}

impl Error {
    /// True if the same call may succeed later: [`Error::Lost`] and [`Error::Exhausted`].
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Lost { .. } | Error::Exhausted { .. })
    }

    pub(crate) fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Error::Invalid { field: field.into(), message: message.into() }
    }

    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Error::Lost { message: message.into() }
    }

    /// The only place where a status becomes an error.
    pub(crate) fn from_status(status: &Status) -> Self {
        let message = text_of(status);
        match status.code() {
            Code::InvalidArgument => {
                // `groups[0].` is of the request, of which the caller knows nothing: it names one group.
                let message = message.strip_prefix("groups[0].").unwrap_or(&message).to_owned();
                let field = message.split_once(": ").or_else(|| message.split_once(' ')).map_or("", |(field, _)| field);
                Error::Invalid { field: field.to_owned(), message }
            }
            Code::FailedPrecondition if message.contains("ILLEGAL_GENERATION") => Error::Fenced { message },
            Code::ResourceExhausted | Code::OutOfRange => {
                let pushback = status.metadata().get("grpc-retry-pushback-ms").and_then(|value| value.to_str().ok());
                let retry_after = pushback.and_then(|text| text.parse().ok()).map(Duration::from_millis);
                Error::Exhausted { message, retry_after }
            }
            Code::DataLoss => Error::Damaged { message },
            // A call that was cut off ends with one of these, by the library and the moment. So does one that the server did not
            // expect to fail. Whether it was carried out is unknown in each case.
            Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded | Code::Aborted | Code::Unknown | Code::Internal => {
                Error::Lost { message }
            }
            _ => Error::Refused { message },
        }
    }
}

/// The text of a status, with what lies behind it where the connection failed.
fn text_of(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut behind = std::error::Error::source(status);
    while let Some(error) = behind {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        behind = error.source();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Lost { message } => write!(to, "not answered; it may be done or not: {message}"),
            Error::Moved(rows) => {
                write!(to, "not taken, since somebody moved these shards; read them, and go on from there:")?;
                for row in rows {
                    write!(to, " {row}")?;
                }
                Ok(())
            }
            Error::Invalid { message, .. }
            | Error::Fenced { message }
            | Error::Exhausted { message, .. }
            | Error::Refused { message }
            | Error::Damaged { message }
            | Error::Config { message } => to.write_str(message),
        }
    }
}

impl std::error::Error for Error {}

//! Pauses between attempts: exponential, with jitter, at most half a second.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(500);

/// The pause that all attempts of a client, a call or a watch share.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    count: u32,
    until: Option<Instant>,
}

impl Pauses {
    /// Begin the next pause, if none goes on.
    pub(crate) fn begin(&mut self) {
        if self.until().is_none() {
            let most = LONGEST.min(FIRST * 2_u32.pow(self.count.min(10)));
            self.count += 1;
            let random = RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64; // seeded anew each time
            self.until = Some(Instant::now() + FIRST.mul_f64(1.0 - random) + most.mul_f64(random));
        }
    }

    /// When the pause ends; `None` if there is none.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// The pause is over.
    pub(crate) fn end(&mut self) {
        self.until = None;
    }

    /// An attempt succeeded: the next pause is a short one.
    pub(crate) fn forget(&mut self) {
        self.count = 0;
    }
}

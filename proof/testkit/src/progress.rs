//! The progress of a load's clients, for the test that waits for them.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Only a test that hangs takes longer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Shared by the clients of a load and the test.
#[derive(Default)]
pub struct Progress {
    counts: Mutex<Counts>,
    more: Condvar,
}

#[derive(Default)]
struct Counts {
    durable: u64,
    failed: u64,
    is_stopped: bool,
}

impl Progress {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().expect("no panic")
    }

    /// Records an acknowledgement.
    pub fn note(&self, is_durable: bool) {
        self.counts().durable += u64::from(is_durable);
        self.more.notify_all();
    }

    pub fn note_failure(&self) {
        self.counts().failed += 1;
        self.more.notify_all();
    }

    /// The number of acknowledgements as durable.
    pub fn durable(&self) -> u64 {
        self.counts().durable
    }

    pub fn failed(&self) -> u64 {
        self.counts().failed
    }

    /// Waits for `count` more acknowledgements as durable, or the timeout. Returns their number.
    pub fn await_durable(&self, count: u64, timeout: Duration) -> u64 {
        let counts = self.counts();
        let begin = counts.durable;
        let waited = self.more.wait_timeout_while(counts, timeout, |counts| counts.durable < begin + count);
        waited.expect("no panic").0.durable - begin
    }

    /// Waits until `count` more requests have failed. False on timeout.
    pub fn await_failures(&self, count: u64) -> bool {
        let counts = self.counts();
        let end = counts.failed + count;
        let waited = self.more.wait_timeout_while(counts, TIMEOUT, |counts| counts.failed < end);
        waited.expect("no panic").0.failed >= end
    }

    /// Clients finish their requests in flight and send no more.
    pub fn stop(&self) {
        self.counts().is_stopped = true;
    }

    pub fn resume(&self) {
        self.counts().is_stopped = false;
    }

    pub fn is_stopped(&self) -> bool {
        self.counts().is_stopped
    }
}

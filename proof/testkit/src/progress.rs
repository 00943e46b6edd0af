//! The progress of a load's clients, for the test that waits for them.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

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
    /// Records an acknowledgement.
    pub fn note(&self, is_durable: bool) {
        self.counts.lock().durable += u64::from(is_durable);
        self.more.notify_all();
    }

    pub fn note_failure(&self) {
        self.counts.lock().failed += 1;
        self.more.notify_all();
    }

    /// The number of acknowledgements as durable.
    pub fn durable(&self) -> u64 {
        self.counts.lock().durable
    }

    pub fn failed(&self) -> u64 {
        self.counts.lock().failed
    }

    /// Waits for `count` more acknowledgements as durable, or the timeout. Returns their number.
    pub fn await_durable(&self, count: u64, timeout: Duration) -> u64 {
        let mut counts = self.counts.lock();
        let begin = counts.durable;
        self.more.wait_while_for(&mut counts, |counts| counts.durable < begin + count, timeout);
        counts.durable - begin
    }

    /// Waits until `count` more requests have failed. False on timeout.
    pub fn await_failures(&self, count: u64) -> bool {
        let mut counts = self.counts.lock();
        let end = counts.failed + count;
        self.more.wait_while_for(&mut counts, |counts| counts.failed < end, TIMEOUT);
        counts.failed >= end
    }

    /// Clients finish their requests in flight and send no more.
    pub fn stop(&self) {
        self.counts.lock().is_stopped = true;
    }

    pub fn resume(&self) {
        self.counts.lock().is_stopped = false;
    }

    pub fn is_stopped(&self) -> bool {
        self.counts.lock().is_stopped
    }
}

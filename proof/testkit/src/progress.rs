//! How far the clients of a load are, for the test that waits for them.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Only what hangs ever takes so long.
const HANGS: Duration = Duration::from_secs(120);

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

    /// Something was acknowledged; is it durable?
    pub fn note(&self, is_durable: bool) {
        self.counts().durable += u64::from(is_durable);
        self.more.notify_all();
    }

    pub fn note_failure(&self) {
        self.counts().failed += 1;
        self.more.notify_all();
    }

    /// How often something was acknowledged as durable.
    pub fn durable(&self) -> u64 {
        self.counts().durable
    }

    pub fn failed(&self) -> u64 {
        self.counts().failed
    }

    /// Waits until so much more was acknowledged as durable, or the time is over. Gives how much it was.
    pub fn await_durable(&self, count: u64, most: Duration) -> u64 {
        let counts = self.counts();
        let begin = counts.durable;
        let waited = self.more.wait_timeout_while(counts, most, |counts| counts.durable < begin + count);
        waited.expect("no panic").0.durable - begin
    }

    /// Waits until so many more requests have failed. Did they?
    pub fn await_failures(&self, count: u64) -> bool {
        let counts = self.counts();
        let end = counts.failed + count;
        let waited = self.more.wait_timeout_while(counts, HANGS, |counts| counts.failed < end);
        waited.expect("no panic").0.failed >= end
    }

    /// The clients shall end what is under way, and no more.
    pub fn stop(&self) {
        self.counts().is_stopped = true;
    }

    /// They may go on again.
    pub fn resume(&self) {
        self.counts().is_stopped = false;
    }

    pub fn is_stopped(&self) -> bool {
        self.counts().is_stopped
    }
}

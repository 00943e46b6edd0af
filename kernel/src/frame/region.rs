//! An ordered log of the chunks offered to and withdrawn from the machines; each processor follows it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use machine::{Machine, Region, RegionId};
use parking_lot::Mutex;
use policy::unit::ProcessorId;

#[derive(Clone, Copy, Debug)]
enum Change {
    Offer(RegionId),
    /// `left`: processors that have yet to withdraw.
    Withdraw {
        chunk: RegionId,
        left: u16,
    },
}

#[derive(Default)]
struct Log {
    /// The changes from number `first` on.
    changes: VecDeque<Change>,
    first: u64,
    /// Each processor's position.
    seen: Vec<u64>,
}

/// A processor's new position, and the number of offers that its machine declined.
pub(crate) struct Followed {
    pub(crate) seen: u64,
    pub(crate) declined: u64,
}

pub(super) struct RegionLog {
    log: Mutex<Log>,
    version: AtomicU64,
}

impl RegionLog {
    pub(super) fn new(processors: u16) -> Self {
        let log = Log { seen: vec![0; usize::from(processors)], ..Log::default() };
        RegionLog { log: Mutex::new(log), version: AtomicU64::new(0) }
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn offer(&self, chunk: RegionId) {
        self.append(|_| Change::Offer(chunk));
    }

    pub(super) fn withdraw(&self, chunk: RegionId) {
        self.append(|log| Change::Withdraw { chunk, left: log.seen.len() as u16 });
    }

    fn append(&self, change: impl FnOnce(&Log) -> Change) {
        let mut log = self.log.lock();
        let change = change(&log);
        log.changes.push_back(change);
        self.version.store(log.first + log.changes.len() as u64, Ordering::Release);
    }

    /// Passes the changes after `seen` to one processor's machine. `all_withdrawn` is called for each chunk that this
    /// processor was the last to withdraw.
    pub(super) fn follow(
        &self,
        seen: u64,
        id: ProcessorId,
        machine: &mut dyn Machine,
        region: impl Fn(RegionId) -> Region,
        all_withdrawn: impl Fn(RegionId),
    ) -> Followed {
        let mut log = self.log.lock();
        let (mut free, mut declined) = (Vec::new(), 0);
        let from = (seen - log.first) as usize;
        for change in log.changes.iter_mut().skip(from) {
            match change {
                Change::Offer(chunk) => declined += u64::from(machine.offer_region(region(*chunk)).is_err()),
                Change::Withdraw { chunk, left } => {
                    machine.withdraw_region(*chunk);
                    *left -= 1;
                    if *left == 0 {
                        free.push(*chunk);
                    }
                }
            }
        }
        let now = log.first + log.changes.len() as u64;
        log.seen[usize::from(id.0)] = now;
        let all = log.seen.iter().copied().min().unwrap_or(now);
        while log.first < all {
            log.changes.pop_front();
            log.first += 1;
        }
        drop(log);
        // After unlocking the log: the chunk table's lock comes before it.
        free.into_iter().for_each(all_withdrawn);
        Followed { seen: now, declined }
    }
}

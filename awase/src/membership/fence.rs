//! Until when this node may answer.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use policy::membership::Incarnation;
use policy::unit::Instant;
use rustix::time::{ClockId, clock_gettime};

/// The clock of leases. It goes on while the machine is suspended, which `CLOCK_MONOTONIC` does not: that one, after a
/// suspension longer than the lease, would still be before its end.
pub fn now() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    Instant::from_ns(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Read by whatever answers other nodes, without a lock, before each answer.
#[derive(Default)]
pub struct Fence {
    epoch: AtomicU32,
    /// Nanoseconds of [`now`]; 0: shut.
    until: AtomicU64,
    /// Is told each end.
    renewed: OnceLock<Box<dyn Fn(Instant) + Send + Sync>>,
}

impl Fence {
    /// Whether a node in this epoch may answer now. What is found here may be relied on for the time of one answer
    /// (`policy::membership::Config::answer`).
    pub fn answers(&self, epoch: Incarnation) -> bool {
        let until = self.until.load(Ordering::Acquire);
        // The epoch was stored before an end that is its own, so an earlier epoch finds a later one here.
        now().ns() < until && self.epoch.load(Ordering::Relaxed) == epoch.0
    }

    /// The end, if it is open.
    pub fn until(&self) -> Option<Instant> {
        Some(self.until.load(Ordering::Acquire)).filter(|&ns| ns != 0).map(Instant::from_ns)
    }

    /// Whoever is to know the end, now and whenever there is another one. To be called once.
    pub fn on_renewed(&self, renewed: impl Fn(Instant) + Send + Sync + 'static) {
        let _ = self.renewed.set(Box::new(renewed));
        self.tell();
    }

    fn tell(&self) {
        if let (Some(renewed), Some(until)) = (self.renewed.get(), self.until()) {
            renewed(until);
        }
    }

    pub(super) fn open(&self, epoch: Incarnation, until: Instant) {
        if self.epoch.load(Ordering::Relaxed) != epoch.0 {
            // Never the earlier epoch with the new end.
            self.shut();
            self.epoch.store(epoch.0, Ordering::Release);
        }
        if self.until.swap(until.ns(), Ordering::AcqRel) != until.ns() {
            self.tell();
        }
    }

    pub(super) fn shut(&self) {
        self.until.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_answers_for_one_epoch_until_its_end() {
        let fence = Fence::default();
        assert!(!fence.answers(Incarnation(0)));
        fence.open(Incarnation(3), now() + Duration::from_secs(3600));
        assert!(fence.answers(Incarnation(3)));
        fence.open(Incarnation(9), now() + Duration::from_secs(3600));
        assert_eq!((fence.answers(Incarnation(3)), fence.answers(Incarnation(9))), (false, true));
        fence.open(Incarnation(9), now());
        assert!(!fence.answers(Incarnation(9)), "it is over");
        fence.shut();
        assert_eq!((fence.answers(Incarnation(9)), fence.until()), (false, None));
    }
}

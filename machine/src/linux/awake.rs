//! Idle processors that keep their cores awake for another one's clients (`policy/awake`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use policy::unit::{Instant, ProcessorId};

use super::bell::Bell;

/// A processor beside whose polling another thread computed polls for nobody else for this time.
const DECLINED: Duration = Duration::from_millis(20);

/// What the processors of a machine share of it.
pub(super) struct Awake {
    /// Until when idle processors poll. Nanoseconds.
    until: AtomicU64,
    idlers: Vec<OnceLock<Idler>>,
}

struct Idler {
    bell: Arc<Bell>,
    declined_until: AtomicU64,
}

impl Awake {
    pub(super) fn new(processors: usize) -> Awake {
        Awake { until: AtomicU64::new(0), idlers: (0..processors).map(|_| OnceLock::new()).collect() }
    }

    pub(super) fn enroll(&self, processor: ProcessorId, bell: &Arc<Bell>) {
        if let Some(place) = self.idlers.get(usize::from(processor.0)) {
            place.get_or_init(|| Idler { bell: Arc::clone(bell), declined_until: AtomicU64::new(0) });
        }
    }

    pub(super) fn is_possible(&self) -> bool {
        !self.idlers.is_empty()
    }

    /// All processors poll until then if they have nothing else to do.
    pub(super) fn keep(&self, own: ProcessorId, now: Instant, until: Instant) {
        self.until.fetch_max(until.ns(), Ordering::Relaxed);
        for (number, other) in self.idlers.iter().enumerate() {
            let Some(idler) = other.get().filter(|_| number != usize::from(own.0)) else { continue };
            if idler.bell.is_parked() && idler.declined_until.load(Ordering::Relaxed) < now.ns() {
                idler.bell.wake();
            }
        }
    }

    /// Until when `processor` polls for others.
    pub(super) fn until(&self, processor: ProcessorId) -> Instant {
        let idler = self.idlers.get(usize::from(processor.0)).and_then(OnceLock::get);
        let until = self.until.load(Ordering::Relaxed);
        let declined = idler.is_none_or(|idler| idler.declined_until.load(Ordering::Relaxed) >= until);
        Instant::from_ns(if declined { 0 } else { until })
    }

    pub(super) fn decline(&self, processor: ProcessorId, now: Instant) {
        if let Some(idler) = self.idlers.get(usize::from(processor.0)).and_then(OnceLock::get) {
            idler.declined_until.store((now + DECLINED).ns(), Ordering::Relaxed);
        }
    }
}

//! The write verifier (RFC 1813, 3.3.7: `writeverf3`).

use std::sync::atomic::{AtomicU64, Ordering};

use machine::tree::Time;

/// Of a tree; differs after every start, and changes whenever unstable writes may have been lost.
pub(super) struct Verifier(AtomicU64);

impl Verifier {
    pub(super) fn new(start: Time) -> Self {
        Verifier(AtomicU64::new((start.seconds as u64) << 32 ^ u64::from(start.nanoseconds) << 2))
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    pub(super) fn change(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

//! What all connections together keep of the cache's frames, so that none takes from the others what they need.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use policy::unit::BLOCK_BYTES;

use crate::connection::Service;
use crate::wait::WaitList;

/// One frame of so many may be kept ready for payload that is only predicted: connections that are idle have them too.
const PREDICTED_SHARE: u64 = 16;

/// One frame of so many may hold payload of requests under way. Beyond it, each connection has one request at a time.
const IN_FLIGHT_SHARE: u64 = 2;

/// One frame of so many may hold payload that is no whole blocks: to write it, more memory may be needed, and who waits
/// for that must leave some.
const EDGE_SHARE: u64 = 4;

/// The sums over all connections.
#[derive(Default)]
pub struct Kept {
    /// Frames ready for predicted payload.
    predicted: AtomicUsize,
    /// Payload of requests under way. Bytes.
    in_flight: AtomicU64,
    /// Frames of writes that are no whole blocks.
    edges: AtomicUsize,
    edges_wait: WaitList,
}

impl Kept {
    /// May payload of `bytes` more be under way beside other requests?
    pub(super) fn has_room(&self, bytes: u64, cache_blocks: u64) -> bool {
        self.in_flight.load(Ordering::Relaxed) + bytes <= cache_blocks * BLOCK_BYTES / IN_FLIGHT_SHARE
    }

    /// Payload of requests under way, in bytes.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Payload of so many bytes is under way.
    pub(super) fn add_in_flight(&self, bytes: u64) {
        self.in_flight.fetch_add(bytes, Ordering::Relaxed);
    }

    /// It is no more.
    pub(super) fn subtract_in_flight(&self, bytes: u64) {
        self.in_flight.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Does somebody wait for what others keep?
    pub(super) fn is_waited_for(&self) -> bool {
        !self.edges_wait.is_empty()
    }
}

/// Frames that one connection has ready for payload which may never come.
pub(super) struct Predicted {
    service: Arc<Service>,
    frames: usize,
}

impl Predicted {
    pub(super) fn new(service: &Arc<Service>) -> Self {
        Predicted { service: Arc::clone(service), frames: 0 }
    }

    /// How many this connection may have.
    pub(super) fn room(&self, cache_blocks: u64) -> usize {
        let others = self.service.kept().predicted.load(Ordering::Relaxed).saturating_sub(self.frames);
        ((cache_blocks / PREDICTED_SHARE) as usize).saturating_sub(others)
    }

    /// Takes note of how many it has.
    pub(super) fn set(&mut self, frames: usize) {
        let predicted = &self.service.kept().predicted;
        predicted.fetch_add(frames, Ordering::Relaxed);
        predicted.fetch_sub(std::mem::replace(&mut self.frames, frames), Ordering::Relaxed);
    }
}

impl Drop for Predicted {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The right to hold frames of a write that is no whole blocks.
pub struct EdgePermit {
    service: Arc<Service>,
    frames: usize,
}

impl EdgePermit {
    /// Waits until `frames` may be held. One always may.
    pub async fn take(service: &Arc<Service>, frames: usize, cache_blocks: u64) -> EdgePermit {
        let kept = service.kept();
        let most = (cache_blocks / EDGE_SHARE) as usize;
        let add = |used: usize| (used == 0 || used + frames <= most).then_some(used + frames);
        let take = || kept.edges.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).ok();
        kept.edges_wait.until(take).await;
        EdgePermit { service: Arc::clone(service), frames }
    }
}

impl Drop for EdgePermit {
    fn drop(&mut self) {
        let kept = self.service.kept();
        kept.edges.fetch_sub(self.frames, Ordering::SeqCst);
        kept.edges_wait.wake_all();
    }
}

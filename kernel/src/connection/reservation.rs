//! Limits on the cache's frames that all sessions of a protocol may hold, so that none starves the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use policy::unit::BLOCK_BYTES;

use super::Sessions;
use crate::processor::here;
use crate::trace::Event;
use crate::wait::WaitList;

/// One frame in this many may be reserved for predicted payload: idle connections hold those, too.
const PREDICTED_SHARE: u64 = 16;

/// One frame in this many may hold payload in flight. Beyond it, each connection has one request at a time.
const IN_FLIGHT_SHARE: u64 = 2;

/// One frame in this many may wait for payload that has begun to arrive, and may never complete.
const ARRIVING_SHARE: u64 = 2;

/// One frame in this many may hold payload that is not whole blocks: writing it may need more memory, which its waiters
/// must leave available.
const EDGE_SHARE: u64 = 4;

/// Dynamic threshold with a factor of 1 (Choudhury and Hahne 1998, "Dynamic queue length thresholds for shared-memory
/// packet switches"): where the others have `used`, `own` is granted if as much again stays free, so small requests are
/// granted even under load. First come, first served was tried: a few stuck writers of 1 MiB took everything, and all
/// others waited until those were disconnected.
fn admits(used: u64, own: u64, most: u64) -> bool {
    used.saturating_add(own.saturating_mul(2)) <= most
}

/// The sums over all connections of a protocol.
#[derive(Default)]
pub struct Reservations {
    /// Frames reserved for predicted payload.
    predicted: AtomicUsize,
    /// Payload of requests in flight, except a request without frames that is alone on its connection. Bytes.
    in_flight: AtomicU64,
    in_flight_wait: WaitList,
    /// Lets a release skip the wait list when it is empty.
    in_flight_waiters: AtomicUsize,
    /// Frames for payload that is arriving.
    arriving: Share,
    /// Frames of writes that are not whole blocks.
    edges: Share,
}

#[derive(Default)]
struct Share {
    used: AtomicU64,
    wait: WaitList,
}

impl Share {
    /// Waits until `frames` of `most` may be held. A single holder is always admitted.
    async fn take(&self, frames: u64, most: u64) {
        let add = |used: u64| (used == 0 || admits(used, frames, most)).then_some(used + frames);
        let take = || self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).ok();
        if take().is_some() {
            return;
        }
        let began = here().map(|cpu| (cpu.job(), cpu.begin(Event::PayloadAwaited, cpu.job()), cpu));
        self.wait.until(take).await;
        if let Some((job, began, cpu)) = began {
            cpu.end(began, Event::PayloadAwaited, job, frames, 0);
        }
    }

    fn give_back(&self, frames: u64) {
        self.used.fetch_sub(frames, Ordering::SeqCst);
        self.wait.wake_all();
    }
}

impl Reservations {
    /// May a connection that accounts for `counted` of the bytes in flight have `own` in flight?
    pub(super) fn has_room(&self, counted: u64, own: u64, cache_blocks: u64) -> bool {
        let others = self.in_flight().saturating_sub(counted);
        admits(others, own, cache_blocks * BLOCK_BYTES / IN_FLIGHT_SHARE)
    }

    /// Payload of requests in flight, except a request without frames that is alone on its connection (a WRITE whose
    /// data is arriving, a listing). Bytes.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Waits until `has_room`, or nothing is in flight.
    pub(super) async fn until(&self, has_room: impl Fn() -> bool) {
        if has_room() {
            return;
        }
        self.in_flight_waiters.fetch_add(1, Ordering::SeqCst);
        self.in_flight_wait.until(|| (self.in_flight() == 0 || has_room()).then_some(())).await;
        self.in_flight_waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// A connection's payload in flight changes from `before` to `now` bytes.
    pub(super) fn change_in_flight(&self, before: u64, now: u64) {
        if now > before {
            self.in_flight.fetch_add(now - before, Ordering::SeqCst);
        } else if now < before {
            self.in_flight.fetch_sub(before - now, Ordering::SeqCst);
            if self.in_flight_waiters.load(Ordering::SeqCst) > 0 {
                self.in_flight_wait.wake_all();
            }
        }
    }

    /// Frames for payload that is arriving.
    pub fn arriving(&self) -> u64 {
        self.arriving.used.load(Ordering::Relaxed)
    }

    /// Does any connection wait for what others hold?
    pub(super) fn has_waiters(&self) -> bool {
        self.in_flight_waiters.load(Ordering::SeqCst) > 0
            || !self.arriving.wait.is_empty()
            || !self.edges.wait.is_empty()
    }
}

/// One connection's frames reserved for payload that may never arrive.
pub(super) struct Predicted {
    sessions: Arc<Sessions>,
    frames: usize,
}

impl Predicted {
    pub(super) fn new(sessions: &Arc<Sessions>) -> Self {
        Predicted { sessions: Arc::clone(sessions), frames: 0 }
    }

    /// Frames that this connection may reserve.
    pub(super) fn budget(&self, cache_blocks: u64) -> usize {
        let others = self.sessions.reservations().predicted.load(Ordering::Relaxed).saturating_sub(self.frames);
        ((cache_blocks / PREDICTED_SHARE) as usize).saturating_sub(others)
    }

    /// Records the number of frames reserved.
    pub(super) fn set(&mut self, frames: usize) {
        let predicted = &self.sessions.reservations().predicted;
        predicted.fetch_add(frames, Ordering::Relaxed);
        predicted.fetch_sub(std::mem::replace(&mut self.frames, frames), Ordering::Relaxed);
    }
}

impl Drop for Predicted {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A grant of frames of a [`Share`], until dropped.
struct Right {
    sessions: Arc<Sessions>,
    of: fn(&Reservations) -> &Share,
    frames: u64,
}

impl Right {
    async fn take(sessions: &Arc<Sessions>, of: fn(&Reservations) -> &Share, frames: usize, most: u64) -> Right {
        of(sessions.reservations()).take(frames as u64, most).await;
        Right { sessions: Arc::clone(sessions), of, frames: frames as u64 }
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        (self.of)(self.sessions.reservations()).give_back(self.frames);
    }
}

/// A grant of frames for payload that has not arrived completely.
pub struct ArrivalPermit {
    _right: Right,
}

impl ArrivalPermit {
    /// Waits until `frames` may be held. Waiters must hold none. A single holder is always admitted.
    pub async fn take(sessions: &Arc<Sessions>, frames: usize, cache_blocks: u64) -> ArrivalPermit {
        let most = cache_blocks / ARRIVING_SHARE;
        ArrivalPermit { _right: Right::take(sessions, |all| &all.arriving, frames, most).await }
    }
}

/// A grant of frames for a write that is not whole blocks.
pub struct EdgePermit {
    _right: Right,
}

impl EdgePermit {
    /// Waits until `frames` may be held. A single holder is always admitted.
    pub async fn take(sessions: &Arc<Sessions>, frames: usize, cache_blocks: u64) -> EdgePermit {
        let most = cache_blocks / EDGE_SHARE;
        EdgePermit { _right: Right::take(sessions, |all| &all.edges, frames, most).await }
    }
}

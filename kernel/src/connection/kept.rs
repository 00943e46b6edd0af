//! What all connections together keep of the cache's frames, so that none takes from the others what they need.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use policy::unit::BLOCK_BYTES;

use crate::connection::Service;
use crate::processor::here;
use crate::trace::Event;
use crate::wait::WaitList;

/// One frame of so many may be kept ready for payload that is only predicted: connections that are idle have them too.
const PREDICTED_SHARE: u64 = 16;

/// One frame of so many may hold payload of requests under way. Beyond it, each connection has one request at a time.
const IN_FLIGHT_SHARE: u64 = 2;

/// One frame of so many may wait for payload that has begun to come, and may never end.
const ARRIVING_SHARE: u64 = 2;

/// One frame of so many may hold payload that is no whole blocks: to write it, more memory may be needed, and who waits
/// for that must leave some.
const EDGE_SHARE: u64 = 4;

/// Where the others have `used`, who wants `own` may have it if as much again stays free: however many have taken all that
/// they could, who asks for little finds room (Choudhury and Hahne 1998, "Dynamic queue length thresholds for
/// shared-memory packet switches", with a factor of 1). First come, first served was tried: a few stuck writers of 1 MiB
/// took all, and everybody waited until they were disconnected.
fn leaves_room(used: u64, own: u64, most: u64) -> bool {
    used.saturating_add(own.saturating_mul(2)) <= most
}

/// The sums over all connections.
#[derive(Default)]
pub struct Kept {
    /// Frames ready for predicted payload.
    predicted: AtomicUsize,
    /// Payload of requests under way, but for that of one without frames which is alone on its connection. Bytes.
    in_flight: AtomicU64,
    in_flight_wait: WaitList,
    /// How many wait there: who only gives back need not look into the list.
    in_flight_waiting: AtomicUsize,
    /// For payload that comes in.
    arriving: Share,
    /// For writes that are no whole blocks.
    edges: Share,
}

/// Frames of which there are only so many.
#[derive(Default)]
struct Share {
    used: AtomicU64,
    wait: WaitList,
}

impl Share {
    /// Waits until `frames` of `most` may be held. One holder always may.
    async fn take(&self, frames: u64, most: u64) {
        let add = |used: u64| (used == 0 || leaves_room(used, frames, most)).then_some(used + frames);
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

impl Kept {
    /// May a connection, of which `counted` bytes are among those under way, have `own` under way?
    pub(super) fn has_room(&self, counted: u64, own: u64, cache_blocks: u64) -> bool {
        let others = self.in_flight().saturating_sub(counted);
        leaves_room(others, own, cache_blocks * BLOCK_BYTES / IN_FLIGHT_SHARE)
    }

    /// Payload of requests under way, but for that of a request without frames which is alone on its connection: a WRITE
    /// whose data comes in, a list. Bytes.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Waits until there is room for payload, or nobody else has any.
    pub(super) async fn until(&self, has_room: impl Fn() -> bool) {
        if has_room() {
            return;
        }
        self.in_flight_waiting.fetch_add(1, Ordering::SeqCst);
        self.in_flight_wait.until(|| (self.in_flight() == 0 || has_room()).then_some(())).await;
        self.in_flight_waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// A connection has so much of it now.
    pub(super) fn change_in_flight(&self, before: u64, now: u64) {
        if now > before {
            self.in_flight.fetch_add(now - before, Ordering::SeqCst);
        } else if now < before {
            self.in_flight.fetch_sub(before - now, Ordering::SeqCst);
            if self.in_flight_waiting.load(Ordering::SeqCst) > 0 {
                self.in_flight_wait.wake_all();
            }
        }
    }

    /// Frames that payload comes into.
    pub fn arriving(&self) -> u64 {
        self.arriving.used.load(Ordering::Relaxed)
    }

    /// Does somebody wait for what others keep?
    pub(super) fn is_waited_for(&self) -> bool {
        self.in_flight_waiting.load(Ordering::SeqCst) > 0
            || !self.arriving.wait.is_empty()
            || !self.edges.wait.is_empty()
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

/// The right to hold frames of a [`Share`], up to the end of this value.
struct Right {
    service: Arc<Service>,
    of: fn(&Kept) -> &Share,
    frames: u64,
}

impl Right {
    async fn take(service: &Arc<Service>, of: fn(&Kept) -> &Share, frames: usize, most: u64) -> Right {
        of(service.kept()).take(frames as u64, most).await;
        Right { service: Arc::clone(service), of, frames: frames as u64 }
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        (self.of)(self.service.kept()).give_back(self.frames);
    }
}

/// The right to hold frames for payload that is not there yet. It ends when all of it is.
pub struct ArrivalPermit {
    _right: Right,
}

impl ArrivalPermit {
    /// Waits until `frames` may be held; who waits must hold none. One connection always may.
    pub async fn take(service: &Arc<Service>, frames: usize, cache_blocks: u64) -> ArrivalPermit {
        let most = cache_blocks / ARRIVING_SHARE;
        ArrivalPermit { _right: Right::take(service, |kept| &kept.arriving, frames, most).await }
    }
}

/// The right to hold frames of a write that is no whole blocks.
pub struct EdgePermit {
    _right: Right,
}

impl EdgePermit {
    /// Waits until `frames` may be held. One connection always may.
    pub async fn take(service: &Arc<Service>, frames: usize, cache_blocks: u64) -> EdgePermit {
        let most = cache_blocks / EDGE_SHARE;
        EdgePermit { _right: Right::take(service, |kept| &kept.edges, frames, most).await }
    }
}

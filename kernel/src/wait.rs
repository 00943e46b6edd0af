//! Waiting for events of other tasks.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use policy::unit::BlockRange;
use slab::Slab;
use smallvec::SmallVec;

#[cfg(test)]
mod tests;

/// Wakers of waiters, one slot each. A waiter that is polled again reuses its slot, and frees it when dropped.
///
/// Not `event-listener`: it allocates for each wait, and cannot notify the waiters of a range only.
///
/// Lock order: innermost. While slots are locked nothing else is, and no waker is woken.
#[derive(Debug)]
struct Slots<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    slots: Slab<Slot<T>>,
    /// Number of the newest slot.
    last: u64,
}

#[derive(Debug)]
struct Slot<T> {
    /// Never reused, unlike keys, which are free once their slot was notified.
    number: u64,
    what: T,
    waker: Waker,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { state: Mutex::new(State { slots: Slab::new(), last: 0 }) }
    }
}

impl<T> Slots<T> {
    /// Wakes those that wait for what concerns them.
    fn wake_if(&self, is_concerned: impl Fn(&T) -> bool) {
        let mut state = self.state.lock();
        if state.slots.is_empty() {
            return;
        }
        let mut woken: SmallVec<[Waker; 4]> = SmallVec::new();
        let concerned = state.slots.iter().filter(|(_, slot)| is_concerned(&slot.what));
        let concerned: SmallVec<[usize; 4]> = concerned.map(|(key, _)| key).collect();
        woken.extend(concerned.into_iter().map(|key| state.slots.remove(key).waker));
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` is true. Called at once and after every event that concerns `what`.
    async fn until(&self, what: impl Fn() -> T, ready: impl Fn() -> bool) {
        let mut place = Place::new(self);
        poll_fn(|cx| {
            if ready() {
                return Poll::Ready(());
            }
            place.register(&what, cx.waker());
            // It may have changed between the check and the registration.
            if ready() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

struct Place<'a, T> {
    slots: &'a Slots<T>,
    /// Key and number of its slot.
    taken: Option<(usize, u64)>,
}

impl<'a, T> Place<'a, T> {
    fn new(slots: &'a Slots<T>) -> Self {
        Place { slots, taken: None }
    }

    /// Registers `waker` for the next notification.
    fn register(&mut self, what: impl FnOnce() -> T, waker: &Waker) {
        let mut state = self.slots.state.lock();
        let state = &mut *state;
        let own = self.taken.and_then(|(key, number)| state.slots.get_mut(key).filter(|slot| slot.number == number));
        if let Some(slot) = own {
            // Usually the same task, except with `join_all` and the like.
            if !slot.waker.will_wake(waker) {
                slot.waker.clone_from(waker);
            }
            return;
        }
        state.last += 1;
        let key = state.slots.insert(Slot { number: state.last, what: what(), waker: waker.clone() });
        self.taken = Some((key, state.last));
    }
}

impl<T> Drop for Place<'_, T> {
    fn drop(&mut self) {
        let Some((key, number)) = self.taken else { return };
        let mut state = self.slots.state.lock();
        let is_own = state.slots.get(key).is_some_and(|slot| slot.number == number);
        let slot = is_own.then(|| state.slots.remove(key));
        drop(state);
        drop(slot);
    }
}

/// Tasks that wait for a condition, and are notified when it may have changed.
#[derive(Debug, Default)]
pub struct WaitList {
    slots: Slots<()>,
}

impl WaitList {
    /// Wakes all waiters; each checks its condition again.
    pub fn wake_all(&self) {
        let mut state = self.slots.state.lock();
        if state.slots.is_empty() {
            return;
        }
        let slots = std::mem::take(&mut state.slots);
        drop(state);
        slots.into_iter().for_each(|(_, slot)| slot.waker.wake());
    }

    pub fn is_empty(&self) -> bool {
        self.slots.state.lock().slots.is_empty()
    }

    /// Waits until `ready` returns a value. Called at once and after every [`wake_all`](Self::wake_all).
    pub async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        let mut place = Place::new(&self.slots);
        poll_fn(|cx| {
            if let Some(value) = ready() {
                return Poll::Ready(value);
            }
            place.register(|| (), cx.waker());
            // The condition may have changed between the check and the registration.
            match ready() {
                Some(value) => Poll::Ready(value),
                None => Poll::Pending,
            }
        })
        .await
    }
}

/// A lock that a task may hold while it waits.
#[derive(Debug, Default)]
pub struct TaskMutex {
    is_locked: AtomicBool,
    unlocked: WaitList,
}

impl TaskMutex {
    /// Waits for the lock, which is held until the result is dropped.
    pub async fn lock(&self) -> TaskMutexGuard<'_> {
        self.unlocked.until(|| (!self.is_locked.swap(true, Ordering::AcqRel)).then_some(())).await;
        TaskMutexGuard(self)
    }
}

/// Holds a [`TaskMutex`].
#[must_use]
pub struct TaskMutexGuard<'a>(&'a TaskMutex);

impl Drop for TaskMutexGuard<'_> {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Ordering::Release);
        self.0.unlocked.wake_all();
    }
}

/// Tasks that wait for events on a range of blocks. Only those whose range is affected are woken.
#[derive(Debug, Default)]
pub(crate) struct RangeWaitList {
    slots: Slots<BlockRange>,
}

impl RangeWaitList {
    /// Wakes the waiters for any of `blocks`; each checks its condition again.
    pub(crate) fn wake(&self, blocks: BlockRange) {
        self.slots.wake_if(|what| what.overlaps(blocks));
    }

    /// Waits until `ready` is true. Called at once and after every event on any of `blocks`.
    pub(crate) async fn until(&self, blocks: BlockRange, ready: impl Fn() -> bool) {
        self.slots.until(|| blocks, ready).await;
    }
}

/// Tasks that wait until all that was begun up to a number has ended. Only those for which it has are woken.
#[derive(Debug, Default)]
pub(crate) struct SequenceWaitList {
    slots: Slots<u64>,
}

impl SequenceWaitList {
    /// Wakes the waiters for numbers below `oldest`, the first that has not ended.
    pub(crate) fn wake(&self, oldest: u64) {
        self.slots.wake_if(|&number| number < oldest);
    }

    /// Waits until `ready` is true. Called at once and after every [`wake`](Self::wake) beyond `number`.
    pub(crate) async fn until(&self, number: u64, ready: impl Fn() -> bool) {
        self.slots.until(|| number, ready).await;
    }
}

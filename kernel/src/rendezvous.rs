//! The rendezvous (WS-5): those who want something flushed share one flush. `policy/gather` decides when it starts.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use machine::Errno;
use policy::gather::{Gather, Present, Start};
use policy::unit::Instant;

use crate::processor::Processor;
use crate::wait::WaitList;

/// Where groups form that want a flush. `W` is what is to be flushed, all together.
#[derive(Default)]
pub(crate) struct Rendezvous<W> {
    state: Mutex<State<W>>,
    /// Somebody came, or the flush under way ended.
    changed: WaitList,
}

#[derive(Default)]
struct State<W> {
    policy: Gather,
    /// Somebody flushes, or is about to.
    running: bool,
    forming: Arc<Round>,
    wanted: W,
    /// Those who wait for their turn alone, by number; how many there have been.
    line: VecDeque<u64>,
    places: u64,
}

/// Those who share one flush.
#[derive(Default)]
pub(crate) struct Round {
    result: Mutex<Option<Result<(), Errno>>>,
    wait: WaitList,
}

impl Round {
    /// Waits for the end of the flush.
    pub(crate) async fn result(&self) -> Result<(), Errno> {
        self.wait.until(|| *lock(&self.result)).await
    }

    fn end(&self, result: Result<(), Errno>) {
        *lock(&self.result) = Some(result);
        self.wait.wake_all();
    }
}

impl<W: Default> Rendezvous<W> {
    /// Joins the group that forms; `want` adds to what is to be flushed. When the second value is true nobody leads: the
    /// caller must spawn a task that does ([`Rendezvous::lead`]).
    pub(crate) fn join(&self, cpu: &Processor, want: impl FnOnce(&mut W)) -> (Arc<Round>, bool) {
        let mut state = lock(&self.state);
        want(&mut state.wanted);
        state.policy.on_arrival(cpu.now());
        let round = Arc::clone(&state.forming);
        let is_first = !std::mem::replace(&mut state.running, true);
        drop(state);
        self.changed.wake_all();
        (round, is_first)
    }

    /// Says that the caller will want a flush when its data is on the disk: as soon as what is returned is dropped.
    pub(crate) fn announce(&self, cpu: &Processor) -> Announced<'_, W> {
        lock(&self.state).policy.on_announced(cpu.now());
        Announced(self)
    }

    /// Is whoever asks, and has announced it, the only one who will want a flush, as far as is known?
    pub(crate) fn is_alone(&self) -> bool {
        let state = lock(&self.state);
        !state.running && state.policy.is_alone()
    }

    /// Is a flush under way, or about to be?
    pub(crate) fn is_running(&self) -> bool {
        lock(&self.state).running
    }

    /// Flushes for those who have come, then for the group that formed meanwhile, until nobody came.
    pub(crate) async fn lead(&self, cpu: &Processor, flush: impl AsyncFn(W) -> Result<(), Errno>) {
        while let Some((round, wanted)) = self.next_round(cpu).await {
            let result = flush(wanted).await;
            lock(&self.state).policy.on_end(cpu.now());
            round.end(result);
            // Who wrote while the flush was under way and now wants one is in the next group, too.
            cpu.yield_now().await;
        }
    }

    /// Waits for the right to flush for nobody else, when those before have ended.
    pub(crate) async fn turn(&self) -> Turn<'_, W> {
        let place = Place::new(self);
        self.changed.until(|| place.try_leave().then_some(())).await;
        Turn(self)
    }

    async fn next_round(&self, cpu: &Processor) -> Option<(Arc<Round>, W)> {
        loop {
            let (at, seen) = {
                let mut state = lock(&self.state);
                let formed = state.policy.forming();
                if formed == 0 {
                    state.running = false;
                    drop(state);
                    self.changed.wake_all();
                    return None;
                }
                match state.policy.start(cpu.now()) {
                    Start::Now => {
                        state.policy.on_start(cpu.now());
                        return Some((std::mem::take(&mut state.forming), std::mem::take(&mut state.wanted)));
                    }
                    Start::At(at) => (at, state.policy.present()),
                }
            };
            self.until_changed(cpu, seen, at).await;
        }
    }

    /// Waits until others are there or on their way than were `seen`, at the latest until `end`.
    async fn until_changed(&self, cpu: &Processor, seen: Present, end: Instant) {
        let mut timer = Some(end);
        let is_over = || (cpu.now() >= end || lock(&self.state).policy.present() != seen).then_some(());
        poll_fn(|cx| {
            if let Some(end) = timer.take() {
                cpu.wake_at(end, cx.waker().clone());
            }
            Poll::Ready(())
        })
        .await;
        self.changed.until(is_over).await;
    }
}

/// Somebody whose data is on its way.
pub(crate) struct Announced<'a, W: Default>(&'a Rendezvous<W>);

impl<W: Default> Drop for Announced<'_, W> {
    fn drop(&mut self) {
        lock(&self.0.state).policy.on_there();
        self.0.changed.wake_all();
    }
}

/// A place in the line of those who flush for nobody else.
struct Place<'a, W: Default> {
    rendezvous: &'a Rendezvous<W>,
    number: u64,
}

impl<'a, W: Default> Place<'a, W> {
    fn new(rendezvous: &'a Rendezvous<W>) -> Self {
        let mut state = lock(&rendezvous.state);
        state.places += 1;
        let number = state.places;
        state.line.push_back(number);
        Place { rendezvous, number }
    }

    /// Is it one's turn? Then it is taken.
    fn try_leave(&self) -> bool {
        let mut state = lock(&self.rendezvous.state);
        if state.running || state.line.front() != Some(&self.number) {
            return false;
        }
        state.line.pop_front();
        state.running = true;
        true
    }
}

impl<W: Default> Drop for Place<'_, W> {
    fn drop(&mut self) {
        // Who does not wait any more must not keep the others waiting.
        lock(&self.rendezvous.state).line.retain(|number| *number != self.number);
    }
}

/// The right to flush alone, while it lasts.
pub(crate) struct Turn<'a, W: Default>(&'a Rendezvous<W>);

impl<W: Default> Drop for Turn<'_, W> {
    fn drop(&mut self) {
        lock(&self.0.state).running = false;
        self.0.changed.wake_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

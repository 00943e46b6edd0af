//! The rendezvous (WS-5): concurrent callers share one flush. `policy/gather` decides when it starts.
//!
//! While the switch is being changed, some callers share and others flush alone. To prevent starvation, a group that
//! forms during a lone flush gets a leader when that ends, and a leader yields to callers that wait to flush alone.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use machine::Errno;
use policy::gather::{Gather, Start};
use policy::unit::Instant;

use crate::processor::Processor;
use crate::wait::WaitList;

/// `W` is what to flush, the union of all callers' wants.
#[derive(Default)]
pub(crate) struct Rendezvous<W> {
    state: Mutex<State<W>>,
    /// A caller arrived, or the flush in flight ended.
    changed: WaitList,
}

#[derive(Default)]
struct State<W> {
    policy: Gather,
    /// A flush is in flight or about to start.
    running: bool,
    forming: Arc<Round>,
    wanted: W,
    /// When the leader will start the flush, while it waits for more to join.
    planned: Option<Instant>,
    /// Numbers of the callers that wait to flush alone; the last number given.
    line: VecDeque<u64>,
    places: u64,
}

/// The callers that share one flush.
#[derive(Default)]
pub(crate) struct Round {
    result: Mutex<Option<Result<(), Errno>>>,
    wait: WaitList,
}

impl Round {
    fn end(&self, result: Result<(), Errno>) {
        *lock(&self.result) = Some(result);
        self.wait.wake_all();
    }
}

impl<W: Default> Rendezvous<W> {
    /// Joins the forming group and waits for the end of its flush. `want` adds to what to flush; `write` is the
    /// completed write to flush, if it was announced. `lead` is called if the group has no leader, and must spawn a
    /// task that [leads](Rendezvous::lead).
    pub(crate) async fn share(
        &self,
        cpu: &Processor,
        write: Option<WriteInFlight<'_, W>>,
        want: impl FnOnce(&mut W),
        lead: impl Fn(),
    ) -> Result<(), Errno> {
        let (round, mut leads) = self.join(cpu, write, want);
        loop {
            if leads {
                lead();
            }
            let ended = || lock(&round.result).map(Some).or_else(|| self.try_lead(&round).then_some(None));
            match round.wait.until(ended).await {
                Some(result) => return result,
                None => leads = true,
            }
        }
    }

    /// Is the group without a leader after a lone flush has ended? Then the caller must lead.
    fn try_lead(&self, round: &Arc<Round>) -> bool {
        let mut state = lock(&self.state);
        let is_left = !state.running && state.line.is_empty() && Arc::ptr_eq(&state.forming, round);
        state.running |= is_left;
        is_left
    }

    /// Joins the forming group. The second value: does it need a leader?
    fn join(
        &self,
        cpu: &Processor,
        write: Option<WriteInFlight<'_, W>>,
        want: impl FnOnce(&mut W),
    ) -> (Arc<Round>, bool) {
        let now = cpu.now();
        let mut state = lock(&self.state);
        want(&mut state.wanted);
        match write {
            Some(write) => {
                std::mem::forget(write);
                state.policy.on_write_completed(now);
            }
            None => state.policy.on_arrival(now),
        }
        let round = Arc::clone(&state.forming);
        let is_first = !std::mem::replace(&mut state.running, true);
        let is_due = state.is_due(now);
        drop(state);
        if is_due {
            self.changed.wake_all();
        }
        (round, is_first)
    }

    /// Announces a write that will need a flush when it completes.
    pub(crate) fn begin_write<'a>(&'a self, cpu: &'a Processor) -> WriteInFlight<'a, W> {
        lock(&self.state).policy.on_write_issued(cpu.now());
        WriteInFlight { rendezvous: self, cpu }
    }

    /// Is the caller's write the only one in flight, and no other expected?
    pub(crate) fn is_alone(&self, cpu: &Processor) -> bool {
        let mut state = lock(&self.state);
        !state.running && state.policy.is_alone(cpu.now())
    }

    /// Is a flush in flight or about to start?
    pub(crate) fn is_running(&self) -> bool {
        lock(&self.state).running
    }

    /// Flushes for the present group, then for groups that formed meanwhile, until there is none.
    pub(crate) async fn lead(&self, cpu: &Processor, flush: impl AsyncFn(W) -> Result<(), Errno>) {
        let mut has_led = false;
        while let Some((round, wanted)) = self.next_round(cpu, has_led).await {
            has_led = true;
            let result = flush(wanted).await;
            lock(&self.state).policy.on_end(cpu.now());
            round.end(result);
            // Writers that completed during the flush and now need one join the next group, too.
            cpu.yield_now().await;
        }
    }

    /// Waits for the right to flush alone, after earlier flushes have ended.
    pub(crate) async fn turn(&self) -> Turn<'_, W> {
        let place = Place::new(self);
        self.changed.until(|| place.try_leave().then_some(())).await;
        Turn(self)
    }

    /// The group to flush for now; `None` if there is none, or if a lone flush is next.
    async fn next_round(&self, cpu: &Processor, has_led: bool) -> Option<(Arc<Round>, W)> {
        loop {
            let at = {
                let now = cpu.now();
                let mut state = lock(&self.state);
                let is_over = state.policy.waiting() == 0 || has_led && !state.line.is_empty();
                if is_over {
                    drop(state);
                    self.release();
                    return None;
                }
                match state.policy.start(now) {
                    Start::Now => {
                        state.planned = None;
                        state.policy.on_start(now);
                        return Some((std::mem::take(&mut state.forming), std::mem::take(&mut state.wanted)));
                    }
                    Start::At(at) => {
                        state.planned = Some(at);
                        at
                    }
                }
            };
            self.until_due(cpu, at).await;
        }
    }

    /// No flush is in flight any more: wakes waiters for a lone flush and for a leader.
    fn release(&self) {
        let forming = {
            let mut state = lock(&self.state);
            state.running = false;
            Arc::clone(&state.forming)
        };
        self.changed.wake_all();
        forming.wait.wake_all();
    }

    /// Waits until `planned`, or until an arrival makes waiting longer useless.
    async fn until_due(&self, cpu: &Processor, planned: Instant) {
        let mut timer = Some(planned);
        poll_fn(|cx| {
            if let Some(planned) = timer.take() {
                cpu.wake_at(planned, cx.waker().clone());
            }
            Poll::Ready(())
        })
        .await;
        let is_due = || (cpu.now() >= planned || lock(&self.state).is_due(cpu.now())).then_some(());
        self.changed.until(is_due).await;
    }
}

impl<W> State<W> {
    /// Is a leader waiting that should start sooner than planned?
    fn is_due(&self, now: Instant) -> bool {
        self.planned.is_some_and(|planned| match self.policy.start(now) {
            Start::Now => true,
            Start::At(at) => at < planned,
        })
    }
}

/// A write in flight that will need a flush; dropping it withdraws that.
pub(crate) struct WriteInFlight<'a, W: Default> {
    rendezvous: &'a Rendezvous<W>,
    cpu: &'a Processor,
}

impl<W: Default> Drop for WriteInFlight<'_, W> {
    fn drop(&mut self) {
        let is_due = {
            let mut state = lock(&self.rendezvous.state);
            let now = self.cpu.now();
            state.policy.on_write_abandoned(now);
            state.is_due(now)
        };
        if is_due {
            self.rendezvous.changed.wake_all();
        }
    }
}

/// A place in the queue for lone flushes.
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

    /// Takes the right to flush, if this place is first and no flush is in flight.
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
        // An abandoned place must not block the others.
        let (gave_up, forming) = {
            let mut state = lock(&self.rendezvous.state);
            let before = state.line.len();
            state.line.retain(|number| *number != self.number);
            (state.line.len() < before, Arc::clone(&state.forming))
        };
        if gave_up {
            self.rendezvous.changed.wake_all();
            forming.wait.wake_all();
        }
    }
}

/// The right to flush alone, until dropped.
pub(crate) struct Turn<'a, W: Default>(&'a Rendezvous<W>);

impl<W: Default> Drop for Turn<'_, W> {
    fn drop(&mut self) {
        self.0.release();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

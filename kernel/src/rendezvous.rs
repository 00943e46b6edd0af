//! The rendezvous (WS-5): those who want something flushed share one flush. `policy/gather` decides when it starts.
//!
//! Some may want to share and others to be alone at the same time, while the switch is being changed: a group that
//! forms while somebody flushes alone finds its leader when that ends, and a leader lets those go first who wait for
//! their turn, so that neither keeps the other waiting for ever.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use machine::Errno;
use parking_lot::Mutex;
use policy::gather::{Gather, Start};
use policy::unit::Instant;

use crate::processor::Processor;
use crate::wait::WaitList;

/// Where groups form that want a flush. `W` is what is to be flushed, all together.
#[derive(Default)]
pub(crate) struct Rendezvous<W> {
    state: Mutex<State<W>>,
    /// All writers that were expected have arrived, or the flush in flight ended.
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
    fn end(&self, result: Result<(), Errno>) {
        *self.result.lock() = Some(result);
        self.wait.wake_all();
    }
}

impl<W: Default> Rendezvous<W> {
    /// Joins the group that forms and waits for the end of its flush; `want` adds to what is to be flushed. `lead` is
    /// called when nobody leads, and must spawn a task that does ([`Rendezvous::lead`]).
    pub(crate) async fn share(&self, cpu: &Processor, want: impl FnOnce(&mut W), lead: impl Fn()) -> Result<(), Errno> {
        let (round, mut leads) = self.join(cpu, want);
        loop {
            if leads {
                lead();
            }
            let ended = || round.result.lock().map(Some).or_else(|| self.try_lead(&round).then_some(None));
            match round.wait.until(ended).await {
                Some(result) => return result,
                None => leads = true,
            }
        }
    }

    /// Has nobody led this group since whoever was alone has ended? Then the caller must.
    fn try_lead(&self, round: &Arc<Round>) -> bool {
        let mut state = self.state.lock();
        let is_left = !state.running && state.line.is_empty() && Arc::ptr_eq(&state.forming, round);
        state.running |= is_left;
        is_left
    }

    /// Joins the group that forms. When the second value is true nobody leads.
    fn join(&self, cpu: &Processor, want: impl FnOnce(&mut W)) -> (Arc<Round>, bool) {
        let mut state = self.state.lock();
        want(&mut state.wanted);
        state.policy.on_arrival(cpu.now());
        let round = Arc::clone(&state.forming);
        let is_first = !std::mem::replace(&mut state.running, true);
        let is_complete = state.policy.is_complete();
        drop(state);
        if is_complete {
            self.changed.wake_all();
        }
        (round, is_first)
    }

    /// Says that the caller will want a flush when its data is on the disk: as soon as what is returned is dropped.
    pub(crate) fn announce<'a>(&'a self, cpu: &'a Processor) -> Announced<'a, W> {
        self.state.lock().policy.on_data_issued(cpu.now());
        Announced { rendezvous: self, cpu, is_forced: false }
    }

    /// Is whoever asks, and has announced it, the only one who will want a flush, as far as is known?
    pub(crate) fn is_alone(&self) -> bool {
        let state = self.state.lock();
        !state.running && state.policy.is_alone()
    }

    /// Is a flush under way, or about to be?
    pub(crate) fn is_running(&self) -> bool {
        self.state.lock().running
    }

    /// Flushes for those who have come, then for the group that formed meanwhile, until nobody came.
    pub(crate) async fn lead(&self, cpu: &Processor, flush: impl AsyncFn(W) -> Result<(), Errno>) {
        let mut has_led = false;
        while let Some((round, wanted)) = self.next_round(cpu, has_led).await {
            has_led = true;
            let result = flush(wanted).await;
            self.state.lock().policy.on_end(cpu.now());
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

    /// The group to flush for now; `None` when nobody came, or when it is others' turn.
    async fn next_round(&self, cpu: &Processor, has_led: bool) -> Option<(Arc<Round>, W)> {
        loop {
            let deadline = {
                let mut state = self.state.lock();
                let is_over = state.policy.waiting() == 0 || has_led && !state.line.is_empty();
                if is_over {
                    drop(state);
                    self.release();
                    return None;
                }
                match state.policy.start(cpu.now()) {
                    Start::Now => {
                        state.policy.on_start(cpu.now());
                        return Some((std::mem::take(&mut state.forming), std::mem::take(&mut state.wanted)));
                    }
                    Start::At(deadline) => deadline,
                }
            };
            self.until_complete(cpu, deadline).await;
        }
    }

    /// Nobody flushes any more: who waits for a turn, or for a leader, is told.
    fn release(&self) {
        let forming = {
            let mut state = self.state.lock();
            state.running = false;
            Arc::clone(&state.forming)
        };
        self.changed.wake_all();
        forming.wait.wake_all();
    }

    /// Waits for all writers that are expected, at the latest until `deadline`.
    async fn until_complete(&self, cpu: &Processor, deadline: Instant) {
        let mut timer = Some(deadline);
        let is_over = || (cpu.now() >= deadline || self.state.lock().policy.is_complete()).then_some(());
        poll_fn(|cx| {
            if let Some(deadline) = timer.take() {
                cpu.wake_at(deadline, cx.waker().clone());
            }
            Poll::Ready(())
        })
        .await;
        self.changed.until(is_over).await;
    }
}

/// A writer whose data is in flight.
pub(crate) struct Announced<'a, W: Default> {
    rendezvous: &'a Rendezvous<W>,
    cpu: &'a Processor,
    is_forced: bool,
}

impl<W: Default> Announced<'_, W> {
    /// The data is durable: no flush is wanted.
    pub(crate) fn end_forced(mut self) {
        self.is_forced = true;
    }
}

impl<W: Default> Drop for Announced<'_, W> {
    fn drop(&mut self) {
        let (now, policy) = (self.cpu.now(), &mut self.rendezvous.state.lock().policy);
        if self.is_forced { policy.on_forced(now) } else { policy.on_data_done(now) }
    }
}

/// A place in the line of those who flush for nobody else.
struct Place<'a, W: Default> {
    rendezvous: &'a Rendezvous<W>,
    number: u64,
}

impl<'a, W: Default> Place<'a, W> {
    fn new(rendezvous: &'a Rendezvous<W>) -> Self {
        let mut state = rendezvous.state.lock();
        state.places += 1;
        let number = state.places;
        state.line.push_back(number);
        Place { rendezvous, number }
    }

    /// Is it one's turn? Then it is taken.
    fn try_leave(&self) -> bool {
        let mut state = self.rendezvous.state.lock();
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
        let (gave_up, forming) = {
            let mut state = self.rendezvous.state.lock();
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

/// The right to flush alone, while it lasts.
pub(crate) struct Turn<'a, W: Default>(&'a Rendezvous<W>);

impl<W: Default> Drop for Turn<'_, W> {
    fn drop(&mut self) {
        self.0.release();
    }
}

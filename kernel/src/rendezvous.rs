//! The rendezvous (WS-5): concurrent callers that want something flushed share one flush. `policy/gather` decides when
//! it starts.
//!
//! While the switch is being changed, some callers share and others flush alone. Neither may starve the other: a group
//! that forms during an exclusive flush gets its leader at the end of that flush, and a leader stops after each flush
//! while callers wait for an exclusive one.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use machine::Errno;
use parking_lot::{Mutex, MutexGuard};
use policy::gather::{Gather, Start};
use policy::unit::Instant;

use crate::processor::Processor;
use crate::wait::WaitList;

/// Forms groups of callers that share a flush. `W`: what is to be flushed, the union over a group.
#[derive(Default)]
pub struct Rendezvous<W> {
    state: Mutex<State<W>>,
    /// Woken when all expected writers have arrived, and when the right to flush becomes free.
    changed: WaitList,
}

#[derive(Default)]
struct State<W> {
    policy: Gather,
    /// The right to flush is taken, by a leader or an exclusive flush.
    is_taken: bool,
    forming: Arc<Group>,
    wanted: W,
    /// Waiters for an exclusive flush, by ticket number.
    exclusive: VecDeque<u64>,
    tickets: u64,
}

/// The callers of one flush.
#[derive(Default)]
pub struct Group {
    result: Mutex<Option<Result<(), Errno>>>,
    /// Woken when there is a result, and when the group needs a leader.
    changed: WaitList,
}

impl Group {
    fn end(&self, result: Result<(), Errno>) {
        *self.result.lock() = Some(result);
        self.changed.wake_all();
    }
}

impl<W: Default> Rendezvous<W> {
    /// Joins the group that is forming and waits for the end of its flush; `want` adds to what is to be flushed. `lead`
    /// is called if the group has no leader, and must spawn a task that leads ([`Rendezvous::lead`]).
    pub(crate) async fn share(&self, cpu: &Processor, want: impl FnOnce(&mut W), lead: impl Fn()) -> Result<(), Errno> {
        self.share_as(cpu, 1, want, lead).await
    }

    /// As [`Rendezvous::share`], for so many callers.
    pub(crate) async fn share_as(
        &self,
        cpu: &Processor,
        callers: u32,
        want: impl FnOnce(&mut W),
        lead: impl Fn(),
    ) -> Result<(), Errno> {
        let group = self.join_as(cpu, callers, want, &lead);
        self.ended(&group, lead).await
    }

    /// Joins the group that is forming; [`Rendezvous::share`] in two steps, of which this one does not wait.
    pub fn join(&self, cpu: &Processor, want: impl FnOnce(&mut W), lead: impl Fn()) -> Arc<Group> {
        self.join_as(cpu, 1, want, lead)
    }

    fn join_as(&self, cpu: &Processor, callers: u32, want: impl FnOnce(&mut W), lead: impl Fn()) -> Arc<Group> {
        let (group, needs_leader) = self.enter(cpu, callers, want);
        if needs_leader {
            lead();
        }
        group
    }

    /// Waits for the end of a group's flush.
    pub async fn ended(&self, group: &Arc<Group>, lead: impl Fn()) -> Result<(), Errno> {
        loop {
            let ended = || group.result.lock().map(Some).or_else(|| self.try_lead(group).then_some(None));
            match group.changed.until(ended).await {
                Some(result) => return result,
                None => lead(),
            }
        }
    }

    /// Takes the right to flush for a group that was left without a leader by an exclusive flush. If it returns true,
    /// the caller must provide one.
    fn try_lead(&self, group: &Arc<Group>) -> bool {
        let mut state = self.state.lock();
        let is_left = !state.is_taken && state.exclusive.is_empty() && Arc::ptr_eq(&state.forming, group);
        state.is_taken |= is_left;
        is_left
    }

    /// If the second value is true, the caller must provide a leader.
    fn enter(&self, cpu: &Processor, callers: u32, want: impl FnOnce(&mut W)) -> (Arc<Group>, bool) {
        let mut state = self.state.lock();
        want(&mut state.wanted);
        state.policy.on_arrival(cpu.now(), callers);
        let group = Arc::clone(&state.forming);
        let needs_leader = !std::mem::replace(&mut state.is_taken, true);
        let is_complete = state.policy.is_complete();
        drop(state);
        if is_complete {
            self.changed.wake_all();
        }
        (group, needs_leader)
    }

    /// Announces that the caller will want a flush when its data is on the disk, which is when the result is dropped.
    pub(crate) fn announce<'a>(&'a self, cpu: &'a Processor) -> Announced<'a, W> {
        self.announce_as(cpu, 1)
    }

    /// As [`Rendezvous::announce`], for so many callers.
    pub(crate) fn announce_as<'a>(&'a self, cpu: &'a Processor, callers: u32) -> Announced<'a, W> {
        self.state.lock().policy.on_data_issued(cpu.now(), callers);
        self.announced(cpu, callers)
    }

    /// So many callers have announced themselves, and left it to this one to say when their data is on the disk.
    pub(crate) fn announced<'a>(&'a self, cpu: &'a Processor, callers: u32) -> Announced<'a, W> {
        Announced { rendezvous: self, cpu, callers, is_forced: false }
    }

    /// Is no other flush in flight or expected than that of the caller, who has announced it?
    pub(crate) fn is_alone(&self) -> bool {
        let state = self.state.lock();
        !state.is_taken && state.policy.is_alone()
    }

    /// May more than one caller of the last flushes want the next?
    pub(crate) fn expects_others(&self) -> bool {
        self.state.lock().policy.expects_others()
    }

    /// Is a flush in flight, or about to start?
    pub(crate) fn is_running(&self) -> bool {
        self.state.lock().is_taken
    }

    /// Flushes for the group that has formed, then for the one that formed meanwhile, until there is none.
    pub async fn lead(&self, cpu: &Processor, flush: impl AsyncFn(W) -> Result<(), Errno>) {
        let mut has_led = false;
        while let Some((group, wanted)) = self.next_group(cpu, has_led).await {
            has_led = true;
            let result = flush(wanted).await;
            self.state.lock().policy.on_end(cpu.now());
            group.end(result);
            // Writers whose data was written during the flush join the next group before it starts.
            cpu.yield_now().await;
        }
    }

    /// Waits for the right to flush without sharing, in the order of callers.
    pub async fn exclusive(&self) -> Exclusive<'_, W> {
        let ticket = Ticket::new(self);
        self.changed.until(|| ticket.try_take().then_some(())).await;
        Exclusive(self)
    }

    /// The group to flush for now; `None` if there is none, or if an exclusive flush is next.
    async fn next_group(&self, cpu: &Processor, has_led: bool) -> Option<(Arc<Group>, W)> {
        loop {
            let deadline = {
                let mut state = self.state.lock();
                let is_over = state.policy.waiting() == 0 || has_led && !state.exclusive.is_empty();
                if is_over {
                    self.release(state);
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

    /// Frees the right to flush, and wakes those that wait for it: exclusive callers, and a group without a leader.
    /// With the lock under which that was decided: who arrives later provides a leader.
    fn release(&self, mut state: MutexGuard<'_, State<W>>) {
        state.is_taken = false;
        let forming = Arc::clone(&state.forming);
        drop(state);
        self.changed.wake_all();
        forming.changed.wake_all();
    }

    /// Waits until all expected writers have arrived, or for the deadline.
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

/// Writers whose data is in flight.
pub(crate) struct Announced<'a, W: Default> {
    rendezvous: &'a Rendezvous<W>,
    cpu: &'a Processor,
    callers: u32,
    is_forced: bool,
}

impl<W: Default> Announced<'_, W> {
    /// The data is durable: no flush is wanted.
    pub(crate) fn end_forced(mut self) {
        self.is_forced = true;
    }

    /// Another one will say when the data is on the disk ([`Rendezvous::announced`]).
    pub(crate) fn hand_over(self) {
        std::mem::forget(self);
    }
}

impl<W: Default> Drop for Announced<'_, W> {
    fn drop(&mut self) {
        let (now, policy) = (self.cpu.now(), &mut self.rendezvous.state.lock().policy);
        if self.is_forced { policy.on_forced(now, self.callers) } else { policy.on_data_done(now, self.callers) }
    }
}

/// A caller's place among those that wait for an exclusive flush.
struct Ticket<'a, W: Default> {
    rendezvous: &'a Rendezvous<W>,
    number: u64,
}

impl<'a, W: Default> Ticket<'a, W> {
    fn new(rendezvous: &'a Rendezvous<W>) -> Self {
        let mut state = rendezvous.state.lock();
        state.tickets += 1;
        let number = state.tickets;
        state.exclusive.push_back(number);
        Ticket { rendezvous, number }
    }

    /// Takes the right to flush if it is free and this is the oldest ticket.
    fn try_take(&self) -> bool {
        let mut state = self.rendezvous.state.lock();
        if state.is_taken || state.exclusive.front() != Some(&self.number) {
            return false;
        }
        state.exclusive.pop_front();
        state.is_taken = true;
        true
    }
}

impl<W: Default> Drop for Ticket<'_, W> {
    fn drop(&mut self) {
        // A caller that stopped waiting must not block the others.
        let (was_waiting, forming) = {
            let mut state = self.rendezvous.state.lock();
            let before = state.exclusive.len();
            state.exclusive.retain(|number| *number != self.number);
            (state.exclusive.len() < before, Arc::clone(&state.forming))
        };
        if was_waiting {
            self.rendezvous.changed.wake_all();
            forming.changed.wake_all();
        }
    }
}

/// The right to flush without sharing, until dropped.
pub struct Exclusive<'a, W: Default>(&'a Rendezvous<W>);

impl<W: Default> Drop for Exclusive<'_, W> {
    fn drop(&mut self) {
        self.0.release(self.0.state.lock());
    }
}

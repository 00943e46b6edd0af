//! Entering the machine: parking, completions and post.

use std::sync::atomic::Ordering;

use machine::{Completion, Park};
use policy::quantum;

use super::Processor;
use super::recording::NOBODY;
use crate::counters::{Activity, Count};
use crate::trace::Event;

impl Processor {
    /// Enters the machine, and processes the completions that are due.
    pub(super) fn enter(&self) {
        let mut park = Park::No;
        if self.0.ready.borrow().is_empty() && self.0.held.borrow().is_empty() {
            self.wait_for_quantum();
            self.0.mailbox.parked.store(true, Ordering::SeqCst);
            self.publish_idle();
            if !self.0.mailbox.has_post.load(Ordering::SeqCst) {
                let deadline = self.next_timer();
                park = Park::Until { deadline, requests: self.requests_in_progress() };
            }
        }
        let mut done = self.0.completions.take();
        match park {
            Park::No => self.0.machine.borrow_mut().enter(park, &mut done),
            Park::Until { .. } => {
                let began = self.begin(Event::ProcessorParked, NOBODY);
                self.charge(Activity::Overhead);
                self.count(Count::Parks, 1);
                self.charge_ahead();
                self.0.machine.borrow_mut().enter(park, &mut done);
                self.end(began, Event::ProcessorParked, NOBODY, 0, 0);
                self.charge_idle();
            }
        }
        self.count(Count::KernelEntries, self.machine(|machine| machine.take_kernel_entries()));
        if !done.is_empty() {
            self.trace(Event::CompletionsTaken, NOBODY, done.len() as u64, 0);
            self.count(Count::Completions, done.len() as u64);
        }
        if !done.is_empty() {
            // Otherwise it stays parked until the next time slice: a machine may return before the wait is over.
            self.0.mailbox.parked.store(false, Ordering::SeqCst);
        }
        self.take_post();
        self.begin_ready_turn();
        self.hold_back(&mut done);
        self.complete(&mut done);
        self.0.completions.replace(done);
    }

    /// Without a quantum each completion is taken by itself, as an interrupt, and what it causes is issued before the next
    /// (OLTP-1).
    fn hold_back(&self, done: &mut Vec<Completion>) {
        let are_single = self.switches().quantum == quantum::Mode::Off;
        let mut held = self.0.held.borrow_mut();
        if !are_single && held.is_empty() {
            return;
        }
        held.extend(done.drain(..));
        let due = if are_single { held.len().min(1) } else { held.len() };
        done.extend(held.drain(..due));
    }

    /// Delays to gather completions, if that increases throughput (OLTP-1).
    fn wait_for_quantum(&self) {
        let requests = self.0.requests.take();
        self.0.mailbox.note_requests(requests);
        let quantum = self.0.quantum.borrow_mut().on_time_slice(self.now(), requests);
        if !quantum.is_zero() {
            let began = self.begin(Event::QuantumWaited, NOBODY);
            self.charge(Activity::Overhead);
            self.machine(|machine| machine.pause(quantum));
            self.end(began, Event::QuantumWaited, NOBODY, 0, 0);
            self.count(Count::QuantumWaits, 1);
            self.charge(Activity::Idle);
        }
    }

    pub(super) fn take_post(&self) {
        if !self.0.mailbox.has_post.load(Ordering::SeqCst) {
            return;
        }
        self.0.mailbox.has_post.store(false, Ordering::SeqCst);
        let post = std::mem::take(&mut *self.0.mailbox.post.lock());
        self.trace(Event::PostTaken, NOBODY, post.woken.len() as u64, post.starts.len() as u64);
        post.woken.into_iter().for_each(|waker| self.0.ready.borrow_mut().push(waker));
        for start in post.starts {
            start(self.clone());
        }
    }
}

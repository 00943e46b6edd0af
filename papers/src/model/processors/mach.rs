//! The scheduler of Mach 2.5 and OSF/1, as far as it matters here.
//!
//! Source: `kern/sched_prim.c`, `kern/sched.h` and `kern/priority.c` of Mach 2.5 and of OSF/1 (Carnegie Mellon
//! University 1987 to 1991), and D. Black, "Scheduling support for concurrency and parallelism in the Mach operating
//! system", IEEE Computer 23(5), May 1990. From there:
//! - A run queue for all processors, and one for each processor with threads that are bound to it; `choose_thread`
//!   looks at the processor's own first.
//! - `thread_setrun`: an unbound thread goes to the first idle processor. A processor that becomes idle goes to the
//!   front of the idle queue, but the master to the end ("so master gets used last").
//! - A thread bound to another processor than the one where it becomes ready is given to that processor at once if it
//!   is idle, and waits in its queue if it is not. Then that processor is interrupted to look, but not the master ("too
//!   expensive for all the unparallelized U*x code"): it looks at its next clock tick, interrupt or return to user mode.
//! - Without [`Config::notifies_master`] even an idle master looks only at its next clock tick. That is no source's: the
//!   idle loop polls the next thread and the processor's own queue. It is a hypothesis, made because the paper's tables
//!   of TOP-1 agree with it: one process alone loses as much for a move as many do.
//! - `csw_needed`: a processor stops what it runs when its own queue is not empty, or when the first quantum is over
//!   and the common queue holds a thread of the same or a better priority.
//! - A thread's usage lowers its priority; it decays to five eighths each second.

use std::collections::VecDeque;
use std::time::Duration;

use policy::delivery::Urgency;
use policy::unit::{Instant, ProcessorId};

use super::scheduler::{Placement, Scheduler, ThreadId};

/// Priorities, of which 0 is the best.
const PRIORITIES: u32 = 32;
const BASE: u32 = 12;
/// With the decay, a thread that always runs has 2.67 s of usage and the worst priority: microseconds to priorities by
/// `PRI_SHIFT` 17 of `kern/sched.h`.
const USAGE_SHIFT: u32 = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub processors: u16,
    pub master: ProcessorId,
    /// `min_quantum`: 100 ms.
    pub quantum: Duration,
    /// Does an idle master take a thread that is bound to it at once, and is one that works interrupted for it? By the
    /// sources of Mach and OSF/1 the first, but not the second.
    pub notifies_master: bool,
}

pub struct Mach {
    config: Config,
    /// In the order of use.
    idle: VecDeque<ProcessorId>,
    common: VecDeque<ThreadId>,
    own: Vec<VecDeque<ThreadId>>,
    threads: Vec<Thread>,
}

#[derive(Clone, Copy, Default)]
struct Thread {
    bound: Option<ProcessorId>,
    usage_us: u64,
    /// The second up to which usage has decayed.
    stamp: u64,
}

impl Thread {
    /// `update_priority`: usage as it has decayed since.
    fn at(self, now: Instant) -> Thread {
        let second = now.ns() / 1_000_000_000;
        // After a minute nothing is left of any usage.
        let seconds = second.saturating_sub(self.stamp).min(64);
        let usage_us = (0..seconds).fold(self.usage_us, |usage_us, _| usage_us * 5 / 8);
        Thread { usage_us, stamp: second, ..self }
    }

    /// 0 is the best.
    fn priority(self) -> u32 {
        let levels = (self.usage_us >> USAGE_SHIFT).min(u64::from(PRIORITIES));
        (BASE + levels as u32).min(PRIORITIES - 1)
    }
}

impl Mach {
    /// All processors idle; `order` is the order in which those but the master will be used.
    pub fn new(config: Config, order: &[ProcessorId]) -> Self {
        let mut idle: VecDeque<_> = order.iter().copied().filter(|processor| *processor != config.master).collect();
        idle.push_back(config.master);
        let own = vec![VecDeque::new(); usize::from(config.processors)];
        Mach { config, idle, common: VecDeque::new(), own, threads: Vec::new() }
    }

    fn thread(&mut self, now: Instant, thread: ThreadId) -> &mut Thread {
        let entry = &mut self.threads[thread.0 as usize];
        *entry = entry.at(now);
        entry
    }

    fn priority(&self, thread: ThreadId) -> u32 {
        self.threads[thread.0 as usize].priority()
    }

    fn take_idle(&mut self, processor: ProcessorId) -> bool {
        let place = self.idle.iter().position(|idle| *idle == processor);
        place.is_some_and(|place| self.idle.remove(place).is_some())
    }

    /// Takes the first of the best priority.
    fn take_common(&mut self) -> Option<ThreadId> {
        let best = (0..self.common.len()).min_by_key(|place| self.priority(self.common[*place]))?;
        self.common.remove(best)
    }
}

impl Scheduler for Mach {
    fn on_start(&mut self, thread: ThreadId) {
        assert_eq!(thread.0 as usize, self.threads.len());
        self.threads.push(Thread::default());
    }

    fn bind(&mut self, thread: ThreadId, to: Option<ProcessorId>) {
        self.threads[thread.0 as usize].bound = to;
    }

    fn on_ready(&mut self, now: Instant, thread: ThreadId, on: Option<ProcessorId>) -> Placement {
        let Some(bound) = self.thread(now, thread).bound else {
            if let Some(processor) = self.idle.pop_front() {
                return Placement::Dispatch(processor);
            }
            self.common.push_back(thread);
            return Placement::Queued;
        };
        let is_notified = bound != self.config.master || on == Some(bound) || self.config.notifies_master;
        if is_notified && self.take_idle(bound) {
            return Placement::Dispatch(bound);
        }
        self.own[usize::from(bound.0)].push_back(thread);
        if is_notified { Placement::Look(bound) } else { Placement::Tick(bound) }
    }

    fn on_stopped(&mut self, now: Instant, thread: ThreadId, on: ProcessorId) -> Placement {
        self.on_ready(now, thread, Some(on))
    }

    fn next(&mut self, _now: Instant, processor: ProcessorId) -> Option<ThreadId> {
        let next = self.own[usize::from(processor.0)].pop_front().or_else(|| self.take_common());
        if next.is_none() {
            if processor == self.config.master {
                self.idle.push_back(processor);
            } else {
                self.idle.push_front(processor);
            }
        }
        next
    }

    fn wake(&mut self, _now: Instant, processor: ProcessorId) -> Option<ThreadId> {
        if !self.idle.contains(&processor) {
            return None;
        }
        let next = self.own[usize::from(processor.0)].pop_front()?;
        self.take_idle(processor);
        Some(next)
    }

    fn stops(&self, processor: ProcessorId, running: ThreadId, slice_is_over: bool) -> bool {
        let priority = self.priority(running);
        !self.own[usize::from(processor.0)].is_empty()
            || slice_is_over && self.common.iter().any(|thread| self.priority(*thread) <= priority)
    }

    fn waits(&self) -> bool {
        !self.common.is_empty()
    }

    fn on_used(&mut self, now: Instant, thread: ThreadId, time: Duration) {
        self.thread(now, thread).usage_us += time.as_micros() as u64;
    }

    fn urgency(&self, now: Instant, thread: ThreadId, running_for: Duration) -> Urgency {
        let mut thread = self.threads[thread.0 as usize].at(now);
        thread.usage_us += running_for.as_micros() as u64;
        Urgency(PRIORITIES - 1 - thread.priority())
    }

    fn slice(&self) -> Duration {
        self.config.quantum
    }
}

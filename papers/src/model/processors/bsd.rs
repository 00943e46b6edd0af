//! The scheduler of 4.3BSD; for several processors with one queue for all of them, as FreeBSD's `sched_4bsd` kept it.
//!
//! Source: Leffler, McKusick, Karels and Quarterman, "The Design and Implementation of the 4.3BSD UNIX Operating
//! System" (1989), section 4.4: `p_usrpri = PUSER + p_cpu / 4 + 2 p_nice`, where `p_nice` is 0, better when lower;
//! `p_cpu` counts the clock ticks (of 10 ms) that a process ran; once a second it decays by `2 load / (2 load + 1)`; 32
//! run queues of four priorities each; a process that becomes ready with a better priority preempts the running one;
//! `roundrobin` every 100 ms.

use std::time::Duration;

use policy::delivery::Urgency;
use policy::unit::{Instant, ProcessorId};
use policy::usage::{Decay, Inheritance, Usage};

use super::scheduler::{Placement, Scheduler, ThreadId};

/// `PUSER`: the best priority of user mode.
const PUSER: u32 = 50;
const MAXPRI: u32 = 127;
/// `RQB_PPQ`: priorities in a run queue.
const PRIORITIES_A_QUEUE: u32 = 4;
const TICK: Duration = Duration::from_millis(10);
/// `p_cpu` decays each second and counts to 255 ticks.
const DECAY: Decay = Decay { period: Duration::from_secs(1), most: Duration::from_millis(2550) };

pub struct Bsd {
    threads: Vec<Thread>,
    /// In order of coming.
    queue: Vec<ThreadId>,
    /// By processor.
    running: Vec<Option<ThreadId>>,
    /// Seconds up to which usage has decayed.
    seconds: u64,
    /// Ready threads, averaged over about a minute, times 1000.
    load_permille: u64,
}

#[derive(Clone, Copy, Default)]
struct Thread {
    usage: Usage,
    ended: bool,
}

impl Bsd {
    pub fn new(processors: u16) -> Self {
        Bsd {
            threads: Vec::new(),
            queue: Vec::new(),
            running: vec![None; usize::from(processors)],
            seconds: 0,
            load_permille: 0,
        }
    }

    /// `child` has just been started by `parent` (WS-7).
    pub fn fork(&mut self, now: Instant, parent: ThreadId, child: ThreadId, inheritance: Inheritance) {
        self.decay(now);
        let load = self.load();
        self.threads[child.0 as usize].usage =
            self.threads[parent.0 as usize].usage.fork(DECAY, now, load, inheritance);
    }

    pub fn exit(&mut self, now: Instant, parent: ThreadId, child: ThreadId, inheritance: Inheritance) {
        self.decay(now);
        let load = self.load();
        let ended = &mut self.threads[child.0 as usize];
        ended.ended = true;
        let usage = ended.usage;
        self.threads[parent.0 as usize].usage.take_over(usage, DECAY, now, load, inheritance);
    }

    /// Recent usage of a thread: `p_cpu` in time. It decays.
    pub fn usage(&self, thread: ThreadId) -> Duration {
        self.threads[thread.0 as usize].usage.last_estimate()
    }

    fn load(&self) -> f64 {
        self.load_permille as f64 / 1000.0
    }

    /// `schedcpu`, for all seconds that have passed since the last time.
    fn decay(&mut self, now: Instant) {
        let second = now.ns() / 1_000_000_000;
        let able = 1000 * (self.queue.len() + self.running.iter().flatten().count()) as u64;
        while self.seconds < second {
            self.seconds += 1;
            self.load_permille = (self.load_permille * 59 + able) / 60;
            let load = self.load();
            let now = Instant::ZERO + DECAY.period * self.seconds as u32;
            for thread in self.threads.iter_mut().filter(|thread| !thread.ended) {
                thread.usage.estimate(DECAY, now, load);
            }
        }
    }

    /// `p_usrpri`: less is better.
    pub fn priority(&self, thread: ThreadId) -> u32 {
        let Thread { usage, .. } = self.threads[thread.0 as usize];
        let ticks = usage.last_estimate().as_nanos() / TICK.as_nanos();
        (PUSER + ticks as u32 / 4).min(MAXPRI)
    }

    fn run_queue(&self, thread: ThreadId) -> u32 {
        self.priority(thread) / PRIORITIES_A_QUEUE
    }
}

impl Scheduler for Bsd {
    fn on_start(&mut self, thread: ThreadId) {
        assert_eq!(thread.0 as usize, self.threads.len());
        self.threads.push(Thread::default());
    }

    fn on_ready(&mut self, now: Instant, thread: ThreadId, _on: Option<ProcessorId>) -> Placement {
        self.decay(now);
        if let Some(idle) = self.running.iter().position(Option::is_none) {
            self.running[idle] = Some(thread);
            return Placement::Dispatch(ProcessorId(idle as u16));
        }
        self.queue.push(thread);
        let running = (0..).map(ProcessorId).zip(self.running.iter().flatten());
        // The first of those with the worst priority.
        let worst = running.min_by_key(|(_, running)| std::cmp::Reverse(self.priority(**running)));
        match worst {
            Some((processor, running)) if self.priority(thread) < self.priority(*running) => Placement::Look(processor),
            _ => Placement::Queued,
        }
    }

    fn on_stopped(&mut self, now: Instant, thread: ThreadId, _on: ProcessorId) -> Placement {
        self.decay(now);
        self.queue.push(thread);
        Placement::Queued
    }

    fn next(&mut self, now: Instant, processor: ProcessorId) -> Option<ThreadId> {
        self.decay(now);
        let best = (0..self.queue.len()).min_by_key(|place| self.run_queue(self.queue[*place]));
        let next = best.map(|place| self.queue.remove(place));
        self.running[usize::from(processor.0)] = next;
        next
    }

    fn wake(&mut self, now: Instant, processor: ProcessorId) -> Option<ThreadId> {
        if self.running[usize::from(processor.0)].is_none() { self.next(now, processor) } else { None }
    }

    fn stops(&self, _processor: ProcessorId, running: ThreadId, slice_is_over: bool) -> bool {
        let (priority, queue) = (self.priority(running), self.run_queue(running));
        let better = |waits: &ThreadId| {
            self.priority(*waits) < priority && self.run_queue(*waits) < queue
                || slice_is_over && self.run_queue(*waits) <= queue
        };
        self.queue.iter().any(better)
    }

    fn waits(&self) -> bool {
        !self.queue.is_empty()
    }

    fn on_used(&mut self, now: Instant, thread: ThreadId, time: Duration) {
        self.decay(now);
        let load = self.load();
        self.threads[thread.0 as usize].usage.charge(DECAY, now, load, time);
    }

    fn urgency(&self, _now: Instant, thread: ThreadId, running_for: Duration) -> Urgency {
        let ticks = running_for.as_nanos() / TICK.as_nanos();
        Urgency(MAXPRI - (self.priority(thread) + ticks as u32 / 4).min(MAXPRI))
    }

    fn slice(&self) -> Duration {
        Duration::from_millis(100)
    }
}

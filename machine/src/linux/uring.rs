//! The machine on io_uring: one ring a processor, used by its thread alone.
//!
//! A call of `enter` is at most one system call, and none when there is nothing to submit, it does not park and the
//! kernel has not flagged (in shared memory) that it holds completions back.

mod locks;
mod regions;
mod setup;
mod slots;

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, opcode, squeue, types};

use super::bell::Bell;
use super::core_worker::CoreWorker;
use super::idling::Idling;
use super::perform;
use super::pool::{Inbox, Job};
use super::task::{Call, Step, Task};
use super::tree;
use super::{Shared, net, park_time, pause};
use crate::mapping::Faults;
use crate::{
    Completion, Connection, Doorbell, Errno, Listener, Machine, Op, Park, Region, RegionId, TickSource, Token,
};
use locks::Locks;
use policy::idle::Awaited;
use policy::sizing::MemoryFacts;
use policy::unit::{Instant, ProcessorId};
use regions::Regions;
pub(super) use setup::{SetupError, try_out};
use slots::{SlotNo, Slots};

/// `user_data` of the read that waits for the doorbell. Slots are numbered from 0 in 32 bits.
const BELL: u64 = u64::MAX;
/// `user_data` of cancellations, whose own results are ignored.
const CANCEL: u64 = u64::MAX - 1;
/// Completions taken in one time slice. A disk that completes a burst would otherwise delay the first reply until all
/// are made, while their clients and the disk wait. The rest is taken in the next time slice, without a system call.
const COMPLETIONS_PER_SLICE: usize = 8;
/// Checks of the queues for each read of the clock.
const CHECKS_PER_CLOCK_READ: u32 = 16;
/// A client on this core sends or takes a burst in less; another thread that computes uses its whole time slice.
const PREEMPTED_AFTER: Duration = Duration::from_millis(1);

/// One processor of the io_uring engine.
pub struct Uring {
    processor: ProcessorId,
    shared: Arc<Shared>,
    ring: IoUring,
    registers: bool,
    no_iowait: bool,
    writer: Option<u16>,
    missing: Vec<&'static str>,
    slots: Slots,
    /// Entries that did not fit into the submission queue, because the kernel wants completions taken first.
    backlog: VecDeque<squeue::Entry>,
    regions: Regions,
    locks: Locks,
    bell: Arc<Bell>,
    /// The kernel stores the count of rings here.
    rings: Box<u64>,
    /// The read that waits for the doorbell is in flight.
    listening: bool,
    inbox: Arc<Inbox>,
    core_worker: CoreWorker,
    /// Calls that other threads make, not collected yet.
    offloaded: usize,
    /// Operations that ended when they were started.
    finished: Vec<Completion>,
    /// Completions taken from the ring: `user_data` and result.
    taken: Vec<(u64, i32)>,
    idling: Idling,
    /// System calls since the last query.
    entries: Cell<u64>,
    /// Being dropped: nothing is submitted again.
    closing: bool,
}

impl Uring {
    pub(super) fn new(processor: ProcessorId, shared: Arc<Shared>) -> Result<Self, SetupError> {
        let setup = setup::set_up()?;
        let bell = Arc::new(Bell::new().map_err(SetupError::Failed)?);
        let set = shared.cores.set();
        // Otherwise the kernel's workers share the core of the thread that caused them, as in kernels before 5.14.
        let _ = setup.ring.submitter().register_iowq_aff(&set);
        shared.awake.enroll(processor, &bell);
        shared.placement.enroll(processor, shared.cores.number(processor.0.into()), &bell);
        Ok(Uring {
            processor,
            ring: setup.ring,
            registers: setup.registers,
            no_iowait: setup.no_iowait,
            writer: setup.writer,
            missing: setup.missing,
            slots: Slots::default(),
            backlog: VecDeque::new(),
            regions: Regions::default(),
            locks: Locks::default(),
            inbox: Inbox::new(Arc::clone(&bell)),
            bell,
            core_worker: CoreWorker::default(),
            rings: Box::new(0),
            listening: false,
            offloaded: 0,
            finished: Vec::new(),
            taken: Vec::new(),
            idling: Idling::new(processor, shared.idle),
            entries: Cell::new(0),
            shared,
            closing: false,
        })
    }

    /// Puts the slot's call into the submission queue, or has another thread make it.
    fn issue(&mut self, no: SlotNo) {
        let is_lone = self.slots.get(no).task.is_light() && self.is_alone();
        let slot = self.slots.get(no);
        // A worker of the ring would be on another core.
        let entry = if is_lone { None } else { slot.entry(&self.regions) };
        match entry {
            Some(entry) => {
                let allocates = matches!(slot.task.call, Call::Write { .. } | Call::Zero { .. });
                if allocates {
                    self.locks.follow(&self.ring);
                }
                let writer = self.writer.filter(|_| allocates).unwrap_or(0);
                self.push(entry.personality(writer).user_data(no.0.into()));
            }
            None => self.offload(no, is_lone),
        }
    }

    /// Has another thread make the slot's call: if it is alone, one on this core.
    fn offload(&mut self, no: SlotNo, is_lone: bool) {
        let task = std::mem::replace(&mut self.slots.get(no).task, Task::idle());
        self.slots.end(no);
        self.offloaded += 1;
        self.count_entry();
        // SAFETY: the operation's starter guarantees its memory until the completion; dropping this machine waits for it.
        let job = unsafe { Job::new(task, &self.inbox) };
        let left = if is_lone { self.core_worker.submit(job, &self.shared.pool) } else { Some(job) };
        left.into_iter().for_each(|job| self.shared.pool.take(job));
    }

    /// Has this processor nothing to do but to wait for one call?
    fn is_alone(&self) -> bool {
        self.offloaded == 0 && self.idling.is_alone(&self.shared, self.now())
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(entry);
        while !self.fill() {
            // The queue is full: submit it now. When the kernel refuses, the rest waits for the next `enter`.
            if self.submit().is_err() || self.ring.submission().is_full() {
                return;
            }
        }
    }

    /// Moves the backlog into the submission queue. Returns whether all of it fit.
    fn fill(&mut self) -> bool {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: what the entry points to is memory that the starter of the operation guarantees until its
            // completion, or lies in its slot or in `rings`, which are boxed; dropping this machine waits for both.
            if unsafe { queue.push(entry) }.is_err() {
                return false;
            }
            self.backlog.pop_front();
        }
        true
    }

    fn count_entry(&self) {
        self.entries.set(self.entries.get() + 1);
    }

    fn submit(&self) -> io::Result<()> {
        self.count_entry();
        self.ring.submit().map(drop)
    }

    /// Submits, if there is something to submit or the kernel holds completions back.
    fn submit_if_needed(&mut self) {
        let fits = self.fill();
        let queue = self.ring.submission();
        let needed = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if needed || !fits {
            // On an error the kernel wants completions taken first or is short of memory: the entries stay queued.
            let _ = self.submit();
        }
    }

    /// Submits, and polls for completions as long as the policies allow. Returns whether something arrived.
    fn poll_idle(&mut self, since: Instant, awaited: Awaited, time: Option<Duration>) -> bool {
        let mut before = self.now();
        let deadline = time.map(|time| before + time);
        let own = since + self.idling.polls_for(awaited);
        let processor = self.processor;
        let is_over = |shared: &Shared, now: Instant| {
            now >= own && now >= shared.awake.until(processor) || deadline.is_some_and(|at| now >= at)
        };
        if is_over(&self.shared, before) {
            return false;
        }
        // What they do for a request may take longer than a time slice.
        let has_workers = self.slots.with_workers() > 0 || self.offloaded > 0;
        self.submit_if_needed();
        before = self.now();
        loop {
            for _ in 0..CHECKS_PER_CLOCK_READ {
                let queue = self.ring.submission();
                let held_back = queue.taskrun() || queue.cq_overflow();
                drop(queue);
                if held_back || !self.ring.completion().is_empty() || self.bell.is_raised() {
                    if held_back {
                        let _ = self.submit();
                    }
                    return true;
                }
                std::hint::spin_loop();
            }
            self.count_entry();
            std::thread::yield_now();
            let now = self.now();
            if !has_workers && now.since(before) >= PREEMPTED_AFTER {
                self.idling.on_preempted(&self.shared, now);
                return false;
            }
            if is_over(&self.shared, now) {
                return false;
            }
            before = now;
        }
    }

    /// Submits and sleeps until something completes, a signal arrives or the time is over.
    fn sleep(&mut self, time: Option<Duration>) {
        if !self.listening {
            let event = types::Fd(self.bell.event());
            let entry = opcode::Read::new(event, (&raw mut *self.rings).cast(), 8).build();
            self.backlog.push_front(entry.user_data(BELL));
            self.listening = true;
        }
        if !self.fill() {
            return self.submit_if_needed();
        }
        self.count_entry();
        let slept = self.wait(time);
        match slept.map_err(|error| error.raw_os_error()) {
            Ok(_) | Err(Some(libc::ETIME | libc::EINTR)) => {}
            // Short of memory, or completions must be taken first (the caller does).
            Err(_) => std::thread::yield_now(),
        }
    }

    /// Submits the queue and waits for a completion. Unless an operation on a disk is in flight, the time is not to be
    /// accounted as iowait: an idle server would look like one with a saturated disk.
    fn wait(&mut self, time: Option<Duration>) -> io::Result<usize> {
        let submissions = self.ring.submission().len() as u32;
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if self.no_iowait && self.slots.on_disk() == 0 {
            flags |= EnterFlags::NO_IOWAIT;
        }
        let limit = time.map(|time| types::Timespec::new().sec(time.as_secs()).nsec(time.subsec_nanos()));
        let args = match &limit {
            Some(limit) => types::SubmitArgs::new().timespec(limit),
            None => types::SubmitArgs::new(),
        };
        // SAFETY: with EXT_ARG the argument is a `SubmitArgs`, which is what the kernel reads and lives until the call
        // returns; the entries were checked when they were pushed.
        unsafe { self.ring.submitter().enter(submissions, 1, flags.bits(), Some(&args)) }
    }

    /// Takes completions, up to [`COMPLETIONS_PER_SLICE`].
    fn collect(&mut self, done: &mut Vec<Completion>) {
        // Not counting those that the caller has not processed yet.
        let most = done.len() + COMPLETIONS_PER_SLICE;
        done.append(&mut self.finished);
        if self.offloaded > 0 {
            self.offloaded -= self.inbox.collect(done);
        }
        loop {
            let mut taken = std::mem::take(&mut self.taken);
            let room = most.saturating_sub(done.len());
            taken.extend(self.ring.completion().take(room).map(|c| (c.user_data(), c.result())));
            for (name, result) in taken.drain(..) {
                self.on_completion(name, result, done);
            }
            self.taken = taken;
            // The next system call posts completions that overflowed, now that there is room.
            if done.len() >= most || !self.ring.submission().cq_overflow() || self.submit().is_err() {
                return;
            }
        }
    }

    /// Ends what waits for a descriptor before it is accepted or read.
    fn cancel_polls(&mut self, fd: RawFd) {
        for no in self.slots.polling(fd) {
            // Its poll may be complete by now.
            self.slots.get(no).cancelled = true;
            self.push(opcode::AsyncCancel::new(no.0.into()).build().user_data(CANCEL));
        }
    }

    fn on_completion(&mut self, name: u64, result: i32, done: &mut Vec<Completion>) {
        match name {
            BELL => self.listening = false,
            CANCEL => {}
            _ => {
                let result = u64::try_from(result).map_err(|_| Errno(-result));
                self.on_result(SlotNo(name as u32), result, done);
            }
        }
    }

    fn on_result(&mut self, no: SlotNo, result: Result<u64, Errno>, done: &mut Vec<Completion>) {
        let slot = self.slots.get(no);
        let token = slot.task.token;
        let was_waiting = std::mem::take(&mut slot.waiting);
        let step = match (slot.task.call, result) {
            _ if self.closing || slot.cancelled => Step::Done(Err(Errno::CANCELLED)),
            // The host starts no worker for the ring, as this user or group has too many threads.
            (_, Err(Errno::CANCELLED)) if slot.on_disk => return self.offload(no, false),
            (Call::Accept { .. } | Call::Faults { .. }, Ok(_)) => {
                // SAFETY: an accept has no memory; that of a receive is guaranteed by the operation's starter.
                let result = unsafe { perform::perform(&slot.task) };
                slot.task.on_result(result)
            }
            (_, Ok(_)) if was_waiting => Step::Retry,
            _ => slot.task.on_result(result),
        };
        match step {
            Step::Done(result) => {
                self.slots.end(no);
                done.push(Completion { token, result });
            }
            Step::Retry => self.issue(no),
            Step::Wait(fd, events) => {
                slot.waiting = true;
                self.push(slots::poll(fd, events).user_data(no.0.into()));
            }
        }
    }
}

impl Machine for Uring {
    fn processor(&self) -> ProcessorId {
        self.processor
    }

    fn tick_source(&self) -> TickSource {
        crate::counter::tick_source()
    }

    fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    unsafe fn start(&mut self, token: Token, op: Op) {
        if let Some(result) = tree::at_once(&op) {
            self.finished.push(Completion { token, result });
            return;
        }
        match self.slots.begin(token, op) {
            Ok(no) => self.issue(no),
            Err(errno) => self.finished.push(Completion { token, result: Err(errno) }),
        }
    }

    fn enter(&mut self, park: Park, done: &mut Vec<Completion>) {
        self.locks.follow(&self.ring);
        let before = done.len();
        let mut idle = None;
        let mut slept = false;
        loop {
            let rung = self.bell.take();
            self.collect(done);
            let now = self.now();
            let time = if rung || done.len() > before { None } else { park_time(park, now) };
            let Some(time) = time else {
                if let Some((since, awaited)) = idle {
                    self.idling.end(&self.shared, now, awaited, now.since(since), done.len() - before);
                }
                // Sleeping has submitted everything.
                if !slept {
                    self.submit_if_needed();
                    self.collect(done);
                }
                return;
            };
            let (since, awaited) = match idle {
                Some(idle) => idle,
                None => {
                    let has_calls = self.offloaded > 0 && self.inbox.awaits_brief();
                    *idle.insert((now, self.idling.begin(&self.shared, park, now, has_calls)))
                }
            };
            if !self.poll_idle(since, awaited, time) && self.bell.park() {
                self.sleep(time);
                slept = true;
            }
        }
    }

    fn pause(&mut self, time: Duration) {
        pause(&self.shared.clock, time);
    }

    fn acknowledge(&mut self, connection: Connection) {
        net::acknowledge(connection);
    }

    fn shutdown(&mut self, connection: Connection) {
        net::shutdown(connection);
    }

    fn close(&mut self, connection: Connection) {
        net::close(connection);
    }

    fn cancel_accepts(&mut self, of: Listener) {
        self.cancel_polls(of.0 as RawFd);
    }

    fn cancel_faults(&mut self, of: Faults) {
        self.cancel_polls(of.0 as RawFd);
    }

    fn offer_region(&mut self, region: Region) -> Result<(), Errno> {
        if self.registers { self.regions.offer(&self.ring, region) } else { Ok(()) }
    }

    fn withdraw_region(&mut self, region: RegionId) {
        self.regions.withdraw(&self.ring, region);
    }

    fn take_kernel_entries(&mut self) -> u64 {
        self.entries.take() + self.bell.take_writes()
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.bell.clone()
    }

    fn time_of_day(&self) -> crate::tree::Time {
        super::time_of_day()
    }

    fn memory(&self) -> MemoryFacts {
        self.shared.memory.read()
    }

    fn describe(&self) -> String {
        let mut line = "io_uring".to_string();
        if !self.missing.is_empty() {
            line += &format!(" without {}", self.missing.join(", "));
        }
        line
    }
}

impl Drop for Uring {
    /// The kernel may write to slots, and to the memory of operations, until the last one is complete: cancels them and
    /// waits. Only a disk that never answers can make that long.
    fn drop(&mut self) {
        self.closing = true;
        self.shared.placement.leave(self.processor);
        self.shared.pool.abandon(&self.inbox);
        let mut done = Vec::new();
        let names = self.slots.numbers().into_iter().map(|no| u64::from(no.0));
        for name in names.chain(self.listening.then_some(BELL)) {
            self.push(opcode::AsyncCancel::new(name).build().user_data(CANCEL));
        }
        while self.slots.in_flight() > 0 || self.listening {
            self.fill();
            if self.ring.submit_and_wait(1).is_err() {
                std::thread::yield_now();
            }
            self.collect(&mut done);
        }
    }
}

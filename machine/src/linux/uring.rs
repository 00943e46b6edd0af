//! The machine on io_uring: one ring a processor, used by its thread alone.
//!
//! A call of `enter` is at most one system call, and none when there is nothing to submit, nobody parks and the kernel
//! has not said (in shared memory) that it holds completions back.

mod regions;
mod setup;
mod slots;

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, opcode, squeue, types};

use super::bell::Bell;
use super::pool::Inbox;
use super::syscall;
use super::task::{Call, Step, Task};
use super::{Shared, net, park_time, pause};
use crate::{Completion, Connection, Doorbell, Errno, Machine, Op, Park, Region, RegionId, TickSource, Token};
use policy::idle::LookOut;
use policy::sizing::MemoryFacts;
use policy::unit::{Instant, ProcessorId};
use regions::Regions;
pub(super) use setup::{SetupError, try_out};
use slots::{SlotNo, Slots};

/// `user_data` of the read that waits for the doorbell. Slots are numbered from 0 in 32 bits.
const BELL: u64 = u64::MAX;
/// `user_data` of cancellations, whose own results nobody needs.
const CANCEL: u64 = u64::MAX - 1;
/// Completions taken in one turn, at most. A disk that completes a whole burst at once would otherwise have the first reply
/// wait until all of them are made, and their clients and the disk itself wait meanwhile. Those left are taken in the
/// next turn, without a system call.
const TAKEN_A_TURN: usize = 8;
/// Looks into the queues between two looks at the clock.
const LOOKS_A_TIME: u32 = 16;
/// Between two looks at the clock passes less than a microsecond, unless the host took the core away.
const AWAY: Duration = Duration::from_micros(100);

/// One processor of the io_uring engine.
pub struct Uring {
    processor: ProcessorId,
    shared: Arc<Shared>,
    ring: IoUring,
    vectored_fixed: bool,
    no_iowait: bool,
    writer: Option<u16>,
    missing: Vec<&'static str>,
    slots: Slots,
    /// Entries for which the submission queue had no room, because the kernel wants completions taken first.
    backlog: VecDeque<squeue::Entry>,
    regions: Regions,
    bell: Arc<Bell>,
    /// Where the kernel puts the count of rings.
    rings: Box<u64>,
    /// Is the read that waits for the doorbell with the kernel?
    listening: bool,
    inbox: Arc<Inbox>,
    /// Calls handed to the pool and not collected yet.
    offloaded: usize,
    /// Operations that ended before they began.
    refused: Vec<Completion>,
    /// Completions just taken from the ring: `user_data` and result.
    taken: Vec<(u64, i32)>,
    look_out: LookOut,
    /// System calls since asked last.
    entries: Cell<u64>,
    /// This machine is being dropped: nothing is submitted again.
    closing: bool,
}

impl Uring {
    pub(super) fn new(processor: ProcessorId, shared: Arc<Shared>) -> Result<Self, SetupError> {
        let setup = setup::set_up()?;
        let bell = Arc::new(Bell::new().map_err(SetupError::Failed)?);
        let set = shared.cores.set();
        // The kernel's workers would share the one core of the thread that caused them. Kernels before 5.14 can't do
        // otherwise.
        let _ = setup.ring.submitter().register_iowq_aff(&set);
        Ok(Uring {
            processor,
            ring: setup.ring,
            vectored_fixed: setup.vectored_fixed,
            no_iowait: setup.no_iowait,
            writer: setup.writer,
            missing: setup.missing,
            slots: Slots::default(),
            backlog: VecDeque::new(),
            regions: Regions::default(),
            inbox: Inbox::new(Arc::clone(&bell)),
            bell,
            rings: Box::new(0),
            listening: false,
            offloaded: 0,
            refused: Vec::new(),
            taken: Vec::new(),
            look_out: LookOut::new(shared.idle),
            entries: Cell::new(0),
            shared,
            closing: false,
        })
    }

    /// Puts the slot's call into the submission queue, or hands it to the pool.
    fn issue(&mut self, no: SlotNo) {
        let slot = self.slots.get(no);
        match slot.entry(&self.regions, self.vectored_fixed) {
            Some(entry) => {
                let allocates = matches!(slot.task.call, Call::Write { .. } | Call::Empty { .. });
                let writer = self.writer.filter(|_| allocates).unwrap_or(0);
                self.push(entry.personality(writer).user_data(no.0.into()));
            }
            None => {
                let task = std::mem::replace(&mut slot.task, Task::idle());
                self.slots.end(no);
                self.offloaded += 1;
                self.count_entry();
                // SAFETY: what is not for io_uring (seeks, providing memory, trees) transfers nothing.
                unsafe { self.shared.pool.submit(task, &self.inbox) };
            }
        }
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(entry);
        while !self.fill() {
            // The queue is full: the kernel takes it over now. When it can't, the rest waits for the next `enter`.
            if self.submit().is_err() || self.ring.submission().is_full() {
                return;
            }
        }
    }

    /// Moves the backlog into the submission queue. Did it fit?
    fn fill(&mut self) -> bool {
        let mut queue = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: what the entry points to is memory that whoever started the operation promises until its
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
            // An error means that the kernel wants completions taken first or is short of memory: the entries stay in
            // the queue for the next time.
            let _ = self.submit();
        }
    }

    /// Submits, and looks out for completions for as long as the policy says. Did something come?
    fn look_out(&mut self, since: Instant, time: Option<Duration>) -> bool {
        let span = self.look_out.span().min(time.unwrap_or(Duration::MAX));
        if span.is_zero() {
            return false;
        }
        // Workers, the kernel's and ours, are woken on this core, and would wait for us.
        let yields = self.slots.with_workers() > 0 || self.offloaded > 0;
        self.submit_if_needed();
        let mut before = self.now();
        loop {
            for _ in 0..LOOKS_A_TIME {
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
            if yields {
                self.count_entry();
                std::thread::yield_now();
            }
            let now = self.now();
            if !yields && now.since(before) >= AWAY {
                self.look_out.on_preempted();
                return false;
            }
            if now.since(since) >= span {
                return false;
            }
            before = now;
        }
    }

    /// Submits and sleeps until something completes, a signal comes or the time is over.
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
            // Short of memory for now, or completions must be taken first (the caller does).
            Err(_) => std::thread::yield_now(),
        }
    }

    /// Submits what is in the queue and waits for a completion. Unless a disk is waited for, the host is asked not to
    /// show the time as iowait: an idle server would look like one whose disk is full of work.
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

    /// Takes what is complete, up to [`TAKEN_A_TURN`].
    fn collect(&mut self, done: &mut Vec<Completion>) {
        // What the caller has not looked at yet does not count.
        let most = done.len() + TAKEN_A_TURN;
        done.append(&mut self.refused);
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
            // What overflowed is posted by the next system call, now that there is room.
            if done.len() >= most || !self.ring.submission().cq_overflow() || self.submit().is_err() {
                return;
            }
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
            _ if self.closing => Step::Done(Err(Errno::CANCELLED)),
            (Call::Accept { .. }, Ok(_)) => {
                // SAFETY: an accept has no memory.
                let result = unsafe { syscall::perform(&slot.task) };
                slot.task.on_result(result)
            }
            (_, Ok(_)) if was_waiting => Step::Again,
            _ => slot.task.on_result(result),
        };
        match step {
            Step::Done(result) => {
                self.slots.end(no);
                done.push(Completion { token, result });
            }
            Step::Again => self.issue(no),
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
        match self.slots.begin(token, op) {
            Ok(no) => self.issue(no),
            Err(errno) => self.refused.push(Completion { token, result: Err(errno) }),
        }
    }

    fn enter(&mut self, park: Park, done: &mut Vec<Completion>) {
        let before = done.len();
        let mut dry = None;
        let mut slept = false;
        loop {
            let rung = self.bell.take();
            self.collect(done);
            let now = self.now();
            let time = if rung || done.len() > before { None } else { park_time(park, now) };
            let Some(time) = time else {
                if let Some(since) = dry {
                    self.look_out.on_work(now.since(since));
                }
                // Sleeping has submitted everything.
                if !slept {
                    self.submit_if_needed();
                    self.collect(done);
                }
                return;
            };
            let since = *dry.get_or_insert(now);
            if !self.look_out(since, time) && self.bell.park() {
                self.sleep(time);
                slept = true;
            }
        }
    }

    fn pause(&mut self, time: Duration) {
        pause(&self.shared.clock, time);
    }

    fn shutdown(&mut self, connection: Connection) {
        net::shutdown(connection);
    }

    fn close(&mut self, connection: Connection) {
        net::close(connection);
    }

    fn offer_region(&mut self, region: Region) -> Result<(), Errno> {
        self.regions.offer(&self.ring, region)
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
    /// The kernel may write to slots, and to the memory of operations, until the last of them is complete: cancels them
    /// and waits. Only a disk that never answers can make that long.
    fn drop(&mut self) {
        self.closing = true;
        self.shared.pool.abandon(&self.inbox);
        let mut done = Vec::new();
        let names = self.slots.numbers().into_iter().map(|no| u64::from(no.0));
        for name in names.chain(self.listening.then_some(BELL)) {
            self.push(opcode::AsyncCancel::new(name).build().user_data(CANCEL));
        }
        while self.slots.under_way() > 0 || self.listening {
            self.fill();
            if self.ring.submit_and_wait(1).is_err() {
                std::thread::yield_now();
            }
            self.collect(&mut done);
        }
    }
}

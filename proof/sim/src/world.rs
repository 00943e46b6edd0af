//! The world: its time, the order of its events, and which processor runs next.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::rc::Rc;

use policy::sizing::MemoryFacts;
use policy::unit::{Instant, ProcessorId};
use smallvec::SmallVec;

use crate::disk::Disk;
use crate::endpoint::Network;
use crate::file::FileEntry;
use crate::ids::HostId;
use crate::operation::{OpRef, OpState, Operation, Operations};
use crate::processor::Proc;
use crate::random::{Random, scatter};
use crate::tree::{SimTree, take_reports};
use machine::Errno;

/// Time slices of processors without any time passing. A kernel that needs more spins for an event that takes time.
const SLICES_AT_ONCE_MAX: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This processor has something to do: run it.
    Processor(HostId, ProcessorId),
    /// No further event, unless one is caused from outside: the end, or a deadlock.
    Nothing,
}

/// A simulated world. Cheap to clone; all clones are the same world.
#[derive(Clone)]
pub struct World(pub(crate) Rc<RefCell<Inner>>);

pub(crate) struct Inner {
    pub(crate) seed: u64,
    /// Nanoseconds since the world began.
    pub(crate) now: u64,
    /// Of the time of day, in nanoseconds.
    pub(crate) clock_steps: i64,
    pub(crate) operations: Operations,
    /// Including dead ones; `alive` has the indices of the others.
    pub(crate) processors: Vec<Proc>,
    pub(crate) alive: Vec<usize>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) trees: Vec<SimTree>,
    pub(crate) files: Vec<FileEntry>,
    pub(crate) network: Network,
    events: BinaryHeap<Reverse<Event>>,
    events_made: u64,
    random: Random,
    fingerprint: u64,
    trace: bool,
    pub(crate) slice_ns: u64,
    slices_at_once: u64,
}

pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) memory: MemoryFacts,
    /// None of its processors runs.
    pub(crate) is_paused: bool,
}

/// Events at the same time happen in the order in which they were scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: u64,
    serial: u64,
    kind: EventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventKind {
    FileOpDone(OpRef),
    TreeCallDone(OpRef),
    Seen(OpRef),
    Reports,
    Arrive { endpoint: u32, bytes: u32 },
    End { endpoint: u32, reset: bool },
}

impl World {
    /// An empty world, determined by `seed`.
    pub fn new(seed: u64) -> Self {
        World(Rc::new(RefCell::new(Inner {
            seed,
            now: 0,
            clock_steps: 0,
            operations: Operations::default(),
            processors: Vec::new(),
            alive: Vec::new(),
            hosts: Vec::new(),
            disks: Vec::new(),
            trees: Vec::new(),
            files: Vec::new(),
            network: Network::new(Random::new(seed, 1)),
            events: BinaryHeap::new(),
            events_made: 0,
            random: Random::new(seed, 0),
            fingerprint: scatter(seed),
            trace: false,
            slice_ns: 0,
            slices_at_once: 0,
        })))
    }

    pub fn seed(&self) -> u64 {
        self.0.borrow().seed
    }

    pub fn now(&self) -> Instant {
        Instant::from_ns(self.0.borrow().now)
    }

    /// A hash of all events so far and their order: equal seeds must give equal ones.
    pub fn fingerprint(&self) -> u64 {
        self.0.borrow().fingerprint
    }

    /// Prints every event with its time to standard error, or stops doing so.
    pub fn trace(&self, on: bool) {
        self.0.borrow_mut().trace = on;
    }

    /// Duration of a time slice that does not park, in nanoseconds: 0 unless set.
    pub fn set_slice_ns(&self, ns: u64) {
        self.0.borrow_mut().slice_ns = ns;
    }

    /// The time of day, also that of files, jumps by so many nanoseconds, on all hosts.
    pub fn step_time_of_day(&self, by_ns: i64) {
        let mut inner = self.0.borrow_mut();
        inner.clock_steps += by_ns;
        let steps = inner.clock_steps;
        inner.trees.iter_mut().for_each(|tree| tree.clock_steps = steps);
    }

    /// Adds a host with 1 GiB of memory, half of it available.
    pub fn add_host(&self, name: &str) -> HostId {
        let mut inner = self.0.borrow_mut();
        let memory = MemoryFacts { total: 1 << 30, available: 1 << 29, group: None };
        inner.hosts.push(Host { name: name.to_owned(), memory, is_paused: false });
        HostId((inner.hosts.len() - 1) as u16)
    }

    /// Sets the memory facts that processors of `host` see.
    pub fn set_memory(&self, host: HostId, facts: MemoryFacts) {
        self.0.borrow_mut().hosts[usize::from(host.0)].memory = facts;
    }

    /// Makes the processor due now, if it has a machine. For work handed to it from outside without a doorbell.
    pub fn kick(&self, host: HostId, id: ProcessorId) {
        let mut inner = self.0.borrow_mut();
        if let Some(index) = inner.find(host, id) {
            inner.processors[index].kicked = true;
        }
    }

    /// The process on `host` is stopped (`SIGSTOP`), or goes on. Meanwhile what was sent to it arrives.
    pub fn pause(&self, host: HostId, is_paused: bool) {
        self.0.borrow_mut().hosts[usize::from(host.0)].is_paused = is_paused;
    }

    /// As [`pause`](Self::pause), one thread alone: it has lost its core to another process.
    pub fn pause_processor(&self, host: HostId, id: ProcessorId, is_paused: bool) {
        let mut inner = self.0.borrow_mut();
        if let Some(index) = inner.find(host, id) {
            inner.processors[index].is_paused = is_paused;
        }
    }

    /// Processes events, and lets time pass, until a processor has something to do. Of several, the seed chooses.
    ///
    /// A processor is due when it started an operation or one of its operations is complete, its doorbell was rung, it
    /// was [kicked](Self::kick), its last [`enter`](machine::Machine::enter) would not have parked, or its deadline for parking
    /// has passed.
    ///
    /// # Panics
    /// When processors ran a million time slices without time passing: they spin.
    pub fn step(&self) -> Step {
        self.0.borrow_mut().step(u64::MAX)
    }

    /// As [`step`](Self::step), but time passes at most until `limit`: `Nothing` then only means that no processor is
    /// due until then, and the time is `limit`.
    pub fn step_until(&self, limit: Instant) -> Step {
        let mut inner = self.0.borrow_mut();
        let step = inner.step(limit.ns());
        if step == Step::Nothing && inner.now < limit.ns() {
            inner.pass_time(limit.ns());
        }
        step
    }

    /// The seed and all values drawn from it, in a few lines for people.
    pub fn describe(&self) -> String {
        self.0.borrow().describe()
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.try_borrow() {
            Ok(inner) => f.write_str(&inner.describe()),
            Err(_) => f.write_str("World (in use)"),
        }
    }
}

impl Inner {
    fn step(&mut self, limit: u64) -> Step {
        loop {
            self.process_events();
            if let Some(index) = self.choose_due() {
                return self.run_slice(index);
            }
            match self.next_time() {
                Some(at) if at <= limit => self.pass_time(at),
                _ => return Step::Nothing,
            }
        }
    }

    fn process_events(&mut self) {
        while let Some(Reverse(event)) = self.events.peek().copied() {
            if event.at > self.now {
                return;
            }
            self.events.pop();
            self.mix(event.serial);
            self.note(|| format!("{:?}", event.kind));
            match event.kind {
                EventKind::FileOpDone(of) => self.finish_file_op(of),
                EventKind::TreeCallDone(of) => self.finish_tree_call(of),
                EventKind::Seen(of) => self.see(of),
                EventKind::Reports => take_reports(),
                EventKind::Arrive { endpoint, bytes } => self.arrive(endpoint, bytes),
                EventKind::End { endpoint, reset } => self.end(endpoint, reset),
            }
        }
    }

    fn choose_due(&mut self) -> Option<usize> {
        let now = self.now;
        let due: SmallVec<[usize; 16]> = self.running().filter(|&index| self.processors[index].is_due(now)).collect();
        match due.len() {
            0 => None,
            1 => Some(due[0]),
            _ => Some(self.random.pick(&due)),
        }
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        let is_paused = |processor: &Proc| processor.is_paused || self.hosts[usize::from(processor.host.0)].is_paused;
        self.alive.iter().copied().filter(move |index| !is_paused(&self.processors[*index]))
    }

    fn run_slice(&mut self, index: usize) -> Step {
        self.slices_at_once += 1;
        assert!(self.slices_at_once <= SLICES_AT_ONCE_MAX, "processors spin at {}: {}", self.now, self.describe());
        self.mix(index as u64);
        let processor = &mut self.processors[index];
        processor.kicked = false;
        let (host, id) = (processor.host, processor.id);
        self.note(|| format!("turn of {host:?} {id:?}"));
        Step::Processor(host, id)
    }

    fn next_time(&self) -> Option<u64> {
        let event = self.events.peek().map(|Reverse(event)| event.at);
        let wake = self.running().filter_map(|index| self.processors[index].wake_at).min();
        event.into_iter().chain(wake).min()
    }

    fn pass_time(&mut self, to: u64) {
        self.now = to;
        self.slices_at_once = 0;
    }

    pub(crate) fn find(&self, host: HostId, id: ProcessorId) -> Option<usize> {
        self.alive.iter().copied().find(|&index| {
            let processor = &self.processors[index];
            (processor.host, processor.id) == (host, id)
        })
    }

    /// Schedules `kind` for the time `at`.
    pub(crate) fn schedule(&mut self, at: u64, kind: EventKind) {
        self.events_made += 1;
        self.events.push(Reverse(Event { at, serial: self.events_made, kind }));
    }

    /// As [`complete`](Self::complete), but the starter of the operation sees its completion only `late_ns` later.
    pub(crate) fn complete_late(&mut self, of: OpRef, result: Result<u64, Errno>, late_ns: u64) {
        match self.operations.get_mut(of) {
            Some(operation) if late_ns > 0 => {
                operation.state = OpState::Unseen(result);
                self.schedule(self.now + late_ns, EventKind::Seen(of));
            }
            _ => self.complete(of, result),
        }
    }

    fn see(&mut self, of: OpRef) {
        if let Some(&mut Operation { state: OpState::Unseen(result), .. }) = self.operations.get_mut(of) {
            self.complete(of, result);
        }
    }

    /// Completes an operation in flight; its completion waits to be returned.
    pub(crate) fn complete(&mut self, of: OpRef, result: Result<u64, Errno>) {
        let Some(operation) = self.operations.get_mut(of) else {
            return;
        };
        operation.state = OpState::Done(result);
        let (processor, token) = (operation.processor, operation.token);
        self.processors[processor].done.push_back(of);
        self.mix(match result {
            Ok(n) => n,
            Err(errno) => !(errno.0 as u64),
        });
        self.note(|| format!("{token:?} complete: {result:?}"));
    }

    pub(crate) fn mix(&mut self, value: u64) {
        self.fingerprint = scatter(self.fingerprint ^ value ^ self.now.rotate_left(32));
    }

    pub(crate) fn note(&self, text: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("[seed {} {:>12} ns] {}", self.seed, self.now, text());
        }
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!("simulated world, seed {}, at {}", self.seed, Instant::from_ns(self.now));
        for (i, host) in self.hosts.iter().enumerate() {
            text += &format!("\nhost {i} `{}`", host.name);
        }
        for (i, disk) in self.disks.iter().enumerate() {
            text += &format!("\ndisk {i} of host {}: {:?}", disk.host.0, disk.drive.config);
        }
        for (i, tree) in self.trees.iter().enumerate() {
            text += &format!("\ntree {i} of host {}: {:?}", tree.host.0, tree.config);
        }
        text + &format!("\nnetwork: {:?}", self.network.config)
    }
}

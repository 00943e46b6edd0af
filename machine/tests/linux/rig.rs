//! A processor under test, and memory for it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::time::Duration;

use machine::linux::{self, Config, Engine, Error, Processors};
use machine::{Completion, Errno, File, FoundRuns, Machine, Op, Park, Region, RegionId, Segment, Segments, Token};
use policy::unit::ByteOffset;
use testkit::skip::note;

/// Runs each test on both engines. Where io_uring is forbidden only the other is tested, and the skip is noted.
macro_rules! on_both_engines {
    ($($name:ident),+ $(,)?) => {
        mod io_uring {
            $(#[test] fn $name() { crate::rig::with(machine::linux::Engine::IoUring, super::$name); })+
        }
        mod threads {
            $(#[test] fn $name() { crate::rig::with(machine::linux::Engine::Threads, super::$name); })+
        }
    };
}
pub(crate) use on_both_engines;

/// A test fails when an operation takes longer than this.
const TIMEOUT: Duration = Duration::from_secs(60);

pub fn with(engine: Engine, test: impl FnOnce(Rig)) {
    match build(engine, 1) {
        Ok(mut builders) => test(Rig::new(builders.remove(0)().expect("a machine"))),
        Err(Error::NoIoUring(reason)) => note(&format!("no io_uring: {reason}")),
        Err(error) => panic!("{error}"),
    }
}

pub fn build(engine: Engine, count: usize) -> Result<Vec<linux::Builder>, Error> {
    let config = Config { processors: Processors::Count(count), engine, pin: false, ..Config::default() };
    linux::machines(&config).map(|(builders, _)| builders)
}

/// A machine, and its completions that were not asked for yet.
pub struct Rig {
    pub machine: Box<dyn Machine>,
    next: u64,
    pub done: Vec<Completion>,
}

impl Rig {
    pub fn new(machine: Box<dyn Machine>) -> Self {
        Rig { machine, next: 0, done: Vec::new() }
    }

    pub fn start(&mut self, op: Op) -> Token {
        self.next += 1;
        let token = Token(self.next);
        // SAFETY: all tests hold their memory until they have waited for the completion or dropped the machine.
        unsafe { self.machine.start(token, op) };
        token
    }

    /// Parks until the operation is complete.
    pub fn wait(&mut self, token: Token) -> Result<u64, Errno> {
        let deadline = self.machine.now() + TIMEOUT;
        loop {
            if let Some(at) = self.done.iter().position(|c| c.token == token) {
                return self.done.swap_remove(at).result;
            }
            assert!(self.machine.now() < deadline, "{token:?} never completed");
            self.machine.enter(Park::Until { deadline: Some(deadline), requests: 0 }, &mut self.done);
        }
    }

    pub fn run(&mut self, op: Op) -> Result<u64, Errno> {
        let token = self.start(op);
        self.wait(token)
    }

    /// Starts and ends of the runs of data in `within`, and how far they were looked for.
    pub fn find_data(
        &mut self,
        file: File,
        within: Range<u64>,
        runs_max: usize,
    ) -> (Vec<(u64, u64)>, Result<u64, Errno>) {
        let runs = FoundRuns::default();
        let within = ByteOffset(within.start).to(ByteOffset(within.end));
        let end = self.run(Op::FindData { file, within, runs_max, runs: runs.clone() });
        let runs = runs.lock().iter().map(|run| (run.at.0, run.end().0)).collect();
        (runs, end)
    }
}

pub struct Memory {
    base: *mut u8,
    len: usize,
    pub region: Option<RegionId>,
}

impl Memory {
    pub fn new(len: usize) -> Self {
        // SAFETY: no test asks for a length of 0.
        let base = unsafe { alloc_zeroed(Self::layout(len)) };
        assert!(!base.is_null());
        let region = None;
        Memory { base, len, region }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, 4096).expect("a valid size")
    }

    pub fn filled(len: usize, seed: u64) -> Self {
        let mut memory = Memory::new(len);
        for (k, byte) in memory.bytes_mut().iter_mut().enumerate() {
            *byte = pattern(k as u64 + seed);
        }
        memory
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is owned, and tests read it only when no operation writes to it.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }

    pub fn segment(&self, at: usize, len: usize) -> Segment {
        assert!(at + len <= self.len);
        Segment { ptr: self.base.wrapping_add(at), len: len as u32, region: self.region }
    }

    /// Segments of these offsets and lengths, in this order.
    pub fn segments(&self, pieces: &[(usize, usize)]) -> Segments {
        pieces.iter().map(|&(at, len)| self.segment(at, len)).collect()
    }

    pub fn all(&self) -> Segments {
        self.segments(&[(0, self.len)])
    }

    pub fn offer(&mut self, machine: &mut dyn Machine, id: u16) {
        self.region = Some(RegionId(id));
        // Declined beyond the limit of locked memory, which changes no result.
        let _ = machine.offer_region(Region { id: RegionId(id), base: self.base, len: self.len });
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout.
        unsafe { dealloc(self.base, Self::layout(self.len)) };
    }
}

/// A byte that depends on its position, with a period that is not a power of two.
pub fn pattern(at: u64) -> u8 {
    (at % 251) as u8 ^ (at / 65521) as u8
}

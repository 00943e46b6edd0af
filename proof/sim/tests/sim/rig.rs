//! Machines in one world, driven together.

use std::collections::BTreeMap;

use machine::tree::TreeOp;
use machine::{
    Completion, Connection, Errno, File, FoundRuns, Listener, Machine, Op, OpenFile, Park, Segment, Segments, Token,
};
use policy::unit::{ByteOffset, ByteRange, ProcessorId, Stability};
use sim::{DiskConfig, DiskId, HostId, Step, World};
use smallvec::smallvec;

pub type Outcome = Result<u64, Errno>;

/// One processor with the memory of its operations.
pub struct Side {
    pub host: HostId,
    pub id: ProcessorId,
    pub machine: Box<dyn Machine>,
    memory: BTreeMap<u64, Vec<u8>>,
    pub outcomes: BTreeMap<u64, Outcome>,
    /// In the order of completion.
    pub order: Vec<u64>,
    next: u64,
}

impl Side {
    pub fn new(world: &World, host: HostId, id: u16) -> Self {
        let id = ProcessorId(id);
        Side {
            host,
            id,
            machine: world.machine(host, id),
            memory: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            order: Vec::new(),
            next: 0,
        }
    }

    fn start(&mut self, bytes: Vec<u8>, op: impl FnOnce(Segments) -> Op) -> u64 {
        let token = self.next;
        self.next += 1;
        let bytes = self.memory.entry(token).or_insert(bytes);
        // Two segments where there is room for two, so that their boundary is tested.
        let half = if bytes.len() >= 8192 { bytes.len() / 2 / 4096 * 4096 } else { bytes.len() };
        let (first, second) = bytes.split_at_mut(half);
        let segment = |part: &mut [u8]| Segment { ptr: part.as_mut_ptr(), len: part.len() as u32, region: None };
        let mut segments: Segments = smallvec![segment(first)];
        if !second.is_empty() {
            segments.push(segment(second));
        }
        // SAFETY: the memory stays in the map, untouched, until `take`, and `Side` drops the machine before it.
        unsafe { self.machine.start(Token(token), op(segments)) };
        token
    }

    pub fn write(&mut self, file: File, at: u64, bytes: Vec<u8>, stability: Stability) -> u64 {
        self.start(bytes, |from| Op::Write { file, at: ByteOffset(at), from, stability })
    }

    pub fn read(&mut self, file: File, at: u64, len: usize) -> u64 {
        self.start(vec![0xee; len], |into| Op::Read { file, at: ByteOffset(at), into })
    }

    pub fn flush(&mut self, file: File) -> u64 {
        self.start(vec![0], |_| Op::Flush { file })
    }

    pub fn write_back(&mut self, file: File) -> u64 {
        self.start(vec![0], |_| Op::WriteBack { file })
    }

    pub fn zero(&mut self, file: File, at: u64, len: u64, may_release: bool) -> u64 {
        self.start(vec![0], |_| Op::Zero { file, at: ByteOffset(at), len, may_release })
    }

    pub fn discard(&mut self, file: File, at: u64, len: u64) -> u64 {
        self.start(vec![0], |_| Op::Discard { file, at: ByteOffset(at), len })
    }

    pub fn find_data(&mut self, file: File, within: ByteRange, runs_max: usize, runs: &FoundRuns) -> u64 {
        self.start(vec![0], |_| Op::FindData { file, within, runs_max, runs: runs.clone() })
    }

    pub fn accept(&mut self, listener: Listener) -> u64 {
        self.start(vec![0], |_| Op::Accept { listener })
    }

    pub fn receive(&mut self, connection: Connection, len: usize) -> u64 {
        self.start(vec![0xee; len], |into| Op::Receive { connection, into })
    }

    pub fn send(&mut self, connection: Connection, bytes: Vec<u8>) -> u64 {
        self.start(bytes, |from| Op::Send { connection, from })
    }

    pub fn ask(&mut self, op: TreeOp) -> u64 {
        self.start(vec![0], |_| Op::Tree(Box::new(op)))
    }

    /// Enters the machine, parking until something happens, and records what is complete.
    pub fn run_slice(&mut self) {
        self.enter(Park::Until { deadline: None, requests: 0 });
    }

    pub fn enter(&mut self, park: Park) -> usize {
        let mut done: Vec<Completion> = Vec::new();
        self.machine.enter(park, &mut done);
        for completion in &done {
            let before = self.outcomes.insert(completion.token.0, completion.result);
            assert!(before.is_none(), "{:?} completed twice", completion.token);
            self.order.push(completion.token.0);
        }
        done.len()
    }

    /// Changes the memory of a write in flight.
    pub fn overwrite(&mut self, token: u64, bytes: &[u8]) {
        if let Some(memory) = self.memory.get_mut(&token) {
            memory.copy_from_slice(bytes);
        }
    }

    /// The result of a completed operation, and its memory.
    pub fn take(&mut self, token: u64) -> (Outcome, Vec<u8>) {
        let outcome = self.outcomes[&token];
        (outcome, self.memory.remove(&token).unwrap_or_default())
    }
}

/// Runs until nothing happens any more.
pub fn run(world: &World, sides: &mut [&mut Side]) {
    while let Step::Processor(host, id) = world.step() {
        run_slice_of(sides, host, id);
    }
}

pub fn run_slice_of(sides: &mut [&mut Side], host: HostId, id: ProcessorId) {
    let side = sides.iter_mut().find(|side| (side.host, side.id) == (host, id));
    side.expect("a due processor has a machine").run_slice();
}

/// One host, one processor, one disk.
pub struct Rig {
    pub world: World,
    pub host: HostId,
    pub disk: DiskId,
    pub open: OpenFile,
    pub side: Side,
}

impl Rig {
    pub fn new(seed: u64, config: DiskConfig) -> Self {
        let world = World::new(seed);
        let host = world.add_host("server");
        let disk = world.add_disk(host, config);
        let open = world.open(disk, true);
        let side = Side::new(&world, host, 0);
        Rig { world, host, disk, open, side }
    }

    pub fn file(&self) -> File {
        self.open.file
    }

    pub fn run(&mut self) {
        run(&self.world, &mut [&mut self.side]);
    }

    /// Starts an operation, waits for it and returns its result and memory.
    pub fn perform(&mut self, start: impl FnOnce(&mut Side, File) -> u64) -> (Outcome, Vec<u8>) {
        let token = start(&mut self.side, self.open.file);
        self.run();
        self.side.take(token)
    }

    pub fn write(&mut self, at: u64, bytes: Vec<u8>) -> Outcome {
        self.perform(|side, file| side.write(file, at, bytes, Stability::Unstable)).0
    }

    pub fn flush(&mut self) -> Outcome {
        self.perform(|side, file| side.flush(file)).0
    }

    pub fn read(&mut self, at: u64, len: usize) -> (Outcome, Vec<u8>) {
        self.perform(|side, file| side.read(file, at, len))
    }

    /// Cuts the power and restarts the processor.
    pub fn power_cut(&mut self) {
        self.world.power_cut(self.host);
        self.side = Side::new(&self.world, self.host, 0);
    }

    pub fn kill(&mut self) {
        self.world.kill(self.host);
        self.side = Side::new(&self.world, self.host, 0);
    }
}

/// Sectors of 512 bytes, each full of one number: `stamp`.
pub fn stamped(sectors: usize, stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(sectors * 64)
}

/// The number that fills a sector; `None` when it is mixed.
pub fn stamp_of(sector: &[u8]) -> Option<u64> {
    let stamp = u64::from_le_bytes(sector[..8].try_into().ok()?);
    (sector == stamped(1, stamp)).then_some(stamp)
}

pub fn stamps_of(bytes: &[u8]) -> Vec<Option<u64>> {
    bytes.chunks(512).map(stamp_of).collect()
}

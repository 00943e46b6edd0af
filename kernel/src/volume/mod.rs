//! A volume: a device behind the buffer cache. Services read and write volumes.
//!
//! Ranges are bytes, of any alignment. Whole blocks are never copied: a read returns references to the cache's frames,
//! and a write installs the frames it is given.
//!
//! A block is absent, loading or cached; a cached block may be dirty, writing, unflushed, or several of these. The
//! flags are in the shard, the sets in the volume. Only `write_out` moves blocks from dirty to writing, only `flush`
//! from unflushed to clean. Lock order: a shard, then a volume's state.

mod cleared;
mod dirty;
mod extents;
mod flush;
mod follow;
mod foreign;
mod holes;
mod load;
mod marked;
mod owners;
mod parts;
mod read;
mod shared;
mod size;
mod trouble;
mod write;
mod write_back;
mod write_batch;
mod write_out;
mod zero;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use machine::Errno;
use parking_lot::Mutex;
use policy::readahead::{self, ReadAhead};
use policy::unflushed::Unflushed;
use policy::unit::{BLOCK_BYTES, BlockNo, BlockRange, ByteOffset, ByteRange, DeviceId, ProcessorId};

use crate::Kernel;
use crate::block_key::BlockKey;
use crate::block_set::BlockSet;
use crate::cache::Shard;
use crate::counters::CountedGuard;
use crate::device::{DeviceFacts, DeviceNumbers, DeviceRef, TooManyDevices, contains};
use crate::export::ExportNo;
use crate::job::Jobs;
use crate::memory::Memory;
use crate::processor::Mailbox;
use crate::rendezvous::Rendezvous;
use crate::request::Context;
use crate::wait::{RangeWaitList, SequenceWaitList, WaitList};
use cleared::Cleared;
use dirty::Dirty;
pub use extents::Extent;
pub use foreign::ForeignFlush;
use foreign::ForeignFlushes;
use holes::Holes;
pub use load::{Lookup, Reading};
use owners::Owners;
use parts::Parts;
pub use shared::{Change, Coherence, Known, WrittenBy};
use size::{Gate, Growth};
pub use trouble::Loss;
use trouble::Trouble;
use write_back::Early;
use write_out::Busy;

/// Which stable writes use forced unit access; the others are a write and a flush, which several writers can share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForcedUnitAccess {
    #[default]
    Never,
    /// Those that have no concurrent flush to share.
    Alone,
    Always,
}

#[derive(Clone, Debug)]
pub struct VolumeConfig {
    pub name: String,
    pub read_only: bool,
    /// Set by what was measured to be cheaper: FUA, or write and flush.
    pub forced_unit_access: ForcedUnitAccess,
    /// Does a write beyond the end extend it, as for a file?
    pub grows: bool,
}

/// The result of an operation that may have to read blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it need not have been done"]
pub enum Attempt<T> {
    Done(T),
    /// The content was changed by others meanwhile: revalidate and retry.
    Changed,
}

impl<T> Attempt<T> {
    /// For a volume that only we change.
    fn required(self) -> Result<T, Errno> {
        match self {
            Attempt::Done(value) => Ok(value),
            Attempt::Changed => Err(Errno::IO),
        }
    }
}

/// Largest size of a volume, in bytes: what the blocks' numbers in the cache allow.
pub const VOLUME_BYTES_MAX: u64 = 1 << 60;

/// Largest size of a volume that grows, in bytes: its sum with any single write stays below [`VOLUME_BYTES_MAX`].
pub const GROWING_BYTES_MAX: u64 = 1 << 59;

/// Blocks processed between two yields.
const BLOCKS_AT_ONCE: u64 = 4096;

/// A device seen through the buffer cache.
pub struct Volume {
    /// For the tasks that it starts.
    this: Weak<Volume>,
    config: VolumeConfig,
    memory: Arc<Memory>,
    jobs: Arc<Jobs>,
    numbers: Arc<DeviceNumbers>,
    device: DeviceRef,
    /// If other nodes cache its blocks, too.
    coherence: Option<Arc<dyn Coherence>>,
    facts: DeviceFacts,
    /// Bytes; the device is shorter until the blocks that extend it are written.
    size: AtomicU64,
    /// See [`Volume::blocks_end`].
    blocks_end: AtomicU64,
    id: DeviceId,
    state: Mutex<State>,
    /// A write to the device ended, or a barrier was lifted.
    settled: WaitList,
    /// A write to the device ended.
    settled_within: RangeWaitList,
    /// All writes to the device up to a sequence number ended.
    settled_up_to: SequenceWaitList,
    /// As `settled_up_to`, of forced writes only.
    forced_up_to: SequenceWaitList,
    /// The processor of its write-back.
    home: Arc<Mailbox>,
    write_back: write_back::Task,
    read_ahead: Mutex<ReadAhead>,
    /// Blocks for which readers wait.
    blocks_awaited: AtomicU64,
    /// Ranges being zeroed or discarded; loading is refused while there are any that overlap.
    barriers: AtomicU32,
    flushes: Rendezvous<()>,
    growths: Rendezvous<Growth>,
    foreign: ForeignFlushes,
    early: Mutex<Early>,
    /// Dirty blocks at most, by the disk's measured rate.
    dirty_limit: AtomicU64,
    /// Nanoseconds for which write-back leaves the flush of what it has written to others.
    flush_delay: AtomicU64,
    /// Was anything abandoned before the device had it?
    has_abandoned: AtomicBool,
    closing: AtomicBool,
    gate: Gate,
    /// For a file, which others may change: the bytes that its writers sent.
    parts: Parts,
    export: AtomicU16,
}

#[derive(Default)]
struct State {
    /// Newer in the cache than on the device; no write has been issued.
    dirty: Dirty,
    /// A write is in flight.
    writing: BlockSet,
    /// The blocks of writes in flight that fill holes: both `writing` ones and those around them.
    filling: BlockSet,
    holes: Holes,
    /// Which job wrote the blocks of `dirty` and `writing`.
    owners: Owners,
    /// Written to the device since its last successful flush.
    unflushed: Unflushed<BlockSet>,
    /// What was in `unflushed` when flushes failed, until all of it is dirty again and the failures are counted: without it,
    /// others would take the blocks for durable meanwhile.
    repeating: Vec<Arc<BlockSet>>,
    /// Written by other nodes: as they are cached, none of them is dirty, being written or in `unflushed`.
    marked: BlockSet,
    /// Being zeroed or discarded.
    barriers: Vec<BlockRange>,
    /// Numbers writes to the device in the order of their start.
    sequence: u64,
    /// The newest number when a flush failed: the device may have lost any write up to it.
    suspect: u64,
    /// Counts writes that succeeded but must be repeated because a flush failed while they were in flight.
    rewrites: u64,
    /// Numbers of the writes in flight.
    under_way: BTreeSet<u64>,
    /// The forced ones among them.
    forced: BTreeSet<u64>,
    /// Counts failed writes. Their blocks are dirty again.
    failures: u64,
    last_failure: Option<Errno>,
    trouble: Trouble,
    /// What the disk has taken since write-back last looked.
    busy: Busy,
    /// Counts failed flushes.
    flush_failures: u64,
    cleared: Cleared,
    /// Counts completed changes of the device: writes, zeroing, discarding.
    changes: u64,
    /// How many of them a successful flush covers, with forced writes since; `None` before the first flush, which is never
    /// skipped.
    changes_flushed: Option<u64>,
    /// Something was abandoned before the device had it: nothing can be promised any more.
    lost: Option<Errno>,
}

impl Volume {
    /// Opens a volume on `device`, with its write-back on processor `home`.
    ///
    /// # Errors
    /// When too many are open.
    pub fn open(
        kernel: &Arc<Kernel>,
        device: DeviceRef,
        config: VolumeConfig,
        home: ProcessorId,
    ) -> Result<Arc<Self>, TooManyDevices> {
        Volume::open_as(kernel, device, None, config, home)
    }

    fn open_as(
        kernel: &Arc<Kernel>,
        device: DeviceRef,
        coherence: Option<Arc<dyn Coherence>>,
        config: VolumeConfig,
        home: ProcessorId,
    ) -> Result<Arc<Self>, TooManyDevices> {
        let numbers = Arc::clone(&kernel.served().devices);
        let id = numbers.take()?;
        let facts = device.facts();
        let read_ahead = readahead::Config { mode: kernel.switches().read_ahead, ..readahead::Config::default() };
        // What others may write is not filled.
        let may_fill =
            coherence.is_none() && !config.grows && !config.read_only && facts.writable && facts.may_be_sparse;
        let state = State { holes: if may_fill { Holes::awaited() } else { Holes::default() }, ..State::default() };
        let early = if config.grows { Early::of_file() } else { Early::default() };
        let volume = Arc::new_cyclic(|this| Volume {
            this: Weak::clone(this),
            config: VolumeConfig { read_only: config.read_only || !facts.writable, ..config },
            memory: Arc::clone(kernel.memory()),
            jobs: Arc::clone(kernel.jobs()),
            numbers,
            device,
            coherence,
            facts,
            size: AtomicU64::new(facts.size),
            blocks_end: AtomicU64::new(facts.size.div_ceil(BLOCK_BYTES)),
            id,
            state: Mutex::new(state),
            settled: WaitList::default(),
            settled_within: RangeWaitList::default(),
            settled_up_to: SequenceWaitList::default(),
            forced_up_to: SequenceWaitList::default(),
            home: Arc::clone(kernel.mailbox(home)),
            write_back: write_back::Task::default(),
            read_ahead: Mutex::new(ReadAhead::new(read_ahead)),
            blocks_awaited: AtomicU64::new(0),
            barriers: AtomicU32::new(0),
            flushes: Rendezvous::default(),
            // Shared by the callers that wait for the flush after it.
            growths: Rendezvous::default(),
            foreign: ForeignFlushes::default(),
            early: Mutex::new(early),
            flush_delay: AtomicU64::new(0),
            dirty_limit: AtomicU64::new(write_back::dirty_limit_at_first(kernel.switches().smooth_write_back)),
            has_abandoned: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            gate: Gate::default(),
            parts: Parts::default(),
            export: AtomicU16::new(ExportNo::NONE.0),
        });
        if may_fill {
            // It looks for holes first.
            volume.start_write_back();
        }
        Ok(volume)
    }

    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The export to record for requests that name none.
    pub fn export(&self) -> ExportNo {
        ExportNo(self.export.load(Ordering::Relaxed))
    }

    pub fn set_export(&self, export: ExportNo) {
        self.export.store(export.0, Ordering::Relaxed);
    }

    fn with_export(&self, context: Context) -> Context {
        if context.export == ExportNo::NONE { context.of_export(self.export()) } else { context }
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn volume_end(&self) -> ByteOffset {
        ByteOffset(self.size())
    }

    pub fn read_only(&self) -> bool {
        self.config.read_only
    }

    pub fn facts(&self) -> DeviceFacts {
        DeviceFacts { size: self.size(), ..self.facts }
    }

    /// Bypasses the cache.
    pub fn device(&self) -> &DeviceRef {
        &self.device
    }

    /// Dirty blocks, including those being written.
    pub fn dirty_blocks(&self) -> u64 {
        let state = self.state.lock();
        state.dirty.len() + state.writing.len()
    }

    /// Blocks whose content is not durable. One that was written again since it was sent counts twice.
    pub fn undurable_blocks(&self) -> u64 {
        let state = self.state.lock();
        state.dirty.len() + state.writing.len() + state.not_durable().map(BlockSet::len).sum::<u64>()
    }

    /// Is the device as new as the cache, and flushed?
    pub fn is_clean(&self) -> bool {
        self.state.lock().is_clean()
    }

    /// Counts the changes of the device.
    pub fn changes(&self) -> u64 {
        self.state.lock().changes
    }

    /// Counts writes and flushes of the device that failed.
    pub fn failures_so_far(&self) -> u64 {
        let state = self.state.lock();
        state.failures + state.flush_failures
    }

    /// What can be read, in bytes: a file on the host may be larger than a volume can be.
    fn readable_size(&self) -> u64 {
        self.size().min(VOLUME_BYTES_MAX)
    }

    fn check(&self, range: ByteRange) -> Result<(), Errno> {
        if contains(self.readable_size(), range) { Ok(()) } else { Err(Errno::INVALID) }
    }

    fn check_writable(&self, range: ByteRange) -> Result<(), Errno> {
        let size_max = if self.config.grows { GROWING_BYTES_MAX } else { self.readable_size() };
        if !contains(size_max, range) {
            return Err(if self.config.grows { Errno::FILE_TOO_LARGE } else { Errno::INVALID });
        }
        if self.config.read_only { Err(Errno::READ_ONLY) } else { Ok(()) }
    }

    /// The bytes of a run of blocks, cut at the end of the device.
    fn bytes_of(&self, blocks: BlockRange) -> ByteRange {
        self.clip(blocks.bytes())
    }

    /// Blocks of the largest useful transfer.
    fn transfer_blocks_max(&self) -> u64 {
        (u64::from(self.facts.transfer_bytes_max) / BLOCK_BYTES).clamp(1, 256)
    }

    /// To be called before a block enters the cache.
    fn note_block(&self, block: BlockNo) {
        if block >= self.blocks_end() {
            self.blocks_end.fetch_max(block.0 + 1, Ordering::SeqCst);
        }
    }

    /// Every block that is cached is below this one.
    fn blocks_end(&self) -> BlockNo {
        BlockNo(self.blocks_end.load(Ordering::SeqCst))
    }

    fn key(&self, block: BlockNo) -> BlockKey {
        BlockKey::new(self.id, block)
    }

    /// Locks the cache's shard of `block`.
    fn lock_shard(&self, block: BlockNo) -> CountedGuard<'_, Shard> {
        self.memory.cache().lock(self.key(block))
    }

    /// May `blocks` enter the cache now, whose shard is locked? The owner of a barrier looks for them under that lock, below
    /// the end that it finds: either it finds them, or its barrier is seen here.
    fn may_enter(&self, blocks: BlockRange) -> bool {
        self.note_block(blocks.end - 1);
        // The owner of a barrier that has just gone may have lowered the end.
        !self.is_barred(blocks) && self.blocks_end() >= blocks.end
    }

    /// Does a barrier lie on any of `blocks`?
    fn is_barred(&self, blocks: BlockRange) -> bool {
        self.barriers.load(Ordering::SeqCst) > 0 && self.state.lock().is_barred(blocks)
    }
}

impl State {
    fn is_barred(&self, blocks: BlockRange) -> bool {
        self.barriers.iter().any(|barrier| barrier.overlaps(blocks))
    }

    fn is_clean(&self) -> bool {
        self.dirty.is_empty() && !self.has_unflushed() && self.under_way.is_empty() && self.cleared.is_empty()
    }

    /// What was written to the device and no flush has covered yet.
    fn not_durable(&self) -> impl Iterator<Item = &BlockSet> {
        self.unflushed.both().into_iter().chain(self.repeating.iter().map(Arc::as_ref))
    }

    fn has_unflushed(&self) -> bool {
        self.not_durable().any(|set| !set.is_empty())
    }

    /// A block that was written again since the flush in flight began counts twice.
    fn unflushed_len(&self) -> u64 {
        self.unflushed.both().iter().map(|set| set.len()).sum()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let (dirty, stuck) = {
            let mut state = self.state.lock();
            let dirty = state.dirty.len();
            self.note_clean(&mut state, dirty);
            drop(self.take_marked(&mut state));
            (dirty, state.trouble.reported())
        };
        self.memory.subtract_dirty(dirty);
        self.memory.change_stuck(stuck, 0);
        self.memory.cache().forget_device(self.id, self.blocks_end(), self.memory.frames());
        self.numbers.give_back(self.id);
    }
}

//! A volume: a device seen through the buffer cache. What services read and write.
//!
//! Ranges are bytes, of any alignment. Whole blocks are never copied: a read hands out shares in the cache's frames, a
//! write puts the frames that it is given into the cache.
//!
//! A block is absent, loading or there; if it is there, it may be dirty, writing, unflushed, or several of these. The
//! shard has the flags and the volume the sets. Only `write_out` makes dirty blocks writing, only `flush` makes unflushed
//! blocks clean. Lock order: a shard, then a volume's state.

mod block_set;
mod cleared;
mod dirty;
mod extents;
mod flush;
mod follow;
mod foreign;
mod load;
mod owners;
mod parts;
mod size;
mod trouble;
mod write;
mod write_back;
mod write_out;
mod zero;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use machine::Errno;
use policy::readahead::{self, ReadAhead};
use policy::unit::{BLOCK_BYTES, ByteRange, DeviceId, ProcessorId};

use crate::Kernel;
use crate::device::{DeviceFacts, DeviceRef, contains};
use crate::export::ExportNo;
use crate::kernel::KernelError;
use crate::rendezvous::Rendezvous;
use crate::request::Context;
use crate::wait::{RangeWaitList, WaitList};
use block_set::BlockSet;
use cleared::Cleared;
use dirty::Dirty;
pub use extents::Extent;
pub use foreign::ForeignFlush;
use foreign::ForeignFlushes;
use owners::Owners;
use parts::Parts;
use size::{Gate, Growth};
pub use trouble::Loss;
use trouble::Trouble;
use write_back::Early;
use write_out::Busy;

/// Which stable writes use forced unit access; the others are a write and a flush, which several can share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForcedUnitAccess {
    /// None.
    #[default]
    Never,
    /// Those beside which nobody else wants a flush.
    Alone,
    Always,
}

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    pub name: String,
    pub read_only: bool,
    /// Forced unit access for stable writes, instead of write and flush, by what was measured to be cheaper.
    pub forced_unit_access: ForcedUnitAccess,
    /// Does a write beyond the end make it longer, as that of a file?
    pub grows: bool,
}

/// Largest size of a volume, in bytes: what the blocks' numbers in the cache allow.
pub const VOLUME_BYTES_MAX: u64 = 1 << 60;

/// Largest size of a volume that grows. Bytes: so that no sum with what is written at once exceeds that.
const GROWING_BYTES_MAX: u64 = 1 << 59;

/// A device seen through the buffer cache.
pub struct Volume {
    /// Itself, for the tasks that it starts.
    this: Weak<Volume>,
    config: VolumeConfig,
    kernel: Arc<Kernel>,
    device: DeviceRef,
    facts: DeviceFacts,
    /// Bytes; the device has fewer as long as it was not written what the volume grew by.
    size: AtomicU64,
    /// All of its blocks that are or were in the cache are below this one.
    blocks_end: AtomicU64,
    id: DeviceId,
    state: Mutex<State>,
    /// A write to the device ended, or a barrier was lifted.
    settled: WaitList,
    /// A write to the device ended.
    settled_within: RangeWaitList,
    dirtied: WaitList,
    read_ahead: Mutex<ReadAhead>,
    /// Blocks for which readers wait.
    blocks_awaited: AtomicU64,
    /// Ranges being zeroed or discarded; loading is refused while there are any that overlap.
    barriers: AtomicU32,
    flushes: Rendezvous<()>,
    growths: Rendezvous<Growth>,
    foreign: ForeignFlushes,
    early: Mutex<Early>,
    /// Blocks that may be dirty, by what the disk takes.
    dirty_limit: AtomicU64,
    /// Was anything forgotten that the device does not have?
    has_given_up: AtomicBool,
    closing: AtomicBool,
    gate: Gate,
    /// Of a file: others may change what its writers have not sent.
    parts: Parts,
    export: AtomicU16,
}

/// What a volume knows of its blocks.
#[derive(Default)]
struct State {
    /// Newer in the cache than on the device, and not yet on their way.
    dirty: Dirty,
    /// On their way to the device.
    writing: BlockSet,
    /// Who wrote what of both.
    owners: Owners,
    /// Written to the device since its last successful flush.
    unflushed: BlockSet,
    /// What the flush that is under way covers; nothing otherwise.
    flushing: BlockSet,
    /// Being zeroed or discarded.
    barriers: Vec<Range<u64>>,
    /// Numbers writes to the device in the order in which they start.
    sequence: u64,
    /// A flush failed after this number was given: writes up to it may be among what the device lost.
    suspect: u64,
    /// Counts writes that succeeded and must be done again all the same, since a flush failed while they were under way.
    rewrites: u64,
    /// The numbers of those under way.
    under_way: BTreeSet<u64>,
    /// Of these, the forced ones.
    forced: BTreeSet<u64>,
    /// Writes that failed, with the last error. Their blocks are dirty again.
    failures: u64,
    last_failure: Option<Errno>,
    trouble: Trouble,
    /// What the disk has taken since write-back looked.
    busy: Busy,
    /// Flushes of the device that failed.
    flush_failures: u64,
    cleared: Cleared,
    /// Counts the changes of the device that ended: writes, zeroing, discarding.
    changes: u64,
    /// How many of them are covered by a successful flush; `None` before the first flush, which is never left out.
    changes_flushed: Option<u64>,
    /// Something was forgotten before the device had it: nothing can be promised any more.
    lost: Option<Errno>,
}

impl Volume {
    /// Opens a volume on `device`, and starts its write-back on processor `home`.
    ///
    /// # Errors
    /// [`KernelError::TooManyDevices`].
    pub fn open(
        kernel: &Arc<Kernel>,
        device: DeviceRef,
        config: VolumeConfig,
        home: ProcessorId,
    ) -> Result<Arc<Self>, KernelError> {
        let id = kernel.number_device()?;
        let facts = device.facts();
        let read_ahead = readahead::Config { mode: kernel.switches().read_ahead, ..readahead::Config::default() };
        let volume = Arc::new_cyclic(|this| Volume {
            this: Weak::clone(this),
            config: VolumeConfig { read_only: config.read_only || !facts.writable, ..config },
            kernel: Arc::clone(kernel),
            device,
            facts,
            size: AtomicU64::new(facts.size),
            blocks_end: AtomicU64::new(facts.size.div_ceil(BLOCK_BYTES)),
            id,
            state: Mutex::default(),
            settled: WaitList::default(),
            settled_within: RangeWaitList::default(),
            dirtied: WaitList::default(),
            read_ahead: Mutex::new(ReadAhead::new(read_ahead)),
            blocks_awaited: AtomicU64::new(0),
            barriers: AtomicU32::new(0),
            flushes: Rendezvous::default(),
            // The flush after it is what they wait for.
            growths: Rendezvous::in_bursts(),
            foreign: ForeignFlushes::default(),
            early: Mutex::default(),
            dirty_limit: AtomicU64::new(write_back::dirty_limit_at_first(kernel.switches().smooth_write_back)),
            has_given_up: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            gate: Gate::default(),
            parts: Parts::default(),
            export: AtomicU16::new(ExportNo::NONE.0),
        });
        if !volume.config.read_only {
            let this = Arc::downgrade(&volume);
            kernel.mailbox(home).start(move |cpu| cpu.clone().spawn_path(write_back::run(cpu, this)));
        }
        Ok(volume)
    }

    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The export that what is done here is recorded with, where a request names none.
    pub fn export(&self) -> ExportNo {
        ExportNo(self.export.load(Ordering::Relaxed))
    }

    pub fn set_export(&self, export: ExportNo) {
        self.export.store(export.0, Ordering::Relaxed);
    }

    fn with_export(&self, context: Context) -> Context {
        if context.export == ExportNo::NONE { context.of_export(self.export()) } else { context }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub fn read_only(&self) -> bool {
        self.config.read_only
    }

    /// What is known of its device.
    pub fn facts(&self) -> DeviceFacts {
        DeviceFacts { size: self.size(), ..self.facts }
    }

    /// The device itself, without the cache.
    pub fn device(&self) -> &DeviceRef {
        &self.device
    }

    /// Blocks that are newer than on the device or on their way there.
    pub fn dirty_blocks(&self) -> u64 {
        let state = self.state();
        state.dirty.len() + state.writing.len()
    }

    /// Is the device as new as the cache, and flushed?
    pub fn is_clean(&self) -> bool {
        let state = self.state();
        [state.dirty.all(), &state.unflushed, &state.flushing].iter().all(|set| set.is_empty())
            && state.under_way.is_empty()
            && state.cleared.is_empty()
    }

    /// Counts the changes of the device.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Counts writes and flushes of the device that failed.
    pub fn failures_so_far(&self) -> u64 {
        let state = self.state();
        state.failures + state.flush_failures
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, range: ByteRange) -> Result<(), Errno> {
        // A file on the host may be larger than what can be served.
        if contains(self.size().min(VOLUME_BYTES_MAX), range) { Ok(()) } else { Err(Errno::INVALID) }
    }

    fn check_writable(&self, range: ByteRange) -> Result<(), Errno> {
        let size_max = if self.config.grows { GROWING_BYTES_MAX } else { self.size().min(VOLUME_BYTES_MAX) };
        if !contains(size_max, range) {
            return Err(if self.config.grows { Errno::FILE_TOO_LARGE } else { Errno::INVALID });
        }
        if self.config.read_only { Err(Errno::READ_ONLY) } else { Ok(()) }
    }

    /// The bytes of a run of blocks, cut at the end of the device.
    fn bytes_of(&self, blocks: Range<u64>) -> ByteRange {
        let at = blocks.start * BLOCK_BYTES;
        ByteRange::new(at, (blocks.end * BLOCK_BYTES).min(self.size()).saturating_sub(at))
    }

    /// Blocks of the largest transfer worth asking for.
    fn transfer_blocks_max(&self) -> u64 {
        (u64::from(self.facts.transfer_bytes_max) / BLOCK_BYTES).clamp(1, 256)
    }

    /// A block is about to enter the cache.
    fn note_block(&self, block: u64) {
        if block >= self.blocks_end.load(Ordering::Relaxed) {
            self.blocks_end.fetch_max(block + 1, Ordering::Relaxed);
        }
    }

    /// Does a barrier lie on any of `blocks`?
    fn is_barred(&self, blocks: &Range<u64>) -> bool {
        self.barriers.load(Ordering::SeqCst) > 0 && self.state().is_barred(blocks)
    }

    fn read_ahead(&self) -> MutexGuard<'_, ReadAhead> {
        self.read_ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_barred(&self, blocks: &Range<u64>) -> bool {
        self.barriers.iter().any(|barrier| barrier.start < blocks.end && blocks.start < barrier.end)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let (dirty, stuck) = {
            let mut state = self.state();
            let dirty = state.dirty.len();
            self.note_clean(&mut state, dirty);
            (dirty, state.trouble.told())
        };
        self.kernel.subtract_dirty(dirty);
        self.kernel.change_stuck(stuck, 0);
        self.kernel.return_device(self.id, self.blocks_end.load(Ordering::Relaxed));
    }
}

//! The pool of frames: one reservation of address space, filled and emptied chunk by chunk.
//!
//! A chunk is the unit that is taken from the host, registered with the machines and given back. It is a huge page or
//! several. Memory locks: at most one free list, or the chunk table and then free lists; never two free lists.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use machine::{Machine, RegionId};
use policy::pages::PageSize;
use policy::unit::ProcessorId;

use super::free::FreeLists;
use super::region::{Followed, RegionLog};
use super::reserve::reserve;
use super::{FRAME_BYTES, FrameRef, Frames};

/// Names a frame of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNo(pub u32);

/// How a pool is laid out. Bytes.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Address space to reserve; the pool never holds more. A multiple of the chunk.
    pub bytes_max: u64,
    /// Bytes in a chunk: a power of two of at least one frame.
    pub chunk_bytes: u64,
    /// Offer chunks to the machines for registration?
    pub register: bool,
    /// How many processors there will be.
    pub processors: u16,
}

/// Most chunks: io_uring registers at most 2^14 buffers a ring.
pub const CHUNKS_MAX: u64 = 1 << 14;

/// Smallest chunk that is worth a huge page.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// The owner of a frame that the cache does not have.
const NO_OWNER: u64 = u64::MAX;

/// Frames for the whole kernel.
pub struct FramePool {
    shared: Box<Shared>,
}

/// What a frame knows: 16 bytes.
struct Meta {
    references: AtomicU32,
    _spare: AtomicU32,
    /// Cache key of the block in this frame, for giving chunks back.
    owner: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    Empty,
    /// The host is providing its memory.
    Growing,
    Active,
    /// Its frames are being freed, none is handed out; counts the free ones.
    Retiring {
        free: u32,
    },
    /// All its frames are free; the processors are withdrawing their registration.
    Withdrawing,
}

pub(super) struct Shared {
    base: *mut u8,
    metas: *mut Meta,
    config: PoolConfig,
    registers: AtomicBool,
    frames_a_chunk: u32,
    chunks: Mutex<Vec<ChunkState>>,
    free: FreeLists,
    /// Free ones of chunks that retire.
    frames_retired: AtomicU32,
    chunks_active: AtomicU32,
    chunks_retiring: AtomicU32,
    regions: RegionLog,
}

// SAFETY: the raw pointers are to mappings owned by this value; all access to them is synchronised by the counts.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl FramePool {
    /// Reserves address space. No memory is used yet.
    ///
    /// # Errors
    /// What the host says when it refuses the reservation.
    pub fn new(config: PoolConfig) -> std::io::Result<Self> {
        assert!(config.chunk_bytes.is_power_of_two() && config.chunk_bytes >= FRAME_BYTES as u64);
        assert!(config.bytes_max.is_multiple_of(config.chunk_bytes) && config.bytes_max > 0);
        assert!(config.bytes_max / config.chunk_bytes <= CHUNKS_MAX);
        let frames = config.bytes_max / FRAME_BYTES as u64;
        let base = reserve(config.bytes_max as usize, config.chunk_bytes.min(HUGE_PAGE_BYTES) as usize)?;
        let metas = reserve(frames as usize * size_of::<Meta>(), 4096)?.cast();
        let chunks = (config.bytes_max / config.chunk_bytes) as usize;
        Ok(FramePool {
            shared: Box::new(Shared {
                base,
                metas,
                config,
                registers: AtomicBool::new(config.register),
                frames_a_chunk: (config.chunk_bytes / FRAME_BYTES as u64) as u32,
                chunks: Mutex::new(vec![ChunkState::Empty; chunks]),
                free: FreeLists::new(config.processors),
                frames_retired: AtomicU32::new(0),
                chunks_active: AtomicU32::new(0),
                chunks_retiring: AtomicU32::new(0),
                regions: RegionLog::new(config.processors),
            }),
        })
    }

    /// Are chunks offered for registration that are taken from now on?
    pub(crate) fn set_register(&self, register: bool) {
        self.shared.registers.store(register, Ordering::Relaxed);
    }

    /// Takes up to `count` free frames; fewer when there are not so many. Their content is whatever it was.
    pub fn take(&self, count: usize, into: &mut Frames) {
        self.shared.take(count, into);
    }

    /// Takes another chunk from the host, if the pool holds fewer than `chunks_max`. Tells whether it did.
    pub fn grow(&self, chunks_max: u32, pages: PageSize) -> bool {
        self.begin_grow(chunks_max, pages).map(Growing::finish).is_some()
    }

    /// As [`FramePool::grow`], in two steps: between them, the host provides the memory.
    pub(crate) fn begin_grow(&self, chunks_max: u32, pages: PageSize) -> Option<Growing<'_>> {
        self.shared.begin_grow(chunks_max, pages).map(|chunk| Growing { pool: &self.shared, chunk })
    }

    /// The largest number of chunks that it may ever hold.
    pub fn chunks_max(&self) -> u32 {
        (self.shared.config.bytes_max / self.shared.config.chunk_bytes) as u32
    }

    /// Chunks that it holds and will keep.
    pub fn chunks_active(&self) -> u32 {
        self.shared.chunks_active.load(Ordering::Relaxed)
    }

    /// Chunks that it is about to give back.
    pub fn chunks_retiring(&self) -> u32 {
        self.shared.chunks_retiring.load(Ordering::Relaxed)
    }

    /// Bytes in a chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.shared.config.chunk_bytes
    }

    /// Bytes that it holds of the host's memory, without its book-keeping.
    pub fn bytes_held(&self) -> u64 {
        u64::from(self.chunks_active() + self.chunks_retiring()) * self.chunk_bytes()
    }

    pub fn frames_free(&self) -> u32 {
        self.shared.frames_free()
    }

    /// Are so many frames free, or more? Those of chunks that retire do not count.
    pub(crate) fn has_free(&self, count: u64) -> bool {
        self.shared.free.has(count)
    }

    /// Bytes of book-keeping for each frame.
    pub const fn bookkeeping_bytes_a_frame() -> usize {
        size_of::<Meta>()
    }

    /// Stops handing out the frames of a chunk, and names those that are in use. `None` when there is no chunk to
    /// retire. The chunk furthest from the start goes first.
    pub(crate) fn retire(&self) -> Option<Vec<FrameNo>> {
        self.shared.retire()
    }

    /// Turns a number that [`FrameRef::into_no`] gave back into the share it stood for.
    ///
    /// # Safety
    /// The number must come from `into_no` of a frame of this pool, and be turned back once.
    pub(crate) unsafe fn adopt(&self, no: FrameNo) -> FrameRef {
        FrameRef { pool: &*self.shared, no }
    }

    /// Another share in a frame of which the caller (the cache, under its lock) keeps the number.
    ///
    /// # Safety
    /// The frame must have a share that is not given up meanwhile.
    pub(crate) unsafe fn share(&self, no: FrameNo) -> FrameRef {
        self.shared.retain(no);
        FrameRef { pool: &*self.shared, no }
    }

    /// How many shares a frame has.
    pub(crate) fn references(&self, no: FrameNo) -> u32 {
        self.shared.references(no)
    }

    /// Which block of the cache a frame holds, if it does.
    pub(crate) fn owner(&self, no: FrameNo) -> Option<u64> {
        let key = self.shared.meta(no).owner.load(Ordering::Relaxed);
        (key != NO_OWNER).then_some(key)
    }

    /// Notes which block a frame holds.
    pub(crate) fn set_owner(&self, no: FrameNo, key: u64) {
        self.shared.meta(no).owner.store(key, Ordering::Relaxed);
    }

    /// Changes whenever a processor has regions to offer or withdraw.
    pub(crate) fn region_changes(&self) -> u64 {
        self.shared.regions.version()
    }

    /// Lets a processor's machine know the changes after `seen`; returns what it has seen now.
    pub(crate) fn follow_regions(&self, seen: u64, id: ProcessorId, machine: &mut dyn Machine) -> Followed {
        let shared = &*self.shared;
        shared.regions.follow(seen, id, machine, |chunk| shared.region(chunk), |chunk| shared.give_back(chunk))
    }
}

/// A chunk that the pool is about to have. Dropped, it is not.
pub(crate) struct Growing<'a> {
    pool: &'a Shared,
    chunk: u32,
}

impl Growing<'_> {
    pub(crate) fn region(&self) -> machine::Region {
        self.pool.region(self.chunk)
    }

    /// Its frames may be taken.
    pub(crate) fn finish(self) {
        self.pool.end_grow(self.chunk);
        std::mem::forget(self);
    }
}

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.pool.abandon_grow(self.chunk);
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        let held =
            self.shared.chunks_active.load(Ordering::Acquire) + self.shared.chunks_retiring.load(Ordering::Acquire);
        let frames = u64::from(held) * u64::from(self.shared.frames_a_chunk);
        if u64::from(self.shared.frames_free()) < frames {
            // Somebody still has a share: its memory must stay. Only a caller that outlives the kernel does that.
            let empty = Box::new(Shared::unmapped(self.shared.config));
            std::mem::forget(std::mem::replace(&mut self.shared, empty));
        }
    }
}

impl Shared {
    pub(super) fn address(&self, no: FrameNo) -> *mut u8 {
        self.base.wrapping_add(no.0 as usize * FRAME_BYTES)
    }

    pub(super) fn region_of(&self, no: FrameNo) -> RegionId {
        RegionId((no.0 / self.frames_a_chunk) as u16)
    }

    pub(super) fn references(&self, no: FrameNo) -> u32 {
        self.meta(no).references.load(Ordering::Acquire)
    }

    pub(super) fn retain(&self, no: FrameNo) {
        self.meta(no).references.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn release(&self, no: FrameNo) {
        if self.meta(no).references.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.put_back(no);
        }
    }

    fn unmapped(config: PoolConfig) -> Self {
        Shared {
            base: ptr::null_mut(),
            metas: ptr::null_mut(),
            config,
            registers: AtomicBool::new(false),
            frames_a_chunk: 1,
            chunks: Mutex::default(),
            free: FreeLists::default(),
            frames_retired: AtomicU32::new(0),
            chunks_active: AtomicU32::new(0),
            chunks_retiring: AtomicU32::new(0),
            regions: RegionLog::new(0),
        }
    }

    fn meta(&self, no: FrameNo) -> &Meta {
        debug_assert!(u64::from(no.0) < self.config.bytes_max / FRAME_BYTES as u64);
        // SAFETY: every frame number handed out lies in the reservation; zeroed memory is a valid `Meta`.
        unsafe { &*self.metas.add(no.0 as usize) }
    }

    fn frames_free(&self) -> u32 {
        self.free.len() + self.frames_retired.load(Ordering::Acquire)
    }

    fn take(&self, count: usize, into: &mut Frames) {
        let stolen = self.free.take(count, |frames| {
            // Neighbours in memory make short vectors, for the disk and for the wire.
            frames.sort_unstable();
            for &mut no in frames {
                let meta = self.meta(FrameNo(no));
                meta.references.store(1, Ordering::Relaxed);
                meta.owner.store(NO_OWNER, Ordering::Relaxed);
                into.push(FrameRef { pool: self, no: FrameNo(no) });
            }
        });
        if !stolen.is_empty() {
            self.list_as_free(&stolen);
        }
    }

    fn put_back(&self, no: FrameNo) {
        // While nothing retires (nearly always), the chunk table is not touched.
        if self.chunks_retiring.load(Ordering::SeqCst) > 0 && self.count_in_if_retiring(no) {
            return;
        }
        self.list_as_free(&[no.0]);
    }

    fn list_as_free(&self, frames: &[u32]) {
        self.free.add(frames.iter().copied());
        // Their chunk may have retired just before the list had them. Nothing else is worth looking through all lists.
        if self.chunks_retiring.load(Ordering::SeqCst) > 0 && self.is_any_retiring(frames) {
            self.sweep_retired();
        }
    }

    fn is_any_retiring(&self, frames: &[u32]) -> bool {
        let chunks = self.chunks();
        let is_retiring = |no: &u32| matches!(chunks[(no / self.frames_a_chunk) as usize], ChunkState::Retiring { .. });
        frames.iter().any(is_retiring)
    }

    fn count_in_if_retiring(&self, no: FrameNo) -> bool {
        let chunk = (no.0 / self.frames_a_chunk) as usize;
        let mut chunks = self.chunks();
        let ChunkState::Retiring { free } = &mut chunks[chunk] else { return false };
        *free += 1;
        self.frames_retired.fetch_add(1, Ordering::Relaxed);
        let empty = *free == self.frames_a_chunk;
        if empty {
            chunks[chunk] = ChunkState::Withdrawing;
            self.regions.withdraw(chunk as u32);
        }
        true
    }

    /// Takes frames of retiring chunks out of the free lists.
    fn sweep_retired(&self) {
        let mut chunks = self.chunks();
        self.free.retain(|no| match &mut chunks[(no / self.frames_a_chunk) as usize] {
            ChunkState::Retiring { free } => {
                *free += 1;
                self.frames_retired.fetch_add(1, Ordering::Relaxed);
                false
            }
            _ => true,
        });
        for (chunk, state) in chunks.iter_mut().enumerate() {
            if *state == (ChunkState::Retiring { free: self.frames_a_chunk }) {
                *state = ChunkState::Withdrawing;
                self.regions.withdraw(chunk as u32);
            }
        }
    }

    fn begin_grow(&self, chunks_max: u32, pages: PageSize) -> Option<u32> {
        let mut chunks = self.chunks();
        if self.chunks_active.load(Ordering::Relaxed) >= chunks_max {
            return None;
        }
        let chunk = chunks.iter().position(|c| *c == ChunkState::Empty)?;
        chunks[chunk] = ChunkState::Growing;
        self.chunks_active.fetch_add(1, Ordering::Relaxed);
        drop(chunks);
        let advice = match pages {
            PageSize::Huge => libc::MADV_HUGEPAGE,
            PageSize::Small => libc::MADV_NOHUGEPAGE,
        };
        let region = self.region(chunk as u32);
        // SAFETY: the chunk lies in our mapping. Failure only means the host's default.
        unsafe { libc::madvise(region.base.cast(), region.len, advice) };
        Some(chunk as u32)
    }

    fn end_grow(&self, chunk: u32) {
        let mut chunks = self.chunks();
        chunks[chunk as usize] = ChunkState::Active;
        if self.registers.load(Ordering::Relaxed) {
            self.regions.offer(chunk);
        }
        let first = chunk * self.frames_a_chunk;
        // In reverse: the list is taken from its end.
        self.free.add((first..first + self.frames_a_chunk).rev());
    }

    fn abandon_grow(&self, chunk: u32) {
        self.chunks()[chunk as usize] = ChunkState::Empty;
        self.chunks_active.fetch_sub(1, Ordering::SeqCst);
    }

    fn retire(&self) -> Option<Vec<FrameNo>> {
        let mut chunks = self.chunks();
        let chunk = chunks.iter().rposition(|c| *c == ChunkState::Active)?;
        chunks[chunk] = ChunkState::Retiring { free: 0 };
        self.chunks_active.fetch_sub(1, Ordering::SeqCst);
        self.chunks_retiring.fetch_add(1, Ordering::SeqCst);
        drop(chunks);
        self.sweep_retired();
        let first = chunk as u32 * self.frames_a_chunk;
        Some((first..first + self.frames_a_chunk).map(FrameNo).filter(|&no| self.references(no) > 0).collect())
    }

    /// All processors have withdrawn the chunk: its memory goes back to the host.
    fn give_back(&self, chunk: u32) {
        let mut chunks = self.chunks();
        debug_assert_eq!(chunks[chunk as usize], ChunkState::Withdrawing);
        let bytes = self.config.chunk_bytes as usize;
        // SAFETY: the chunk lies in our mapping, and none of its frames has a share: nobody looks at it.
        unsafe { libc::madvise(self.base.add(chunk as usize * bytes).cast(), bytes, libc::MADV_DONTNEED) };
        chunks[chunk as usize] = ChunkState::Empty;
        self.chunks_retiring.fetch_sub(1, Ordering::SeqCst);
        self.frames_retired.fetch_sub(self.frames_a_chunk, Ordering::Relaxed);
    }

    fn region(&self, chunk: u32) -> machine::Region {
        let len = self.config.chunk_bytes as usize;
        machine::Region { id: RegionId(chunk as u16), base: self.base.wrapping_add(chunk as usize * len), len }
    }

    fn chunks(&self) -> MutexGuard<'_, Vec<ChunkState>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.base.is_null() {
            return;
        }
        let frames = self.config.bytes_max as usize / FRAME_BYTES;
        // SAFETY: both mappings are ours, and the pool's drop made sure that no share is left.
        unsafe {
            libc::munmap(self.base.cast(), self.config.bytes_max as usize);
            libc::munmap(self.metas.cast(), frames * size_of::<Meta>());
        }
    }
}

//! The pool of frames: one reservation of address space, populated and released by chunk.
//!
//! A chunk is the unit of taking memory from the host, registering it with the machines and returning it: one or
//! several huge pages. Lock order: at most one free list, or the chunk table and then free lists; never two free lists.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use machine::{Machine, RegionId};
use policy::pages::PageSize;
use policy::unit::{BlockNo, ProcessorId};

use super::chunks::Chunks;
use super::free::{FrameNo, FreeLists};
use super::region::{Followed, RegionLog};
use super::reserve::reserve;
use super::{FRAME_BYTES, FrameRef, Frames};
use crate::block_key::BlockKey;

/// Layout of a pool. Bytes.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Address space to reserve, the most that the pool can hold. A multiple of the chunk.
    pub bytes_max: u64,
    /// A power of two of at least one frame.
    pub chunk_bytes: u64,
    /// Offer chunks to the machines for registration?
    pub register: bool,
    /// Number of processors.
    pub processors: u16,
}

/// At most: io_uring registers up to 2^14 buffers per ring.
pub const CHUNKS_MAX: u64 = 1 << 14;

/// The smallest chunk worth a huge page.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Marks a frame that is not in the cache.
const NO_OWNER: u64 = u64::MAX;

/// Marks a free frame of a retiring chunk that has been counted, under the chunk table's lock.
const COUNTED: u64 = u64::MAX - 1;

static LEFT_MAPPED: AtomicU64 = AtomicU64::new(0);

/// Pools of this process whose memory stays mapped for good, since frames were still referred to when their kernel
/// was dropped.
pub fn pools_left_mapped() -> u64 {
    LEFT_MAPPED.load(Ordering::Relaxed)
}

pub struct FramePool {
    shared: Box<Shared>,
}

/// Metadata of a frame: 16 bytes.
struct Meta {
    references: AtomicU32,
    /// 1: as [`FrameRef::is_verified`].
    verified: AtomicU32,
    /// Cache key of the block in this frame, for retiring its chunk.
    owner: AtomicU64,
}

pub(super) struct Shared {
    base: *mut u8,
    metas: *mut Meta,
    config: PoolConfig,
    registers: AtomicBool,
    frames_a_chunk: u32,
    chunks: Chunks,
    free: FreeLists,
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
    /// The host's error if it refuses the reservation.
    pub fn new(config: PoolConfig) -> std::io::Result<Self> {
        assert!(config.chunk_bytes.is_power_of_two() && config.chunk_bytes >= FRAME_BYTES as u64);
        assert!(config.bytes_max.is_multiple_of(config.chunk_bytes) && config.bytes_max > 0);
        assert!(config.bytes_max / config.chunk_bytes <= CHUNKS_MAX);
        let frames = config.bytes_max / FRAME_BYTES as u64;
        let base = reserve(config.bytes_max as usize, config.chunk_bytes.min(HUGE_PAGE_BYTES) as usize)?;
        let metas = reserve(frames as usize * size_of::<Meta>(), 4096)?.cast();
        let frames_a_chunk = (config.chunk_bytes / FRAME_BYTES as u64) as u32;
        Ok(FramePool {
            shared: Box::new(Shared {
                base,
                metas,
                config,
                registers: AtomicBool::new(config.register),
                frames_a_chunk,
                chunks: Chunks::new((config.bytes_max / config.chunk_bytes) as usize, frames_a_chunk),
                free: FreeLists::new(config.processors),
                regions: RegionLog::new(config.processors),
            }),
        })
    }

    /// Sets whether new chunks are offered for registration.
    pub(crate) fn set_register(&self, register: bool) {
        self.shared.registers.store(register, Ordering::Relaxed);
    }

    /// Takes up to `count` free frames, with undefined content; fewer if no more are free.
    pub fn take(&self, count: usize, into: &mut Frames) {
        self.shared.take(count, None, into);
    }

    /// As [`FramePool::take`], for blocks that follow each other from `first`: of their colours, if colours count (WS-6).
    pub fn take_for(&self, first: BlockNo, count: usize, into: &mut Frames) {
        self.shared.take(count, Some(first), into);
    }

    /// Tells `colors` cache colours of frames apart from now on; 1: none.
    pub(crate) fn set_colors(&self, colors: u32) {
        self.shared.free.set_colors(colors);
    }

    /// The number of cache colours that are told apart; 1: none.
    pub fn colors(&self) -> u32 {
        self.shared.free.colors()
    }

    /// Takes another chunk, a retiring one or one of the host, if fewer than `chunks_max` are active. Returns whether it did.
    pub fn grow(&self, chunks_max: u32, pages: PageSize) -> bool {
        self.take_back(chunks_max) || self.begin_grow(chunks_max, pages).map(Growing::finish).is_some()
    }

    /// As [`FramePool::grow`], of retiring chunks.
    pub(crate) fn take_back(&self, chunks_max: u32) -> bool {
        self.shared.take_back(chunks_max)
    }

    /// As [`FramePool::grow`], of the host, in two steps: between them, it provides the memory.
    pub(crate) fn begin_grow(&self, chunks_max: u32, pages: PageSize) -> Option<Growing<'_>> {
        self.shared.begin_grow(chunks_max, pages).map(|chunk| Growing { pool: &self.shared, chunk })
    }

    pub fn chunks_max(&self) -> u32 {
        (self.shared.config.bytes_max / self.shared.config.chunk_bytes) as u32
    }

    /// Chunks held, without those that are retiring.
    pub fn chunks_active(&self) -> u32 {
        self.shared.chunks.active()
    }

    /// Chunks held that will be returned to the host.
    pub fn chunks_retiring(&self) -> u32 {
        self.shared.chunks.retiring()
    }

    /// Is the chunk of this frame retiring?
    pub(crate) fn is_retiring(&self, no: FrameNo) -> bool {
        self.shared.chunks.is_retiring(self.shared.region_of(no))
    }

    /// Have processors yet to withdraw a chunk, so that it can be returned?
    pub(crate) fn is_any_withdrawing(&self) -> bool {
        self.shared.chunks.is_any_withdrawing()
    }

    pub fn chunk_bytes(&self) -> u64 {
        self.shared.config.chunk_bytes
    }

    /// Bytes of the host's memory held, without book-keeping.
    pub fn bytes_held(&self) -> u64 {
        u64::from(self.chunks_active() + self.chunks_retiring()) * self.chunk_bytes()
    }

    pub fn frames_free(&self) -> u32 {
        self.shared.frames_free()
    }

    /// Are at least `count` frames free, not counting those of retiring chunks?
    pub(crate) fn has_free(&self, count: u64) -> bool {
        self.shared.free.has(count)
    }

    /// Per frame.
    pub const fn bookkeeping_bytes_a_frame() -> usize {
        size_of::<Meta>()
    }

    /// Stops handing out frames of the chunk furthest from the start; returns those in use. `None` if no chunk can
    /// retire.
    pub(crate) fn retire(&self) -> Option<Vec<FrameNo>> {
        self.shared.retire()
    }

    /// Restores the reference that [`FrameRef::into_no`] gave up.
    ///
    /// # Safety
    /// The number must come from `into_no` of a frame of this pool, and be adopted once.
    pub(crate) unsafe fn adopt(&self, no: FrameNo) -> FrameRef {
        FrameRef { pool: &*self.shared, no }
    }

    /// Another reference to a frame whose number the caller (the cache, under its lock) holds.
    ///
    /// # Safety
    /// The frame must have a reference that is not dropped meanwhile.
    pub(crate) unsafe fn share(&self, no: FrameNo) -> FrameRef {
        self.shared.retain(no);
        FrameRef { pool: &*self.shared, no }
    }

    /// The frame's reference count.
    pub(crate) fn references(&self, no: FrameNo) -> u32 {
        self.shared.references(no)
    }

    /// The cache key of the block in a frame, if any.
    pub(crate) fn owner(&self, no: FrameNo) -> Option<BlockKey> {
        let key = self.shared.meta(no).owner.load(Ordering::Relaxed);
        (key != NO_OWNER && key != COUNTED).then_some(BlockKey(key))
    }

    pub(crate) fn set_owner(&self, no: FrameNo, key: BlockKey) {
        self.shared.meta(no).owner.store(key.0, Ordering::Relaxed);
    }

    /// Changes whenever a processor has regions to offer or withdraw.
    pub(crate) fn region_changes(&self) -> u64 {
        self.shared.regions.version()
    }

    /// Reports the changes after `seen` to a processor's machine; returns the new position.
    pub(crate) fn follow_regions(&self, seen: u64, id: ProcessorId, machine: &mut dyn Machine) -> Followed {
        let shared = &*self.shared;
        shared.regions.follow(seen, id, machine, |chunk| shared.region(chunk), |chunk| shared.give_back(chunk))
    }
}

/// A chunk whose memory the host is providing. Dropping it cancels the growth.
pub(crate) struct Growing<'a> {
    pool: &'a Shared,
    chunk: RegionId,
}

impl Growing<'_> {
    pub(crate) fn region(&self) -> machine::Region {
        self.pool.region(self.chunk)
    }

    /// Makes its frames available.
    pub(crate) fn finish(self) {
        self.pool.end_grow(self.chunk);
        std::mem::forget(self);
    }
}

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.pool.chunks.abandon_grow(self.chunk);
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        let held = self.chunks_active() + self.chunks_retiring();
        let frames = u64::from(held) * u64::from(self.shared.frames_a_chunk);
        if u64::from(self.shared.frames_free()) < frames {
            // A caller that outlives the kernel still has a reference: the memory must stay mapped.
            LEFT_MAPPED.fetch_add(1, Ordering::Relaxed);
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

    fn frames_of(&self, chunk: RegionId) -> impl DoubleEndedIterator<Item = FrameNo> + use<> {
        let first = u32::from(chunk.0) * self.frames_a_chunk;
        (first..first + self.frames_a_chunk).map(FrameNo)
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
            chunks: Chunks::default(),
            free: FreeLists::default(),
            regions: RegionLog::new(0),
        }
    }

    fn meta(&self, no: FrameNo) -> &Meta {
        debug_assert!(u64::from(no.0) < self.config.bytes_max / FRAME_BYTES as u64);
        // SAFETY: every frame number handed out lies in the reservation; zeroed memory is a valid `Meta`.
        unsafe { &*self.metas.add(no.0 as usize) }
    }

    fn frames_free(&self) -> u32 {
        self.free.len() + self.chunks.frames_retired()
    }

    fn take(&self, count: usize, first: Option<BlockNo>, into: &mut Frames) {
        let stolen = self.free.take(count, first, |frames| {
            for &no in frames {
                let meta = self.meta(no);
                meta.references.store(1, Ordering::Relaxed);
                meta.owner.store(NO_OWNER, Ordering::Relaxed);
                meta.verified.store(0, Ordering::Relaxed);
                into.push(FrameRef { pool: self, no });
            }
        });
        if !stolen.is_empty() {
            self.list_as_free(&stolen);
        }
    }

    pub(super) fn is_verified(&self, no: FrameNo) -> bool {
        self.meta(no).verified.load(Ordering::Relaxed) == 1
    }

    pub(super) fn set_verified(&self, no: FrameNo, verified: bool) {
        self.meta(no).verified.store(u32::from(verified), Ordering::Relaxed);
    }

    fn put_back(&self, no: FrameNo) {
        let chunk = self.region_of(no);
        if self.chunks.is_retiring(chunk)
            && let Some(is_last) = self.chunks.count(chunk, || self.mark_counted(no))
        {
            if is_last {
                self.regions.withdraw(chunk);
            }
            return;
        }
        self.list_as_free(&[no]);
    }

    fn mark_counted(&self, no: FrameNo) {
        self.meta(no).owner.store(COUNTED, Ordering::Relaxed);
    }

    fn list_as_free(&self, frames: &[FrameNo]) {
        self.free.add(frames.iter().copied());
        // Their chunk may have begun to retire just before they were listed. Only then are all lists scanned.
        if frames.iter().any(|no| self.chunks.is_retiring(self.region_of(*no))) {
            self.sweep_retired();
        }
    }

    /// Removes frames of retiring chunks from the free lists.
    fn sweep_retired(&self) {
        let free = self.chunks.sweep(|count| {
            self.free.retain(|no| {
                let is_counted = count(self.region_of(no));
                if is_counted {
                    self.mark_counted(no);
                }
                !is_counted
            });
        });
        free.into_iter().for_each(|chunk| self.regions.withdraw(chunk));
    }

    fn take_back(&self, chunks_max: u32) -> bool {
        self.chunks.take_back(chunks_max, |chunk| {
            let owner = |no| self.meta(no).owner.load(Ordering::Relaxed);
            self.list_anew(self.frames_of(chunk).rev().filter(|&no| owner(no) == COUNTED));
        })
    }

    /// Lists frames that nobody refers to, and that were not listed.
    fn list_anew(&self, frames: impl Iterator<Item = FrameNo>) {
        self.free.add(frames.inspect(|&no| self.meta(no).owner.store(NO_OWNER, Ordering::Relaxed)));
    }

    fn begin_grow(&self, chunks_max: u32, pages: PageSize) -> Option<RegionId> {
        let chunk = self.chunks.begin_grow(chunks_max)?;
        let advice = match pages {
            PageSize::Huge => libc::MADV_HUGEPAGE,
            PageSize::Small => libc::MADV_NOHUGEPAGE,
        };
        let region = self.region(chunk);
        // SAFETY: the chunk lies in our mapping. Failure only means the host's default.
        unsafe { libc::madvise(region.base.cast(), region.len, advice) };
        Some(chunk)
    }

    fn end_grow(&self, chunk: RegionId) {
        self.chunks.end_grow(chunk, || {
            if self.registers.load(Ordering::Relaxed) {
                self.regions.offer(chunk);
            }
            // In reverse: frames are taken from the end of the list.
            self.list_anew(self.frames_of(chunk).rev());
        });
    }

    fn retire(&self) -> Option<Vec<FrameNo>> {
        let chunk = self.chunks.retire()?;
        self.sweep_retired();
        Some(self.frames_of(chunk).filter(|&no| self.references(no) > 0).collect())
    }

    /// Returns the memory of a chunk to the host, after all processors have withdrawn it.
    fn give_back(&self, chunk: RegionId) {
        let region = self.region(chunk);
        self.chunks.give_back(chunk, || {
            // SAFETY: the chunk lies in our mapping, and none of its frames is referenced.
            unsafe { libc::madvise(region.base.cast(), region.len, libc::MADV_DONTNEED) };
        });
    }

    fn region(&self, chunk: RegionId) -> machine::Region {
        let len = self.config.chunk_bytes as usize;
        machine::Region { id: chunk, base: self.base.wrapping_add(usize::from(chunk.0) * len), len }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.base.is_null() {
            return;
        }
        let frames = self.config.bytes_max as usize / FRAME_BYTES;
        // SAFETY: both mappings are ours, and the pool's drop made sure that no reference is left.
        unsafe {
            libc::munmap(self.base.cast(), self.config.bytes_max as usize);
            libc::munmap(self.metas.cast(), frames * size_of::<Meta>());
        }
    }
}

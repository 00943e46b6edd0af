//! A device in a file of a directory tree: it grows when it is written beyond its end.
//!
//! Whole blocks go past the host's page cache. A part of a block goes through it, and only that part: so the file is never
//! longer than what was written (after a crash there is no tail of zeroes), and what a process of the host writes to the
//! rest of the block at the same time stays. The host keeps both views the same.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};

use machine::tree::{OpenNode, Watch};
use machine::{Errno, File, Op};
use policy::unit::{BLOCK_BYTES, ByteOffset, ByteRange, Stability};

use super::siblings::Sibling;
use super::vnode::Vnode;
use crate::device::{Device, DeviceFacts, Work};
use crate::frame::{FRAME_BYTES, Frames, segments};
use crate::operation::Hold;
use crate::processor::Processor;
use crate::request::{Action, Request};
use crate::wait::WaitList;

/// What a read ends with when somebody else changed the file meanwhile: what the cache has is old.
pub(super) const CHANGED: Errno = Errno(libc::EAGAIN);

/// A file that grows.
pub(super) struct GrowingFile {
    open: OpenNode,
    /// Who knows whether somebody else changed the file.
    file: OnceLock<Weak<Vnode>>,
    /// Its size on the host, as far as we changed it.
    size: AtomicU64,
    /// Somebody makes it longer. The host does that one after the other anyway, and in the order of their offsets no
    /// hole is left by a crash.
    is_growing: AtomicBool,
    grown: WaitList,
    /// Writes to the host so far.
    begun: AtomicU64,
    /// Those of them that have ended.
    ended: AtomicU64,
    /// Reads in a row that others' changes made old.
    outrun: AtomicU32,
    /// The same file, open in other trees.
    sibling: Sibling,
}

/// How often a read is begun anew when somebody else changes the file meanwhile. After that it is what was read: some blocks
/// may be older than others, as for any program that reads while another one writes.
const OUTRUN_MAX: u32 = 3;

/// Changes by others that were reported up to a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) by_host: u64,
    pub(super) by_siblings: u64,
}

/// The writes to the host at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writes {
    begun: u64,
    ended: u64,
}

impl Writes {
    /// Was none of ours under way or begun from when this was taken until `later`?
    pub(super) fn were_none_until(self, later: Writes) -> bool {
        self.ended == self.begun && self.begun == later.begun
    }
}

impl GrowingFile {
    /// The device in an open file.
    pub(super) fn new(open: OpenNode, sibling: Sibling) -> Self {
        let size = AtomicU64::new(open.direct.facts.size);
        GrowingFile {
            open,
            file: OnceLock::new(),
            size,
            is_growing: AtomicBool::new(false),
            grown: WaitList::default(),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            outrun: AtomicU32::new(0),
            sibling,
        }
    }

    /// Does the host report what others do to the content?
    pub(super) fn is_watched(&self) -> bool {
        self.open.watch.is_some()
    }

    /// What others did to the content, as far as it was reported. With `all`, what is over is sure to be.
    pub(super) fn reported(&self, all: bool) -> Reported {
        let watch = self.open.watch.as_ref();
        if let Some(watch) = watch.filter(|_| all) {
            (watch.take)();
        }
        Reported { by_host: watch.map_or(0, Watch::changes), by_siblings: self.sibling.changes() }
    }

    /// What was written to the host up to now.
    pub(super) fn writes(&self) -> Writes {
        let ended = self.ended.load(Ordering::SeqCst);
        Writes { begun: self.begun.load(Ordering::SeqCst), ended }
    }

    /// The file whose content this is.
    pub(super) fn belongs_to(&self, file: Weak<Vnode>) {
        let _ = self.file.set(file);
    }

    async fn read(&self, cpu: &Processor, range: ByteRange, frames: Frames) -> Result<(), Errno> {
        let facts = &self.open.direct.facts;
        let len = if facts.direct { range.len.next_multiple_of(u64::from(facts.align)) } else { range.len };
        let into = segments(&frames, 0, len as usize);
        let op = Op::Read { file: self.open.direct.file, at: range.at, into };
        // SAFETY: the segments were made from the frames that the hold keeps.
        let (result, hold) = unsafe { cpu.perform(Hold::new(Vec::new(), frames), op) }.await;
        let read = result?.min(range.len);
        // What the host does not have yet, or not any more, reads as zeroes.
        for segment in segments(&hold.frames, read as usize, (range.len - read) as usize) {
            // SAFETY: the frames are being filled by this transfer; nobody else touches them.
            unsafe { segment.ptr.write_bytes(0, segment.len as usize) };
        }
        // Beside older blocks in the cache, content that somebody else wrote since would be a file that never was.
        match self.file.get().and_then(Weak::upgrade) {
            Some(file) if file.was_changed(cpu).await? => {
                let is_outrun = self.outrun.fetch_add(1, Ordering::Relaxed) >= OUTRUN_MAX;
                if is_outrun { Ok(()) } else { Err(CHANGED) }
            }
            _ => {
                self.outrun.store(0, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    async fn write(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        stability: Stability,
    ) -> Result<(), Errno> {
        let _under_way = UnderWay::new(self);
        let _grows = if range.end().0 > self.size.load(Ordering::Acquire) { Some(self.grow().await) } else { None };
        let (at, end) = (range.at.0, range.end().0);
        // Where whole blocks begin and end.
        let (from, to) = match self.open.buffered {
            Some(_) => (end.min(at.next_multiple_of(BLOCK_BYTES)), end / BLOCK_BYTES * BLOCK_BYTES),
            None => (at, end),
        };
        let to = to.max(from);
        let mut frames = frames;
        if let Some(buffered) = &self.open.buffered {
            frames = self.put(cpu, buffered.file, at, frames, at..from, stability).await?;
        }
        frames = self.put(cpu, self.open.direct.file, at, frames, from..to, stability).await?;
        if let Some(buffered) = &self.open.buffered {
            self.put(cpu, buffered.file, at, frames, to..end, stability).await?;
        }
        self.size.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    /// Writes `part` of the file, from frames the first of which holds the block in which `at` lies.
    async fn put(
        &self,
        cpu: &Processor,
        file: File,
        at: u64,
        mut frames: Frames,
        part: std::ops::Range<u64>,
        stability: Stability,
    ) -> Result<Frames, Errno> {
        let base = at / BLOCK_BYTES * BLOCK_BYTES;
        let mut done = part.start;
        while done < part.end {
            let from = segments(&frames, (done - base) as usize, (part.end - done) as usize);
            let op = Op::Write { file, at: ByteOffset(done), from, stability };
            // SAFETY: the segments were made from the frames that the hold keeps.
            let (result, hold) = unsafe { cpu.perform(Hold::new(Vec::new(), frames), op) }.await;
            frames = hold.frames;
            match result? {
                0 => return Err(Errno::IO),
                written => done += written,
            }
        }
        Ok(frames)
    }

    /// Waits for the right to make the file longer.
    async fn grow(&self) -> Grows<'_> {
        self.grown.until(|| (!self.is_growing.swap(true, Ordering::AcqRel)).then_some(())).await;
        Grows(self)
    }

    /// Its largest size, by the host's file system. Bytes.
    pub(super) fn bytes_max(&self) -> u64 {
        self.open.bytes_max
    }

    /// The host has given the file another size for us.
    pub(super) fn on_resized(&self, size: u64) {
        self.set_size(size);
        self.sibling.report();
    }

    /// The host's file has another size.
    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }
}

/// A write to the host.
struct UnderWay<'a>(&'a GrowingFile);

impl<'a> UnderWay<'a> {
    fn new(file: &'a GrowingFile) -> Self {
        file.begun.fetch_add(1, Ordering::SeqCst);
        UnderWay(file)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
        self.0.sibling.report();
    }
}

struct Grows<'a>(&'a GrowingFile);

impl Drop for Grows<'_> {
    fn drop(&mut self) {
        self.0.is_growing.store(false, Ordering::Release);
        self.0.grown.wake_all();
    }
}

impl Device for GrowingFile {
    fn facts(&self) -> DeviceFacts {
        let facts = &self.open.direct.facts;
        DeviceFacts {
            size: self.size.load(Ordering::Acquire),
            writable: facts.writable,
            rotational: facts.rotational,
            transfer_bytes_max: facts.transfer_bytes_max,
            fast_zero: false,
            disk: facts.disk,
        }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, ()> {
        Box::pin(async move {
            match request.action {
                Action::Read(range, frames) => {
                    debug_assert!(frames.len() * FRAME_BYTES >= range.len as usize);
                    self.read(cpu, range, frames).await
                }
                Action::Write(range, frames) => self.write(cpu, range, frames, request.context.stability).await,
                Action::Flush => {
                    let op = Op::Flush { file: self.open.direct.file };
                    // SAFETY: the operation has no segments.
                    unsafe { cpu.perform(Hold::default(), op) }.await.0.map(drop)
                }
                Action::Zero { .. } | Action::Discard(_) => Err(Errno::NOT_SUPPORTED),
            }
        })
    }
}

//! A device in a file of a directory tree: it grows when it is written beyond its end.
//!
//! Whole blocks go past the host's page cache. A part of a block goes through it, and only that part: so the file is never
//! longer than what was written (after a crash there is no tail of zeroes), and what a process of the host writes to the
//! rest of the block at the same time stays. The host keeps both views the same.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

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

pub(super) struct GrowingFile {
    /// Open for reading, for as long as the device is there.
    open: OpenNode,
    is_writable: bool,
    /// Open for writing: not before the first write and not longer than needed, for the host cannot execute it meanwhile.
    writing: Mutex<Option<Arc<OpenNode>>>,
    /// Held by who opens it for writing.
    upgrade: Turn,
    /// Who knows whether somebody else changed the file.
    file: OnceLock<Weak<Vnode>>,
    /// Its size on the host, as far as we changed it.
    size: AtomicU64,
    /// Held by who makes it longer. The host does that one after the other anyway, and in the order of their offsets no
    /// hole is left by a crash.
    growth: Turn,
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

/// What one does at a time.
#[derive(Default)]
struct Turn {
    is_taken: AtomicBool,
    ended: WaitList,
}

impl Turn {
    async fn take(&self) -> Taken<'_> {
        self.ended.until(|| (!self.is_taken.swap(true, Ordering::AcqRel)).then_some(())).await;
        Taken(self)
    }
}

struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
        self.0.ended.wake_all();
    }
}

impl GrowingFile {
    /// The device in a file that is open for reading.
    pub(super) fn new(open: OpenNode, sibling: Sibling, is_writable: bool) -> Self {
        let size = AtomicU64::new(open.direct.facts.size);
        GrowingFile {
            open,
            is_writable,
            writing: Mutex::default(),
            upgrade: Turn::default(),
            file: OnceLock::new(),
            size,
            growth: Turn::default(),
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

    /// The file for writing; opened by `open` if it is not. Who has it keeps it open. Was it opened now?
    ///
    /// # Errors
    /// The host's. The next attempt may succeed.
    pub(super) async fn writing(
        &self,
        open: impl AsyncFnOnce() -> Result<OpenNode, Errno>,
    ) -> Result<(Arc<OpenNode>, bool), Errno> {
        if let Some(writing) = &*self.writing_now() {
            return Ok((Arc::clone(writing), false));
        }
        let _one_at_a_time = self.upgrade.take().await;
        if let Some(writing) = &*self.writing_now() {
            return Ok((Arc::clone(writing), false));
        }
        let writing = Arc::new(open().await?);
        *self.writing_now() = Some(Arc::clone(&writing));
        Ok((writing, true))
    }

    /// Is not open for writing any more, if nobody is just writing and `is_clean`. Returns whether it is not.
    pub(super) fn end_writing(&self, is_clean: impl FnOnce() -> bool) -> bool {
        let mut writing = self.writing_now();
        if writing.as_ref().is_some_and(|writing| Arc::strong_count(writing) == 1 && is_clean()) {
            *writing = None;
        }
        writing.is_none()
    }

    fn writing_now(&self) -> MutexGuard<'_, Option<Arc<OpenNode>>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
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
        let file = self.file.get().and_then(Weak::upgrade).ok_or(Errno::STALE)?;
        let writing = file.writing(cpu).await?;
        let _under_way = UnderWay::new(self);
        let grows = range.end().0 > self.size.load(Ordering::Acquire);
        let _growth = if grows { Some(self.growth.take().await) } else { None };
        let (at, end) = (range.at.0, range.end().0);
        // Where whole blocks begin and end.
        let (from, to) = match writing.buffered {
            Some(_) => (end.min(at.next_multiple_of(BLOCK_BYTES)), end / BLOCK_BYTES * BLOCK_BYTES),
            None => (at, end),
        };
        let to = to.max(from);
        let mut frames = frames;
        if let Some(buffered) = &writing.buffered {
            frames = self.put(cpu, buffered.file, at, frames, at..from, stability).await?;
        }
        frames = self.put(cpu, writing.direct.file, at, frames, from..to, stability).await?;
        if let Some(buffered) = &writing.buffered {
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

impl Device for GrowingFile {
    fn facts(&self) -> DeviceFacts {
        let facts = &self.open.direct.facts;
        DeviceFacts {
            size: self.size.load(Ordering::Acquire),
            writable: self.is_writable,
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
                    // Where something was written, errors of writing it are told to who wrote.
                    let writing = self.writing_now().clone();
                    let op = Op::Flush { file: writing.as_deref().unwrap_or(&self.open).direct.file };
                    // SAFETY: the operation has no segments.
                    unsafe { cpu.perform(Hold::default(), op) }.await.0.map(drop)
                }
                Action::Zero { .. } | Action::Discard(_) => Err(Errno::NOT_SUPPORTED),
            }
        })
    }
}

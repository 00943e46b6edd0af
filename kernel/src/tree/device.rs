//! A device on a file of a directory tree. Writes beyond its end extend it.
//!
//! Whole blocks bypass the host's page cache. A partial block goes through it, and only the bytes written: so the file
//! is never longer than what was written (no tail of zeroes after a crash), and concurrent writes by the host's
//! processes to the rest of the block survive. The host keeps both views coherent.

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
use crate::request::{Action, Outcome, Request};
use crate::wait::WaitList;

pub(super) struct GrowingFile {
    /// Open for reading during the device's life.
    open: OpenNode,
    is_writable: bool,
    /// Open for writing: only from the first write on and while needed, since the host cannot execute the file
    /// meanwhile.
    writing: Mutex<Option<Arc<OpenNode>>>,
    /// Serialises opening for writing.
    upgrade: Turn,
    /// Checks whether others changed the file.
    file: OnceLock<Weak<Vnode>>,
    /// Size on the host, without changes by others.
    size: AtomicU64,
    /// Serialises writes that extend the file. The host does that anyway, and in the order of offsets a crash leaves no
    /// holes.
    growth: Turn,
    /// Writes to the host begun so far.
    begun: AtomicU64,
    /// Those that have ended.
    ended: AtomicU64,
    /// Consecutive reads during which others changed the file.
    outrun: AtomicU32,
    /// The same file, open in other trees.
    sibling: Sibling,
}

/// Reads that are retried in a row because others change the file meanwhile. After that the result stands: some blocks
/// may be older than others, as for any program that reads a file during writes.
const OUTRUN_MAX: u32 = 3;

/// Counts of changes by others, as reported so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) by_host: u64,
    pub(super) by_siblings: u64,
}

/// Counts of our writes to the host at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writes {
    begun: u64,
    ended: u64,
}

impl Writes {
    /// Was no write of ours in flight or begun between `self` and `later`?
    pub(super) fn were_none_until(self, later: Writes) -> bool {
        self.ended == self.begun && self.begun == later.begun
    }
}

/// A mutex for tasks.
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
    /// `open`: open for reading.
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

    /// Does the host report changes by others?
    pub(super) fn is_watched(&self) -> bool {
        self.open.watch.is_some()
    }

    /// Changes by others that were reported. With `all`, includes every change that has ended.
    pub(super) fn reported(&self, all: bool) -> Reported {
        let watch = self.open.watch.as_ref();
        if let Some(watch) = watch.filter(|_| all) {
            (watch.take)();
        }
        Reported { by_host: watch.map_or(0, Watch::changes), by_siblings: self.sibling.changes() }
    }

    /// Our writes so far.
    pub(super) fn writes(&self) -> Writes {
        let ended = self.ended.load(Ordering::SeqCst);
        Writes { begun: self.begun.load(Ordering::SeqCst), ended }
    }

    /// Sets the file whose content this is.
    pub(super) fn belongs_to(&self, file: Weak<Vnode>) {
        let _ = self.file.set(file);
    }

    /// The file open for writing, opened by `open` if necessary; it stays so while the caller has it. Was it opened
    /// now?
    ///
    /// # Errors
    /// The host's. The caller may retry.
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

    /// Closes the file for writing, unless a writer has it or not `is_clean`. Returns whether it is closed.
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

    async fn read(&self, cpu: &Processor, range: ByteRange, frames: Frames) -> Result<Outcome, Errno> {
        let facts = &self.open.direct.facts;
        let len = if facts.direct { range.len.next_multiple_of(u64::from(facts.align)) } else { range.len };
        let into = segments(&frames, 0, len as usize);
        let op = Op::Read { file: self.open.direct.file, at: range.at, into };
        // SAFETY: the segments were made from the frames that the hold owns.
        let (result, hold) = unsafe { cpu.perform(Hold::new(Vec::new(), frames), op) }.await;
        let read = result?.min(range.len);
        // Beyond the end of the host's file, zeroes are read.
        for segment in segments(&hold.frames, read as usize, (range.len - read) as usize) {
            // SAFETY: the frames are being filled by this transfer; there is no other access to them.
            unsafe { segment.ptr.write_bytes(0, segment.len as usize) };
        }
        // Newer content next to older cached blocks would be a version of the file that never existed.
        match self.file.get().and_then(Weak::upgrade) {
            Some(file) if file.was_changed(cpu).await? => {
                let is_outrun = self.outrun.fetch_add(1, Ordering::Relaxed) >= OUTRUN_MAX;
                Ok(if is_outrun { Outcome::Done } else { Outcome::Changed })
            }
            _ => {
                self.outrun.store(0, Ordering::Relaxed);
                Ok(Outcome::Done)
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
        // The range of whole blocks.
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

    /// Writes `part` of the file; the first of `frames` holds the block that contains `at`.
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
            // SAFETY: the segments were made from the frames that the hold owns.
            let (result, hold) = unsafe { cpu.perform(Hold::new(Vec::new(), frames), op) }.await;
            frames = hold.frames;
            match result? {
                0 => return Err(Errno::IO),
                written => done += written,
            }
        }
        Ok(frames)
    }

    /// The host file system's limit. Bytes.
    pub(super) fn bytes_max(&self) -> u64 {
        self.open.bytes_max
    }

    /// We have changed the size of the host's file.
    pub(super) fn on_resized(&self, size: u64) {
        self.set_size(size);
        self.sibling.report();
    }

    /// The host's file has another size.
    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }
}

/// A write to the host in flight.
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

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            match request.action {
                Action::Read(range, frames) => {
                    debug_assert!(frames.len() * FRAME_BYTES >= range.len as usize);
                    self.read(cpu, range, frames).await
                }
                Action::Write(range, frames) => {
                    self.write(cpu, range, frames, request.context.stability).await.map(|()| Outcome::Done)
                }
                Action::Flush => {
                    // The host reports write errors on the descriptor that was written through.
                    let writing = self.writing_now().clone();
                    let op = Op::Flush { file: writing.as_deref().unwrap_or(&self.open).direct.file };
                    // SAFETY: the operation has no segments.
                    unsafe { cpu.perform(Hold::default(), op) }.await.0.map(|_| Outcome::Done)
                }
                Action::Zero { .. } | Action::Discard(_) => Ok(Outcome::Unsupported),
            }
        })
    }
}

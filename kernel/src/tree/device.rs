//! A device on a file of a directory tree. Writes beyond its end extend it.
//!
//! Whole blocks bypass the host's page cache. A partial block goes through it, and only the bytes written: so the file
//! is never longer than what was written (no tail of zeroes after a crash), and concurrent writes by the host's
//! processes to the rest of the block survive. So does small growth ([`GROWTH_DIRECT_MIN`]). The host keeps both
//! views coherent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use machine::tree::{Attributes, Node, OpenNode, Tree, TreeCall, TreeReply, Watch};
use machine::{Errno, Op};
use parking_lot::{Mutex, MutexGuard};
use policy::unit::{BlockNo, ByteRange, Instant, Stability};

use super::durable_size::{Doubts, DurableSize};
use super::known::{Asked, Known, Question, Reported, Stale, Writes, may_share_time};
use super::siblings::Sibling;
use crate::device::{Device, DeviceFacts, Work, transfer, write_all, zero_part};
use crate::export::ExportNo;
use crate::frame::{FRAME_BYTES, Frames, segments};
use crate::operation::Hold;
use crate::processor::Processor;
use crate::request::{Action, Outcome, Request};
use crate::wait::TaskMutex;

pub(super) struct GrowingFile {
    /// Open for reading during the device's life.
    open: OpenNode,
    is_writable: bool,
    /// Open for writing: only from the first write on and while needed, since the host cannot execute the file
    /// meanwhile.
    writing: Mutex<Option<Arc<OpenNode>>>,
    /// Serialises opening for writing.
    upgrade: TaskMutex,
    /// Written since the last check?
    is_written: AtomicBool,
    /// Writes begun when all before was last seen to be on the disk.
    written_back: AtomicU64,
    /// Serialises writing back.
    writing_back: TaskMutex,
    /// An error of writing back, until a flush returns it.
    unreported: Mutex<Option<Errno>>,
    /// Its tree on the host, and the export to record.
    tree: (Tree, ExportNo),
    node: Node,
    known: Mutex<Known>,
    /// Size on the host, without changes by others.
    size: AtomicU64,
    durable: DurableSize,
    /// Serialises what extends the file. The host does that anyway, and in the order of offsets a crash leaves no
    /// holes.
    growth: TaskMutex,
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

/// Writes that extend a file, shorter than this and followed by a flush, go through the host's page cache: written directly,
/// each waits for its own allocation and transfer before the flush that it needs anyway, which then writes all of it at once.
/// Parts of a stream (`policy::early`) are longer. Bytes; judged. Measured: trees of small files are made faster. Forced
/// writes need no flush: directly they were 1.6 and 2.0 times as fast as through the page cache with 1 and 4 in flight
/// (8 KiB behind the end, medians of 3 runs on a busy machine), with 16 there was no difference.
const GROWTH_DIRECT_MIN: u64 = 64 << 10;

/// Longest transfers of a file that is empty when it is opened. What extends a file goes to the host one after the other
/// (`growth`), so that the disk waits between two of them: direct writes behind the end were 720 to 940 MB/s
/// with 256 KiB, which the disk prefers, and 1,100 to 1,200 with 1 MiB. Bytes.
const GROWTH_BYTES_MAX: u32 = 1 << 20;

impl GrowingFile {
    /// `open`: open for reading, at the time `now`.
    pub(super) fn new(
        (tree, export): (Tree, ExportNo),
        node: Node,
        open: OpenNode,
        sibling: Sibling,
        now: Instant,
        is_writable: bool,
    ) -> Self {
        let size = open.direct.facts.size;
        let reported = reported(&open, &sibling);
        GrowingFile {
            tree: (tree, export),
            node,
            known: Mutex::new(Known::new(open.attributes, now, Writes::default(), reported)),
            open,
            is_writable,
            writing: Mutex::default(),
            upgrade: TaskMutex::default(),
            is_written: AtomicBool::new(false),
            // The host may have something of before this opening.
            written_back: AtomicU64::new(u64::MAX),
            writing_back: TaskMutex::default(),
            unreported: Mutex::default(),
            size: AtomicU64::new(size),
            durable: DurableSize::new(size),
            growth: TaskMutex::default(),
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
        if let Some(watch) = self.open.watch.as_ref().filter(|_| all) {
            (watch.take)();
        }
        reported(&self.open, &self.sibling)
    }

    /// Our writes so far.
    pub(super) fn writes(&self) -> Writes {
        let ended = self.ended.load(Ordering::SeqCst);
        Writes { begun: self.begun.load(Ordering::SeqCst), ended }
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Asks the host for the file's attributes.
    ///
    /// # Errors
    /// The host's; [`Errno::STALE`] if it has lost its last name.
    pub(super) async fn ask_host(&self, cpu: &Processor) -> Result<(), Errno> {
        let question = self.question(Asked { at: cpu.now(), changes: false });
        match cpu.tree(self.tree, None, TreeCall::Attributes { node: self.node }).await? {
            TreeReply::Attributes(host) if host.links == 0 => Err(Errno::STALE),
            TreeReply::Attributes(host) => {
                self.note(cpu.now(), host, question);
                Ok(())
            }
            _ => Err(Errno::IO),
        }
    }

    /// Have our last writes ended after the host was last asked? Once it is asked, each other time of the file is of a change by
    /// others, also through a mapping, which nothing else reports.
    pub(super) fn is_to_be_asked(&self) -> bool {
        let writes = self.writes();
        writes.were_none_until(writes) && !self.known().is_alone(writes)
    }

    /// The host is about to be asked.
    pub(super) fn question(&self, asked: Asked) -> Question {
        Question { asked, writes: Some(self.writes()), reported: self.reported(false) }
    }

    /// As [`Known::note`].
    pub(super) fn note(&self, now: Instant, host: Attributes, question: Question) -> bool {
        let size = self.size();
        let (until, is_watched) = (self.writes(), self.is_watched());
        // A change while the file was opened may be in none of the reports, nor in what was known then.
        let is_ours = question.writes.is_none_or(|before| !before.were_none_until(until)) || host.size == size;
        let mut known = self.known();
        if !is_ours {
            known.find_stale(now, true);
        }
        known.note(now, host, question, (until, is_watched))
    }

    /// Was it written, or opened for writing, since the last call?
    pub(super) fn take_written(&self) -> bool {
        self.is_written.swap(false, Ordering::Relaxed)
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
        self.is_written.store(true, Ordering::Relaxed);
        if let Some(writing) = &*self.writing.lock() {
            return Ok((Arc::clone(writing), false));
        }
        let _one_at_a_time = self.upgrade.lock().await;
        if let Some(writing) = &*self.writing.lock() {
            return Ok((Arc::clone(writing), false));
        }
        let writing = Arc::new(open().await?);
        *self.writing.lock() = Some(Arc::clone(&writing));
        Ok((writing, true))
    }

    /// Closes the file for writing, unless a writer has it or not `is_clean`. Returns whether it is closed.
    pub(super) fn end_writing(&self, is_clean: impl FnOnce() -> bool) -> bool {
        let mut writing = self.writing.lock();
        if writing.as_ref().is_some_and(|writing| Arc::strong_count(writing) == 1 && is_clean()) {
            *writing = None;
        }
        writing.is_none()
    }

    async fn read(&self, cpu: &Processor, range: ByteRange, frames: Frames) -> Result<Outcome, Errno> {
        let began = if self.is_watched() { None } else { Some(cpu.time_of_day()) };
        let facts = &self.open.direct.facts;
        let len = if facts.direct { range.len.next_multiple_of(u64::from(facts.align)) } else { range.len };
        let into = segments(&frames, 0, len as usize);
        let op = |into| Op::Read { file: self.open.direct.file, at: range.at, into };
        let (result, frames) = transfer(cpu, frames, into, op).await;
        let read = result?.min(range.len);
        // Beyond the end of the host's file, zeroes are read.
        zero_part(&frames, read as usize, (range.len - read) as usize);
        // Newer content next to older cached blocks would be a version of the file that never existed.
        // Boxed: writes need less memory.
        Box::pin(self.ask_host(cpu)).await?;
        let mut known = self.known();
        if known.stale == Stale::Yes {
            let is_outrun = self.outrun.fetch_add(1, Ordering::Relaxed) >= OUTRUN_MAX;
            return Ok(if is_outrun { Outcome::Done } else { Outcome::Changed });
        }
        self.outrun.store(0, Ordering::Relaxed);
        if began.is_some_and(|began| may_share_time(known.host.modified, began, cpu.time_of_day())) {
            known.find_stale(cpu.now(), false);
        }
        Ok(Outcome::Done)
    }

    /// The file is open for writing: it is opened before there is anything to write, and closed when all is durable.
    async fn write(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        stability: Stability,
    ) -> Result<Outcome, Errno> {
        let writing = self.writing.lock().clone().ok_or(Errno::STALE)?;
        self.is_written.store(true, Ordering::Relaxed);
        let _under_way = UnderWay::new(self);
        let (at, end) = (range.at, range.end());
        let grows = end.0 > self.size();
        let _growth = if grows { Some(self.growth.lock().await) } else { None };
        let is_asked = stability == Stability::Stable;
        let whole = range.whole_blocks();
        let ends_direct = writing.buffered.is_some() && !whole.is_empty() && whole.end.start() == end;
        let forced = if is_asked { self.durable.covers(end.0, self.size(), ends_direct) } else { None };
        let stability = if forced.is_some() { Stability::Stable } else { Stability::Unstable };
        let (from, to) = match writing.buffered {
            Some(_) if grows && range.len < GROWTH_DIRECT_MIN && stability == Stability::Unstable => (end, end),
            Some(_) => (end.min(whole.start.start()), whole.end.start()),
            None => (at, end),
        };
        let (to, base) = (to.max(from), BlockNo::holding(at).start());
        let direct = writing.direct.file;
        let written = match writing.buffered.as_ref().map(|buffered| buffered.file) {
            Some(buffered) if at < from || to < end => {
                // Boxed: whole blocks need less memory.
                let parts = async {
                    let frames = write_all(cpu, buffered, base, frames, at.to(from), stability).await?;
                    let frames = write_all(cpu, direct, base, frames, from.to(to), stability).await?;
                    write_all(cpu, buffered, base, frames, to.to(end), stability).await
                };
                Box::pin(parts).await
            }
            _ => write_all(cpu, direct, base, frames, at.to(end), stability).await,
        };
        if let Err(errno) = written {
            if grows {
                self.durable.doubt();
            }
            return Err(errno);
        }
        self.size.fetch_max(end.0, Ordering::AcqRel);
        let is_durable = forced.is_some_and(|since| self.durable.raise(end.0, since));
        Ok(if is_asked && !is_durable { Outcome::Unforced } else { Outcome::Done })
    }

    /// What a flush makes durable that begins now.
    pub(super) fn begin_flush(&self) -> (u64, Doubts) {
        let doubts = self.durable.doubts();
        (self.size(), doubts)
    }

    pub(super) fn on_flushed(&self, (size, doubts): (u64, Doubts)) {
        self.durable.raise(size, doubts);
    }

    /// Has the host write what it has of the file in its page cache: a flush then waits for the journal only. Returns
    /// whether everything written before is on the disk.
    ///
    /// Also what was written directly may be in the page cache, as in files whose data is in the inode.
    pub(super) async fn write_back(&self, cpu: &Processor) -> bool {
        let _one_at_a_time = self.writing_back.lock().await;
        let Writes { begun, ended } = self.writes();
        if self.written_back.load(Ordering::SeqCst) == begun {
            return true;
        }
        let writing = self.writing.lock().clone();
        let open = writing.as_deref().unwrap_or(&self.open);
        let file = open.buffered.as_ref().unwrap_or(&open.direct).file;
        // SAFETY: the operation has no segments.
        let result = unsafe { cpu.perform(Hold::default(), Op::WriteBack { file }) }.await.0;
        if let Err(errno) = result {
            self.unreported.lock().get_or_insert(errno);
        }
        let is_done = result.is_ok() && begun == ended;
        if is_done {
            self.written_back.store(begun, Ordering::SeqCst);
        }
        is_done
    }

    /// An error of writing back that no flush has returned. The host tells it once, as a rule, and then has no dirty pages any
    /// more: the next flush succeeds, through the same descriptor or, if space for the pages could not be had, any. So does one
    /// that runs beside the writing back: this waits for its end.
    pub(super) async fn take_unreported(&self) -> Option<Errno> {
        let _written_back = self.writing_back.lock().await;
        let errno = self.unreported.lock().take();
        // Nor is the size durable that the pages would have given the file.
        errno.inspect(|_| self.durable.doubt())
    }

    /// The host file system's limit. Bytes.
    pub(super) fn bytes_max(&self) -> u64 {
        self.open.bytes_max
    }

    /// Size on the host, without changes by others.
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Until the result is dropped nothing extends the file.
    pub(super) async fn before_resizing(&self) -> impl Drop + '_ {
        self.growth.lock().await
    }

    /// We have changed the size of the host's file.
    pub(super) fn on_resized(&self, size: u64) {
        self.size.store(size, Ordering::Release);
        self.durable.on_resized(size);
        // What was cut off within a block is zeroed in the host's page cache.
        self.written_back.store(u64::MAX, Ordering::SeqCst);
        self.sibling.report();
    }

    /// We have not: the host may have, all the same.
    pub(super) fn on_resize_failed(&self) {
        self.durable.doubt();
    }

    /// The host's file has another size.
    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
        self.durable.doubt();
    }
}

fn reported(open: &OpenNode, sibling: &Sibling) -> Reported {
    Reported { by_host: open.watch.as_ref().map_or(0, Watch::changes), by_siblings: sibling.changes() }
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
        let size = self.size();
        let facts = DeviceFacts::of(&self.open.direct.facts, false);
        let transfer_bytes_max = if size == 0 { GROWTH_BYTES_MAX } else { 0 }.max(facts.transfer_bytes_max);
        DeviceFacts { size, writable: self.is_writable, transfer_bytes_max, ..facts }
    }

    fn perform<'a>(&'a self, cpu: &'a Processor, request: Request) -> Work<'a, Outcome> {
        Box::pin(async move {
            match request.action {
                Action::Read(range, frames) => {
                    debug_assert!(frames.len() * FRAME_BYTES >= range.len as usize);
                    self.read(cpu, range, frames).await
                }
                Action::Write(range, frames) => self.write(cpu, range, frames, request.context.stability).await,
                Action::Flush => {
                    let begun = self.begin_flush();
                    // The host reports write errors on the descriptor that was written through.
                    let writing = self.writing.lock().clone();
                    let op = Op::Flush { file: writing.as_deref().unwrap_or(&self.open).direct.file };
                    // SAFETY: the operation has no segments.
                    unsafe { cpu.perform(Hold::default(), op) }.await.0?;
                    self.on_flushed(begun);
                    Ok(Outcome::Done)
                }
                Action::Zero { .. } | Action::Discard(_) => Ok(Outcome::Unsupported),
            }
        })
    }
}

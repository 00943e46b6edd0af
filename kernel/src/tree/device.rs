//! A device in a file of a directory tree: it grows when it is written beyond its end.
//!
//! Whole blocks go past the host's page cache; a last block that is not whole goes through it, so that the file is
//! never longer than what was written: after a crash there is no tail of zeroes. The host keeps both views the same.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};

use machine::tree::OpenNode;
use machine::{Errno, File, Op};
use policy::unit::{BLOCK_BYTES, ByteRange, Stability};

use super::vnode::Vnode;
use crate::device::{Device, DeviceFacts, Work};
use crate::frame::{FRAME_BYTES, Frames, segments};
use crate::operation::Hold;
use crate::processor::Processor;
use crate::request::{Action, Request};
use crate::wait::WaitList;

/// What a read is told when somebody else changed the file meanwhile: what the cache has is old.
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
}

impl GrowingFile {
    /// The device in an open file.
    pub(super) fn new(open: OpenNode) -> Self {
        let size = AtomicU64::new(open.direct.facts.size);
        GrowingFile {
            open,
            file: OnceLock::new(),
            size,
            is_growing: AtomicBool::new(false),
            grown: WaitList::default(),
        }
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
            Some(file) if file.was_changed(cpu).await? => Err(CHANGED),
            _ => Ok(()),
        }
    }

    async fn write(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        stability: Stability,
    ) -> Result<(), Errno> {
        let _grows = if range.end().0 > self.size.load(Ordering::Acquire) { Some(self.grow().await) } else { None };
        let whole = match self.open.buffered {
            Some(_) => range.len / BLOCK_BYTES * BLOCK_BYTES,
            None => range.len,
        };
        let frames = self.put(cpu, self.open.direct.file, range.at.0, frames, 0..whole, stability).await?;
        if let Some(buffered) = &self.open.buffered {
            self.put(cpu, buffered.file, range.at.0, frames, whole..range.len, stability).await?;
        }
        self.size.fetch_max(range.end().0, Ordering::AcqRel);
        Ok(())
    }

    /// Writes `part` of what the frames hold, whose first byte belongs at `at`.
    async fn put(
        &self,
        cpu: &Processor,
        file: File,
        at: u64,
        mut frames: Frames,
        part: std::ops::Range<u64>,
        stability: Stability,
    ) -> Result<Frames, Errno> {
        let mut done = part.start;
        while done < part.end {
            let from = segments(&frames, done as usize, (part.end - done) as usize);
            let op = Op::Write { file, at: policy::unit::ByteOffset(at + done), from, stability };
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

    /// The host gave the file another size.
    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
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

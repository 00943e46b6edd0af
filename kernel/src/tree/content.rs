//! The content of a tree's files. The host is asked about a file before its cached content is used.

use std::cell::Cell;
use std::sync::Arc;

use machine::Errno;
use machine::tree::Attributes;
use policy::unit::{BLOCK_BYTES, ByteRange, Stability};

use super::FileTree;
use super::known::Stale;
use super::vnode::Vnode;
use crate::frame::Frames;
use crate::processor::Processor;
use crate::request::Context;
use crate::volume::Attempt;

/// Attempts at an operation during which the file changes, before the client must retry later.
const ATTEMPTS_MAX: u32 = 16;

/// The error then (`NFS3ERR_JUKEBOX`).
const TRY_LATER: Errno = Errno(libc::EAGAIN);

impl FileTree {
    /// A file's attributes; asks the host if the last reply is older than [`super::FRESH`], or after a reported change.
    ///
    /// # Errors
    /// The host's.
    pub async fn refresh(&self, cpu: &Processor, file: &Vnode) -> Result<Attributes, Errno> {
        if let Some(fresh) = file.fresh(cpu) {
            return Ok(fresh.attributes);
        }
        self.revalidate(cpu, file).await?;
        Ok(file.attributes())
    }

    /// As [`FileTree::refresh`], for those that do not need the attributes.
    async fn revalidate(&self, cpu: &Processor, file: &Vnode) -> Result<(), Errno> {
        if file.is_fresh(cpu) {
            return Ok(());
        }
        // Boxed, as what follows: large and rare.
        let result = Box::pin(self.ask_and_follow_host(cpu, file)).await;
        if result == Err(Errno::STALE) {
            self.close_unknown(cpu, file);
        }
        result
    }

    async fn ask_and_follow_host(&self, cpu: &Processor, file: &Vnode) -> Result<(), Errno> {
        file.device.ask_host(cpu).await?;
        let is_current = file.known().stale == Stale::No;
        if is_current { Ok(()) } else { Box::pin(self.follow_host(cpu, file)).await }
    }

    /// Drops cached content if others changed the file.
    async fn follow_host(&self, cpu: &Processor, file: &Vnode) -> Result<(), Errno> {
        if file.known().stale == Stale::No {
            return Ok(());
        }
        let _one_at_a_time = file.following.lock().await;
        if file.known().stale == Stale::No {
            return Ok(());
        }
        let found_stale = Cell::new(0);
        let ask = async {
            file.device.ask_host(cpu).await?;
            let known = file.known();
            found_stale.set(known.found_stale);
            file.device.set_size(known.host.size);
            Ok(known.host.size)
        };
        let is_all_ours = file.volume.follow_host(cpu, ask).await?;
        let mut known = file.known();
        // A later finding is another change.
        if known.found_stale == found_stale.get() {
            known.stale = if is_all_ours { Stale::No } else { Stale::Perhaps(cpu.now()) };
        }
        Ok(())
    }

    /// Reads `range` of a file, cut at its end; returns that range. The first byte lies `range.at % 4096` bytes into
    /// the first frame.
    ///
    /// # Errors
    /// The host's.
    pub async fn read(
        &self,
        cpu: &Processor,
        file: &Vnode,
        range: ByteRange,
        context: Context,
    ) -> Result<(ByteRange, Frames), Errno> {
        for _ in 0..ATTEMPTS_MAX {
            self.revalidate(cpu, file).await?;
            let range = file.volume.clip(range);
            if range.len == 0 {
                return Ok((range, Frames::new()));
            }
            if let Attempt::Done(frames) = file.volume.attempt_read(cpu, range, context).await? {
                return Ok((range, frames));
            }
        }
        Err(TRY_LATER)
    }

    /// Writes to a file, as [`Volume::write`](crate::Volume::write). A write beyond the end extends it. What is stable
    /// is durable with all changes of names that were answered before.
    ///
    /// # Errors
    /// The host's: then nothing is promised.
    pub async fn write(
        self: &Arc<Self>,
        cpu: &Processor,
        file: &Arc<Vnode>,
        range: ByteRange,
        frames: Frames,
        context: Context,
    ) -> Result<(), Errno> {
        if range.end().0 > file.device.bytes_max() {
            return Err(Errno::FILE_TOO_LARGE);
        }
        // Partial blocks are merged into the present content, which may have to be read.
        let is_whole = range.at.0.is_multiple_of(BLOCK_BYTES) && range.len.is_multiple_of(BLOCK_BYTES);
        let kept = if is_whole { Frames::new() } else { frames.clone() };
        let answered = self.answered_so_far();
        // Opened now, not at write-back: an error there could not be returned.
        let _writing = self.open_for_writing(cpu, file).await?;
        self.revalidate(cpu, file).await?;
        let mut result = file.volume.attempt_write(cpu, range, frames, context).await;
        for _ in 1..ATTEMPTS_MAX {
            if result != Ok(Attempt::Changed) || is_whole {
                break;
            }
            self.revalidate(cpu, file).await?;
            // Boxed: large and rare.
            result = Box::pin(file.volume.attempt_write(cpu, range, kept.clone(), context)).await;
        }
        file.note_write(cpu.time_of_day());
        file.look_for_failures();
        match result? {
            Attempt::Done(()) if context.stability == Stability::Stable => self.settle(cpu, answered).await,
            Attempt::Done(()) => Ok(()),
            Attempt::Changed => Err(TRY_LATER),
        }
    }

    /// Makes everything written to a file before durable, with all changes of names that were answered before. Later
    /// readers see what others wrote before.
    ///
    /// # Errors
    /// The host's: some of it may be lost.
    pub async fn commit(self: &Arc<Self>, cpu: &Processor, file: &Arc<Vnode>, context: Context) -> Result<(), Errno> {
        let (content, names) = self.commit_both(cpu, file, context).await;
        let may_be_changed = file.device.reported(true) != file.known().reported || !file.device.is_watched();
        let is_current = !may_be_changed && !file.device.is_to_be_asked();
        // The result stands even if the revalidation fails.
        if is_current || file.device.ask_host(cpu).await.is_ok() {
            let _ = self.follow_host(cpu, file).await;
        }
        content.and(names)
    }

    /// Changes a file's size; `change` does it on the host.
    pub(super) async fn resize<T>(
        &self,
        cpu: &Processor,
        file: &Vnode,
        size: u64,
        change: impl Future<Output = Result<T, Errno>>,
    ) -> Result<T, Errno> {
        let change = async {
            let growth = file.device.before_resizing().await;
            let result = change.await;
            match result {
                Ok(_) => file.device.on_resized(size),
                Err(_) => file.device.on_resize_failed(),
            }
            drop(growth);
            if result.is_err() {
                self.look_at_size(cpu, file).await;
            }
            result
        };
        file.volume.resize(cpu, size, change).await
    }

    /// A change of the size has failed: the host may have made it, before something else failed.
    async fn look_at_size(&self, cpu: &Processor, file: &Vnode) {
        let is_known = file.device.ask_host(cpu).await.is_ok();
        let mut known = file.known();
        if !is_known || known.host.size != file.device.size() {
            known.find_stale(cpu.now(), true);
        }
    }
}

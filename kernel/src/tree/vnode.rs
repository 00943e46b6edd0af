use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use machine::Errno;
use machine::tree::{Attributes, Node, OpenNode, Time};
use parking_lot::MutexGuard;
use policy::unit::{BLOCK_BYTES, ByteRange, ProcessorId, Stability};

use super::device::GrowingFile;
use super::known::{Known, Stale};
use super::{FileTree, node_for_records};
use crate::device::{DeviceRef, TooManyDevices};
use crate::frame::Frames;
use crate::processor::Processor;
use crate::queue::Queued;
use crate::request::Context;
use crate::trace::Event;
use crate::volume::{Attempt, ForeignFlush, Loss, Volume, VolumeConfig};
use crate::wait::WaitList;

/// Attempts at an operation during which the file changes, before the client must retry later.
const ATTEMPTS_MAX: u32 = 16;

/// The error then (`NFS3ERR_JUKEBOX`).
const TRY_LATER: Errno = Errno(libc::EAGAIN);

/// A regular file in use, with its volume and attributes.
pub struct Vnode {
    pub(super) this: Weak<Vnode>,
    pub(super) tree: Weak<FileTree>,
    pub(super) node: Node,
    pub(super) device: Arc<GrowingFile>,
    volume: Arc<Volume>,
    /// The volume's failed writes and flushes at the last check.
    failures: AtomicU64,
    used: AtomicBool,
    /// A task is revalidating the cache.
    is_following: AtomicBool,
    followed: WaitList,
}

impl Vnode {
    pub(super) fn new(
        cpu: &Processor,
        tree: &FileTree,
        node: Node,
        open: OpenNode,
        host: Attributes,
    ) -> Result<Arc<Self>, TooManyDevices> {
        let sibling = tree.kernel.served().siblings.join((host.file_system, host.number));
        let at = (tree.open.tree, tree.export());
        let is_writable = !tree.config.read_only;
        let device = Arc::new(GrowingFile::new(at, node, open, sibling, (host, cpu.now()), is_writable));
        let below: DeviceRef = device.clone();
        let queued: DeviceRef = Arc::new(Queued::new(Arc::clone(&tree.config.queue), below));
        let config = VolumeConfig {
            name: tree.config.name.clone(),
            read_only: tree.config.read_only,
            forced_unit_access: tree.config.forced_unit_access,
            grows: true,
        };
        let home = ProcessorId((host.number.0 % u64::from(tree.kernel.processors())) as u16);
        let volume = Volume::open(&tree.kernel, queued, config, home)?;
        volume.set_export(tree.export());
        cpu.trace(Event::FileOpened, (cpu.job(), tree.export()), node_for_records(node.as_bytes()), host.size);
        Ok(Arc::new_cyclic(|this| Vnode {
            this: Weak::clone(this),
            tree: tree.this.clone(),
            node,
            device,
            volume,
            failures: AtomicU64::new(0),
            used: AtomicBool::new(true),
            is_following: AtomicBool::new(false),
            followed: WaitList::default(),
        }))
    }

    /// Its known attributes, as clients must see them.
    pub fn attributes(&self) -> Attributes {
        self.attributes_by(&self.known())
    }

    fn attributes_by(&self, known: &Known) -> Attributes {
        let size = self.volume.size();
        let unwritten = if self.is_clean() { 0 } else { size };
        Attributes {
            size,
            used: known.host.used.max(unwritten),
            modified: known.modified,
            changed: known.changed,
            ..known.host
        }
    }

    /// The file's known state, if still valid.
    pub fn fresh(&self, cpu: &Processor) -> Option<Fresh<'_>> {
        let reported = self.device.reported(false);
        let known = self.known();
        known.is_fresh(cpu.now(), reported).then(|| Fresh { file: self, attributes: self.attributes_by(&known) })
    }

    /// Its attributes; asks the host if the last reply is older than [`super::FRESH`], or after a reported change.
    ///
    /// # Errors
    /// The host's.
    pub async fn refresh(&self, cpu: &Processor) -> Result<Attributes, Errno> {
        if let Some(fresh) = self.fresh(cpu) {
            return Ok(fresh.attributes);
        }
        self.ask_host(cpu).await?;
        self.follow_host(cpu).await?;
        Ok(self.attributes())
    }

    async fn ask_host(&self, cpu: &Processor) -> Result<(), Errno> {
        if self.device.ask_host(cpu).await? {
            return Ok(());
        }
        // Only our descriptor keeps the file alive.
        if let Some(tree) = self.tree.upgrade() {
            tree.forget(cpu, self.node);
        }
        Err(Errno::STALE)
    }

    /// Drops cached content if others changed the file.
    async fn follow_host(&self, cpu: &Processor) -> Result<(), Errno> {
        if self.known().stale == Stale::No {
            return Ok(());
        }
        let _turn = self.turn_to_follow().await;
        if self.known().stale == Stale::No {
            return Ok(());
        }
        let found_stale = Cell::new(0);
        let ask = async {
            self.ask_host(cpu).await?;
            let known = self.known();
            found_stale.set(known.found_stale);
            self.device.set_size(known.host.size);
            Ok(known.host.size)
        };
        let is_all_ours = self.volume.follow_host(cpu, ask).await?;
        let mut known = self.known();
        // A later finding is another change.
        if known.found_stale == found_stale.get() {
            known.stale = if is_all_ours { Stale::No } else { Stale::Perhaps(cpu.now()) };
        }
        Ok(())
    }

    async fn turn_to_follow(&self) -> Following<'_> {
        let mine = || (!self.is_following.swap(true, Ordering::AcqRel)).then_some(());
        self.followed.until(mine).await;
        Following(self)
    }

    /// Reads from the cache, if it has all of `range`, which must lie in the file, and the known attributes are valid.
    pub fn try_read(&self, cpu: &Processor, range: ByteRange) -> Option<Frames> {
        self.fresh(cpu)?.try_read(cpu, range)
    }

    /// Reads `range`, cut at the end of the file; returns that range. The first byte lies `range.at % 4096` bytes into
    /// the first frame.
    ///
    /// # Errors
    /// The host's.
    pub async fn read(
        &self,
        cpu: &Processor,
        range: ByteRange,
        context: Context,
    ) -> Result<(ByteRange, Frames), Errno> {
        for _ in 0..ATTEMPTS_MAX {
            self.refresh(cpu).await?;
            let range = self.volume.clip(range);
            if range.len == 0 {
                return Ok((range, Frames::new()));
            }
            if let Attempt::Done(frames) = self.volume.attempt_read(cpu, range, context).await? {
                return Ok((range, frames));
            }
        }
        Err(TRY_LATER)
    }

    /// As [`Volume::write`]. A write beyond the end extends the file.
    ///
    /// # Errors
    /// The host's: then nothing is promised.
    pub async fn write(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        context: Context,
    ) -> Result<(), Errno> {
        if range.end().0 > self.device.bytes_max() {
            return Err(Errno::FILE_TOO_LARGE);
        }
        // Partial blocks are merged into the present content, which may have to be read.
        let is_whole = range.at.0.is_multiple_of(BLOCK_BYTES) && range.len.is_multiple_of(BLOCK_BYTES);
        let kept = if is_whole { Frames::new() } else { frames.clone() };
        // Opened now, not at write-back: an error there could not be returned.
        let _writing = self.writing(cpu).await?;
        self.refresh(cpu).await?;
        let mut result = self.volume.attempt_write(cpu, range, frames, context).await;
        for _ in 1..ATTEMPTS_MAX {
            if result != Ok(Attempt::Changed) || is_whole {
                break;
            }
            self.refresh(cpu).await?;
            result = self.volume.attempt_write(cpu, range, kept.clone(), context).await;
        }
        self.note_write(cpu.time_of_day());
        self.look_for_failures();
        match result? {
            Attempt::Done(()) if context.stability == Stability::Stable => self.settle_names(cpu).await,
            Attempt::Done(()) => Ok(()),
            Attempt::Changed => Err(TRY_LATER),
        }
    }

    /// What is told to be durable is so with all changes of names that were answered before.
    async fn settle_names(&self, cpu: &Processor) -> Result<(), Errno> {
        match self.tree.upgrade() {
            Some(tree) => tree.settle(cpu).await,
            None => Ok(()),
        }
    }

    /// Makes everything written before durable. Later readers see what others wrote before.
    ///
    /// # Errors
    /// The host's: some of it may be lost.
    pub async fn commit(&self, cpu: &Processor, context: Context) -> Result<(), Errno> {
        let result = self.volume.flush(cpu, context).await;
        self.look_for_failures();
        let is_current = self.device.reported(true) == self.known().reported && self.device.is_watched();
        // The result stands even if the revalidation fails.
        if is_current || self.ask_host(cpu).await.is_ok() {
            let _ = self.follow_host(cpu).await;
        }
        result.and(self.settle_names(cpu).await)
    }

    /// Changes the file's size; `change` does it on the host.
    pub(super) async fn resize(
        &self,
        cpu: &Processor,
        size: u64,
        change: impl Future<Output = Result<Attributes, Errno>>,
    ) -> Result<Attributes, Errno> {
        let change = async {
            let after = change.await?;
            self.device.on_resized(size);
            Ok(after)
        };
        self.volume.resize(cpu, size, change).await
    }

    /// Attributes were set on the host for a client: clients see these from now on.
    pub(super) fn adopt(&self, cpu: &Processor, host: Attributes) -> Attributes {
        let writes = self.device.writes();
        let mut known = self.known();
        let was_written = known.modified != known.host.modified && host.modified == known.host.modified;
        known.modified = if was_written { known.modified } else { host.modified };
        known.changed = known.changed.max(host.changed);
        known.host = host;
        known.writes = known.writes.filter(|before| before.were_none_until(writes));
        known.asked = cpu.now();
        drop(known);
        self.attributes()
    }

    /// The host returned these attributes; returns what clients see.
    pub(super) fn observe(&self, cpu: &Processor, host: Attributes) -> Attributes {
        let reported = self.known().reported;
        self.device.note(cpu.now(), host, None, reported);
        if self.known().stale == Stale::Yes { host } else { self.attributes() }
    }

    fn note_write(&self, now: Time) {
        let mut known = self.known();
        known.modified = known.modified.max(now);
        known.changed = known.changed.max(now);
    }

    /// Changes the tree's write verifier if data that clients wrote may have been lost.
    fn look_for_failures(&self) {
        let failures = self.volume.failures_so_far();
        let before = self.failures.swap(failures, Ordering::Relaxed);
        if failures > before
            && let Some(tree) = self.tree.upgrade()
        {
            tree.change_verifier();
        }
    }

    /// The node is synced by a call that is not the volume's own flush, until this is dropped.
    pub(super) fn begin_sync(&self) -> ForeignFlush {
        self.volume.begin_foreign_flush()
    }

    /// The sync failed: earlier writes to the host may be lost.
    pub(super) fn on_failed_sync(&self, sync: ForeignFlush, errno: Errno) {
        sync.failed(errno);
        self.look_for_failures();
    }

    /// Is everything on the host, and flushed?
    pub(super) fn is_clean(&self) -> bool {
        self.volume.is_clean()
    }

    /// Flushes and closes.
    pub(super) async fn close(&self, cpu: &Processor) -> Result<(), Errno> {
        let result = self.volume.flush(cpu, Context::synchronous(cpu.job())).await;
        self.look_for_failures();
        self.abandon(cpu);
        result
    }

    /// Closes; unwritten data is dropped.
    pub(super) fn abandon(&self, cpu: &Processor) {
        let node = node_for_records(self.node.as_bytes());
        cpu.trace(Event::FileClosed, (cpu.job(), self.volume.export()), node, 0);
        self.volume.stop();
    }

    pub(super) fn loss(&self) -> Option<Loss> {
        self.volume.loss()
    }

    /// Restores the loss of an earlier opening.
    pub(super) fn restore_loss(&self, loss: &Loss) {
        self.volume.restore_loss(loss);
    }

    pub(super) fn note_use(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    pub(super) fn take_use(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.device.known()
    }
}

/// A file whose known attributes are valid.
pub struct Fresh<'a> {
    file: &'a Vnode,
    pub attributes: Attributes,
}

impl Fresh<'_> {
    /// Reads from the cache, if it has all of `range`, which must lie in the file. The size in the attributes is not
    /// older than what was read.
    pub fn try_read(&mut self, cpu: &Processor, range: ByteRange) -> Option<Frames> {
        let frames = self.file.volume.try_read(cpu, range)?;
        self.attributes.size = self.file.volume.size();
        Some(frames)
    }
}

/// The exclusive right to revalidate, until dropped.
struct Following<'a>(&'a Vnode);

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.0.is_following.store(false, Ordering::Release);
        self.0.followed.wake_all();
    }
}

//! A regular file in the buffer cache.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use machine::Errno;
use machine::tree::{Attributes, Node, OpenNode, Time, TreeCall, TreeReply};
use policy::unit::{BLOCK_BYTES, ByteRange, Instant, ProcessorId};

use super::device::{CHANGED, GrowingFile};
use super::{FRESH, FileTree, node_for_records};
use crate::device::DeviceRef;
use crate::frame::Frames;
use crate::kernel::KernelError;
use crate::processor::Processor;
use crate::queue::Queued;
use crate::request::Context;
use crate::trace::Event;
use crate::volume::{ForeignFlush, Volume, VolumeConfig};

/// A regular file that is open.
pub struct Vnode {
    tree: Weak<FileTree>,
    node: Node,
    device: Arc<GrowingFile>,
    volume: Arc<Volume>,
    known: Mutex<Known>,
    used: AtomicBool,
    /// Somebody else changed the content; the cache is still as it was before.
    is_stale: AtomicBool,
}

/// What is known of the file's attributes.
struct Known {
    /// What the host said last, and when.
    host: Attributes,
    asked: Instant,
    /// How often the volume had changed its device by then.
    changes: u64,
    /// Writes and flushes that had failed when somebody looked last.
    failures: u64,
    /// What clients are told: the host changes its times when the cache writes, which is not when the clients did.
    modified: Time,
    changed: Time,
}

impl Vnode {
    pub(super) fn new(
        cpu: &Processor,
        tree: &FileTree,
        node: Node,
        open: OpenNode,
        host: Attributes,
    ) -> Result<Arc<Self>, Errno> {
        let device = Arc::new(GrowingFile::new(open));
        let below: DeviceRef = device.clone();
        let queued: DeviceRef = Arc::new(Queued::new(Arc::clone(&tree.config.queue), below));
        let config = VolumeConfig {
            name: tree.config.name.clone(),
            read_only: tree.config.read_only,
            forced_unit_access: tree.config.forced_unit_access,
            grows: true,
        };
        let home = ProcessorId((host.number % u64::from(tree.kernel.processors())) as u16);
        let volume = Volume::open(&tree.kernel, queued, config, home).map_err(|error| match error {
            KernelError::TooManyDevices => Errno(libc::ENFILE),
            KernelError::Reserve { .. } => Errno::NO_MEMORY,
        })?;
        volume.set_export(tree.export());
        cpu.trace(Event::FileOpened, (cpu.job(), tree.export()), node_for_records(node.as_bytes()), host.size);
        let known = Known {
            host,
            asked: cpu.now(),
            changes: volume.changes(),
            failures: 0,
            modified: host.modified,
            changed: host.changed,
        };
        let file = Arc::new(Vnode {
            tree: tree.this.clone(),
            node,
            device,
            volume,
            known: Mutex::new(known),
            used: AtomicBool::new(true),
            is_stale: AtomicBool::new(false),
        });
        file.device.belongs_to(Arc::downgrade(&file));
        Ok(file)
    }

    /// Its attributes as clients must see them, as far as they are known.
    pub fn attributes(&self) -> Attributes {
        let known = self.known();
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

    /// Its attributes, if the host was asked lately.
    pub fn fresh_attributes(&self, cpu: &Processor) -> Option<Attributes> {
        self.is_fresh(cpu).then(|| self.attributes())
    }

    /// Its attributes; the host is asked when that is [`FRESH`] ago.
    ///
    /// # Errors
    /// The host's.
    pub async fn refresh(&self, cpu: &Processor) -> Result<Attributes, Errno> {
        if !self.is_fresh(cpu) {
            self.ask_host(cpu).await?;
            self.follow_host(cpu).await;
        }
        Ok(self.attributes())
    }

    /// Asks the host: did somebody else change the content?
    ///
    /// # Errors
    /// The host's.
    pub(super) async fn was_changed(&self, cpu: &Processor) -> Result<bool, Errno> {
        self.ask_host(cpu).await?;
        Ok(self.is_stale.load(Ordering::Acquire))
    }

    async fn ask_host(&self, cpu: &Processor) -> Result<(), Errno> {
        let Some(tree) = self.tree.upgrade() else { return Err(Errno::IO) };
        match tree.ask(cpu, None, TreeCall::Attributes { node: self.node }).await? {
            // We alone keep it alive.
            TreeReply::Attributes(host) if host.links == 0 => {
                tree.forget(cpu, self.node);
                Err(Errno::STALE)
            }
            TreeReply::Attributes(host) => {
                self.note(cpu, host);
                Ok(())
            }
            _ => Err(Errno::IO),
        }
    }

    /// Forgets what the cache has, if somebody else changed the content.
    async fn follow_host(&self, cpu: &Processor) {
        while self.is_stale.swap(false, Ordering::AcqRel) {
            let size = self.known().host.size;
            self.volume.follow_host(cpu, size).await;
            self.device.set_size(size);
        }
    }

    /// Reads from the cache, if it has all of `range`, which must lie in the file, and the host was asked lately.
    pub fn try_read(&self, cpu: &Processor, range: ByteRange) -> Option<Frames> {
        if self.is_fresh(cpu) { self.volume.try_read(cpu, range) } else { None }
    }

    /// Reads `range`, cut at the end of the file: returns what that is. The first byte lies `range.at % 4096` bytes into
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
        loop {
            self.refresh(cpu).await?;
            let range = self.volume.clip(range);
            if range.len == 0 {
                return Ok((range, Frames::new()));
            }
            match self.volume.read(cpu, range, context).await {
                Err(CHANGED) => {}
                // Cut short meanwhile.
                Err(Errno::INVALID) if self.volume.clip(range) != range => {}
                result => return result.map(|frames| (range, frames)),
            }
        }
    }

    /// Writes, as [`Volume::write`] does. The file grows when it is written beyond its end.
    ///
    /// # Errors
    /// The host's: then nothing of it is promised.
    pub async fn write(
        &self,
        cpu: &Processor,
        range: ByteRange,
        frames: Frames,
        context: Context,
    ) -> Result<(), Errno> {
        // What is no whole block is put into the present content, which may have to be read.
        let is_whole = range.at.0.is_multiple_of(BLOCK_BYTES) && range.len.is_multiple_of(BLOCK_BYTES);
        let kept = if is_whole { Frames::new() } else { frames.clone() };
        self.refresh(cpu).await?;
        let mut result = self.volume.write(cpu, range, frames, context).await;
        while result == Err(CHANGED) && !is_whole {
            self.refresh(cpu).await?;
            result = self.volume.write(cpu, range, kept.clone(), context).await;
        }
        self.note_write(cpu.time_of_day());
        self.look_for_failures();
        result
    }

    /// Makes durable all that was written before.
    ///
    /// # Errors
    /// The host's: then some of it may be lost.
    pub async fn commit(&self, cpu: &Processor, context: Context) -> Result<(), Errno> {
        let result = self.volume.flush(cpu, context).await;
        self.look_for_failures();
        result
    }

    /// Gives the file another size; `change` does it on the host.
    pub(super) async fn resize(
        &self,
        cpu: &Processor,
        size: u64,
        change: impl Future<Output = Result<Attributes, Errno>>,
    ) -> Result<Attributes, Errno> {
        let change = async {
            let after = change.await?;
            self.device.set_size(size);
            Ok(after)
        };
        self.volume.resize(cpu, size, change).await
    }

    /// Attributes were set on the host for a client: clients are told these.
    pub(super) fn adopt(&self, cpu: &Processor, host: Attributes) -> Attributes {
        let mut known = self.known();
        let was_written = known.modified != known.host.modified && host.modified == known.host.modified;
        known.modified = if was_written { known.modified } else { host.modified };
        known.changed = known.changed.max(host.changed);
        known.host = host;
        known.changes = self.volume.changes();
        known.asked = cpu.now();
        drop(known);
        self.attributes()
    }

    /// The host told these attributes: what clients are told.
    pub(super) fn observe(&self, cpu: &Processor, host: Attributes) -> Attributes {
        self.note(cpu, host);
        if self.is_stale.load(Ordering::Acquire) { host } else { self.attributes() }
    }

    /// Takes note of what the host told.
    fn note(&self, cpu: &Processor, host: Attributes) {
        let is_clean = self.is_clean();
        let changes = self.volume.changes();
        let mut known = self.known();
        let is_own = !is_clean || changes != known.changes;
        let content = |attributes: &Attributes| (attributes.size, attributes.modified);
        let differs = content(&host) != content(&known.host);
        if host.changed != known.host.changed && !is_own {
            known.changed = known.changed.max(host.changed);
        }
        if differs && !is_own {
            known.modified = host.modified;
        }
        known.host = host;
        known.changes = changes;
        known.asked = cpu.now();
        if differs && !is_own {
            self.is_stale.store(true, Ordering::Release);
        }
    }

    fn note_write(&self, now: Time) {
        let mut known = self.known();
        known.modified = known.modified.max(now);
        known.changed = known.changed.max(now);
    }

    /// Tells the clients, by the tree's verifier, when something that they wrote may have been lost.
    fn look_for_failures(&self) {
        let failures = self.volume.failures_so_far();
        let before = std::mem::replace(&mut self.known().failures, failures);
        if failures > before
            && let Some(tree) = self.tree.upgrade()
        {
            tree.change_verifier();
        }
    }

    /// The node is synced beside the volume's own flushes, while this lasts.
    pub(super) fn begin_sync(&self) -> ForeignFlush<'_> {
        self.volume.begin_foreign_flush()
    }

    /// The sync failed: what was written to the host before may be lost.
    pub(super) fn on_failed_sync(&self, sync: ForeignFlush<'_>, errno: Errno) {
        sync.failed(errno);
        self.look_for_failures();
    }

    /// Does it hold nothing that is newer than on the host?
    pub(super) fn is_clean(&self) -> bool {
        self.volume.is_clean()
    }

    /// Makes durable what was written, and closes.
    pub(super) async fn close(&self, cpu: &Processor) -> Result<(), Errno> {
        let result = self.volume.flush(cpu, Context::synchronous(cpu.job())).await;
        self.look_for_failures();
        self.abandon(cpu);
        result
    }

    /// Closes; what was not written is given up.
    pub(super) fn abandon(&self, cpu: &Processor) {
        let node = node_for_records(self.node.as_bytes());
        cpu.trace(Event::FileClosed, (cpu.job(), self.volume.export()), node, 0);
        self.volume.stop();
    }

    pub(super) fn note_use(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    pub(super) fn take_use(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn is_fresh(&self, cpu: &Processor) -> bool {
        !self.is_stale.load(Ordering::Acquire) && cpu.now().since(self.known().asked) < FRESH
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

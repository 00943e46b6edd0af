//! A regular file in the buffer cache.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use machine::Errno;
use machine::tree::{Attributes, Node, OpenNode, Time, TreeCall, TreeReply};
use policy::unit::{ByteRange, Instant, ProcessorId};

use super::{FRESH, FileTree};
use crate::device::{DeviceRef, GrowingFile};
use crate::frame::Frames;
use crate::kernel::KernelError;
use crate::processor::Processor;
use crate::queue::Queued;
use crate::request::{Context, JobId};
use crate::volume::{Volume, VolumeConfig};

/// A regular file that is open.
pub struct Vnode {
    this: Weak<Vnode>,
    tree: Weak<FileTree>,
    node: Node,
    device: Arc<GrowingFile>,
    volume: Arc<Volume>,
    known: Mutex<Known>,
    used: AtomicBool,
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
            forced_unit_access: false,
            grows: true,
        };
        let home = ProcessorId((host.number % u64::from(tree.kernel.processors())) as u16);
        let volume = Volume::open(&tree.kernel, queued, config, home).map_err(|error| match error {
            KernelError::TooManyDevices => Errno(libc::ENFILE),
            KernelError::Reserve { .. } => Errno::NO_MEMORY,
        })?;
        let known = Known {
            host,
            asked: cpu.now(),
            changes: volume.changes(),
            failures: 0,
            modified: host.modified,
            changed: host.changed,
        };
        Ok(Arc::new_cyclic(|this| Vnode {
            this: Weak::clone(this),
            tree: tree.this.clone(),
            node,
            device,
            volume,
            known: Mutex::new(known),
            used: AtomicBool::new(true),
        }))
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

    /// Its attributes; the host is asked when that is [`FRESH`] ago.
    ///
    /// # Errors
    /// The host's.
    pub async fn refresh(&self, cpu: &Processor) -> Result<Attributes, Errno> {
        if self.is_fresh(cpu) {
            return Ok(self.attributes());
        }
        let Some(tree) = self.tree.upgrade() else { return Err(Errno::IO) };
        match tree.ask(cpu, None, TreeCall::Attributes { node: self.node }).await? {
            TreeReply::Attributes(host) => {
                if self.note(cpu, host) {
                    self.volume.follow_host(cpu, host.size).await;
                    self.device.set_size(host.size);
                }
                Ok(self.attributes())
            }
            _ => Err(Errno::IO),
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
        self.refresh(cpu).await?;
        let range = self.volume.clip(range);
        if range.len == 0 {
            return Ok((range, Frames::new()));
        }
        let frames = self.volume.read(cpu, range, context).await?;
        Ok((range, frames))
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
        self.refresh(cpu).await?;
        let result = self.volume.write(cpu, range, frames, context).await;
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
        if self.note(cpu, host)
            && let Some(file) = self.this.upgrade()
        {
            let here = cpu.clone();
            cpu.spawn(async move {
                file.volume.follow_host(&here, host.size).await;
                file.device.set_size(host.size);
            });
            return host;
        }
        self.attributes()
    }

    /// Takes note of what the host told. Did somebody else change the content?
    fn note(&self, cpu: &Processor, host: Attributes) -> bool {
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
        differs && !is_own
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

    /// Does it hold nothing that is newer than on the host?
    pub(super) fn is_clean(&self) -> bool {
        self.volume.is_clean()
    }

    /// Makes durable what was written, and closes.
    pub(super) async fn close(&self, cpu: &Processor) -> Result<(), Errno> {
        let result = self.volume.flush(cpu, Context::synchronous(JobId::default())).await;
        self.abandon();
        result
    }

    /// Closes; what was not written is given up.
    pub(super) fn abandon(&self) {
        self.volume.stop();
    }

    pub(super) fn note_use(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    pub(super) fn take_use(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    fn is_fresh(&self, cpu: &Processor) -> bool {
        cpu.now().since(self.known().asked) < FRESH
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Opening a file once for all concurrent callers.

use std::sync::Arc;

use machine::Errno;
use machine::tree::{Node, OpenNode, TreeCall, TreeReply};

use super::commit::Committed;
use super::device::GrowingFile;
use super::files::{Attempt, Found};
use super::vnode::Vnode;
use super::{FileTree, node_for_records};
use crate::device::{DeviceRef, TooManyDevices};
use crate::processor::Processor;
use crate::queue::Queued;
use crate::trace::Event;
use crate::volume::{Volume, VolumeConfig};

/// Files closed, at most, to open one after descriptors or device numbers ran out.
const ATTEMPTS_MAX: usize = 64;

impl FileTree {
    /// A regular file, opened if necessary.
    ///
    /// # Errors
    /// The host's; [`Errno::INVALID`] for what is not a regular file, `EISDIR` for a directory.
    pub async fn file(&self, cpu: &Processor, node: Node) -> Result<Arc<Vnode>, Errno> {
        loop {
            let found = self.files().look(node);
            match found {
                Found::Open(file) => return Ok(file),
                Found::Opening(attempt) => {
                    // Boxed: large and rare.
                    if let Some(outcome) = Box::pin(attempt.outcome()).await {
                        return outcome;
                    }
                }
                // Boxed: large, and once for each file.
                Found::Absent(attempt) => return Box::pin(Opening::begin(self, node, attempt).open(cpu)).await,
            }
        }
    }

    /// Opens a file on the host. If descriptors have run out, closes other files.
    pub(super) async fn open_on_host(&self, cpu: &Processor, node: Node, writable: bool) -> Result<OpenNode, Errno> {
        let mut attempts = 0;
        loop {
            match self.ask(cpu, None, TreeCall::Open { node, writable }).await {
                Ok(TreeReply::Opened(open)) => return Ok(open),
                Ok(_) => return Err(Errno::IO),
                Err(Errno(libc::EMFILE | libc::ENFILE)) if self.make_room(cpu, &mut attempts).await => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The vnode of a file that is open for reading on the host.
    fn vnode(&self, cpu: &Processor, node: Node, open: OpenNode) -> Result<Arc<Vnode>, TooManyDevices> {
        let host = open.attributes;
        let sibling = self.kernel.served().siblings.join((host.file_system, host.number));
        let has_others = sibling.has_others();
        let at = (self.open.tree, self.export());
        let is_writable = !self.config.read_only;
        let device = Arc::new(GrowingFile::new(at, node, open, sibling, cpu.now(), is_writable));
        let below: DeviceRef = device.clone();
        let queued: DeviceRef = Arc::new(Queued::new(Arc::clone(&self.config.queue), below));
        let committed = Committed::new(queued, Arc::clone(&device));
        let config = VolumeConfig {
            name: self.config.name.clone(),
            read_only: self.config.read_only,
            forced_unit_access: self.config.forced_unit_access,
            grows: true,
        };
        // Where it is written: to wake another processor for each small file takes longer than to write it.
        let volume = Volume::open(&self.kernel, committed.clone(), config, cpu.id())?;
        volume.set_export(self.export());
        volume.leave_flushes();
        cpu.trace(Event::FileOpened, (cpu.job(), self.export()), node_for_records(node.as_bytes()), host.size);
        let file = Vnode::new(node, (device, committed), volume, Arc::clone(&self.verifier));
        if has_others {
            // What they wrote after the host had answered, and before this was among them, was not reported.
            file.doubt();
        }
        Ok(file)
    }

    /// Descriptors have run out: closes another file, unless none can be or too many attempts have failed.
    async fn make_room(&self, cpu: &Processor, attempts: &mut usize) -> bool {
        *attempts += 1;
        // Boxed: evicting may write, which may open a file (recursion).
        *attempts < ATTEMPTS_MAX && Box::pin(self.config.open_files.evict(cpu)).await
    }
}

/// A file being opened. Dropping it abandons the attempt.
struct Opening<'a> {
    tree: &'a FileTree,
    node: Node,
    attempt: Arc<Attempt>,
}

impl<'a> Opening<'a> {
    fn begin(tree: &'a FileTree, node: Node, attempt: Arc<Attempt>) -> Self {
        tree.config.open_files.begin();
        Opening { tree, node, attempt }
    }

    async fn open(self, cpu: &Processor) -> Result<Arc<Vnode>, Errno> {
        self.tree.config.open_files.make_room(cpu).await;
        let mut attempts = 0;
        let opened = loop {
            match self.ask(cpu).await {
                Err(Errno(libc::EMFILE | libc::ENFILE)) if self.tree.make_room(cpu, &mut attempts).await => {}
                opened => break opened,
            }
        };
        self.end(Some(opened.clone()));
        if opened.is_ok() {
            self.tree.look_at_unused(cpu);
        }
        opened
    }

    async fn ask(&self, cpu: &Processor) -> Result<Arc<Vnode>, Errno> {
        let open = self.tree.open_on_host(cpu, self.node, false).await?;
        self.tree.vnode(cpu, self.node, open).map_err(|TooManyDevices| Errno(libc::ENFILE))
    }

    fn end(&self, outcome: Option<Result<Arc<Vnode>, Errno>>) {
        let file = outcome.as_ref().and_then(|opened| opened.as_ref().ok());
        self.tree.files().end_opening(self.node, &self.attempt, file);
        if file.is_none() {
            self.tree.config.open_files.end(1);
        }
        self.attempt.end(outcome);
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if !self.attempt.has_ended() {
            self.end(None);
        }
    }
}

//! An exported directory tree: names and attributes from the host, the content of files from the buffer cache.
//!
//! Attributes include what the cache has newer than the host: the size and times of a file are those that its writers
//! have seen. A change made on the host is seen when the host is asked again, at most [`FRESH`] later.
//!
//! Lock order: the table of files, then a vnode's times or its descriptor for writing, then a volume's state; none is
//! held across a wait.

mod call;
mod commit;
mod content;
mod device;
mod durable_size;
mod files;
mod known;
mod lost;
mod open_files;
mod opening;
mod ordered;
mod removed;
mod siblings;
mod sync;
mod verifier;
mod vnode;
mod writers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use machine::Errno;
use machine::tree::{Attributes, BeforeAndAfter, Caller, Node, OpenTree, SetAttributes, TreeCall, TreeReply};
use parking_lot::Mutex;

use crate::Kernel;
use crate::export::ExportNo;
use crate::processor::Processor;
use crate::queue::DiskQueue;
use crate::rendezvous::Rendezvous;
use crate::request::Context;
use crate::volume::ForcedUnitAccess;
use files::Files;
use known::Asked;
pub use known::FRESH;
pub use open_files::{OPEN_FILES_MAX, OpenFiles};
use ordered::Answered;
pub(crate) use siblings::Siblings;
use sync::Wanted;
use verifier::Verifier;
pub use vnode::Vnode;
use writers::Writers;

#[derive(Clone)]
pub struct FileTreeConfig {
    pub name: String,
    pub read_only: bool,
    /// The budget of open files, shared with other trees.
    pub open_files: Arc<OpenFiles>,
    /// How stable writes to files become durable.
    pub forced_unit_access: ForcedUnitAccess,
    /// Of the disk on which the tree lies.
    pub queue: Arc<DiskQueue>,
}

pub struct FileTree {
    kernel: Arc<Kernel>,
    open: OpenTree,
    config: FileTreeConfig,
    files: Arc<Mutex<Files>>,
    writers: Mutex<Writers>,
    syncs: Rendezvous<Wanted>,
    /// Callers that commit content.
    committing: AtomicUsize,
    answered: Answered,
    verifier: Arc<Verifier>,
    export: AtomicU16,
}

impl FileTree {
    /// Exports an open tree.
    pub fn new(cpu: &Processor, open: OpenTree, config: FileTreeConfig) -> Arc<Self> {
        let tree = Arc::new(FileTree {
            kernel: Arc::clone(cpu.kernel()),
            files: Arc::default(),
            writers: Mutex::default(),
            open,
            config,
            syncs: Rendezvous::default(),
            committing: AtomicUsize::new(0),
            answered: Answered::default(),
            verifier: Arc::new(Verifier::new(cpu.time_of_day())),
            export: AtomicU16::new(ExportNo::NONE.0),
        });
        tree.config.open_files.join(Arc::downgrade(&tree.files));
        tree
    }

    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The export to record for requests that name none: the first one of this tree.
    pub fn export(&self) -> ExportNo {
        ExportNo(self.export.load(Ordering::Relaxed))
    }

    /// Exports the tree under this name. Returns the number used in trace records.
    pub fn export_as(&self, name: &str) -> ExportNo {
        let export = self.kernel.number_export(name);
        let _ = self.export.compare_exchange(0, export.0, Ordering::Relaxed, Ordering::Relaxed);
        export
    }

    pub fn read_only(&self) -> bool {
        self.config.read_only
    }

    /// Changes at every start, and whenever unstable writes may have been lost (RFC 1813, 3.3.7: `writeverf3`).
    pub fn verifier(&self) -> u64 {
        self.verifier.get()
    }

    /// Calls the tree. The reply's attributes are the clients' view.
    ///
    /// # Errors
    /// The host's; [`Errno::READ_ONLY`].
    pub async fn call(
        self: &Arc<Self>,
        cpu: &Processor,
        caller: Option<&Caller>,
        call: TreeCall,
    ) -> Result<TreeReply, Errno> {
        if self.config.read_only && call.changes() {
            return Err(Errno::READ_ONLY);
        }
        match call {
            TreeCall::Attributes { node } => self.attributes(cpu, caller, node).await.map(TreeReply::Attributes),
            TreeCall::SetAttributes { node, attributes, guard } => {
                // Boxed, as all that is large and rare: the future of every call would be as large as this one.
                Box::pin(self.set_attributes(cpu, caller, node, attributes, guard)).await
            }
            call => Ok(self.call_and_around(cpu, caller, call, Vec::new()).await?.0),
        }
    }

    /// As [`FileTree::call`], for calls on names; also returns the attributes of `dirs` before and after the
    /// call.
    ///
    /// # Errors
    /// As [`FileTree::call`].
    pub async fn call_and_around(
        &self,
        cpu: &Processor,
        caller: Option<&Caller>,
        call: TreeCall,
        dirs: Vec<Node>,
    ) -> Result<(TreeReply, Vec<BeforeAndAfter>), Errno> {
        if self.config.read_only && call.changes() {
            return Err(Errno::READ_ONLY);
        }
        let of = match call {
            TreeCall::Link { node, .. } | TreeCall::Access { node, .. } => Some(node),
            _ => None,
        };
        let asked = Asked { at: cpu.now(), changes: call.changes() };
        let (reply, around) = cpu.tree_and_around((self.open.tree, self.export()), caller.cloned(), call, dirs).await?;
        if let TreeReply::Renamed(moved, lost) = reply {
            for node in [Some(moved), lost].into_iter().flatten() {
                self.check_links(cpu, node).await;
            }
        }
        let reply = match (reply, of) {
            (TreeReply::Attributes(attributes), Some(node)) => {
                TreeReply::Attributes(self.present_one(cpu, node, attributes, asked).await)
            }
            (TreeReply::Access(granted, attributes), Some(node)) => {
                TreeReply::Access(granted, self.present_one(cpu, node, attributes, asked).await)
            }
            (reply, _) => self.present(cpu, reply, asked).await,
        };
        Ok((reply, around))
    }

    /// Flushes and closes its files.
    ///
    /// # Errors
    /// The first of the host's errors.
    pub async fn close(self: &Arc<Self>, cpu: &Processor) -> Result<(), Errno> {
        let open = self.files().take_all();
        self.config.open_files.end(open.len());
        let result = self.flush_all(cpu, &open, Context::synchronous(cpu.job())).await;
        open.iter().for_each(|file| file.abandon(cpu));
        result.and(self.settle(cpu, self.answered_so_far()).await)
    }

    async fn attributes(&self, cpu: &Processor, caller: Option<&Caller>, node: Node) -> Result<Attributes, Errno> {
        let file = self.files().get(node);
        match file {
            Some(file) => self.refresh(cpu, &file).await,
            None => {
                let asked = Asked { at: cpu.now(), changes: false };
                let attributes = attributes_of(self.ask(cpu, caller, TreeCall::Attributes { node }).await?)?;
                Ok(self.present_one(cpu, node, attributes, asked).await)
            }
        }
    }

    async fn set_attributes(
        self: &Arc<Self>,
        cpu: &Processor,
        caller: Option<&Caller>,
        node: Node,
        attributes: SetAttributes,
        guard: Option<machine::tree::Time>,
    ) -> Result<TreeReply, Errno> {
        let call = TreeCall::SetAttributes { node, attributes, guard };
        let file = match attributes.size {
            Some(_) => Some(self.file(cpu, node).await?),
            None => self.files().get(node),
        };
        let asked = Asked { at: cpu.now(), changes: true };
        let Some(file) = file else {
            return match self.ask(cpu, caller, call).await? {
                // It may have been opened meanwhile.
                TreeReply::Attributes(after) => {
                    Ok(TreeReply::Attributes(self.present_one(cpu, node, after, asked).await))
                }
                other => Ok(other),
            };
        };
        // Of two callers that saw the same time only one may succeed.
        let _one_at_a_time = if guard.is_some() { Some(file.guarded.lock().await) } else { None };
        // The guard is a time from the clients' view, which a change by the host must have reached.
        if guard.is_some() {
            self.refresh(cpu, &file).await?;
        }
        if guard.is_some_and(|guard| guard != file.attributes().changed) {
            return Ok(TreeReply::GuardFailed);
        }
        if attributes.modified.is_some() && !file.is_clean() {
            // Later write-back on the host would change the time again.
            self.commit(cpu, &file, Context::synchronous(cpu.job())).await?;
        }
        let call = TreeCall::SetAttributes { node, attributes, guard: None };
        let change = async {
            let question = file.device.question(Asked { at: cpu.now(), changes: true });
            Ok((attributes_of(self.ask(cpu, caller, call).await?)?, question))
        };
        let (after, question) = match attributes.size {
            Some(size) => self.resize(cpu, &file, size, change).await?,
            None => change.await?,
        };
        file.adopt(cpu, after, &attributes, question);
        Ok(TreeReply::Attributes(self.refresh_if_possible(cpu, &file).await))
    }

    async fn ask(&self, cpu: &Processor, caller: Option<&Caller>, call: TreeCall) -> Result<TreeReply, Errno> {
        cpu.tree((self.open.tree, self.export()), caller.cloned(), call).await
    }

    /// Replaces attributes in the host's reply where the cache has newer ones, and drops removed files.
    async fn present(&self, cpu: &Processor, reply: TreeReply, asked: Asked) -> TreeReply {
        match reply {
            TreeReply::Node(node, attributes) => {
                if attributes.links == 0 {
                    self.forget(cpu, node);
                }
                TreeReply::Node(node, self.present_one(cpu, node, attributes, asked).await)
            }
            TreeReply::Entries(mut entries, last) => {
                for (node, attributes) in entries.iter_mut().filter_map(|entry| entry.node.as_mut()) {
                    *attributes = self.present_one(cpu, *node, *attributes, asked).await;
                }
                TreeReply::Entries(entries, last)
            }
            other => other,
        }
    }

    /// The file of which a call tells, if it is open.
    fn file_told(&self, cpu: &Processor, node: Node, asked: Asked) -> Option<Arc<Vnode>> {
        let mut files = self.files();
        if asked.changes { files.get_changed(node, cpu.now()) } else { files.get(node) }
    }

    /// The attributes of one node, as [`FileTree::present`].
    async fn present_one(&self, cpu: &Processor, node: Node, attributes: Attributes, asked: Asked) -> Attributes {
        let Some(file) = self.file_told(cpu, node, asked) else { return attributes };
        match file.observe(cpu, attributes, asked) {
            Some(seen) => seen,
            None => self.refresh_if_possible(cpu, &file).await,
        }
    }

    /// As [`FileTree::refresh`], where what is known is better than nothing.
    async fn refresh_if_possible(&self, cpu: &Processor, file: &Vnode) -> Attributes {
        self.refresh(cpu, file).await.unwrap_or_else(|_| file.attributes())
    }

    /// A node lost or gained a name: refreshes its attributes, or drops it if it has no name left.
    async fn check_links(&self, cpu: &Processor, node: Node) {
        let Some(file) = self.files().get(node) else { return };
        let asked = Asked { at: cpu.now(), changes: true };
        match self.ask(cpu, None, TreeCall::Attributes { node }).await {
            Ok(TreeReply::Attributes(attributes)) if attributes.links > 0 => {
                let _ = file.observe(cpu, attributes, asked);
            }
            Ok(_) | Err(Errno::STALE) => self.forget(cpu, node),
            // It may have a name left: what clients wrote is not dropped because of that.
            Err(_) => file.doubt(),
        }
    }

    /// A file has lost its last name: its data is no longer needed.
    fn forget(&self, cpu: &Processor, node: Node) {
        self.files().lost.remove(&node);
        if let Some(file) = self.files().remove(node) {
            self.config.open_files.end(1);
            file.abandon(cpu);
        }
    }
}

/// Identifies a node in trace records: the first bytes of its handle on the host.
pub fn node_for_records(name: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(name.iter().skip(1)).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(bytes)
}

fn attributes_of(reply: TreeReply) -> Result<Attributes, Errno> {
    match reply {
        TreeReply::Attributes(attributes) => Ok(attributes),
        _ => Err(Errno::IO),
    }
}

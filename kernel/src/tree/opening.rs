//! Opening a file, once for all who want it.

use std::sync::{Arc, OnceLock};

use machine::Errno;
use machine::tree::{Node, OpenNode, TreeCall, TreeReply};

use super::FileTree;
use super::files::Found;
use super::vnode::Vnode;
use crate::processor::Processor;
use crate::wait::WaitList;

/// Files closed, at most, to open one when descriptors or numbers of devices have run out.
const ATTEMPTS_MAX: usize = 64;

/// An attempt to open a file. Its outcome is kept with it and not looked for in the table: when a waiter gets to look,
/// the next attempt may be there, which wakes only those who wait for it.
#[derive(Default)]
pub(super) struct Attempt {
    /// `None`: it was abandoned.
    outcome: OnceLock<Option<Result<Arc<Vnode>, Errno>>>,
    ended: WaitList,
}

impl Attempt {
    fn end(&self, outcome: Option<Result<Arc<Vnode>, Errno>>) {
        let _ = self.outcome.set(outcome);
        self.ended.wake_all();
    }

    async fn outcome(&self) -> Option<Result<Arc<Vnode>, Errno>> {
        self.ended.until(|| self.outcome.get().cloned()).await
    }
}

impl FileTree {
    /// A regular file, opened if it is not.
    ///
    /// # Errors
    /// The host's; what is no regular file is [`Errno::INVALID`], a directory `EISDIR`.
    pub async fn file(&self, cpu: &Processor, node: Node) -> Result<Arc<Vnode>, Errno> {
        loop {
            let found = self.files().look(node);
            match found {
                Found::Open(file) => return Ok(file),
                Found::Opening(attempt) => {
                    if let Some(outcome) = attempt.outcome().await {
                        return outcome;
                    }
                }
                Found::Absent(attempt) => return Opening::begin(self, node, attempt).open(cpu).await,
            }
        }
    }

    /// Has the host open a file. Where descriptors have run out, others are closed for it.
    pub(super) async fn open_on_host(&self, cpu: &Processor, node: Node, writable: bool) -> Result<OpenNode, Errno> {
        let mut attempts = 0;
        loop {
            match self.ask(cpu, None, TreeCall::Open { node, writable }).await {
                Ok(TreeReply::Opened(open)) => return Ok(open),
                Ok(_) => return Err(Errno::IO),
                Err(errno) => self.make_room_after(cpu, errno, &mut attempts).await?,
            }
        }
    }

    /// An attempt failed: closes another file, if that may help.
    async fn make_room_after(&self, cpu: &Processor, errno: Errno, attempts: &mut usize) -> Result<(), Errno> {
        *attempts += 1;
        let helps = matches!(errno.0, libc::EMFILE | libc::ENFILE) && *attempts < ATTEMPTS_MAX;
        // Boxed, for what is evicted may be written, and that may open a file.
        if helps && Box::pin(self.config.open_files.evict(cpu)).await { Ok(()) } else { Err(errno) }
    }
}

/// A file that is being opened. Dropped before the end, it is not.
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
        let opened = self.ask(cpu).await;
        self.end(Some(opened.clone()));
        opened
    }

    async fn ask(&self, cpu: &Processor) -> Result<Arc<Vnode>, Errno> {
        let attributes = match self.tree.ask(cpu, None, TreeCall::Attributes { node: self.node }).await? {
            TreeReply::Attributes(attributes) => attributes,
            _ => return Err(Errno::IO),
        };
        let open = self.tree.open_on_host(cpu, self.node, false).await?;
        let mut attempts = 0;
        loop {
            match Vnode::new(cpu, self.tree, self.node, open.clone(), attributes) {
                Err(errno) => self.tree.make_room_after(cpu, errno, &mut attempts).await?,
                opened => return opened,
            }
        }
    }

    fn end(&self, outcome: Option<Result<Arc<Vnode>, Errno>>) {
        let file = outcome.as_ref().and_then(|opened| opened.as_ref().ok());
        self.tree.files().end_opening(self.node, file);
        if file.is_none() {
            self.tree.config.open_files.end(1);
        }
        self.attempt.end(outcome);
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if self.attempt.outcome.get().is_none() {
            self.end(None);
        }
    }
}

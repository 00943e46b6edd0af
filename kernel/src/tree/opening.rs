//! Opening a file once for all concurrent callers.

use std::sync::Arc;

use machine::Errno;
use machine::tree::{Node, OpenNode, TreeCall, TreeReply};

use super::FileTree;
use super::files::{Attempt, Found};
use super::vnode::Vnode;
use crate::device::TooManyDevices;
use crate::processor::Processor;

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
                    if let Some(outcome) = attempt.outcome().await {
                        return outcome;
                    }
                }
                Found::Absent(attempt) => return Opening::begin(self, node, attempt).open(cpu).await,
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
        opened
    }

    async fn ask(&self, cpu: &Processor) -> Result<Arc<Vnode>, Errno> {
        let attributes = match self.tree.ask(cpu, None, TreeCall::Attributes { node: self.node }).await? {
            TreeReply::Attributes(attributes) => attributes,
            _ => return Err(Errno::IO),
        };
        let open = self.tree.open_on_host(cpu, self.node, false).await?;
        Vnode::new(cpu, self.tree, self.node, open, attributes).map_err(|TooManyDevices| Errno(libc::ENFILE))
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
        if !self.attempt.has_ended() {
            self.end(None);
        }
    }
}

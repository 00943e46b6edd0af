//! What becomes of files that the host forgets, and of everything at the end.

use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use machine::Errno;
use policy::unit::BLOCK_BYTES;

use super::Files;
use crate::content::Content;
use crate::node::{Node, NodeId};

/// Between two attempts to write what the server refuses.
const AGAIN: Duration = Duration::from_secs(1);

/// Attempts, before it is given up and reported.
const ATTEMPTS_MAX: u32 = 60;

/// What is not durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unstored {
    /// In whole blocks, of the last of a file what it has.
    pub bytes: u64,
    pub files: u64,
}

impl Files {
    /// The host has dropped `count` of its references.
    pub fn forget(self: &Arc<Self>, cpu: &Processor, id: NodeId, count: u64) {
        let Ok(node) = self.node(id) else { return };
        {
            let mut state = node.state.lock();
            state.lookups = state.lookups.saturating_sub(count);
        }
        self.forget_unused(&node);
        self.settle(cpu, &node);
    }

    /// Forgets a node that nobody refers to, unless it has something that is not durable.
    pub(super) fn forget_unused(&self, node: &Arc<Node>) {
        if node.is_clean() && self.nodes.lock().remove(node) {
            if let Some(content) = node.state.lock().content.take() {
                content.volume.stop();
            }
            self.closed.lock().retain(|id| *id != node.id);
        }
    }

    /// Makes durable what a node has that nobody refers to, and forgets it then. Until then it stays known: another opening
    /// of the file must find what was written.
    fn settle(self: &Arc<Self>, cpu: &Processor, node: &Arc<Node>) {
        {
            let mut state = node.state.lock();
            let has_nothing = state.content.is_none() && node.ahead.left().0 == 0;
            if state.lookups > 0 || state.opens > 0 || has_nothing || state.is_settling {
                return;
            }
            state.is_settling = true;
        }
        let (files, node, here) = (Arc::clone(self), Arc::clone(node), cpu.clone());
        cpu.spawn(async move {
            files.settle_now(&here, &node).await;
            node.state.lock().is_settling = false;
            files.forget_unused(&node);
        });
    }

    async fn settle_now(&self, cpu: &Processor, node: &Node) {
        node.ahead.until_done().await;
        let Some(content) = node.content() else { return };
        let mut last = Errno::IO;
        for _ in 0..ATTEMPTS_MAX {
            match content.flush(cpu).await {
                Ok(()) => return,
                Err(Errno::STALE) => {
                    last = Errno::STALE;
                    break;
                }
                Err(errno) => last = errno,
            }
            cpu.sleep(AGAIN).await;
        }
        let mut state = node.state.lock();
        if state.opens > 0 || state.lookups > 0 {
            // It is in use again: whoever uses it is told, and the next one to forget it settles it.
            return;
        }
        state.content = None;
        // One that the server does not have any more nobody will open.
        state.is_lost = last != Errno::STALE;
        drop(state);
        node.errors.note(last);
        let (file, bytes) = (node.description(), undurable_bytes(&content));
        self.host.report(&format!("{bytes} bytes written to {file} are lost, they could not be stored: {last}"));
        content.volume.stop();
    }

    /// Makes all that was written durable.
    ///
    /// # Errors
    /// The first of the server's.
    pub async fn flush_all(&self, cpu: &Processor) -> Result<(), Errno> {
        let nodes = self.nodes.lock().all();
        let mut result = Ok(());
        for node in nodes {
            node.ahead.until_done().await;
            if let Some(content) = node.content() {
                result = result.and(content.flush(cpu).await);
            }
            if node.state.lock().is_lost {
                result = result.and(node.errors.untold().map_or(Ok(()), Err));
            }
        }
        result
    }

    /// What would be lost if the mount ended now.
    pub fn unstored(&self) -> Unstored {
        let nodes = self.nodes.lock().all();
        nodes.iter().filter(|node| !node.is_clean()).fold(Unstored::default(), |all, node| {
            let in_cache = node.content().map_or(0, |content| undurable_bytes(&content));
            Unstored { bytes: all.bytes + node.ahead.left().0 + in_cache, files: all.files + 1 }
        })
    }
}

fn undurable_bytes(content: &Content) -> u64 {
    (content.volume.undurable_blocks() * BLOCK_BYTES).min(content.volume.size())
}

//! Making names and attributes durable, shared by concurrent callers (WS-5).

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use machine::Errno;
use machine::tree::{Node, TreeCall};

use super::FileTree;
use crate::processor::Processor;

/// Concurrent calls where each node needs a flush of its own: concurrent flushes share the disk's.
const CALLS_MAX: usize = 16;

impl FileTree {
    /// Makes the names in these directories and the attributes of these nodes durable, shared with concurrent callers.
    ///
    /// # Errors
    /// The host's: then nothing that this group of callers asked for is known to be durable.
    pub async fn make_durable(self: &Arc<Self>, cpu: &Processor, nodes: &[Node]) -> Result<(), Errno> {
        if !cpu.switches().flush_gathering {
            let _exclusive = self.syncs.exclusive().await;
            return self.sync(cpu, nodes.to_vec()).await;
        }
        let lead = || {
            let (tree, here) = (Arc::clone(self), cpu.clone());
            cpu.spawn_path(async move {
                let sync = async |nodes: BTreeSet<Node>| tree.sync_all(&here, nodes.into_iter().collect()).await;
                tree.syncs.lead(&here, sync).await;
            });
        };
        self.syncs.share(cpu, |wanted| wanted.extend(nodes.iter().copied()), lead).await
    }

    /// Makes a rename between directories durable: the new name first, so that a crash in between cannot leave the node
    /// without a name.
    ///
    /// # Errors
    /// As [`FileTree::make_durable`].
    pub async fn make_move_durable(
        self: &Arc<Self>,
        cpu: &Processor,
        moved: Node,
        to: Node,
        from: Node,
    ) -> Result<(), Errno> {
        if self.open.syncs_as_a_whole {
            return self.make_durable(cpu, &[to, from, moved]).await;
        }
        self.make_durable(cpu, &[to, moved]).await?;
        self.make_durable(cpu, &[from]).await
    }

    async fn sync_all(&self, cpu: &Processor, nodes: Vec<Node>) -> Result<(), Errno> {
        if self.open.syncs_as_a_whole {
            return self.sync(cpu, nodes).await;
        }
        let each = nodes.len().div_ceil(CALLS_MAX).max(1);
        let results = join_all(nodes.chunks(each).map(|nodes| self.sync(cpu, nodes.to_vec()))).await;
        // A removed node (`ESTALE`) is harmless to the others: any other error takes precedence.
        let is_worse = |result: &Result<(), Errno>| result.is_err() && *result != Err(Errno::STALE);
        results.iter().copied().find(is_worse).unwrap_or_else(|| results.into_iter().collect())
    }

    /// Syncs nodes on the host, with one call at a time for each node. After a failure the host may also drop dirty
    /// content of the files, which is handled as a failed flush.
    async fn sync(&self, cpu: &Processor, nodes: Vec<Node>) -> Result<(), Errno> {
        self.files().begin_syncs(&nodes);
        let under_way = SyncUnderWay { tree: self, nodes: &nodes };
        let result = self.ask(cpu, None, TreeCall::Sync { nodes: nodes.clone() }).await.map(drop);
        if let Err(errno) = result
            && errno != Errno::STALE
        {
            let mut files = self.files().syncs.end(&nodes);
            if self.open.syncs_as_a_whole {
                // The call covered the files of all nodes.
                files.extend(self.files().unclean().map(|file| (Arc::clone(file), file.begin_sync())));
            }
            // Earlier writes to the files may be lost.
            for (file, sync) in files {
                sync.failed(errno);
                file.look_for_failures();
            }
        }
        drop(under_way);
        result
    }
}

/// A sync call in flight.
struct SyncUnderWay<'a> {
    tree: &'a FileTree,
    nodes: &'a [Node],
}

impl Drop for SyncUnderWay<'_> {
    fn drop(&mut self) {
        let ended = self.tree.files().syncs.end(self.nodes);
        drop(ended);
    }
}

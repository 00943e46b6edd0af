//! Making names and attributes durable, shared by concurrent callers (WS-5).

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use machine::Errno;
use machine::tree::{Node, TreeCall};

use super::FileTree;
use super::files::Files;
use super::vnode::Vnode;
use crate::processor::Processor;
use crate::volume::ForeignFlush;

/// Concurrent calls where each node needs a flush of its own: concurrent flushes share the disk's.
const CALLS_MAX: usize = 16;

impl FileTree {
    /// Makes the names in these directories and the attributes of these nodes durable, shared with concurrent callers.
    ///
    /// # Errors
    /// The host's: then nothing that this group of callers asked for is known to be durable.
    pub async fn make_durable(&self, cpu: &Processor, nodes: &[Node]) -> Result<(), Errno> {
        if !cpu.switches().flush_gathering {
            let _turn = self.syncs.turn().await;
            return self.sync(cpu, nodes.to_vec()).await;
        }
        let lead = || {
            let Some(tree) = self.this.upgrade() else { return };
            let here = cpu.clone();
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
    pub async fn make_move_durable(&self, cpu: &Processor, moved: Node, to: Node, from: Node) -> Result<(), Errno> {
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
        let calls = nodes.chunks(each).map(|nodes| Box::pin(self.sync(cpu, nodes.to_vec()))).collect();
        let results = all(calls).await;
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
            files.into_iter().for_each(|(file, sync)| file.on_failed_sync(sync, errno));
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

/// The nodes being synced, with their files that are open or were opened meanwhile: what is written to these meanwhile
/// may be lost, too, if the sync fails.
#[derive(Default)]
pub(super) struct SyncsUnderWay(HashMap<Node, Vec<(Arc<Vnode>, ForeignFlush)>>);

impl SyncsUnderWay {
    pub(super) fn join(&mut self, node: Node, file: &Arc<Vnode>) {
        if let Some(files) = self.0.get_mut(&node) {
            files.push((Arc::clone(file), file.begin_sync()));
        }
    }

    fn end(&mut self, nodes: &[Node]) -> Vec<(Arc<Vnode>, ForeignFlush)> {
        nodes.iter().filter_map(|node| self.0.remove(node)).flatten().collect()
    }
}

impl Files {
    /// One sync per node at a time.
    fn begin_syncs(&mut self, nodes: &[Node]) {
        for node in nodes {
            let open = self.get(*node);
            let files = self.syncs.0.entry(*node).or_default();
            if let Some(file) = open.filter(|_| files.is_empty()) {
                let sync = file.begin_sync();
                files.push((file, sync));
            }
        }
    }
}

/// Runs all futures concurrently.
async fn all<T, F: Future<Output = T>>(mut futures: Vec<Pin<Box<F>>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, result) in futures.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

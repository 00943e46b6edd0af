//! Names and attributes become durable, for those who meet (WS-5), together.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use machine::Errno;
use machine::tree::{Node, TreeCall};

use super::FileTree;
use crate::processor::Processor;

/// Calls side by side where each node costs a flush of its own: flushes at the same time share the disk's.
const CALLS_MAX: usize = 16;

impl FileTree {
    /// Makes the names in these directories and the attributes of these nodes durable, together with others who want that.
    ///
    /// # Errors
    /// The host's: then nothing that this call or those with it wanted is sure to be durable.
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

    async fn sync_all(&self, cpu: &Processor, nodes: Vec<Node>) -> Result<(), Errno> {
        if self.open.syncs_as_a_whole {
            return self.sync(cpu, nodes).await;
        }
        let each = nodes.len().div_ceil(CALLS_MAX).max(1);
        let calls = nodes.chunks(each).map(|nodes| Box::pin(self.sync(cpu, nodes.to_vec()))).collect();
        all(calls).await.into_iter().collect()
    }

    /// Syncs nodes on the host, each by one call at a time. When that fails, the host may forget what it covered of the
    /// content of files, too: those who wrote that learn of it as from a flush that failed.
    async fn sync(&self, cpu: &Processor, nodes: Vec<Node>) -> Result<(), Errno> {
        let files: Vec<_> = nodes.iter().filter_map(|node| self.files().get(*node)).collect();
        let syncs: Vec<_> = files.iter().map(|file| file.begin_sync()).collect();
        let result = self.ask(cpu, None, TreeCall::Sync { nodes }).await.map(drop);
        if let Err(errno) = result
            && errno != Errno::STALE
        {
            files.iter().zip(syncs).for_each(|(file, sync)| file.on_failed_sync(sync, errno));
        }
        result
    }
}

/// What all of them say.
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

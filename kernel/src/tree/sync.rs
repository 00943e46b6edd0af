//! Making names, attributes and committed content durable, shared by concurrent callers (WS-5).
//!
//! Where one commit of the host's journal covers all names, the flushes of files that are committed at the same time take
//! part in it: their content is written before, so that nothing but the journal is left to wait for. One by one each file
//! would have a commit of its own, and the names that were answered before a second one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::future::{join, join_all};
use futures_util::stream::{self, StreamExt};
use machine::Errno;
use machine::tree::{Node, TreeCall};

use super::FileTree;
use super::commit::JointCommit;
use super::vnode::Vnode;
use crate::processor::Processor;
use crate::request::Context;

/// Concurrent calls where each node needs a flush of its own: concurrent flushes share the disk's.
const CALLS_MAX: usize = 16;

/// Files flushed at a time, where nobody waits for a single one.
const FLUSHES_MAX: usize = 64;

/// What a group of callers makes durable.
#[derive(Default)]
pub(super) struct Wanted {
    names: bool,
    /// Directories whose names changed, and nodes whose attributes did.
    nodes: BTreeSet<Node>,
    files: Vec<Flushing>,
}

/// A file to be flushed, and what came of it.
struct Flushing {
    file: Arc<Vnode>,
    context: Context,
    result: Arc<OnceLock<Result<(), Errno>>>,
}

impl Flushing {
    /// Flushes the file; it is `joined` to a commit.
    async fn flush(&self, cpu: &Processor, joined: Option<impl Drop>) {
        let result = self.file.flush(cpu, self.context).await;
        let _ = self.result.set(result);
        drop(joined);
    }
}

/// Counts callers until dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(count)
    }

    fn is_alone(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 1
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

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
        let want = |wanted: &mut Wanted| {
            wanted.names = true;
            wanted.nodes.extend(nodes.iter().copied());
        };
        self.share_sync(cpu, want).await
    }

    /// Makes the content of a file durable, and the names that were answered before; returns what came of each.
    pub(super) async fn commit_both(
        self: &Arc<Self>,
        cpu: &Processor,
        file: &Arc<Vnode>,
        context: Context,
    ) -> (Result<(), Errno>, Result<(), Errno>) {
        let answered = self.answered_so_far();
        let committing = Counted::new(&self.committing);
        // The first of many that return after a commit looks alone.
        let is_alone = committing.is_alone() && !self.syncs.expects_others();
        if is_alone || !self.shares_commits(cpu) {
            // In this order: the flush commits the names as well, mostly, and leaves the sync nothing to do.
            let content = file.flush(cpu, context).await;
            return (content, self.settle(cpu, answered).await);
        }
        let (content, names) = self.share_flush(cpu, file, context, !self.is_settled(answered)).await;
        (content, self.on_settled(answered, names))
    }

    /// Flushes the content of files, together; returns an error of any.
    pub(super) async fn flush_all(
        self: &Arc<Self>,
        cpu: &Processor,
        files: impl IntoIterator<Item = &Arc<Vnode>>,
        context: Context,
    ) -> Result<(), Errno> {
        let flushed = stream::iter(files).map(|file| self.flush_one(cpu, file, context));
        flushed.buffer_unordered(FLUSHES_MAX).fold(Ok(()), async |all: Result<(), Errno>, one| all.and(one)).await
    }

    async fn flush_one(self: &Arc<Self>, cpu: &Processor, file: &Arc<Vnode>, context: Context) -> Result<(), Errno> {
        let _committing = Counted::new(&self.committing);
        match self.shares_commits(cpu) {
            true => self.share_flush(cpu, file, context, false).await.0,
            false => file.flush(cpu, context).await,
        }
    }

    fn shares_commits(&self, cpu: &Processor) -> bool {
        self.open.syncs_as_a_whole && cpu.switches().flush_gathering
    }

    /// Flushes a file with others, and the names if `names`; returns what came of each.
    async fn share_flush(
        self: &Arc<Self>,
        cpu: &Processor,
        file: &Arc<Vnode>,
        context: Context,
        names: bool,
    ) -> (Result<(), Errno>, Result<(), Errno>) {
        {
            let _announced = self.syncs.announce(cpu);
            file.write_out(cpu, context).await;
        }
        let result = Arc::default();
        let want = |wanted: &mut Wanted| {
            wanted.names |= names;
            wanted.files.push(Flushing { file: Arc::clone(file), context, result: Arc::clone(&result) });
        };
        let names = self.share_sync(cpu, want).await;
        (result.get().copied().unwrap_or(Err(Errno::IO)), names)
    }

    async fn share_sync(self: &Arc<Self>, cpu: &Processor, want: impl FnOnce(&mut Wanted)) -> Result<(), Errno> {
        let lead = || {
            let (tree, here) = (Arc::clone(self), cpu.clone());
            cpu.spawn_path(async move {
                let sync = async |wanted: Wanted| tree.sync_wanted(&here, wanted).await;
                tree.syncs.lead(&here, sync).await;
            });
        };
        self.syncs.share(cpu, want, lead).await
    }

    /// Flushes the files and syncs the names: one commit, where there is a journal. Returns the result for the names.
    async fn sync_wanted(&self, cpu: &Processor, wanted: Wanted) -> Result<(), Errno> {
        let Wanted { names, nodes, files } = wanted;
        let commit = Arc::new(JointCommit::default());
        let joined = files.iter().map(|file| (file, self.open.syncs_as_a_whole.then(|| file.file.join(&commit))));
        // All have joined before one arrives.
        let joined: Vec<_> = joined.collect();
        let flushed = join_all(joined.into_iter().map(|(file, joined)| file.flush(cpu, joined)));
        let synced = async {
            let is_shared = commit.until_complete().await > 1;
            let result =
                if names || is_shared { self.sync_all(cpu, nodes.into_iter().collect()).await } else { Ok(()) };
            commit.end(result);
            result
        };
        // The journal's commit is asked for first: the file's flush is then a part of it.
        join(synced, flushed).await.0
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
            self.note_failed_sync(errno);
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

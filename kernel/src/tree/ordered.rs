//! Changes of names and attributes that are answered before they are durable (`names = "ordered"`).
//!
//! On a file system whose journal keeps the order of all changes a crash leaves a prefix of them, whenever it is synced.
//! So the changes of a second may share one commit, if a stable write or COMMIT is answered only when everything
//! answered before it is durable, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use machine::Errno;
use machine::tree::Node;
use policy::unit::ProcessorId;

use super::FileTree;
use crate::processor::Processor;

/// From the first change to the sync that makes it durable, and between attempts after a failure. It leaves half a second
/// for the sync.
const DELAY: Duration = Duration::from_millis(500);

/// Changes of a tree by number.
#[derive(Default)]
pub(super) struct Answered {
    latest: AtomicU64,
    durable: AtomicU64,
    /// A task will sync.
    is_awaited: AtomicBool,
    /// The last sync failed.
    has_failed: AtomicBool,
    /// The error of a sync that covered changes answered before, until a caller of a later one is told; 0: none.
    unreported: AtomicI32,
}

impl FileTree {
    /// Whether a crash leaves a prefix of the changes of names and attributes.
    pub fn keeps_order(&self) -> bool {
        self.open.syncs_as_a_whole
    }

    /// An export begins to answer changes in order. Those that were answered before the start of this process may not be
    /// durable, either.
    pub fn begin_order(self: &Arc<Self>) {
        self.answered.latest.fetch_add(1, Ordering::SeqCst);
        let this = Arc::downgrade(self);
        self.kernel.mailbox(ProcessorId(0)).start(move |cpu| {
            let here = cpu.clone();
            cpu.spawn_path(async move {
                if let Some(tree) = this.upgrade() {
                    tree.settle_later(&here);
                }
            });
        });
    }

    /// Makes a change of these nodes durable within a second, in order with the others. At once where the host keeps no
    /// order, or could not sync lately.
    ///
    /// # Errors
    /// As [`FileTree::make_durable`].
    pub async fn make_durable_in_order(self: &Arc<Self>, cpu: &Processor, nodes: &[Node]) -> Result<(), Errno> {
        if !self.keeps_order() {
            return self.make_durable(cpu, nodes).await;
        }
        self.answered.latest.fetch_add(1, Ordering::SeqCst);
        if self.answered.has_failed.load(Ordering::SeqCst) {
            return self.settle(cpu, self.answered_so_far()).await;
        }
        self.settle_later(cpu);
        Ok(())
    }

    /// Syncs after [`DELAY`], and again until that succeeds, unless a task will already.
    fn settle_later(self: &Arc<Self>, cpu: &Processor) {
        if self.answered.is_awaited.swap(true, Ordering::SeqCst) {
            return;
        }
        let (this, here) = (Arc::downgrade(self), cpu.clone());
        cpu.spawn_path(async move {
            loop {
                here.sleep(DELAY).await;
                let Some(tree) = this.upgrade() else { return };
                // A change that is answered from now on starts a task of its own.
                tree.answered.is_awaited.store(false, Ordering::SeqCst);
                if tree.sync_answered(&here).await.is_ok() {
                    return;
                }
                if tree.answered.is_awaited.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
    }

    /// The changes answered in order so far.
    pub(super) fn answered_so_far(&self) -> u64 {
        self.answered.latest.load(Ordering::SeqCst)
    }

    /// Are the changes that were `answered` so far durable?
    pub(super) fn is_settled(&self, answered: u64) -> bool {
        let durable = self.answered.durable.load(Ordering::SeqCst);
        !self.keeps_order() || self.config.read_only || durable >= answered
    }

    /// Makes the changes durable that were `answered` in order so far.
    ///
    /// # Errors
    /// As [`FileTree::make_durable`]; also, once, the error of an earlier sync: a disk may lose what a failed flush covered,
    /// though the next one succeeds.
    pub(super) async fn settle(self: &Arc<Self>, cpu: &Processor, answered: u64) -> Result<(), Errno> {
        // Boxed: large and rare.
        let synced = if self.is_settled(answered) { Ok(()) } else { Box::pin(self.make_durable(cpu, &[])).await };
        self.on_settled(answered, synced)
    }

    /// A sync that began after the changes were `answered` has ended. Returns what its caller is told.
    pub(super) fn on_settled(&self, answered: u64, synced: Result<(), Errno>) -> Result<(), Errno> {
        self.note_synced(answered, synced);
        synced?;
        match self.answered.unreported.swap(0, Ordering::SeqCst) {
            0 => Ok(()),
            error => Err(Errno(error)),
        }
    }

    /// A sync has failed. Noted by who leads the syncs, before another begins: its callers hear of it later, perhaps after
    /// those of the next one, which succeeds.
    pub(super) fn note_failed_sync(&self, errno: Errno) {
        if !self.is_settled(self.answered_so_far()) {
            self.answered.unreported.store(errno.0, Ordering::SeqCst);
        }
    }

    fn note_synced(&self, answered: u64, synced: Result<(), Errno>) {
        if !self.is_settled(answered) {
            self.answered.has_failed.store(synced.is_err(), Ordering::SeqCst);
            if synced.is_ok() {
                self.answered.durable.fetch_max(answered, Ordering::SeqCst);
            }
        }
    }

    async fn sync_answered(self: &Arc<Self>, cpu: &Processor) -> Result<(), Errno> {
        let answered = self.answered_so_far();
        if self.is_settled(answered) {
            return Ok(());
        }
        let synced = self.make_durable(cpu, &[]).await;
        self.note_synced(answered, synced);
        synced
    }
}

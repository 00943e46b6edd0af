//! Checkpoints: what was committed becomes part of the tree, and the log may be overwritten.
//!
//! Transactions go on meanwhile: what they commit is collected beside what the checkpoint merges. Pages that the new tree
//! does not have are free when the superblock is durable and nobody reads the old tree any more. A database that is nearly
//! full may have no space for all pages that a checkpoint writes anew: then it puts a part of the keys into the tree after
//! another, each with a superblock that has the log begin where it did.

use std::sync::Arc;
use std::time::Duration;

use kernel::Processor;
use kernel::request::JobId;
use kernel::trace::Event;
use machine::Errno;
use policy::unit::Stability;

use super::layout::{Layout, PageNo, Root, Superblock};
use super::merge::{Change, Merge};
use super::space::{MAP_PAGES_A_SLICE, Map};
use super::spread::{ENTRIES_A_SLICE, Frozen, Spread};
use super::{Database, Delta, Sequence, State, StoreError};

/// A checkpoint that failed is tried again after this time.
const RETRY: Duration = Duration::from_secs(1);

/// Pages that a checkpoint marks as free at a time: some ten µs.
const RELEASED_A_SLICE: usize = 8192;

/// The tree of a checkpoint. Who reads it has a share.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub root: Option<Root>,
}

impl Database {
    /// Starts a checkpoint, unless one is under way. `is_awaited`: somebody waits for its end, so it does not rest.
    pub(super) fn request_checkpoint(self: &Arc<Self>, cpu: &Processor, is_awaited: bool) {
        {
            let mut state = self.state.write();
            state.is_awaited |= is_awaited;
            if std::mem::replace(&mut state.is_checkpointing, true) {
                return;
            }
        }
        let (database, here) = (Arc::clone(self), cpu.clone());
        cpu.spawn(async move {
            loop {
                match database.checkpoint(&here).await {
                    Ok(Some(merged)) => {
                        drop(database);
                        return merged.drop_in_slices(&here).await;
                    }
                    Ok(None) => return,
                    Err(error) => database.state.write().checkpoint_failure = Some(error),
                }
                database.changed.wake_all();
                here.sleep(RETRY).await;
                if database.state.read().is_closing {
                    database.state.write().end_checkpoint();
                    return database.changed.wake_all();
                }
            }
        });
    }

    /// Has a checkpoint made that does not rest; [`State::is_over`] tells its end by the generation that this returns.
    pub(super) fn await_checkpoint(self: &Arc<Self>, cpu: &Processor) -> u64 {
        let generation = self.state.read().generation;
        self.request_checkpoint(cpu, true);
        generation
    }

    /// Returns what is in the tree now, if nobody else has it.
    async fn checkpoint(self: &Arc<Self>, cpu: &Processor) -> Result<Option<Delta>, StoreError> {
        let Some(frozen) = self.freeze() else { return Ok(None) };
        let mut changes = Vec::with_capacity(frozen.delta.len());
        for (key, entry) in frozen.delta.iter() {
            changes.push((key, entry.row.as_ref()));
            if changes.len().is_multiple_of(ENTRIES_A_SLICE) {
                cpu.yield_now().await;
            }
        }
        self.merge_all(cpu, &frozen, &changes).await?;
        drop(changes);
        Ok(Arc::into_inner(frozen.delta))
    }

    /// Puts the changes into the tree: all at once; or, if there is no space for the pages that this writes anew, a part after
    /// another, as each makes the pages free that it has replaced.
    async fn merge_all(&self, cpu: &Processor, frozen: &Frozen, changes: &[Change<'_>]) -> Result<(), StoreError> {
        let (mut rest, mut count) = (changes, changes.len());
        loop {
            let (part, later) = rest.split_at(count.min(rest.len()));
            match self.merge_part(cpu, frozen, part, later.is_empty()).await {
                Ok(()) if later.is_empty() => return Ok(()),
                Ok(()) => rest = later,
                Err(StoreError::Full) if part.len() > 1 => {
                    count = part.len() / 2;
                    self.until_logged(frozen.commits).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A tree with a part of some transactions may become durable only once the log has them as a whole.
    async fn until_logged(&self, commits: Sequence) -> Result<(), StoreError> {
        let ended = || {
            let state = self.state.read();
            match state.failure {
                _ if state.durable >= commits => Some(Ok(())),
                Some(errno) => Some(Err(errno.into())),
                // It waits for this checkpoint.
                None if state.is_log_full => Some(Err(StoreError::Full)),
                None => None,
            }
        };
        self.changed.until(ended).await
    }

    async fn merge_part(
        &self,
        cpu: &Processor,
        frozen: &Frozen,
        changes: &[Change<'_>],
        is_last: bool,
    ) -> Result<(), StoreError> {
        let (tree, generation) = {
            let mut state = self.state.write();
            self.release_retired(&mut state);
            (Arc::clone(&state.tree), state.generation + 1)
        };
        let began = cpu.begin(Event::CheckpointMerged, JobId::default());
        let spread = Spread::new(cpu, self, frozen);
        let mut merge = Merge { cpu, database: self, spread, replaced: Vec::new(), written: Vec::new() };
        let merged = if changes.is_empty() { Ok(tree.root) } else { merge.run(tree.root, changes).await };
        let Merge { replaced, written, .. } = merge;
        cpu.end(began, Event::CheckpointMerged, JobId::default(), changes.len() as u64, written.len() as u64);
        let root = merged.inspect_err(|_| {
            let mut space = self.space.lock();
            written.iter().for_each(|page| space.release(*page));
        })?;
        let began = cpu.begin(Event::CheckpointStored, JobId::default());
        let map = self.map_without(cpu, &replaced).await;
        self.until_done(cpu, async || self.write_map(cpu, generation, &map).await).await?;
        let superblock = self.superblock(generation, is_last.then_some(frozen), root);
        self.until_done(cpu, async || self.write_superblock(cpu, &superblock).await).await?;
        cpu.end(began, Event::CheckpointStored, JobId::default(), generation, 0);
        drop(tree);
        self.end_part(&superblock, is_last.then_some(frozen), replaced);
        Ok(())
    }

    /// Does it until it succeeds. To begin anew after a flush failed would write all anew, and fail again on a disk that
    /// fails now and then; and after a superblock failed it may be on the medium all the same, and what it refers to must
    /// stay. A volume that has ended never will.
    async fn until_done(
        &self,
        cpu: &Processor,
        work: impl AsyncFn() -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        while let Err(error) = work().await {
            self.state.write().checkpoint_failure = Some(error.clone());
            self.changed.wake_all();
            if error == StoreError::LeaseOver {
                return Err(error);
            }
            cpu.sleep(RETRY).await;
        }
        self.state.write().checkpoint_failure = None;
        Ok(())
    }

    /// What was committed until now is set apart. `None`: nothing was, and the checkpoint has ended.
    fn freeze(&self) -> Option<Frozen> {
        let mut state = self.state.write();
        let state = &mut *state;
        if state.frozen.is_none() {
            // With nothing new, a checkpoint still gives back the log of groups whose changes the tree has already.
            if state.recent.is_empty() && state.circle.held() == 0 {
                state.end_checkpoint();
                self.changed.wake_all();
                return None;
            }
            state.frozen = Some(Frozen {
                delta: Arc::new(std::mem::take(&mut state.recent)),
                commits: state.commits,
                // A group that is being written comes here: it is passed over.
                log: state.circle.place,
                used: state.circle.used,
            });
        }
        state.frozen.clone()
    }

    /// Pages that nobody reads any more become free.
    pub(super) fn release_retired(&self, state: &mut State) {
        let mut space = self.space.lock();
        state.retired.take_unread().into_iter().for_each(|page| space.release(page));
    }

    /// The map after this checkpoint: after a start nobody reads older trees.
    pub(super) async fn map_without(&self, cpu: &Processor, replaced: &[PageNo]) -> Map {
        // Before the map is copied: what others release meanwhile is among these, or free in the map.
        let retired: Vec<PageNo> = self.state.read().retired.pages().collect();
        let mut map = Map::default();
        while map.copy(&self.space.lock()) {
            cpu.yield_now().await;
        }
        for pages in [replaced, &retired].into_iter().flat_map(|pages| pages.chunks(RELEASED_A_SLICE)) {
            pages.iter().for_each(|page| map.release(*page));
            cpu.yield_now().await;
        }
        map
    }

    pub(super) async fn write_map(&self, cpu: &Processor, generation: u64, map: &Map) -> Result<(), StoreError> {
        let (place, pages) = (self.layout.map(generation), self.layout.map_pages() as usize);
        for first in (0..pages).step_by(MAP_PAGES_A_SLICE) {
            let bytes = map.encode(first, self.pages.identity, generation);
            self.pages.write_run(cpu, PageNo(place.0 + first as u64), &bytes, Stability::Unstable).await?;
            cpu.yield_now().await;
        }
        // The superblock may refer only to what is durable.
        let is_awaited = self.state.read().is_awaited;
        self.pages.write_out(cpu, is_awaited).await;
        self.pages.flush(cpu).await
    }

    /// `merged`: what the tree has as a whole; `None`: a part of it.
    fn superblock(&self, generation: u64, merged: Option<&Frozen>, root: Option<Root>) -> Superblock {
        let state = self.state.read();
        let (commits, log) = merged.map_or((state.merged, state.log_begins), |merged| (merged.commits, merged.log));
        let (identity, start) = (self.pages.identity, state.circle.start);
        Superblock { identity, generation, layout: self.layout, commits, log, start, root }
    }

    pub(super) async fn write_superblock(&self, cpu: &Processor, superblock: &Superblock) -> Result<(), StoreError> {
        self.write_superblock_at(cpu, Layout::superblock(superblock.generation), superblock).await
    }

    pub(super) async fn write_superblock_at(
        &self,
        cpu: &Processor,
        page: PageNo,
        superblock: &Superblock,
    ) -> Result<(), StoreError> {
        self.pages.write_run(cpu, page, &superblock.encode(), Stability::Stable).await
    }

    /// The tree is that of the superblock now. `merged`: the checkpoint has ended.
    fn end_part(&self, superblock: &Superblock, merged: Option<&Frozen>, replaced: Vec<PageNo>) {
        let mut state = self.state.write();
        let old = std::mem::replace(&mut state.tree, Arc::new(Tree { root: superblock.root }));
        state.retired.push(old, replaced);
        self.release_retired(&mut state);
        state.generation = superblock.generation;
        if let Some(frozen) = merged {
            state.frozen = None;
            (state.merged, state.log_begins) = (frozen.commits, frozen.log);
            state.circle.freed = frozen.used;
            state.end_checkpoint();
        }
        drop(state);
        self.changed.wake_all();
    }
}

impl State {
    /// Has the checkpoint ended that was under way at this generation? Another one may be.
    pub(super) fn is_over(&self, generation: u64) -> bool {
        !self.is_checkpointing || self.generation != generation
    }

    /// With what it has changed, under one lock: who finds no room afterwards can request the next one.
    fn end_checkpoint(&mut self) {
        self.is_checkpointing = false;
        self.is_awaited = false;
    }
}

impl StoreError {
    /// For those who only know error numbers.
    pub(super) fn errno(self) -> Errno {
        match self {
            StoreError::Volume(errno) => errno,
            StoreError::LeaseOver => Errno::SHUT_DOWN,
            StoreError::Full => Errno::NO_SPACE,
            _ => Errno::IO,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use kernel::{ForcedUnitAccess, Switches};
    use policy::unit::BLOCK_BYTES;
    use sim::DiskConfig;
    use testkit::scene::disk::Server;
    use testkit::scene::small_kernel;

    use super::*;

    const DISK_BYTES: u64 = 64 << 30;

    /// With a new database on a large volume, whose map has several slices.
    fn with_large_database(test: impl AsyncFnOnce(Processor, Arc<Database>) + 'static) {
        let kernel = small_kernel(1, 32 << 20, Switches::default());
        let server = Server::of(1, kernel, DiskConfig::new(DISK_BYTES));
        let volume = server.volume(ForcedUnitAccess::Never);
        server.run(async move |cpu, _, _| {
            let database = Database::open(&cpu, volume).await.unwrap();
            test(cpu, database).await;
        });
    }

    async fn put(cpu: &Processor, database: &Arc<Database>) {
        let mut transaction = database.begin();
        let table = transaction.table("rows").unwrap();
        transaction.put(table, b"key", b"row").unwrap();
        transaction.commit(cpu).await.unwrap().durable(cpu).await.unwrap();
    }

    #[test]
    fn a_checkpoint_writes_the_map_of_a_large_volume_a_few_pages_at_a_time() {
        let map_pages = Layout::new(DISK_BYTES / BLOCK_BYTES).map_pages();
        assert!(map_pages > 4 * MAP_PAGES_A_SLICE as u64);
        with_large_database(async move |cpu, database| {
            put(&cpu, &database).await;
            let mut checkpoint = pin!(database.checkpoint(&cpu));
            let dirty = || database.pages.volume.dirty_blocks();
            let (mut before, mut most) = (dirty(), 0);
            let ended = poll_fn(|cx| {
                let polled = checkpoint.as_mut().poll(cx);
                most = most.max(dirty().saturating_sub(before));
                before = dirty();
                polled
            });
            ended.await.unwrap();
            assert!((1..=2 * MAP_PAGES_A_SLICE as u64).contains(&most), "{most} of {map_pages} pages in one piece");
        });
    }

    #[test]
    fn pages_that_are_released_while_the_map_is_copied_are_free_in_the_copy() {
        with_large_database(async |cpu, database| {
            put(&cpu, &database).await;
            database.checkpoint(&cpu).await.unwrap();
            let mut read = Some(Arc::clone(&database.state.read().tree));
            put(&cpu, &database).await;
            database.checkpoint(&cpu).await.unwrap();
            assert!(database.state.read().retired.pages().next().is_some(), "pages of the tree that is read");
            let mut copied = pin!(database.map_without(&cpu, &[]));
            let copied = poll_fn(|cx| {
                let polled = copied.as_mut().poll(cx);
                if read.take().is_some() {
                    assert!(polled.is_pending(), "a part is copied");
                    database.release_retired(&mut database.state.write());
                }
                polled
            });
            let (copied, mut after) = (copied.await, Map::default());
            while after.copy(&database.space.lock()) {}
            assert!(copied == after);
        });
    }
}

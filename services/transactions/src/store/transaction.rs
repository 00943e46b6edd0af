//! A transaction: what it has read and will write. Optimistic: others may commit meanwhile; whether it read what they
//! changed is checked when it commits (Kung and Robinson, *On Optimistic Methods for Concurrency Control*, ACM TODS 6,
//! 1981: backward validation).

mod search;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kernel::Processor;
use kernel::rendezvous::Group;

use super::checkpoint::Tree;
use super::delta::Entry;
use super::reads::{self, Reads};
use super::{
    CommitError, Conflict, DELTA_BYTES_MAX, Database, FoundTable, FullKey, KEY_BYTES_MAX, ROW_BYTES_MAX, Row, Sequence,
    State, StoreError, TRANSACTION_BYTES_MAX, TableNo, tree,
};
pub(crate) use search::Searched;
pub use undo::Mark;
use undo::Undo;

/// Pages that changes are not begun without: judged, the path to a leaf several times over.
const SPARE_PAGES: u64 = 32;

/// Pages kept for transactions that only delete: a database that is full must not stay so.
const RESERVED_PAGES: u64 = 128;

/// Bytes of changes that fill a page, at least: no page is less than half full but the last.
const PAGE_FILLED_BYTES: u64 = 1800;

/// What a write counts at least. In the log it takes 8 bytes beside its key and row: so that a transaction fits into the
/// smallest one.
const WRITE_BYTES_MIN: usize = 2;

/// Writes that are copied before an attempt, at most.
const COPIED_WRITES_MAX: usize = 64;

pub struct Transaction {
    database: Arc<Database>,
    writes: BTreeMap<FullKey, Option<Row>>,
    written_bytes: usize,
    undo: Undo,
    reads: Reads,
    /// Tables that had no row when they were looked up.
    unstored: BTreeSet<TableNo>,
}

/// A transaction that is committed, and durable soon.
#[must_use = "a client may be answered only once it is durable"]
pub struct Commit {
    database: Arc<Database>,
    /// `None`: it only read.
    group: Option<Arc<Group>>,
    at: Sequence,
}

/// What a transaction had read and written before something that may be given up, without a trace. (What its client returns
/// to is a [`Mark`].)
pub(crate) struct Attempt {
    writes: BTreeMap<FullKey, Option<Row>>,
    written_bytes: usize,
    replaced: usize,
    reads: reads::Mark,
}

/// Where a row may be found that is not in memory.
enum Found {
    Row(Option<Row>),
    In(Arc<Tree>),
}

impl Transaction {
    pub(super) fn new(database: &Arc<Database>) -> Self {
        let database = Arc::clone(database);
        Transaction {
            database,
            writes: BTreeMap::new(),
            written_bytes: 0,
            undo: Undo::default(),
            reads: Reads::default(),
            unstored: BTreeSet::new(),
        }
    }

    /// The table of that name. It exists from the first row on.
    ///
    /// # Errors
    /// If the name is too long or empty, or there are too many tables.
    pub fn table(&mut self, name: &str) -> Result<TableNo, StoreError> {
        self.find_table(name).map(|found| found.no)
    }

    pub(crate) fn find_table(&mut self, name: &str) -> Result<FoundTable, StoreError> {
        if let Some(counters) = self.database.counters.get() {
            counters.table_lookup();
        }
        let known = self.database.state.read().tables.get(name);
        let found = match known {
            Some(found) => found,
            None => self.database.state.write().tables.find(name)?,
        };
        if !found.is_stored {
            self.unstored.insert(found.no);
        }
        Ok(found)
    }

    /// A row: as this transaction wrote it, else as committed last.
    ///
    /// # Errors
    /// If the volume cannot be read, or the transaction has read too much.
    pub async fn get(&mut self, cpu: &Processor, table: TableNo, key: &[u8]) -> Result<Option<Row>, StoreError> {
        let key = FullKey::new(table, key);
        if let Some(row) = self.writes.get(&key) {
            return Ok(row.clone());
        }
        let found = self.find(&key);
        let row = match found {
            Found::Row(row) => row,
            Found::In(tree) => match tree.root {
                Some(root) => tree::get(&self.database.pages, cpu, root, &key).await?,
                None => None,
            },
        };
        self.reads.add_key(key)?;
        Ok(row)
    }

    fn find(&mut self, key: &FullKey) -> Found {
        let state = self.database.state.read();
        self.reads.begin(&state);
        let frozen = || state.frozen.as_ref().and_then(|frozen| frozen.delta.get(key));
        match state.recent.get(key).or_else(frozen) {
            Some(Entry { at, row }) => {
                self.reads.saw(*at);
                Found::Row(row.clone())
            }
            None => Found::In(Arc::clone(&state.tree)),
        }
    }

    /// Writes a row.
    ///
    /// # Errors
    /// If key or row are too long, or the transaction is.
    pub fn put(&mut self, table: TableNo, key: &[u8], row: &[u8]) -> Result<(), StoreError> {
        self.put_row(table, key, Row::from(row))
    }

    pub(crate) fn put_row(&mut self, table: TableNo, key: &[u8], row: Row) -> Result<(), StoreError> {
        if row.len() > ROW_BYTES_MAX {
            return Err(StoreError::RowTooLong(row.len()));
        }
        self.write(table, key, Some(row))
    }

    /// Deletes a row; it need not exist.
    ///
    /// # Errors
    /// If the key or the transaction are too long.
    pub fn delete(&mut self, table: TableNo, key: &[u8]) -> Result<(), StoreError> {
        self.write(table, key, None)
    }

    fn write(&mut self, table: TableNo, key: &[u8], row: Option<Row>) -> Result<(), StoreError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(StoreError::KeyTooLong(key.len()));
        }
        self.written_bytes += (key.len() + row.as_ref().map_or(0, |row| row.len())).max(WRITE_BYTES_MIN);
        if self.written_bytes > TRANSACTION_BYTES_MAX {
            return Err(StoreError::TransactionTooLong);
        }
        let key = FullKey::new(table, key);
        self.undo.before(&key, &self.writes);
        self.writes.insert(key, row);
        Ok(())
    }

    /// Whether a commit would fail now. What a program concludes from reads of two times may be nonsense: its failure
    /// counts only if this is false.
    pub fn conflicts(&self) -> bool {
        self.have_changed(&self.database.state.read())
    }

    fn have_changed(&self, state: &State) -> bool {
        self.reads.have_changed(state) || state.tables.have_forgotten(&self.unstored)
    }

    /// Before what may be given up. `None`: it has written too much to copy that.
    pub(crate) fn attempt(&self) -> Option<Attempt> {
        let is_short = self.writes.len() <= COPIED_WRITES_MAX;
        let (written_bytes, replaced, reads) = (self.written_bytes, self.undo.len(), self.reads.mark());
        is_short.then(|| Attempt { writes: self.writes.clone(), written_bytes, replaced, reads })
    }

    /// What was read and written since is forgotten: nobody concluded anything from it.
    pub(crate) fn give_up(&mut self, attempt: Attempt) {
        self.writes = attempt.writes;
        self.written_bytes = attempt.written_bytes;
        self.undo.truncate(attempt.replaced);
        self.reads.roll_back(attempt.reads);
    }

    /// Moves it; what remains is one of the same database that has read and written nothing.
    pub(crate) fn take(&mut self) -> Transaction {
        let empty = Transaction::new(&self.database);
        std::mem::replace(self, empty)
    }

    /// What it has read so far: that may be told once this is durable.
    pub fn read(&self) -> Commit {
        Commit { database: Arc::clone(&self.database), group: None, at: self.reads.newest }
    }

    /// Changes nothing. What it has read may not be durable yet, and so must not be told before [`Commit::durable`].
    pub fn abort(self) -> Commit {
        Commit { database: self.database, group: None, at: self.reads.newest }
    }

    /// Commits: all later transactions see it. Waits only if the database is nearly full.
    ///
    /// # Errors
    /// On a conflict; or if the database takes no transactions now, also because the checkpoint fails that is to make room.
    pub async fn commit(mut self, cpu: &Processor) -> Result<Commit, CommitError> {
        let database = Arc::clone(&self.database);
        loop {
            if let Some(commit) = self.try_commit(cpu)? {
                return Ok(commit);
            }
            let generation = database.await_checkpoint(cpu);
            let ended = || {
                let state = database.state.read();
                let failed = state.checkpoint_failure.clone().map(Err);
                failed.or(state.is_over(generation).then_some(Ok(())))
            };
            database.changed.until(ended).await?;
        }
    }

    /// Commits without waiting. `None`: the database is nearly full, and [`Transaction::commit`] would wait.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub(crate) fn commit_at_once(mut self, cpu: &Processor) -> Result<Option<Commit>, CommitError> {
        self.try_commit(cpu)
    }

    /// `None`: a checkpoint has to make room first.
    fn try_commit(&mut self, cpu: &Processor) -> Result<Option<Commit>, CommitError> {
        if self.writes.is_empty() {
            return if self.conflicts() { Err(Conflict.into()) } else { Ok(Some(self.read())) };
        }
        let database = &self.database;
        let mut state = database.state.write();
        if self.have_changed(&state) {
            return Err(Conflict.into());
        }
        match state.failure {
            Some(errno) => return Err(StoreError::from(errno).into()),
            None if state.is_closing => return Err(StoreError::Closing.into()),
            None => {}
        }
        let only_deletes = self.writes.values().all(Option::is_none);
        let reserved = if only_deletes { 0 } else { RESERVED_PAGES };
        let has_room = |state: &State| database.has_room(state, self.writes.len(), self.written_bytes, reserved);
        if !has_room(&state) {
            database.release_retired(&mut state);
            if !has_room(&state) {
                let may_help = !state.recent.is_empty() || state.frozen.is_some();
                return if may_help { Ok(None) } else { Err(StoreError::Full.into()) };
            }
        }
        state.tables.store(&self.unstored, &mut self.writes)?;
        state.commits.0 += 1;
        let at = state.commits;
        let push =
            |records: &mut super::Records| records.push(at, self.writes.iter().map(|(key, row)| (key, row.as_ref())));
        let group = database.log.join(cpu, push, || database.lead(cpu));
        for (key, row) in std::mem::take(&mut self.writes) {
            state.last_written.push(at, &key);
            state.recent.insert(key, Entry { at, row });
        }
        let is_much = state.recent.bytes() > DELTA_BYTES_MAX && !state.is_checkpointing;
        drop(state);
        if is_much {
            database.request_checkpoint(cpu, false);
        }
        Ok(Some(Commit { database: Arc::clone(database), group: Some(group), at }))
    }
}

impl Database {
    /// Whether a checkpoint could put all that is committed, and this, into the tree.
    fn has_room(&self, state: &State, writes: usize, bytes: usize, reserved: u64) -> bool {
        let space = self.space.lock();
        let needed = |entries: u64, bytes: u64| {
            let pages = entries.min(space.used()) + bytes / PAGE_FILLED_BYTES;
            pages + pages / 8 + SPARE_PAGES
        };
        let frozen =
            state.frozen.as_ref().map_or(0, |frozen| needed(frozen.delta.len() as u64, frozen.delta.bytes() as u64));
        let recent = needed((state.recent.len() + writes) as u64, (state.recent.bytes() + bytes) as u64);
        frozen + recent + reserved <= space.free()
    }

    /// On a shared volume this node may have it open no longer.
    fn may_answer(&self) -> bool {
        self.pages.volume.may_answer()
    }

    /// Starts a task that writes groups until there are none.
    fn lead(&self, cpu: &Processor) {
        let (Some(database), here) = (self.this.upgrade(), cpu.clone()) else { return };
        cpu.spawn(async move {
            let write = async |records| database.write_log(&here, records).await;
            database.log.lead(&here, write).await;
        });
    }
}

impl Commit {
    /// Where it is in the order of commits; for one that only read, the newest whose row it has seen.
    pub fn sequence(&self) -> Sequence {
        self.at
    }

    /// The group that makes it durable; `None`: it only read.
    pub(crate) fn group(&self) -> Option<&Arc<Group>> {
        self.group.as_ref()
    }

    /// Is it, and all that it has read, known to be on stable storage?
    pub(crate) fn is_durable(&self) -> bool {
        self.group.is_none() && self.database.state.read().durable >= self.at && self.database.may_answer()
    }

    /// Waits until it, and all that it has read, is on stable storage.
    ///
    /// # Errors
    /// If the volume fails: then it may be durable, or not.
    pub async fn durable(self, cpu: &Processor) -> Result<(), StoreError> {
        let Commit { database, group, at } = self;
        match group {
            Some(group) => database.log.ended(&group, || database.lead(cpu)).await?,
            None => {
                let ended = || {
                    let state = database.state.read();
                    let is_durable = state.durable >= at;
                    is_durable.then_some(Ok(())).or(state.failure.map(|errno| Err(StoreError::from(errno))))
                };
                database.changed.until(ended).await?;
            }
        }
        // What was read may be older than what another node has committed since.
        if database.may_answer() { Ok(()) } else { Err(StoreError::LeaseOver) }
    }
}

//! A transaction: what it has read and will write. Optimistic: others may commit meanwhile; whether it read what they
//! changed is checked when it commits (Kung and Robinson, *On Optimistic Methods for Concurrency Control*, ACM TODS 6,
//! 1981: backward validation).

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use kernel::Processor;

use super::{
    CommitError, Conflict, Database, KEY_BYTES_MAX, Key, ROW_BYTES_MAX, Row, StoreError, TABLE_NAME_BYTES_MAX, TableNo,
};

pub struct Transaction {
    database: Arc<Database>,
    writes: BTreeMap<(TableNo, Key), Option<Row>>,
    reads: Vec<(TableNo, Key)>,
    seen: u64,
}

/// A transaction that is committed, and durable soon.
#[must_use = "a client may be answered only once it is durable"]
pub struct Commit {}

impl Transaction {
    pub(super) fn new(database: &Arc<Database>) -> Self {
        let seen = database.state.lock().commits;
        Transaction { database: Arc::clone(database), writes: BTreeMap::new(), reads: Vec::new(), seen }
    }

    /// The table of that name. It exists from the first row on.
    ///
    /// # Errors
    /// If the name is too long or empty.
    pub fn table(&mut self, name: &str) -> Result<TableNo, StoreError> {
        if name.is_empty() || name.len() > TABLE_NAME_BYTES_MAX {
            return Err(StoreError::TableName);
        }
        let mut state = self.database.state.lock();
        let next = TableNo(state.names.len() as u32 + 1);
        Ok(*state.names.entry(name.to_owned()).or_insert(next))
    }

    /// A row: as this transaction wrote it, else as committed last.
    ///
    /// # Errors
    /// If the volume cannot be read.
    pub async fn get(&mut self, _cpu: &Processor, table: TableNo, key: &[u8]) -> Result<Option<Row>, StoreError> {
        let key = (table, Key::from(key));
        if let Some(row) = self.writes.get(&key) {
            return Ok(row.clone());
        }
        let row = self.database.state.lock().rows.get(&key).and_then(|(_, row)| row.clone());
        self.reads.push(key);
        Ok(row)
    }

    /// The first row within `range`, or with `backwards` the last.
    ///
    /// # Errors
    /// If the volume cannot be read.
    pub async fn next(
        &mut self,
        cpu: &Processor,
        table: TableNo,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        backwards: bool,
    ) -> Result<Option<(Key, Row)>, StoreError> {
        let _ = cpu;
        let state = self.database.state.lock();
        let inside = |(of, key): &(TableNo, Key)| *of == table && (range.0, range.1).contains(&**key);
        let committed = state.rows.iter().filter(|(at, _)| inside(at)).map(|(at, (_, row))| (at, row));
        let mut all: BTreeMap<_, _> = committed.chain(self.writes.iter().filter(|(at, _)| inside(at))).collect();
        all.retain(|_, row| row.is_some());
        let found = if backwards { all.pop_last() } else { all.pop_first() };
        let found = found.and_then(|((_, key), row)| Some((key.clone(), row.clone()?)));
        drop(state);
        self.reads.extend(found.iter().map(|(key, _)| (table, key.clone())));
        Ok(found)
    }

    /// Writes a row.
    ///
    /// # Errors
    /// If key or row are too long, or the transaction is.
    pub fn put(&mut self, table: TableNo, key: &[u8], row: &[u8]) -> Result<(), StoreError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(StoreError::KeyTooLong(key.len()));
        }
        if row.len() > ROW_BYTES_MAX {
            return Err(StoreError::RowTooLong(row.len()));
        }
        self.writes.insert((table, Key::from(key)), Some(Row::from(row)));
        Ok(())
    }

    /// Deletes a row; it need not exist.
    ///
    /// # Errors
    /// If the key or the transaction are too long.
    pub fn delete(&mut self, table: TableNo, key: &[u8]) -> Result<(), StoreError> {
        if key.len() > KEY_BYTES_MAX {
            return Err(StoreError::KeyTooLong(key.len()));
        }
        self.writes.insert((table, Key::from(key)), None);
        Ok(())
    }

    /// Whether a commit would fail now. What a program concludes from reads of two times may be nonsense: its failure
    /// counts only if this is false.
    pub fn conflicts(&self) -> bool {
        let state = self.database.state.lock();
        self.reads.iter().any(|key| state.rows.get(key).is_some_and(|(at, _)| *at > self.seen))
    }

    /// Commits: all later transactions see it.
    ///
    /// # Errors
    /// On a conflict; or if the database takes no transactions now.
    pub fn commit(self, _cpu: &Processor) -> Result<Commit, CommitError> {
        if self.conflicts() {
            return Err(Conflict.into());
        }
        let mut state = self.database.state.lock();
        state.commits += 1;
        let at = state.commits;
        state.rows.extend(self.writes.into_iter().map(|(key, row)| (key, (at, row))));
        Ok(Commit {})
    }
}

impl Commit {
    /// Waits until it, and all that it has read, is on stable storage.
    ///
    /// # Errors
    /// If the volume fails: then it may be durable, or not.
    pub async fn durable(self, _cpu: &Processor) -> Result<(), StoreError> {
        Ok(())
    }
}

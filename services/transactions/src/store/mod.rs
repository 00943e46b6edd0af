//! Tables of keys and rows on a volume, changed by serializable and durable transactions.

mod transaction;

use std::collections::BTreeMap;
use std::sync::Arc;

use kernel::{Processor, Volume};
use machine::Errno;
use parking_lot::Mutex;
use thiserror::Error;

pub use transaction::{Commit, Transaction};

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// Longest row, in bytes.
pub const ROW_BYTES_MAX: usize = 1024;
/// Longest name of a table, in bytes.
pub const TABLE_NAME_BYTES_MAX: usize = 64;

/// A table's number in its database; it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableNo(pub u32);

pub type Key = Box<[u8]>;
pub type Row = Arc<[u8]>;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    #[error("a key has {0} bytes; at most {KEY_BYTES_MAX} are possible")]
    KeyTooLong(usize),
    #[error("a row has {0} bytes; at most {ROW_BYTES_MAX} are possible")]
    RowTooLong(usize),
    #[error("the name of a table has 1 to {TABLE_NAME_BYTES_MAX} bytes")]
    TableName,
    #[error("the transaction writes more than {0} bytes")]
    TransactionTooLong(usize),
    #[error("the database is full")]
    Full,
    /// What it wrote may be durable, or not.
    #[error("the database's volume failed ({0})")]
    Volume(Errno),
    #[error("the database is being closed")]
    Closing,
}

/// The transaction read what another has changed since: nothing was changed. It can be executed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("another transaction changed what this one has read")]
pub struct Conflict;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommitError {
    #[error(transparent)]
    Conflict(#[from] Conflict),
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub struct Database {
    #[expect(dead_code)]
    volume: Arc<Volume>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    names: BTreeMap<String, TableNo>,
    rows: BTreeMap<(TableNo, Key), (u64, Option<Row>)>,
    commits: u64,
}

impl Database {
    pub async fn open(_cpu: &Processor, volume: Arc<Volume>) -> Result<Arc<Database>, StoreError> {
        Ok(Arc::new(Database { volume, state: Mutex::default() }))
    }

    pub fn begin(self: &Arc<Self>) -> Transaction {
        Transaction::new(self)
    }
}

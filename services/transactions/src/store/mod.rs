//! Tables of keys and rows on a volume, changed by serializable and durable transactions.
//!
//! A row is looked up in three places: what was committed since the last checkpoint began (`recent`), what that
//! checkpoint is putting into the tree (`frozen`), and the tree. The first two are in memory, and in the log on the volume;
//! the tree is on the volume and in its cache ([`layout`], [`log`], [`checkpoint`]). Transactions are optimistic
//! ([`Transaction`]): they lock nothing while they run.
//!
//! Considered: a kept store under a log of ours. redb calls its storage synchronously, so that each miss would block a
//! processor or need a thread, and syncs for each transaction that must be durable; LMDB maps a file; fjall has threads of
//! its own. None of them uses the cache, the queues and the groups that this is about.
//!
//! Lock order: the state, then the map of pages; the log's groups after the state. Who reads the state does not take it again
//! while holding it: a writer that waits meanwhile would stop both.

mod bytes;
mod checkpoint;
mod delta;
mod key;
mod last_written;
mod layout;
mod log;
mod merge;
mod open;
mod page;
mod pages;
mod reads;
mod retired;
mod space;
mod spread;
mod tables;
mod transaction;
mod tree;

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use kernel::Processor;
use kernel::rendezvous::Rendezvous;
use kernel::wait::WaitList;
use machine::Errno;
use parking_lot::{Mutex, RwLock};
use thiserror::Error;

use crate::counters::Counters;

use checkpoint::Tree;
use delta::Delta;
use key::FullKey;
use last_written::LastWritten;
pub use layout::{DATABASE_BYTES_MAX, DATABASE_BYTES_MIN};
use layout::{Layout, LogPlace};
use log::{Circle, Records};
pub use open::{BEGINNING_BYTES, OpenError, inspect};
use pages::Pages;
use retired::Retired;
use space::Space;
use spread::Frozen;
pub(crate) use tables::FoundTable;
use tables::Tables;
pub(crate) use transaction::Searched;
pub use transaction::{Commit, Mark, Transaction};

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 512;
/// Longest row, in bytes.
pub const ROW_BYTES_MAX: usize = 1024;
/// Longest name of a table, in bytes.
pub const TABLE_NAME_BYTES_MAX: usize = 64;
/// What a transaction may write, and what it may read, in bytes of keys and rows. A write counts 2 bytes at least.
pub const TRANSACTION_BYTES_MAX: usize = 128 << 10;
/// Tables of a database.
pub const TABLES_MAX: usize = 4096;

/// A checkpoint begins when what it has to put into the tree takes this much memory: 32 MiB.
const DELTA_BYTES_MAX: usize = 32 << 20;

/// A table's number in its database; it never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableNo(pub u32);

/// The table of tables: their numbers by name.
const CATALOG: TableNo = TableNo(0);

pub type Key = Box<[u8]>;
pub type Row = Arc<[u8]>;

/// Numbers commits in their order, which is that of the serial execution that they are equivalent to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    #[error("a key has {0} bytes; at most {KEY_BYTES_MAX} are possible")]
    KeyTooLong(usize),
    #[error("a row has {0} bytes; at most {ROW_BYTES_MAX} are possible")]
    RowTooLong(usize),
    #[error("the name of a table has 1 to {TABLE_NAME_BYTES_MAX} bytes")]
    TableName,
    #[error("a database has at most {TABLES_MAX} tables")]
    TooManyTables,
    #[error("the transaction reads or writes more than {TRANSACTION_BYTES_MAX} bytes")]
    TransactionTooLong,
    #[error("the database is full")]
    Full,
    /// What was written may be durable, or not.
    #[error("the database's volume failed: {0}")]
    Volume(Errno),
    #[error("page {0} of the database is damaged")]
    Damaged(u64),
    #[error("the database is being closed")]
    Closing,
    /// Of a shared volume: another node may have opened the database since.
    #[error("the database is no longer open at this node, whose lease is over")]
    LeaseOver,
}

impl From<Errno> for StoreError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::SHUT_DOWN => StoreError::LeaseOver,
            errno => StoreError::Volume(errno),
        }
    }
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
    /// For the tasks that it starts.
    this: Weak<Database>,
    pages: Pages,
    layout: Layout,
    state: RwLock<State>,
    space: Mutex<Space>,
    log: Rendezvous<Records>,
    /// Those of its monitor, if it has one.
    counters: OnceLock<Arc<Counters>>,
    /// A group became durable, a checkpoint ended, or something failed or was mended.
    changed: WaitList,
}

struct State {
    tables: Tables,
    recent: Delta,
    last_written: LastWritten,
    frozen: Option<Frozen>,
    tree: Arc<Tree>,
    /// Trees that may still be read, and the pages that are free after that.
    retired: Retired,
    commits: Sequence,
    /// All commits up to this one are on stable storage.
    durable: Sequence,
    /// The tree has all commits up to this one, and their entries are no longer in memory.
    merged: Sequence,
    circle: Circle,
    /// Where the log begins, as the superblock says.
    log_begins: LogPlace,
    /// A group waits for a checkpoint to make room.
    is_log_full: bool,
    generation: u64,
    /// The log could not be written, the last time for this reason: nothing commits until it is.
    failure: Option<Errno>,
    unwritten: VecDeque<Records>,
    is_checkpointing: bool,
    /// Somebody waits for its end.
    is_awaited: bool,
    /// Of the checkpoint that is under way.
    checkpoint_failure: Option<StoreError>,
    is_closing: bool,
}

/// What a database has and does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub commits: u64,
    pub durable: u64,
    pub checkpoints: u64,
    /// One is under way.
    pub is_checkpointing: bool,
    /// In bytes: what a checkpoint would put into the tree, the log that a start would replay, the tree, and what is free.
    pub unmerged_bytes: u64,
    pub log_bytes: u64,
    pub tree_bytes: u64,
    pub free_bytes: u64,
}

impl Database {
    pub fn begin(self: &Arc<Self>) -> Transaction {
        Transaction::new(self)
    }

    /// From now on tables that are looked up are counted.
    pub(crate) fn count_in(&self, counters: &Arc<Counters>) {
        self.counters.get_or_init(|| Arc::clone(counters));
    }

    pub fn reading(&self) -> Reading {
        let state = self.state.read();
        let space = self.space.lock();
        let page = layout::PAGE_BYTES as u64;
        let frozen = state.frozen.as_ref().map_or(0, |frozen| frozen.delta.bytes());
        Reading {
            commits: state.commits.0,
            durable: state.durable.0,
            checkpoints: state.generation - 1,
            is_checkpointing: state.is_checkpointing,
            unmerged_bytes: (state.recent.bytes() + frozen) as u64,
            log_bytes: state.circle.held() * page,
            tree_bytes: space.used() * page,
            free_bytes: space.free() * page,
        }
    }

    /// Takes no more transactions, and makes a checkpoint, so that the next start has nothing to replay. To be called
    /// once nobody waits for a transaction any more.
    ///
    /// # Errors
    /// If the volume fails. What was acknowledged is durable all the same.
    pub async fn close(self: &Arc<Self>, cpu: &Processor) -> Result<(), StoreError> {
        self.state.write().is_closing = true;
        // Groups that are under way end first.
        drop(self.log.exclusive().await);
        loop {
            self.request_checkpoint(cpu, true);
            let ended = || {
                let state = self.state.read();
                let is_done = state.recent.is_empty() && state.frozen.is_none();
                let failed = state.failure.map(StoreError::from).or(state.checkpoint_failure.clone());
                match failed {
                    Some(error) => Some(Err(error)),
                    None if state.is_checkpointing => None,
                    None => Some(Ok(is_done)),
                }
            };
            if self.changed.until(ended).await? {
                return self.pages.flush(cpu).await;
            }
        }
    }
}

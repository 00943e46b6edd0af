//! What a database's monitor counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Counted since the start.
#[derive(Default)]
pub struct Counters {
    commits: AtomicU64,
    conflicts: AtomicU64,
    aborts: AtomicU64,
    lookups: AtomicU64,
    table_lookups: AtomicU64,
    functions: Mutex<BTreeMap<String, Arc<Tally>>>,
}

/// Of one function.
#[derive(Default)]
pub struct Tally {
    calls: AtomicU64,
    failures: AtomicU64,
    at_once: AtomicU64,
}

/// A reading of [`Counters`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Transactions that were committed.
    pub commits: u64,
    /// Attempts that ended because others had changed what they had read.
    pub conflicts: u64,
    /// Transactions that ended without a commit, for other reasons.
    pub aborts: u64,
    /// Functions that were looked up by their names.
    pub lookups: u64,
    /// Tables that were looked up by their names.
    pub table_lookups: u64,
    /// In the order of names.
    pub functions: Vec<CountedFunction>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedFunction {
    pub name: String,
    /// Executions, also those that had to be repeated.
    pub calls: u64,
    /// Those that returned no result.
    pub failures: u64,
    /// Those that were executed at once (OLTP-4).
    pub at_once: u64,
}

impl Counters {
    pub fn commit(&self) {
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub fn conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    pub fn abort(&self) {
        self.aborts.fetch_add(1, Ordering::Relaxed);
    }

    /// A function was looked up by its name.
    pub fn lookup(&self) {
        self.lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// A table was looked up by its name.
    pub fn table_lookup(&self) {
        self.table_lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// Of an installed function.
    pub fn function(&self, name: &str) -> Arc<Tally> {
        let mut functions = self.functions.lock();
        if let Some(tally) = functions.get(name) {
            return Arc::clone(tally);
        }
        Arc::clone(functions.entry(name.to_owned()).or_default())
    }

    pub fn read(&self) -> Counted {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let functions = self.functions.lock();
        let function = |(name, tally): (&String, &Arc<Tally>)| CountedFunction {
            name: name.clone(),
            calls: read(&tally.calls),
            failures: read(&tally.failures),
            at_once: read(&tally.at_once),
        };
        Counted {
            commits: read(&self.commits),
            conflicts: read(&self.conflicts),
            aborts: read(&self.aborts),
            lookups: read(&self.lookups),
            table_lookups: read(&self.table_lookups),
            functions: functions.iter().map(function).collect(),
        }
    }
}

impl Tally {
    pub fn note(&self, is_ok: bool, at_once: bool) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if !is_ok {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        if at_once {
            self.at_once.fetch_add(1, Ordering::Relaxed);
        }
    }
}

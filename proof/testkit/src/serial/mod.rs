//! Histories of transactions, and whether they are strictly serializable.
//!
//! Every write has a version of its own, so each read says whose write it saw, as in Elle (Kingsbury and Alvaro, *Elle:
//! Inferring Isolation Anomalies from Experimental Observations*, VLDB 14, 2020). The order of the versions of a key
//! follows from transactions that read one before they write the next, and from rows that say which version they have
//! replaced; where neither is so it can be given. From these comes Adya's graph (*Weak Consistency: A Generalized Theory and
//! Optimistic Implementations for Distributed Transactions*, MIT, 1999): a history is serializable if, and only if, the
//! graph has no cycle ([`cycle`]), and no read is of what was not committed. Edges for real time make it strict: what was
//! told before another transaction began comes before it.
//!
//! Crashes need nothing of their own. A transaction whose end nobody was told is [`Outcome::Unknown`], and counts from
//! the moment that somebody has seen its writes; whatever was told and is lost makes a cycle with the transactions that
//! look for it later.
//!
//! A read that found no row does not say whether it came before the first version or after a deletion. All that is
//! impossible is ruled out ([`absent`]); of what is left, nothing is concluded.

mod absent;
mod cycle;
mod graph;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use thiserror::Error;

/// Nanoseconds.
pub type Time = u64;
pub type Key = u64;

/// What one write made of one row; a deletion makes one, too. No two writes of a history have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// A row that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub version: Version,
    /// The one that it has replaced, if the row says so.
    pub over: Option<Version>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Read {
        key: Key,
        saw: Option<Seen>,
    },
    /// All rows of these keys.
    Scan {
        range: Range<Key>,
        saw: Vec<(Key, Seen)>,
    },
    Write {
        key: Key,
        version: Version,
    },
    Delete {
        key: Key,
        version: Version,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed,
    /// Nothing was changed. What it has read was told all the same.
    Aborted,
    /// Nobody knows. What is recorded of it happened if it was committed.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// In the order in which they were made.
    pub operations: Vec<Operation>,
    pub outcome: Outcome,
    pub begun: Time,
    /// When its client was told; it counts only if it was committed.
    pub told: Time,
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub transactions: Vec<Transaction>,
    /// All versions of a key that were committed, in order: where they are written without being read.
    pub orders: BTreeMap<Key, Vec<Version>>,
}

/// Names of Adya's where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The history is none: a version is written twice, say.
    NoHistory,
    /// A version was read that nobody had written to that key.
    Unwritten,
    /// A transaction did not read what it had written, or the same row was another one the second time.
    Internal,
    /// What was read was never committed.
    G1a,
    /// What was read was overwritten by the same transaction.
    G1b,
    /// Two transactions have replaced the same version.
    LostUpdate,
    /// A cycle of writes.
    G0,
    /// A cycle of writes and of reads that saw them.
    G1c,
    /// A cycle in which one transaction did not see a row that another wrote: read skew.
    GSingle,
    /// Several did not see rows: write skew.
    G2Item,
    /// Some did not see rows that a range has: phantoms.
    G2,
    /// A row was not found, and neither of the moments when it did not exist agrees with the rest.
    Absent,
    /// It is serializable, but only in an order in which something happens before what was told already.
    RealTime,
}

/// What cannot have been so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{kind:?}: {what}")]
pub struct Anomaly {
    pub kind: Kind,
    pub what: String,
}

impl Anomaly {
    fn new(kind: Kind, what: impl fmt::Display) -> Anomaly {
        Anomaly { kind, what: what.to_string() }
    }
}

/// What the check had to go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Transactions that were committed, those included whose end nobody was told.
    pub committed: usize,
    pub edges: usize,
    /// Reads that found no row, of which several explanations are possible.
    pub ambiguous: usize,
}

impl History {
    /// # Errors
    /// What is wrong, the gravest first.
    pub fn check(&self) -> Result<Checked, Anomaly> {
        let mut graph = graph::Graph::new(self)?;
        let ambiguous = absent::resolve(&mut graph)?;
        cycle::search(&graph, self)?;
        Ok(Checked { committed: graph.committed(), edges: graph.edges.len(), ambiguous })
    }
}

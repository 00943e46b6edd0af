//! What a transaction's writes replaced, for those that may return to an earlier state.

use std::collections::BTreeMap;

use super::super::{FullKey, Row};
use super::Transaction;

/// A key, and what the transaction had written there before.
type Replaced = (FullKey, Option<Option<Row>>);

/// Since the first mark; none before.
#[derive(Default)]
pub(super) struct Undo(Option<Vec<Replaced>>);

/// What a transaction had written at some time. Two are the same if nothing was written in between.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    replaced: usize,
    written_bytes: usize,
}

impl Undo {
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, Vec::len)
    }

    pub(super) fn truncate(&mut self, len: usize) {
        if let Some(replaced) = &mut self.0 {
            replaced.truncate(len);
        }
    }

    /// `key` is to be written next.
    pub(super) fn before(&mut self, key: &FullKey, writes: &BTreeMap<FullKey, Option<Row>>) {
        if let Some(replaced) = &mut self.0 {
            replaced.push((key.clone(), writes.get(key).cloned()));
        }
    }
}

impl Transaction {
    /// From here on it can return to what it has written up to now.
    pub fn mark(&mut self) -> Mark {
        let replaced = self.undo.0.get_or_insert_default().len();
        Mark { replaced, written_bytes: self.written_bytes }
    }

    /// Undoes what was written since; later marks are void. What was read stays read: its client knows it.
    pub fn return_to(&mut self, mark: Mark) {
        let replaced = self.undo.0.iter_mut().flat_map(|replaced| replaced.drain(mark.replaced..).rev());
        for (key, before) in replaced {
            match before {
                Some(row) => self.writes.insert(key, row),
                None => self.writes.remove(&key),
            };
        }
        self.written_bytes = mark.written_bytes;
    }
}

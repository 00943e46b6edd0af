//! What a transaction's writes replaced, for those that may return to an earlier state.

use std::collections::BTreeMap;

use super::super::{FullKey, Row, StoreError, TRANSACTION_BYTES_MAX};
use super::Transaction;

/// What a mark counts as of the transaction, beside what its maker keeps with it. Bytes.
const MARK_BYTES: usize = 64;

/// A key, and what the transaction had written there before.
type Replaced = (FullKey, Option<Option<Row>>);

/// Since the first mark; none before.
#[derive(Default)]
pub(super) struct Undo(Option<Vec<Replaced>>);

/// What a transaction had written at some time.
#[derive(Clone, Copy)]
pub struct Mark {
    replaced: usize,
    /// With what the mark counts as.
    written_bytes: usize,
    own_bytes: usize,
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
    /// From here on it can return to what it has written up to now. The mark counts as written, with `bytes` that are kept
    /// for it elsewhere.
    ///
    /// # Errors
    /// If the transaction is too long.
    pub fn mark(&mut self, bytes: usize) -> Result<Mark, StoreError> {
        let own_bytes = bytes + MARK_BYTES;
        let written_bytes = self.written_bytes + own_bytes;
        if written_bytes > TRANSACTION_BYTES_MAX {
            return Err(StoreError::TransactionTooLong);
        }
        self.written_bytes = written_bytes;
        let replaced = self.undo.0.get_or_insert_default().len();
        Ok(Mark { replaced, written_bytes, own_bytes })
    }

    /// It is not returned to any more: it no longer counts.
    pub fn forget(&mut self, mark: Mark) {
        self.written_bytes -= mark.own_bytes;
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

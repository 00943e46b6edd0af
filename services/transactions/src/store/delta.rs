//! What was committed since the last checkpoint began.

use std::collections::BTreeMap;
use std::ops::Bound;

use kernel::Processor;

use super::spread::ENTRIES_A_SLICE;
use super::{FullKey, Row, Sequence};

/// What an entry takes in memory besides its key and row, in bytes. Calculated for glibc's heap from insertions into a map
/// of entries as long as these: 99 to 103 with short keys in any order, 121 to 125 in ascending order; 36 more with keys
/// that are not inline.
const ENTRY_BYTES: usize = 100;

pub(super) type Bounds<'a> = (Bound<&'a FullKey>, Bound<&'a FullKey>);

#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The commit that wrote it.
    pub at: Sequence,
    /// `None`: deleted.
    pub row: Option<Row>,
}

#[derive(Debug, Default)]
pub(super) struct Delta {
    entries: BTreeMap<FullKey, Entry>,
    bytes: usize,
}

impl Delta {
    pub(super) fn get(&self, key: &FullKey) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn insert(&mut self, key: FullKey, entry: Entry) {
        let row_bytes = |entry: &Entry| entry.row.as_ref().map_or(0, |row| row.len());
        let (key_bytes, new) = (key.len(), row_bytes(&entry));
        match self.entries.insert(key, entry) {
            Some(old) => self.bytes = self.bytes - row_bytes(&old) + new,
            None => self.bytes += ENTRY_BYTES + key_bytes + new,
        }
    }

    /// Drops it while other tasks run: to free hundreds of thousands of entries takes tens of milliseconds.
    pub(super) async fn drop_in_slices(self, cpu: &Processor) {
        let mut entries = self.entries.into_iter();
        while entries.by_ref().take(ENTRIES_A_SLICE).count() > 0 {
            cpu.yield_now().await;
        }
    }

    /// In memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&FullKey, &Entry)> {
        self.entries.iter()
    }

    pub(super) fn range(&self, range: Bounds<'_>) -> impl DoubleEndedIterator<Item = (&FullKey, &Entry)> {
        let nothing = FullKey::from([].as_slice());
        let range = if is_empty(range) { (Bound::Included(&nothing), Bound::Excluded(&nothing)) } else { range };
        self.entries.range::<FullKey, _>(range)
    }
}

/// Ranges that `BTreeMap::range` panics at have no element.
pub(super) fn is_empty(range: Bounds<'_>) -> bool {
    match range {
        (Bound::Excluded(from), Bound::Excluded(to) | Bound::Included(to)) => from >= to,
        (Bound::Included(from), Bound::Excluded(to)) => from >= to,
        (Bound::Included(from), Bound::Included(to)) => from > to,
        _ => false,
    }
}

//! Tables of typed keys and rows.

use core::marker::PhantomData;
use core::ops::{Bound, RangeBounds};

use alloc::vec::Vec;

use crate::codec::Bytes;
use crate::index::Maintained;
use crate::key::{Prefix, encoded};
use crate::sys::{self, Handle};
use crate::{Key, Row, abort};

/// A table: rows of the type `R`, in the order of their keys of the type `K`. It exists from the first row on. Other
/// programs of the database find it under the same name.
///
/// ```
/// use awase_program::Table;
///
/// static ACCOUNTS: Table<i64, i64> = Table::new("accounts");
/// ACCOUNTS.put(&7, &100);
/// assert_eq!(ACCOUNTS.get(&7), Some(100));
/// assert_eq!(ACCOUNTS.range(..).map(|(_, balance)| balance).sum::<i64>(), 100);
/// ```
pub struct Table<K: 'static, R: 'static> {
    handle: Handle,
    indexes: &'static [&'static dyn Maintained<K, R>],
    of: PhantomData<fn(K) -> R>,
}

impl<K: Key, R: Row> Table<K, R> {
    /// The table `name`: 1 to 64 bytes. Names that begin with `awase.` are the monitor's.
    ///
    /// ```compile_fail
    /// static OWN: awase_program::Table<i64, i64> = awase_program::Table::new("awase.own");
    /// ```
    ///
    /// # Panics
    /// If no table can have that name. Of a `static`, the compiler says so.
    pub const fn new(name: &'static str) -> Self {
        Table { handle: Handle::new(name), indexes: &[], of: PhantomData }
    }

    /// With indexes, which [`put`](Self::put) and [`delete`](Self::delete) keep in step.
    pub const fn with_indexes(self, indexes: &'static [&'static dyn Maintained<K, R>]) -> Self {
        Table { handle: self.handle, indexes, of: PhantomData }
    }

    /// The row of `key`.
    pub fn get(&self, key: &K) -> Option<R> {
        sys::get(&self.handle, &encoded(key), |row| self.decode_row(row))
    }

    /// Writes the row of `key`.
    pub fn put(&self, key: &K, row: &R) {
        if !self.indexes.is_empty() {
            let old = self.get(key);
            self.indexes.iter().for_each(|index| index.change(key, old.as_ref(), Some(row)));
        }
        let mut bytes = Vec::with_capacity(64);
        row.encode(&mut bytes);
        sys::put(&self.handle, &encoded(key), &bytes);
    }

    /// Deletes the row of `key`, if there is one.
    pub fn delete(&self, key: &K) {
        if !self.indexes.is_empty() {
            let old = self.get(key);
            self.indexes.iter().for_each(|index| index.change(key, old.as_ref(), None));
        }
        sys::delete(&self.handle, &encoded(key));
    }

    /// The rows whose keys are in `range`, in their order; from the end with [`rev`](Iterator::rev). What is written
    /// meanwhile is seen if it lies ahead.
    pub fn range(&self, range: impl RangeBounds<K>) -> Range<'_, K, R> {
        let bound = |bound: Bound<&K>| bound.map(encoded);
        Range::new(self, bound(range.start_bound()), bound(range.end_bound()))
    }

    /// The rows whose keys begin with `prefix`, as `(1,)` of keys `(1, 2)`.
    ///
    /// ```
    /// use awase_program::Table;
    ///
    /// static LINES: Table<(i64, i64), String> = Table::new("lines");
    /// LINES.put(&(1, 1), &"one".to_string());
    /// LINES.put(&(2, 1), &"two".to_string());
    /// assert_eq!(LINES.beginning_with(&(2,)).count(), 1);
    /// ```
    pub fn beginning_with<P: Prefix<K>>(&self, prefix: &P) -> Range<'_, K, R> {
        self.beginning(prefix)
    }

    pub(crate) fn beginning(&self, prefix: &impl Key) -> Range<'_, K, R> {
        let low = encoded(prefix);
        let high = successor(&low);
        Range::new(self, Bound::Included(low), high)
    }

    /// The rows whose keys begin with a prefix in `range`.
    pub(crate) fn within<P: Key>(&self, range: impl RangeBounds<P>) -> Range<'_, K, R> {
        // After a prefix come all keys that begin with it.
        let low = match range.start_bound().map(encoded) {
            Bound::Excluded(prefix) => match successor(&prefix) {
                Bound::Excluded(next) => Bound::Included(next),
                // No key is greater.
                _ => return Range::new(self, Bound::Excluded(Vec::new()), Bound::Excluded(Vec::new())),
            },
            low => low,
        };
        let high = match range.end_bound().map(encoded) {
            Bound::Included(prefix) => successor(&prefix),
            high => high,
        };
        Range::new(self, low, high)
    }

    fn decode_row(&self, row: &[u8]) -> R {
        let mut bytes = Bytes::new(row);
        match R::decode(&mut bytes) {
            Some(row) if bytes.is_empty() => row,
            _ => self.is_of_another_type("row"),
        }
    }

    fn decode_key(&self, key: &[u8]) -> K {
        let mut bytes = Bytes::new(key);
        match K::decode(&mut bytes) {
            Some(key) if bytes.is_empty() => key,
            _ => self.is_of_another_type("key"),
        }
    }

    fn is_of_another_type(&self, what: &str) -> ! {
        abort!("the table {} has a {what} of another type than this program's", self.handle.name())
    }
}

/// The first bytes that do not begin with `prefix`, and are greater.
fn successor(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut bytes = prefix.to_vec();
    while let Some(last) = bytes.pop() {
        if let Some(next) = last.checked_add(1) {
            bytes.push(next);
            return Bound::Excluded(bytes);
        }
    }
    Bound::Unbounded
}

/// Rows of a table, in the order of their keys.
pub struct Range<'a, K: 'static, R: 'static> {
    table: &'a Table<K, R>,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
}

impl<'a, K: Key, R: Row> Range<'a, K, R> {
    fn new(table: &'a Table<K, R>, low: Bound<Vec<u8>>, high: Bound<Vec<u8>>) -> Self {
        Range { table, low, high }
    }

    fn step(&mut self, backwards: bool) -> Option<(K, R)> {
        let low = self.low.as_ref().map(Vec::as_slice);
        let high = self.high.as_ref().map(Vec::as_slice);
        let table = self.table;
        let decode = |key: &[u8], row: &[u8]| (key.to_vec(), (table.decode_key(key), table.decode_row(row)));
        let (at, found) = sys::next(&table.handle, low, high, backwards, decode)?;
        *(if backwards { &mut self.high } else { &mut self.low }) = Bound::Excluded(at);
        Some(found)
    }
}

impl<K: Key, R: Row> Iterator for Range<'_, K, R> {
    type Item = (K, R);

    fn next(&mut self) -> Option<(K, R)> {
        self.step(false)
    }
}

impl<K: Key, R: Row> DoubleEndedIterator for Range<'_, K, R> {
    fn next_back(&mut self) -> Option<(K, R)> {
        self.step(true)
    }
}

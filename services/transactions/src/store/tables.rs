//! Tables by name: those of the catalog, and names that were asked for and have no row yet. Of the latter the oldest is
//! forgotten when there are too many: nobody can use up the places of others by asking.

use std::collections::{BTreeMap, BTreeSet};

use super::{CATALOG, FullKey, Row, StoreError, TABLE_NAME_BYTES_MAX, TABLES_MAX, TableNo};

/// Names without a row, at most.
const UNSTORED_MAX: usize = 1024;

/// A table that was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundTable {
    pub no: TableNo,
    /// It is in the catalog: this is its number for good.
    pub is_stored: bool,
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    numbers: BTreeMap<String, TableNo>,
    /// Those that are not in the catalog yet.
    unstored: BTreeMap<TableNo, String>,
    /// The number given last. One of a forgotten name is not given again before all others were.
    last: TableNo,
}

impl Tables {
    /// Those of the catalog.
    pub(super) fn new(numbers: BTreeMap<String, TableNo>) -> Tables {
        let last = numbers.values().max().copied().unwrap_or(CATALOG);
        Tables { numbers, last, ..Tables::default() }
    }

    /// The table of that name, if it has a number.
    pub(super) fn get(&self, name: &str) -> Option<FoundTable> {
        let found = |no: &TableNo| FoundTable { no: *no, is_stored: !self.unstored.contains_key(no) };
        self.numbers.get(name).map(found)
    }

    /// The table of that name; it is in the catalog from its first row on.
    pub(super) fn find(&mut self, name: &str) -> Result<FoundTable, StoreError> {
        if name.is_empty() || name.len() > TABLE_NAME_BYTES_MAX {
            return Err(StoreError::TableName);
        }
        if let Some(found) = self.get(name) {
            return Ok(found);
        }
        self.check_room(1)?;
        let no = self.next_number();
        if self.unstored.len() == UNSTORED_MAX
            && let Some((_, forgotten)) = self.unstored.pop_first()
        {
            self.numbers.remove(&forgotten);
        }
        self.last = no;
        self.numbers.insert(name.to_owned(), no);
        self.unstored.insert(no, name.to_owned());
        Ok(FoundTable { no, is_stored: false })
    }

    /// The next number that no table has; not the last of all, since keys of a table end where those of the next begin.
    fn next_number(&self) -> TableNo {
        let mut no = self.last;
        loop {
            no = TableNo(no.0 % (u32::MAX - 1) + 1);
            if self.numbers.values().all(|known| *known != no) {
                return no;
            }
        }
    }

    fn check_room(&self, more: usize) -> Result<(), StoreError> {
        let stored = self.numbers.len() - self.unstored.len();
        if stored + more > TABLES_MAX { Err(StoreError::TooManyTables) } else { Ok(()) }
    }

    /// Whether one of these, which had no row when they were looked up, was forgotten since: its name may have another
    /// number now.
    pub(super) fn have_forgotten(&self, used: &BTreeSet<TableNo>) -> bool {
        let is_there = |no: &TableNo| self.unstored.contains_key(no) || self.numbers.values().any(|known| known == no);
        !used.iter().all(is_there)
    }

    /// Tables that are written for the first time enter the catalog. `unstored`: those that had no row when they were
    /// looked up.
    pub(super) fn store(
        &mut self,
        unstored: &BTreeSet<TableNo>,
        writes: &mut BTreeMap<FullKey, Option<Row>>,
    ) -> Result<(), StoreError> {
        let is_written = |no: &&TableNo| {
            writes.range(FullKey::new(**no, &[])..FullKey::new(TableNo(no.0 + 1), &[])).next().is_some()
        };
        let new: Vec<TableNo> =
            unstored.iter().filter(|no| self.unstored.contains_key(no)).filter(is_written).copied().collect();
        self.check_room(new.len())?;
        for no in new {
            if let Some(name) = self.unstored.remove(&no) {
                writes.insert(FullKey::new(CATALOG, name.as_bytes()), Some(Row::from(no.0.to_le_bytes().as_slice())));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_again_after_all_others_but_not_those_in_use() -> Result<(), StoreError> {
        let stored = [("first", 1), ("last", u32::MAX - 1)].map(|(name, no)| (name.to_owned(), TableNo(no)));
        let mut tables = Tables::new(stored.into());
        for no in [2, 3] {
            let found = tables.find(&format!("new {no}"))?;
            assert_eq!(found, FoundTable { no: TableNo(no), is_stored: false });
        }
        Ok(())
    }
}

//! What is recorded of pages, by page number.

use std::collections::{BTreeMap, BTreeSet, btree_map};

use super::PageNo;

/// A record that may wait for an answer.
pub(super) trait Record {
    fn is_quiet(&self) -> bool;
}

/// Records by page. Those that wait are listed, so that a tick visits only them.
#[derive(Clone, Debug)]
pub(super) struct Table<T> {
    records: BTreeMap<PageNo, T>,
    waiting: BTreeSet<PageNo>,
}

impl<T: Record> Table<T> {
    pub(super) fn new(records: impl IntoIterator<Item = (PageNo, T)>) -> Self {
        Table { records: records.into_iter().collect(), waiting: BTreeSet::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn get(&self, page: PageNo) -> Option<&T> {
        self.records.get(&page)
    }

    pub(super) fn iter(&self) -> btree_map::Values<'_, PageNo, T> {
        self.records.values()
    }

    pub(super) fn from(&self, page: PageNo) -> impl Iterator<Item = (PageNo, &T)> {
        self.records.range(page..).map(|(page, record)| (*page, record))
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Changes the record of a page, which begins as `new`; removes it if `is_idle` then.
    pub(super) fn change<R>(
        &mut self,
        page: PageNo,
        new: impl FnOnce() -> T,
        change: impl FnOnce(&mut T) -> R,
        is_idle: impl FnOnce(&T) -> bool,
    ) -> R {
        let record = self.records.entry(page).or_insert_with(new);
        let result = change(record);
        let (is_quiet, is_idle) = (record.is_quiet(), is_idle(record));
        if is_idle {
            self.records.remove(&page);
        }
        if is_quiet || is_idle {
            self.waiting.remove(&page);
        } else {
            self.waiting.insert(page);
        }
        result
    }

    /// Changes all records that wait.
    pub(super) fn for_waiting(&mut self, mut change: impl FnMut(&mut T)) {
        for page in &self.waiting {
            self.records.get_mut(page).into_iter().for_each(&mut change);
        }
    }

    /// Changes all records; removes those that `is_idle` then.
    pub(super) fn for_all(&mut self, mut change: impl FnMut(PageNo, &mut T), is_idle: impl Fn(&T) -> bool) {
        self.records.iter_mut().for_each(|(page, record)| change(*page, record));
        self.records.retain(|_, record| !is_idle(record));
        self.waiting = self.records.iter().filter(|(_, record)| !record.is_quiet()).map(|(page, _)| *page).collect();
    }
}

impl<'a, T> IntoIterator for &'a Table<T> {
    type Item = &'a T;
    type IntoIter = btree_map::Values<'a, PageNo, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.records.values()
    }
}

//! What is recorded of pages, by page number.
//!
//! A record lives as long as its page is held, so its size counts for each page that is shared. Records are in sorted
//! vectors of up to 64 pages, with a bit for each page that has one. Rejected: a `BTreeMap` by page, which is half empty
//! when pages come in ascending order, and has the numbers once more.

use std::collections::{BTreeMap, btree_map};
use std::iter::FlatMap;
use std::ops::Range;
use std::slice;

use super::PageNo;
use super::pages::{PageSet, place, within_words, word};

/// A record that may wait for an answer.
pub(super) trait Record {
    fn page(&self) -> PageNo;
    fn is_quiet(&self) -> bool;
}

/// Records by page. Those that wait are listed, so that a tick visits only them.
#[derive(Clone, Debug)]
pub(super) struct Table<T> {
    chunks: BTreeMap<u64, Chunk<T>>,
    len: usize,
    waiting: PageSet,
}

#[derive(Clone, Debug)]
pub(super) struct Chunk<T> {
    /// A bit for each page that has a record.
    present: u64,
    /// In order of page.
    records: Vec<T>,
}

pub(super) type Iter<'a, T> =
    FlatMap<btree_map::Values<'a, u64, Chunk<T>>, slice::Iter<'a, T>, fn(&'a Chunk<T>) -> slice::Iter<'a, T>>;

impl<T: Record> Chunk<T> {
    fn index(&self, page: PageNo) -> Result<usize, usize> {
        let bit = place(page);
        let index = (self.present & (bit - 1)).count_ones() as usize;
        if self.present & bit != 0 { Ok(index) } else { Err(index) }
    }

    fn get(&self, page: PageNo) -> Option<&T> {
        self.index(page).ok().and_then(|index| self.records.get(index))
    }

    /// The index of the record of a page, which begins as `new`.
    fn entry(&mut self, page: PageNo, new: impl FnOnce() -> T) -> usize {
        match self.index(page) {
            Ok(index) => index,
            Err(index) => {
                if self.records.len() == self.records.capacity() {
                    // A vector by itself would take twice as much, also for the last few.
                    self.records.reserve_exact(self.records.len().clamp(1, 8));
                }
                self.records.insert(index, new());
                self.present |= place(page);
                index
            }
        }
    }

    fn remove(&mut self, page: PageNo) {
        if let Ok(index) = self.index(page) {
            self.records.remove(index);
            self.present &= !place(page);
            if self.records.capacity() > 2 * self.records.len() + 8 {
                self.records.shrink_to_fit();
            }
        }
    }
}

impl<T: Record> Table<T> {
    pub(super) fn new(records: impl IntoIterator<Item = T>) -> Self {
        let mut table = Table { chunks: BTreeMap::new(), len: 0, waiting: PageSet::default() };
        for record in records {
            table.change(record.page(), || record, |_| (), |_| false);
        }
        table
    }

    /// Memory of the records and of what finds them, with nodes of the tree half full; without what they own.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let records: usize = self.chunks.values().map(|chunk| chunk.records.capacity() * size_of::<T>()).sum();
        records + self.chunks.len() * 2 * (size_of::<u64>() + size_of::<Chunk<T>>())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, page: PageNo) -> Option<&T> {
        self.chunks.get(&word(page)).and_then(|chunk| chunk.get(page))
    }

    pub(super) fn iter(&self) -> Iter<'_, T> {
        self.chunks.values().flat_map(|chunk| chunk.records.iter())
    }

    pub(super) fn from(&self, page: PageNo) -> impl Iterator<Item = (PageNo, &T)> {
        let records = self.chunks.range(word(page)..).flat_map(|(_, chunk)| &chunk.records);
        records.map(|record| (record.page(), record)).skip_while(move |(other, _)| *other < page)
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
        let chunk = self.chunks.entry(word(page)).or_insert_with(|| Chunk { present: 0, records: Vec::new() });
        let before = chunk.records.len();
        let index = chunk.entry(page, new);
        self.len += chunk.records.len() - before;
        let record = &mut chunk.records[index];
        let result = change(record);
        let (is_quiet, is_idle) = (record.is_quiet(), is_idle(record));
        if is_idle {
            chunk.remove(page);
            self.len -= 1;
            if chunk.records.is_empty() {
                self.chunks.remove(&word(page));
            }
        }
        if is_quiet || is_idle {
            self.waiting.remove(page);
        } else {
            self.waiting.insert(page);
        }
        result
    }

    /// Does this hold for each page of a run, with its record if it has one?
    pub(super) fn all(&self, pages: Range<PageNo>, mut is: impl FnMut(PageNo, Option<&T>) -> bool) -> bool {
        within_words(pages).all(|(word, range)| {
            let chunk = self.chunks.get(&word);
            range.map(PageNo).all(|page| is(page, chunk.and_then(|chunk| chunk.get(page))))
        })
    }

    /// Changes the record of each page of a run, which begins as `new`; none is to be removed then.
    pub(super) fn change_run(
        &mut self,
        pages: Range<PageNo>,
        new: impl Fn(PageNo) -> T,
        mut change: impl FnMut(PageNo, &mut T),
    ) {
        for (word, range) in within_words(pages) {
            let chunk = self.chunks.entry(word).or_insert_with(|| Chunk { present: 0, records: Vec::new() });
            let (all, mut waiting) = (range.clone().fold(0, |bits, page| bits | place(PageNo(page))), 0);
            let missing = (all & !chunk.present).count_ones() as usize;
            chunk.records.reserve_exact(missing);
            self.len += missing;
            for page in range.map(PageNo) {
                let index = chunk.entry(page, || new(page));
                let record = &mut chunk.records[index];
                change(page, record);
                waiting |= if record.is_quiet() { 0 } else { place(page) };
            }
            self.waiting.set_bits(word, all, waiting);
        }
    }

    /// Records that wait, in order of page: those from `page` on, then those before it.
    pub(super) fn waiting_from(&self, page: PageNo) -> impl Iterator<Item = &T> {
        let before = self.waiting.within(PageNo(0)..page);
        let behind = self.waiting.within(page..PageNo(u64::MAX));
        behind.chain(before).filter_map(|page| self.get(page))
    }

    /// Changes all records that wait.
    pub(super) fn for_waiting(&mut self, mut change: impl FnMut(&mut T)) {
        for page in self.waiting.iter() {
            let Some(chunk) = self.chunks.get_mut(&word(page)) else { continue };
            if let Ok(index) = chunk.index(page) {
                change(&mut chunk.records[index]);
            }
        }
    }

    /// Changes all records; removes those that `is_idle` then.
    pub(super) fn for_all(&mut self, mut change: impl FnMut(PageNo, &mut T), is_idle: impl Fn(&T) -> bool) {
        self.waiting = PageSet::default();
        self.len = 0;
        for chunk in self.chunks.values_mut() {
            chunk.records.iter_mut().for_each(|record| change(record.page(), record));
            chunk.records.retain(|record| !is_idle(record));
            chunk.present = chunk.records.iter().fold(0, |present, record| present | place(record.page()));
            self.len += chunk.records.len();
            let waiting = chunk.records.iter().filter(|record| !record.is_quiet());
            waiting.for_each(|record| self.waiting.insert(record.page()));
        }
        self.chunks.retain(|_, chunk| !chunk.records.is_empty());
    }
}

impl<'a, T: Record> IntoIterator for &'a Table<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Number(PageNo, u8);

    impl Record for Number {
        fn page(&self) -> PageNo {
            self.0
        }

        /// Odd numbers wait.
        fn is_quiet(&self) -> bool {
            self.1.is_multiple_of(2)
        }
    }

    proptest! {
        #[test]
        fn a_run_is_changed_as_its_pages_one_by_one(
            runs in proptest::collection::vec((0..200_u64, 0..100_u64, 1..5_u8), 0..20),
        ) {
            let [mut table, mut single]: [Table<Number>; 2] = [Table::new([]), Table::new([])];
            for (first, len, number) in runs {
                let pages = PageNo(first)..PageNo(first + len);
                let is_odd = |_, record: Option<&Number>| record.is_none_or(|record| record.1 % 2 == 1);
                let odd = (first..first + len).all(|page| is_odd(PageNo(page), single.get(PageNo(page))));
                prop_assert_eq!(table.all(pages.clone(), is_odd), odd);
                table.change_run(pages, |page| Number(page, 0), |page, record| {
                    assert_eq!(page, record.0);
                    record.1 += number;
                });
                for page in (first..first + len).map(PageNo) {
                    single.change(page, || Number(page, 0), |record| record.1 += number, |_| false);
                }
                prop_assert!(table.iter().eq(single.iter()));
                prop_assert_eq!((table.len(), table.is_quiet()), (single.len(), single.is_quiet()));
                prop_assert!(table.waiting_from(PageNo(0)).eq(single.waiting_from(PageNo(0))));
            }
        }

        #[test]
        fn a_table_is_a_map_by_page(changes in proptest::collection::vec((0..200_u64, 0..5_u8, 0..20_u8), 1..300)) {
            let mut table: Table<Number> = Table::new([]);
            let mut model: BTreeMap<u64, u8> = BTreeMap::new();
            for (page, number, choice) in changes {
                if choice == 0 {
                    table.for_all(|_, record| record.1 /= 2, |record| record.1 == 0);
                    model.values_mut().for_each(|number| *number /= 2);
                    model.retain(|_, number| *number > 0);
                } else {
                    let before = table.change(
                        PageNo(page),
                        || Number(PageNo(page), 0),
                        |record| std::mem::replace(&mut record.1, number),
                        |record| record.1 == 0,
                    );
                    prop_assert_eq!(before, model.insert(page, number).unwrap_or(0));
                    model.retain(|_, number| *number > 0);
                }
                let all: Vec<(u64, u8)> = table.iter().map(|record| (record.0.0, record.1)).collect();
                let expected: Vec<(u64, u8)> = model.iter().map(|(page, number)| (*page, *number)).collect();
                prop_assert_eq!(&all, &expected);
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.get(PageNo(page)).map(|record| record.1), model.get(&page).copied());
                let from: Vec<u64> = table.from(PageNo(page)).map(|(page, _)| page.0).collect();
                prop_assert_eq!(from, model.range(page..).map(|(page, _)| *page).collect::<Vec<_>>());
                let mut waiting = Vec::new();
                table.for_waiting(|record| waiting.push((record.0.0, record.1)));
                let is_odd = |(_, number): &(u64, u8)| number % 2 == 1;
                prop_assert_eq!(waiting, expected.into_iter().filter(is_odd).collect::<Vec<_>>());
                let from: Vec<u64> = table.waiting_from(PageNo(page)).map(|record| record.0.0).collect();
                let odd = model.range(page..).chain(model.range(..page)).filter(|(_, number)| *number % 2 == 1);
                prop_assert_eq!(from, odd.map(|(page, _)| *page).collect::<Vec<_>>());
            }
        }
    }
}

//! What is under way, by page. Pages are busy for short times, and mostly beside their neighbours: so 64 of them are found
//! together, and the record of one that is not busy any more is the next one's, with the memory that it has. Rejected: a
//! `BTreeMap` of the records themselves, which moved several kilobytes for each page that came or went.

use std::collections::BTreeMap;
use std::ops::Range;

use policy::coherence::PageNo;

use crate::waiting::Page;

/// Pages found together.
const TOGETHER: usize = 64;

/// Unused records and places that are kept.
const SPARE_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Pages {
    places: BTreeMap<u64, Box<Places>>,
    #[expect(clippy::vec_box, reason = "they go to their places, and come from there")]
    spare: Vec<Box<Page>>,
    #[expect(clippy::vec_box, reason = "as above")]
    spare_places: Vec<Box<Places>>,
}

struct Places {
    pages: [Option<Box<Page>>; TOGETHER],
    len: usize,
}

impl Default for Places {
    fn default() -> Self {
        Places { pages: [const { None }; TOGETHER], len: 0 }
    }
}

/// Where a page is found.
fn place(page: PageNo) -> (u64, usize) {
    (page.0 / TOGETHER as u64, (page.0 % TOGETHER as u64) as usize)
}

fn page(number: u64, at: usize) -> PageNo {
    PageNo(number * TOGETHER as u64 + at as u64)
}

impl Pages {
    pub(crate) fn get(&self, page: PageNo) -> Option<&Page> {
        let (number, at) = place(page);
        self.places.get(&number)?.pages[at].as_deref()
    }

    pub(crate) fn get_mut(&mut self, page: PageNo) -> Option<&mut Page> {
        let (number, at) = place(page);
        self.places.get_mut(&number)?.pages[at].as_deref_mut()
    }

    pub(crate) fn contains(&self, page: PageNo) -> bool {
        self.get(page).is_some()
    }

    /// The record of a page, which begins idle.
    pub(crate) fn entry(&mut self, page: PageNo) -> &mut Page {
        let (number, at) = place(page);
        let places = self.places.entry(number).or_insert_with(|| self.spare_places.pop().unwrap_or_default());
        let Places { pages, len } = &mut **places;
        pages[at].get_or_insert_with(|| {
            *len += 1;
            self.spare.pop().unwrap_or_default()
        })
    }

    /// Forgets a page that is idle.
    pub(crate) fn remove(&mut self, page: PageNo) {
        let (number, at) = place(page);
        let Some(places) = self.places.get_mut(&number) else { return };
        let Some(record) = places.pages[at].take_if(|record| record.is_idle()) else { return };
        places.len -= 1;
        if self.spare.len() < SPARE_MAX && record.is_small() {
            self.spare.push(record);
        }
        if places.len == 0
            && let Some(places) = self.places.remove(&number)
            && self.spare_places.len() < SPARE_MAX / TOGETHER
        {
            self.spare_places.push(places);
        }
    }

    /// In order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PageNo, &Page)> {
        self.places.iter().flat_map(|(number, places)| {
            let pages = places.pages.iter().enumerate();
            pages.filter_map(|(at, record)| Some((page(*number, at), record.as_deref()?)))
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PageNo, &mut Page)> {
        self.places.iter_mut().flat_map(|(number, places)| {
            let pages = places.pages.iter_mut().enumerate();
            pages.filter_map(|(at, record)| Some((page(*number, at), record.as_deref_mut()?)))
        })
    }

    /// Those among these, in order.
    pub(crate) fn within(&self, pages: Range<PageNo>) -> impl Iterator<Item = (PageNo, &Page)> {
        let range = place(pages.start).0..=place(pages.end).0;
        let records = self.places.range(range).flat_map(|(number, places)| {
            let pages = places.pages.iter().enumerate();
            pages.filter_map(|(at, record)| Some((page(*number, at), record.as_deref()?)))
        });
        records.filter(move |(page, _)| pages.contains(page))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pages_are_found_from_their_first_use_until_they_are_removed(
            changes in proptest::collection::vec((0..300_u64, any::<bool>()), 0..300),
            (from, count) in (0..300_u64, 0..200_u64),
        ) {
            let (mut pages, mut model) = (Pages::default(), BTreeSet::new());
            for (number, is_busy) in changes {
                let page = PageNo(number);
                if is_busy {
                    prop_assert!(model.contains(&page) || pages.entry(page).is_idle());
                    pages.entry(page).is_timed = true;
                    model.insert(page);
                } else {
                    pages.remove(page);
                    prop_assert_eq!(pages.contains(page), model.contains(&page), "it is busy");
                    pages.entry(page).is_timed = false;
                    pages.remove(page);
                    model.remove(&page);
                }
                prop_assert_eq!(pages.contains(page), model.contains(&page));
                prop_assert_eq!(pages.get_mut(page).is_some(), model.contains(&page));
            }
            prop_assert!(pages.iter().map(|(page, _)| page).eq(model.iter().copied()));
            prop_assert!(pages.iter_mut().map(|(page, _)| page).eq(model.iter().copied()));
            let range = PageNo(from)..PageNo(from + count);
            prop_assert!(pages.within(range.clone()).map(|(page, _)| page).eq(model.range(range).copied()));
        }
    }
}

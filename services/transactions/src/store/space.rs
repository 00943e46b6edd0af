//! Which pages are in use.

use super::bytes::{put, u32_at, u64_at};
use super::layout::{Layout, MAP_HEADER_BYTES, PAGE_BYTES, PageNo};
use super::pages::RUN_PAGES_MAX;

/// Of the map.
const WORDS_A_PAGE: usize = (PAGE_BYTES - MAP_HEADER_BYTES) / 8;

/// Pages of the map that are copied, or made and written, at a time: that of a large volume has thousands.
pub(super) const MAP_PAGES_A_SLICE: usize = RUN_PAGES_MAX;

/// A bit for each page of the volume.
#[derive(Debug)]
pub(super) struct Space {
    layout: Layout,
    used: Vec<u64>,
    free: u64,
    /// Where the next search begins: pages that are written together lie together.
    next: u64,
}

impl Space {
    /// Nothing is in use but what has a fixed place.
    pub(super) fn new(layout: Layout) -> Self {
        let first = layout.first().0;
        let mut space =
            Space { layout, used: vec![0; layout.pages.div_ceil(64) as usize], free: layout.pages, next: first };
        (0..first).for_each(|page| space.set(PageNo(page), true));
        space
    }

    fn word(page: PageNo) -> (usize, u64) {
        ((page.0 / 64) as usize, 1 << (page.0 % 64))
    }

    fn set(&mut self, page: PageNo, is_used: bool) {
        let (word, bit) = Space::word(page);
        let was_used = self.used[word] & bit != 0;
        if was_used != is_used {
            self.used[word] ^= bit;
            self.free = if is_used { self.free - 1 } else { self.free + 1 };
        }
    }

    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Pages of the tree.
    pub(super) fn used(&self) -> u64 {
        self.layout.pages - self.layout.first().0 - self.free
    }

    pub(super) fn allocate(&mut self) -> Option<PageNo> {
        if self.free == 0 {
            return None;
        }
        let (first, pages) = (self.layout.first().0, self.layout.pages);
        let found = self.first_free(self.next, pages).or_else(|| self.first_free(first, self.next))?;
        self.set(found, true);
        self.next = if found.0 + 1 < pages { found.0 + 1 } else { first };
        Some(found)
    }

    fn first_free(&self, from: u64, to: u64) -> Option<PageNo> {
        let mut page = from;
        while page < to {
            let (word, _) = Space::word(PageNo(page));
            let bits = 64 - page % 64;
            let used = u64::from((self.used[word] >> (page % 64)).trailing_ones());
            if used < bits {
                return Some(PageNo(page + used)).filter(|found| found.0 < to);
            }
            page += bits;
        }
        None
    }

    pub(super) fn release(&mut self, page: PageNo) {
        self.set(page, false);
    }

    /// Takes over a page of the map, which may be large: there is only one copy of it. `false`: it is damaged.
    pub(super) fn decode(&mut self, index: u64, identity: u64, generation: u64, page: &[u8]) -> bool {
        let is_right = u32_at(page, 0) == crc32fast::hash(&page[8..])
            && [u64_at(page, 8), u64_at(page, 16), u64_at(page, 24)] == [identity, generation, index];
        if !is_right {
            return false;
        }
        let words = self.used.iter_mut().skip(index as usize * WORDS_A_PAGE);
        for (word, bytes) in words.zip(page[MAP_HEADER_BYTES..].chunks_exact(8)) {
            let decoded = u64_at(bytes, 0);
            let free = self.free + u64::from(word.count_ones());
            let Some(free) = free.checked_sub(u64::from(decoded.count_ones())) else { return false };
            (*word, self.free) = (decoded, free);
        }
        true
    }
}

/// A copy of the map, as a checkpoint writes it. Each step of its making is a slice.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Map(Vec<u64>);

impl Map {
    /// Copies some more pages; false: it has all of them.
    pub(super) fn copy(&mut self, from: &Space) -> bool {
        let rest = &from.used[self.0.len()..];
        self.0.extend_from_slice(&rest[..rest.len().min(MAP_PAGES_A_SLICE * WORDS_A_PAGE)]);
        self.0.len() < from.used.len()
    }

    pub(super) fn release(&mut self, page: PageNo) {
        let (word, bit) = Space::word(page);
        self.0[word] &= !bit;
    }

    /// Some pages of it from `first` on, as of `generation`; nothing behind the last.
    pub(super) fn encode(&self, first: usize, identity: u64, generation: u64) -> Vec<u8> {
        let words = self.0.chunks(WORDS_A_PAGE).enumerate().skip(first).take(MAP_PAGES_A_SLICE);
        let mut pages = vec![0; words.len() * PAGE_BYTES];
        for ((index, words), page) in words.zip(pages.chunks_exact_mut(PAGE_BYTES)) {
            put(page, 8, &identity.to_le_bytes());
            put(page, 16, &generation.to_le_bytes());
            put(page, 24, &(index as u64).to_le_bytes());
            for (word, place) in words.iter().zip(page[MAP_HEADER_BYTES..].chunks_exact_mut(8)) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            let checksum = crc32fast::hash(&page[8..]);
            put(page, 0, &checksum.to_le_bytes());
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_found_once_and_those_that_are_released_then_again() {
        let layout = Layout::new(2048 + 100);
        let mut space = Space::new(layout);
        let all: Vec<u64> = (layout.first().0..layout.pages).collect();
        let allocated =
            |space: &mut Space| std::iter::from_fn(|| space.allocate()).map(|page| page.0).collect::<Vec<_>>();
        assert_eq!(allocated(&mut space), all);
        for step in [1, 3, 63, 64, 65, 200] {
            let released: Vec<u64> = all.iter().copied().step_by(step).collect();
            // One behind the other: a search begins where the last one ended.
            let (before, behind) = released.split_at(released.len() / 2);
            for page in behind.iter().chain(before) {
                space.release(PageNo(*page));
                assert_eq!(allocated(&mut space), [*page]);
            }
            released.iter().for_each(|page| space.release(PageNo(*page)));
            assert_eq!(space.free(), released.len() as u64);
            let mut found = allocated(&mut space);
            found.sort_unstable();
            assert_eq!(found, released);
        }
    }

    #[test]
    fn a_map_of_several_slices_is_as_what_it_was_copied_from_without_what_is_released() {
        let layout = Layout::new((MAP_PAGES_A_SLICE * WORDS_A_PAGE * 64 + 1000) as u64);
        let mut space = Space::new(layout);
        let released: Vec<PageNo> = (0..3000).filter_map(|_| space.allocate()).skip(1).step_by(2).collect();
        space.set(PageNo(layout.pages - 1), true);
        let mut map = Map::default();
        while map.copy(&space) {}
        released.iter().for_each(|page| map.release(*page));
        let mut decoded = Space::new(layout);
        let mut pages = 0;
        while pages < layout.map_pages() {
            for page in map.encode(pages as usize, 7, 8).chunks(PAGE_BYTES) {
                assert!(!decoded.decode(pages + 1, 7, 8, page) && decoded.decode(pages, 7, 8, page));
                pages += 1;
            }
        }
        released.iter().for_each(|page| space.release(*page));
        assert_eq!((decoded.used, decoded.free), (space.used, space.free));
    }
}

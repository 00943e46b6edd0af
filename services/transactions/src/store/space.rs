//! Which pages are in use.

use super::bytes::{put, u32_at, u64_at};
use super::layout::{Layout, MAP_HEADER_BYTES, PAGE_BYTES, PageNo};

/// A bit for each page of the volume.
#[derive(Clone, Debug)]
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
        let is_free = |page: &u64| {
            let (word, bit) = Space::word(PageNo(*page));
            self.used[word] & bit == 0
        };
        let found = (self.next..pages).chain(first..self.next).find(is_free).map(PageNo)?;
        self.set(found, true);
        self.next = if found.0 + 1 < pages { found.0 + 1 } else { first };
        Some(found)
    }

    pub(super) fn release(&mut self, page: PageNo) {
        self.set(page, false);
    }

    /// The pages of the map, as of `generation`.
    pub(super) fn encode(&self, identity: u64, generation: u64) -> Vec<Vec<u8>> {
        let bytes: Vec<u8> = self.used.iter().flat_map(|word| word.to_le_bytes()).collect();
        let pieces = bytes.chunks(PAGE_BYTES - MAP_HEADER_BYTES).enumerate();
        let mut pages: Vec<Vec<u8>> = pieces
            .map(|(index, piece)| {
                let mut page = vec![0; PAGE_BYTES];
                put(&mut page, 8, &identity.to_le_bytes());
                put(&mut page, 16, &generation.to_le_bytes());
                put(&mut page, 24, &(index as u64).to_le_bytes());
                put(&mut page, MAP_HEADER_BYTES, piece);
                page
            })
            .collect();
        for page in &mut pages {
            let checksum = crc32fast::hash(&page[8..]);
            put(page, 0, &checksum.to_le_bytes());
        }
        pages
    }

    /// `None`: damaged.
    pub(super) fn decode(layout: Layout, identity: u64, generation: u64, pages: &[Vec<u8>]) -> Option<Space> {
        let mut bytes = Vec::new();
        for (index, page) in pages.iter().enumerate() {
            let is_right = u32_at(page, 0) == crc32fast::hash(&page[8..])
                && [u64_at(page, 8), u64_at(page, 16), u64_at(page, 24)] == [identity, generation, index as u64];
            if !is_right {
                return None;
            }
            bytes.extend_from_slice(&page[MAP_HEADER_BYTES..]);
        }
        let mut space = Space::new(layout);
        let words = layout.pages.div_ceil(64) as usize;
        space.used = (0..words).map(|word| u64_at(&bytes, 8 * word)).collect();
        let used: u64 = space.used.iter().map(|word| u64::from(word.count_ones())).sum();
        space.free = layout.pages.checked_sub(used)?;
        Some(space)
    }
}

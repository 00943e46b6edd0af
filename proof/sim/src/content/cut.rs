//! Truncation of a content that grows and shrinks, and the effect of one that is not durable yet on other changes.

use super::super::change::{Change, PAGE_BYTES, Payload, Version, put};
use super::Content;

impl Content {
    /// Numbers a change that touches no bytes.
    pub(crate) fn number_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// The latest change that is partly considered written to the medium without a flush.
    pub(crate) fn latest_spilled(&self) -> u64 {
        self.spilled
    }

    /// Makes everything from `at` on read as zeroes. Not durable. Returns the number of this change.
    ///
    /// The cost depends on what is stored, not on the length.
    pub(crate) fn cut(&mut self, at: u64) -> u64 {
        let number = self.number_change();
        let edge = at.next_multiple_of(self.sector_bytes);
        let page = at / PAGE_BYTES;
        let is_stored = self.live.contains_key(&page) || self.cached.contains_key(&page);
        let tail = Change { at, len: edge - at, payload: Payload::Zeroes };
        if let Some(sector) = self.widen(&tail).filter(|_| is_stored) {
            let sectors = self.sectors_of(page, &sector);
            let version = Version { change: number, sectors, at: sector.at, payload: sector.payload };
            self.note_unstable(page, &version);
            self.put_live(page, &version);
        }
        for page in self.stored_from(edge / PAGE_BYTES) {
            let sectors = self.sectors_from(page, edge);
            let version = Version { change: number, sectors, at: 0, payload: Payload::Hole };
            self.note_unstable(page, &version);
            self.put_live(page, &version);
        }
        number
    }

    /// Makes the change with this number durable, without earlier ones that it does not replace.
    pub(crate) fn settle(&mut self, number: u64) {
        let sector_bytes = self.sector_bytes;
        self.cached.retain(|&page, cached| {
            // A truncation that touches a sector partly and others completely has two versions in one page.
            while let Some(i) = cached.versions.iter().position(|version| version.change == number) {
                let version = cached.versions.remove(i);
                put(&mut cached.durable, page, &version, version.sectors, sector_bytes);
                cached.dropped &= !version.sectors;
                for older in &mut cached.versions[..i] {
                    older.sectors &= !version.sectors;
                }
            }
            cached.versions.retain(|version| version.sectors != 0);
            !cached.versions.is_empty() || cached.dropped != 0
        });
    }

    /// A truncation at `at` never reached the medium, so neither did any change from its `number` on of what it cut
    /// off. Only valid right before a power cut: reads are not affected.
    pub(crate) fn forget(&mut self, number: u64, at: u64) {
        let edge = at - at % self.sector_bytes;
        for page in self.stored_from(edge / PAGE_BYTES) {
            let beyond = self.sectors_from(page, edge);
            let Some(cached) = self.cached.get_mut(&page) else {
                continue;
            };
            for version in cached.versions.iter_mut().filter(|version| version.change >= number) {
                version.sectors &= !beyond;
            }
            cached.versions.retain(|version| version.sectors != 0);
        }
    }

    fn stored_from(&self, first: u64) -> Vec<u64> {
        let cached = self.cached.range(first..).map(|(&page, _)| page);
        let mut pages: Vec<u64> = self.live.range(first..).map(|(&page, _)| page).chain(cached).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// The sectors of `page` from `edge` on, a sector boundary.
    fn sectors_from(&self, page: u64, edge: u64) -> u8 {
        let below = edge.saturating_sub(page * PAGE_BYTES) / self.sector_bytes;
        self.whole_page() & u8::MAX.checked_shl(below as u32).unwrap_or(0)
    }
}

//! What is where on the volume. All of it in pages of a block:
//!
//! | pages | content |
//! |---|---|
//! | 0, 1 | superblocks, written in turn, and both at a start; the newest counts |
//! | then | the log, written in a circle |
//! | then, twice | the map of pages in use, written in turn as the superblocks are |
//! | the rest | pages of the tree, never overwritten while a superblock refers to them |
//!
//! A superblock is written only when all that it refers to is durable, so a crash at any time finds one whose tree and
//! map are whole. Every structure has a checksum (CRC-32, as the log records of PostgreSQL have) and the database's
//! identity: what a torn write or an earlier database left behind is told apart.

use policy::unit::BLOCK_BYTES;

use super::Sequence;
use super::bytes::{put, u32_at, u64_at};

pub(super) const PAGE_BYTES: usize = BLOCK_BYTES as usize;

const MAGIC: [u8; 8] = *b"AWASE-DB";
/// Its log, as that of version 1, is as long as the size of the volume says. Version 1 had no starts: what it wrote reads as of
/// start 0.
const BY_SIZE: u32 = 2;
/// Says how long the log is, where that is not what versions before it have for the size of the volume. They know all others.
const VERSION: u32 = 3;

/// Bytes of a page of the map after its header.
const MAP_PAGE_BYTES: u64 = (PAGE_BYTES - MAP_HEADER_BYTES) as u64;
pub(super) const MAP_HEADER_BYTES: usize = 32;

/// The log takes this part of a small database.
const LOG_PART: u64 = 8;
pub(super) const LOG_PAGES_MIN: u64 = (1 << 20) / BLOCK_BYTES;
/// This bounds what a start after a crash reads: 128 MiB. A commit of a lone client takes a page, and a checkpoint writes every
/// page of the tree anew in which a row has changed: with 64 MiB, and so a checkpoint for each 8,192 commits, that was a fifth of
/// the processor time of TPC-B. With 256 MiB no less was measured.
const LOG_PAGES_MAX: u64 = (128 << 20) / BLOCK_BYTES;
/// Of versions 1 and 2.
const LOG_PAGES_MAX_BY_SIZE: u64 = (64 << 20) / BLOCK_BYTES;

/// The smallest database: 8 MiB.
pub const DATABASE_BYTES_MIN: u64 = 8 << 20;
/// The largest one that is made: 16 TiB, whose map of pages takes 512 MiB of memory, and as much again during a checkpoint.
pub const DATABASE_BYTES_MAX: u64 = 16 << 40;

/// A page's number on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PageNo(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Of the volume.
    pub pages: u64,
    /// Of the log.
    pub log_pages: u64,
}

impl Layout {
    /// That of a new database.
    pub(super) fn new(pages: u64) -> Layout {
        Layout { pages, log_pages: (pages / LOG_PART).clamp(LOG_PAGES_MIN, LOG_PAGES_MAX) }
    }

    /// That of versions 1 and 2.
    pub(super) fn by_size(pages: u64) -> Layout {
        Layout { pages, log_pages: (pages / LOG_PART).clamp(LOG_PAGES_MIN, LOG_PAGES_MAX_BY_SIZE) }
    }

    pub(super) fn log(self) -> PageNo {
        PageNo(2)
    }

    /// Of one of the two maps.
    pub(super) fn map_pages(self) -> u64 {
        self.pages.div_ceil(MAP_PAGE_BYTES * 8)
    }

    pub(super) fn map(self, generation: u64) -> PageNo {
        PageNo(self.log().0 + self.log_pages + (generation % 2) * self.map_pages())
    }

    /// The first page of the tree's.
    pub(super) fn first(self) -> PageNo {
        PageNo(self.map(0).0 + 2 * self.map_pages())
    }

    /// Has the log its least length, and is there a page behind the maps? Of a volume whose bytes can be counted.
    fn is_possible(self) -> bool {
        let maps = self.log().0.checked_add(self.log_pages);
        let first = maps.and_then(|maps| maps.checked_add(2 * self.map_pages()));
        let has_room = first.is_some_and(|first| first < self.pages);
        has_room && self.log_pages >= LOG_PAGES_MIN && self.pages.checked_mul(BLOCK_BYTES).is_some()
    }

    pub(super) fn superblock(generation: u64) -> PageNo {
        PageNo(generation % 2)
    }
}

/// The tree: its top page, and the levels above the leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub page: PageNo,
    pub height: u8,
}

/// A place in the log: the page within it, and the number of the group that is there or comes there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPlace {
    pub page: u64,
    pub group: u64,
}

/// The last time that an existing database was opened. No group of the log from before it may follow one that was written since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Start {
    /// Each has the next one. 0: a new database.
    pub number: u64,
    /// The first group of the log that was written after it: all before it were found, and are durable.
    pub group: u64,
}

/// A checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    /// Told from another database that was on the same volume.
    pub identity: u64,
    pub generation: u64,
    pub layout: Layout,
    /// What the tree has: all commits up to this one. Of those after it, it may have a part that is in the log as a whole.
    pub commits: Sequence,
    /// Where the log begins that is to be replayed.
    pub log: LogPlace,
    pub start: Start,
    /// `None`: empty.
    pub root: Option<Root>,
}

/// Why a volume cannot be opened as a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSuperblock {
    /// All zeroes.
    Blank,
    Version(u32),
    Damaged,
    Foreign,
}

impl Superblock {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        put(&mut page, 0, &MAGIC);
        let version = if self.layout == Layout::by_size(self.layout.pages) { BY_SIZE } else { VERSION };
        put(&mut page, 12, &version.to_le_bytes());
        let (root, height) = self.root.map_or((0, 0), |root| (root.page.0, root.height));
        let Superblock { identity, generation, layout, commits, log, start, .. } = *self;
        let place = [identity, generation, layout.pages, commits.0, log.page, log.group];
        let rest = [root, u64::from(height), start.number, start.group, layout.log_pages];
        let fields = place.into_iter().chain(rest);
        for (index, field) in fields.enumerate() {
            put(&mut page, 16 + 8 * index, &field.to_le_bytes());
        }
        let checksum = crc32fast::hash(&page[12..]);
        put(&mut page, 8, &checksum.to_le_bytes());
        page
    }

    pub(super) fn decode(page: &[u8]) -> Result<Superblock, NoSuperblock> {
        if page.iter().all(|byte| *byte == 0) {
            return Err(NoSuperblock::Blank);
        }
        if page[..8] != MAGIC {
            return Err(NoSuperblock::Foreign);
        }
        if u32_at(page, 8) != crc32fast::hash(&page[12..]) {
            return Err(NoSuperblock::Damaged);
        }
        let field = |index: usize| u64_at(page, 16 + 8 * index);
        let layout = match u32_at(page, 12) {
            1..=BY_SIZE => Layout::by_size(field(2)),
            VERSION => Layout { pages: field(2), log_pages: field(10) },
            version => return Err(NoSuperblock::Version(version)),
        };
        let log = LogPlace { page: field(4), group: field(5) };
        if !layout.is_possible() || log.page > layout.log_pages {
            return Err(NoSuperblock::Damaged);
        }
        let root = Root { page: PageNo(field(6)), height: field(7) as u8 };
        Ok(Superblock {
            identity: field(0),
            generation: field(1),
            layout,
            commits: Sequence(field(3)),
            log,
            start: Start { number: field(8), group: field(9) },
            root: Some(root).filter(|root| root.page.0 != 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(layout: Layout) -> Superblock {
        let (log, start) = (LogPlace { page: 3, group: 4 }, Start { number: 5, group: 6 });
        Superblock { identity: 7, generation: 1, layout, commits: Sequence(2), log, start, root: None }
    }

    fn pages_of(bytes: u64) -> u64 {
        bytes / BLOCK_BYTES
    }

    #[test]
    fn a_superblock_whose_log_is_not_on_the_volume_is_damaged() {
        let pages = pages_of(1 << 30);
        let room = pages - 2 - 2 * Layout::new(pages).map_pages();
        for (pages, log_pages, is_possible) in [
            (pages, 0, false),
            (pages, LOG_PAGES_MIN - 1, false),
            (pages, LOG_PAGES_MIN, true),
            (pages, room - 1, true),
            (pages, room, false),
            (pages, u64::MAX, false),
            (0, LOG_PAGES_MIN, false),
            (u64::MAX, LOG_PAGES_MIN, false),
        ] {
            let superblock = superblock(Layout { pages, log_pages });
            let expected = if is_possible { Ok(superblock) } else { Err(NoSuperblock::Damaged) };
            assert_eq!(Superblock::decode(&superblock.encode()), expected);
        }
        let at = |page| Superblock { log: LogPlace { page, group: 4 }, ..superblock(Layout::new(pages)) };
        let end = at(Layout::new(pages).log_pages);
        assert_eq!(Superblock::decode(&end.encode()), Ok(end));
        assert_eq!(Superblock::decode(&at(end.log.page + 1).encode()), Err(NoSuperblock::Damaged));
    }

    #[test]
    fn a_log_is_as_long_as_the_version_that_made_it_has_it() {
        for (layout, version, log_bytes) in [
            (Layout::new(pages_of(DATABASE_BYTES_MIN)), 2, 1 << 20),
            (Layout::new(pages_of(512 << 20)), 2, 64 << 20),
            (Layout::new(pages_of(2 << 30)), 3, 128 << 20),
            (Layout::new(pages_of(DATABASE_BYTES_MAX)), 3, 128 << 20),
            (Layout::by_size(pages_of(2 << 30)), 2, 64 << 20),
        ] {
            let page = superblock(layout).encode();
            assert_eq!((u32_at(&page, 12), layout.log_pages), (version, pages_of(log_bytes)), "{layout:?}");
            assert_eq!(Superblock::decode(&page), Ok(superblock(layout)));
        }
    }
}

//! Changes of a disk's content, and their application to pages.

use std::rc::Rc;

use crate::random::Random;

pub(crate) const PAGE_BYTES: u64 = 4096;

pub(crate) type Page = [u8; PAGE_BYTES as usize];

/// The new content of a change.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// The first byte belongs to the start of the change.
    Bytes(Rc<Vec<u8>>),
    Zeroes,
    /// Deallocated: reads as zeroes.
    Hole,
}

#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) payload: Payload,
}

/// The part of a change in one page. Bit `i` of `sectors` stands for sector `i` of the page.
#[derive(Debug)]
pub(crate) struct Version {
    /// The number of the change.
    pub(crate) change: u64,
    pub(crate) sectors: u8,
    /// Start of the whole change.
    pub(crate) at: u64,
    pub(crate) payload: Payload,
}

pub(crate) fn whole_page(sector_bytes: u64) -> u8 {
    let count = PAGE_BYTES / sector_bytes;
    if count >= 8 { u8::MAX } else { (1 << count) - 1 }
}

/// Applies the chosen `sectors` of `version` to `image`.
pub(crate) fn put(image: &mut Option<Box<Page>>, page: u64, version: &Version, sectors: u8, sector_bytes: u64) {
    if sectors == 0 {
        return;
    }
    if let Payload::Hole = version.payload {
        if sectors == whole_page(sector_bytes) {
            *image = None;
        }
        if image.is_none() {
            return;
        }
    }
    fill(image.get_or_insert_with(|| Box::new([0; PAGE_BYTES as usize])), page, version, sectors, sector_bytes);
}

pub(crate) fn fill(image: &mut Page, page: u64, version: &Version, sectors: u8, sector_bytes: u64) {
    if sectors == whole_page(sector_bytes) {
        return fill_bytes(image, page, version, 0, PAGE_BYTES);
    }
    for sector in 0..PAGE_BYTES / sector_bytes {
        if sectors & (1 << sector) != 0 {
            fill_bytes(image, page, version, sector * sector_bytes, sector_bytes);
        }
    }
}

fn fill_bytes(image: &mut Page, page: u64, version: &Version, from: u64, len: u64) {
    let target = &mut image[from as usize..(from + len) as usize];
    match &version.payload {
        Payload::Bytes(data) => {
            let start = (page * PAGE_BYTES + from - version.at) as usize;
            target.copy_from_slice(&data[start..start + len as usize]);
        }
        Payload::Zeroes | Payload::Hole => target.fill(0),
    }
}

/// Leaves one of the `missed` sectors partly new, partly old.
pub(crate) fn tear_sector(
    image: &mut Option<Box<Page>>,
    page: u64,
    version: &Version,
    missed: u8,
    sector_bytes: u64,
    random: &mut Random,
) {
    let image = image.get_or_insert_with(|| Box::new([0; PAGE_BYTES as usize]));
    let sector = u64::from(missed.trailing_zeros());
    let len = 1 + random.below(sector_bytes - 1);
    fill_bytes(image, page, version, sector * sector_bytes, len);
}

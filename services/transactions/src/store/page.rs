//! A page of the tree: cells in the order of their keys.
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | CRC-32 of all that follows |
//! | 4..8 | level: 0 for a leaf |
//! | 8..16 | the database's identity |
//! | 16..24 | the page's own number: a write that went elsewhere is noticed |
//! | 24..26 | number of cells |
//! | then | where each cell begins (2 bytes), in order |
//! | then | the cells: length of the key (2), length of the value (2), key, value |
//!
//! The value of a leaf's cell is a row; of an inner page's, the number of the child whose keys are not before this cell's
//! key (what is before the first cell's key belongs to the first child).

use kernel::FrameRef;

use super::bytes::{put, u16_at, u32_at, u64_at};
use super::layout::{PAGE_BYTES, PageNo};
use super::{KEY_BYTES_MAX, ROW_BYTES_MAX, StoreError};

const HEADER_BYTES: usize = 32;
/// Of a cell, besides key and value; with its place in the list of cells.
const CELL_BYTES: usize = 2 + 4;
/// Bytes of cells that a page can take.
pub(super) const CAPACITY: usize = PAGE_BYTES - HEADER_BYTES;

// A page takes at least two cells: otherwise a tree could not branch. A key here begins with its table's number.
const _: () = assert!(2 * (CELL_BYTES + 4 + KEY_BYTES_MAX + ROW_BYTES_MAX) <= CAPACITY);

/// Bytes that a cell takes.
pub(super) fn cell_bytes(key: &[u8], value: &[u8]) -> usize {
    CELL_BYTES + key.len() + value.len()
}

/// The bytes of a page that was found to be whole.
#[derive(Clone, Copy)]
pub(super) struct Page<'a>(&'a [u8]);

impl<'a> Page<'a> {
    /// # Errors
    /// If it is not the page of that number and level: the medium returned something else than was written.
    pub(super) fn check(frame: &'a FrameRef, identity: u64, no: PageNo, level: u8) -> Result<Page<'a>, StoreError> {
        let bytes = frame.bytes();
        let is_expected = (u32_at(bytes, 4), u64_at(bytes, 8), u64_at(bytes, 16)) == (u32::from(level), identity, no.0);
        if !frame.is_verified() {
            if u32_at(bytes, 0) != crc32fast::hash(&bytes[4..]) {
                return Err(StoreError::Damaged(no.0));
            }
            frame.set_verified();
        }
        if is_expected { Ok(Page(bytes)) } else { Err(StoreError::Damaged(no.0)) }
    }

    pub(super) fn len(self) -> usize {
        usize::from(u16_at(self.0, 24))
    }

    pub(super) fn cell(self, index: usize) -> (&'a [u8], &'a [u8]) {
        let at = usize::from(u16_at(self.0, HEADER_BYTES + 2 * index));
        let (key_len, value_len) = (usize::from(u16_at(self.0, at)), usize::from(u16_at(self.0, at + 2)));
        let key = at + 4;
        (&self.0[key..key + key_len], &self.0[key + key_len..key + key_len + value_len])
    }

    pub(super) fn cells(self) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> {
        (0..self.len()).map(move |index| self.cell(index))
    }

    pub(super) fn child(self, index: usize) -> PageNo {
        PageNo(u64_at(self.cell(index).1, 0))
    }

    /// The number of cells whose key is before `key`, or equal to it if `or_equal`.
    pub(super) fn before(self, key: &[u8], or_equal: bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let found = self.cell(middle).0;
            if found < key || or_equal && found == key { low = middle + 1 } else { high = middle }
        }
        low
    }

    pub(super) fn get(self, key: &[u8]) -> Option<&'a [u8]> {
        let index = self.before(key, false);
        let (found, value) = (index < self.len()).then(|| self.cell(index))?;
        (found == key).then_some(value)
    }

    /// Of an inner page: the child that has `key`.
    pub(super) fn branch(self, key: &[u8]) -> usize {
        self.before(key, true).saturating_sub(1)
    }
}

/// Fills a page with `cells`, which must fit.
pub(super) fn fill<'c>(
    bytes: &mut [u8],
    (identity, no, level): (u64, PageNo, u8),
    cells: impl ExactSizeIterator<Item = (&'c [u8], &'c [u8])>,
) {
    bytes.fill(0);
    put(bytes, 4, &u32::from(level).to_le_bytes());
    put(bytes, 8, &identity.to_le_bytes());
    put(bytes, 16, &no.0.to_le_bytes());
    put(bytes, 24, &(cells.len() as u16).to_le_bytes());
    let mut at = HEADER_BYTES + 2 * cells.len();
    for (index, (key, value)) in cells.enumerate() {
        put(bytes, HEADER_BYTES + 2 * index, &(at as u16).to_le_bytes());
        put(bytes, at, &(key.len() as u16).to_le_bytes());
        put(bytes, at + 2, &(value.len() as u16).to_le_bytes());
        put(bytes, at + 4, key);
        put(bytes, at + 4 + key.len(), value);
        at += 4 + key.len() + value.len();
    }
    let checksum = crc32fast::hash(&bytes[4..]);
    put(bytes, 0, &checksum.to_le_bytes());
}

/// Divides cells of these sizes among as few pages as hold them, evenly. Returns where each page's end.
pub(super) fn divide(sizes: impl Iterator<Item = usize> + Clone) -> Vec<usize> {
    let total: usize = sizes.clone().sum();
    let mut pages = total.div_ceil(CAPACITY).max(1);
    loop {
        let ends = try_divide(sizes.clone(), total.div_ceil(pages));
        // Cells that are large beside a page leave gaps.
        if ends.len() <= pages || pages > total {
            return ends;
        }
        pages = ends.len();
    }
}

fn try_divide(sizes: impl Iterator<Item = usize>, target: usize) -> Vec<usize> {
    let (mut ends, mut filled, mut count) = (Vec::new(), 0, 0);
    for size in sizes {
        if filled > 0 && (filled + size > CAPACITY || filled >= target) {
            ends.push(count);
            filled = 0;
        }
        filled += size;
        count += 1;
    }
    if filled > 0 {
        ends.push(count);
    }
    ends
}

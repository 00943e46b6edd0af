//! The live and the durable content of a file.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::ledger::SECTOR;
use crate::random::Random;

#[derive(Default)]
pub struct Content {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that the next flush covers.
    dirty: BTreeSet<usize>,
}

/// A flush in flight covers the content at its start.
pub struct Flush {
    size: usize,
    sectors: Vec<(usize, Vec<u8>)>,
}

impl Content {
    pub fn size(&self) -> usize {
        self.live.len()
    }

    /// Returns fewer bytes at the end of the file.
    pub fn read(&self, at: usize, len: usize) -> &[u8] {
        let end = self.live.len().min(at.saturating_add(len));
        &self.live[at.min(end)..end]
    }

    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.set_size(self.live.len().max(end));
        self.live[at..end].copy_from_slice(bytes);
        self.mark_dirty(at..end);
    }

    /// Zeroes the part of `range` within the file.
    pub fn zero(&mut self, range: Range<usize>) {
        let end = range.end.min(self.live.len());
        let range = range.start.min(end)..end;
        self.live[range.clone()].fill(0);
        self.mark_dirty(range);
    }

    /// Truncates it, or extends it by zeroes.
    pub fn set_size(&mut self, size: usize) {
        let old = self.live.len();
        self.live.resize(size, 0);
        self.mark_dirty(old.min(size)..old.max(size));
    }

    fn mark_dirty(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.dirty.extend(range.start / SECTOR..range.end.div_ceil(SECTOR));
        }
    }

    /// Begins a flush, which covers earlier changes (M2).
    pub fn begin_flush(&mut self) -> Flush {
        let dirty = std::mem::take(&mut self.dirty);
        let sector = |sector: usize| (sector, self.read(sector * SECTOR, SECTOR).to_vec());
        Flush { size: self.live.len(), sectors: dirty.into_iter().map(sector).collect() }
    }

    /// Ends a flush. After a failure, all that is not durable is as on a host that has marked its pages clean: it is read,
    /// but no later flush covers it (M7).
    pub fn end_flush(&mut self, flush: Flush, has_failed: bool) {
        if has_failed {
            self.dirty.clear();
            return;
        }
        self.durable.resize(flush.size, 0);
        for (sector, bytes) in flush.sectors {
            let at = (sector * SECTOR).min(flush.size);
            self.durable[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Cuts the power: unflushed sectors are lost; with `keep` a random part of them survives, as on a real disk.
    pub fn cut(&mut self, keep: Option<&mut Random>) {
        if let Some(random) = keep {
            for &sector in &self.dirty {
                let at = sector * SECTOR;
                let end = (at + SECTOR).min(self.live.len()).min(self.durable.len());
                if at < end && random.chance(500) {
                    self.durable[at..end].copy_from_slice(&self.live[at..end]);
                }
            }
        }
        self.live.clone_from(&self.durable);
        self.dirty.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(byte: u8) -> Content {
        let mut content = Content::default();
        content.write(0, &[byte; 2 * SECTOR]);
        let flush = content.begin_flush();
        content.end_flush(flush, false);
        content
    }

    fn after_cut(mut content: Content) -> Vec<u8> {
        content.cut(None);
        content.read(0, usize::MAX).to_vec()
    }

    #[test]
    fn a_successful_flush_covers_only_changes_before_its_start() {
        let mut content = written(1);
        content.write(0, &[2; SECTOR]);
        let flush = content.begin_flush();
        content.write(SECTOR, &[3; 2 * SECTOR]);
        content.end_flush(flush, false);
        assert_eq!(content.size(), 3 * SECTOR);
        assert_eq!(after_cut(content), [[2; SECTOR], [1; SECTOR]].concat());
    }

    #[test]
    fn after_a_failed_flush_content_is_read_but_not_covered_by_the_next() {
        let mut content = written(1);
        content.write(0, &[2; SECTOR]);
        let flush = content.begin_flush();
        content.zero(SECTOR..2 * SECTOR);
        content.end_flush(flush, true);
        assert_eq!(content.read(0, usize::MAX), [[2; SECTOR], [0; SECTOR]].concat());
        let flush = content.begin_flush();
        content.end_flush(flush, false);
        assert_eq!(after_cut(content), [1; 2 * SECTOR]);
    }

    #[test]
    fn a_flush_makes_the_size_durable() {
        let mut content = written(1);
        content.set_size(SECTOR);
        content.set_size(3 * SECTOR);
        let flush = content.begin_flush();
        content.end_flush(flush, false);
        assert_eq!(after_cut(content), [[1; SECTOR], [0; SECTOR], [0; SECTOR]].concat());
    }
}
